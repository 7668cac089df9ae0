// What every exported library has, beside its kernels and the pool: a part of its source (codegen/cpu/exported.py).
//
// A call has its sizes, pointers and strides as arguments.  It runs on the library's own pool, or on the caller's.

#pragma once

namespace {

enum { kDone = 0, kSizes = 1, kNoKernels = 2, kNoMemory = 3, kIndex = 4, kNoBlas = 5 };  // as headers have them

typedef void (*pf_task)(void* data, int64_t k);
typedef void (*pf_caller_pool)(void* pool, int64_t count, pf_task task, void* data);

// ---- the caller's matrix products ----

typedef void (*pf_sgemm)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
typedef void (*pf_dgemm)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*,
                         int);
[[maybe_unused]] std::atomic<pf_sgemm> caller_sgemm{nullptr};
[[maybe_unused]] std::atomic<pf_dgemm> caller_dgemm{nullptr};

// ---- numbers ----

// What is divided by 0 is -1, which no size and no remainder is.
inline int64_t floor_div(int64_t a, int64_t b) {
  return b ? a / b - ((a % b != 0) && ((a < 0) != (b < 0))) : -1;
}
inline int64_t floor_mod(int64_t a, int64_t b) { return b ? a - b * floor_div(a, b) : -1; }
inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most_of(int64_t a, int64_t b) { return a < b ? b : a; }

// The strides of an array: those that were given, or dense ones; is it dense?
bool strides_of(const int64_t* given, const int64_t* extents, int64_t rank, int64_t* strides) {
  bool dense = true, empty = false;
  int64_t step = 1;
  for (int64_t d = rank; d-- > 0; step *= extents[d]) {
    strides[d] = given ? given[d] : step;
    dense = dense && (strides[d] == step || extents[d] == 1);
    empty = empty || extents[d] == 0;
  }
  return dense || empty;
}

// ---- memory of a call ----

struct Block {
  char* data = nullptr;
  explicit Block(int64_t bytes) {
    void* fresh = nullptr;
    if (posix_memalign(&fresh, 64, size_t(most_of(bytes, 64))) == 0) data = static_cast<char*>(fresh);
  }
  ~Block() { std::free(data); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
};

// ---- threads ----

std::atomic<pf_caller_pool> caller_run{nullptr};
void* caller_data = nullptr;
std::atomic<int> caller_threads{1};
std::atomic<bool> threads_chosen{false};

int cores() {
#if defined(__linux__)
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0) return CPU_COUNT(&mine);
#endif
  return 1;
}

void choose_threads(int n) {
  const int found = pf_set_threads(n);
  pf_set_spin(found <= cores() ? 1500 * 1000 : 0);
}

// Of the pool that runs the next call.
int pool_threads() {
  if (caller_run.load()) return caller_threads.load();
  if (!threads_chosen.exchange(true)) {
    const char* text = std::getenv("POLYFUSE_NUM_THREADS");
    const int wanted = text ? std::atoi(text) : 0;
    choose_threads(wanted > 0 ? wanted : cores());
  }
  return pf_threads();
}

struct Shared {  // a step whose chunks threads of the caller's pool run
  const pf_step* step;
  int64_t first;
  char* const* buf;
  const int64_t* num;
  int64_t scratch_bytes;
  FpState fp;
  std::atomic<int> failed{0};
};

void run_shared(void* data, int64_t k) {
  Shared& s = *static_cast<Shared*>(data);
  if (!scratch.grow(s.scratch_bytes)) {
    s.failed.store(ENOMEM);
    return;
  }
  const FpState before = fp_get();
  fp_set(s.fp);
  const int64_t begin = k * s.step->chunk, end = least_of(s.step->count, begin + s.step->chunk);
  s.step->run(s.buf, s.num, scratch.data, s.first + begin, s.first + end);
  fence_stores();
  fp_set(before);
}

int run_step_in(pf_caller_pool run, const pf_step& step, int64_t round, Shared& s) {
  s.step = &step;
  s.first = round * step.count;
  const int64_t chunks = chunks_of(step.count, step.chunk);
  if (step.parallel && chunks > 1) run(caller_data, chunks, run_shared, &s);
  else for (int64_t k = 0; k < chunks; ++k) run_shared(&s, k);
  return s.failed.load();
}

int run_all(const pf_step* steps, int64_t nsteps, char* const* buf, const int64_t* num, int64_t scratch_bytes,
            int64_t flags) {
  const pf_caller_pool run = caller_run.load();
  if (!run) return pf_run(steps, nsteps, buf, num, scratch_bytes, flags);
  Shared shared{nullptr, 0, buf, num, scratch_bytes, fp_for(flags)};
  for (int64_t s = 0; s < nsteps; s += steps[s].series)
    for (int64_t round = 0; round < steps[s].rounds; ++round)
      for (int64_t k = 0; k < steps[s].series; ++k)
        if (const int failed = run_step_in(run, steps[s + k], round, shared)) return failed;
  return 0;
}

}  // namespace
