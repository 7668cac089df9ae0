// The words of CUDA for g++: an emitted source, unchanged, compiles after this header and runs on the engine
// of emulator.cpp. Headerless, as the source is: a typical kernel compiles in a tenth of a second.
#define PF_EMULATE 1
#ifndef PF_EMU_CHECKED
#define PF_EMU_CHECKED 1
#endif
#ifndef PF_EMU_SECTORS
#define PF_EMU_SECTORS 0
#endif

#include "emulator_state.h"

static pf_emu_engine* pf_emu;
extern "C" void pf_emu_attach(pf_emu_engine* engine) { pf_emu = engine; }

#include "emulator_memory.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (pf_emu->thread)
#define blockIdx (pf_emu->block)
#define blockDim (pf_emu->threads)
#define gridDim (pf_emu->blocks)
#define warpSize 32

// ---- waiting: with the line of the source, which tells barriers apart ------------------------------------
struct pf_emu_at {
  int line;
  void sync_block() const { pf_emu->block_barrier(line); }
  void sync_grid(const void* state) const { pf_emu->grid_barrier(state, line); }
  void sync_warp(unsigned lanes = 0xffffffffu) const { pf_emu->exchange(lanes, 0, 0, 0, line); }
  template <class T>
  T shuffle_xor(unsigned lanes, T value, int step) const {
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 64 bits");
    pf_emu_u64 bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = pf_emu->exchange(lanes, bits, step, sizeof(T), line);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
  }
};

#define __syncthreads pf_emu_at{__LINE__}.sync_block
#define pf_grid_barrier pf_emu_at{__LINE__}.sync_grid
#define __syncwarp pf_emu_at{__LINE__}.sync_warp
#define __shfl_xor_sync pf_emu_at{__LINE__}.shuffle_xor
#define __activemask() pf_emu->active()

// ---- atomics: one thread runs at a time, and taking the address of the element has noted the update ------
template <class T>
struct pf_emu_same {
  typedef T type;
};

#define PF_EMU_ATOMIC(name, expression)                          \
  template <class T>                                             \
  inline T name(T* address, typename pf_emu_same<T>::type value) { \
    const T old = *address;                                      \
    *address = (T)(expression);                                  \
    return old;                                                  \
  }
PF_EMU_ATOMIC(atomicAdd, old + value)
PF_EMU_ATOMIC(atomicSub, old - value)
PF_EMU_ATOMIC(atomicMin, value < old ? value : old)
PF_EMU_ATOMIC(atomicMax, value > old ? value : old)
PF_EMU_ATOMIC(atomicAnd, old & value)
PF_EMU_ATOMIC(atomicOr, old | value)
PF_EMU_ATOMIC(atomicXor, old ^ value)
PF_EMU_ATOMIC(atomicExch, value)
#undef PF_EMU_ATOMIC

// Really atomic: the word around a short element at the end of a buffer has bytes that are not ours.
template <class T>
inline T atomicCAS(T* address, typename pf_emu_same<T>::type compare, typename pf_emu_same<T>::type value) {
  __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return compare;
}

inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
inline T __ldg(const T* address) {
  return *address;
}

// ---- loops: where sectors are counted, the word `for` of a kernel says that a thread comes in and goes out ------
struct pf_emu_loop {
  pf_emu_u64 before;
  bool inside;
  explicit pf_emu_loop(int line) : before(pf_emu->enter_loop(line)), inside(false) {}
  bool once() {
    if (inside) pf_emu->leave_loop(before);
    return inside = !inside;
  }
};
#define PF_EMU_FOR for (pf_emu_loop pf_emu_around(__LINE__); pf_emu_around.once();) for

// ---- math -------------------------------------------------------------------------------------------------
#define PF_EMU_MATH_1(name) \
  extern "C" double name(double) noexcept; \
  extern "C" float name##f(float) noexcept;
#define PF_EMU_MATH_2(name) \
  extern "C" double name(double, double) noexcept; \
  extern "C" float name##f(float, float) noexcept;
PF_EMU_MATH_1(exp) PF_EMU_MATH_1(exp2) PF_EMU_MATH_1(expm1) PF_EMU_MATH_1(log) PF_EMU_MATH_1(log2)
PF_EMU_MATH_1(log1p) PF_EMU_MATH_1(sqrt) PF_EMU_MATH_1(tanh) PF_EMU_MATH_1(erf) PF_EMU_MATH_1(sin)
PF_EMU_MATH_1(cos) PF_EMU_MATH_1(fabs) PF_EMU_MATH_1(floor) PF_EMU_MATH_1(ceil) PF_EMU_MATH_1(trunc)
PF_EMU_MATH_1(tan) PF_EMU_MATH_1(atan) PF_EMU_MATH_1(asin) PF_EMU_MATH_1(acos) PF_EMU_MATH_1(sinh)
PF_EMU_MATH_1(cosh) PF_EMU_MATH_1(asinh) PF_EMU_MATH_1(acosh) PF_EMU_MATH_1(atanh) PF_EMU_MATH_1(cbrt)
PF_EMU_MATH_1(erfc) PF_EMU_MATH_1(lgamma) PF_EMU_MATH_2(atan2) PF_EMU_MATH_2(hypot)
PF_EMU_MATH_1(rint) PF_EMU_MATH_1(round) PF_EMU_MATH_2(pow) PF_EMU_MATH_2(fmod) PF_EMU_MATH_2(fmin)
PF_EMU_MATH_2(fmax) PF_EMU_MATH_2(copysign)
#undef PF_EMU_MATH_1
#undef PF_EMU_MATH_2

inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float __expf(float x) { return __builtin_expf(x); }
inline float __logf(float x) { return __builtin_logf(x); }
inline float __sinf(float x) { return __builtin_sinf(x); }
inline float __cosf(float x) { return __builtin_cosf(x); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

#define PF_EMU_BITS(name, To, From) \
  inline To name(From x) { return __builtin_bit_cast(To, x); }
PF_EMU_BITS(__float_as_int, int, float)
PF_EMU_BITS(__float_as_uint, unsigned, float)
PF_EMU_BITS(__int_as_float, float, int)
PF_EMU_BITS(__uint_as_float, float, unsigned)
PF_EMU_BITS(__double_as_longlong, long long, double)
PF_EMU_BITS(__longlong_as_double, double, long long)
#undef PF_EMU_BITS
