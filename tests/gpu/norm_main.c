// Launches an exported operator at several sizes and compares with the same in double: `norm_main FOLDER`.

#include <math.h>

#include "norm.h"

#define CHECK(call)                                          \
  do {                                                       \
    const int failed = (int)(call);                          \
    if (failed) return printf("%s: %d\n", #call, failed), 1; \
  } while (0)

static float number(int64_t k) { return (float)((k * 7919) % 101) / 50.0f - 1.0f; }

static int run(const polyfuse_norm_kernels* kernels, int64_t t, int64_t h) {
  const size_t n = (size_t)(t * h), room = (size_t)polyfuse_norm_workspace(t, h);
  float *x = malloc(n * 4), *y = malloc(n * 4), *g = malloc((size_t)h * 4);
  for (int64_t k = 0; k < t * h; ++k) x[k] = number(k);
  for (int64_t k = 0; k < h; ++k) g[k] = number(k + 3);
  CUdeviceptr dx, dg, dy, ds, space;
  CHECK(cuMemAlloc(&dx, n * 4));
  CHECK(cuMemAlloc(&dg, (size_t)h * 4));
  CHECK(cuMemAlloc(&dy, n * 4));
  CHECK(cuMemAlloc(&ds, (size_t)h * 4));
  CHECK(cuMemAlloc(&space, room ? room : 1));
  CHECK(cuMemcpyHtoD(dx, x, n * 4));
  CHECK(cuMemcpyHtoD(dg, g, (size_t)h * 4));
  CHECK(polyfuse_norm(kernels, t, h, dx, NULL, dg, NULL, 1e-5f, dy, ds, space, NULL));
  CHECK(cuCtxSynchronize());
  CHECK(cuMemcpyDtoH(y, dy, n * 4));
  for (int64_t r = 0; r < t; ++r) {
    double m = 0, v = 0;
    for (int64_t k = 0; k < h; ++k) m += x[r * h + k];
    m /= (double)h;
    for (int64_t k = 0; k < h; ++k) v += (x[r * h + k] - m) * (x[r * h + k] - m);
    for (int64_t k = 0; k < h; ++k) {
      const double want = (x[r * h + k] - m) / sqrt(v / (double)h + 1e-5) * g[k];
      if (!(fabs(y[r * h + k] - want) < 1e-4)) return printf("%g, not %g\n", y[r * h + k], want), 1;
    }
  }
  CHECK(cuMemFree(dx));
  CHECK(cuMemFree(dg));
  CHECK(cuMemFree(dy));
  CHECK(cuMemFree(ds));
  CHECK(cuMemFree(space));
  free(x), free(y), free(g);
  return 0;
}

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  polyfuse_norm_kernels kernels;
  if (argc < 2) return 2;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(polyfuse_norm_load(&kernels, argv[1]));
  CHECK(run(&kernels, 3, 5));
  CHECK(run(&kernels, 1000, 768));
  CHECK(run(&kernels, 4, 5000));
  CHECK(polyfuse_norm_unload(&kernels));
  return 0;
}
