// The engine of the CUDA emulator: runs the blocks of a launch, a thread of a block at a time.
//
// A thread starts as a plain call on the stack of the thread before it. Only when it waits (barrier, shuffle)
// does it keep that stack, and the next thread gets another; kernels that never wait need one stack in all.
// Nobody returns to a scheduler: whoever waits or ends picks the next thread and switches to it.
//
// The order is warp-greedy: a warp runs until none of its lanes can. Which warp and which lane comes next,
// and which block, is ascending, descending or random. When no thread of a block can run, the block is over,
// or at a grid barrier, or stuck; the latter is found out, never waited for.

#ifdef __APPLE__
#define _XOPEN_SOURCE 700  // contexts
#define _DARWIN_C_SOURCE
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>
#ifdef __BMI2__
#include <immintrin.h>
#endif

#include "emulator_state.h"
#include "emulator_fibers.h"
#include "emulator_shadow.h"
#include "emulator_sectors.h"
#include "emulator_watchdog.h"
#include "emulator_threads.h"

namespace {

// ---- memory --------------------------------------------------------------------------------------------

SharedArray* shared_array(pf_emu_site* site, const pf_emu_array* home) {
  Block& b = *E.running;
  for (auto& s : b.shared)
    if (s->site == site && s->array.count == site->count) return s.get();
  b.shared.push_back(std::make_unique<SharedArray>());
  SharedArray* s = b.shared.back().get();
  const size_t bytes = site->count * site->size;
  s->site = site;
  s->serial = 0;
  if (home) {
    s->array = *home;
    s->array.count = site->count;
    s->array.name = site->name;
    return s;
  }
  s->data.reset(new char[bytes + 128]);
  s->cells.resize(E.launch->checked ? site->count : 0);
  char* base = (char*)(((uintptr_t)s->data.get() + 127) & ~(uintptr_t)127);
  s->array = {base, 0, site->count, 0, s->cells.data(), nullptr, nullptr, nullptr, 0, site->name, 128, site->size, 1};
  return s;
}

// The memory of a shared array in the running block; at its first use it holds what no program wrote.
pf_emu_array* shared(pf_emu_site* site, pf_emu_array* home) {
  E.busy = 1;
  SharedArray* s = shared_array(site, home);
  if (s->serial != E.serial) {
    s->serial = E.serial;
    if (E.launch->checked && !home) memset(s->array.data, 0xff, site->count * site->size);
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

// The same with sectors counted; an atomic update is a store. The place of an access is where its call returns to.

void touch(pf_emu_array* a, int64_t index, int64_t count, bool stores, const void* site) {
  if (!a->sectors || !E.shadow.inside(a, index, count)) return;
  const uint64_t place = place_in_block(E.current), block = E.running->serial;
  E.busy = 1;
  const uint64_t lane = block << 10 | place, warp = block << 5 | place / kLanes;
  E.sectors.touch(a, index, count, stores, site, E.current->way, lane, warp, E.shadow.grid_time);
  E.busy = 0;
}

#define PF_EMU_TOUCH(count, stores) touch(a, index, count, stores, __builtin_return_address(0))
const char* load_counted(pf_emu_array* a, int64_t index) {
  PF_EMU_TOUCH(1, false);
  return load(a, index);
}
char* store_counted(pf_emu_array* a, int64_t index) {
  PF_EMU_TOUCH(1, true);
  return store(a, index);
}
const char* load_vector_counted(pf_emu_array* a, int64_t index, int count) {
  PF_EMU_TOUCH(count, false);
  return load_vector(a, index, count);
}
char* store_vector_counted(pf_emu_array* a, int64_t index, int count) {
  PF_EMU_TOUCH(count, true);
  return store_vector(a, index, count);
}
char* address_counted(pf_emu_array* a, int64_t index) {
  PF_EMU_TOUCH(1, true);
  return address(a, index);
}
#undef PF_EMU_TOUCH

uint64_t enter_loop(int line) {
  Thread& t = *E.current;
  const uint64_t before = t.way, lane = E.running->serial << 10 | (uint64_t)place_in_block(&t);
  E.busy = 1;
  t.way = E.sectors.entered(before, (uint64_t)line, lane);
  E.busy = 0;
  return before;
}

void leave_loop(uint64_t way) { E.current->way = way; }

// Which functions kernels call.
void attach_accesses(bool counted) {
  E.load = counted ? load_counted : load;
  E.store = counted ? store_counted : store;
  E.load_vector = counted ? load_vector_counted : load_vector;
  E.store_vector = counted ? store_vector_counted : store_vector;
  E.address = counted ? address_counted : address;
}

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
    t.way = 0;
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
    if (s->serial == b.serial && s->data) bytes += (int64_t)s->array.count * s->array.size;
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
  const bool all = (int64_t)waiting.size() == E.launch->blocks;
  if (!all || elsewhere) return note_grid_stuck(waiting, elsewhere, started);
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
  const bool reverse = (Order)l.order == Order::kReverse;
  for (int64_t k = 0; k < l.blocks; ++k) ids[k] = (uint32_t)(reverse ? l.blocks - 1 - k : k);
  std::vector<Block*> waiting, going;
  int64_t started = 0;
  const auto mix = [](auto& list) {
    if ((Order)E.launch->order == Order::kRandom)
      for (size_t k = list.size(); k > 1; --k) std::swap(list[k - 1], list[draw() % k]);
  };
  const auto run = [&](Block* b) {
    if (!run_block(*b)) return waiting.push_back(b);
    measure_shared(*b);
    if (!l.cooperative) E.sectors.clear();  // else others have begun
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
  static_cast<pf_emu_engine&>(E) = {
      {}, {}, {}, {}, 0, load, store, load_vector, store_vector, address, shared,
      block_barrier, grid_barrier, exchange, active_lanes, enter_loop, leave_loop};
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
  attach_accesses(launch->sectors);
  E.sectors.clear();
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
