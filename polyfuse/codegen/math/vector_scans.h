// Template of totals up to each lane: $T the type of a lane, $N its language name, $O the reduction, $E the
// type of an element in a vector (unsigned where sums wrap), $C the reduction of b, which comes first, and a,
// $STEPS64 and so on the steps for vectors of so many bytes. PF_VECTOR is the machine's width in bytes.

// v becomes v[0], the total of v[0] and v[1], and so on: a whole vector of the machine. NaN wins.
PF_INLINE void pf_scan_${O}_$N($T* v) {
#if defined(__clang__) || __GNUC__ >= 12
  typedef $E W __attribute__((vector_size(PF_VECTOR), aligned(sizeof($T)), may_alias));
  W a = *(const W*)v;
  const W z = {};
  (void)z;
#if PF_VECTOR == 64
$STEPS64
#elif PF_VECTOR == 32
$STEPS32
#else
$STEPS16
#endif
  *(W*)v = a;
#else
  for (int k = 1; k < PF_VECTOR / (int)sizeof($T); ++k) {
    const $E b = ($E)v[k - 1], a = ($E)v[k];
    v[k] = ($T)($C);
  }
#endif
}
