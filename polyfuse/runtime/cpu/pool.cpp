// The thread pool that runs compiled kernels: one parallel region per call, over all its steps.
//
// Why not OpenMP: libgomp hangs in forked children, clashes with the copy that torch brings, and
// costs more for small work.  What this file promises:
//
//  * A step is cut into chunks.  Each thread has a share of them, always the same one and in one
//    piece, so that a core finds in its caches what it wrote in the step or the call before; who is
//    done with his own share claims chunks of the others.  The caller works too.
//  * Between two steps the caller waits until all chunks are *finished*.  It never waits for a
//    worker that claimed nothing, so a worker that is asleep or preempted costs nobody anything.
//  * A worker that the system put on the caller's core, where it waits while others are idle, is moved
//    away from it once; it may run on all its cores as before.
//  * Steps may be a series that is repeated, as the steps of a recurrence are: between two rounds of it the
//    caller waits as between any two steps.  Workers that sleep are called in the first round, and in later
//    ones only where a round is long beside a call: a short one is done before they come.
//  * Without a parallel step nobody is woken and no thread is started.
//  * A second thread that calls while a region runs does its own steps alone, chunk by chunk, with
//    bitwise the same results, because the chunks are the same.  Kernels must not call pf_run.
//  * Kernels run with round-to-nearest, no traps and exactly the requested denormal mode in every
//    thread; the floating-point state of the caller is as before when pf_run returns.
//  * After fork() the child has no workers and starts new ones when it needs them.
//
// Claims are safe against late workers because nothing about a step is read before a claim has
// succeeded, and after that the step cannot end before the chunk does.  A share is claimed from an
// atomic count of the chunks left in it, which only the caller ever raises, when the step is written.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef void (*pf_kernel)(char* const* buf, const int64_t* num, char* scratch, int64_t begin, int64_t end);
struct pf_step {
  pf_kernel run;     // called for [begin, end) inside [0, count)
  int64_t count;     // iterations
  int64_t chunk;     // iterations a thread claims at a time; <= 0 means all
  int64_t parallel;  // 0: all chunks on the caller, in order
  int64_t series;    // this step and those after it, so many in all, follow one another ...
  int64_t rounds;    // ... so many times; in round r its iterations are [r * count, (r + 1) * count)
};

namespace {

constexpr int64_t kFlushDenormals = 1;
constexpr int kMaxThreads = 1024;
constexpr int64_t kPoliteNs = 50 * 1000;  // spinning longer than this, let others have the core
constexpr int64_t kMissedNs = 30 * 1000;  // a worker that claimed nothing for this long is missed,
constexpr int64_t kPatienceNs = 1000 * 1000;  // and moved at most this often
constexpr int64_t kCallNs = 50 * 1000;  // a shorter round is not worth calling a sleeping worker for

// ---- floating-point state ------------------------------------------------------------------
#if defined(__x86_64__)
typedef unsigned FpState;
inline FpState fp_get() { return _mm_getcsr(); }
inline void fp_set(FpState s) { _mm_setcsr(s); }
inline FpState fp_for(int64_t flags) { return 0x1f80u | (flags & kFlushDenormals ? 0x8040u : 0u); }
constexpr FpState kRaised = 0x3fu;  // what has happened so far, which controls nothing
inline void pause_cpu() { _mm_pause(); }
inline void fence_stores() { _mm_sfence(); }  // non-temporal stores are ordered by nothing else
#elif defined(__aarch64__)
typedef uint64_t FpState;
inline FpState fp_get() { FpState s; __asm__ volatile("mrs %0, fpcr" : "=r"(s)); return s; }
inline void fp_set(FpState s) { __asm__ volatile("msr fpcr, %0" ::"r"(s)); }
inline FpState fp_for(int64_t flags) { return flags & kFlushDenormals ? FpState(1) << 24 : 0; }
constexpr FpState kRaised = 0;
inline void pause_cpu() { __asm__ volatile("yield"); }
inline void fence_stores() {}
#else
typedef int FpState;
inline FpState fp_get() { return 0; }
inline void fp_set(FpState) {}
inline FpState fp_for(int64_t) { return 0; }
constexpr FpState kRaised = 0;
inline void pause_cpu() {}
inline void fence_stores() {}
#endif

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// ---- scratch memory, one piece per thread, kept and grown -----------------------------------
struct Scratch {
  char* data = nullptr;
  int64_t size = 0;
  ~Scratch() { std::free(data); }

