// A stand-in for NVIDIA's driver library: the functions of the driver API that the runtime calls, on the
// host's memory. Work is queued as on a device: nothing runs before somebody waits for it, then only what
// that depends on, so that a missing wait shows as a wrong result.
//
// With -DPF_WITH_CUDA_H the prototypes are checked against NVIDIA's header; without it they stand alone.
// A module image is the text "PFSTUB <path of a shared object>", which holds for each kernel K
//     void K(void** parameters, const unsigned* dims)      dims: grid x y z, block x y z, dynamic shared
//     const char K_parameters[]                            a letter for each, as in Python's struct: "QQqf"

#include <dlfcn.h>
#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#ifdef PF_WITH_CUDA_H
#include <cuda.h>
#undef cuEventElapsedTime
#undef cuCtxSynchronize
#else
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long cuuint64_t;
typedef int CUdevice_attribute, CUpointer_attribute, CUfunction_attribute, CUstreamCaptureMode,
    CUstreamCaptureStatus;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
#endif
#define API extern "C" __attribute__((visibility("default")))

struct Op {
  std::function<void()> work;
  std::vector<std::shared_ptr<Op>> after;
  bool done = false;
};
using OpPtr = std::shared_ptr<Op>;
using Kernel = void (*)(void**, const unsigned*);

struct CUctx_st { int retained = 0; };
struct CUmod_st { void* library; };
struct CUfunc_st { Kernel kernel; std::string parameters; };
struct CUstream_st { OpPtr last; bool blocking; CUgraph capturing = nullptr; };
struct CUevent_st { OpPtr record; std::chrono::steady_clock::time_point when; bool timing; };
struct CUgraph_st { std::vector<std::function<void()>> work; };
struct CUgraphExec_st { std::vector<std::function<void()>> work; };

static std::recursive_mutex lock;
static CUctx_st primary;
static CUstream_st legacy{nullptr, true};
static std::set<CUstream> streams;
static std::set<CUevent> events;
static std::map<CUdeviceptr, size_t> device_memory;
static std::map<uintptr_t, size_t> pinned_memory;
static std::ostringstream record_of_calls;
static std::string shown;
static std::string failing;
static int failing_status, failing_after, lost, resident = 0;
static thread_local std::vector<CUcontext> contexts;

static CUresult result(int status) { return (CUresult)status; }

// Every function begins so: note the call, fail if asked to, and after a lost context always.
#define BEGIN(name)                                                                  \
  std::lock_guard<std::recursive_mutex> guard(lock);                                 \
  if (int s = begin(name)) return result(s)
#define NEEDS_CONTEXT \
  if (contexts.empty() || contexts.back() != &primary) return result(201)

static int begin(const char* name) {
  record_of_calls << name << '\n';
  if (lost) return lost;
  if (failing == name && failing_after-- == 0) {
    failing.clear();
    if (failing_status >= 700 && failing_status < 720 && failing_status != 701) lost = failing_status;
    return failing_status;
  }
  return 0;
}

static void finish(const OpPtr& op) {
  if (!op || op->done) return;
  std::vector<OpPtr> path{op};  // depth first, without recursion: queues are long
  while (!path.empty()) {
    OpPtr top = path.back();
    OpPtr next;
    for (auto& d : top->after)
      if (d && !d->done) { next = d; break; }
    if (next) {
      path.push_back(next);
    } else {
      if (!top->done) top->work();
      top->done = true;
      top->after.clear();
      path.pop_back();
    }
  }
}

static CUstream resolve(CUstream s) { return s ? s : &legacy; }
static bool known(CUstream s) { return s == &legacy || streams.count(s); }

static void queue(CUstream stream, std::function<void()> work, std::vector<OpPtr> after = {}) {
  CUstream s = resolve(stream);
  if (s->capturing) { s->capturing->work.push_back(work); return; }
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  op->after = std::move(after);
  op->after.push_back(s->last);
  if (s == &legacy) {
    for (CUstream other : streams)
      if (other->blocking) op->after.push_back(other->last);
  } else if (s->blocking) {
    op->after.push_back(legacy.last);
  }
  s->last = op;
}

