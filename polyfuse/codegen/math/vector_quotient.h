// Quotients of lanes by one number (`codegen.transforms.strength_reduction`). $F is the type, $N its language name, $B the suffix of a
// compiler built-in.

// x s / d by the reciprocal r of d: the product q is corrected by its remainder, unless it has none, being inf or
// NaN, or is 0, whose sign it has.
PF_INLINE $F pf_quotient_$N($F x, $F d, $F r, $F s) {
  $F a = x * s;
#if defined(__FMA__) || defined(__aarch64__)
  $F q = a * r, p = __builtin_fma$B(__builtin_fma$B(-q, d, a), r, q);
  return __builtin_islessgreater(p, q) ? p : q;
#else
  return a / d;
#endif
}
