// Single precision. Polynomials are minimax fits of relative error on the reduced range.

// (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2.
template <typename V>
PF_INLINE V pf_expm1_tail_f32(V r) {
  V p = 0.00138400914f * r + 0.00836705137f;
  p = p * r + 0.0416677408f;
  p = p * r + 0.16666539f;
  return p * r + 0.49999997f;
}

// c tanh(k x) = x P(x^2) / Q(x^2), a minimax fit of tanh up to where it rounds to 1; see erf.
PF_LIMIT float pf_tanh_last_f32 = 81.36f, pf_tanh_high_f32 = 1.0f, pf_tanh_low_f32 = -1.0f;
PF_INLINE float pf_scaled_tanh_f32(float x, double k, double c) {
  const double w = k * k, u = c * k, size = c < 0 ? -c : c;
  const float last = pf_tanh_last_f32 * (float)(1.0 / w);
  const float high = pf_tanh_high_f32 * (float)size, low = pf_tanh_low_f32 * (float)size;
  float z = x * x;
  z = z > last ? last : z;
  float p = (float)(1.33193634e-08 * (u * w * w * w * w));
  p = p * z + (float)(2.05837077e-05 * (u * w * w * w));
  p = p * z + (float)(0.00349404966 * (u * w * w));
  p = p * z + (float)(0.133797303 * (u * w));
  p = p * z + (float)(0.99999994 * u);
  float q = (float)(7.7621371e-07 * (w * w * w * w));
  q = q * z + (float)(0.000328311638 * (w * w * w));
  q = q * z + (float)(0.0258711334 * (w * w));
  q = q * z + (float)(0.467130393 * w);
  q = q * z + 1.0f;
  float r = x * p / q;
  r = r > high ? high : r;
  return r < low ? low : r;
}

PF_INLINE float pf_tanh_f32(float x) { return pf_scaled_tanh_f32(x, 1.0, 1.0); }

// c erf(k x) = x P(x^2) / Q(x^2) for constants c and k, which the compiler multiplies the coefficients by: a minimax
// fit of erf up to where it rounds to 1. Half the instructions of what is done in double precision; all terms
// are positive, so nothing cancels.
PF_LIMIT float pf_erf_last_f32 = 15.40562f, pf_erf_high_f32 = 1.0f, pf_erf_low_f32 = -1.0f;
PF_INLINE float pf_scaled_erf_f32(float x, double k, double c) {
  const double w = k * k, u = c * k, size = c < 0 ? -c : c;
  const float last = pf_erf_last_f32 * (float)(1.0 / w);
  const float high = pf_erf_high_f32 * (float)size, low = pf_erf_low_f32 * (float)size;
  float z = x * x;
  z = z > last ? last : z;
  float p = (float)(2.04595995e-06 * (u * w * w * w * w * w));
  p = p * z + (float)(0.000284836249 * (u * w * w * w * w));
  p = p * z + (float)(0.0037724867 * (u * w * w * w));
  p = p * z + (float)(0.0527690984 * (u * w * w));
  p = p * z + (float)(0.190592974 * (u * w));
  p = p * z + (float)(1.12837911 * u);
  float q = (float)(3.80466772e-05 * (w * w * w * w * w));
  q = q * z + (float)(0.0011638311 * (w * w * w * w));
  q = q * z + (float)(0.0149830813 * (w * w * w));
  q = q * z + (float)(0.114182323 * (w * w));
  q = q * z + (float)(0.502241313 * w);
  q = q * z + 1.0f;
  float r = x * p / q;
  r = r > high ? high : r;
  return r < low ? low : r;
}

PF_INLINE float pf_erf_f32(float x) { return pf_scaled_erf_f32(x, 1.0, 1.0); }

// k log(2) + log(1 + f) with 1 + f in [2/3, 4/3): log(1 + f) = f + f^2 (f P(f) - 1/2). No sum is of two products, of
// which a compiler might fuse either one.
template <typename V>
PF_INLINE V pf_log_sum_f32(V k, V f) {
  V z = f * f;
  V p = -0.128932387f * f + 0.139901564f;
  p = p * f + -0.121839531f;
  p = p * f + 0.140048072f;
  p = p * f + -0.166805059f;
  p = p * f + 0.200104639f;
  p = p * f + -0.249997973f;
  p = p * f + 0.333332151f;
  p = p * f - 0.5f;
  return k * 0.693145752f + (k * 1.42860682e-06f + (p * z + f));
}

