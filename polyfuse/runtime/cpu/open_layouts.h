// Layouts of calls whose sizes are parameters of the kernels: a part of launcher.cpp.
//
// A layout has one template for all sizes.  A call reads its sizes off the extents of its arguments, checks what
// the kernels were made for, and computes everything that depends on sizes (results, temporaries, chunks,
// numbers) into a layout of its own, which then goes the way of any other.  Nothing is allocated for that.

constexpr int64_t kSizes = 32, kArguments = 32, kResults = 16, kSpaces = 64, kSteps = 64, kNumbers = 128,
                  kExtents = 256;

struct Bound {  // what the layout of one call consists of
  pf_layout layout;
  int64_t sizes[kSizes], numbers[kNumbers], extents[kExtents];
  pf_argument arguments[kArguments];
  pf_result results[kResults];
  pf_space spaces[kSpaces];
  pf_block blocks[kResults + 2];
  pf_step steps[kSteps];
};

// ---- arguments ---------------------------------------------------------------------------------------------

// Is an array what the template says, but for its extents?
bool alike(const pf_argument& a, Object item) {
  if (type_of(item) != types[a.kind]) return false;
  if (a.kind != kArray) return true;
  const pf_array* x = static_cast<const pf_array*>(item);
  const int wanted = kAligned | (a.written ? kWritable : 0);
  return x->dtype == a.dtype && x->rank == a.rank && (x->flags & wanted) == wanted;
}

bool read_sizes(const pf_open& o, const Object* items, int64_t* sizes) {
  for (int64_t k = 0; k < o.nsizes; ++k) {
    const pf_source& s = o.sources[k];
    if (s.argument < 0) {
      sizes[k] = s.offset;
      continue;
    }
    const int64_t left = static_cast<const pf_array*>(items[s.argument])->extents[s.axis] - s.offset;
    if (left % s.factor) return false;
    sizes[k] = left / s.factor;
  }
  for (int64_t k = 0; k < o.nconditions; ++k)
    if (!holds(o.conditions[k], sizes)) return false;
  return true;
}

// Has an array the extents that follow from the sizes, and does its memory lie as kernels take it?
bool lies_so(const pf_open_argument& o, const pf_array& x, const int64_t* sizes, pf_argument* a, int64_t* room) {
  const int64_t itemsize = a->align;
  for (int64_t d = 0; d < a->rank; ++d) {
    int64_t wanted;
    if (!value_of(o.extents[d], sizes, &wanted) || x.extents[d] != wanted) return false;
    room[d] = wanted;
  }
  a->extents = room;
  if (!bytes_of(room, a->rank, itemsize, &a->nbytes)) return false;
  a->low = 0;
  if (!o.order) {  // dense: NumPy says so
    a->strides = nullptr;
    return (x.flags & kDense) != 0;
  }
  int64_t* strides = room + a->rank;
  for (int64_t d = 0; d < a->rank; ++d) strides[d] = x.strides[d];
  a->strides = strides;
  if (!o.strided) {  // dense, its axes in another order
    int64_t step = itemsize;
    for (int64_t k = a->rank; k-- > 0; step *= room[o.order[k]])
      if (room[o.order[k]] != 1 && strides[o.order[k]] != step && a->nbytes) return false;
    return true;
  }
  int64_t high = 0;
  for (int64_t d = 0; d < a->rank; ++d) {
    if (strides[d] % itemsize) return false;
    if (!a->nbytes) continue;
    const int64_t reach = strides[d] * (room[d] - 1);
    (reach < 0 ? a->low : high) += reach;
  }
  if (a->nbytes) a->nbytes = high - a->low + itemsize;
  return true;
}

// ---- what depends on sizes ---------------------------------------------------------------------------------

inline int64_t whole_lines(int64_t bytes) { return std::max<int64_t>(1, (bytes + kLine - 1) / kLine) * kLine; }

// Blocks are asked for by classes of sizes, so that those of other calls fit; large ones are as the arena has them.
int64_t block_class(int64_t bytes) {
  constexpr int64_t kLarge = INT64_C(1) << 20, kPage = 4096, kHuge = INT64_C(2) << 20;
  int64_t step = bytes < kLarge ? kPage : kHuge;
  int bits = 64 - __builtin_clzll(uint64_t(bytes) | 1);
  if (bits > 4) step = std::max(step, INT64_C(1) << (bits - 4));
  return (bytes + step - 1) / step * step;
}

int64_t add_block(const pf_open& o, Bound& b, int64_t bytes) {
  b.blocks[b.layout.nblocks] = pf_block{block_class(bytes), o.allocate, 1};
  return b.layout.nblocks++;
}

