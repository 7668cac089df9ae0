// Places of numbers, for the CPU (`codegen.cpu.scatter_printer`).

// The places of what is not 0 among n numbers that are 0 or 1, in order, and how many they are; the list has room
// for n, and no vector of places goes beyond: what is listed so far is no more than what was looked at.
PF_INLINE int pf_listed(const int* own, int n, int* list) {
  int count = 0, l = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  typedef int V __attribute__((vector_size(64)));
  typedef int W __attribute__((vector_size(64), aligned(4), may_alias));
  V at = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (; l + 16 <= n; l += 16, at += 16) {
    const V v = *(const W*)(own + l);
    const unsigned mask = __builtin_ia32_ptestmd512(v, v, -1);
    *(W*)(list + count) = __builtin_ia32_compresssi512_mask(at, (V){}, mask);
    count += __builtin_popcount(mask);
  }
#endif
  for (; l < n; ++l) {
    list[count] = l;
    count += own[l];
  }
  return count;
}
