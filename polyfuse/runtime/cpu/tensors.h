// Tensors of another library, read into what a NumPy array has: a part of launcher.cpp.
//
// From there on they are arrays like any other; results are tensors, made by their library.  A tensor is taken only if
// its library knows no more of it than lies in its memory: no gradient is asked for, no tangent, no negation pending, no
// level of a transformation.

constexpr int64_t kMostRank = 8;
constexpr int32_t kHost = 1;  // kDLCPU
constexpr int64_t kLent = 1 << 20;  // results of so many bytes lie in blocks that are kept between calls

struct Seen {  // a tensor as an array
  pf_array array;
  int64_t extents[kMostRank], strides[kMostRank];
  bool empty;
};

const pf_tensors* known;  // null: none are known

inline bool is_tensor(Object item) {
  for (int64_t k = 0; k < known->ntypes; ++k)
    if (type_of(item) == known->types[k]) return true;
  return false;
}

// Nothing is done: NotImplemented; null for what nobody may catch (KeyboardInterrupt).
Object declined() {
  if (py.error()) {
    if (!py.error_is(py.exception)) return nullptr;
    py.clear_error();
  }
  return owned(py.not_implemented);
}

// Is what a function or an attribute gives true? Counts as true where it cannot be found out.
bool holds(Object found) {
  if (!found) return true;  // an exception is set
  const bool yes = found == py.yes || (found != py.no && py.truth(found) != 0);
  py.decref(found);
  return yes;
}

// Does nobody but its library look at calls (tracers), and is its state what it has to be?
bool quiet() {
  for (int64_t k = 0; k < known->nbusy; ++k)
    if (holds(py.call(known->busy[k]))) return false;
  if (!known->guard) return true;
  Object now = py.attribute(known->guard, known->guard_name);
  if (!now) return false;
  const bool same = now == known->guard_value || py.equal(now, known->guard_value, 2 /* Py_EQ */) == 1;
  py.decref(now);
  return same;
}

// Does its library know no more of the tensor than lies in its memory?
bool plain(Object item) {
  if (holds(py.attribute(item, known->flag)) && (py.error() || holds(py.call(known->excuse)))) return false;
  if (holds(py.method(known->negated, &item, 1, nullptr))) return false;
  return !known->refuse || !holds(py.call_with(known->refuse, item));
}

// The fields of an array; extents and strides of the tensor, in elements.
bool fill(Seen* s, char* data, int64_t rank, const int64_t* extents, const int64_t* strides, const pf_kind& kind) {
  bool dense = true;
  s->empty = false;
  int64_t step = 1;
  for (int64_t d = rank; d-- > 0;) {
    s->extents[d] = extents[d];
    s->strides[d] = strides[d] * kind.bytes;
    s->empty = s->empty || !extents[d];
    dense = dense && (extents[d] == 1 || strides[d] == step);
    step *= extents[d];
  }
  const int flags = (dense || s->empty ? kDense : 0) | kAligned | kWritable;  // `take` looks at the alignment
  s->array = pf_array{0, py.array_type, data, int(rank), s->extents, s->strides, nullptr, kind.ours, flags};
  return true;
}

// By DLPack's exchange interface.
bool exchanged(Object item, Seen* s) {
  pf_tensor t;
  if (known->describe(item, &t) != 0 || t.device_type != kHost || t.rank > kMostRank) return false;
  for (int64_t k = 0; k < known->nkinds; ++k) {
    const pf_kind& kind = known->kinds[k];
    if (kind.code == t.code && kind.bytes * 8 == t.bits && t.lanes == 1)
      return fill(s, t.data + t.offset, t.rank, t.extents, t.strides, kind);
  }
  return false;
}

// A tuple of at most so many integers; -1 if it is none. Takes the reference.
int64_t read_tuple(Object tuple, int64_t* values) {
  const int64_t count = tuple ? py.tuple_size(tuple) : -1;
  int overflow = 0;
  for (int64_t k = 0; k < count && count <= kMostRank; ++k)
    values[k] = py.int_value(py.tuple_get(tuple, k), &overflow);
  if (tuple) py.decref(tuple);
  return count > kMostRank || overflow ? -1 : count;
}

bool is(Object item, Object name, Object value) {
  Object found = py.attribute(item, name);
  if (found) py.decref(found);
  return found == value;
}

