// What emitted kernels and the engine of the emulator (emulator.cpp) both know: two libraries, compiled
// apart. The engine is compiled once per machine; a kernel reaches it through the pointer `pf_emu` alone.

typedef __INT64_TYPE__ pf_emu_i64;
typedef __UINT64_TYPE__ pf_emu_u64;
typedef unsigned int pf_u32;

struct pf_emu_index {
  unsigned x, y, z;
};

// Who touched an element last, in which way. A place in time is one word: epoch (32 bits), thread in its
// block (10), clock of its lane (22). An epoch is one block between two of its barriers. `owner`: the shared
// array, of those that lie in the same memory, as which the element was written.
struct pf_emu_cell {
  pf_emu_u64 write, atomic, read, other_read;
  const struct pf_emu_array* owner;
};

// A buffer as one parameter of a kernel, or a shared array of one block.
struct pf_emu_array {
  char* data;          // element 0
  pf_emu_i64 low;      // the first index that exists (below 0 for negative strides)
  pf_emu_u64 count;    // indices low .. low + count - 1 exist
  pf_emu_u64 plain;    // `count` where a read has nothing to note, else 0
  pf_emu_cell* cells;  // of index `low` on; null: nobody writes it
  pf_u32* loads;       // counters of index `low` on, or null
  pf_u32* stores;
  pf_emu_u64* sectors;  // that warps loaded, stored, that blocks fetched; null: not counted
  pf_emu_u64 first;  // cells of an earlier time hold nothing to read; 0: all elements have a value
  const char* name;
  pf_emu_i64 alignment;  // of element 0, in bytes
  int size;              // of an element, in bytes
  int shared;            // it belongs to one block
};

// The declaration of a shared array in a kernel, and its memory in the block that ran last.
struct pf_emu_site {
  const char* name;
  pf_emu_u64 count;
  int size;
  pf_emu_u64 serial;
  pf_emu_array* array;
};

struct pf_emu_engine {
  pf_emu_index thread, block, threads, blocks;  // threadIdx, blockIdx, blockDim, gridDim
  pf_emu_u64 serial;                            // of the running block
  const char* (*load)(pf_emu_array*, pf_emu_i64 index);
  char* (*store)(pf_emu_array*, pf_emu_i64 index);
  const char* (*load_vector)(pf_emu_array*, pf_emu_i64 index, int count);
  char* (*store_vector)(pf_emu_array*, pf_emu_i64 index, int count);
  char* (*address)(pf_emu_array*, pf_emu_i64 index);  // for an atomic update
  pf_emu_array* (*shared)(pf_emu_site*, pf_emu_array* home);  // in the memory of `home` if it is not null
  void (*block_barrier)(int line);
  void (*grid_barrier)(const void* state, int line);
  pf_emu_u64 (*exchange)(unsigned lanes, pf_emu_u64 value, int step, int bytes, int line);
  unsigned (*active)();
  pf_emu_u64 (*enter_loop)(int line);  // the way of the thread before
  void (*leave_loop)(pf_emu_u64 way);
};
