// Templates for both compute types: $F the type, $N its language name, $B the suffix of a compiler
// built-in, $U the unsigned type of its width, $L the suffix of a literal.
//
// In all of these files: no result is selected from constants (0, inf, NaN); they are computed from
// the arguments, as x - inf. A comparison of a value with such a constant in it, here or in a caller's
// expression, gcc turns into a select of truth values, which it does not vectorise.
//
// A limit is a PF_LIMIT, a variable that gcc has to read: then clamping is one instruction (vmaxps). With a
// constant it is a comparison and a blend, and two of them in a row become four comparisons of masks.

PF_INLINE $U pf_bits_$N($F x) { return __builtin_bit_cast($U, x); }

PF_INLINE $F pf_from_bits_$N($U b) { return __builtin_bit_cast($F, b); }

PF_INLINE $F pf_abs_$N($F x) { return __builtin_fabs$B(x); }

PF_INLINE $F pf_sqrt_$N($F x) { return __builtin_sqrt$B(x); }

PF_INLINE $F pf_rsqrt_$N($F x) { return 1.0$L / __builtin_sqrt$B(x); }

PF_INLINE pf_bool pf_isnan_$N($F x) { return x != x; }

// Rounding is an instruction where there is one. Elsewhere adding and taking away 2^(mantissa bits)
// rounds a smaller magnitude to an integer, halves to even; larger ones are integers already.
#if defined(__SSE4_1__) || defined(__aarch64__)
PF_INLINE $F pf_round_$N($F x) { return __builtin_rint$B(x); }
#else
PF_INLINE $F pf_round_$N($F x) {
  $F a = __builtin_fabs$B(x);
  $F r = a < $TWO_M ? (a + $TWO_M) - $TWO_M : a;
  return __builtin_copysign$B(r, x);
}
#endif

#if defined(__SSE4_1__) || defined(__aarch64__)
PF_INLINE $F pf_floor_$N($F x) { return __builtin_floor$B(x); }
#else
PF_INLINE $F pf_floor_$N($F x) {
  $F r = pf_round_$N(x);
  return r > x ? r - 1.0$L : r;
}
#endif

#if defined(__SSE4_1__) || defined(__aarch64__)
PF_INLINE $F pf_ceil_$N($F x) { return __builtin_ceil$B(x); }
#else
PF_INLINE $F pf_ceil_$N($F x) {
  $F r = pf_round_$N(x);
  return __builtin_copysign$B(r < x ? r + 1.0$L : r, x);
}
#endif

// A NaN on the right falls through the comparison, one on the left is put back.
PF_INLINE $F pf_min_$N($F a, $F b) {
  $F r = a < b ? a : b;
  return a != a ? a : r;
}

PF_INLINE $F pf_max_$N($F a, $F b) {
  $F r = a > b ? a : b;
  return a != a ? a : r;
}

// With a number, a PF_LIMIT: a NaN of x is on the right.
PF_INLINE $F pf_at_least_$N($F x, $F low) { return low > x ? low : x; }

PF_INLINE $F pf_at_most_$N($F x, $F high) { return high < x ? high : x; }

// exp(x) = 2^n exp(r). The shifter rounds x/ln2 to n and leaves n + 2*bias in the low mantissa bits;
// its halves scale in two exact steps, so that overflow and the subnormal range come out right.
// The comparisons let a NaN through. pf_exp_below is for what is below some limit.
PF_LIMIT $F pf_exp_low_$N = $EXP_LOW;
PF_INLINE $F pf_exp_below_$N($F x) {
  const $F low = pf_exp_low_$N;
  $F c = x < low ? low : x;
  $F t = c * $LOG2E + $SHIFT2;
  $F n = t - $SHIFT2;
  $F r = (c - n * $LN2_HI) - n * $LN2_LO;
  $F p = 1.0$L + r * (1.0$L + r * pf_expm1_tail_$N(r));
  $U b = pf_bits_$N(t), half = b >> 1;
  return p * pf_from_bits_$N(half << $MANT) * pf_from_bits_$N((b - half) << $MANT);
}

PF_LIMIT $F pf_exp_high_$N = $EXP_HIGH;
PF_INLINE $F pf_exp_$N($F x) {
  const $F high = pf_exp_high_$N;
  return pf_exp_below_$N(x > high ? high : x);
}

// e^x / (1 + e^x) has full relative accuracy far to the left; above a limit, where 1 + e^x is e^x, it is 1.
PF_LIMIT $F pf_sigmoid_high_$N = 40.0$L;
PF_INLINE $F pf_sigmoid_$N($F x) {
  const $F high = pf_sigmoid_high_$N;
  $F e = pf_exp_below_$N(x > high ? high : x);
  return e / (1.0$L + e);
}

// The sign of a power, and NaN for a fractional power of a negative number; m = |x|^y. What depends on y alone
// is a number, which one y for all lanes leaves before the loop: gcc 12 takes no truth value into one.
PF_INLINE $F pf_pow_sign_$N($F m, $F x, $F y) {
  $F h = 0.5$L * y, below = pf_floor_$N(y) == y ? -__builtin_inf$B() : 0.0$L;
  $U odd = (pf_floor_$N(y) == y) & (pf_floor_$N(h) != h) ? $SIGN : 0;
  $F r = pf_from_bits_$N(pf_bits_$N(m) ^ (pf_bits_$N(x) & odd));
  $F v = x * __builtin_inf$B();
  return (x < below) & (x > -__builtin_inf$B()) ? v - v : r;
}

PF_INLINE $F pf_sin_$N($F x) {
  $F r = pf_sin_shifted_$N(x, 0);
  return pf_from_bits_$N(pf_bits_$N(r) ^ (pf_bits_$N(x) & $SIGN));
}

PF_INLINE $F pf_cos_$N($F x) { return pf_sin_shifted_$N(x, 1); }

// |a| mod |b| as a double, exact while |a / b| < 2^53. For a larger quotient the rounding of `a`
// already spans many multiples of b and the remainder counts as 0.
PF_INLINE $F pf_mod_$N($F a, $F b) {
  double x = __builtin_fabs((double)a), y = __builtin_fabs((double)b);
  double q = pf_floor_f64(x / y);
  double m = pf_remainder_f64(x, y, q);
  bool differ = (a < 0) != (b < 0);
  m = differ & (m > 0) ? y - m : m;
  return __builtin_copysign$B(($F)m, b);
}

// The quotient of the division above; the remainder corrects a quotient that was rounded up.
PF_INLINE $F pf_floordiv_$N($F a, $F b) {
  double x = __builtin_fabs((double)a), y = __builtin_fabs((double)b), inf = __builtin_inf();
  double q = pf_floor_f64(x / y);
  double r = pf_fma_f64(-q, y < inf ? y : 0.0, x);
  bool exact = q < 0x1p53, rest = r != 0;
  // Opposite signs: -q, less one if there is a remainder.
  $U sign = (pf_bits_$N(a) ^ pf_bits_$N(b)) & $SIGN;
  bool differ = pf_from_bits_$N(sign | $ONE) < 0;
  double down = exact & (r < 0) ? q - 1 : q;
  double up = exact & rest & differ ? down + 1 : down;
  up = (x < inf) | (y == 0) ? up : x - x;
  return pf_from_bits_$N(pf_bits_$N(($F)up) ^ sign);
}