  bool grow(int64_t bytes) {
    if (bytes <= size) return true;
    constexpr size_t kPage = 4096, kHuge = size_t(2) << 20;
    const size_t align = size_t(bytes) >= kHuge ? kHuge : kPage;
    const size_t rounded = (size_t(bytes) + align - 1) & ~(align - 1);
    void* fresh = nullptr;
    if (rounded < size_t(bytes) || posix_memalign(&fresh, align, rounded) != 0) return false;
#if defined(MADV_HUGEPAGE)
    if (align == kHuge) madvise(fresh, rounded, MADV_HUGEPAGE);
#endif
    std::free(data);
    data = static_cast<char*>(fresh);
    size = int64_t(rounded);
    return true;
  }
};
thread_local Scratch scratch;

// ---- the current step ------------------------------------------------------------------------
struct alignas(64) Job {
  pf_kernel run;
  char* const* buf;
  const int64_t* num;
  int64_t first, count, chunk, chunks, scratch_bytes;  // iterations [first, first + count)
  int shares;
  FpState fp;

  // Where a share begins; share `shares` is the end of all.
  int64_t share(int k) const { return chunks / shares * k + chunks % shares * k / shares; }
};
struct alignas(64) Counter { std::atomic<int64_t> value{0}; };

Job job;                     // written by the caller while no chunk is claimed or claimable
Counter left[kMaxThreads];   // chunks of each share that nobody has claimed; 0 where there is no share
Counter steps_written;       // grows by one with each step: workers look for chunks when it does
Counter finished;            // chunks of the step that are done
std::atomic<int> failure{0};

std::atomic<bool> busy{false};      // a region runs, or the pool is being changed
std::atomic<int> target{1};         // threads wanted, the caller included
std::atomic<int64_t> spin_ns{1500 * 1000};
std::atomic<int> sleepers{0};
std::atomic<bool> caller_sleeps{false};
std::atomic<int64_t> wakeups{0};    // times a sleeping worker was called: for tests and reports
std::atomic<int64_t> moves{0};      // times a worker was moved off the caller's core: likewise
int64_t moved_at = 0;               // when that was last; guarded by busy
int64_t missed_since = 0;           // begin of the first of the last steps in which a worker was missed, or 0
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t work = PTHREAD_COND_INITIALIZER;
pthread_cond_t all_done = PTHREAD_COND_INITIALIZER;
pthread_t ids[kMaxThreads];
int started = 0;                    // workers that exist; guarded by busy

inline int64_t chunk_of(int64_t count, int64_t chunk) { return chunk > 0 ? chunk : count; }

inline int64_t chunks_of(int64_t count, int64_t chunk) {
  return count <= 0 ? 0 : (count - 1) / chunk_of(count, chunk) + 1;
}

void run_chunk(int64_t index) {
  if (!scratch.grow(job.scratch_bytes)) {
    failure.store(ENOMEM);
    return;
  }
  if ((fp_get() ^ job.fp) & ~kRaised) fp_set(job.fp);  // a worker's; the caller has it, until pf_run ends
  const int64_t begin = index * job.chunk;
  const int64_t end = job.count - begin > job.chunk ? begin + job.chunk : job.count;
  job.run(job.buf, job.num, scratch.data, job.first + begin, job.first + end);
  fence_stores();
}

// Claim and run chunks of a share until none is left.
void help_with(int share) {
  std::atomic<int64_t>& count = left[share].value;
  int64_t seen = count.load(std::memory_order_acquire);
  while (seen > 0) {
    if (!count.compare_exchange_weak(seen, seen - 1)) continue;
    const int64_t chunks = job.chunks;  // stable from the claim until `finished` counts this chunk
    run_chunk(job.share(share + 1) - seen);
    if (finished.value.fetch_add(1) + 1 == chunks && caller_sleeps.load()) {
      pthread_mutex_lock(&mutex);
      pthread_cond_signal(&all_done);
      pthread_mutex_unlock(&mutex);
    }
    seen = count.load(std::memory_order_acquire);
  }
}

// The thread's own share first, then those of the threads after it, around.
void help(int id) {
  const int threads = target.load();
  for (int k = 0; k < threads; ++k) help_with((id + k) % threads);
}

// Spin until `ready()`, at most spin_ns; whether it became so.
template <class Ready>
bool spin_until(Ready ready) {
  const int64_t limit = spin_ns.load(std::memory_order_relaxed);
  const int64_t start = now_ns();
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    const int64_t spent = now_ns() - start;
    if (spent >= limit) return false;
    if (spent >= kPoliteNs) sched_yield();
  }
}

