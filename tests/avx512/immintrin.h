// The compiler's own header must not see the macros: it would use instructions that the compiler does not know of.
#if defined(AVX512_INLINE)
#undef __AVX512F__
#undef __AVX512CD__
#undef __AVX512BW__
#undef __AVX512DQ__
#undef __AVX512VL__
#undef __AVX512IFMA__
#undef __AVX512VBMI__
#undef __AVX512VBMI2__
#undef __AVX512VNNI__
#undef __AVX512BITALG__
#undef __AVX512VPOPCNTDQ__
#undef __AVX512BF16__
#include_next <immintrin.h>
#include "emulated_macros.h"
#define _mm512_stream_ps(to, v) avx512::movntdq((avx512::I64*)(to), (avx512::I64)(v))
#else
#include_next <immintrin.h>
#endif
