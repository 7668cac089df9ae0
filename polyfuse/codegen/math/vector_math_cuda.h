// What a GPU does otherwise than the text for CPUs, in functions of one type.

PF_INLINE double pf_fma_f64(double a, double b, double c) { return fma(a, b, c); }

// Of a pair the upper half is the f32 of a number rounded: what converts one number is a slower instruction.
PF_INLINE float pf_bf16_rounded_f32(float x) { return pf_f32_from_bf16(pf_bf16_from_f32(x)); }

// Lanes of the warp that work together: the group of `width` neighbours that this one is in.
PF_INLINE pf_u32 pf_lanes(int width) {
  const pf_u32 lane = (threadIdx.x + threadIdx.y * blockDim.x) % 32u;
  return width == 32 ? 0xffffffffu : ((1u << width) - 1u) << (lane & (pf_u32)-width);
}
