// Functions of f32 for results that are rounded to 16 bits: within 2^-16 of the value.

// 2^r on |r| <= 1/2 within 2^-18, 1 at 0.
template <typename V>
PF_INLINE V pf_short_power_f32(V r) {
  V p = 0.00978291221f * r + 0.0559768826f;
  p = p * r + 0.240207106f;
  p = p * r + 0.693113625f;
  return p * r + 1.0f;
}

// x / ln2 is rounded, which costs 2^-17.5 of the value at the ends of the range. Scaling as in pf_exp_f32.
PF_LIMIT float pf_short_low_f32 = -104.0f, pf_short_high_f32 = 89.0f;
PF_INLINE float pf_short_exp_f32(float x) {
  const float low = pf_short_low_f32, high = pf_short_high_f32;
  float c = x < low ? low : x;
  c = c > high ? high : c;
  float t = c * 1.44269504f, n = pf_round_f32(t);
  float p = pf_short_power_f32(t - n);
  unsigned b = pf_bits_f32(n + 12583166.0f), half = b >> 1;
  return p * pf_from_bits_f32(half << 23) * pf_from_bits_f32((b - half) << 23);
}

PF_LIMIT float pf_short_sigmoid_high_f32 = 40.0f;
PF_INLINE float pf_short_sigmoid_f32(float x) {
  const float high = pf_short_sigmoid_high_f32;
  float e = pf_short_exp_f32(x > high ? high : x);
  return e / (1.0f + e);
}

// The bits of pf_short_exp_f32. The machine takes t less the nearest integer (0 for infinities), and scales.
#if defined(__AVX512DQ__) && !defined(__clang__)
typedef float pf_short_lanes_f32 __attribute__((vector_size(64)));
PF_INLINE pf_short_lanes_f32 pf_short_lanes_exp_f32(pf_short_lanes_f32 x) {
  const pf_short_lanes_f32 t = x * 1.44269504f;
  const pf_short_lanes_f32 r = __builtin_ia32_reduceps512_mask(t, 0, t, -1);
  const pf_short_lanes_f32 p = pf_short_power_f32(r);
  return __builtin_ia32_scalefps512_mask(p, t - r, p, -1, 4);
}
#endif

PF_INLINE void pf_row_short_exp_f32(float* x, int n) {
#if defined(__AVX512DQ__) && !defined(__clang__)
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  for (int k = 0; k < n; k += 16) *(W*)(x + k) = pf_short_lanes_exp_f32(*(const W*)(x + k));
#else
  for (int k = 0; k < n; ++k) x[k] = pf_short_exp_f32(x[k]);
#endif
}

PF_INLINE void pf_row_short_sigmoid_f32(float* x, int n) {
#if defined(__AVX512DQ__) && !defined(__clang__)
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  const pf_short_lanes_f32 high = 40.0f + (pf_short_lanes_f32){};
  for (int k = 0; k < n; k += 16) {
    const pf_short_lanes_f32 v = *(const W*)(x + k);
    const pf_short_lanes_f32 e = pf_short_lanes_exp_f32(__builtin_ia32_minps512_mask(high, v, v, -1, 4));
    *(W*)(x + k) = e / (1.0f + e);
  }
#else
  for (int k = 0; k < n; ++k) x[k] = pf_short_sigmoid_f32(x[k]);
#endif
}