static void finish_all() {
  finish(legacy.last);
  for (CUstream s : streams) finish(s->last);
}

template <class Map, class Key>
static bool inside(const Map& memory, Key address, size_t n) {
  auto it = memory.upper_bound(address);
  if (it == memory.begin()) return false;
  --it;
  return address >= it->first && address + n <= it->first + it->second;
}

// --- control, for tests ----------------------------------------------------------------------------------

API const char* pf_stub_calls() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  shown = record_of_calls.str();
  record_of_calls.str("");
  return shown.c_str();
}
API void pf_stub_fail(const char* function, int status, int after) {
  failing = function; failing_status = status; failing_after = after;
}
API void pf_stub_resident(int blocks) { resident = blocks; }
API void pf_stub_recover() { lost = 0; failing.clear(); }
API long pf_stub_allocations() { return (long)device_memory.size(); }
API long pf_stub_depth() { return (long)contexts.size(); }
API long pf_stub_retained() { return primary.retained; }

// --- device ----------------------------------------------------------------------------------------------

API CUresult cuInit(unsigned) { BEGIN("cuInit"); return result(0); }
API CUresult cuDriverGetVersion(int* v) { BEGIN("cuDriverGetVersion"); *v = 13000; return result(0); }
API CUresult cuDeviceGetCount(int* n) {
  BEGIN("cuDeviceGetCount");
  const char* given = getenv("PF_STUB_DEVICES");
  *n = given ? atoi(given) : 1;
  return result(0);
}
API CUresult cuDeviceGet(CUdevice* d, int k) { BEGIN("cuDeviceGet"); *d = k; return result(k ? 101 : 0); }
API CUresult cuDeviceGetName(char* text, int n, CUdevice) {
  BEGIN("cuDeviceGetName");
  strncpy(text, "Stub GPU", n);
  return result(0);
}
API CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice) {
  BEGIN("cuDeviceTotalMem"); *n = size_t(80) << 30; return result(0);
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  BEGIN("cuDeviceGetAttribute");
  static const std::map<int, int> known{{1, 1024}, {5, 2147483647}, {8, 49152}, {10, 32}, {16, 132},
                                        {38, 50 << 20}, {39, 2048}, {75, 9}, {76, 0}, {81, 233472},
                                        {82, 65536}, {95, 1}, {97, 232448}, {106, 32}};
  auto it = known.find((int)which);
  if (it == known.end()) return result(1);
  *value = it->second;
  return result(0);
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) {
  BEGIN("cuDevicePrimaryCtxRetain"); primary.retained++; *c = &primary; return result(0);
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  BEGIN("cuDevicePrimaryCtxRelease"); primary.retained--; return result(0);
}
API CUresult cuCtxGetCurrent(CUcontext* c) {
  BEGIN("cuCtxGetCurrent"); *c = contexts.empty() ? nullptr : contexts.back(); return result(0);
}
API CUresult cuCtxPushCurrent_v2(CUcontext c) {
  BEGIN("cuCtxPushCurrent");
  if (c != &primary) return result(201);
  contexts.push_back(c);
  return result(0);
}
API CUresult cuCtxPopCurrent_v2(CUcontext* c) {
  BEGIN("cuCtxPopCurrent");
  if (contexts.empty()) return result(201);
  if (c) *c = contexts.back();
  contexts.pop_back();
  return result(0);
}

// --- memory ----------------------------------------------------------------------------------------------

API CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  BEGIN("cuMemAlloc"); NEEDS_CONTEXT;
  if (n == 0) return result(1);
  if (n > size_t(8) << 30) return result(2);
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  memset((void*)*p, 0xA5, n);
  device_memory[*p] = n;
  return result(0);
}
API CUresult cuMemFree_v2(CUdeviceptr p) {
  BEGIN("cuMemFree"); NEEDS_CONTEXT;
  if (!device_memory.count(p)) return result(1);
  finish_all();
  device_memory.erase(p);
  free((void*)p);
  return result(0);
}
API CUresult cuMemHostAlloc(void** p, size_t n, unsigned) {
  BEGIN("cuMemHostAlloc"); NEEDS_CONTEXT;
  *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  pinned_memory[(uintptr_t)*p] = n;
  return result(0);
}
API CUresult cuMemFreeHost(void* p) {
  BEGIN("cuMemFreeHost"); NEEDS_CONTEXT;
  if (!pinned_memory.erase((uintptr_t)p)) return result(1);
  free(p);
  return result(0);
}
API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* all) {
  BEGIN("cuMemGetInfo"); NEEDS_CONTEXT;
  *all = size_t(80) << 30;
  *free_bytes = *all;
  for (auto& [p, n] : device_memory) *free_bytes -= n;
  return result(0);
}
API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr p) {
  BEGIN("cuPointerGetAttribute");
  if ((int)which != 9 || !inside(device_memory, p, 1)) return result(1);
  *(int*)value = 0;
  return result(0);
}
// Host memory of an asynchronous copy must be pinned here: the runtime stages all others itself.
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream s) {
  BEGIN("cuMemcpyHtoDAsync"); NEEDS_CONTEXT;
  if (!inside(device_memory, to, n) || !inside(pinned_memory, (uintptr_t)from, n)) return result(1);
  if (!known(resolve(s))) return result(400);
  queue(s, [=] { memcpy((void*)to, from, n); });
  return result(0);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream s) {
  BEGIN("cuMemcpyDtoHAsync"); NEEDS_CONTEXT;
  if (!inside(device_memory, from, n) || !inside(pinned_memory, (uintptr_t)to, n)) return result(1);
  if (!known(resolve(s))) return result(400);
  queue(s, [=] { memcpy(to, (void*)from, n); });
  return result(0);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  BEGIN("cuMemcpyDtoDAsync"); NEEDS_CONTEXT;
  if (!inside(device_memory, to, n) || !inside(device_memory, from, n)) return result(1);
  if (!known(resolve(s))) return result(400);
  queue(s, [=] { memmove((void*)to, (void*)from, n); });
  return result(0);
}
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t n, CUstream s) {
  BEGIN("cuMemsetD8Async"); NEEDS_CONTEXT;
  if (!inside(device_memory, to, n)) return result(1);
  if (!known(resolve(s))) return result(400);
  queue(s, [=] { memset((void*)to, byte, n); });
  return result(0);
}

// --- code ------------------------------------------------------------------------------------------------

