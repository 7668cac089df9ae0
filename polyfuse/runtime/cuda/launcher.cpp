// The short way of a call on a GPU in one C function: arrays on the device checked, results made, kernels launched.
//
// As with the launcher for kernels of a CPU, no header of Python is needed: functions come by address, and of the
// interpreter's memory only an object's type is read, at a place that `launcher.py` has verified.  What this file
// promises:
//
//  * A call is taken only if every argument is what a learnt layout says: a number of the very type, or an array of
//    the layout's family with the same facts (shape, strides, element type, device), aligned, and apart from all other
//    memory where it is written.  Whatever else comes is answered with NotImplemented, before anything has been
//    launched; the long way decides.
//  * A call allocates nothing but results and workspace, both from the library that the arrays are of, on its current
//    stream, and waits for nothing.  So it may be captured into a graph by whoever captures that stream.
//  * Cells of a call are its own: several threads may be in here at once.  The GIL is held except while the driver
//    queues launches, which may take long if its queue is full.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "launcher.h"

namespace {

constexpr int64_t kArray = 0;
constexpr int64_t kFill = 0, kCopy = 1, kLaunch = 2;
constexpr int kEqual = 2;      // Py_EQ
constexpr int64_t kRoom = 2048;  // words on the stack; calls of more take them from the heap
constexpr int64_t kMostFamilies = 4;
const char kName[] = "polyfuse.device_launcher";

pf_interface py;
const Object* number_types;
int64_t nnumber_types;
bool forked;  // the context of the parent cannot be used

inline Object type_of(Object o) { return static_cast<Object*>(o)[1]; }

inline Object owned(Object o) {
  py.incref(o);
  return o;
}

#include "numbers.h"

struct References {  // given back at the end of the block; an exception that is set stays so whatever dies with them
  Object* at;
  int64_t count;
  ~References() {
    Object raised[3] = {};
    const bool failed = py.error() != nullptr;
    if (failed) py.fetch_error(raised, raised + 1, raised + 2);
    for (int64_t k = 0; k < count; ++k)
      if (at[k]) py.decref(at[k]);
    if (failed) py.restore_error(raised[0], raised[1], raised[2]);
  }
};

struct Seen {        // of an array argument
  pf_tensor tensor;
  uint64_t address, stream;
};

struct Range {
  uint64_t start, end;
  bool written;
};

struct Entry {
  const pf_layout* layout;
  Object keep;       // owns the layout and all it points to
  uint64_t* apart;   // addresses of the arrays that were last found not to overlap, by argument
  bool known;        // is there such a record?
};

struct Front {       // of one operator: all its layouts, the one used last in front
  int64_t parameters;
  Object defaults;   // by parameter
  const pf_family* families[kMostFamilies];
  int64_t nfamilies;
  Entry** entries;
  int64_t count, slots, words;
};

template <class T>
constexpr int64_t words_of(int64_t count) {
  return count * int64_t((sizeof(T) + sizeof(void*) - 1) / sizeof(void*));
}

#include "array_facts.h"
#include "steps.h"
#include "open_layouts.h"

// --- a call -----------------------------------------------------------------------------------------------

struct Room {
  Object *items, *values, *made;
  Seen* seen;
  int64_t *numbers, *cells;
  uint64_t* addresses;
  Range* ranges;
  void** parameters;
  Object* tables;
  int64_t* content;
  void** end;
};

void place(Room* room, void** words, const Front& front) {  // what is needed before a layout is known
  const int64_t n = front.parameters;
  room->items = words;
  room->values = room->items + n;
  room->seen = reinterpret_cast<Seen*>(room->values + n * front.slots);
  room->numbers = reinterpret_cast<int64_t*>(room->seen + n);
  room->made = reinterpret_cast<Object*>(room->numbers + n);
}

bool place(Room* room, const pf_layout& l) {  // false: the layout was learnt while this call was under way
  const int64_t results = l.nresults + l.workspace;
  room->addresses = reinterpret_cast<uint64_t*>(room->made + results);
  room->cells = reinterpret_cast<int64_t*>(room->addresses + l.narguments + results);
  room->ranges = reinterpret_cast<Range*>(room->cells + l.ncells);
  room->parameters = reinterpret_cast<void**>(room->ranges + l.narguments);
  room->tables = room->parameters + l.most_parameters;
  room->content = reinterpret_cast<int64_t*>(room->tables + l.ntables);
  return room->tables + l.ntables + l.most_content <= room->end;
}

int64_t words_before(int64_t parameters, int64_t slots) {
  return parameters * (1 + slots + words_of<Seen>(1) + 1);
}

int64_t words_behind(const pf_layout& l) {
  const int64_t results = l.nresults + l.workspace;
  const int64_t tables = l.ntables + l.most_content;
  return 2 * results + l.narguments + l.ncells + words_of<Range>(l.narguments) + l.most_parameters + tables;
}

// The stream that the arrays' library works on; false with or without an exception.
bool stream_of(const pf_layout& l, const Seen* seen, uint64_t* stream) {
  const pf_family& f = *l.family;
  if (f.stream_of) {
    void* found = nullptr;
    const bool there = f.stream_of(2, int32_t(f.device), &found) == 0;
    *stream = reinterpret_cast<uint64_t>(found);
    return there;
  }
  if (f.stream) {
    Object found = py.call(f.stream, nullptr, 0, nullptr);
    if (!found) return false;
    *stream = py.address_value(found);
    py.decref(found);
    return !py.error();
  }
  bool first = true;
  for (int64_t k = 0; f.own_stream.name && k < l.narguments; ++k) {
    if (l.arguments[k].kind != kArray) continue;
    if (!first && seen[k].stream != *stream) return false;
    *stream = seen[k].stream;
    first = false;
  }
  return true;
}

// The shape of a result as a tuple; null with an exception set.
Object shape_of(const pf_result& r) {
  Object tuple = py.tuple_new(r.rank);
  for (int64_t d = 0; tuple && d < r.rank; ++d) py.tuple_set(tuple, d, py.new_address(uint64_t(r.extents[d])));
  return tuple;
}

// Fresh memory for results and the workspace; false with or without an exception.
bool make_results(const pf_layout& l, uint64_t stream, Object* made, uint64_t* addresses) {
  const pf_family& f = *l.family;
  Object given[2] = {};  // a shape, the stream
  const References all{given, 2};
  Object& number = given[1];
  const bool own = f.own_stream.name || f.lend;
  if (own && l.nresults + l.workspace && !(number = py.new_address(stream))) return false;
  for (int64_t k = 0; k < l.nresults + l.workspace; ++k) {
    const pf_result& r = l.results[k];
    if (r.extents && !(given[0] = shape_of(r))) return false;
    made[k] = py.call(r.make, given + (r.extents ? 0 : 1), (r.extents ? 1 : 0) + (number ? 1 : 0), nullptr);
    if (given[0]) py.decref(given[0]);
    given[0] = nullptr;
    if (!made[k] || type_of(made[k]) != f.made_type) return false;
    pf_tensor tensor;
    const bool found = f.made_address.name ? number_of(f.made_address, made[k], addresses + k)
                                           : address_of(f, made[k], &tensor, addresses + k);
    if (!found) return false;
    if (r.nbytes && (!addresses[k] || addresses[k] % uint64_t(r.align))) return false;
  }
  return true;
}

// Lets the library know which of its arrays will be written; false with or without an exception.
bool announce(const pf_layout& l, const Object* items) {
  if (!l.written || !l.family->write) return true;
  int64_t count = 0;
  for (int64_t k = 0; k < l.narguments; ++k) count += l.arguments[k].written;
  Object tuple = py.tuple_new(count);
  const References all{&tuple, 1};
  if (!tuple) return false;
  for (int64_t k = 0, at = 0; k < l.narguments; ++k)
    if (l.arguments[k].written) py.tuple_set(tuple, at++, owned(items[k]));
  Object may = py.call(l.family->write, &tuple, 1, nullptr);
  return may && holds(may);
}

// Keeps what was lent until the launches are done; false with an exception set.
bool keep_lent(const pf_layout& l, const Object* values, uint64_t stream) {
  const pf_family& f = *l.family;
  if (!f.hold) return true;
  int64_t count = 0;
  for (int64_t k = 0; k < l.narguments; ++k) count += l.arguments[k].kind == kArray;
  Object both[2] = {py.tuple_new(count), py.new_address(stream)};
  const References all{both, 2};
  if (!both[0] || !both[1]) return false;
  for (int64_t k = 0, at = 0; k < l.narguments; ++k)
    if (l.arguments[k].kind == kArray) py.tuple_set(both[0], at++, owned(values[k * slots(f) + f.nfacts]));
  Object nothing = py.call(f.hold, both, 2, nullptr);
  if (nothing) py.decref(nothing);
  return nothing != nullptr;
}

// Lets tables on the device have what the cells have; their memory is kept while launches are queued. False with an
// exception set.
bool bring_tables(const pf_layout& l, Room& room, uint64_t stream) {
  for (int64_t k = 0; k < l.ntables; ++k) {
    const pf_table& t = l.tables[k];
    for (int64_t j = 0; j < t.ncells; ++j) room.content[j] = room.cells[t.cells[j]];
    Object both[2] = {py.new_address(reinterpret_cast<uint64_t>(room.content)), py.new_address(stream)};
    const References all{both, 2};
    if (!both[0] || !both[1] || !(room.tables[k] = py.call(t.bring, both, 2, nullptr))) return false;
    uint64_t address;
    if (!number_of(t.address, room.tables[k], &address)) return false;
    room.cells[t.cell] = int64_t(address);
  }
  return true;
}

Object answer(const pf_layout& l, Object* made) {
  if (!l.nresults) return owned(py.none);
  if (l.nresults == 1) return owned(made[0]);
  Object tuple = py.tuple_new(l.nresults);
  for (int64_t k = 0; tuple && k < l.nresults; ++k) py.tuple_set(tuple, k, owned(made[k]));
  return tuple;
}

Object launch(Entry& e, const pf_layout& l, Room& room) {
  if (!place(&room, l)) return declined();
  const int64_t results = l.nresults + l.workspace;
  std::fill(room.made, room.made + results, nullptr);
  const References all{room.made, results};
  for (int64_t k = 0; k < l.narguments; ++k)
    room.addresses[k] = l.arguments[k].kind == kArray ? room.seen[k].address : 0;
  uint64_t stream = 0;
  const bool ready = apart(e, l, room.addresses, room.ranges) && stream_of(l, room.seen, &stream) &&
                     make_results(l, stream, room.made, room.addresses + l.narguments) &&
                     announce(l, room.items);
  if (!ready) return declined();
  fill_cells(l, room.addresses, room.cells);
  for (int64_t k = 0; k < l.narguments; ++k)
    if (l.arguments[k].kind != kArray && l.arguments[k].cell >= 0)
      room.cells[l.arguments[k].cell] = room.numbers[k];
  std::fill(room.tables, room.tables + l.ntables, nullptr);
  const References tables{room.tables, l.ntables};
  if (!bring_tables(l, room, stream)) return nullptr;
  if (!run(l, room.cells, room.addresses, room.parameters, stream)) return nullptr;
  return keep_lent(l, room.values, stream) ? answer(l, room.made) : nullptr;
}

// Of those of its rank. Other threads, or arrays that answer in Python, may have come here too while arguments were
// looked at.
void put_in_front(Front& front, Entry* e) {
  int64_t k = 0;
  while (front.entries[k] != e) ++k;
  for (; k > 0 && front.entries[k - 1]->layout->rank == e->layout->rank; --k) front.entries[k] = front.entries[k - 1];
  front.entries[k] = e;
}

// A call at sizes that a template has; null without an exception where it has them not.
Object call_open(Front& front, Entry* e, Room& room) {
  Opened call;
  if (!open(*e->layout, room.items, room.values, room.seen, call)) return py.error() ? declined() : nullptr;
  if (!fits(call.layout, room.items, room.values, room.seen, room.numbers)) return py.error() ? declined() : nullptr;
  put_in_front(front, e);
  return launch(*e, call.layout, room);
}

Object choose(Front& front, Object given, int64_t count, void** words, int64_t size) {
  Room room;
  room.end = words + size;
  place(&room, words, front);
  for (int64_t k = 0; k < front.parameters; ++k)
    room.items[k] = py.tuple_get(k < count ? given : front.defaults, k);
  const pf_family* family = family_of(front, room.items);
  if (!family || !quiet(*family)) return declined();
  const int64_t nvalues = front.parameters * slots(*family);
  std::fill(room.values, room.values + nvalues, nullptr);
  const References all{room.values, nvalues};
  for (int64_t k = 0; k < front.parameters; ++k)
    if (!is_number(room.items[k]) && !look(*family, room.items[k], room.values + k * slots(*family), room.seen + k))
      return declined();
  for (int64_t k = 0; k < front.count; ++k) {
    Entry* e = front.entries[k];
    if (e->layout->family != family) continue;
    if (e->layout->open) {
      Object found = call_open(front, e, room);
      if (found || py.error()) return found;
      continue;
    }
    if (!fits(*e->layout, room.items, room.values, room.seen, room.numbers)) {
      if (py.error()) return declined();
      continue;
    }
    put_in_front(front, e);
    return launch(*e, *e->layout, room);
  }
  return declined();
}

Object call(Object self, Object given) {
  Front* front = static_cast<Front*>(py.capsule_pointer(self, kName));
  if (!front) return nullptr;
  const int64_t count = py.tuple_size(given);
  if (count < 0) return nullptr;
  if (forked || count > front->parameters) return declined();
  void* words[kRoom];
  const int64_t size = front->words;
  if (size <= kRoom) return choose(*front, given, count, words, kRoom);
  void** more = static_cast<void**>(std::malloc(size_t(size) * sizeof(void*)));
  if (!more) return py.no_memory();
  Object found = choose(*front, given, count, more, size);
  std::free(more);
  return found;
}

void destroy(Object capsule) {
  Front* front = static_cast<Front*>(py.capsule_pointer(capsule, kName));
  if (!front) return;
  for (int64_t k = 0; k < front->count; ++k) {
    py.decref(front->entries[k]->keep);
    std::free(front->entries[k]->apart);
    std::free(front->entries[k]);
  }
  py.decref(front->defaults);
  std::free(front->entries);
  std::free(front);
}

// --- a bound call -----------------------------------------------------------------------------------------

struct Bound {             // memory, cells and stream are fixed
  const pf_layout* layout;
  Object keep;             // owns all of it
  const uint64_t* addresses;
  int64_t* cells;
  uint64_t stream;
  Object arrays, written;  // tuples: all that are looked at each time, and of these what is written
  Object results;
};

Object call_bound(Object self, Object) {
  Bound* b = static_cast<Bound*>(py.capsule_pointer(self, kName));
  if (!b) return nullptr;
  const pf_layout& l = *b->layout;
  const pf_family& f = *l.family;
  if (forked || !quiet(f)) return declined();
  if (f.flag.name)
    for (int64_t k = 0, n = py.tuple_size(b->arrays); k < n; ++k)
      if (!plain(f, py.tuple_get(b->arrays, k))) return declined();
  if (f.write && py.tuple_size(b->written)) {
    Object may = py.call(f.write, &b->written, 1, nullptr);
    if (!may || !holds(may)) return declined();
  }
  void* words[kRoom / 2];
  const bool large = l.most_parameters > kRoom / 2;
  void** parameters = large ? static_cast<void**>(std::malloc(size_t(l.most_parameters) * sizeof(void*))) : words;
  if (!parameters) return py.no_memory();
  const bool done = run(l, b->cells, b->addresses, parameters, b->stream);
  if (large) std::free(parameters);
  return done ? owned(b->results) : nullptr;
}

void destroy_bound(Object capsule) {
  Bound* b = static_cast<Bound*>(py.capsule_pointer(capsule, kName));
  if (!b) return;
  for (Object one : {b->keep, b->arrays, b->written, b->results}) py.decref(one);
  std::free(b);
}

struct Definition {  // PyMethodDef
  const char* name;
  Object (*function)(Object, Object);
  int flags;
  const char* doc;
};
Definition of_calls = {"launch", call, 0x8 /* METH_O */, "The results of a call, or NotImplemented."};
Definition of_bound = {"launch", call_bound, 0x4 /* METH_NOARGS */, "The results of a bound call, or NotImplemented."};

}  // namespace

