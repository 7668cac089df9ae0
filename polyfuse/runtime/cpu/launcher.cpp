// The short way of a call in one C function: arguments checked, results made, kernels run.
//
// A call with small arrays spends its time in asking Python about them, 0.5 us and more for each.  Here they are
// looked at where they lie.  What this file promises:
//
//  * Nothing of the interpreter is assumed but what `launcher.py` has verified at its start: where an object
//    has its type and where a NumPy array has its fields (both fixed by the C interfaces that extensions
//    are compiled against).  All else goes through functions of the two C interfaces, given by address, so
//    that no header of Python or NumPy is needed.
//  * A call is taken only if every argument is what a learnt layout says: the very type, the very dtype object,
//    the same extents, dense or of the same strides, aligned, writable where it is written, and apart from all
//    other memory where it is written.  Whatever else comes is answered with NotImplemented, before anything
//    has happened; the long way decides.
//  * Tensors of another library are taken as well, where `launcher.py` has been told how (`tensors.h`).
//  * Pointer table and numbers of a call are its own: several threads may be in here at once.  The GIL is held
//    except while kernels run.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "launcher.h"

namespace {

constexpr int64_t kArray = 0;
constexpr int kDense = 0x1, kAligned = 0x100, kWritable = 0x400;  // flags of an array
constexpr int64_t kLine = 64;
constexpr int64_t kRoom = 2048;  // words on the stack; calls of more take them from the heap
const char kName[] = "polyfuse.launcher";

struct Entry {
  const pf_layout* layout;
  Object keep;       // owns the layout and all it points to
  char** apart;      // addresses of the arrays that were last found not to overlap, by argument
  bool known;        // is there such a record?
  bool bound;        // is it a template at some sizes (kept_layouts.h)?
  int64_t users;     // calls that are using it
};

struct Front {       // of one operator: all its layouts, the one used last in front
  int64_t parameters;
  Object defaults;   // by parameter
  Entry** entries;
  int64_t count, words, kept;  // `kept` of the entries are bound
};

struct Range {
  char *start, *end;
  bool written;
};

pf_interface py;
Object types[4];

inline Object type_of(Object o) { return static_cast<pf_array*>(o)->type; }

inline Object owned(Object o) {
  py.incref(o);
  return o;
}

#include "kept_blocks.h"

#include "numbers.h"

#include "open_layouts.h"

#include "kept_layouts.h"

// Are these the arguments of the layout? If so their addresses are in the pointer table.
bool take(const pf_layout& l, const Object* items, char** pointers, int64_t* cells) {
  for (int64_t k = 0; k < l.narguments; ++k) {
    const pf_argument& a = l.arguments[k];
    if (type_of(items[k]) != types[a.kind]) return false;
    char* address;
    if (a.kind == kArray) {
      const pf_array* x = static_cast<const pf_array*>(items[k]);
      const int wanted = (a.strides ? 0 : kDense) | kAligned | (a.written ? kWritable : 0);
      if (x->dtype != a.dtype || x->rank != a.rank || (x->flags & wanted) != wanted) return false;
      for (int64_t d = 0; d < a.rank; ++d)
        if (x->extents[d] != a.extents[d] || (a.strides && x->strides[d] != a.strides[d])) return false;
      address = x->data;
      if (reinterpret_cast<uintptr_t>(address) % uintptr_t(a.align)) return false;
    } else {
      if (!number(a.kind, a.code, items[k], cells + k)) return false;
      address = reinterpret_cast<char*>(cells + k);
    }
    pointers[a.place] = address;
    if (a.also >= 0) pointers[a.also] = address;
  }
  return true;
}

// Does memory that is written meet no other memory of the call? Asked again only for other addresses.
bool apart(Entry& e, const pf_layout& l, char* const* pointers, Range* ranges) {
  if (!l.written) return true;
  bool same = e.known && !l.open;  // with other sizes the same addresses may meet
  int64_t count = 0;
  for (int64_t k = 0; k < l.narguments; ++k) {
    const pf_argument& a = l.arguments[k];
    if (a.kind != kArray || !a.nbytes) continue;
    char* address = pointers[a.place];
    same = same && e.apart[k] == address;
    ranges[count++] = Range{address + a.low, address + a.low + a.nbytes, a.written != 0};
  }
  if (same) return true;
  std::sort(ranges, ranges + count, [](const Range& a, const Range& b) { return a.start < b.start; });
  char *high = nullptr, *written_high = nullptr;  // the ends of memory seen so far, and of what is written of it
  for (int64_t k = 0; k < count; ++k) {
    const Range& r = ranges[k];
    if (r.start < (r.written ? high : written_high)) return false;
    high = std::max(high, r.end);
    if (r.written) written_high = std::max(written_high, r.end);
  }
  for (int64_t k = 0; k < l.narguments; ++k) e.apart[k] = pointers[l.arguments[k].place];
  e.known = true;
  return true;
}

// Where the memory of a block begins.
inline char* aligned(Object block) {
  const uintptr_t raw = reinterpret_cast<uintptr_t>(static_cast<pf_array*>(block)->data);
  return reinterpret_cast<char*>((raw + kLine - 1) / kLine * kLine);
}

// An array on memory that `base` owns.
Object view(const pf_result& r, char* data, Object base) {
  Object array = py.new_array(py.array_type, owned(r.dtype), int(r.rank), r.extents, nullptr, data,
                              kDense | kAligned | kWritable, nullptr);
  if (!array) return nullptr;
  if (py.set_base(array, owned(base)) == 0) return array;
  py.decref(array);
  return nullptr;
}

#include "tensors.h"

// Fresh arrays for all results, uninitialised, at multiples of 64 bytes; false with an exception set.
bool results(const pf_layout& l, const Object* blocks, char** pointers, Object* made) {
  Object block = nullptr;
  if (l.shared) {
    const int64_t bytes = l.shared + kLine;
    block = py.new_array(py.array_type, owned(py.byte_dtype), 1, &bytes, nullptr, nullptr, 0, nullptr);
    if (!block) return false;
  }
  int64_t count = 0;
  for (; count < l.nresults; ++count) {
    const pf_result& r = l.results[count];
    Object base = r.block < 0 ? block : blocks[r.block];
    char* data = aligned(base) + r.offset;
    made[count] = view(r, data, base);
    if (!made[count]) break;
    pointers[r.place] = data;
  }
  if (block) py.decref(block);
  if (count == l.nresults) return true;
  drop(made, count);
  return false;
}

// Kernels, with the GIL released; nonzero if there is no memory.
int run(const pf_layout& l, const Object* blocks, char** pointers) {
  char* own = nullptr;
  char* base = nullptr;
  if (l.nspaces) {
    if (l.space_block >= 0) {
      base = aligned(blocks[l.space_block]);
    } else {
      own = static_cast<char*>(std::malloc(size_t(l.space_bytes + kLine)));
      if (!own) return 1;
      base = own + (kLine - reinterpret_cast<uintptr_t>(own) % kLine) % kLine;
    }
  }
  for (int64_t k = 0; k < l.nspaces; ++k) pointers[l.spaces[k].place] = base + l.spaces[k].offset;
  pointers[l.buffers - 1] = l.status;
  void* thread = py.release_gil();
  const int failed = l.run(l.steps, l.nsteps, pointers, l.numbers, l.scratch, l.flags);
  py.take_gil(thread);
  std::free(own);
  return failed;
}

// Did steps that are written in Python end without an exception?
bool finished(const pf_layout& l) {
  if (!l.finish) return true;
  Object nothing = py.call(l.finish);
  if (nothing) py.decref(nothing);
  return nothing != nullptr;
}

Object answer(const pf_layout& l, Object tuple, Object* made, bool tensors) {
  for (int64_t k = 0; k < l.nresults; ++k) {
    if (!l.results[k].rank && !tensors) made[k] = py.unwrap(made[k]);
    if (!made[k]) {  // no memory for a scalar
      drop(made + k + 1, l.nresults - k - 1);
      if (tuple) py.decref(tuple);
      return nullptr;
    }
    if (tuple) py.tuple_set(tuple, k, made[k]);
    else return made[k];
  }
  return tuple ? tuple : owned(py.none);
}

// A new block, whose allocator wants to know the bytes.
Object allocated(const pf_block& b) {
  Object bytes = py.new_int(b.bytes);
  if (!bytes) return nullptr;
  Object made = py.call_with(b.allocate, bytes);
  py.decref(bytes);
  return made;
}

// The large blocks of a call, all or none; those of results only from so many bytes on. `anew` if Python was asked
// for any.
bool large_blocks(const pf_layout& l, Object* blocks, int64_t least, bool* anew) {
  for (int64_t k = 0; k < l.nblocks; ++k) {
    const pf_block& b = l.blocks[k];
    blocks[k] = nullptr;
    if (b.bytes < least && k != l.space_block) continue;
    if ((blocks[k] = kept_block(b.bytes))) continue;
    *anew = true;
    blocks[k] = b.asked ? allocated(b) : py.call(b.allocate);
    if (blocks[k] && type_of(blocks[k]) == py.array_type) {
      keep(b.bytes, blocks[k]);
      continue;
    }
    if (blocks[k]) {
      py.set_error(py.runtime_error, "a block of memory is not an array");
      py.decref(blocks[k]);
    }
    drop(blocks, k);
    return false;
  }
  return true;
}

struct Room {
  Object* items;  // arrays and numbers
  Object* given;  // where some are tensors: as they came
  Seen* seen;
  char** pointers;
  Object* made;
  Object* blocks;
  int64_t* cells;
  Range* ranges;
};

Object launch(Entry& e, const pf_layout& l, const Room& room) {
  Object tuple = nullptr, found = nullptr;
  bool anew = false;
  if (l.nresults > 1 && !(tuple = py.tuple_new(l.nresults))) return nullptr;
  if (!large_blocks(l, room.blocks, 0, &anew)) {
    if (tuple) py.decref(tuple);
    return nullptr;
  }
  // Either may have run Python code (a garbage collection), which may have changed an argument.
  const bool fits = (!tuple && !anew) || take(l, room.items, room.pointers, room.cells);
  if (!fits || !apart(e, l, room.pointers, room.ranges)) {
    found = owned(py.not_implemented);
  } else if (results(l, room.blocks, room.pointers, room.made)) {
    if (run(l, room.blocks, room.pointers) != 0) {
      drop(room.made, l.nresults);
      found = py.no_memory();
    } else if (!finished(l)) {
      drop(room.made, l.nresults);
    } else {
      found = answer(l, tuple, room.made, false);
      tuple = nullptr;
    }
  }
  drop(room.blocks, l.nblocks);
  if (tuple) py.decref(tuple);
  return found;
}

// Kernels on tensors, whose results are made already.
Object run_on_tensors(Entry& e, const pf_layout& l, const Room& room) {
  Object tuple = l.nresults > 1 ? py.tuple_new(l.nresults) : nullptr;
  // Since they were looked at, Python code may have run, which may have changed an argument.
  if ((l.nresults > 1 && !tuple) || !announce(l, room.given) ||
      !read_all(l.narguments, room.given, room.items, room.seen) || !take(l, room.items, room.pointers, room.cells) ||
      !apart(e, l, room.pointers, room.ranges)) {
    drop(room.made, l.nresults);
    if (tuple) py.decref(tuple);
    return declined();
  }
  const bool failed = run(l, room.blocks, room.pointers) != 0;
  if (!failed && finished(l)) return answer(l, tuple, room.made, true);
  drop(room.made, l.nresults);
  if (tuple) py.decref(tuple);
  return failed ? py.no_memory() : nullptr;
}

Object launch_tensors(Entry& e, const pf_layout& l, const Room& room) {
  bool anew = false;
  if (!large_blocks(l, room.blocks, kLent, &anew)) return nullptr;
  const bool made = tensor_results(l, room.blocks, room.pointers, room.made);
  Object found = made ? run_on_tensors(e, l, room) : declined();
  drop(room.blocks, l.nblocks);
  return found;
}

Object choose(Front& front, Object given, int64_t count, void** words, bool tensors) {
  Room room;
  Bound bound;
  room.items = words;
  for (int64_t k = 0; k < front.parameters; ++k)
    room.items[k] = py.tuple_get(k < count ? given : front.defaults, k);
  if (tensors) {
    room.given = words + front.words;
    room.seen = reinterpret_cast<Seen*>(room.given + front.parameters);
    std::copy(room.items, room.items + front.parameters, room.given);
    const bool usual = all_plain(front.parameters, room.given);
    if (!usual || !read_all(front.parameters, room.given, room.items, room.seen)) return declined();
  }
  for (int64_t k = 0; k < front.count; ++k) {
    Entry* e = front.entries[k];
    const pf_layout* found = e->layout;
    const int64_t nblocks = found->open ? found->nresults + 2 : found->nblocks;
    if (found->open) {
      if (!bind(*found, room.items, bound)) continue;
      found = &bound.layout;
    }
    const pf_layout& l = *found;
    room.pointers = reinterpret_cast<char**>(words + l.narguments);
    room.made = reinterpret_cast<Object*>(room.pointers + l.buffers);
    room.blocks = room.made + l.nresults;
    room.cells = reinterpret_cast<int64_t*>(room.blocks + nblocks);
    room.ranges = reinterpret_cast<Range*>(room.cells + l.narguments);
    if (!take(l, room.items, room.pointers, room.cells)) continue;
    if (e->layout->open) {
      if (Entry* kept = remembered(front, l)) e = kept, k = front.count - 1;
    }
    to_front(front, k);
    ++e->users;
    const pf_layout& chosen = *(e->bound ? e->layout : found);
    Object answered = tensors ? launch_tensors(*e, chosen, room) : launch(*e, chosen, room);
    --e->users;
    return answered;
  }
  return owned(py.not_implemented);
}

Object call(Object self, Object given) {
  Front* front = static_cast<Front*>(py.capsule_pointer(self, kName));
  if (!front) return nullptr;
  const int64_t count = py.tuple_size(given);
  if (count < 0) return nullptr;
  if (count > front->parameters) return owned(py.not_implemented);
  bool tensors = false;
  for (int64_t k = 0; known && k < count && !tensors; ++k) tensors = is_tensor(py.tuple_get(given, k));
  const int64_t own = int64_t(sizeof(Object) + sizeof(Seen)) / int64_t(sizeof(void*));
  const int64_t needed = front->words + (tensors ? front->parameters * own : 0);
  void* words[kRoom];
  if (needed <= kRoom) return choose(*front, given, count, words, tensors);
  void** more = static_cast<void**>(std::malloc(size_t(needed) * sizeof(void*)));
  if (!more) return py.no_memory();
  Object found = choose(*front, given, count, more, tensors);
  std::free(more);
  return found;
}

struct Definition {  // PyMethodDef
  const char* name;
  Object (*function)(Object, Object);
  int flags;
  const char* doc;
} definition = {"launch", call, 0x8 /* METH_O */, "The results of a call, or NotImplemented."};

#include "regions.h"

void destroy(Object capsule) {
  Front* front = static_cast<Front*>(py.capsule_pointer(capsule, kName));
  if (!front) return;
  for (int64_t k = 0; k < front->count; ++k) {
    Entry* e = front->entries[k];
    if (!e->bound) {
      py.decref(e->keep);
      std::free(e->apart);
    }
    std::free(e);
  }
  py.decref(front->defaults);
  std::free(front->entries);
  std::free(front);
}

}  // namespace

