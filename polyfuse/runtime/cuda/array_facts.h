// What arrays say of themselves, and whether that is what a layout says: a part of launcher.cpp.
//
// A library's arrays are a family: attributes, DLPack's exchange interface in C, or memory that they lend by DLPack.

// Nothing is done: NotImplemented; null for what nobody may catch (KeyboardInterrupt).
Object declined() {
  if (py.error()) {
    if (!py.error_is(py.exception)) return nullptr;
    py.clear_error();
  }
  return owned(py.not_implemented);
}

Object fact_of(const pf_fact& f, Object item) {
  Object found = f.calls ? py.method(f.name, &item, 1, nullptr) : py.attribute(item, f.name);
  if (!found || !f.then) return found;
  Object inner = py.attribute(found, f.then);
  py.decref(found);
  return inner;
}

// An address or a handle; false with an exception set.
bool number_of(const pf_fact& f, Object item, uint64_t* value) {
  Object found = fact_of(f, item);
  if (!found) return false;
  *value = found == py.none ? 0 : py.address_value(found);
  py.decref(found);
  return *value != ~uint64_t(0) || !py.error();
}

bool address_in(const pf_tensor& tensor, uint64_t* address) {
  *address = reinterpret_cast<uint64_t>(tensor.data) + tensor.offset;
  return true;
}

bool address_of(const pf_family& f, Object item, pf_tensor* tensor, uint64_t* address) {
  if (!f.tensor) return number_of(f.address, item, address);
  return f.tensor(item, tensor) == 0 && address_in(*tensor, address);
}

// A description of the memory that the array lends, and what has it as long as it lives; null with an exception set.
Object borrow(const pf_family& f, Object item, pf_tensor* tensor) {
  const Object with_self[2] = {item, f.lend_stream};
  Object capsule = py.method(f.lend, with_self, 1, f.lend_names);
  void* lent = capsule ? py.capsule_pointer(capsule, "dltensor") : nullptr;
  if (lent) {
    *tensor = *static_cast<const pf_tensor*>(lent);
    return capsule;
  }
  if (capsule) py.decref(capsule);
  return nullptr;
}

// How many objects are kept of each array while a call lasts.
inline int64_t slots(const pf_family& f) { return f.nfacts + (f.lend != nullptr); }

// Is what a function or an attribute gives true? Counts as true where it cannot be found out.
bool holds(Object found) {
  if (!found) return true;  // an exception is set
  const bool yes = found == py.yes || (found != py.no && py.truth(found) != 0);
  py.decref(found);
  return yes;
}

// May arrays of the family be taken as memory at all, at this call?
bool quiet(const pf_family& f) {
  for (int64_t k = 0; k < f.nbusy; ++k)
    if (holds(py.call(f.busy[k], nullptr, 0, nullptr))) return false;
  if (!f.guard) return true;
  Object now = py.attribute(f.guard, f.guard_name);
  if (!now) return false;
  const bool same = now == f.guard_value || py.equal(now, f.guard_value, kEqual) == 1;
  py.decref(now);
  return same;
}

// Does its library know no more of the array than lies in its memory?
bool plain(const pf_family& f, Object item) {
  if (!f.flag.name) return true;
  Object flag = fact_of(f.flag, item);
  if (!flag) return false;
  if (!holds(flag)) return true;
  Object asked = py.call(f.excuse, nullptr, 0, nullptr);
  return asked && !holds(asked);
}

bool look(const pf_family& f, Object item, Object* values, Seen* seen) {
  for (int64_t j = 0; j < f.nfacts; ++j)
    if (!(values[j] = fact_of(f.facts[j], item))) return false;
  if (!plain(f, item)) return false;
  if (f.refuse && holds(py.call(f.refuse, &item, 1, nullptr))) return false;
  if (f.own_stream.name && !number_of(f.own_stream, item, &seen->stream)) return false;
  if (!f.lend) return address_of(f, item, &seen->tensor, &seen->address);
  values[f.nfacts] = borrow(f, item, &seen->tensor);
  return values[f.nfacts] && address_in(seen->tensor, &seen->address);
}

