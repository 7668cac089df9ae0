// The logarithm of the gamma function and its derivative, in double precision for both types.

// Positive: a = y + n with y in [3/2, 5/2], of which a product goes up or down to a; from 8 on Stirling's series. Negative:
// Gamma(-a) Gamma(a) = -pi / (a sin(pi a)). All below -2^53 are integers, whose result is infinite.
PF_INLINE double pf_lgamma_f64(double x) {
  double a = __builtin_fabs(x < -0x1p53 ? -0x1p53 : x), m = pf_round_f64(a), s = a - m;
  bool far = a >= 8.0, first = m < 1.0, below = m < 2.0;
  double p = m > 2.5 ? a - 1.0 : 1.0;
  p = p * (m > 3.5 ? a - 2.0 : 1.0);
  p = p * (m > 4.5 ? a - 3.0 : 1.0);
  p = p * (m > 5.5 ? a - 4.0 : 1.0);
  p = p * (m > 6.5 ? a - 5.0 : 1.0);
  p = p * (m > 7.5 ? a - 6.0 : 1.0);
  double q = below ? (first ? a * (a + 1.0) : a) : p;
  double near = s * pf_lgamma_near_f64(s), l = pf_log_f64(far ? a : q), v = 1.0 / a;
  double large = (a - 0.5) * (l - 1.0) + (0x1.acfe390c97d69p-2 + v * pf_lgamma_far_f64(v * v));
  double r = far ? large : near + (below ? -l : l);
  // The sine over pi, with the products of both sides of the reflection.
  double sine = __builtin_fabs(s * pf_sinpi_f64(s * s)) * 0x1.45f306dc9c883p-2;
  double top = sine * (below ? 1.0 : far ? a : a * p), bottom = first ? a + 1.0 : 1.0;
  double back = -pf_log_f64(top / bottom) - (far ? large : near);
  return x < 0 ? back : r;
}

PF_INLINE float pf_lgamma_f32(float x) { return (float)pf_lgamma_f64((double)x); }

// Positive: y in [1, 2] and the sum of 1 / (a - k), as one quotient; from 10 on the asymptotic series. Negative:
// digamma(-a) = digamma(a) + 1 / a + pi cot(pi a). At 0 infinite, at the other poles NaN.
PF_INLINE double pf_digamma_f64(double x) {
  double a = __builtin_fabs(x), n = pf_floor_f64(a);
  bool far = a >= 10.0, first = n < 1.0;
  double y = first ? a + 1.0 : a - (n - 1.0);
  double s = (y - 0x1.762d86356be3fp+0) - 0x1.b86a722197829p-54;
  double top = first ? -1.0 : 1.0, bottom = first ? a : a - 1.0;
#define PF_NEXT(k)                                        \
  top = n > k + 0.5 ? top * (a - k) + bottom : top;       \
  bottom = n > k + 0.5 ? bottom * (a - k) : bottom;
  PF_NEXT(2.0) PF_NEXT(3.0) PF_NEXT(4.0) PF_NEXT(5.0) PF_NEXT(6.0) PF_NEXT(7.0) PF_NEXT(8.0)
#undef PF_NEXT
  double near = s * pf_digamma_near_f64(s), v = 1.0 / a, z = v * v;
  near = (n < 2.0) & (n > 0.5) ? near : near + top / bottom;
  double large = pf_log_f64(a) - (0.5 * v + z * pf_digamma_far_f64(z));
  double r = far ? large : near;
  double d = a - pf_round_f64(a), w = d * d;
  double cot = 0x1.921fb54442d18p+1 * pf_cospi_f64(w) / (d * pf_sinpi_f64(w));
  double back = (r + v) + (cot + (cot - cot));
  back = x < 0 ? back : r;
  return x == 0 ? -1.0 / x : back;
}

PF_INLINE float pf_digamma_f32(float x) { return (float)pf_digamma_f64((double)x); }
