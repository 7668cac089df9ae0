// What the CUDA prelude needs of CUDA, for g++ and one thread at a time.
#include <cmath>
#define PF_EMULATE
#define __device__
#define __forceinline__ inline __attribute__((always_inline))

struct Index { unsigned x, y; };
static Index threadIdx, blockDim = {32, 1};
static double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }

// A lane's k-th shuffle gives what its partner has at its own k-th shuffle: the partner's call is run from the
// start, and left when it gets there.
struct There {};
static int shuffles, wanted = -1, moved_size;
static unsigned lanes_seen;
static double moved_f;
static long long moved_i;
static void (*lane_call)();

template <class T> static T __shfl_xor_sync(unsigned lanes, T value, int step) {
  const unsigned lane = threadIdx.x + 32u * threadIdx.y, number = lane % 32;
  if (!(lanes >> number & 1) || !(lanes >> (number ^ step) & 1)) throw "a lane that the mask leaves out";
  if (shuffles++ == wanted) {
    moved_f = (double)value;
    moved_i = (long long)value;
    throw There();
  }
  const int count = shuffles, outer = wanted;
  const Index self = threadIdx;
  wanted = count - 1;
  shuffles = 0;
  threadIdx.x = self.x ^ step;
  lanes_seen |= lanes;
  try { lane_call(); } catch (There) {}
  threadIdx = self;
  shuffles = count;
  wanted = outer;
  return T(0.5) == T(0) ? (T)moved_i : (T)moved_f;
}

// The first exchange after `disturbed` was set comes too late: somebody has changed that byte.
extern "C" { unsigned char* disturbed; }
template <class T> static T atomicCAS(T* word, T expected, T value) {
  if (disturbed) *disturbed ^= 0x2a;
  disturbed = nullptr;
  const T old = *word;
  if (old == expected) *word = value;
  return old;
}
template <class T> static void atomicAdd(T* p, T v) { *p = (T)(*p + v); }
template <class T> static void atomicMin(T* p, T v) { *p = v < *p ? v : *p; }
template <class T> static void atomicMax(T* p, T v) { *p = v > *p ? v : *p; }
