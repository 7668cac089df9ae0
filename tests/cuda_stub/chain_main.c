// A program that uses the header of an exported operator, with a driver that tells what it is asked.

#include "f.h"

static int modules, nnames;
static const char* names[64];

CUresult cuModuleLoadData(CUmodule* m, const void* data) {
  *m = (CUmodule)(uintptr_t)(++modules);
  return ((const char*)data)[0] == 0;
}
CUresult cuModuleUnload(CUmodule m) { return m == NULL; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  names[nnames] = name;
  *f = (CUfunction)(uintptr_t)nnames++;
  return m == NULL;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  (void)f, (void)a, (void)v;
  return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char b, size_t n, CUstream s) {
  (void)s;
  printf("fill %llu %d %zu\n", (unsigned long long)p, b, n);
  return 0;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  (void)s;
  printf("copy %llu %llu %zu\n", (unsigned long long)to, (unsigned long long)from, n);
  return 0;
}
static CUresult told(CUfunction f, unsigned g, unsigned x, unsigned y, unsigned shared, int together, void** p) {
  printf("launch %s %u %u %u %u %d", names[(uintptr_t)f], g, x, y, shared, together);
  printf(" %lld %lld\n", (long long)*(int64_t*)p[0], (long long)*(int64_t*)p[1]);
  return 0;
}
CUresult cuLaunchKernel(CUfunction f, unsigned g, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                        unsigned shared, CUstream s, void** p, void** extra) {
  (void)gy, (void)gz, (void)z, (void)s, (void)extra;
  return told(f, g, x, y, shared, 0, p);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned g, unsigned gy, unsigned gz, unsigned x, unsigned y,
                                   unsigned z, unsigned shared, CUstream s, void** p) {
  (void)gy, (void)gz, (void)z, (void)s;
  return told(f, g, x, y, shared, 1, p);
}

int main(int argc, char** argv) {
  polyfuse_chain_kernels k;
  int r = polyfuse_chain_load(&k, argv[1]);
  const int64_t t = atoll(argv[2]), h = atoll(argv[3]), strides[2] = {1, t};
  const int64_t* given = argc > 4 ? strides : NULL;
  printf("loaded %d\nworkspace %lld\n", r, (long long)polyfuse_chain_workspace(t, h));
  r = polyfuse_chain(&k, t, h, 4096, given, 3.0f, 1 << 20, 2 << 20, 4 << 20, NULL);
  printf("done %d\n", r);
  r = polyfuse_chain(&k, t, h, 4096, given, 3.0f, 1 << 20, 2 << 20, 0, NULL);
  printf("without %d\n", r);
  return polyfuse_chain_unload(&k);
}
