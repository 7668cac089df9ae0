// What sanitizers do not see by themselves (`runtime.toolchain.sanitizers`); nothing in other builds.

// An array of a worker is a part of its scratch memory, or with sanitizers an allocation of exactly its size, which
// lives as long as the call that it is an argument of. Instructions that gcc knows as functions only, loads under
// masks and stores past the caches, say which bytes they touch.
#if defined(PF_SANITIZED)
extern "C" int posix_memalign(void**, __SIZE_TYPE__, __SIZE_TYPE__) noexcept;
extern "C" void free(void*) noexcept;
extern "C" void __asan_loadN_noabort(__UINTPTR_TYPE__, __SIZE_TYPE__);
extern "C" void __asan_storeN_noabort(__UINTPTR_TYPE__, __SIZE_TYPE__);
struct pf_own {
  void* start;
  explicit pf_own(__SIZE_TYPE__ bytes) {
    if (posix_memalign(&start, 64, bytes)) __builtin_trap();
  }
  ~pf_own() { free(start); }
};
#define PF_OWN(offset, bytes) (pf_own(bytes).start)
#define PF_LOADS(at, bytes) ((bytes) > 0 ? __asan_loadN_noabort((__UINTPTR_TYPE__)(at), (bytes)) : (void)0)
#define PF_STORES(at, bytes) ((bytes) > 0 ? __asan_storeN_noabort((__UINTPTR_TYPE__)(at), (bytes)) : (void)0)
#else
#define PF_OWN(offset, bytes) (scratch + offset)
#define PF_LOADS(at, bytes) (void)0
#define PF_STORES(at, bytes) (void)0
#endif
