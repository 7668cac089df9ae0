// Rows of f16 and bf16 to f32 and back, n a multiple of 16: by the machine's conversions of f16, which gcc 12 does
// not find itself. They take subnormal halves as they are in every mode, and round to nearest, ties to even.

PF_INLINE void pf_widen_f16(float* to, const pf_f16* from, int n) {
#if defined(__clang__) && defined(__F16C__)
  typedef float W __attribute__((vector_size(PF_VECTOR), aligned(4), may_alias));
  typedef _Float16 H __attribute__((vector_size(PF_VECTOR / 2), aligned(2), may_alias));
  for (int k = 0; k < n; k += PF_VECTOR / 4) *(W*)(to + k) = __builtin_convertvector(*(const H*)(from + k), W);
#elif defined(__AVX512F__)
  typedef float V __attribute__((vector_size(64)));
  typedef short G __attribute__((vector_size(32)));
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(32), aligned(2), may_alias));
  for (int k = 0; k < n; k += 16)
    *(W*)(to + k) = __builtin_ia32_vcvtph2ps512_mask((G) * (const H*)(from + k), (V){}, -1, 4);
#elif defined(__F16C__)
  typedef short G __attribute__((vector_size(16)));
  typedef float W __attribute__((vector_size(32), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(16), aligned(2), may_alias));
  for (int k = 0; k < n; k += 8) *(W*)(to + k) = __builtin_ia32_vcvtph2ps256((G) * (const H*)(from + k));
#else
  for (int k = 0; k < n; ++k) to[k] = pf_f32_from_f16(from[k]);
#endif
}

// One number; where vectors of them are wanted gcc 12 needs pf_f32_from_f16.
PF_INLINE float pf_wide_f16(pf_f16 x) {
#if defined(__F16C__) && !defined(__clang__)
  typedef short G __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps((G){(short)x})[0];
#else
  return pf_f32_from_f16(x);
#endif
}

PF_INLINE void pf_narrow_f16(pf_f16* to, const float* from, int n) {
#if defined(__clang__) && defined(__F16C__)
  typedef float W __attribute__((vector_size(PF_VECTOR), aligned(4), may_alias));
  typedef _Float16 G __attribute__((vector_size(PF_VECTOR / 2)));
  typedef _Float16 H __attribute__((vector_size(PF_VECTOR / 2), aligned(2), may_alias));
  for (int k = 0; k < n; k += PF_VECTOR / 4) *(H*)(to + k) = __builtin_convertvector(*(const W*)(from + k), G);
#elif defined(__AVX512F__)
  typedef float V __attribute__((vector_size(64)));
  typedef short G __attribute__((vector_size(32)));
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(32), aligned(2), may_alias));
  for (int k = 0; k < n; k += 16)
    *(H*)(to + k) = __builtin_ia32_vcvtps2ph512_mask((V) * (const W*)(from + k), 0, (G){}, -1);
#elif defined(__F16C__)
  typedef float V __attribute__((vector_size(32)));
  typedef float W __attribute__((vector_size(32), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(16), aligned(2), may_alias));
  for (int k = 0; k < n; k += 8) *(H*)(to + k) = __builtin_ia32_vcvtps2ph256((V) * (const W*)(from + k), 0);
#else
  for (int k = 0; k < n; ++k) to[k] = pf_f16_from_f32(from[k]);
#endif
}

PF_INLINE void pf_widen_bf16(float* to, const pf_bf16* from, int n) {
#if defined(__AVX512BW__) && !defined(__clang__)
  // The upper half of each word is an element, the lower one is 0: one permutation of 32 elements for 16.
  typedef short G __attribute__((vector_size(64)));
  typedef int I __attribute__((vector_size(64)));
  typedef short W __attribute__((vector_size(64), aligned(2), may_alias));
  typedef short H __attribute__((vector_size(32), aligned(2), may_alias));
  typedef short F __attribute__((vector_size(64), aligned(4), may_alias));
  const I first = {0x00000, 0x10000, 0x20000, 0x30000, 0x40000, 0x50000, 0x60000, 0x70000,
                   0x80000, 0x90000, 0xa0000, 0xb0000, 0xc0000, 0xd0000, 0xe0000, 0xf0000};
  int k = 0;
  for (; k + 32 <= n; k += 32) {
    const G g = *(const W*)(from + k);
    *(F*)(to + k) = __builtin_ia32_permvarhi512_mask(g, (G)first, (G){}, 0xaaaaaaaau);
    *(F*)(to + k + 16) = __builtin_ia32_permvarhi512_mask(g, (G)(first + 0x100000), (G){}, 0xaaaaaaaau);
  }
  for (; k < n; k += 16) {
    typedef int V __attribute__((vector_size(64)));
    typedef short Q __attribute__((vector_size(32)));
    *(F*)(to + k) = (F)(__builtin_ia32_pmovzxwd512_mask((Q) * (const H*)(from + k), (V){}, -1) << 16);
  }
#elif defined(__AVX2__) && !defined(__clang__)
  typedef short G __attribute__((vector_size(16)));
  typedef int W __attribute__((vector_size(32), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(16), aligned(2), may_alias));
  for (int k = 0; k < n; k += 8) *(W*)(to + k) = __builtin_ia32_pmovzxwd256((G) * (const H*)(from + k)) << 16;
#else
  for (int k = 0; k < n; ++k) to[k] = pf_f32_from_bf16(from[k]);
#endif
}

PF_INLINE void pf_narrow_bf16(pf_bf16* to, const float* from, int n) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef unsigned V __attribute__((vector_size(64)));
  typedef int S __attribute__((vector_size(64)));
  typedef short G __attribute__((vector_size(32)));
  typedef unsigned W __attribute__((vector_size(64), aligned(4), may_alias));
  typedef short H __attribute__((vector_size(32), aligned(2), may_alias));
  int k = 0;
