// Layouts of calls whose sizes are parameters of the kernels: a part of launcher.cpp.
//
// A layout has one template for all sizes.  A call reads its sizes off the extents of its arguments, checks what
// the kernels were made for, and computes everything that depends on sizes (results, workspace, blocks, numbers)
// into a layout of its own, which then goes the way of any other.  Nothing is allocated for that.

constexpr int64_t kSizes = 32, kArguments = 32, kResults = 16, kSpaces = 64, kSteps = 64, kPuts = 256, kCells = 512,
                  kExtents = 256;

struct Opened {  // what the layout of one call consists of
  pf_layout layout;
  int64_t sizes[kSizes], extents[kExtents], cells[kCells];
  pf_argument arguments[kArguments];
  pf_result results[kResults + 1];
  pf_put puts[kPuts];
  pf_step steps[kSteps];
};

struct Lists { int64_t *extents, *strides; };  // of one array; strides in elements, null: dense

bool read_list(Object tuple, int64_t rank, int64_t* list) {
  if (py.tuple_size(tuple) != rank) return false;
  for (int64_t d = 0; d < rank; ++d) {
    int overflow = 0;
    list[d] = py.int_value(py.tuple_get(tuple, d), &overflow);
    if (overflow || (list[d] == -1 && py.error())) return false;
  }
  return true;
}

// What an array says of its extents and strides; false where it is not what the template says of it.
bool read_lists(const pf_open& o, const pf_open_argument& a, const pf_tensor& like, const pf_family& f,
                const Seen& seen, const Object* values, Lists* lists) {
  if (f.tensor || f.lend) {
    if (!same_kind(seen.tensor, like)) return false;
    std::copy(seen.tensor.extents, seen.tensor.extents + a.rank, lists->extents);
    if (!seen.tensor.strides) lists->strides = nullptr;
    else std::copy(seen.tensor.strides, seen.tensor.strides + a.rank, lists->strides);
    return true;
  }
  if (!read_list(values[o.shape], a.rank, lists->extents)) return false;
  if (o.strides < 0) {
    lists->strides = nullptr;
    return true;
  }
  if (!read_list(values[o.strides], a.rank, lists->strides)) return false;
  for (int64_t d = 0; o.stride_bytes && d < a.rank; ++d) {
    if (lists->strides[d] % a.itemsize) return false;
    lists->strides[d] /= a.itemsize;
  }
  return true;
}

bool read_sizes(const pf_open& o, const Lists* lists, int64_t* sizes) {
  for (int64_t k = 0; k < o.nsizes; ++k) {
    const pf_source& s = o.sources[k];
    if (s.argument < 0) {
      sizes[k] = s.offset;
      continue;
    }
    const int64_t left = lists[s.argument].extents[s.axis] - s.offset;
    if (left % s.factor) return false;
    sizes[k] = left / s.factor;
  }
  for (int64_t k = 0; k < o.nconditions; ++k)
    if (!holds(o.conditions[k], sizes)) return false;
  return true;
}

// Has an array the extents that follow from the sizes, and does its memory lie as kernels take it?
bool lies_so(const pf_open_argument& o, const Lists& x, const int64_t* sizes, pf_argument* a) {
  for (int64_t d = 0; d < o.rank; ++d) {
    int64_t wanted;
    if (!value_of(o.extents[d], sizes, &wanted) || x.extents[d] != wanted) return false;
  }
  if (!bytes_of(x.extents, o.rank, o.itemsize, &a->nbytes)) return false;
  a->low = 0;
  if (!x.strides || !a->nbytes) return true;
  if (!o.strided) {
    int64_t step = 1;
    for (int64_t d = o.rank; d-- > 0; step *= x.extents[d])
      if (x.extents[d] != 1 && x.strides[d] != step) return false;
    return true;
  }
  int64_t high = 0;
  for (int64_t d = 0; d < o.rank; ++d) {
    const int64_t reach = x.strides[d] * (x.extents[d] - 1) * o.itemsize;
    (reach < 0 ? a->low : high) += reach;
  }
  a->nbytes = high - a->low + o.itemsize;
  return true;
}

bool place_results(const pf_open& o, Opened& c, int64_t* room) {
  for (int64_t k = 0; k < c.layout.nresults; ++k) {
    pf_result& r = c.results[k];
    for (int64_t d = 0; d < r.rank; ++d)
      if (!value_of(o.results[k].extents[d], c.sizes, room + d)) return false;
    if (!bytes_of(room, r.rank, o.results[k].itemsize, &r.nbytes)) return false;
    r.extents = room;
    room += r.rank;
  }
  return true;
}