// All functions below are called with the GIL held.
extern "C" void pf_launcher_start(const pf_interface* interface, int64_t most_bytes) {
  py = *interface;
  most_kept_bytes = most_bytes;
  types[0] = py.array_type, types[1] = py.float_type, types[2] = py.int_type, types[3] = py.bool_type;
}

// From now on these tensors are taken.
extern "C" void pf_launcher_know(const pf_tensors* tensors) { known = tensors; }

// Let go of all blocks that are kept.
extern "C" void pf_launcher_forget() { forget_all(); }

// A function that calls a region; null with an exception set.
extern "C" Object pf_launcher_region(const pf_region* region, Object keep) {
  Held* held = static_cast<Held*>(std::malloc(sizeof(Held)));
  if (!held) return py.no_memory();
  *held = Held{region, owned(keep)};
  Object capsule = py.new_capsule(held, kRegion, destroy_region);
  if (!capsule) {
    py.decref(keep);
    std::free(held);
    return nullptr;
  }
  Object made = py.new_function(&region_definition, capsule, nullptr);
  py.decref(capsule);
  return made;
}

// A capsule without layouts; null with an exception set.
extern "C" Object pf_launcher_new(Object defaults, int64_t most) {
  Front* front = static_cast<Front*>(std::calloc(1, sizeof(Front)));
  Entry** entries = static_cast<Entry**>(std::calloc(size_t(most + kKeptLayouts), sizeof(Entry*)));
  Object capsule = front && entries ? py.new_capsule(front, kName, destroy) : py.no_memory();
  if (!capsule) {
    std::free(front);
    std::free(entries);
    return nullptr;
  }
  front->parameters = py.tuple_size(defaults);
  front->defaults = owned(defaults);
  front->entries = entries;
  return capsule;
}

