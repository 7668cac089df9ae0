// The first bytes of `room`: what is read has zeros behind them, what is stored ends there, and a total is as
// it was before behind them (`codegen.cpu.vectorize.predicated_epilogues`).

#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
#define PF_MASKS 1
typedef char pf_bytes __attribute__((vector_size(64), aligned(1), may_alias));
PF_INLINE unsigned long long pf_first(int bytes) {
  return bytes >= 64 ? ~0ull : bytes <= 0 ? 0ull : (1ull << bytes) - 1;
}
PF_INLINE void pf_take(void* to, const void* from, int bytes, int room) {
  PF_LOADS(from, bytes);
  for (int k = 0; k < room; k += 64)
    *(pf_bytes*)((char*)to + k) =
        __builtin_ia32_loaddquqi512_mask((const char*)from + k, (pf_bytes){}, pf_first(bytes - k));
}
PF_INLINE void pf_put(void* to, const void* from, int bytes, int room) {
  PF_STORES(to, bytes);
  for (int k = 0; k < room; k += 64)
    __builtin_ia32_storedquqi512_mask(
        (char*)to + k, *(const pf_bytes*)((const char*)from + k), pf_first(bytes - k));
}
// The same 32 bytes at a time: what is stored in such pieces and loaded whole would wait for all of them.
PF_INLINE void pf_take_f16(void* to, const void* from, int bytes, int room) {
  PF_LOADS(from, bytes);
  typedef char piece __attribute__((vector_size(32), aligned(1), may_alias));
  for (int k = 0; k < room; k += 32)
    *(piece*)((char*)to + k) =
        __builtin_ia32_loaddquqi256_mask((const char*)from + k, (piece){}, (unsigned)pf_first(bytes - k));
}
PF_INLINE void pf_put_f16(void* to, const void* from, int bytes, int room) {
  PF_STORES(to, bytes);
  typedef char piece __attribute__((vector_size(32), aligned(1), may_alias));
  for (int k = 0; k < room; k += 32)
    __builtin_ia32_storedquqi256_mask(
        (char*)to + k, *(const piece*)((const char*)from + k), (unsigned)pf_first(bytes - k));
}
PF_INLINE void pf_keep(void* total, const void* before, int bytes, int room) {
  for (int k = 0; k < room; k += 64) {
    pf_bytes* at = (pf_bytes*)((char*)total + k);
    const pf_bytes old = *(const pf_bytes*)((const char*)before + k);
    *at = __builtin_ia32_movdquqi512_mask(*at, old, pf_first(bytes - k));
  }
}
#elif defined(__AVX2__) && !defined(__clang__)
// Words are loaded under masks, what is less than one by bytes. Stores under masks take long on some machines:
// what does not fill a vector is stored in pieces, each a power of two.
#define PF_MASKS 1
typedef signed char pf_bytes __attribute__((vector_size(32), aligned(1), may_alias));
typedef int pf_words __attribute__((vector_size(32)));
PF_INLINE void pf_take(void* to, const void* from, int bytes, int room) {
  PF_LOADS(from, bytes);
  const pf_words at = {0, 4, 8, 12, 16, 20, 24, 28};
  const int whole = bytes & ~3;
  int last = 0;
  for (int k = whole; k < bytes; ++k) last |= ((const unsigned char*)from)[k] << 8 * (k - whole);
  for (int k = 0; k < room; k += 32) {
    pf_words v = __builtin_ia32_maskloadd256((const pf_words*)((const char*)from + k), at < whole - k);
    if (whole < bytes) v = at == whole - k ? (pf_words){} + last : v;
    *(pf_bytes*)((char*)to + k) = (pf_bytes)v;
  }
}
PF_INLINE void pf_put_last(char* to, const char* from, int bytes, int most) {
#pragma GCC unroll 5
  for (int n = most; n; n /= 2)
    if (bytes & n) __builtin_memcpy(to + (bytes & ~(2 * n - 1)), from + (bytes & ~(2 * n - 1)), n);
}
PF_INLINE void pf_put(void* to, const void* from, int bytes, int room) {
  for (int k = 0; k + 32 <= room; k += 32)
    if (k + 32 <= bytes) *(pf_bytes*)((char*)to + k) = *(const pf_bytes*)((const char*)from + k);
  pf_put_last((char*)to, (const char*)from, bytes, 16);
}
// The same 16 bytes at a time: what is stored in such pieces and loaded whole would wait for all of them.
PF_INLINE void pf_take_f16(void* to, const void* from, int bytes, int room) {
  pf_take(to, from, bytes, room);
}
PF_INLINE void pf_put_f16(void* to, const void* from, int bytes, int room) {
  for (int k = 0; k + 16 <= room; k += 16)
    if (k + 16 <= bytes) __builtin_memcpy((char*)to + k, (const char*)from + k, 16);
  pf_put_last((char*)to, (const char*)from, bytes, 8);
}
PF_INLINE void pf_keep(void* total, const void* before, int bytes, int room) {
  const pf_bytes at = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  for (int k = 0; k < room; k += 32) {
    const signed char left = bytes - k < 0 ? 0 : bytes - k > 32 ? 32 : bytes - k;
    pf_bytes* here = (pf_bytes*)((char*)total + k);
    *here = at < left ? *here : *(const pf_bytes*)((const char*)before + k);
  }
}
#endif
