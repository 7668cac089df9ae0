// A processor with AVX-512 for compilers and machines without: the macros that tell of one, and its instructions in
// plain C++ under the names of gcc's builtins.  Compilers must not know of it (`-mavx512f`): only the preprocessor does.
//
// AVX512_BF16 makes it one with the conversions of bf16 (znver4, sapphirerapids), else it is skylake-avx512.
// The semantics are those of Intel's manual, with its tables of special values; what depends on the modes of
// MXCSR (subnormal numbers taken for 0, results flushed to 0) looks there.  On a machine that has AVX-512 the header
// stands aside.
#if !defined(__AVX512F__) && defined(__AVX2__) && defined(__F16C__) && !defined(__clang__)
#include "emulated_macros.h"

namespace avx512 {
#define AVX512_INLINE static inline __attribute__((always_inline))
// Instructions by lanes are calls: kernels with many of them would take compilers long.
#define AVX512_CALLED static __attribute__((noinline, unused))
typedef float F32 __attribute__((vector_size(64)));
typedef double F64 __attribute__((vector_size(64)));
typedef int I32 __attribute__((vector_size(64)));
typedef short I16 __attribute__((vector_size(64)));
typedef char I8 __attribute__((vector_size(64)));
typedef long long I64 __attribute__((vector_size(64)));
typedef short Half __attribute__((vector_size(32)));
typedef int HalfI32 __attribute__((vector_size(32)));
typedef char HalfI8 __attribute__((vector_size(32)));
typedef long long HalfI64 __attribute__((vector_size(32)));
typedef float HalfF32 __attribute__((vector_size(32)));
typedef short Quarter __attribute__((vector_size(16)));

// Numbers by their bits.
template <typename T> struct Bits;
template <> struct Bits<float> {
  typedef unsigned U;
  static constexpr int MANT = 23, BIAS = 127;
};
template <> struct Bits<double> {
  typedef unsigned long long U;
  static constexpr int MANT = 52, BIAS = 1023;
};
template <typename To, typename From> AVX512_INLINE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
template <typename T> struct Number {
  typedef typename Bits<T>::U U;
  static constexpr int MANT = Bits<T>::MANT, BIAS = Bits<T>::BIAS;
  static constexpr U SIGN = (U)1 << (8 * sizeof(T) - 1), FRACTION = ((U)1 << MANT) - 1, EXP = ~(SIGN | FRACTION);
  U b;
  AVX512_INLINE Number of(T x) { return {bits<U>(x)}; }
  T value() const { return bits<T>(b); }
  U size() const { return b & ~SIGN; }
  bool negative() const { return b & SIGN; }
  bool nan() const { return size() > EXP; }
  bool signals() const { return nan() && !(b & (FRACTION + 1) / 2); }
  bool infinite() const { return size() == EXP; }
  bool zero() const { return !size(); }
  bool subnormal() const { return size() && size() <= FRACTION; }
  T quiet() const { return bits<T>(b | (FRACTION + 1) / 2); }
  static T indefinite() { return bits<T>((U)(SIGN | EXP | (FRACTION + 1) / 2)); }
  static T infinity(bool minus) { return bits<T>((U)(EXP | (minus ? SIGN : 0))); }
  static T nothing(bool minus) { return bits<T>((U)(minus ? SIGN : 0)); }
};
AVX512_INLINE bool zeros_for_arguments() { return __builtin_ia32_stmxcsr() & 0x40u; }
AVX512_INLINE bool zeros_for_results() { return __builtin_ia32_stmxcsr() & 0x8000u; }
template <typename T> AVX512_INLINE Number<T> argument(T x, bool daz) {
  const Number<T> n = Number<T>::of(x);
  return daz && n.subnormal() ? Number<T>{n.b & Number<T>::SIGN} : n;
}

// VRANGE: the smaller or larger one, or that of magnitudes, with a sign by `imm`.
template <typename T> AVX512_INLINE T range(T x, T y, int imm, bool daz) {
  typedef Number<T> N;
  const N a = argument(x, daz), b = argument(y, daz);
  if (a.signals()) return a.quiet();
  if (b.signals()) return b.quiet();
  const auto key = [](N n) { return n.negative() ? ~n.b : n.b | N::SIGN; };  // orders numbers as values, -0 < 0
  const bool first = imm & 2 ? a.size() <= b.size() : key(a) <= key(b);
  const N found = b.nan() ? a : a.nan() ? b : first != (bool)(imm & 1) ? a : b;
  const int sign = imm >> 2 & 3;
  const typename N::U s = sign == 0 ? a.b & N::SIGN : sign == 1 ? found.b & N::SIGN : sign == 2 ? 0 : N::SIGN;
  return N{(typename N::U)(found.size() | s)}.value();
}
// VREDUCE to an integer, to nearest: what is left.
AVX512_INLINE float reduce(float x, bool daz) {
  const Number<float> a = argument(x, daz);
  if (a.nan()) return a.quiet();
  if (a.infinite() || a.zero()) return 0.0f;
  const float v = a.value(), r = v - __builtin_rintf(v);
  return r == 0.0f ? 0.0f : r;
}
// VSCALEF: x 2^floor(n), rounded once.
AVX512_INLINE double power(int k) { return bits<double>((unsigned long long)(1023 + k) << 52); }
AVX512_INLINE float scaled(float x, int k, bool) { return (float)((double)x * power(k)); }
AVX512_INLINE double scaled(double x, int k, bool ftz) {
  const int part = k / 3;
  const long double t = (long double)x * power(part) * power(part) * power(k - 2 * part);
  const double least = 0x1p-1022;
  return ftz && t < least && t > -least ? Number<double>::nothing(x < 0) : (double)t;
}
template <typename T> AVX512_INLINE T scalef(T x, T n, bool daz, bool ftz) {
  typedef Number<T> N;
  const N a = argument(x, daz), b = argument(n, daz);
  if (a.signals()) return a.quiet();
  if (a.nan())
    return b.infinite() ? b.negative() ? N::nothing(false) : N::infinity(false) : a.quiet();
  if (b.nan()) return b.quiet();
  if (b.infinite() && (b.negative() ? a.infinite() : a.zero())) return N::indefinite();
  if (a.infinite() || a.zero()) return a.value();
  if (b.infinite()) return b.negative() ? N::nothing(a.negative()) : N::infinity(a.negative());
  const T most = sizeof(T) == 4 ? 500 : 2500, v = b.value();
  const T clipped = v < -most ? -most : v > most ? most : v;
  int k = (int)clipped;
  k -= k > clipped;
  return scaled(a.value(), k, ftz);
}
// VGETEXP: floor(log2 |x|).
AVX512_INLINE float getexp(float x, bool daz) {
  const Number<float> a = argument(x, daz);
  if (a.nan()) return a.quiet();
  if (a.infinite() || a.zero()) return Number<float>::infinity(a.zero());
  const int lost = a.subnormal() ? __builtin_clz(a.size()) - 8 : 0;
  return (float)((int)(a.size() >> 23) + (lost ? 1 : 0) - lost - 127);
}
// VGETMANT in [1, 2), NaN for what is negative.
AVX512_INLINE float getmant(float x, bool daz) {
  const Number<float> a = argument(x, daz);
  if (a.nan()) return a.quiet();
  if (a.zero()) return a.negative() ? -1.0f : 1.0f;
  if (a.negative()) return Number<float>::indefinite();
  if (a.infinite()) return 1.0f;
  const int lost = a.subnormal() ? __builtin_clz(a.size()) - 8 : 0;
  return bits<float>((a.size() << lost & 0x7fffffu) | 0x3f800000u);
}
// VCVTNE2PS2BF16 knows no modes: subnormal numbers are 0, halves round to even.
AVX512_INLINE short bf16(float x) {
  const Number<float> a = argument(x, true);
  if (a.nan()) return (short)(a.b >> 16 | 0x40);
  return (short)((a.b + 0x7fff + (a.b >> 16 & 1)) >> 16);
}

// What each lane is, where a bit of the mask says so; the others are those of `other`.
template <typename V, typename M, typename F> AVX512_INLINE V lanes(V other, M mask, F lane) {
  const int n = sizeof(V) / sizeof(other[0]);
  V y = other;
  for (int l = 0; l < n; ++l)
    if ((unsigned long long)mask >> l & 1) y[l] = lane(l);
  return y;
}
// What gcc 12 has for vectors, in halves or by lanes.  `imm`, `round`: as the builtins have them.
template <typename V> AVX512_CALLED V ranges(V a, V b, int imm, V other, int mask, int) {
  const bool daz = zeros_for_arguments();
  return lanes(other, mask, [&](int l) { return range(a[l], b[l], imm, daz); });
}
template <typename V> AVX512_CALLED V scalefs(V a, V b, V other, int mask, int) {
  const bool daz = zeros_for_arguments(), ftz = zeros_for_results();
  return lanes(other, mask, [&](int l) { return scalef(a[l], b[l], daz, ftz); });
}
template <typename V> AVX512_INLINE V mins(V a, V b, V other, int mask, int) {
  return lanes(other, mask, [&](int l) { return a[l] < b[l] ? a[l] : b[l]; });
}
AVX512_CALLED F32 reduceps(F32 a, int imm, F32 other, int mask) {
  if (imm) __builtin_trap();
  const bool daz = zeros_for_arguments();
  return lanes(other, mask, [&](int l) { return reduce(a[l], daz); });
}
AVX512_CALLED F32 getexpps(F32 a, F32 other, int mask, int) {
  const bool daz = zeros_for_arguments();
  return lanes(other, mask, [&](int l) { return getexp(a[l], daz); });
}
AVX512_CALLED F32 getmantps(F32 a, int imm, F32 other, int mask, int) {
  if (imm != 8) __builtin_trap();
  const bool daz = zeros_for_arguments();
  return lanes(other, mask, [&](int l) { return getmant(a[l], daz); });
}
AVX512_CALLED unsigned short ucmpd(I32 a, I32 b, int imm, unsigned short mask) {
  if (imm != 1) __builtin_trap();
  unsigned less = 0;
  for (int l = 0; l < 16; ++l) less |= (unsigned)((unsigned)a[l] < (unsigned)b[l]) << l;
  return (unsigned short)(less & mask);
}
AVX512_CALLED unsigned short ptestmd(I32 a, I32 b, unsigned short mask) {
  unsigned some = 0;
  for (int l = 0; l < 16; ++l) some |= (unsigned)((a[l] & b[l]) != 0) << l;
  return (unsigned short)(some & mask);
}
AVX512_CALLED I32 compressd(I32 a, I32 other, unsigned short mask) {
  I32 y = other;
  int count = 0;
  for (int l = 0; l < 16; ++l)
    if (mask >> l & 1) y[count++] = a[l];
  return y;
}
AVX512_CALLED I16 cvtne2ps2bf16(F32 high, F32 low) {
  return lanes(I16{}, ~0u, [&](int l) { return bf16(l < 16 ? low[l] : high[l - 16]); });
}
AVX512_CALLED Half cvtneps2bf16(F32 a) {
  return lanes(Half{}, ~0u, [&](int l) { return bf16(a[l]); });
}
AVX512_INLINE F32 cvtph2ps(Half a, F32 other, int mask, int) {
  Quarter half[2];
  HalfF32 wide[2];
  F32 y;
  __builtin_memcpy(half, &a, sizeof a);
  for (int k = 0; k < 2; ++k) wide[k] = __builtin_ia32_vcvtph2ps256(half[k]);
  __builtin_memcpy(&y, wide, sizeof y);
  return lanes(other, mask, [&](int l) { return y[l]; });
}
AVX512_INLINE Half cvtps2ph(F32 a, int imm, Half other, int mask) {
  if (imm) __builtin_trap();
  HalfF32 half[2];
  Quarter narrow[2];
  Half y;
  __builtin_memcpy(half, &a, sizeof a);
  for (int k = 0; k < 2; ++k) narrow[k] = __builtin_ia32_vcvtps2ph256(half[k], 0);
  __builtin_memcpy(&y, narrow, sizeof y);
  return lanes(other, mask, [&](int l) { return y[l]; });
}
AVX512_CALLED I16 permvarhi(I16 a, I16 index, I16 other, unsigned mask) {
  return lanes(other, mask, [&](int l) { return a[index[l] & 31]; });
}
AVX512_INLINE I32 pmovzxwd(Half a, I32 other, int mask) {
  return lanes(other, mask, [&](int l) { return (unsigned short)a[l]; });
}
AVX512_CALLED Half pmovdw(I32 a, Half other, int mask) {
  return lanes(other, mask, [&](int l) { return (short)a[l]; });
}
AVX512_INLINE I32 pmaddwd(I16 a, I16 b, I32, unsigned short mask) {
  if (mask != 0xffff) __builtin_trap();
  Half x[2], y[2];
  HalfI32 sum[2];
  I32 z;
  __builtin_memcpy(x, &a, sizeof a);
  __builtin_memcpy(y, &b, sizeof b);
  for (int k = 0; k < 2; ++k) sum[k] = __builtin_ia32_pmaddwd256(x[k], y[k]);
  __builtin_memcpy(&z, sum, sizeof z);
  return z;
}
template <typename V> AVX512_CALLED V chosen_bytes(V a, V other, unsigned long long mask) {
  return lanes(other, mask, [&](int l) { return a[l]; });
}
template <typename V> AVX512_CALLED V load_bytes(const char* from, V other, unsigned long long mask) {
  return lanes(other, mask, [&](int l) { return *(const volatile char*)(from + l); });
}
template <typename V> AVX512_CALLED void store_bytes(char* to, V a, unsigned long long mask) {
  for (int l = 0; l < (int)sizeof(V); ++l)
    if (mask >> l & 1) *(volatile char*)(to + l) = a[l];
}
AVX512_INLINE void movntdq(I64* to, I64 a) {
  if ((__UINTPTR_TYPE__)to % 64) __builtin_trap();
  HalfI64 half[2];
  __builtin_memcpy(half, &a, sizeof a);
  for (int k = 0; k < 2; ++k) __builtin_ia32_movntdq256((HalfI64*)to + k, half[k]);
}
}  // namespace avx512

