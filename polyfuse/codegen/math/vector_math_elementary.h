// Templates for both compute types, as in vector_math_float.h, whose rules hold: elementary functions made of few others.
// What cancels is kept in a second part; all are straight-line code.

PF_INLINE pf_bool pf_isinf_$N($F x) { return __builtin_fabs$B(x) > $MAX; }

PF_INLINE pf_bool pf_isfinite_$N($F x) { return __builtin_fabs$B(x) <= $MAX; }

// 1 with the sign of x; a zero and NaN stay as they are.
PF_INLINE $F pf_sign_$N($F x) {
  $F one = pf_from_bits_$N((pf_bits_$N(x) & $SIGN) | $ONE);
  return (x < 0) | (x > 0) ? one : x;
}

// Toward zero.
#if defined(__SSE4_1__) || defined(__aarch64__)
PF_INLINE $F pf_trunc_$N($F x) { return __builtin_trunc$B(x); }
#else
PF_INLINE $F pf_trunc_$N($F x) { return __builtin_copysign$B(pf_floor_$N(__builtin_fabs$B(x)), x); }
#endif

// 2^x = 2^n e^(r ln2), where r = x - n is exact; see exp.
PF_LIMIT $F pf_exp2_low_$N = $EXP2_LOW, pf_exp2_high_$N = $EXP2_HIGH;
PF_INLINE $F pf_exp2_$N($F x) {
  const $F low = pf_exp2_low_$N, high = pf_exp2_high_$N;
  $F c = x < low ? low : x;
  c = c > high ? high : c;
  $F t = c + $SHIFT2;
  $F r = (c - (t - $SHIFT2)) * $LN2;
  $F p = 1.0$L + r * (1.0$L + r * pf_expm1_tail_$N(r));
  $U b = pf_bits_$N(t), half = b >> 1;
  return p * pf_from_bits_$N(half << $MANT) * pf_from_bits_$N((b - half) << $MANT);
}

// e^x - 1 = 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): no overflow before the result has one.
PF_LIMIT $F pf_expm1_low_$N = -40.0$L, pf_expm1_high_$N = $EXP_HIGH;
PF_INLINE $F pf_expm1_$N($F x) {
  const $F low = pf_expm1_low_$N, high = pf_expm1_high_$N;
  $F c = x < low ? low : x;
  c = c > high ? high : c;
  $F t = c * $LOG2E + $SHIFT_LESS_1;
  $F n = t - $SHIFT_LESS_1;
  $F r = (c - n * $LN2_HI) - n * $LN2_LO;
  $F p = r + r * r * pf_expm1_tail_$N(r);
  $F s = pf_from_bits_$N(pf_bits_$N(t) << $MANT);
  $F e = s * p + (s - 0.5$L);
  return __builtin_copysign$B(e + e, x);
}

// log(1 + x) = log(u) + c / u, where u is 1 + x rounded and c what was lost. Of what is no number above -1 the logarithm
// says what it is.
PF_INLINE $F pf_log1p_$N($F x) {
  $F u = 1.0$L + x, d = u - 1.0$L;
  $F c = (1.0$L - (u - d)) + (x - d);
  $F l = pf_log_$N(u), r = l + c / u;
  return __builtin_copysign$B((x > -1.0$L) & (x <= $MAX) ? r : l, x);
}

// a = |x| = n ln2 + r: e^a / 4 and e^-a / 4 are s and w times e^r and e^-r, and these sums and differences of sinh(r) and
// cosh(r).
PF_LIMIT $F pf_sinh_high_$N = $SINH_HIGH;
PF_INLINE $F pf_sinh_$N($F x) {
  const $F high = pf_sinh_high_$N;
  $F a = __builtin_fabs$B(x);
  a = a > high ? high : a;
  $F t = a * $LOG2E + $SHIFT_LESS_2;
  $F n = t - $SHIFT_LESS_2;
  $F r = (a - n * $LN2_HI) - n * $LN2_LO, z = r * r;
  $F s = pf_from_bits_$N(pf_bits_$N(t) << $MANT), w = 0.0625$L / s;
  $F sinh = r + r * (z * pf_sinh_tail_$N(z)), cosh = z * pf_cosh_tail_$N(z), d = s - w;
  $F e = d + ((s + w) * sinh + d * cosh);
  return __builtin_copysign$B(e + e, x);
}

PF_LIMIT $F pf_cosh_high_$N = $SINH_HIGH;
PF_INLINE $F pf_cosh_$N($F x) {
  const $F high = pf_cosh_high_$N;
  $F a = __builtin_fabs$B(x);
  a = a > high ? high : a;
  $F t = a * $LOG2E + $SHIFT_LESS_2;
  $F n = t - $SHIFT_LESS_2;
  $F r = (a - n * $LN2_HI) - n * $LN2_LO, z = r * r;
  $F s = pf_from_bits_$N(pf_bits_$N(t) << $MANT), w = 0.0625$L / s;
  $F sinh = r + r * (z * pf_sinh_tail_$N(z)), cosh = z * pf_cosh_tail_$N(z), u = s + w;
  $F e = u + ((s - w) * sinh + u * cosh);
  return e + e;
}

