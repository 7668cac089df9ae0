// Template of windows that go on from one vector of the machine to the next: $T the type of a lane, $N its language
// name, $O the reduction, $E the type of an element in a vector (unsigned where sums wrap), $I an integer of its size.

typedef $E pf_lanes_${O}_$N __attribute__((vector_size(PF_VECTOR), aligned(sizeof($T)), may_alias));
// The lanes d places before those of a vector, where before[k] is the vector k + 1 steps before it.
PF_INLINE pf_lanes_${O}_$N pf_delayed_${O}_$N(pf_lanes_${O}_$N now, const pf_lanes_${O}_$N* before, int d) {
  enum { n = PF_VECTOR / (int)sizeof($T) };
  const int whole = d / n, rest = d % n;
  const pf_lanes_${O}_$N a = whole ? before[whole ? whole - 1 : 0] : now;
  if (rest == 0) return a;
  const pf_lanes_${O}_$N b = before[whole];
#if defined(__clang__)
  pf_lanes_${O}_$N v;
  for (int l = 0; l < n; ++l) v[l] = l < rest ? b[n - rest + l] : a[l - rest];
  return v;
#else
  typedef $I W __attribute__((vector_size(PF_VECTOR)));
  W from;
  for (int l = 0; l < n; ++l) from[l] = n - rest + l;
  return (pf_lanes_${O}_$N)__builtin_shuffle((W)b, (W)a, from);
#endif
}
