// The engine of the CUDA emulator: runs the blocks of a launch, a thread of a block at a time.
//
// A thread starts as a plain call on the stack of the thread before it. Only when it waits (barrier, shuffle)
// does it keep that stack, and the next thread gets another; kernels that never wait need one stack in all.
// Nobody returns to a scheduler: whoever waits or ends picks the next thread and switches to it.
//
// The order is warp-greedy: a warp runs until none of its lanes can. Which warp and which lane comes next, and
// which block, is ascending, descending or random. When no thread of a block can run, the block is over, or at
// a grid barrier, or stuck; the latter is found out, never waited for.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emulator_state.h"
#include "emulator_fibers.h"
#include "emulator_shadow.h"
#include "emulator_watchdog.h"

namespace {

constexpr int kLanes = 32;

enum class Order : int { kForward, kReverse, kRandom };
enum class Wait : uint8_t { kNothing, kBlock, kLanes, kGrid, kEnded };

struct Thread {
  pf_emu_index index;
  Context context;  // null: not started
  Stack stack;
  Wait wait;
  int line;
  // at a shuffle
  unsigned lanes;
  int step, bytes;
  uint64_t value;
};

struct Warp {
  unsigned ready, alive, waiting;  // lanes: can run, have not ended, are at a shuffle
  bool synced;                     // `clock` is not as a barrier of the block leaves it
  uint32_t clock[kLanes][kLanes];  // [lane][other]: up to where the lane knows the other
};

// A shared array, kept for later blocks.
struct SharedArray {
  pf_emu_array array;
  pf_emu_site* site;
  uint64_t serial;
  std::unique_ptr<char[]> data;
  std::vector<pf_emu_cell> cells;
};

struct Block {
  uint32_t id;
  uint64_t serial, first;  // first key of its first epoch
  uint32_t epoch;
  unsigned ready;  // warps with lanes that can run
  int warp;        // the one that runs
  unsigned ended, at_barrier, at_grid;
  int barrier_line, grid_line;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<SharedArray>> shared;
};

struct Launch {  // as Python fills it
  void (*kernel)(void* const*);
  void* const* slots;
  int64_t blocks, threads_x, threads_y;
  int64_t order, seed, resident, cooperative, checked;
  int64_t stack_bytes, time_out_ms;
  int64_t shared_bytes;  // result: declared by a block
};

struct Engine : pf_emu_engine {
  Shadow shadow;
  Stacks stacks;
  Stack stack{};  // that runs; none: the caller's
  Context caller = nullptr;
  Launch* launch = nullptr;
  Block* running = nullptr;
  Thread* current = nullptr;
  uint64_t random = 0, serials = 0;
  bool failed = false;
  volatile int busy = 0;  // data of the engine is in between: the watchdog comes back later
  std::vector<std::unique_ptr<Block>> blocks_made;
  std::vector<Block*> blocks_free;
} E;

uint64_t draw() {
  E.random ^= E.random << 13;
  E.random ^= E.random >> 7;
  E.random ^= E.random << 17;
  return E.random;
}

// ---- which thread is next ------------------------------------------------------------------------------

int choose(unsigned mask) {
  switch ((Order)E.launch->order) {
    case Order::kForward: return __builtin_ctz(mask);
    case Order::kReverse: return 31 - __builtin_clz(mask);
    default: break;
  }
  unsigned skip = (unsigned)(((draw() >> 32) * (unsigned)__builtin_popcount(mask)) >> 32);
  while (skip--) mask &= mask - 1;
  return __builtin_ctz(mask);
}

// The next thread of the running block, or null if none can run.
Thread* next_thread() {
  Block& b = *E.running;
  if (!b.ready) return nullptr;
  if (!(b.ready >> b.warp & 1)) b.warp = choose(b.ready);
  Warp& w = b.warps[b.warp];
  const int lane = choose(w.ready);
  w.ready &= ~(1u << lane);
  if (!w.ready) b.ready &= ~(1u << b.warp);
  return &b.threads[b.warp * kLanes + lane];
}

int place_in_block(const Thread* t) { return (int)(t - E.running->threads.data()); }
Warp& warp_of(int place) { return E.running->warps[place / kLanes]; }

// The kernel sees, and accesses count as those of, this thread from now on.
void enter(Thread* t) {
  const int place = place_in_block(t), lane = place % kLanes;
  const Warp& w = warp_of(place);
  E.current = t;
  E.thread = t->index;
  t->wait = Wait::kNothing;
  E.shadow.key = (uint64_t)E.running->epoch << 32 | (uint64_t)place << kClockBits | w.clock[lane][lane];
  E.shadow.seen = w.clock[lane];
}

// Abandons all threads: nothing of a kernel needs to be undone.
[[noreturn]] void fail() {
  E.failed = true;
  E.busy = 1;
  Context nowhere;
  Stack own = E.stack;
  switch_context(&own, &nowhere, E.caller);
  abort();
}

void check_stack() {
  if (__builtin_expect(E.stack.whole(), 1)) return;
  E.shadow.add(Problem::kStack, "", true);
  fail();
}

// Threads by plain calls, until one is next that has waited before, or none.
void run_threads() {
  for (;;) {
    E.busy = 0;
    E.launch->kernel(E.launch->slots);
    E.busy = 1;
    check_stack();
    const int place = place_in_block(E.current);
    E.current->wait = Wait::kEnded;
    ++E.running->ended;
    warp_of(place).alive &= ~(1u << place % kLanes);
    Thread* next = next_thread();
    if (next) enter(next);
    if (next && !next->context) continue;
    Stack own = E.stack;
    E.stacks.give(own);  // nobody takes it before the switch
    Context nowhere;
    E.stack = next ? next->stack : Stack{};
    switch_context(&own, &nowhere, next ? next->context : E.caller);
  }
}

// From the running thread, which waits, to the next; returns when it can go on.
void wait_for_others() {
  Thread* own = E.current;
  check_stack();
  Thread* next = next_thread();
  if (next == own) {
    enter(next);
    E.busy = 0;
    return;
  }
  own->stack = E.stack;
  Context to = E.caller;
  Stack stack{};
  if (next) {
    enter(next);
    const bool fresh = !next->context;
    stack = fresh ? E.stacks.take() : next->stack;
    to = fresh ? fresh_context(stack, run_threads) : next->context;
  }
  E.stack = stack;
  switch_context(&own->stack, &own->context, to);
  E.busy = 0;
}

// ---- clocks and epochs ---------------------------------------------------------------------------------

void start_epoch(Block& b) {
  b.epoch = E.shadow.new_epoch(b.id);
  E.shadow.block_time = (uint64_t)b.epoch << 32;
  for (Warp& w : b.warps) {
    if (!w.synced) continue;
    w.synced = false;
    memset(w.clock, 0, sizeof w.clock);
    for (int k = 0; k < kLanes; ++k) w.clock[k][k] = 1;
  }
}

// Lanes that met know all that each of them knew, and go on to a time of their own.
void join(Warp& w, unsigned lanes) {
  uint32_t known[kLanes] = {};
  for (unsigned left = lanes; left; left &= left - 1) {
    const uint32_t* row = w.clock[__builtin_ctz(left)];
    for (int k = 0; k < kLanes; ++k) known[k] = row[k] > known[k] ? row[k] : known[k];
  }
  for (unsigned left = lanes; left; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    memcpy(w.clock[lane], known, sizeof known);
    if (known[lane] < kMostClock) ++w.clock[lane][lane];
  }
  w.synced = true;
}

// ---- waiting -------------------------------------------------------------------------------------------

// The block is stuck for good at what `t` waits for; `other` is a thread that is the reason.
void note_stuck(const Thread* t, const Thread* other) {
  if (Finding* f = E.shadow.add(Problem::kDivergence, "", true)) {
    f->line = t->line;
    f->thread = place_in_block(t);
    f->access = (int)t->wait;
    f->index = t->wait == Wait::kLanes ? t->lanes : 0;
    f->other_block = E.running->id;
    f->other_thread = other ? place_in_block(other) : -1;
    f->other_access = other ? (int)other->wait : 0;
    f->low = other && other->wait != Wait::kEnded ? other->line : 0;
    f->count = (int64_t)E.running->threads.size();
    for (const Thread& x : E.running->threads) ++f->counts[(int)x.wait];
  }
}

[[noreturn]] void stuck(const Thread* t, const Thread* other) {
  note_stuck(t, other);
  fail();
}

void all_ready(Block& b) {
  b.ready = 0;
  for (size_t k = 0; k < b.warps.size(); ++k) {
    b.warps[k].ready = b.warps[k].alive;
    if (b.warps[k].ready) b.ready |= 1u << k;
  }
}

void block_barrier(int line) {
  E.busy = 1;
  Block& b = *E.running;
  Thread* own = E.current;
  own->wait = Wait::kBlock;
  own->line = line;
  if (b.at_barrier++ == 0) b.barrier_line = line;
  if (line != b.barrier_line) {
    for (const Thread& t : b.threads)
      if (t.wait == Wait::kBlock && t.line != line) stuck(own, &t);
  }
  if (b.at_barrier == b.threads.size()) {
    b.at_barrier = 0;
    start_epoch(b);
    all_ready(b);
  }
  wait_for_others();
}

void grid_barrier(const void*, int line) {
  E.busy = 1;
  if (!E.launch->cooperative) {
    if (Finding* f = E.shadow.add(Problem::kNotResident, "", true)) f->line = line;
    fail();
  }
  Block& b = *E.running;
  E.current->wait = Wait::kGrid;
  E.current->line = line;
  if (b.at_grid++ == 0) b.grid_line = line;
  if (line != b.grid_line) stuck(E.current, nullptr);
  wait_for_others();
}

// All lanes named wait for each other; each gets what the lane `step` away (exclusive or) gave.
uint64_t exchange(unsigned lanes, uint64_t value, int step, int bytes, int line) {
  E.busy = 1;
  Thread* own = E.current;
  const int place = place_in_block(own), lane = place % kLanes;
  Thread* all = own - lane;
  Warp& w = warp_of(place);
  own->wait = Wait::kLanes;
  own->line = line;
  own->lanes = lanes;
  own->step = step;
  own->bytes = bytes;
  own->value = value;
  const unsigned source = 1u << ((lane ^ step) & (kLanes - 1));
  if (!(lanes >> lane & 1) || !(lanes & source)) stuck(own, own);
  if (lanes & ~w.alive) {
    const int missing = __builtin_ctz(lanes & ~w.alive), other = place - lane + missing;
    stuck(own, other < (int)E.running->threads.size() ? all + missing : nullptr);
  }
  w.waiting |= 1u << lane;
  bool together = (w.waiting & lanes) == lanes;
  for (unsigned left = together ? lanes : 0; left; left &= left - 1) {
    const Thread& t = all[__builtin_ctz(left)];
    if (t.lanes != lanes)
      together = false;  // it waits for others, and may come here yet
    else if (t.line != line || t.step != step || t.bytes != bytes)
      stuck(own, &t);
  }
  if (together) {
    uint64_t given[kLanes];
    for (unsigned left = lanes; left; left &= left - 1) {
      const int k = __builtin_ctz(left);
      given[k] = all[k].value;
    }
    for (unsigned left = lanes; left; left &= left - 1) {
      const int k = __builtin_ctz(left);
      all[k].value = given[(k ^ step) & (kLanes - 1)];
    }
    if (E.launch->checked) join(w, lanes);
    w.waiting &= ~lanes;
    w.ready |= lanes;
    E.running->ready |= 1u << place / kLanes;
  }
  wait_for_others();
  return own->value;
}

unsigned active_lanes() {
  const Warp& w = warp_of(place_in_block(E.current));
  return w.alive & ~w.waiting;
}

// ---- memory --------------------------------------------------------------------------------------------

SharedArray* shared_array(pf_emu_site* site) {
  Block& b = *E.running;
  for (auto& s : b.shared)
    if (s->site == site && s->array.count == site->count) return s.get();
  b.shared.push_back(std::make_unique<SharedArray>());
  SharedArray* s = b.shared.back().get();
  const size_t bytes = site->count * site->size;
  s->site = site;
  s->serial = 0;
  s->data.reset(new char[bytes + 128]);
  s->cells.resize(E.launch->checked ? site->count : 0);
  char* base = (char*)(((uintptr_t)s->data.get() + 127) & ~(uintptr_t)127);
  s->array = pf_emu_array{base, 0, site->count, 0, s->cells.data(), nullptr, nullptr, 0, site->name, 128, site->size, 1};
  return s;
}

// The memory of a shared array in the running block; at its first use it holds what no program wrote.
pf_emu_array* shared(pf_emu_site* site) {
  E.busy = 1;
  SharedArray* s = shared_array(site);
  if (s->serial != E.serial) {
    s->serial = E.serial;
    if (E.launch->checked) memset(s->array.data, 0xff, site->count * site->size);
    s->array.first = E.running->first;
  }
  site->serial = E.serial;
  site->array = &s->array;
  E.busy = 0;
  return &s->array;
}

const char* load(pf_emu_array* a, int64_t index) { return E.shadow.access(a, index, 1, Access::kRead); }
char* store(pf_emu_array* a, int64_t index) { return E.shadow.access(a, index, 1, Access::kWrite); }
const char* load_vector(pf_emu_array* a, int64_t index, int count) {
  return E.shadow.vector(a, index, count, Access::kRead);
}
char* store_vector(pf_emu_array* a, int64_t index, int count) {
  return E.shadow.vector(a, index, count, Access::kWrite);
}
char* address(pf_emu_array* a, int64_t index) { return E.shadow.atomic(a, index); }

// ---- blocks --------------------------------------------------------------------------------------------

Block* new_block(uint32_t id) {
  if (E.blocks_free.empty()) {
    E.blocks_made.push_back(std::make_unique<Block>());
    E.blocks_free.push_back(E.blocks_made.back().get());
  }
  Block& b = *E.blocks_free.back();
  E.blocks_free.pop_back();
  const int nx = (int)E.launch->threads_x, n = nx * (int)E.launch->threads_y;
  b.id = id;
  b.serial = ++E.serials;
  b.warp = 0;
  b.ended = b.at_barrier = b.at_grid = 0;
  b.threads.resize(n);
  b.warps.resize((n + kLanes - 1) / kLanes);
  for (int k = 0; k < n; ++k) {
    Thread& t = b.threads[k];
    t.index = {(unsigned)(k % nx), (unsigned)(k / nx), 0};
    t.context = nullptr;
    t.wait = Wait::kNothing;
    t.line = 0;
  }
  for (size_t k = 0; k < b.warps.size(); ++k) {
    const int lanes = n - (int)k * kLanes;
    b.warps[k].alive = lanes >= kLanes ? 0xffffffffu : (1u << lanes) - 1;
    b.warps[k].waiting = 0;
    b.warps[k].synced = true;  // so that the first epoch sets the clocks
  }
  start_epoch(b);
  b.first = (uint64_t)b.epoch << 32;
  all_ready(b);
  return &b;
}

// All alive threads wait, and not all for the same.
void note_block_stuck(const Block& b) {
  const Thread* waiting = nullptr;
  for (const Thread& t : b.threads)
    if (t.wait != Wait::kEnded && (!waiting || t.wait < waiting->wait)) waiting = &t;
  const Thread* other = nullptr;
  for (const Thread& t : b.threads)
    if (t.wait != waiting->wait && (!other || other->wait == Wait::kEnded)) other = &t;
  note_stuck(waiting, other);
  E.failed = true;
}

// Runs a block until it is over (true) or at a grid barrier with all its threads (false).
bool run_block(Block& b) {
  E.running = &b;
  E.serial = b.serial;
  E.block = {b.id, 0, 0};
  E.shadow.block = b.id;
  E.shadow.block_time = (uint64_t)b.epoch << 32;
  b.warp = choose(b.ready);
  Thread* first = next_thread();
  enter(first);
  E.stack = first->context ? first->stack : E.stacks.take();
  Context to = first->context ? first->context : fresh_context(E.stack, run_threads);
  switch_context(nullptr, &E.caller, to);
  if (!E.failed && b.ended != b.threads.size() && b.at_grid != b.threads.size()) note_block_stuck(b);
  return E.failed || b.ended == b.threads.size();
}

void measure_shared(const Block& b) {
  int64_t bytes = 0;
  for (auto& s : b.shared)
    if (s->serial == b.serial) bytes += (int64_t)s->array.count * s->array.size;
  if (bytes > E.launch->shared_bytes) E.launch->shared_bytes = bytes;
}

void new_grid_interval() { E.shadow.grid_time = (uint64_t)E.shadow.next_epoch << 32; }

// Why the blocks at the grid barrier cannot go on: not all blocks of the grid come there.
void note_grid_stuck(const std::vector<Block*>& waiting, const Block* elsewhere, int64_t started) {
  const Launch& l = *E.launch;
  E.shadow.block = waiting[0]->id;
  E.shadow.key = 0;
  E.failed = true;
  const Problem problem = started < l.blocks ? Problem::kNotResident : Problem::kDivergence;
  if (Finding* f = E.shadow.add(problem, "", true)) {
    f->line = waiting[0]->grid_line;
    f->access = (int)Wait::kGrid;
    f->count = l.blocks;
    f->index = (int64_t)waiting.size();
    f->other_thread = -2;
    f->low = elsewhere ? elsewhere->grid_line : 0;
  }
}

// Lets the blocks at the grid barrier go on, if all of the grid are there.
void release_grid(const std::vector<Block*>& waiting, int64_t started) {
  const Block* elsewhere = nullptr;
  for (const Block* b : waiting)
    if (b->grid_line != waiting[0]->grid_line) elsewhere = b;
  if ((int64_t)waiting.size() < E.launch->blocks || elsewhere) return note_grid_stuck(waiting, elsewhere, started);
  new_grid_interval();
  for (Block* b : waiting) {
    b->at_grid = 0;
    start_epoch(*b);
    all_ready(*b);
  }
}

void run_grid() {
  Launch& l = *E.launch;
  const int64_t limit = l.resident > 0 ? l.resident : l.blocks;
  std::vector<uint32_t> ids(l.blocks);
  for (int64_t k = 0; k < l.blocks; ++k) ids[k] = (uint32_t)((Order)l.order == Order::kReverse ? l.blocks - 1 - k : k);
  std::vector<Block*> waiting, going;
  int64_t started = 0;
  const auto mix = [](auto& list) {
    if ((Order)E.launch->order == Order::kRandom)
      for (size_t k = list.size(); k > 1; --k) std::swap(list[k - 1], list[draw() % k]);
  };
  const auto run = [&](Block* b) {
    if (!run_block(*b)) return waiting.push_back(b);
    measure_shared(*b);
    E.blocks_free.push_back(b);
  };
  mix(ids);
  new_grid_interval();
  for (;;) {
    while (!E.failed && started < l.blocks && (int64_t)waiting.size() < limit) run(new_block(ids[started++]));
    if (E.failed || waiting.empty()) return;
    release_grid(waiting, started);
    if (E.failed) return;
    going.swap(waiting);
    waiting.clear();
    mix(going);
    for (Block* b : going)
      if (!E.failed) run(b);
  }
}

}  // namespace