void* worker(void* argument) {
  const int id = int(reinterpret_cast<intptr_t>(argument));
  int64_t seen = 0;
  const auto called = [&] { return steps_written.value.load() != seen || id >= target.load(); };
  while (id < target.load()) {
    seen = steps_written.value.load();
    help(id);
    if (spin_until(called)) continue;
    pthread_mutex_lock(&mutex);
    sleepers.fetch_add(1);
    while (!called()) pthread_cond_wait(&work, &mutex);
    sleepers.fetch_sub(1);
    pthread_mutex_unlock(&mutex);
  }
  return nullptr;
}

// The child of a fork has none of the workers, and locks in whatever state they were.
void in_forked_child() {
  const pthread_mutex_t free_mutex = PTHREAD_MUTEX_INITIALIZER;
  const pthread_cond_t free_cond = PTHREAD_COND_INITIALIZER;
  mutex = free_mutex;
  work = free_cond;
  all_done = free_cond;
  for (Counter& share : left) share.value.store(0);
  finished.value.store(0);
  sleepers.store(0);
  caller_sleeps.store(false);
  started = 0;
  busy.store(false);
}

__attribute__((constructor)) void on_load() { pthread_atfork(nullptr, nullptr, in_forked_child); }

void start_workers() {
  const int wanted = target.load() - 1;
  if (started >= wanted) return;
  sigset_t all, before;  // signals belong to the threads of the program
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < wanted) {
    void* id = reinterpret_cast<void*>(intptr_t(started + 1));
    if (pthread_create(&ids[started], nullptr, worker, id) != 0) {
      target.store(started + 1);  // the system gives no more: go on with those we have
      break;
    }
    ++started;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void run_in_order(const pf_step& step, int64_t round, char* const* buf, const int64_t* num) {
  const int64_t chunk = chunk_of(step.count, step.chunk), first = round * step.count;
  for (int64_t begin = 0; begin < step.count; begin += chunk) {
    const int64_t end = step.count - begin > chunk ? begin + chunk : step.count;
    step.run(buf, num, scratch.data, first + begin, first + end);
    if (end == step.count) break;  // begin + chunk might overflow
  }
}

#if defined(__linux__)
// Two threads that are woken together may get one core, and stay there for several milliseconds before
// the system moves one to an idle core: forbidding the worker this core for a moment moves it now.
void move_away(pthread_t thread, int cpu) {
  cpu_set_t usual, elsewhere;
  if (cpu < 0 || cpu >= CPU_SETSIZE || pthread_getaffinity_np(thread, sizeof usual, &usual) != 0) return;
  elsewhere = usual;
  CPU_CLR(cpu, &elsewhere);
  if (!CPU_ISSET(cpu, &usual) || CPU_COUNT(&elsewhere) == 0) return;
  if (pthread_setaffinity_np(thread, sizeof elsewhere, &elsewhere) != 0) return;
  pthread_setaffinity_np(thread, sizeof usual, &usual);
  moves.fetch_add(1, std::memory_order_relaxed);
}

// Has the worker claimed nothing of its share?
bool missing(int worker) {
  const int64_t all = job.share(worker + 1) - job.share(worker);
  return all > 0 && left[worker].value.load() == all;
}

// Of the workers that have claimed nothing while the caller did all of its own share, in the step that began
// then, or in all that ended since one of them was missed first.
void look_for_missing(int64_t began) {
  const int last = job.shares - 1 < started ? job.shares - 1 : started;
  bool any = false;
  for (int k = 1; k <= last; ++k) any = any || missing(k);
  if (missed_since == 0 || !any) missed_since = any ? began : 0;
  if (!any) return;
  const int64_t now = now_ns();
  if (now - missed_since < kMissedNs || now - moved_at < kPatienceNs) return;
  const int cpu = sched_getcpu();
  for (int k = 1; k <= last; ++k)
    if (missing(k)) move_away(ids[k - 1], cpu);
  moved_at = now;
}
#else
void look_for_missing(int64_t) {}
#endif

// All chunks of the job, of a round that began then; `calling`: workers that sleep are woken for it.
void run_together(bool calling, int64_t began) {
  const int64_t chunks = job.chunks;
  finished.value.store(0);
  for (int k = 0; k < job.shares; ++k) left[k].value.store(job.share(k + 1) - job.share(k));
  steps_written.value.fetch_add(1);
  // Either a worker going to sleep sees the chunks, or we see the sleeper (both sides are seq_cst).
  const int asleep = calling ? sleepers.load() : 0;
  if (asleep > 0) {
    pthread_mutex_lock(&mutex);
    const int64_t calls = chunks - 1 < asleep ? chunks - 1 : asleep;
    for (int64_t i = 0; i < calls; ++i) pthread_cond_signal(&work);
    pthread_mutex_unlock(&mutex);
    wakeups.fetch_add(calls, std::memory_order_relaxed);
  }
  help_with(0);
  look_for_missing(began);
  help(0);
  const auto complete = [chunks] { return finished.value.load() == chunks; };
  if (complete() || spin_until(complete)) return;
  pthread_mutex_lock(&mutex);
  caller_sleeps.store(true);
  while (!complete()) pthread_cond_wait(&all_done, &mutex);
  caller_sleeps.store(false);
  pthread_mutex_unlock(&mutex);
}

int run_region(const pf_step* steps, int64_t nsteps, char* const* buf, const int64_t* num,
               int64_t scratch_bytes, FpState fp) {
  start_workers();
  failure.store(0);
  missed_since = 0;
  const auto run_step = [&](const pf_step& step, int64_t round, bool calling, int64_t began) {
    const int64_t chunks = chunks_of(step.count, step.chunk), first = round * step.count;
    if (!step.parallel || chunks <= 1) {
      run_in_order(step, round, buf, num);
      fence_stores();
      return;
    }
    job = Job{step.run, buf, num, first, step.count, step.chunk, chunks, scratch_bytes, target.load(), fp};
    run_together(calling, began);
  };
  for (int64_t s = 0; s < nsteps; s += steps[s].series) {
    int64_t began = 0;
    for (int64_t round = 0; round < steps[s].rounds; ++round) {
      const int64_t now = now_ns();
      const bool calling = round == 0 || now - began > kCallNs;
      began = now;
      for (int64_t k = 0; k < steps[s].series; ++k) run_step(steps[s + k], round, calling, began);
    }
  }
  return failure.load();
}

// The same on the caller alone.
void run_alone(const pf_step* steps, int64_t nsteps, char* const* buf, const int64_t* num) {
  for (int64_t s = 0; s < nsteps; s += steps[s].series)
    for (int64_t round = 0; round < steps[s].rounds; ++round)
      for (int64_t k = 0; k < steps[s].series; ++k) run_in_order(steps[s + k], round, buf, num);
  fence_stores();
}

}  // namespace

