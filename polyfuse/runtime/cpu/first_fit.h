// Where temporaries lie, at sizes that are known when a call comes: a part of both launchers and of exported
// libraries.

#pragma once

constexpr int64_t kLineBytes = 64;

// A temporary: its bytes, the first and the last step that touch it, and where it lies.
struct pf_temporary { int64_t bytes, first, last, offset; };

// Those of most bytes first, each at the lowest place that is free while it is alive (`memory.layout`); the bytes
// of all.
template <int64_t kMost>
inline int64_t first_fit(pf_temporary (&all)[kMost], int64_t count) {
  const pf_temporary* placed[kMost];
  int64_t order[kMost], end = 0;
  for (int64_t k = 0; k < count; ++k) {
    all[k].bytes = (all[k].bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    order[k] = k;
  }
  std::stable_sort(order, order + count, [&](int64_t x, int64_t y) { return all[x].bytes > all[y].bytes; });
  for (int64_t n = 0; n < count; ++n) {
    pf_temporary& s = all[order[n]];
    s.offset = 0;
    for (int64_t j = 0; j < n; ++j) {  // by place
      const pf_temporary& other = *placed[j];
      const int64_t high = other.offset + other.bytes;
      if (s.first > other.last || other.first > s.last || s.offset >= high) continue;
      if (s.offset + s.bytes <= other.offset) break;
      s.offset = high;
    }
    end = std::max(end, s.offset + s.bytes);
    int64_t at = n;
    for (; at > 0 && placed[at - 1]->offset > s.offset; --at) placed[at] = placed[at - 1];
    placed[at] = &s;
  }
  return end;
}
