// Template of the totals of lanes: $T the type of a lane, $N its language name, $O the reduction, $E the type
// of an element in a vector (unsigned where sums wrap), $S the scalar steps for a last vector of 16 bytes,
// $C the reduction of a and b. PF_VECTOR is the machine's width in bytes.

// The total of n lanes, which fill whole vectors of the machine, or one of 32 bytes. NaN is not looked for.
PF_INLINE $T pf_fold_${O}_$N(const $T* v, int n) {
#if PF_VECTOR >= 32
  typedef $E X __attribute__((vector_size(16)));
  typedef $E Y __attribute__((vector_size(32)));
  typedef $E M __attribute__((vector_size(32), aligned(sizeof($T)), may_alias));
  Y y = *(const M*)v;
#if PF_VECTOR == 64
  if (n * (int)sizeof($T) > 32) {
    typedef $E W __attribute__((vector_size(64), aligned(sizeof($T)), may_alias));
    W w = *(const W*)v;
    for (int k = 64 / (int)sizeof($T); k < n; k += 64 / (int)sizeof($T)) {
      const W a = w, b = *(const W*)(v + k);
      w = $C;
    }
    const Y a32 = {$LOW32}, b32 = {$HIGH32};
    y = $C32;
  }
#else
  for (int k = 32 / (int)sizeof($T); k < n; k += 32 / (int)sizeof($T)) {
    const Y a = y, b = *(const M*)(v + k);
    y = $C;
  }
#endif
  const X a16 = {$LOW16}, b16 = {$HIGH16};
  const X x = $C16;
#else
  typedef $E W __attribute__((vector_size(16), aligned(sizeof($T)), may_alias));
  W x = *(const W*)v;
  for (int k = 16 / (int)sizeof($T); k < n; k += 16 / (int)sizeof($T)) {
    const W a = x, b = *(const W*)(v + k);
    x = $C;
  }
#endif
$S
}
