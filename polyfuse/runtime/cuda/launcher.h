// What launcher.cpp gets from launcher.py: functions of the interpreter and of CUDA's driver, families of arrays,
// layouts of calls.  The structures there and here are the same, field by field.

#pragma once
#include <cstdint>

#include "first_fit.h"
#include "expressions.h"

typedef void* Object;

struct pf_tensor {  // DLPack's DLTensor
  char* data;
  int32_t device_type, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* extents;
  const int64_t* strides;
  uint64_t offset;
};

struct pf_interface {
  // objects
  Object none, not_implemented, yes, no, exception;
  // Python's functions
  void (*incref)(Object);
  void (*decref)(Object);
  int64_t (*tuple_size)(Object);
  Object (*tuple_get)(Object, int64_t);       // borrowed
  Object (*tuple_new)(int64_t);
  int (*tuple_set)(Object, int64_t, Object);  // steals
  double (*float_value)(Object);
  long long (*int_value)(Object, int* overflow);
  unsigned long long (*address_value)(Object);  // modulo 2^64
  Object (*new_address)(unsigned long long);
  Object (*attribute)(Object, Object name);
  Object (*method)(Object name, Object const* with_self, size_t count, Object names);
  Object (*call)(Object function, Object const* arguments, size_t count, Object names);
  int (*equal)(Object, Object, int operation);
  int (*truth)(Object);
  Object (*error)();  // borrowed; null: none
  int (*error_is)(Object type);
  void (*clear_error)();
  void (*fetch_error)(Object* type, Object* value, Object* trace);
  void (*restore_error)(Object type, Object value, Object trace);
  Object (*no_memory)();
  void* (*release_gil)();
  void (*take_gil)(void*);
  Object (*new_function)(void* definition, Object self, Object module);
  Object (*new_capsule)(void*, const char*, void (*)(Object));
  void* (*capsule_pointer)(Object, const char*);
};

struct pf_driver {  // CUDA's driver; statuses as results
  int (*get_current)(void** context);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                void* stream, void** parameters, void** extra);
  int (*launch_cooperative)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned shared, void* stream, void** parameters);
  int (*fill)(uint64_t address, unsigned char byte, size_t bytes, void* stream);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  void* context;
};

struct pf_fact {
  Object name;             // of an attribute
  Object then;             // of an attribute of that one, or null
  int64_t calls;           // is the first one a method without arguments?
};

struct pf_family {         // the arrays of one library
  int64_t ntypes;
  const Object* types;     // exactly these
  int64_t nfacts;
  const pf_fact* facts;    // what must be as it was learnt
  pf_fact address;
  int (*tensor)(Object, pf_tensor*);  // describes an array; or
  Object lend, lend_names, lend_stream;  // DLPack's method, the name of its argument in a tuple, and the argument;
                           // null: the address and all about the memory come from the facts
  pf_fact flag;            // must be false, unless `excuse()` is; null name: none
  Object excuse;
  Object refuse;           // must be false of each array; null: nothing is asked
  Object guard, guard_name, guard_value;  // an attribute that must be so at each call; null: none
  int64_t nbusy;
  const Object* busy;      // functions without arguments that must give something false
  int (*stream_of)(int32_t type, int32_t device, void** stream);  // the library's current stream; or
  Object stream;           // a function without arguments; or, if null,
  pf_fact own_stream;      // what each array says, and all must say the same
  int64_t device;
  Object made_type;        // results are exactly this
  pf_fact made_address;    // null name: as of all arrays
  Object hold;             // told of (a tuple of what was lent, the stream) after the launches; or null
  Object write;            // told of the tuple of arrays that are written; false: the long way decides; or null
};

struct pf_argument {
  int64_t kind;            // 0 array, 1 float, 2 int, 3 bool
  Object type;             // of a number: exactly this
  int64_t code, cell;      // what the kernel reads, and where (-1: nowhere)
  const Object* facts;
  const pf_tensor* tensor;
  int64_t low, nbytes;     // from its address: where its memory begins, and how much that is
  int64_t align, written;
};

struct pf_result {         // and the workspace, behind the results
  Object make;             // a function; of the shape if there are `extents`, of the stream if arrays have one
  int64_t nbytes, align;
  int64_t rank;
  const int64_t* extents;  // null: `make` knows them
};

// Sources are arguments, results and the workspace, in this order.
struct pf_put { int64_t cell, source, offset; };

struct pf_step {
  int64_t kind;            // 0 fill with zeros, 1 copy, 2 launch, 3 a Python function of (cells, stream)
  int64_t source, offset, to, to_offset, nbytes;
  void* function;
  int64_t grid[3], block[3];
  int64_t shared, cooperative, ncells;
  const int64_t* cells;    // the parameters of a launch
  Object call;
};

struct pf_table {          // arguments of a launch that are too many to be passed
  int64_t ncells, cell;    // `cell` gets the address of the table
  const int64_t* cells;    // what is in it
  Object bring;            // of (address of the content, stream): the memory on the device that has it
  pf_fact address;         // of that memory
};

// ---- layouts with open sizes (open_layouts.h) ----

struct pf_open_argument { const pf_expression* extents; int64_t rank, itemsize, strided; };
struct pf_open_result { const pf_expression* extents; int64_t itemsize; };
struct pf_open_space { pf_expression elements; int64_t itemsize, first, last; };
struct pf_open_step { pf_expression blocks; int64_t most_blocks, space; };  // of a launch; of a copy
struct pf_number { int64_t cell; pf_expression value; };
struct pf_stride { int64_t cell, argument, axis; };
struct pf_open_put { int64_t put, space; };

struct pf_open {
  int64_t nsizes, nconditions, nspaces, nnumbers, nstrides, nputs;
  int64_t start, align;              // of spaces in the workspace
  int64_t shape, strides;            // which fact has it, where facts tell of memory; -1: none, all is dense
  int64_t stride_bytes;              // are these strides in bytes?
  const pf_source* sources;          // by size
  const pf_condition* conditions;
  const pf_open_argument* arguments;
  const pf_open_result* results;
  const pf_open_space* spaces;
  const pf_open_step* steps;
  const pf_number* numbers;          // sizes, strides of dense memory
  const pf_stride* strides_of;       // of arguments
  const pf_open_put* puts;
};

struct pf_layout {
  const pf_driver* driver; // null: `run` does all steps
  const pf_family* family;
  int64_t narguments, nresults, workspace, nputs, nsteps, ncells, most_parameters, ntables, most_content;
  const pf_argument* arguments;
  const pf_result* results;
  const pf_put* puts;
  const pf_step* steps;
  const pf_table* tables;
  const int64_t* cells;    // what is the same in all calls
  int64_t written;         // is any argument?
  Object run;              // of (cells, addresses, stream, steps)
  Object failed;           // of (status, step): raises what the driver said
  const pf_open* open;     // what depends on sizes, where they are parameters; null: nothing does
  int64_t rank;            // layouts of a smaller one are tried first
};
