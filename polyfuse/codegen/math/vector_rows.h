// Functions of rows of lanes, in place, n a multiple of 16: by the machine's scaling by powers of two and its
// minimum of magnitudes, which gcc 12 does not find itself. $F is the type, $N its language name, $L the suffix of
// a literal, $S the suffix of an instruction.

// exp(x) as pf_exp_$N has it, bit for bit. What is far out of range is decided by the last step alone, for
// which r has only to be finite: 2^inf p is inf, 2^-inf p is 0, and NaN stays NaN.
#if defined(__AVX512DQ__) && !defined(__clang__)
typedef $F pf_lanes_$N __attribute__((vector_size(64)));
PF_INLINE pf_lanes_$N pf_exp_lanes_$N(pf_lanes_$N x) {
  const pf_lanes_$N most = 0.5$L + (pf_lanes_$N){};
  const pf_lanes_$N n = (x * $LOG2E + $SHIFT2) - $SHIFT2;
  pf_lanes_$N r = (x - n * $LN2_HI) - n * $LN2_LO;
  r = __builtin_ia32_range${S}512_mask(r, most, 2, r, -1, 4);
  const pf_lanes_$N p = 1.0$L + r * (1.0$L + r * pf_expm1_tail_$N(r));
  return __builtin_ia32_scalef${S}512_mask(p, n, p, -1, 4);
}
#endif

PF_INLINE void pf_row_exp_$N($F* x, int n) {
#if defined(__AVX512DQ__) && !defined(__clang__)
  typedef $F W __attribute__((vector_size(64), aligned(sizeof($F)), may_alias));
  for (int k = 0; k < n; k += 64 / (int)sizeof($F)) *(W*)(x + k) = pf_exp_lanes_$N(*(const W*)(x + k));
#else
  for (int k = 0; k < n; ++k) x[k] = pf_exp_$N(x[k]);
#endif
}

PF_INLINE void pf_row_sigmoid_$N($F* x, int n) {
#if defined(__AVX512DQ__) && !defined(__clang__)
  typedef $F W __attribute__((vector_size(64), aligned(sizeof($F)), may_alias));
  const pf_lanes_$N high = 40.0$L + (pf_lanes_$N){};
  for (int k = 0; k < n; k += 64 / (int)sizeof($F)) {
    const pf_lanes_$N v = *(const W*)(x + k);
    const pf_lanes_$N e = pf_exp_lanes_$N(__builtin_ia32_min${S}512_mask(high, v, v, -1, 4));
    *(W*)(x + k) = e / (1.0$L + e);
  }
#else
  for (int k = 0; k < n; ++k) x[k] = pf_sigmoid_$N(x[k]);
#endif
}

// log(x) as pf_log_$N has it, bit for bit: the machine takes subnormal numbers apart as well, makes NaN of what is
// negative, and the exponents of 0 and inf are the logarithms. In double precision compilers do as well.
PF_INLINE void pf_row_log_$N($F* x, int n) {
#if defined(__AVX512DQ__) && !defined(__clang__) && $MANT == 23
  typedef float V __attribute__((vector_size(64)));
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  for (int k = 0; k < n; k += 16) {
    const V v = *(const W*)(x + k);
    const V e = __builtin_ia32_getexpps512_mask(v, v, -1, 4), m = __builtin_ia32_getmantps512_mask(v, 8, v, -1, 4);
    const auto low = m < 0x1.555556p0f;
    *(W*)(x + k) = pf_log_sum_f32(low ? e : e + 1.0f, (low ? m : 0.5f * m) - 1.0f);
  }
#else
  for (int k = 0; k < n; ++k) x[k] = pf_log_$N(x[k]);
#endif
}

// a where the sign of m is set, else b, without a branch, which a compiler makes of a choice between numbers.
PF_INLINE $F pf_choose_$N($F m, $F a, $F b) {
#if defined(__AVX__)
  $F r;
  __asm__("vblendv${S} %3, %2, %1, %0" : "=x"(r) : "x"(b), "x"(a), "x"(m));
  return r;
#else
  return m < 0 ? a : b;
#endif
}

// The extremes of `vector_math_float.h`, whose care for NaN is no branch either.
PF_INLINE $F pf_waiting_max_$N($F a, $F b) {
#if defined(__AVX__)
  $F m;
  __asm__("vcmpunord${S} %1, %1, %0" : "=x"(m) : "x"(a));
  return pf_choose_$N(m, a, a > b ? a : b);
#else
  return pf_max_$N(a, b);
#endif
}

PF_INLINE $F pf_waiting_min_$N($F a, $F b) {
#if defined(__AVX__)
  $F m;
  __asm__("vcmpunord${S} %1, %1, %0" : "=x"(m) : "x"(a));
  return pf_choose_$N(m, a, a < b ? a : b);
#else
  return pf_min_$N(a, b);
#endif
}

// x^y with one y for all lanes, as exact as pf_pow_$N: powers that are a few operations are, in double precision where
// these round more than once. A function apart, so that loops hold none of its ways.
#define PF_APART static __attribute__((noinline, unused))
PF_APART void pf_row_pow_$N($F* x, int n, $F y) {
  const double inf = __builtin_inf();
  n &= -16;
  if (y == 2.0$L) {
    for (int k = 0; k < n; ++k) x[k] = x[k] * x[k];
  } else if (y == 1.0$L) {
  } else if (y == 0.5$L) {
    const $F end = __builtin_inf$B();
    for (int k = 0; k < n; ++k) x[k] = x[k] == -end ? end : pf_sqrt_$N(x[k]) + 0.0$L;
  } else if (y == -1.0$L) {
    for (int k = 0; k < n; ++k) x[k] = 1.0$L / x[k];
  } else if (y == 0.0$L) {
    for (int k = 0; k < n; ++k) x[k] = 1.0$L;
  } else if (y == 3.0$L) {
    for (int k = 0; k < n; ++k) x[k] = ($F)((double)x[k] * x[k] * x[k]);
  } else if (y == 1.5$L) {
    for (int k = 0; k < n; ++k) {
      double v = x[k], root = v == -inf ? inf : __builtin_sqrt(v) + 0.0;
      x[k] = ($F)(__builtin_fabs(v) * root);
    }
  } else if (y == -0.5$L) {
    for (int k = 0; k < n; ++k) {
      double v = x[k], root = v == -inf ? inf : __builtin_sqrt(v) + 0.0;
      x[k] = ($F)(1.0 / root);
    }
#if $MANT == 23
  } else if (y > 0.0f && y <= 6.0f) {
    for (int k = 0; k < n; ++k) x[k] = pf_pow_near_f32(x[k], y, __builtin_fabsf(x[k]));
  } else if (y < 0.0f && y >= -6.0f) {
    for (int k = 0; k < n; ++k) x[k] = pf_pow_near_f32(x[k], y, 1.0f / __builtin_fabsf(x[k]));
#endif
  } else {
    for (int k = 0; k < n; ++k) x[k] = pf_pow_$N(x[k], y);
  }
}
