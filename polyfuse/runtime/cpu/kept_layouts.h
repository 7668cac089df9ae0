// Layouts with open sizes at sizes that were seen: a part of launcher.cpp.
//
// What a template makes of sizes (`bind`) is kept for some sizes, as an entry beside those that were learnt: a
// call at the same sizes as one before is as short as one of kernels that know them.  An entry that a call is
// using stays as it is; of the others the one that was used longest ago makes room.

constexpr int64_t kKeptLayouts = 16;

// Where the parts of a kept layout lie, in one block of memory behind its entry.
struct Packer {
  char* at;

  template <class T>
  T* copy(const T* from, int64_t count) {
    T* to = reinterpret_cast<T*>(at);
    if (from) std::copy(from, from + count, to);
    at += (size_t(count) * sizeof(T) + 7) / 8 * 8;
    return to;
  }
};

int64_t packed_bytes(const pf_layout& l, int64_t extents, int64_t numbers) {
  return int64_t(sizeof(Entry) + sizeof(pf_layout) + size_t(l.narguments) * (sizeof(pf_argument) + sizeof(char*)) +
                 size_t(l.nresults) * sizeof(pf_result) + size_t(l.nspaces) * sizeof(pf_space) +
                 size_t(l.nblocks) * sizeof(pf_block) + size_t(l.nsteps) * sizeof(pf_step) +
                 size_t(extents + numbers) * sizeof(int64_t));
}

// An entry with a copy of a bound layout; null if there is no memory.
Entry* packed(const pf_layout& l) {
  int64_t extents = 0;
  for (int64_t k = 0; k < l.narguments; ++k) extents += 2 * l.arguments[k].rank;
  for (int64_t k = 0; k < l.nresults; ++k) extents += l.results[k].rank;
  const int64_t numbers = l.open->nnumbers + l.open->nstrides;
  char* memory = static_cast<char*>(std::malloc(size_t(packed_bytes(l, extents, numbers))));
  if (!memory) return nullptr;
  Packer p{memory + sizeof(Entry)};
  pf_layout* layout = p.copy(&l, 1);
  pf_argument* arguments = p.copy(l.arguments, l.narguments);
  for (int64_t k = 0; k < l.narguments; ++k) {
    pf_argument& a = arguments[k];
    if (a.kind != kArray) continue;
    a.extents = p.copy(a.extents, a.rank);
    if (a.strides) a.strides = p.copy(a.strides, a.rank);
  }
  pf_result* results = p.copy(l.results, l.nresults);
  for (int64_t k = 0; k < l.nresults; ++k) results[k].extents = p.copy(results[k].extents, results[k].rank);
  layout->arguments = arguments, layout->results = results;
  layout->spaces = p.copy(l.spaces, l.nspaces);
  layout->blocks = p.copy(l.blocks, l.nblocks);
  layout->steps = p.copy(static_cast<const pf_step*>(l.steps), l.nsteps);
  layout->numbers = p.copy(l.numbers, numbers);
  layout->open = nullptr;  // nothing depends on sizes any more
  char** apart = p.copy<char*>(nullptr, l.narguments);
  return new (memory) Entry{layout, nullptr, apart, false, true, 0};
}

// The bound entry that was used longest ago; -1 where all are in use.
int64_t oldest(const Front& front) {
  for (int64_t k = front.count; k-- > 0;)
    if (front.entries[k]->bound && !front.entries[k]->users) return k;
  return -1;
}

// A new last entry for a layout that `bind` has made; null if there is no room.
Entry* remembered(Front& front, const pf_layout& l) {
  const int64_t gone = front.kept < kKeptLayouts ? front.count : oldest(front);
  Entry* e = gone < 0 ? nullptr : packed(l);
  if (!e) return nullptr;
  if (gone < front.count) {
    std::free(front.entries[gone]);
    std::copy(front.entries + gone + 1, front.entries + front.count, front.entries + gone);
    --front.count, --front.kept;
  }
  ++front.kept;
  return front.entries[front.count++] = e;
}

// Put an entry before all of its rank, and of higher ones.
void to_front(Front& front, int64_t k) {
  Entry* e = front.entries[k];
  for (; k > 0 && front.entries[k - 1]->layout->rank >= e->layout->rank; --k) front.entries[k] = front.entries[k - 1];
  front.entries[k] = e;
}