#if defined(__AVX512BF16__)
  // The instruction takes subnormal floats for 0. Their bits tell of them in every mode: doubled, they are less than
  // those of the least normal number, and not 0.
  typedef float F __attribute__((vector_size(64)));
  typedef short Q __attribute__((vector_size(64), aligned(2), may_alias));
  for (; k + 32 <= n; k += 32) {
    const V a = *(const W*)(from + k), b = *(const W*)(from + k + 16);
    const V x = a + a - 1u, y = b + b - 1u, limit = 0xffffffu + (V){};
    const V least = x < y ? x : y;
    if (__builtin_expect(__builtin_ia32_ucmpd512_mask((S)least, (S)limit, 1, -1), 0)) break;
    *(Q*)(to + k) = (Q)__builtin_ia32_cvtne2ps2bf16_v32hi((F)b, (F)a);
  }
#endif
  for (; k < n; k += 16) {
    const V b = *(const W*)(from + k);
    const V h = pf_rounded_bf16(b, (b & 0x7fffffffu) > 0x7f800000u);
    *(H*)(to + k) = __builtin_ia32_pmovdw512_mask((S)(h >> 16), (G){}, -1);
  }
#elif defined(__AVX2__) && !defined(__clang__)
  typedef unsigned V __attribute__((vector_size(32)));
  typedef int S __attribute__((vector_size(32)));
  typedef float F __attribute__((vector_size(32)));
  typedef long long Q __attribute__((vector_size(32)));
  typedef unsigned W __attribute__((vector_size(32), aligned(4), may_alias));
  typedef long long H __attribute__((vector_size(32), aligned(2), may_alias));
  for (int k = 0; k < n; k += 16) {
    S half[2];
    for (int j = 0; j < 2; ++j) {
      const V b = *(const W*)(from + k + 8 * j);
      half[j] = (S)(pf_rounded_bf16(b, (F)b != (F)b) >> 16);
    }
    *(H*)(to + k) = __builtin_ia32_permdi256((Q)__builtin_ia32_packusdw256(half[0], half[1]), 0xd8);
  }
#else
  for (int k = 0; k < n; ++k) to[k] = pf_bf16_from_f32(from[k]);
#endif
}

// Of numbers that are normal, 0, infinite or NaN.
PF_INLINE void pf_narrow_normal_bf16(pf_bf16* to, const float* from, int n) {
  int k = 0;
#if defined(__AVX512BF16__) && !defined(__clang__)
  typedef float F __attribute__((vector_size(64)));
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  typedef short Q __attribute__((vector_size(64), aligned(2), may_alias));
  for (; k + 32 <= n; k += 32) {
    const F a = *(const W*)(from + k), b = *(const W*)(from + k + 16);
    *(Q*)(to + k) = (Q)__builtin_ia32_cvtne2ps2bf16_v32hi(b, a);
  }
  if (k < n) {
    typedef short H __attribute__((vector_size(32), aligned(2), may_alias));
    *(H*)(to + k) = (H)__builtin_ia32_cvtneps2bf16_v16sf(*(const W*)(from + k));
    k += 16;
  }
#endif
  if (k < n) pf_narrow_bf16(to + k, from + k, n - k);
}

// To the nearest f16, in place.
PF_INLINE void pf_row_round_f16(float* x, int n) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef float V __attribute__((vector_size(64)));
  typedef short G __attribute__((vector_size(32)));
  typedef float W __attribute__((vector_size(64), aligned(4), may_alias));
  for (int k = 0; k < n; k += 16) {
    const G g = __builtin_ia32_vcvtps2ph512_mask((V) * (const W*)(x + k), 0, (G){}, -1);
    *(W*)(x + k) = __builtin_ia32_vcvtph2ps512_mask(g, (V){}, -1, 4);
  }
#elif defined(__F16C__) && !defined(__clang__)
  typedef float V __attribute__((vector_size(32)));
  typedef float W __attribute__((vector_size(32), aligned(4), may_alias));
  for (int k = 0; k < n; k += 8)
    *(W*)(x + k) = __builtin_ia32_vcvtph2ps256(__builtin_ia32_vcvtps2ph256((V) * (const W*)(x + k), 0));
#else
  for (int k = 0; k < n; ++k) x[k] = pf_f32_from_f16(pf_f16_from_f32(x[k]));
#endif
}

PF_INLINE void pf_row_round_bf16(float* x, int n) {
  int k = 0;
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__clang__)
  // What was narrowed is widened from the registers.
  for (; k + 32 <= n; k += 32) {
    pf_bf16 h[32];
    pf_narrow_bf16(h, x + k, 32);
    pf_widen_bf16(x + k, h, 32);
  }
#endif
  for (; k < n; ++k) {
    x[k] = pf_from_bits_f32(pf_rounded_bf16(pf_bits_f32(x[k]), x[k] != x[k]) & 0xffff0000u);
  }
}

// Of numbers that are normal, 0, infinite or NaN.
PF_INLINE void pf_row_round_normal_bf16(float* x, int n) {
  int k = 0;
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__clang__)
  for (; k + 32 <= n; k += 32) {
    pf_bf16 h[32];
    pf_narrow_normal_bf16(h, x + k, 32);
    pf_widen_bf16(x + k, h, 32);
  }
  if (k < n) {
    pf_bf16 h[16];
    pf_narrow_normal_bf16(h, x + k, 16);
    pf_widen_bf16(x + k, h, 16);
    k += 16;
  }
#endif
  if (k < n) pf_row_round_bf16(x + k, n - k);
}
