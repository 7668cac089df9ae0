// Functions of f32 by approximate instructions (`ir.ops.Form`): straight-line code, few instructions, denormals are 0.
// docs/explanation/gpu_functions.md has their errors, and why.

PF_INLINE float pf_fast_reciprocal_f32(float x) { return pf_rcp_f32(x); }

// The product with log2(e) is off by 2^-18 for the largest results: by 4.1e-6 of them.
PF_INLINE float pf_short_exp_f32(float x) { return pf_ex2_f32(x * 0x1.715476p+0f); }

// Far to the left the power is infinite and the result 0.
// What the rounded product leaves, corrects the power. Above 88 it would be infinite, and the correction NaN.
PF_INLINE float pf_fast_exp_f32(float x) {
  const float c = pf_max_f32(x, -104.0f), t = c * 0x1.715476p+0f, e = pf_ex2_f32(t);
  return fmaf(e, fmaf(t, -0x1.62e43p-1f, c), e);
}

PF_INLINE float pf_short_sigmoid_f32(float x) { return pf_rcp_f32(1.0f + pf_ex2_f32(x * -0x1.715476p+0f)); }

PF_INLINE float pf_near_sigmoid_f32(float x) { return pf_short_sigmoid_f32(x); }

PF_INLINE float pf_fast_sigmoid_f32(float x) { return pf_rcp_f32(1.0f + pf_exp_f32(-x)); }

PF_INLINE float pf_near_log_f32(float x) { return pf_lg2_f32(x) * 0x1.62e43p-1f; }

// Of k x; k is a constant, and so are its products.
PF_INLINE float pf_scaled_near_tanh_f32(float x, float k) {
  return fmaf(-2.0f, pf_rcp_f32(1.0f + pf_ex2_f32(x * (k * 0x1.715476p+1f))), 1.0f);
}

PF_INLINE float pf_near_tanh_f32(float x) { return pf_scaled_near_tanh_f32(x, 1.0f); }

// erfc(a) = 2^(a p(a)) for a >= 0, within 1.9e-8; the power falls to 0, where erf is 1. Of k x, as above.
PF_INLINE float pf_scaled_near_erf_f32(float x, float k) {
  const float a = fabsf(x), b = fabsf(k), b2 = b * b, b4 = b2 * b2;
  float p = fmaf(b4 * b4 * -4.742631242266297e-05f, a, b4 * (b2 * b) * 4.626250459633037e-04f);
  p = fmaf(p, a, b4 * b2 * -1.5453843335982128e-03f);
  p = fmaf(p, a, b4 * b * -6.823338658158097e-04f);
  p = fmaf(p, a, b4 * 2.8172252548453385e-02f);
  p = fmaf(p, a, b2 * b * -1.4844432795189919e-01f);
  p = fmaf(p, a, b2 * -9.184241726018256e-01f);
  p = fmaf(p, a, b * -1.627908089967601e+00f);
  return copysignf(1.0f - pf_ex2_f32(p * a), k < 0.0f ? -x : x);
}

PF_INLINE float pf_near_erf_f32(float x) { return pf_scaled_near_erf_f32(x, 1.0f); }

// erfc(a) = e t q(t) for a = |k x| >= 0 and e = exp(-a^2), where t = 1 / (1 + 0.468 a); within 1.2e-7.
PF_INLINE float pf_joint_erf_f32(float x, float k, float e) {
  const float t = pf_rcp_f32(fmaf(fabsf(k) * 0.468f, fabsf(x), 1.0f));
  float q = fmaf(-0.22057762686257973f, t, 0.749141912975487f);
  q = fmaf(q, t, -0.18111604491456165f);
  q = fmaf(q, t, 0.40815990642490585f);
  q = fmaf(q, t, 0.24439173273193168f);
  return copysignf(fmaf(q * t, -e, 1.0f), k < 0.0f ? -x : x);
}
