// Calls of a compiled part of a graph of another library (`torch.compile`): a part of launcher.cpp.
//
// Extents, strides and dtypes of all tensors are known.  Results are made first, with their strides, by their library;
// then arguments are looked at, so that no Python code runs between that and the kernels.  Nobody asks for gradients
// here: who traced the graph has them.  Arguments that are not as expected are answered with NotImplemented.

const char kRegion[] = "polyfuse.region";

struct Held {
  const pf_region* region;
  Object keep;  // owns the region and all it points to
};

// The address of a tensor that is as the layout says; null, with or without an exception.
char* address_of(Object item, const pf_argument& a) {
  Seen s;
  if (!is_tensor(item) || !read(item, &s) || holds(py.method(known->negated, &item, 1, nullptr))) return nullptr;
  const pf_array& x = s.array;
  if (x.dtype != a.dtype || x.rank != a.rank || !x.data) return nullptr;
  for (int64_t d = 0; d < a.rank; ++d)
    if (x.extents[d] != a.extents[d] || (a.extents[d] > 1 && x.strides[d] != a.strides[d])) return nullptr;
  return reinterpret_cast<uintptr_t>(x.data) % uintptr_t(a.align) ? nullptr : x.data;
}

// Fresh tensors in a tuple; null with an exception set.
Object made_tensors(const pf_region& r, char** pointers) {
  Object tuple = py.tuple_new(r.layout->nresults);
  for (int64_t k = 0; tuple && k < r.layout->nresults; ++k) {
    const pf_made& m = r.results[k];
    Object const given[3] = {m.extents, m.strides, m.dtype};
    Object made = py.call_all(known->make, given, 3, nullptr);
    Seen s;
    if (made && py.tuple_set(tuple, k, made) == 0 && read(made, &s)) {
      pointers[m.place] = s.array.data;
      continue;
    }
    if (!py.error()) py.set_error(py.runtime_error, "a new tensor does not lie in memory");
    py.decref(tuple);
    return nullptr;
  }
  return tuple;
}

Object run_region(const pf_region& r, Object given, char** pointers) {
  const pf_layout& l = *r.layout;
  Object tuple = made_tensors(r, pointers);
  if (!tuple) return nullptr;
  for (int64_t k = 0; k < l.narguments; ++k) {
    const pf_argument& a = l.arguments[k];
    char* address = address_of(py.tuple_get(given, k), a);
    if (!address) {
      py.decref(tuple);
      return declined();
    }
    pointers[a.place] = address;
    if (a.also >= 0) pointers[a.also] = address;
  }
  const bool failed = run(l, nullptr, pointers) != 0;
  if (!failed && finished(l)) return tuple;
  py.decref(tuple);
  return failed ? py.no_memory() : nullptr;
}

Object call_region(Object self, Object given) {
  Held* held = static_cast<Held*>(py.capsule_pointer(self, kRegion));
  if (!held) return nullptr;
  const pf_region& r = *held->region;
  if (!known || py.tuple_size(given) < r.layout->narguments) return declined();
  char* pointers[kRoom];
  if (r.layout->buffers <= kRoom) return run_region(r, given, pointers);
  char** more = static_cast<char**>(std::malloc(size_t(r.layout->buffers) * sizeof(char*)));
  if (!more) return py.no_memory();
  Object found = run_region(r, given, more);
  std::free(more);
  return found;
}

Definition region_definition = {"region", call_region, 0x8 /* METH_O */, "The results of a call, or NotImplemented."};

void destroy_region(Object capsule) {
  Held* held = static_cast<Held*>(py.capsule_pointer(capsule, kRegion));
  if (!held) return;
  py.decref(held->keep);
  std::free(held);
}