// Where temporaries and entry values lie in the workspace, which is as large as they are.
bool place_spaces(const pf_open& o, Opened& c, int64_t* offsets, int64_t* room) {
  pf_temporary all[kSpaces];
  for (int64_t k = 0; k < o.nspaces; ++k) {
    const pf_open_space& s = o.spaces[k];
    int64_t elements, bytes;
    if (!value_of(s.elements, c.sizes, &elements)) return false;
    elements = std::max<int64_t>(0, elements);
    if (!bytes_of(&elements, 1, s.itemsize, &bytes)) return false;
    all[k] = pf_temporary{(bytes + o.align - 1) / o.align * o.align, s.first, s.last, 0};
  }
  const int64_t end = o.start + first_fit(all, o.nspaces);
  for (int64_t k = 0; k < o.nspaces; ++k) offsets[k] = o.start + all[k].offset;
  if (!c.layout.workspace) return true;
  pf_result& w = c.results[c.layout.nresults];
  *room = w.nbytes = end;
  w.extents = room;
  return true;
}

bool place_steps(const pf_open& o, Opened& c, const int64_t* offsets) {
  for (int64_t k = 0; k < c.layout.nsteps; ++k) {
    pf_step& s = c.steps[k];
    const pf_open_step& t = o.steps[k];
    if (s.kind == kCopy) {
      s.to_offset = offsets[t.space];
      s.nbytes = c.arguments[s.source].nbytes;
    } else if (s.kind == kLaunch) {
      if (!value_of(t.blocks, c.sizes, s.grid) || s.grid[0] > t.most_blocks) return false;
    }
  }
  return true;
}

bool fill_numbers(const pf_open& o, Opened& c, const Lists* lists) {
  for (int64_t k = 0; k < o.nnumbers; ++k)
    if (!value_of(o.numbers[k].value, c.sizes, c.cells + o.numbers[k].cell)) return false;
  for (int64_t k = 0; k < o.nstrides; ++k) {
    const pf_stride& s = o.strides_of[k];
    const Lists& x = lists[s.argument];
    const int64_t rank = o.arguments[s.argument].rank;
    int64_t step = 1;
    for (int64_t d = s.axis + 1; d < rank; ++d) step *= x.extents[d];
    c.cells[s.cell] = x.strides ? x.strides[s.axis] : step;
  }
  return true;
}

// The layout of a call with these arguments; false, with or without an exception, where the template has them not.
bool open(const pf_layout& l, const Object* items, const Object* values, const Seen* seen, Opened& c) {
  const pf_open& o = *l.open;
  Lists lists[kArguments];
  int64_t* room = c.extents;
  for (int64_t k = 0; k < l.narguments; ++k) {
    const pf_argument& a = l.arguments[k];
    if (is_number(items[k]) != (a.kind != kArray)) return false;
    if (a.kind != kArray) continue;
    const int64_t rank = o.arguments[k].rank;
    lists[k] = Lists{room, room + rank};
    room += 2 * rank;
    const Object* facts = values + k * slots(*l.family);
    if (!read_lists(o, o.arguments[k], *a.tensor, *l.family, seen[k], facts, lists + k)) return false;
  }
  if (!read_sizes(o, lists, c.sizes)) return false;
  c.layout = l;
  for (int64_t k = 0; k < l.narguments; ++k) {
    pf_argument& a = c.arguments[k] = l.arguments[k];
    if (a.kind == kArray && !lies_so(o.arguments[k], lists[k], c.sizes, &a)) return false;
    a.tensor = nullptr;
  }
  std::copy(l.results, l.results + l.nresults + l.workspace, c.results);
  std::copy(l.puts, l.puts + l.nputs, c.puts);
  std::copy(l.steps, l.steps + l.nsteps, c.steps);
  std::copy(l.cells, l.cells + l.ncells, c.cells);
  int64_t offsets[kSpaces];
  if (!place_results(o, c, room + 1) || !place_spaces(o, c, offsets, room)) return false;
  if (!place_steps(o, c, offsets) || !fill_numbers(o, c, lists)) return false;
  for (int64_t k = 0; k < o.nputs; ++k) c.puts[o.puts[k].put].offset = offsets[o.puts[k].space];
  c.layout.arguments = c.arguments, c.layout.results = c.results, c.layout.puts = c.puts;
  c.layout.steps = c.steps, c.layout.cells = c.cells;
  return true;
}