void pf_emu_time_is_up() {
  if (E.busy) return;
  E.busy = 1;
  E.shadow.add(Problem::kTimeOut, "", true);
  fail();
}

extern "C" pf_emu_engine* pf_emu_start() {
  static_cast<pf_emu_engine&>(E) = {{}, {}, {}, {}, 0, load, store, load_vector, store_vector, address, shared,
                                    block_barrier, grid_barrier, exchange, active_lanes};
  return &E;
}

// A run is several launches on the same memory, whose cells are zero when it begins.
extern "C" void pf_emu_begin_run() { E.shadow.reset(); }

// Runs one launch; the number of findings so far, and 1 in `stopped` if it could not be finished.
extern "C" int64_t pf_emu_run_launch(Launch* launch, int32_t* stopped) {
  E.launch = launch;
  E.threads = {(unsigned)launch->threads_x, (unsigned)launch->threads_y, 1};
  E.blocks = {(unsigned)launch->blocks, 1, 1};
  E.random = (uint64_t)launch->seed * 0x9e3779b97f4a7c15ull | 1;
  for (int k = 0; k < 8; ++k) draw();
  E.failed = false;
  E.busy = 1;
  E.stack = Stack{};
  E.stacks.prepare((size_t)launch->stack_bytes);
  E.blocks_free.clear();
  for (auto& b : E.blocks_made) {
    b->shared.clear();  // of another kernel
    E.blocks_free.push_back(b.get());
  }
  {
    Watchdog watchdog(launch->time_out_ms);
    run_grid();
  }
  *stopped = E.failed;
  return E.shadow.total;
}

extern "C" int pf_emu_findings(const Finding** findings) {
  *findings = E.shadow.findings;
  return E.shadow.found;
}