// Run all steps; 0, or ENOMEM if scratch memory could not be had (results are then undefined).
// scratch_bytes: what every thread's `scratch` holds at least, 64-byte aligned, contents undefined.
// flags: bit 0 flushes denormals to zero inside the kernels.
extern "C" int pf_run(const pf_step* steps, int64_t nsteps, char* const* buf, const int64_t* num,
                      int64_t scratch_bytes, int64_t flags) {
  if (!scratch.grow(scratch_bytes)) return ENOMEM;
  bool wide = false;
  if (target.load(std::memory_order_relaxed) > 1)
    for (int64_t s = 0; s < nsteps && !wide; ++s)
      wide = steps[s].parallel && chunks_of(steps[s].count, steps[s].chunk) > 1;
  const FpState before = fp_get();
  const FpState fp = fp_for(flags);
  fp_set(fp);
  int result = 0;
  if (wide && !busy.exchange(true, std::memory_order_acquire)) {
    result = run_region(steps, nsteps, buf, num, scratch_bytes, fp);
    busy.store(false, std::memory_order_release);
  } else {
    run_alone(steps, nsteps, buf, num);
  }
  fp_set(before);
  return result;
}

// Change the number of threads (the caller included; 1 to 1024); waits for a running region.
// Workers too many end here, missing ones start with the next region.
extern "C" int pf_set_threads(int n) {
  n = n < 1 ? 1 : n > kMaxThreads ? kMaxThreads : n;
  while (busy.exchange(true, std::memory_order_acquire)) sched_yield();
  target.store(n);
  if (started > n - 1) {
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&mutex);
    for (; started > n - 1; --started) pthread_join(ids[started - 1], nullptr);
  }
  busy.store(false, std::memory_order_release);
  return n;
}

// How long idle threads spin before they sleep, in nanoseconds.
extern "C" void pf_set_spin(int64_t ns) { spin_ns.store(ns < 0 ? 0 : ns); }

extern "C" int pf_threads() { return target.load(); }
extern "C" int pf_started() { return started; }
extern "C" int64_t pf_wakeups() { return wakeups.load(); }
extern "C" int64_t pf_moves() { return moves.load(); }

// The floating-point control state of this thread (mxcsr or fpcr; 0 where unknown).
extern "C" int64_t pf_fp_state() { return int64_t(fp_get()); }
