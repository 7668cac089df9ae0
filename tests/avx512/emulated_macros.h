// The macros of a compiler for such a processor.
#define __AVX512F__ 1
#define __AVX512CD__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#ifdef AVX512_BF16
#define __AVX512IFMA__ 1
#define __AVX512VBMI__ 1
#define __AVX512VBMI2__ 1
#define __AVX512VNNI__ 1
#define __AVX512BITALG__ 1
#define __AVX512VPOPCNTDQ__ 1
#define __AVX512BF16__ 1
#endif