// By attributes.
bool asked(Object item, Seen* s) {
  int64_t extents[kMostRank], strides[kMostRank];
  if (!is(item, known->on_host, py.yes) || !is(item, known->layout, known->strided)) return false;
  const int64_t rank = read_tuple(py.attribute(item, known->shape), extents);
  if (rank < 0 || read_tuple(py.method(known->stride, &item, 1, nullptr), strides) != rank) return false;
  Object address = py.method(known->address, &item, 1, nullptr);
  if (!address) return false;
  int overflow = 0;
  char* data = reinterpret_cast<char*>(py.int_value(address, &overflow));
  py.decref(address);
  Object dtype = py.attribute(item, known->dtype);
  if (!dtype) return false;
  py.decref(dtype);
  for (int64_t k = 0; k < known->nkinds && !py.error() && !overflow; ++k)
    if (known->kinds[k].theirs == dtype) return fill(s, data, rank, extents, strides, known->kinds[k]);
  return false;
}

inline bool read(Object item, Seen* s) {
  if (!(known->describe ? exchanged(item, s) : asked(item, s))) return false;
  return s->array.data || s->empty;
}

// ---- the tensors of a call ---------------------------------------------------------------------------------

// Read all of them, into `items`; false with or without an exception.
bool read_all(int64_t count, const Object* given, Object* items, Seen* seen) {
  for (int64_t k = 0; k < count; ++k) {
    if (!is_tensor(given[k])) continue;
    if (!read(given[k], seen + k)) return false;
    items[k] = &seen[k].array;
  }
  return true;
}

bool all_plain(int64_t count, const Object* given) {
  if (!quiet()) return false;
  for (int64_t k = 0; k < count; ++k)
    if (is_tensor(given[k]) && !plain(given[k])) return false;
  return true;
}

Object tuple_of(const int64_t* values, int64_t count) {
  Object tuple = py.tuple_new(count);
  for (int64_t k = 0; tuple && k < count; ++k) {
    Object value = py.new_int(values[k]);
    if (value && py.tuple_set(tuple, k, value) == 0) continue;
    py.decref(tuple);
    return nullptr;
  }
  return tuple;
}

// A dense tensor, uninitialised; null with or without an exception.
Object new_tensor(const pf_result& r, const pf_kind& kind) {
  int64_t strides[kMostRank], step = 1;
  for (int64_t d = r.rank; d-- > 0; step *= std::max<int64_t>(1, r.extents[d])) strides[d] = step;
  Object given[3] = {tuple_of(r.extents, r.rank), tuple_of(strides, r.rank), kind.theirs};
  Object made = given[0] && given[1] ? py.call_all(known->make, given, 3, nullptr) : nullptr;
  if (given[0]) py.decref(given[0]);
  if (given[1]) py.decref(given[1]);
  return made;
}

// A tensor on memory that `base` owns.
Object lent_tensor(const pf_result& r, Object base) {
  Object array = view(r, aligned(base) + r.offset, base);
  Object made = array ? py.call_with(known->lend, array) : nullptr;
  if (array) py.decref(array);
  return made;
}

Object tensor_result(const pf_result& r, const Object* blocks) {
  const pf_kind* kind = nullptr;
  for (int64_t k = 0; k < known->nkinds && !kind; ++k)
    if (known->kinds[k].ours == r.dtype) kind = known->kinds + k;
  if (!kind || r.rank > kMostRank) return nullptr;
  int64_t bytes = kind->bytes;
  for (int64_t d = 0; d < r.rank; ++d) bytes *= r.extents[d];
  return bytes >= kLent && r.block >= 0 ? lent_tensor(r, blocks[r.block]) : new_tensor(r, *kind);
}

// Fresh tensors for all results; false with or without an exception.
bool tensor_results(const pf_layout& l, const Object* blocks, char** pointers, Object* made) {
  for (int64_t k = 0; k < l.nresults; ++k) {
    Seen s;
    made[k] = tensor_result(l.results[k], blocks);
    if (made[k] && is_tensor(made[k]) && read(made[k], &s)) {
      pointers[l.results[k].place] = s.array.data;
      continue;
    }
    if (made[k]) py.decref(made[k]);
    drop(made, k);
    return false;
  }
  return true;
}

// Lets the library know which of its tensors will be written; false with or without an exception.
bool announce(const pf_layout& l, const Object* given) {
  if (!l.written) return true;
  int64_t count = 0;
  const auto concerned = [&](int64_t k) { return l.arguments[k].written && is_tensor(given[k]); };
  for (int64_t k = 0; k < l.narguments; ++k) count += concerned(k);
  if (!count) return true;
  Object tuple = py.tuple_new(count);
  if (!tuple) return false;
  for (int64_t k = 0, at = 0; k < l.narguments; ++k)
    if (concerned(k)) py.tuple_set(tuple, at++, owned(given[k]));
  Object may = py.call_with(known->write, tuple);
  py.decref(tuple);
  return may && holds(may);
}
