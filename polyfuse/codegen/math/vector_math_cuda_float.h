// What a GPU does otherwise than the templates for CPUs, for both compute types: $F the type, $N its
// language name, $L the suffix of a literal and of a function of CUDA's own. Those functions are the accurate
// ones, with the errors of the CUDA Programming Guide; kernels are bound by memory more than by them. Calls of a single
// one are in no text: `ir/ops.py` names it.

// Only the exponential of -|x| is taken: no overflow, and full relative accuracy far to the left.
PF_INLINE $F pf_sigmoid_$N($F x) {
  $F e = pf_exp_$N(-fabs$L(x));
  return (x < 0.0$L ? e : 1.0$L) / (1.0$L + e);
}

PF_INLINE $F pf_square_$N($F x) { return x * x; }

// x to a small constant power: squares of squares, of which compilers see how many.
PF_INLINE $F pf_power_$N($F x, int n) {
  $F square = n < 0 ? 1.0$L / x : x, product = 1.0$L;
  for (int left = n < 0 ? -n : n; left; left >>= 1) {
    if (left & 1) product = product * square;
    square = square * square;
  }
  return product;
}

// x to the power of a half: that of -0.0 is 0.0, that of an infinity infinite.
PF_INLINE $F pf_root_$N($F x) {
  const $F infinity = __builtin_inf$L();
  return x == -infinity ? infinity : pf_sqrt_$N(x) + 0.0$L;
}

// x^y with one y for all threads, of which those take the same way.
PF_INLINE $F pf_pow_alike_$N($F x, $F y) {
  if (y == 2.0$L) return x * x;
  if (y == 1.0$L) return x;
  if (y == 0.5$L) return pf_root_$N(x);
  if (y == -1.0$L) return 1.0$L / x;
  return pf_pow_$N(x, y);
}

// x to a small constant power with a half, n being the whole part.
PF_INLINE $F pf_power_half_$N($F x, int n) {
  const $F root = pf_root_$N(x);
  return pf_power_$N(fabs$L(x), n) * (n < 0 ? 1.0$L / root : root);
}

// The same for (a, b) and (b, a), also for zeros of both signs: lanes of a warp that combine the same two
// values in either order must end with the same bits.
PF_INLINE $F pf_min_$N($F a, $F b) {
  $F r = a == b ? pf_from_bits_$N(pf_bits_$N(a) | pf_bits_$N(b)) : a < b ? a : b;
  return a != a ? a : r;
}

PF_INLINE $F pf_max_$N($F a, $F b) {
  $F r = a == b ? pf_from_bits_$N(pf_bits_$N(a) & pf_bits_$N(b)) : a > b ? a : b;
  return a != a ? a : r;
}
