// What stands for kernels in tests of the runtime: plain functions on the host, in the form that libcuda_stub.cpp
// calls.  NAME_parameters has a letter for each parameter, as in Python's struct.

#include <cstdint>

#define KERNEL(name, letters)                    \
  extern "C" const char name##_parameters[] = letters; \
  extern "C" void name(void** p, const unsigned* dims)
#define ARG(T, k) (*(T*)p[k])

// y[i] = a * x[i * stride] for i < n
KERNEL(scale, "QQfqq") {
  (void)dims;
  const float* x = ARG(const float*, 0);
  float* y = ARG(float*, 1);
  for (int64_t i = 0; i < ARG(int64_t, 3); ++i) y[i] = ARG(float, 2) * x[i * ARG(int64_t, 4)];
}

// y[i] = x[i] + 1 for i < n
KERNEL(plus_one, "QQq") {
  (void)dims;
  const float* x = ARG(const float*, 0);
  float* y = ARG(float*, 1);
  for (int64_t i = 0; i < ARG(int64_t, 2); ++i) y[i] = x[i] + 1;
}

// p[i] += old[n - 1 - i], reading the entry values in reverse
KERNEL(add_reversed, "QQq") {
  (void)dims;
  const float* old = ARG(const float*, 0);
  float* now = ARG(float*, 1);
  const int64_t n = ARG(int64_t, 2);
  for (int64_t i = 0; i < n; ++i) now[i] += old[n - 1 - i];
}

// Counts the calls that found their barrier state clear, and leaves it dirty; blocks go to y[1].
KERNEL(wait_all, "QQ") {
  float* y = ARG(float*, 0);
  uint32_t* state = ARG(uint32_t*, 1);
  y[0] += state[0] == 0 && state[1] == 0;
  y[1] = (float)dims[0];
  state[0] = state[1] = 7;
}

// A checked build: status gets the number of the check that failed. i counts as in Python
KERNEL(checked, "QQQ") {
  (void)dims;
  const int64_t i = ARG(const int64_t*, 0)[0];
  if (i < 0) *ARG(int64_t*, 2) = 1;
  if (i > 9) *ARG(int64_t*, 2) = 2;
  ARG(float*, 1)[0] = (float)i;
}

// Every type by value: their bits, one after another
KERNEL(values, "QdfqihbBHHB") {
  (void)dims;
  double* y = ARG(double*, 0);
  y[0] = ARG(double, 1);
  y[1] = ARG(float, 2);
  y[2] = (double)ARG(int64_t, 3);
  y[3] = ARG(int32_t, 4);
  y[4] = ARG(int16_t, 5);
  y[5] = ARG(int8_t, 6);
  y[6] = ARG(uint8_t, 7);
  y[7] = ARG(uint16_t, 8);
  y[8] = ARG(uint16_t, 9);
  y[9] = ARG(uint8_t, 10);
}