inline bool is_number(Object item) {
  const Object* end = number_types + nnumber_types;
  return std::find(number_types, end, type_of(item)) != end;
}

// The number as kernels read it; false if it does not fit.
inline bool take_number(const pf_argument& a, Object item, int64_t* cell) {
  if (type_of(item) != a.type) return false;
  *cell = 0;
  if (a.kind == kBool) item = py.truth(item) ? py.yes : py.no;  // it may be NumPy's
  return number(a.kind, a.code, item, cell);
}

bool belongs(const pf_family& f, Object item) {
  for (int64_t k = 0; k < f.ntypes; ++k)
    if (type_of(item) == f.types[k]) return true;
  return false;
}

// The family of all arrays among the arguments, or null.
const pf_family* family_of(const Front& front, const Object* items) {
  const pf_family* found = nullptr;
  for (int64_t k = 0; k < front.parameters; ++k) {
    if (is_number(items[k])) continue;
    for (int64_t j = 0; !found && j < front.nfamilies; ++j)
      if (belongs(*front.families[j], items[k])) found = front.families[j];
    if (!found || !belongs(*found, items[k])) return nullptr;
  }
  return found;
}

bool same_kind(const pf_tensor& a, const pf_tensor& b) {
  return a.rank == b.rank && a.code == b.code && a.bits == b.bits && a.lanes == b.lanes &&
         a.device_type == b.device_type && a.device_id == b.device_id;
}

bool same_tensor(const pf_tensor& a, const pf_tensor& b) {
  if (!same_kind(a, b) || !a.strides != !b.strides) return false;
  for (int64_t d = 0; d < a.rank; ++d)
    if (a.extents[d] != b.extents[d] || (a.strides && a.strides[d] != b.strides[d])) return false;
  return true;
}

// Are these the arguments of the layout? If so its numbers are in `numbers`.
bool fits(const pf_layout& l, const Object* items, Object* values, const Seen* seen, int64_t* numbers) {
  const pf_family& f = *l.family;
  for (int64_t k = 0; k < l.narguments; ++k, values += slots(f)) {
    const pf_argument& a = l.arguments[k];
    if (a.kind != kArray) {
      if (!take_number(a, items[k], numbers + k)) return false;
      continue;
    }
    if (is_number(items[k])) return false;
    if ((f.tensor || f.lend) && a.tensor && !same_tensor(seen[k].tensor, *a.tensor)) return false;
    for (int64_t j = 0; j < f.nfacts; ++j)
      if (a.facts[j] && values[j] != a.facts[j] && py.equal(values[j], a.facts[j], kEqual) != 1) return false;
    if (a.nbytes && (!seen[k].address || seen[k].address % uint64_t(a.align))) return false;
  }
  return true;
}

// Does memory that is written meet no other memory of the call? Asked again only for other addresses.
bool apart(Entry& e, const pf_layout& l, const uint64_t* addresses, Range* ranges) {
  if (!l.written) return true;
  bool same = e.known && !l.open;  // with other sizes the same addresses may meet
  int64_t count = 0;
  for (int64_t k = 0; k < l.narguments; ++k) {
    const pf_argument& a = l.arguments[k];
    if (a.kind != kArray || !a.nbytes) continue;
    same = same && e.apart[k] == addresses[k];
    const uint64_t start = addresses[k] + uint64_t(a.low);
    ranges[count++] = Range{start, start + uint64_t(a.nbytes), a.written != 0};
  }
  if (same) return true;
  std::sort(ranges, ranges + count, [](const Range& a, const Range& b) { return a.start < b.start; });
  uint64_t high = 0, written_high = 0;  // the ends of memory seen so far, and of what is written of it
  for (int64_t k = 0; k < count; ++k) {
    const Range& r = ranges[k];
    if (r.start < (r.written ? high : written_high)) return false;
    high = std::max(high, r.end);
    if (r.written) written_high = std::max(written_high, r.end);
  }
  std::copy(addresses, addresses + l.narguments, e.apart);
  e.known = true;
  return true;
}
