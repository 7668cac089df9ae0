// Template of the totals of lanes: $T the type of a lane, $N its language name, $O the reduction, $E the type
// of an element in a vector (unsigned where sums wrap), $S the scalar steps for a last vector of 16 bytes,
// $C the reduction of a and b. PF_VECTOR is the machine's width in bytes.

// The total of n lanes, which fill whole vectors. NaN is not looked for.
PF_INLINE $T pf_fold_${O}_$N(const $T* v, int n) {
  typedef $E W __attribute__((vector_size(PF_VECTOR), aligned(sizeof($T)), may_alias));
  typedef $E X __attribute__((vector_size(16)));
  W w = *(const W*)v;
  for (int k = PF_VECTOR / (int)sizeof($T); k < n; k += PF_VECTOR / (int)sizeof($T)) {
    const W a = w, b = *(const W*)(v + k);
    w = $C;
  }
#if PF_VECTOR == 64
  typedef $E Y __attribute__((vector_size(32)));
  const Y a32 = {$LOW32}, b32 = {$HIGH32};
  const Y y = $C32;
#elif PF_VECTOR == 32
  const W y = w;
#endif
#if PF_VECTOR >= 32
  const X a16 = {$LOW16}, b16 = {$HIGH16};
  const X x = $C16;
#else
  const X x = w;
#endif
$S
}