// Where results lie: small ones share a block (`fast_path._results`).
bool place_results(const pf_open& o, Bound& b, int64_t* room) {
  constexpr int64_t kShared = 64 << 10, kLarge = INT64_C(1) << 20;
  int64_t bytes[kResults], shared = 0, small = -1, offset = 0;
  for (int64_t k = 0; k < b.layout.nresults; ++k) {
    pf_result& r = b.results[k];
    for (int64_t d = 0; d < r.rank; ++d)
      if (!value_of(o.results[k].extents[d], b.sizes, room + d)) return false;
    if (!bytes_of(room, r.rank, o.results[k].itemsize, bytes + k)) return false;
    r.extents = room;
    room += r.rank;
    if (bytes[k] <= kShared) shared += whole_lines(bytes[k]);
  }
  if (shared >= kLarge) small = add_block(o, b, shared);
  for (int64_t k = 0; k < b.layout.nresults; ++k) {
    pf_result& r = b.results[k];
    if (bytes[k] <= kShared) {
      r.block = small, r.offset = offset;
      offset += whole_lines(bytes[k]);
    } else {
      r.block = add_block(o, b, bytes[k]), r.offset = 0;
    }
  }
  b.layout.shared = small < 0 ? shared : 0;
  return true;
}

// Where temporaries lie in their block.
bool place_spaces(const pf_open& o, Bound& b) {
  pf_temporary all[kSpaces];
  const int64_t count = b.layout.nspaces;
  for (int64_t k = 0; k < count; ++k) {
    const pf_open_space& s = o.spaces[k];
    int64_t elements, bytes;
    if (!value_of(s.elements, b.sizes, &elements)) return false;
    elements = std::max<int64_t>(0, elements);
    if (!bytes_of(&elements, 1, s.itemsize, &bytes)) return false;
    all[k] = pf_temporary{bytes, s.first, s.last, 0};
  }
  const int64_t end = first_fit(all, count);
  for (int64_t k = 0; k < count; ++k) b.spaces[k] = pf_space{o.spaces[k].place, all[k].offset};
  b.layout.space_bytes = end;
  b.layout.space_block = end > (64 << 10) ? add_block(o, b, end) : -1;
  return true;
}

bool cut_step(const pf_open& o, const pf_open_step& s, const int64_t* sizes, pf_step* step) {
  pf_extent e;
  if (!value_of(s.count, sizes, &e.count) || !value_of(s.instances, sizes, &e.instances)) return false;
  if (!value_of(s.work, sizes, &e.work)) return false;
  cut(o.figures, e, s.parallel != 0, s.together, s.ntogether, s.least, step);
  return true;
}

// The layout of a call with these arguments; false where the template does not have them.
bool bind(const pf_layout& l, const Object* items, Bound& b) {
  const pf_open& o = *l.open;
  for (int64_t k = 0; k < l.narguments; ++k)
    if (!alike(l.arguments[k], items[k])) return false;
  if (!read_sizes(o, items, b.sizes)) return false;
  b.layout = l;
  b.layout.nblocks = 0;
  int64_t* room = b.extents;
  for (int64_t k = 0; k < l.narguments; ++k) {
    pf_argument& a = b.arguments[k] = l.arguments[k];
    if (a.kind != kArray) continue;
    if (!lies_so(o.arguments[k], *static_cast<const pf_array*>(items[k]), b.sizes, &a, room)) return false;
    room += 2 * a.rank;
  }
  std::copy(l.results, l.results + l.nresults, b.results);
  if (!place_results(o, b, room) || !place_spaces(o, b)) return false;
  std::copy(static_cast<const pf_step*>(l.steps), static_cast<const pf_step*>(l.steps) + l.nsteps, b.steps);
  for (int64_t k = 0; k < l.nsteps; ++k)
    if (!cut_step(o, o.steps[k], b.sizes, b.steps + k)) return false;
  for (int64_t k = 0; k < o.nnumbers; ++k) b.numbers[k] = b.sizes[o.numbers[k]];
  for (int64_t k = 0; k < o.nstrides; ++k) {
    const pf_stride& s = o.strides[k];
    const pf_array* x = static_cast<const pf_array*>(items[s.argument]);
    b.numbers[o.nnumbers + k] = x->strides[s.axis] / b.arguments[s.argument].align;
  }
  b.layout.arguments = b.arguments, b.layout.results = b.results, b.layout.spaces = b.spaces;
  b.layout.blocks = b.blocks, b.layout.steps = b.steps, b.layout.numbers = b.numbers;
  return true;
}
