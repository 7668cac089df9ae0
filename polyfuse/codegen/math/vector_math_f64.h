// Double precision. Polynomials are minimax fits of relative error on the reduced range.

// a * b + c with one rounding, also where the machine has no such instruction (Dekker's product;
// |a|, |b| < 2^990 there). Only for the places where the one rounding matters.
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMA)
PF_INLINE double pf_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
PF_INLINE double pf_fma_f64(double a, double b, double c) {
  double p = a * b, ta = a * 0x1.0000002p27, tb = b * 0x1.0000002p27;
  double ah = ta - (ta - a), al = a - ah, bh = tb - (tb - b), bl = b - bh;
  double e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
  double s = p + c, v = s - p;
  return s + (((p - (s - v)) + (c - v)) + e);
}
#endif

// (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2.
template <typename V>
PF_INLINE V pf_expm1_tail_f64(V r) {
  V p = 0x1.ae7d718a686aap-26 * r + 0x1.28a475309e0b5p-22;
  p = p * r + 0x1.71de8090e515cp-19;
  p = p * r + 0x1.a019a4f2c0443p-16;
  p = p * r + 0x1.a01a0176dc9edp-13;
  p = p * r + 0x1.6c16c17fa435ap-10;
  p = p * r + 0x1.1111111118e69p-7;
  p = p * r + 0x1.5555555551fdep-5;
  p = p * r + 0x1.5555555555539p-3;
  return p * r + 0x1.0000000000005p-1;
}

// exp(x) - 1 with a small relative error around 0; for callers that keep |x| < 64.
PF_INLINE double pf_expm1_small_f64(double x) {
  double t = x * 0x1.71547652b82fep+0 + 0x1.80000000003ffp52;
  double n = t - 0x1.80000000003ffp52;
  double r = (x - n * 0x1.62e42fefa4000p-1) - n * -0x1.8432a1b0e2634p-43;
  double p = r + r * r * pf_expm1_tail_f64(r);
  double s = pf_from_bits_f64(pf_bits_f64(t) << 52);
  return s * p + (s - 1.0);
}

// tanh(a) = (e^2a - 1) / (e^2a + 1); beyond the cap it rounds to 1.
PF_LIMIT double pf_tanh_cap_f64 = 20.0;
PF_INLINE double pf_tanh_f64(double x) {
  const double cap = pf_tanh_cap_f64;
  double a = __builtin_fabs(x);
  a = a > cap ? cap : a;
  double e = pf_expm1_small_f64(a + a);
  return __builtin_copysign(e / (e + 2.0), x);
}

// -log(erfc(a)) / a on [0, 6]; even and odd terms apart, as one chain of 24 would wait for itself.
PF_INLINE double pf_erf_poly_f64(double a) {
  double z = a * a;
  double e = 0x1.6ca84dc3229ecp-43;
  e = e * z + 0x1.7b70ba3e9e74ep-35;
  e = e * z + 0x1.455a87cd2ac4bp-29;
  e = e * z + 0x1.2a2717bad80fep-25;
  e = e * z + -0x1.73ef852094b3bp-27;
  e = e * z + -0x1.11162d6243967p-19;
  e = e * z + 0x1.a9d194d138331p-19;
  e = e * z + 0x1.0e3453a2f10fcp-14;
  e = e * z + -0x1.3566358438831p-11;
  e = e * z + -0x1.b6b6a0d302756p-13;
  e = e * z + 0x1.a4f4e2a1aa729p-4;
  e = e * z + 0x1.20dd750429b6dp+0;
  double o = -0x1.03934de65bef9p-48;
  o = o * z + -0x1.dacf9ac8d7178p-39;
  o = o * z + -0x1.9ea5f2747d9c3p-32;
  o = o * z + -0x1.734cdbe87e140p-27;
  o = o * z + -0x1.1bec1cf4eae43p-24;
  o = o * z + 0x1.31750e7602d5fp-21;
  o = o * z + 0x1.a416ac32c5913p-19;
  o = o * z + -0x1.f03bf4a39b3cfp-16;
  o = o * z + 0x1.b2988ce8f240cp-16;
  o = o * z + 0x1.bca6911fd7ee5p-10;
  o = o * z + -0x1.39668590c0158p-6;
  o = o * z + 0x1.45f306dc9c8cfp-1;
  return o * a + e;
}

