// Single instructions that mean what the portable text of the same name means. The first word of each comment
// is the architecture that has the instruction, as __CUDA_ARCH__ says it.

// 800
PF_INLINE float pf_min_f32(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// 800
PF_INLINE float pf_max_f32(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// 700
PF_INLINE float pf_f32_from_f16(pf_f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}

// 700
PF_INLINE pf_f16 pf_f16_from_f32(float x) {
  pf_f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

// 800
PF_INLINE pf_bf16 pf_bf16_from_f32(float x) {
  pf_bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

// 800
PF_INLINE float pf_bf16_rounded_f32(float x) {
  pf_u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(0.0f));
  return pf_from_bits_f32(r);
}

// 700
PF_INLINE void pf_atomic_sum_f16(pf_f16* address, pf_f16 value) {
  asm volatile("red.relaxed.gpu.add.noftz.f16 [%0], %1;" : : "l"(address), "h"(value) : "memory");
}

// 900
PF_INLINE void pf_atomic_sum_bf16(pf_bf16* address, pf_bf16 value) {
  asm volatile("red.relaxed.gpu.add.noftz.bf16 [%0], %1;" : : "l"(address), "h"(value) : "memory");
}

// 700
PF_INLINE float pf_ex2_f32(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 700
PF_INLINE float pf_lg2_f32(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 700
PF_INLINE float pf_rcp_f32(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 700
PF_INLINE float pf_alike_div_f32(float a, float b) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b));
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(r));
  return r;
}

// 700
PF_INLINE float pf_fast_sqrt_f32(float x) {
  float r;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 700
PF_INLINE float pf_fast_rsqrt_f32(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 700
PF_INLINE float pf_fast_div_f32(float x, float y) {
  float r;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