#define __builtin_ia32_rangeps512_mask avx512::ranges<avx512::F32>
#define __builtin_ia32_rangepd512_mask avx512::ranges<avx512::F64>
#define __builtin_ia32_scalefps512_mask avx512::scalefs<avx512::F32>
#define __builtin_ia32_scalefpd512_mask avx512::scalefs<avx512::F64>
#define __builtin_ia32_minps512_mask avx512::mins<avx512::F32>
#define __builtin_ia32_minpd512_mask avx512::mins<avx512::F64>
#define __builtin_ia32_reduceps512_mask avx512::reduceps
#define __builtin_ia32_getexpps512_mask avx512::getexpps
#define __builtin_ia32_getmantps512_mask avx512::getmantps
#define __builtin_ia32_ucmpd512_mask avx512::ucmpd
#define __builtin_ia32_ptestmd512 avx512::ptestmd
#define __builtin_ia32_compresssi512_mask avx512::compressd
#define __builtin_ia32_cvtne2ps2bf16_v32hi avx512::cvtne2ps2bf16
#define __builtin_ia32_cvtneps2bf16_v16sf avx512::cvtneps2bf16
#define __builtin_ia32_vcvtph2ps512_mask avx512::cvtph2ps
#define __builtin_ia32_vcvtps2ph512_mask avx512::cvtps2ph
#define __builtin_ia32_permvarhi512_mask avx512::permvarhi
#define __builtin_ia32_pmovzxwd512_mask avx512::pmovzxwd
#define __builtin_ia32_pmovdw512_mask avx512::pmovdw
#define __builtin_ia32_pmaddwd512_mask avx512::pmaddwd
#define __builtin_ia32_movdquqi512_mask avx512::chosen_bytes<avx512::I8>
#define __builtin_ia32_loaddquqi512_mask avx512::load_bytes<avx512::I8>
#define __builtin_ia32_loaddquqi256_mask avx512::load_bytes<avx512::HalfI8>
#define __builtin_ia32_storedquqi512_mask avx512::store_bytes<avx512::I8>
#define __builtin_ia32_storedquqi256_mask avx512::store_bytes<avx512::HalfI8>
#define __builtin_ia32_movntdq512 avx512::movntdq
#endif
