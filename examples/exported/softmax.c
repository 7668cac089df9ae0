/* Calls softmax from a library that polyfuse wrote; there is no Python here.
 *
 *   polyfuse build stdlib:softmax -o out
 *   cc -I out examples/exported/softmax.c out/softmax.so -Wl,-rpath,out -lm -lpthread -o softmax && ./softmax
 */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "softmax.h"

/* A pool of the caller: it starts two threads for each step. */
typedef struct {
  void (*task)(void*, int64_t);
  void* data;
  int64_t first, count;
} work;

static void* half(void* argument) {
  const work* w = argument;
  for (int64_t k = w->first; k < w->count; k += 2) w->task(w->data, k);
  return NULL;
}

static void two_threads(void* pool, int64_t count, void (*task)(void*, int64_t), void* data) {
  work works[2] = {{task, data, 0, count}, {task, data, 1, count}};
  pthread_t other;
  const int alone = pthread_create(&other, NULL, half, &works[1]);
  half(&works[0]);
  if (alone) half(&works[1]);
  else pthread_join(other, NULL);
  ++*(int*)pool;
}

/* The largest difference from softmax in double, relative to it; strides are in elements. */
static double worst(const float* x, const float* y, int64_t rows, int64_t length, int64_t row, int64_t column) {
  double found = 0;
  for (int64_t t = 0; t < rows; ++t) {
    double most = -INFINITY, sum = 0;
    for (int64_t h = 0; h < length; ++h) most = fmax(most, x[t * row + h * column]);
    for (int64_t h = 0; h < length; ++h) sum += exp(x[t * row + h * column] - most);
    for (int64_t h = 0; h < length; ++h) {
      const double wanted = exp(x[t * row + h * column] - most) / sum;
      found = fmax(found, fabs(y[t * length + h] - wanted) / wanted);
    }
  }
  return found;
}

static int check(int64_t rows, int64_t length) {
  float* x = malloc(sizeof(float) * rows * length);
  float* y = malloc(sizeof(float) * rows * length);
  if (!x || !y) return 1;
  for (int64_t k = 0; k < rows * length; ++k) x[k] = (float)(k * 7 % 31) / 8;

  int status = polyfuse_softmax(rows, length, x, NULL, y);
  double error = status ? 1 : worst(x, y, rows, length, length, 1);

  const int64_t columns_first[] = {1, rows}; /* the same memory as a matrix that is stored by columns */
  if (!status) status = polyfuse_softmax(rows, length, x, columns_first, y);
  if (!status) error = fmax(error, worst(x, y, rows, length, 1, rows));

  printf("%lld x %lld: status %d, error %.1e\n", (long long)rows, (long long)length, status, error);
  free(x);
  free(y);
  return status || !(error < 1e-5);
}

int main(void) {
  int steps = 0, wrong = 0;
  const int64_t sizes[][2] = {{1, 1}, {3, 7}, {1000, 64}, {257, 1000}, {129, 5000}};
  const int n = sizeof sizes / sizeof sizes[0];
  printf("%d threads of the library\n", polyfuse_softmax_set_threads(2));
  for (int k = 0; k < n; ++k) wrong += check(sizes[k][0], sizes[k][1]);
  polyfuse_softmax_use_pool(two_threads, &steps, 2);
  for (int k = 0; k < n; ++k) wrong += check(sizes[k][0], sizes[k][1]);
  printf("the pool of the caller ran %d steps\n", steps);
  if (polyfuse_softmax(3, 0, NULL, NULL, NULL) != POLYFUSE_SIZES) ++wrong; /* softmax needs H >= 1 */
  return wrong || !steps;
}