API CUresult cuModuleLoadData(CUmodule* m, const void* image) {
  BEGIN("cuModuleLoadData"); NEEDS_CONTEXT;
  const char* text = (const char*)image;
  if (strncmp(text, "PFSTUB ", 7)) return result(200);
  void* library = dlopen(text + 7, RTLD_NOW | RTLD_LOCAL);
  if (!library) return result(209);
  *m = new CUmod_st{library};
  return result(0);
}
#ifndef PF_WITH_CUDA_H
typedef int CUjit_option;
#endif
API CUresult cuModuleLoadDataEx(CUmodule* m, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(m, image);
}
API CUresult cuModuleUnload(CUmodule m) {
  BEGIN("cuModuleUnload"); NEEDS_CONTEXT;
  finish_all();
  dlclose(m->library);
  delete m;
  return result(0);
}
API CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  BEGIN("cuModuleGetFunction"); NEEDS_CONTEXT;
  auto kernel = (Kernel)dlsym(m->library, name);
  auto letters = (const char*)dlsym(m->library, (std::string(name) + "_parameters").c_str());
  if (!kernel || !letters) return result(500);
  *f = new CUfunc_st{kernel, letters};
  return result(0);
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
  BEGIN("cuFuncGetAttribute");
  static const int known[] = {1024, 128, 0, 0, 40};
  if ((int)which < 0 || (int)which > 4) return result(1);
  *value = known[(int)which];
  return result(0);
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  BEGIN("cuFuncSetAttribute"); return result(0);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int threads, size_t) {
  BEGIN("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  *n = resident ? resident : 2048 / threads;
  return result(0);
}

static CUresult launch(CUfunction f, std::vector<unsigned> dims, CUstream s, void** parameters, void** extra) {
  if (!known(resolve(s))) return result(400);
  if (dims[3] * dims[4] * dims[5] > 1024 || !dims[0] || !dims[3]) return result(1);
  // As the driver does: parameters are copied when the launch is queued, from a table of addresses or from
  // one buffer in the layout of a struct.
  std::vector<uint64_t> cells(f->parameters.size() + 1);
  size_t at = 0;
  for (size_t k = 0; k < f->parameters.size(); ++k) {
    const char letter = f->parameters[k];
    const size_t size = strchr("Qqd", letter) ? 8 : strchr("fi", letter) ? 4 : strchr("Hh", letter) ? 2 : 1;
    at = (at + size - 1) / size * size;
    memcpy(&cells[k], parameters ? parameters[k] : (char*)extra[1] + at, size);
    at += size;
  }
  queue(s, [=]() mutable {
    std::vector<void*> table;
    for (auto& c : cells) table.push_back(&c);
    f->kernel(table.data(), dims.data());
  });
  return result(0);
}
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, CUstream s, void** parameters, void** extra) {
  BEGIN("cuLaunchKernel"); NEEDS_CONTEXT;
  return launch(f, {gx, gy, gz, bx, by, bz, shared}, s, parameters, extra);
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                       unsigned by, unsigned bz, unsigned shared, CUstream s,
                                       void** parameters) {
  BEGIN("cuLaunchCooperativeKernel"); NEEDS_CONTEXT;
  if (gx > 132u * (resident ? resident : 2048 / (bx * by * bz))) return result(720);
  return launch(f, {gx, gy, gz, bx, by, bz, shared}, s, parameters, nullptr);
}

// --- streams, events, graphs -----------------------------------------------------------------------------

