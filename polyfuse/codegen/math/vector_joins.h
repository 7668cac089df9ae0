// Template of totals of several rows at once: $T the type of a lane, $N its language name, $O the reduction,
// $E the type of an element in a vector (unsigned where sums wrap), $C the reduction of a and b, $STEPS64,
// $STEPS32 and $STEPS16 the steps for vectors of so many bytes, $I what changes no total. PF_VECTOR is the
// machine's width in bytes.

// n lanes, which fill whole vectors or a part of one, become those of one vector. NaN is not looked for.
PF_INLINE void pf_part_${O}_$N(const $T* v, int n, $T* to) {
  if (n < PF_VECTOR / (int)sizeof($T)) {
    for (int l = 0; l < PF_VECTOR / (int)sizeof($T); ++l) to[l] = l < n ? v[l] : $I;
    return;
  }
  typedef $E W __attribute__((vector_size(PF_VECTOR), aligned(sizeof($T)), may_alias));
  W w = *(const W*)v;
  for (int k = PF_VECTOR / (int)sizeof($T); k < n; k += PF_VECTOR / (int)sizeof($T)) {
    const W a = w, b = *(const W*)(v + k);
    w = $C;
  }
  *(W*)to = w;
}

// The totals of rows, each of which is one vector; rows are a multiple of its lanes. Each step takes two
// vectors and makes one, with a lane of each of the two for every lane that is left of a row.
PF_INLINE void pf_join_${O}_$N(const $T* rows, int count, $T* to) {
  const int n = PF_VECTOR / (int)sizeof($T);
#if defined(__clang__) || __GNUC__ >= 12
  typedef $E W __attribute__((vector_size(PF_VECTOR), aligned(sizeof($T)), may_alias));
  typedef $E V __attribute__((vector_size(PF_VECTOR)));
  for (int k = 0; k < count; k += n) {
    V x[PF_VECTOR / sizeof($T)];
    for (int r = 0; r < n; ++r) x[r] = *(const W*)(rows + (k + r) * n);
#if PF_VECTOR == 64
$STEPS64
#elif PF_VECTOR == 32
$STEPS32
#else
$STEPS16
#endif
    *(W*)(to + k) = x[0];
  }
#else
  for (int r = 0; r < count; ++r) {
    $E a = rows[r * n];
    for (int l = 1; l < n; ++l) {
      const $E b = rows[r * n + l];
      a = $C;
    }
    to[r] = ($T)a;
  }
#endif
}
