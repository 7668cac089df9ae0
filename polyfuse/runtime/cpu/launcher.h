// What launcher.cpp gets from launcher.py: functions and objects of the interpreter, layouts of calls.
// The structures there and here are the same, field by field.

#pragma once
#include <cstdint>

struct pf_step {  // as the pool has them (pool.cpp)
  void* run;
  int64_t count, chunk, parallel, series, rounds;
};

#include "first_fit.h"
#include "cut_steps.h"
#include "expressions.h"

typedef void* Object;

struct pf_interface {
  // objects
  Object array_type, float_type, int_type, bool_type, none, not_implemented, yes, no, exception, runtime_error,
      byte_dtype;
  // Python's functions
  void (*incref)(Object);
  void (*decref)(Object);
  int64_t (*tuple_size)(Object);
  Object (*tuple_get)(Object, int64_t);         // borrowed
  Object (*tuple_new)(int64_t);
  int (*tuple_set)(Object, int64_t, Object);    // steals
  double (*float_value)(Object);
  long long (*int_value)(Object, int* overflow);
  Object (*call)(Object);
  Object (*call_with)(Object, Object);
  Object (*new_int)(long long);
  Object (*no_memory)();
  void (*set_error)(Object, const char*);
  void* (*release_gil)();
  void (*take_gil)(void*);
  Object (*new_function)(void* definition, Object self, Object module);
  Object (*new_capsule)(void*, const char*, void (*)(Object));
  void* (*capsule_pointer)(Object, const char*);
  Object (*attribute)(Object, Object name);
  Object (*method)(Object name, Object const* with_self, size_t count, Object names);
  Object (*call_all)(Object function, Object const* arguments, size_t count, Object names);
  int (*equal)(Object, Object, int operation);
  int (*truth)(Object);
  Object (*error)();  // borrowed; null: none
  int (*error_is)(Object type);
  void (*clear_error)();
  // NumPy's functions
  Object (*new_array)(Object type, Object dtype, int rank, const int64_t* extents, const int64_t* strides,
                      void* data, int flags, Object other);  // steals dtype
  int (*set_base)(Object array, Object base);                // steals base
  Object (*unwrap)(Object array);                            // a NumPy scalar for rank 0; steals
};

struct pf_array {  // PyArrayObject, as `launcher.py` found it
  int64_t references;
  Object type;
  char* data;
  int rank;
  const int64_t* extents;
  const int64_t* strides;
  Object base, dtype;
  int flags;
};

// ---- tensors of another library (tensors.h) ----

struct pf_tensor {  // DLPack's DLTensor
  char* data;
  int32_t device_type, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* extents;
  const int64_t* strides;
  uint64_t offset;
};

struct pf_kind {           // of elements: DLPack's code, the dtype of the library and NumPy's
  int64_t code, bytes;
  Object theirs, ours;
};

struct pf_tensors {
  int64_t ntypes, nkinds;
  const Object* types;     // exactly these
  const pf_kind* kinds;
  int (*describe)(Object, pf_tensor*);  // null: tensors are asked by the attributes below
  Object flag;             // an attribute that must be false, unless `excuse()` is
  Object excuse;
  Object negated;          // a method that must be false
  Object refuse;           // must be false of each tensor; null: nothing is asked
  Object guard, guard_name, guard_value;  // an attribute that must be so at each call; null: none
  int64_t nbusy;
  const Object* busy;      // functions without arguments that must give something false
  Object make;             // (extents, strides, dtype) -> a tensor
  Object lend;             // (array) -> a tensor on its memory
  Object write;            // told of the tuple of tensors that are written; false: the long way decides
  Object on_host, layout, strided, shape, stride, address, dtype;
};

// ---- layouts of calls ----

struct pf_argument {
  int64_t kind;            // 0 array, 1 float, 2 int, 3 bool
  int64_t place, also;     // in the pointer table; `also` is the output that lies in its place, or -1
  Object dtype;
  int64_t rank;
  const int64_t* extents;
  const int64_t* strides;  // null: dense
  int64_t low, nbytes;     // from its address: where its memory begins, and how much that is
  int64_t align, written;
  int64_t code;            // of a number: what the kernel reads
};

struct pf_result {
  int64_t place;
  Object dtype;
  int64_t rank;
  const int64_t* extents;
  int64_t block, offset;   // from its first multiple of 64; block -1: the one that small results share
};

struct pf_space { int64_t place, offset; };

struct pf_block {
  int64_t bytes;           // blocks of as many bytes are alike
  Object allocate;         // makes the array that owns a new one
  int64_t asked;           // is it called with the bytes?
};

// ---- layouts with open sizes (open_layouts.h) ----

struct pf_open_argument {
  const pf_expression* extents;
  const int64_t* order;    // of axes in memory; null: dense as C has them
  int64_t strided;         // any strides will do
};

struct pf_open_result { const pf_expression* extents; int64_t itemsize; };
struct pf_open_space { int64_t place; pf_expression elements; int64_t itemsize, first, last; };
struct pf_stride { int64_t argument, axis; };

struct pf_open_step {
  pf_expression count, instances, work;
  const int64_t* together;
  int64_t ntogether, least, parallel;
};

struct pf_open {
  int64_t nsizes, nconditions, nnumbers, nstrides;
  const pf_source* sources;          // by size
  const pf_condition* conditions;
  const pf_open_argument* arguments;
  const pf_open_result* results;
  const pf_open_space* spaces;
  const pf_open_step* steps;
  const int64_t* numbers;            // sizes among the numbers of a call; strides follow them
  const pf_stride* strides;
  Object allocate;                   // makes a block of so many bytes
  pf_figures figures;
};

struct pf_layout {
  int (*run)(const void* steps, int64_t nsteps, char* const* buf, const int64_t* num, int64_t scratch,
             int64_t flags);
  const void* steps;
  int64_t nsteps;
  const int64_t* numbers;
  int64_t scratch, flags, buffers;
  char* status;            // goes into the last place of the pointer table
  int64_t narguments, nresults, nspaces, nblocks;
  const pf_argument* arguments;
  const pf_result* results;
  const pf_space* spaces;
  const pf_block* blocks;  // large ones
  int64_t written;         // is any argument?
  int64_t shared;          // bytes of the block of small results, 0: there is none
  int64_t space_bytes, space_block;  // workspace: block -1 is ours
  Object finish;           // raises what went wrong in steps that are written in Python; null if none are
  const pf_open* open;     // what depends on sizes, where they are parameters; null: nothing does
  int64_t rank;            // layouts of a smaller one are tried first
};

// ---- regions (regions.h) ----

struct pf_made { int64_t place; Object extents, strides, dtype; };  // what makes a tensor: tuples, a dtype

struct pf_region {
  const pf_layout* layout;  // all arguments are arrays with strides, its `nresults` are these
  const pf_made* results;
};
