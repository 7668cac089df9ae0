// What approximate instructions may give at worst: a value in double, off by as much as the PTX ISA says, up or down
// as the bits of an operand say. The emulator computes so; a GPU has the instructions (vector_math_cuda_ptx.h).

// Denormals are 0.
PF_INLINE float pf_flushed_f32(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

// The f32 that is furthest from v within `most`, above or below it.
PF_INLINE float pf_off_f32(double v, double most, float x) {
  const pf_u32 bits = pf_bits_f32(x) * 0x9e3779b9u;
  const double far = (bits ^ bits << 7) & 0x80000000u ? v + most : v - most;
  const float r = (float)far;
  const bool beyond = fabs((double)r - v) > most && fabs(v) < 0x1p128;
  return beyond ? pf_from_bits_f32(pf_bits_f32(r) + (fabs((double)r) > fabs(v) ? -1 : 1)) : r;
}

// The same for a part of v, so that infinities, zeros and NaN stay what they are.
PF_INLINE float pf_worst_f32(double v, double relative, float x) {
  return v - v == 0.0 && v != 0.0 ? pf_off_f32(v, fabs(v) * relative, x) : (float)v;
}

PF_INLINE float pf_ex2_f32(float x) { return pf_flushed_f32(pf_worst_f32(exp2((double)pf_flushed_f32(x)), 0x1p-22, x)); }

// Near 1 its error is absolute.
PF_INLINE float pf_lg2_f32(float x) {
  const double v = log2((double)pf_flushed_f32(x));
  return x > 0.5f && x < 2.0f ? pf_off_f32(v, 0x1p-22, x) : pf_worst_f32(v, 0x1p-22, x);
}

PF_INLINE float pf_rcp_f32(float x) { return pf_flushed_f32(pf_worst_f32(1.0 / pf_flushed_f32(x), 0x1p-23, x)); }

PF_INLINE float pf_alike_div_f32(float a, float b) { return a * pf_worst_f32(1.0 / b, 0x1p-23, b); }

PF_INLINE float pf_fast_sqrt_f32(float x) { return pf_worst_f32(sqrt((double)pf_flushed_f32(x)), 0x1p-23, x); }

PF_INLINE float pf_fast_rsqrt_f32(float x) { return pf_worst_f32(1.0 / sqrt((double)pf_flushed_f32(x)), 0x1.125p-23, x); }

PF_INLINE float pf_fast_div_f32(float a, float b) {
  const double q = (double)pf_flushed_f32(a) / pf_flushed_f32(b);
  return pf_flushed_f32(pf_worst_f32(q, 0x1p-22, a + b));
}
