// The threads of a block: which runs next, and how they wait for each other.

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
  uint64_t way;  // the loops that it is in, and which iteration of each
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
  int64_t order, seed, resident, cooperative, checked, sectors;
  int64_t stack_bytes, time_out_ms;
  int64_t shared_bytes;  // result: declared by a block
};

struct Engine : pf_emu_engine {
  Shadow shadow;
  Sectors sectors;
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
#ifdef __BMI2__
  return __builtin_ctz(_pdep_u32(1u << skip, mask));
#else
  while (skip--) mask &= mask - 1;
  return __builtin_ctz(mask);
#endif
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

void check_stack(bool whole) {
  if (__builtin_expect(whole, 1)) return;
  E.shadow.add(Problem::kStack, "", true);
  memset(E.stack.low, 0, kCanary);
  fail();
}

// Threads by plain calls, until one is next that has waited before, or none.
void run_threads() {
  for (;;) {
    E.busy = 0;
    E.launch->kernel(E.launch->slots);
    E.busy = 1;
    check_stack(E.stack.whole());
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
  check_stack((char*)__builtin_frame_address(0) > E.stack.low);
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

}  // namespace
