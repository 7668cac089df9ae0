// Words of two integers of 16 bits, of four bytes, or of two bf16 (`layers.graph.quantized`).

PF_INLINE pf_i32 pf_word_i32(pf_i32 low, pf_i32 high) {
  return (pf_i32)((unsigned)high << 16 | ((unsigned)low & 0xffff));
}

// The products of two words' halves, added: of scalars, and of vectors in one instruction.
template <typename V>
PF_INLINE V pf_dot_words_i32(V a, V b) {
#if defined(__AVX512BW__) && !defined(__clang__)
  if constexpr (sizeof(V) == 64) {
    typedef short H __attribute__((vector_size(64)));
    return (V)__builtin_ia32_pmaddwd512_mask((H)a, (H)b, V{}, (unsigned short)-1);
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    typedef short H __attribute__((vector_size(32)));
    return (V)__builtin_ia32_pmaddwd256((H)a, (H)b);
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) {
    typedef short H __attribute__((vector_size(16)));
    return (V)__builtin_ia32_pmaddwd128((H)a, (H)b);
  }
#endif
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
}

// The same added to a total: one instruction where a core has it, which takes a word for all lanes from memory.
template <typename V>
PF_INLINE V pf_add_words_i32(V total, V a, V b) {
#if defined(__AVX512VNNI__) && !defined(__clang__)
  if constexpr (sizeof(V) == 64) return (V)__builtin_ia32_vpdpwssd_v16si(total, a, b);
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && !defined(__clang__)
  if constexpr (sizeof(V) == 32) return (V)__builtin_ia32_vpdpwssd_v8si(total, a, b);
#endif
  return total + pf_dot_words_i32(a, b);
}

// Two bytes.
PF_INLINE pf_i32 pf_half_i32(pf_i32 low, pf_i32 high) { return (low & 0xff) | (high & 0xff) << 8; }

// The products of four bytes, those of `a` with signs and those of `b` without, added to a total.
template <typename V>
PF_INLINE V pf_add_bytes_i32(V total, V a, V b) {
#if defined(__AVX512VNNI__) && !defined(__clang__)
  if constexpr (sizeof(V) == 64) return (V)__builtin_ia32_vpdpbusd_v16si(total, b, a);
#endif
#if ((defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)) && !defined(__clang__)
  if constexpr (sizeof(V) == 32) return (V)__builtin_ia32_vpdpbusd_v8si(total, b, a);
  if constexpr (sizeof(V) == 16) return (V)__builtin_ia32_vpdpbusd_v4si(total, b, a);
#endif
  total += ((a << 24) >> 24) * (b & 0xff) + ((a << 16) >> 24) * ((b >> 8) & 0xff);
  return total + ((a << 8) >> 24) * ((b >> 16) & 0xff) + (a >> 24) * ((b >> 24) & 0xff);
}

template <typename V>
PF_INLINE V pf_dot_bytes_i32(V a, V b) {
  return pf_add_bytes_i32(V{}, a, b);
}

// Two bf16, which are the upper halves of f32. Such words are moved as f32; arithmetic would change their bits.
PF_INLINE float pf_pair_f32(float low, float high) {
  unsigned l, h;
  __builtin_memcpy(&l, &low, 4);
  __builtin_memcpy(&h, &high, 4);
  h = (h & 0xffff0000u) | l >> 16;
  __builtin_memcpy(&high, &h, 4);
  return high;
}

PF_INLINE float pf_dot_pairs_f32(float a, float b) {
  unsigned x, y;
  __builtin_memcpy(&x, &a, 4);
  __builtin_memcpy(&y, &b, 4);
  const unsigned halves[4] = {x << 16, y << 16, x & 0xffff0000u, y & 0xffff0000u};
  float v[4];
  __builtin_memcpy(v, halves, 16);
  return v[0] * v[1] + v[2] * v[3];
}

// The products of two pairs added to totals, `a` being the same for all lanes.
template <typename V>
PF_INLINE V pf_add_pairs_f32(V total, float a, V b) {
  typedef unsigned I __attribute__((vector_size(sizeof(V))));
  unsigned x;
  __builtin_memcpy(&x, &a, 4);
  const I q = I{} + x;
#if defined(__AVX512BF16__) && defined(__AVX512VL__) && !defined(__clang__)
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(q), "v"(b));
  return total;
#else
  total += (V)(q << 16) * (V)((I)b << 16);
  return total + (V)(q & 0xffff0000u) * (V)((I)b & 0xffff0000u);
#endif
}