API CUresult cuStreamCreate(CUstream* s, unsigned flags) {
  BEGIN("cuStreamCreate"); NEEDS_CONTEXT;
  *s = new CUstream_st{nullptr, !(flags & 1)};
  streams.insert(*s);
  return result(0);
}
API CUresult cuStreamDestroy_v2(CUstream s) {
  BEGIN("cuStreamDestroy"); NEEDS_CONTEXT;
  if (!streams.count(s)) return result(400);
  finish(s->last);
  streams.erase(s);
  delete s;
  return result(0);
}
API CUresult cuStreamSynchronize(CUstream s) {
  BEGIN("cuStreamSynchronize"); NEEDS_CONTEXT;
  if (!known(resolve(s))) return result(400);
  if (resolve(s)->capturing) return result(900);
  finish(resolve(s)->last);
  return result(0);
}
API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  BEGIN("cuStreamWaitEvent"); NEEDS_CONTEXT;
  if (!known(resolve(s)) || !events.count(e)) return result(400);
  queue(s, [] {}, {e->record});
  return result(0);
}
API CUresult cuEventCreate(CUevent* e, unsigned flags) {
  BEGIN("cuEventCreate"); NEEDS_CONTEXT;
  *e = new CUevent_st{};
  (*e)->timing = !(flags & 2);
  events.insert(*e);
  return result(0);
}
API CUresult cuEventDestroy_v2(CUevent e) {
  BEGIN("cuEventDestroy"); NEEDS_CONTEXT;
  finish(e->record);
  if (!events.erase(e)) return result(400);
  delete e;
  return result(0);
}
API CUresult cuEventRecord(CUevent e, CUstream s) {
  BEGIN("cuEventRecord"); NEEDS_CONTEXT;
  if (!known(resolve(s)) || !events.count(e)) return result(400);
  queue(s, [e] { e->when = std::chrono::steady_clock::now(); });
  e->record = resolve(s)->last;
  return result(0);
}
API CUresult cuEventSynchronize(CUevent e) {
  BEGIN("cuEventSynchronize"); NEEDS_CONTEXT;
  finish(e->record);
  return result(0);
}
API CUresult cuEventQuery(CUevent e) {
  BEGIN("cuEventQuery"); NEEDS_CONTEXT;
  return result(!e->record || e->record->done ? 0 : 600);
}
API CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) {
  BEGIN("cuEventElapsedTime"); NEEDS_CONTEXT;
  if (!a->timing || !b->timing) return result(400);
  if (!a->record || !b->record || !a->record->done || !b->record->done) return result(600);
  *ms = std::chrono::duration<float, std::milli>(b->when - a->when).count();
  return result(0);
}
API CUresult cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) { return cuEventElapsedTime(ms, a, b); }
API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* status) {
  BEGIN("cuStreamIsCapturing"); NEEDS_CONTEXT;
  *status = static_cast<CUstreamCaptureStatus>(resolve(s)->capturing != nullptr);
  return result(0);
}
API CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode) {
  BEGIN("cuStreamBeginCapture"); NEEDS_CONTEXT;
  if (!streams.count(s)) return result(900);
  s->capturing = new CUgraph_st;
  return result(0);
}
API CUresult cuStreamEndCapture(CUstream s, CUgraph* g) {
  BEGIN("cuStreamEndCapture"); NEEDS_CONTEXT;
  *g = s->capturing;
  s->capturing = nullptr;
  return result(*g ? 0 : 901);
}
API CUresult cuGraphInstantiateWithFlags(CUgraphExec* e, CUgraph g, unsigned long long) {
  BEGIN("cuGraphInstantiate"); *e = new CUgraphExec_st{g->work}; return result(0);
}
API CUresult cuGraphDestroy(CUgraph g) { BEGIN("cuGraphDestroy"); delete g; return result(0); }
API CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
  BEGIN("cuGraphLaunch"); NEEDS_CONTEXT;
  for (auto& work : e->work) queue(s, work);
  return result(0);
}
API CUresult cuGraphExecDestroy(CUgraphExec e) {
  BEGIN("cuGraphExecDestroy"); finish_all(); delete e; return result(0);
}
// How NVIDIA's Python bindings look for the functions.
#ifdef PF_WITH_CUDA_H
typedef CUdriverProcAddressQueryResult Query;
#else
typedef int Query;
#endif
API CUresult cuGetProcAddress_v2(const char* name, void** found, int, cuuint64_t, Query* status) {
  const std::string plain = strcmp(name, "cuGraphInstantiate") ? name : "cuGraphInstantiateWithFlags";
  Dl_info here;
  dladdr((void*)cuGetProcAddress_v2, &here);
  void* self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *found = dlsym(self, (plain + "_v2").c_str());
  if (!*found) *found = dlsym(self, plain.c_str());
  if (status) *status = (Query)(*found ? 0 : 1);
  return result(*found ? 0 : 500);
}
API CUresult cuGetErrorName(CUresult s, const char** text) {
  *text = (int)s == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : (int)s == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : (int)s == 999 ? nullptr : "CUDA_ERROR_OF_THE_STUB";
  return result(0);
}
API CUresult cuGetErrorString(CUresult s, const char** text) {
  *text = (int)s == 2 ? "out of memory" : (int)s == 700 ? "an illegal memory access was encountered"
          : (int)s == 999 ? nullptr : "an error of the stub";
  return result(0);
}