// erf(a) = 1 - exp(-a P(a)) with P(a) = -log(erfc(a)) / a, which is smooth: one polynomial for the
// whole line, and the exponential damps its error where a is large.
PF_LIMIT double pf_erf_cap_f64 = 6.0;
PF_INLINE double pf_erf_f64(double x) {
  const double cap = pf_erf_cap_f64;
  double a = __builtin_fabs(x);
  a = a > cap ? cap : a;
  double e = pf_expm1_small_f64(-(a * pf_erf_poly_f64(a)));
  return __builtin_copysign(e, x);
}

// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); with s = f/(2+f),
// log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)).
PF_INLINE double pf_log_f64(double x) {
  bool tiny = x < 0x1p-1022;
  unsigned long long d = pf_bits_f64(tiny ? x * 0x1p54 : x) - 0x3fe6a09e667f3bcdull;
  // The exponent, signed, as a double: no instruction for this below AVX-512.
  double k = pf_from_bits_f64(((d + (1023ull << 52)) >> 52) | 0x4330000000000000ull) - 0x1.00000000003ffp52;
  k = k - (tiny ? 54.0 : 0.0);
  double f = pf_from_bits_f64((d & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = f / (f + 2.0), z = s * s, h = 0.5 * f * f;
  double p = 0x1.2f02d0ac22201p-3;
  p = p * z + 0x1.39a200462b98ep-3;
  p = p * z + 0x1.74663c06124c1p-3;
  p = p * z + 0x1.c71c521887548p-3;
  p = p * z + 0x1.24924941dcc20p-2;
  p = p * z + 0x1.999999997ff53p-2;
  p = p * z + 0x1.5555555555592p-1;
  double r = k * 0x1.62e42fefa4000p-1 - ((h - (s * (h + z * p) + k * -0x1.8432a1b0e2634p-43)) - f);
  r = x < __builtin_inf() ? r : x;
  double v = x * __builtin_inf();
  return x > 0.0 ? r : x == 0.0 ? x - __builtin_inf() : v - v;
}

// |x|^y = exp(y log|x|) with the logarithm and the product as sums of two doubles: y log|x| reaches
// 745, so ten bits more than a double are needed for a full result. *_l is the small part.
PF_LIMIT double pf_pow_low_f64 = -800.0, pf_pow_high_f64 = 800.0;
PF_INLINE double pf_pow_f64(double x, double y) {
  const double low = pf_pow_low_f64, high = pf_pow_high_f64;
  double a = __builtin_fabs(x), inf = __builtin_inf();
  bool tiny = a < 0x1p-1022;
  unsigned long long d = pf_bits_f64(tiny ? a * 0x1p54 : a) - 0x3fe6a09e667f3bcdull;
  double k = pf_from_bits_f64(((d + (1023ull << 52)) >> 52) | 0x4330000000000000ull) - 0x1.00000000003ffp52;
  k = k - (tiny ? 54.0 : 0.0);
  double f = pf_from_bits_f64((d & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  // s = f / (2 + f)
  double u = f + 2.0, u_l = f - (u - 2.0), s = f / u;
  double s_l = (pf_fma_f64(-s, u, f) - s * u_l) / u;
  // z = s^2, c = 2/3 + q
  double z = s * s, z_l = pf_fma_f64(s, s, -z) + 2.0 * s * s_l;
  double p = 0x1.0e4111b076a76p-3;
  p = p * z + 0x1.0f801855f3480p-3;
  p = p * z + 0x1.3b1ee9ebef8b9p-3;
  p = p * z + 0x1.745ce9efd2c4ap-3;
  p = p * z + 0x1.c71c722d3fd44p-3;
  p = p * z + 0x1.2492492457f2fp-2;
  p = p * z + 0x1.9999999999b2fp-2;
  double q = p * z;
  double c = 0x1.5555555555555p-1 + q, c_l = (0x1.5555555555555p-1 - c) + q + 0x1.5555555555555p-55;
  // w = s z c, log(1 + f) = 2 s + w
  double g = z * c, g_l = pf_fma_f64(z, c, -g) + (z * c_l + z_l * c);
  double w = s * g, w_l = pf_fma_f64(s, g, -w) + (s * g_l + s_l * g);
  double m = 2.0 * s + w, m_l = (2.0 * s - m) + w + (w_l + 2.0 * s_l);
  // l = k ln2 + log(1 + f)
  double e = k * 0x1.62e42fefa4000p-1;
  double l = e + m, l_l = ((e - l) + m) + (m_l + k * -0x1.8432a1b0e2634p-43);
  l = a < inf ? l : a;
  l = a == 0 ? a - inf : l;
  double yl = l == 0 ? l : y;
  l = pf_from_bits_f64(pf_bits_f64(l) & (y == 0 ? 0 : ~0ull));
  double t = yl * l, t_l = pf_fma_f64(yl, l, -t) + yl * l_l;
  t_l = __builtin_fabs(t) < 800.0 ? t_l : 0.0;
  t = t < low ? low : t;
  t = t > high ? high : t;
  double v = t * 0x1.71547652b82fep+0 + 0x1.80000000007fep52;
  double n = v - 0x1.80000000007fep52;
  double r = ((t - n * 0x1.62e42fefa4000p-1) - n * -0x1.8432a1b0e2634p-43) + t_l;
  double h = 1.0 + (r + r * r * pf_expm1_tail_f64(r));
  unsigned long long b = pf_bits_f64(v), half = b >> 1;
  h = h * pf_from_bits_f64(half << 52) * pf_from_bits_f64((b - half) << 52);
  return pf_pow_sign_f64(h, x, y);
}

// sin(|x| + shift * pi/2) by a three-part reduction modulo pi/2 (160 bits of it): full accuracy for
// |x| < 2^45, fading up to 2^50. Beyond, where x knows no angle to speak of, x counts as 0.
PF_INLINE double pf_sin_shifted_f64(double x, unsigned shift) {
  double a = __builtin_fabs(x);
  a = (a >= 0x1p50) & (a < __builtin_inf()) ? 0.0 : a;
  double t = a * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  double n = t - 0x1.8p52;
  double d = pf_fma_f64(-n, 0x1.921fb54442d18p+0, a);  // exact
  double w = n * 0x1.1a62633145c07p-54;
  double w_l = pf_fma_f64(n, 0x1.1a62633145c07p-54, -w) + n * -0x1.f1976b7ed8fbcp-110;
  double r = d - w, v = r - d;
  double l = ((d - (r - v)) - (w + v)) - w_l;
  unsigned long long q = pf_bits_f64(t) + shift;
  double z = r * r;
  double s = 0x1.5d8b74396333bp-33;
  s = s * z + -0x1.ae5e4bd4d6f57p-26;
  s = s * z + 0x1.71de35557742ap-19;
  s = s * z + -0x1.a01a019be95ccp-13;
  s = s * z + 0x1.111111110f731p-7;
  s = s * z + -0x1.5555555555548p-3;
  double c = -0x1.8fa66ccccbf6ap-37;
  c = c * z + 0x1.1ee9dba7bc230p-29;
  c = c * z + -0x1.27e4f7f162b5bp-22;
  c = c * z + 0x1.a01a019c8ef6ep-16;
  c = c * z + -0x1.6c16c16c15014p-10;
  c = c * z + 0x1.555555555554bp-5;
  double h = 0.5 * z, one = 1.0 - h;
  s = r + (r * z * s + l * one);
  c = one + (((1.0 - one) - h) + (z * z * c - r * l));
  double y = q & 1 ? c : s;
  return pf_from_bits_f64(pf_bits_f64(y) ^ ((q & 2) << 62));
}

// x mod y for x, y >= 0 and q = floor(x / y) as rounded: off by one at most while q < 2^53, and then
// x - q y is exact in one rounding. An infinite y leaves x.
PF_INLINE double pf_remainder_f64(double x, double y, double q) {
  double r = pf_fma_f64(-q, y < __builtin_inf() ? y : 0.0, x);
  r = r < 0 ? r + y : r;
  double rest = y == 0 ? y * __builtin_inf() : (x - x) + (y - y);
  return (q < 0x1p53) & (r >= 0) & (r < y) ? r : rest;
}

// The exponent of a number's bits, as pf_log_f64 moves them: no instruction for this below AVX-512.
PF_INLINE double pf_exponent_f64(unsigned long long d) {
  return pf_from_bits_f64(((d + (1023ull << 52)) >> 52) | 0x4330000000000000ull) - 0x1.00000000003ffp52;
}

// k + log2(e) log(1 + f), as pf_log_f64 has them.
PF_INLINE double pf_log2_f64(double x) {
  bool tiny = x < 0x1p-1022;
  unsigned long long d = pf_bits_f64(tiny ? x * 0x1p54 : x) - 0x3fe6a09e667f3bcdull;
  double k = pf_exponent_f64(d) - (tiny ? 54.0 : 0.0);
  double f = pf_from_bits_f64((d & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = f / (f + 2.0), z = s * s, h = 0.5 * f * f;
  double p = 0x1.2f02d0ac22201p-3;
  p = p * z + 0x1.39a200462b98ep-3;
  p = p * z + 0x1.74663c06124c1p-3;
  p = p * z + 0x1.c71c521887548p-3;
  p = p * z + 0x1.24924941dcc20p-2;
  p = p * z + 0x1.999999997ff53p-2;
  p = p * z + 0x1.5555555555592p-1;
  double l = f - (h - s * (h + z * p));
  double r = k + (l * 0x1.71547652b82fep+0 + l * 0x1.777d0ffda0d24p-56);
  r = x < __builtin_inf() ? r : x;
  double v = x * __builtin_inf();
  return x > 0.0 ? r : x == 0.0 ? x - __builtin_inf() : v - v;
}

// Scaled by a power of two, where a square would overflow or be lost. An infinity beside NaN is one.
PF_INLINE double pf_hypot_f64(double x, double y) {
  double p = __builtin_fabs(x), q = __builtin_fabs(y);
  double most = p > q ? p : q, least = p > q ? q : p;
  double scale = most > 0x1p500 ? 0x1p-600 : most < 0x1p-450 ? 0x1p600 : 1.0;
  double back = most > 0x1p500 ? 0x1p600 : most < 0x1p-450 ? 0x1p-600 : 1.0;
  double a = most * scale, b = least * scale;
  double r = __builtin_sqrt(a * a + b * b) * back;
  return p > 0x1.fffffffffffffp1023 ? p : q > 0x1.fffffffffffffp1023 ? q : r;
}

// Near 0 one less erf; else exp(-a^2) times a factor that is nearly constant, then what the rounded square and 1 + 2a
// have lost.
PF_LIMIT double pf_erfc_far_f64 = 27.5;
PF_INLINE double pf_erfc_f64(double x) {
  const double far = pf_erfc_far_f64;
  double a = __builtin_fabs(x);
  a = a > far ? far : a;
  double s = a * a, e = pf_exp_below_f64(-s), u = 1.0 + 2.0 * a, d = u - 1.0;
  double u_l = (1.0 - (u - d)) + (2.0 * a - d);
  double g = pf_erfc_factor_f64((a - 4.0) / (a + 4.0)) / u;
  double r = g * e;
  r = r - r * (pf_fma_f64(a, a, -s) + u_l * g);
  r = x < 0.0 ? 2.0 - r : r;
  return a < 0.6 ? 1.0 - x * pf_erf_near_f64(a * a) : r;
}