// The function of a capsule: a tuple of arguments in, results out.
extern "C" Object pf_launcher_function(Object capsule) { return py.new_function(&definition, capsule, nullptr); }

// Learn a layout that `keep` owns; at most as many as were announced. Nonzero if there is no memory.
extern "C" int pf_launcher_add(Object capsule, const pf_layout* layout, Object keep) {
  Front* front = static_cast<Front*>(py.capsule_pointer(capsule, kName));
  Entry* e = static_cast<Entry*>(std::calloc(1, sizeof(Entry)));
  char** apart = static_cast<char**>(std::calloc(size_t(layout->narguments + 1), sizeof(char*)));
  if (!front || !e || !apart) {
    std::free(e);
    std::free(apart);
    return 1;
  }
  *e = Entry{layout, owned(keep), apart, false, false, 0};
  int64_t at = front->count++;
  for (; at > 0 && front->entries[at - 1]->layout->rank > layout->rank; --at)
    front->entries[at] = front->entries[at - 1];
  front->entries[at] = e;
  const int64_t n = layout->narguments;
  const int64_t objects = layout->nresults + (layout->open ? layout->nresults + 2 : layout->nblocks);
  const int64_t words = n + layout->buffers + objects + n + n * int64_t(sizeof(Range) / sizeof(void*));
  front->words = std::max(front->words, words);
  return 0;
}
