// Conversions of the stored 16-bit floats, in integer arithmetic: gcc 12 vectorises this and not its
// own _Float16. No step meets a subnormal float that matters, so flushing modes change nothing.

PF_INLINE float pf_f32_from_bf16(pf_bf16 x) { return pf_from_bits_f32((unsigned)x << 16); }

// The bits of floats, or of vectors of them, whose upper halves are those of the nearest bf16, ties to even: add just
// under half of the last kept bit, and its parity. NaN stays NaN.
template <typename V, typename M>
PF_INLINE V pf_rounded_bf16(V b, M nan) {
  const V r = b + 0x7fffu + ((b >> 16) & 1u);
  return nan ? b | 0x400000u : r;
}

PF_INLINE pf_bf16 pf_bf16_from_f32(float x) { return (pf_bf16)(pf_rounded_bf16(pf_bits_f32(x), x != x) >> 16); }

// Subnormals: put the ten bits under the exponent of 2^-14 and take 2^-14 away again.
PF_INLINE float pf_f32_from_f16(pf_f16 x) {
  unsigned m = ((unsigned)x & 0x7fffu) << 13;
  unsigned sign = ((unsigned)x & 0x8000u) << 16;
  unsigned normal = m + (112u << 23);
  unsigned special = m + (224u << 23);
  unsigned small = pf_bits_f32(pf_from_bits_f32(m + (113u << 23)) - 0x1p-14f);
  unsigned r = m < (1u << 23) ? small : m >= (31u << 23) ? special : normal;
  return pf_from_bits_f32(r | sign);
}

// Subnormals: adding 0.5 rounds to multiples of 2^-24, its last bit. 65520 and above become inf.
PF_INLINE pf_f16 pf_f16_from_f32(float x) {
  unsigned b = pf_bits_f32(x), a = b & 0x7fffffffu, sign = (b >> 16) & 0x8000u;
  unsigned normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  unsigned small = pf_bits_f32(pf_from_bits_f32(a < (113u << 23) ? a : 0u) + 0.5f) - 0x3f000000u;
  unsigned r = a < (113u << 23) ? small : normal;
  r = a >= (143u << 23) ? 0x7c00u : r;
  r = a > 0x7f800000u ? 0x7e00u : r;
  return (pf_f16)(r | sign);
}

// Rounded to odd: a double cut to float whose last bit says that something was cut. Rounding that
// to 16 bits gives what one rounding of the double would.
PF_INLINE float pf_odd_f32_from_f64(double x) {
  float f = (float)x;
  double d = f;
  unsigned b = pf_bits_f32(f);
  b = __builtin_fabs(d) > __builtin_fabs(x) ? b - 1u : b;
  b = d != x ? b | 1u : b;
  return pf_from_bits_f32(b);
}

PF_INLINE pf_f16 pf_f16_from_f64(double x) { return pf_f16_from_f32(pf_odd_f32_from_f64(x)); }

PF_INLINE pf_bf16 pf_bf16_from_f64(double x) { return pf_bf16_from_f32(pf_odd_f32_from_f64(x)); }

// The same for the integers that a double cannot hold: bits below 2^12 shrink to one.
PF_INLINE double pf_odd_f64_from_i64(pf_i64 x) {
  bool wide = (x >= 1ll << 53) | (x <= -(1ll << 53));
  pf_i64 cut = (x & ~0xfffll) | ((x & 0xfffll) ? 0x800ll : 0ll);
  return (double)(wide ? cut : x);
}

PF_INLINE double pf_odd_f64_from_u64(unsigned long long x) {
  unsigned long long cut = (x & ~0xfffull) | ((x & 0xfffull) ? 0x800ull : 0ull);
  return (double)(x >= 1ull << 53 ? cut : x);
}

PF_INLINE pf_f16 pf_f16_from_u64(unsigned long long x) { return pf_f16_from_f64(pf_odd_f64_from_u64(x)); }

PF_INLINE pf_bf16 pf_bf16_from_u64(unsigned long long x) { return pf_bf16_from_f64(pf_odd_f64_from_u64(x)); }

PF_INLINE pf_f16 pf_f16_from_i64(pf_i64 x) { return pf_f16_from_f64(pf_odd_f64_from_i64(x)); }

PF_INLINE pf_bf16 pf_bf16_from_i64(pf_i64 x) { return pf_bf16_from_f64(pf_odd_f64_from_i64(x)); }