// All functions below are called with the GIL held.
extern "C" void pf_device_start(const pf_interface* interface, const Object* numbers, int64_t count) {
  py = *interface;
  number_types = numbers, nnumber_types = count;
}

// Called in the child of a fork: the driver cannot be used any more.
extern "C" void pf_device_forked() { forked = true; }

// A capsule without layouts; null with an exception set.
extern "C" Object pf_device_new(Object defaults, int64_t most) {
  Front* front = static_cast<Front*>(std::calloc(1, sizeof(Front)));
  Entry** entries = static_cast<Entry**>(std::calloc(size_t(most), sizeof(Entry*)));
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
extern "C" Object pf_device_function(Object capsule) { return py.new_function(&of_calls, capsule, nullptr); }

// Learn a layout that `keep` owns; at most as many as were announced. Nonzero if there is no room.
extern "C" int pf_device_add(Object capsule, const pf_layout* layout, Object keep) {
  Front* front = static_cast<Front*>(py.capsule_pointer(capsule, kName));
  if (!front) return 1;
  bool known = false;
  for (int64_t k = 0; k < front->nfamilies; ++k) known = known || front->families[k] == layout->family;
  if (!known && front->nfamilies == kMostFamilies) return 1;
  Entry* e = static_cast<Entry*>(std::calloc(1, sizeof(Entry)));
  uint64_t* apart = static_cast<uint64_t*>(std::calloc(size_t(layout->narguments + 1), sizeof(uint64_t)));
  if (!e || !apart) {
    std::free(e);
    std::free(apart);
    return 1;
  }
  if (!known) front->families[front->nfamilies++] = layout->family;
  *e = Entry{layout, owned(keep), apart, false};
  int64_t at = front->count++;
  for (; at > 0 && front->entries[at - 1]->layout->rank > layout->rank; --at)
    front->entries[at] = front->entries[at - 1];
  front->entries[at] = e;
  const int64_t behind = std::max(front->words - words_before(front->parameters, front->slots), words_behind(*layout));
  front->slots = std::max(front->slots, slots(*layout->family));
  front->words = words_before(front->parameters, front->slots) + behind;
  return 0;
}

// What an array looks like to its family, with extents and strides in `lists`; nonzero if it cannot be said.
extern "C" int pf_device_look(const pf_family* family, Object item, pf_tensor* tensor, int64_t* lists, int64_t room) {
  Object capsule = nullptr;
  const References all{&capsule, 1};
  if (family->lend ? !(capsule = borrow(*family, item, tensor)) : family->tensor(item, tensor) != 0) return 1;
  const int64_t rank = tensor->rank;
  if (rank < 0 || 2 * rank > room) return 1;
  if (rank && tensor->extents) std::copy(tensor->extents, tensor->extents + rank, lists);
  if (rank && tensor->strides) std::copy(tensor->strides, tensor->strides + rank, lists + rank);
  tensor->extents = lists;
  if (tensor->strides) tensor->strides = lists + rank;
  return 0;
}

// A function without arguments for fixed memory; null with an exception set. `addresses` belong to `keep`.
extern "C" Object pf_device_bind(const pf_layout* layout, Object keep, const uint64_t* addresses, uint64_t stream,
                                 Object arrays, Object written, Object results) {
  Bound* b = static_cast<Bound*>(std::calloc(1, sizeof(Bound) + size_t(layout->ncells) * sizeof(int64_t)));
  Object capsule = b ? py.new_capsule(b, kName, destroy_bound) : py.no_memory();
  if (!capsule) {
    std::free(b);
    return nullptr;
  }
  *b = Bound{layout, owned(keep), addresses, reinterpret_cast<int64_t*>(b + 1), stream,
             owned(arrays), owned(written), owned(results)};
  fill_cells(*layout, addresses, b->cells);
  Object function = py.new_function(&of_bound, capsule, nullptr);
  py.decref(capsule);
  return function;
}