// x = 2^k (1 + f).
PF_INLINE float pf_log_f32(float x) {
  bool tiny = x < 0x1p-126f;
  unsigned d = pf_bits_f32(tiny ? x * 0x1p25f : x) - 0x3f2aaaabu;
  float k = (float)((int)d >> 23) - (tiny ? 25.0f : 0.0f);
  float f = pf_from_bits_f32((d & 0x7fffffu) + 0x3f2aaaabu) - 1.0f;
  float r = pf_log_sum_f32(k, f);
  r = x < __builtin_inff() ? r : x;
  float v = x * __builtin_inff();
  return x > 0.0f ? r : x == 0.0f ? x - __builtin_inff() : v - v;
}

// log2(a) of a finite positive float, in double precision: that of the mantissa is an odd series in f/(2+f).
PF_INLINE double pf_pow_log_f32(double a) {
  unsigned long long d = pf_bits_f64(a) - 0x3fe6a09e667f3bcdull;
  unsigned long long low = d & 0xfffffffffffffull;
  // The exponent, signed, as a double: no instruction for this below AVX-512.
  double k = pf_from_bits_f64(((d + (1023ull << 52)) >> 52) | 0x4330000000000000ull) - 0x1.00000000003ffp52;
  double f = pf_from_bits_f64(low + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = f / (f + 2.0), z = s * s;
  double p = 0x1.5ce8505fc99fcp-2;
  p = p * z + 0x1.a58d8904c3315p-2;
  p = p * z + 0x1.27777fe7accaap-1;
  p = p * z + 0x1.ec709d12d2436p-1;
  p = p * z + 0x1.71547652bedf0p+1;
  return k + s * p;
}

// 2^t for |t| < 1000, with one rounding to float at the end, so even subnormal results are right.
PF_INLINE float pf_pow_exp_f32(double t) {
  double shifted = t + 0x1.80000000003ffp52;
  double r = t - (shifted - 0x1.80000000003ffp52);
  double e = 0x1.41d0b5193ce29p-13;
  e = e * r + 0x1.5f4736ccbdd0fp-10;
  e = e * r + 0x1.3b2dc3952398bp-7;
  e = e * r + 0x1.c6aed12b928efp-5;
  e = e * r + 0x1.ebfbdacad7636p-3;
  e = e * r + 0x1.62e430ca83930p-1;
  e = e * r + 0x1.000000026c087p+0;
  return (float)(e * pf_from_bits_f64(pf_bits_f64(shifted) << 52));
}

// |x|^y for 0 < |y| <= 6, where nothing but 0, inf and NaN is special: these, or what they become, wait in `ends` for
// no chain.
PF_INLINE float pf_pow_near_f32(float x, float y, float ends) {
  float b = __builtin_fabsf(x), m = pf_pow_exp_f32(pf_pow_log_f32(b) * y);
  return pf_pow_sign_f32((b > 0.0f) & (b < __builtin_inff()) ? m : ends, x, y);
}

// |x|^y = 2^(y log2|x|) in double precision.
PF_LIMIT double pf_pow_low_f32 = -200.0, pf_pow_high_f32 = 200.0;
PF_INLINE float pf_pow_f32(float x, float y) {
  const double low = pf_pow_low_f32, high = pf_pow_high_f32;
  double a = __builtin_fabs((double)x), yd = y, inf = __builtin_inf();
  if (__builtin_constant_p(y) && y != 0.0f && y <= 6.0f && y >= -6.0f) {
    float b = __builtin_fabsf(x);
    return pf_pow_near_f32(x, y, y > 0.0f ? b : 1.0f / b);
  }
  double l = pf_pow_log_f32(a);
  l = a < inf ? l : a;
  l = a == 0 ? a - inf : l;
  double t = (l == 0 ? l : yd) * pf_from_bits_f64(pf_bits_f64(l) & (yd == 0 ? 0 : ~0ull));
  t = t < low ? low : t;
  t = t > high ? high : t;
  return pf_pow_sign_f32(pf_pow_exp_f32(t), x, y);
}

// sin(|x| + shift * pi/2). The reduction runs in double precision and holds for every float: from
// 2^46 on, a power of two moves from x, which stays an integer, into 2/pi, whose multiples of 4
// (whole turns) drop out.
PF_INLINE float pf_sin_shifted_f32(float x, unsigned shift) {
  double a = __builtin_fabs((double)x), hi = 0x1.45f306dc9c883p-1, lo = -0x1.6b01ec5417056p-55, scale = 1.0;
  bool by23 = a >= 0x1p46, by46 = a >= 0x1p69, by69 = a >= 0x1p92, by92 = a >= 0x1p115;
  hi = by23 ? 0x1.b727220a94fe1p+0 : hi;
  lo = by23 ? 0x1.d5f47d4d37703p-55 : lo;
  scale = by23 ? 0x1p-23 : scale;
  hi = by46 ? 0x1.054a7f09d5f48p+0 : hi;
  lo = by46 ? -0x1.596447e493ad5p-55 : lo;
  scale = by46 ? 0x1p-46 : scale;
  hi = by69 ? -0x1.ec54170565912p-2 : hi;
  lo = by69 ? 0x1.b6c52b3278872p-60 : lo;
  scale = by69 ? 0x1p-69 : scale;
  hi = by92 ? 0x1.1f534ddc0db63p+0 : hi;
  lo = by92 ? -0x1.a99b0ef1bef80p-54 : lo;
  scale = by92 ? 0x1p-92 : scale;
  a = a * scale;
  double t = a * hi + 0x1.8p52;
  double n = t - 0x1.8p52;
  float r = (float)((pf_fma_f64(a, hi, -n) + a * lo) * 0x1.921fb54442d18p+0);
  unsigned q = (unsigned)pf_bits_f64(t) + shift;
  float z = r * r;
  float s = r + r * z * ((-0.00019518286f * z + 0.00833218917f) * z + -0.166666552f);
  float c = (2.44323273e-05f * z + -0.00138873095f) * z + 0.0416666456f;
  c = (1.0f - 0.5f * z) + z * z * c;
  float v = q & 1 ? c : s;
  return pf_from_bits_f32(pf_bits_f32(v) ^ ((q & 2) << 30));
}

// The exponent of a number's bits, as pf_log_f32 moves them.
PF_INLINE float pf_exponent_f32(unsigned d) { return (float)((int)d >> 23); }

// In double precision.
PF_INLINE float pf_log2_f32(float x) {
  float r = (float)pf_pow_log_f32((double)x), v = x * __builtin_inff();
  r = x < __builtin_inff() ? r : x;
  return x > 0.0f ? r : x == 0.0f ? x - __builtin_inff() : v - v;
}

// In double precision, where nothing overflows. An infinity beside NaN is one.
PF_INLINE float pf_hypot_f32(float x, float y) {
  double a = x, b = y;
  float r = (float)__builtin_sqrt(a * a + b * b), p = __builtin_fabsf(x), q = __builtin_fabsf(y);
  return p > 0x1.fffffep127f ? p : q > 0x1.fffffep127f ? q : r;
}

// exp(-a^2), with what the rounded square has lost, times a factor that is nearly constant, in double precision.
PF_LIMIT float pf_erfc_far_f32 = 10.25f;
PF_INLINE float pf_erfc_f32(float x) {
  const float far = pf_erfc_far_f32;
  float a = __builtin_fabsf(x);
  a = a > far ? far : a;
  double d = a, s = d * d;
  float t = (float)s, e = pf_exp_below_f32(-t);
  double g = pf_erfc_short_f64((d - 3.0) / (d + 3.0)) / (1.0 + 2.0 * d);
  float r = (float)(e * (g - g * (s - t)));
  return x < 0.0f ? 2.0f - r : r;
}
