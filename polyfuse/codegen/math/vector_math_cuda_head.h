// The words of every CUDA source: element types, vectors, buffers, the grid's barrier. With
// PF_EMULATE a header before this one has defined what CUDA itself would, and the parts excluded here.

typedef long long pf_i64;
typedef int pf_i32;
typedef short pf_i16;
typedef signed char pf_i8;
typedef unsigned char pf_u8;
typedef unsigned char pf_bool;
typedef unsigned short pf_f16;
typedef unsigned short pf_bf16;
typedef unsigned pf_u32;
#define PF_INLINE static __device__ __forceinline__
#ifdef __CUDACC_RTC__
// Of the built-ins that literals are made of, NVRTC has only this one.
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000)
#define __builtin_inf() __builtin_bit_cast(double, 0x7ff0000000000000ll)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000)
#define __builtin_nan(text) __builtin_bit_cast(double, 0x7ff8000000000000ll)
#endif
#if !defined(PF_EMULATE) && defined(__CUDA_ARCH__)
#define PF_PTX __CUDA_ARCH__
#else
#define PF_PTX 0
#endif

// N neighbouring elements in registers, as long as every index is known after unrolling.
template <class T, int N> struct pf_vec {
  T v[N];
  __device__ __forceinline__ T& operator[](int i) { return v[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }
};

// A thread's array of elements of 16 bits, two in a register; as above, every index is known.
template <class T> struct pf_half_at {
  unsigned& w;
  const int odd;
  __device__ __forceinline__ operator T() const { return (T)(odd ? w >> 16 : w); }
  __device__ __forceinline__ void operator=(T value) {
    w = odd ? (w & 0xffffu) | (unsigned)(unsigned short)value << 16 : (w & 0xffff0000u) | (unsigned short)value;
  }
};
template <class T, int N> struct pf_packed {
  unsigned w[(N + 1) / 2];
  __device__ __forceinline__ pf_half_at<T> operator[](int i) { return {w[i / 2], i % 2}; }
};

#ifndef PF_EMULATE
#define PF_IN(T) const T* const __restrict__
#define PF_OUT(T) T* const __restrict__
// What threads exchange: of a restricted pointer the compiler takes it that nothing changes at a barrier.
#define PF_INOUT(T) T* const
#define PF_SHARED(T, name, n) __shared__ __align__(16) T name[n]
// In what a launch asks for, at an offset.
#define PF_DYNAMIC(T, name, n, offset) T* const name = (T*)(pf_dynamic + offset)
// In the memory of an array that is not needed at the same time.
#define PF_REUSED(T, name, n, home) T* const name = (T*)home
extern __shared__ __align__(16) unsigned char pf_dynamic[];

// Accesses are made of words of 16 bytes, or one shorter word: a struct of short elements would be read one by
// one, and a word of four parts be taken apart for elements of 8 bytes.
template <int SIZE> struct pf_word { typedef uint4 type; };
template <> struct pf_word<8> { typedef ulonglong2 type; };
template <int BYTES, int SIZE> struct pf_words {
  struct __align__(16) type { typename pf_word<SIZE>::type w[BYTES / 16]; };
};
template <int SIZE> struct pf_words<8, SIZE> { typedef uint2 type; };
template <int SIZE> struct pf_words<4, SIZE> { typedef unsigned type; };
template <int SIZE> struct pf_words<2, SIZE> { typedef unsigned short type; };

// What is loaded: elements of 16 bits stay in words, as a shift or a mask of one widens an element to f32.
template <class T, int N> struct pf_halves {
  unsigned w[N / 2];
  __device__ __forceinline__ T operator[](int i) const { return (T)(i % 2 ? w[i / 2] >> 16 : w[i / 2]); }
  __device__ __forceinline__ operator pf_vec<T, N>() const { return __builtin_bit_cast(pf_vec<T, N>, *this); }
};
template <class T, int N, int SIZE> struct pf_loaded { typedef pf_vec<T, N> type; };
template <class T, int N> struct pf_loaded<T, N, 2> { typedef pf_halves<T, N> type; };

template <int N, class T> PF_INLINE typename pf_loaded<T, N, sizeof(T)>::type pf_load(const T* from, pf_i64 index) {
  typedef typename pf_words<N * sizeof(T), sizeof(T)>::type words;
  return __builtin_bit_cast(typename pf_loaded<T, N, sizeof(T)>::type, *(const words*)(from + index));
}

// What is loaded where that is asked for, else zeros.
template <int N, class T> PF_INLINE auto pf_load_if(bool asked, const T* from, pf_i64 index) {
  typename pf_loaded<T, N, sizeof(T)>::type loaded = {};
  if (asked) loaded = pf_load<N>(from, index);
  return loaded;
}

template <int N, class T> PF_INLINE void pf_store(T* to, pf_i64 index, const pf_vec<T, N>& value) {
  typedef typename pf_words<N * sizeof(T), sizeof(T)>::type words;
  *(words*)(to + index) = __builtin_bit_cast(words, value);
}

// The same for what nothing reads again: it leaves L2 before all else.
template <int N, class T> PF_INLINE void pf_store_once(T* to, pf_i64 index, const pf_vec<T, N>& value) {
  typedef typename pf_words<N * sizeof(T), sizeof(T)>::type words;
  if constexpr (sizeof(words) == 16) {
    __stcs((uint4*)(to + index), __builtin_bit_cast(uint4, value));
  } else {
    *(words*)(to + index) = __builtin_bit_cast(words, value);
  }
}

// Every block of the grid waits here; all of them must be resident. Tickets only ever grow: a block that
// drew number t waits until all of its round have arrived, which is when the count reaches the next multiple
// of the number of blocks. The second word is not used.
PF_INLINE void pf_grid_barrier(pf_u32* state) {
  __syncthreads();
  if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0) {
    const pf_u32 blocks = gridDim.x * gridDim.y * gridDim.z;
    pf_u32 ticket, now;
    __threadfence();
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(state) : "memory");
    const pf_u32 full = ticket - ticket % blocks + blocks;
    do
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
    while ((pf_i32)(now - full) < 0);
    __threadfence();
  }
  __syncthreads();
}
#endif
