// Bits of floats, and random numbers by counters.

PF_INLINE unsigned pf_bits_f16_f32(float x) { return pf_f16_from_f32(x); }

PF_INLINE float pf_from_bits_u32(unsigned x) { return pf_from_bits_f32(x); }

PF_INLINE double pf_from_bits_u64(unsigned long long x) { return pf_from_bits_f64(x); }

PF_INLINE float pf_from_bits_f16_u32(unsigned x) { return pf_f32_from_f16((pf_f16)x); }

PF_INLINE unsigned pf_bits_f8e4m3fn_f32(float x) { return pf_f8e4m3fn_from_f32(x); }

PF_INLINE unsigned pf_bits_f8e5m2_f32(float x) { return pf_f8e5m2_from_f32(x); }

PF_INLINE float pf_from_bits_f8e4m3fn_u32(unsigned x) { return pf_f32_from_f8e4m3fn((unsigned char)x); }

PF_INLINE float pf_from_bits_f8e5m2_u32(unsigned x) { return pf_f32_from_f8e5m2((unsigned char)x); }

// Philox4x32 with 10 rounds, as Random123 has it: word n of the block of a counter, whose halves are hi and lo. The
// words of one counter, asked for side by side, are computed once.
PF_INLINE unsigned pf_philox4x32_u64(unsigned long long key, unsigned long long hi, unsigned long long lo,
                                     unsigned long long n) {
  unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
  unsigned a = (unsigned)lo, b = (unsigned)(lo >> 32), c = (unsigned)hi, d = (unsigned)(hi >> 32);
  for (int round = 0; round < 10; ++round) {
    unsigned long long p = 0xd2511f53ull * a, q = 0xcd9e8d57ull * c;
    a = (unsigned)(q >> 32) ^ b ^ k0;
    c = (unsigned)(p >> 32) ^ d ^ k1;
    b = (unsigned)q;
    d = (unsigned)p;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return n & 2 ? (n & 1 ? d : c) : (n & 1 ? b : a);
}

PF_INLINE float pf_f32_from_f8e5m2(unsigned char x) { return pf_f32_from_f16((pf_f16)(x << 8)); }

// The least exponents have numbers of an even distance.
PF_INLINE float pf_f32_from_f8e4m3fn(unsigned char x) {
  unsigned a = x & 0x7fu, sign = (unsigned)(x & 0x80u) << 24;
  unsigned usual = a == 0x7fu ? 0x7fc00000u : (a << 20) + (120u << 23);
  unsigned small = pf_bits_f32((float)(int)a * 0x1p-9f);
  return pf_from_bits_f32((a < 8u ? small : usual) | sign);
}

// To nearest even, and to the largest number at most; NaN stays NaN. The distance of small numbers is that of floats
// around the number that is added.
PF_INLINE unsigned char pf_f8e4m3fn_from_f32(float x) {
  unsigned b = pf_bits_f32(x), a = b & 0x7fffffffu, sign = (b >> 24) & 0x80u;
  unsigned c = a < 0x43e00000u ? a : 0x43e00000u;
  unsigned usual = ((c + 0x7ffffu + ((c >> 20) & 1u)) >> 20) - (120u << 3);
  unsigned small = pf_bits_f32(pf_from_bits_f32(c < (121u << 23) ? c : 0u) + 0x1p14f) - 0x46800000u;
  unsigned r = c < (121u << 23) ? small : usual;
  return (unsigned char)((a > 0x7f800000u ? 0x7fu : r) | sign);
}

PF_INLINE unsigned char pf_f8e5m2_from_f32(float x) {
  unsigned b = pf_bits_f32(x), a = b & 0x7fffffffu, sign = (b >> 24) & 0x80u;
  unsigned c = a < 0x47600000u ? a : 0x47600000u;
  unsigned usual = ((c + 0xfffffu + ((c >> 21) & 1u)) >> 21) - (112u << 2);
  unsigned small = pf_bits_f32(pf_from_bits_f32(c < (113u << 23) ? c : 0u) + 0x1p7f) - 0x43000000u;
  unsigned r = c < (113u << 23) ? small : usual;
  return (unsigned char)((a > 0x7f800000u ? 0x7fu : r) | sign);
}