// log1p(a + a^2 / (1 + sqrt(1 + a^2))); far away log(a) + ln2.
PF_INLINE $F pf_asinh_$N($F x) {
  $F a = __builtin_fabs$B(x), z = a * a;
  bool far = a > 0x1p60$L;
  $F l = pf_log1p_$N(far ? a : a + z / (1.0$L + __builtin_sqrt$B(1.0$L + z)));
  return __builtin_copysign$B(far ? l + $LN2 : l, x);
}

PF_INLINE $F pf_acosh_$N($F x) {
  $F t = x - 1.0$L, v = x * __builtin_inf$B();
  bool far = x > 0x1p60$L;
  $F l = pf_log1p_$N(far ? x : t + __builtin_sqrt$B(t * t + 2.0$L * t));
  l = far ? l + $LN2 : l;
  return x >= 1.0$L ? l : v - v;
}

PF_INLINE $F pf_atanh_$N($F x) {
  $F a = __builtin_fabs$B(x);
  return __builtin_copysign$B(0.5$L * pf_log1p_$N((a + a) / (1.0$L - a)), x);
}

PF_INLINE $F pf_tan_$N($F x) {
  $F r = pf_sin_shifted_$N(x, 0) / pf_sin_shifted_$N(x, 1);
  return pf_from_bits_$N(pf_bits_$N(r) ^ (pf_bits_$N(x) & $SIGN));
}

// Above 1/2, from acos(a) = 2 asin(sqrt((1 - a) / 2)).
PF_INLINE $F pf_asin_$N($F x) {
  $F a = __builtin_fabs$B(x);
  bool far = a > 0.5$L;
  $F z = far ? 0.5$L - 0.5$L * a : a * a;
  $F s = far ? __builtin_sqrt$B(z) : a;
  $F r = s + s * (z * pf_asin_tail_$N(z));
  return __builtin_copysign$B(far ? $HALF_PI - ((r + r) - $HALF_PI_LO) : r, x);
}

PF_INLINE $F pf_acos_$N($F x) {
  $F a = __builtin_fabs$B(x);
  bool far = a > 0.5$L;
  $F z = far ? 0.5$L - 0.5$L * a : a * a;
  $F s = far ? __builtin_sqrt$B(z) : x;
  $F r = s + s * (z * pf_asin_tail_$N(z));
  $F back = x < 0 ? 2.0$L * $HALF_PI - ((r + r) - 2.0$L * $HALF_PI_LO) : r + r;
  return far ? back : $HALF_PI - (r - $HALF_PI_LO);
}

// Above 1, from that of -1 / a.
PF_INLINE $F pf_atan_$N($F x) {
  $F a = __builtin_fabs$B(x);
  bool far = a > 1.0$L;
  $F t = (far ? -1.0$L : a) / (far ? a : 1.0$L), z = t * t;
  $F r = t * (z * pf_atan_tail_$N(z));
  return __builtin_copysign$B(far ? $HALF_PI + (t + (r + $HALF_PI_LO)) : t + r, x);
}

// The angle of (x, y), by that of the shorter coordinate over the longer one; of two infinities these are the same.
PF_INLINE $F pf_atan2_$N($F y, $F x) {
  $F a = __builtin_fabs$B(x), b = __builtin_fabs$B(y);
  bool steep = b > a, back = pf_from_bits_$N((pf_bits_$N(x) & $SIGN) | $ONE) < 0;
  $F least = steep ? a : b, most = steep ? b : a;
  $F t = least / most;
  t = least == most ? 1.0$L : t;
  t = most == 0 ? least : t;
  $F z = t * t, r = t + t * (z * pf_atan_tail_$N(z));
  $F turns = steep ? 1.0$L : 2.0$L;
  $F from = turns * $HALF_PI - ((steep & back ? -r : r) - turns * $HALF_PI_LO);
  return __builtin_copysign$B(steep | back ? from : r, y);
}

// x = 2^(3 q) b with b in [1/3, 3): a start within 2^-19, and one step of Halley.
PF_INLINE $F pf_cbrt_$N($F x) {
  $F a = __builtin_fabs$B(x);
  bool tiny = a < $LEAST;
  $U d = pf_bits_$N(tiny ? a * $CUBE : a) - $ROOT_HALF;
  $F k = pf_exponent_$N(d), f = pf_from_bits_$N((d & $MASK) + $ROOT_HALF);
  $F t = k * $THIRD + $SHIFT1;
  $F rest = k - 3.0$L * (t - $SHIFT1);
  $F b = f * (rest < 0 ? 0.5$L : rest > 0 ? 2.0$L : 1.0$L);
  $F y = pf_cbrt_start_$N(f - 1.0$L) * (rest < 0 ? $ROOT_OF_HALF : rest > 0 ? $ROOT_OF_2 : 1.0$L);
  $F y3 = y * y * y;
  y = (y + y * ((b - y3) / (2.0$L * y3 + b))) * pf_from_bits_$N(pf_bits_$N(t) << $MANT);
  y = tiny ? y * $CUBE_ROOT : y;
  return __builtin_copysign$B((a > 0) & (a <= $MAX) ? y : a + a, x);
}

// x mod y with the sign of x; see mod.
PF_INLINE $F pf_fmod_$N($F a, $F b) {
  double x = __builtin_fabs((double)a), y = __builtin_fabs((double)b);
  double m = pf_remainder_f64(x, y, pf_floor_f64(x / y));
  return __builtin_copysign$B(($F)m, a);
}
