// Bits of floats, and random numbers by counters.

PF_INLINE unsigned pf_bits_f16_f32(float x) { return pf_f16_from_f32(x); }

PF_INLINE float pf_from_bits_u32(unsigned x) { return pf_from_bits_f32(x); }

PF_INLINE double pf_from_bits_u64(unsigned long long x) { return pf_from_bits_f64(x); }

PF_INLINE float pf_from_bits_f16_u32(unsigned x) { return pf_f32_from_f16((pf_f16)x); }

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
