// What is checked at every access: bounds, alignment, a value to read, and no other thread's access unordered
// with this one. Two accesses are ordered if between them lies
//
//   * a barrier of the block, where one block made both,
//   * a grid barrier or the start of a launch,
//   * a shuffle or __syncwarp that both lanes took part in (or a chain of them), where one warp made both.
//
// Nothing else orders, least of all the order in which this emulator happens to run things.

namespace {

enum class Problem : int {
  kRace = 1, kUnwritten, kBounds, kMisaligned, kDivergence, kNotResident, kTimeOut, kStack
};
enum class Access : int { kRead = 1, kWrite, kAtomic };
constexpr int kCounts = 6;

// One finding, as Python reads it. Threads are (block, thread in the block).
struct Finding {
  int32_t problem, line;
  char array[64];
  int64_t index, low, count;
  int64_t block, thread, access;
  int64_t other_block, other_thread, other_access;
  int64_t counts[kCounts];
};

constexpr int kThreadBits = 10, kClockBits = 22;
constexpr uint64_t kMostClock = (1u << kClockBits) - 1;
constexpr int kFindings = 64, kFindingsOfAKind = 3;
constexpr size_t kScratch = 4096;

inline uint32_t epoch_of(uint64_t slot) { return (uint32_t)(slot >> 32); }
inline unsigned thread_of(uint64_t slot) { return (unsigned)(slot >> kClockBits) & 1023; }
inline uint32_t clock_of(uint64_t slot) { return (uint32_t)(slot & kMostClock); }
inline bool same_warp(uint64_t a, uint64_t b) { return (a ^ b) >> (kClockBits + 5) == 0; }

struct Shadow {
  uint64_t key = 0;                 // now: epoch, thread, clock
  const uint32_t* seen = nullptr;   // clocks of the warp's lanes that the running thread knows to be over
  uint64_t block_time = 0;          // first key of the running block's epoch
  uint64_t grid_time = 0;           // first key since the last grid barrier or start of a launch
  uint32_t block = 0;
  uint32_t next_epoch = 1;
  std::vector<uint32_t> block_of;   // epoch -> block
  Finding findings[kFindings];
  int found = 0;
  int64_t total = 0;
  alignas(64) char scratch[kScratch];

  uint32_t new_epoch(uint32_t of_block) {
    block_of.push_back(of_block);
    return next_epoch++;
  }

  void reset() {
    next_epoch = 1;
    block_of.assign(1, 0);
    found = 0;
    total = 0;
  }

  Finding* add(Problem problem, const char* array, bool always = false) {
    ++total;
    int alike = 0;
    for (int k = 0; k < found; ++k)
      alike += findings[k].problem == (int)problem && !strncmp(findings[k].array, array, 63);
    if ((alike >= kFindingsOfAKind && !always) || found >= kFindings) return nullptr;
    Finding* f = &findings[found++];
    memset(f, 0, sizeof *f);
    f->problem = (int)problem;
    strncpy(f->array, array, 63);
    f->block = block;
    f->thread = thread_of(key);
    return f;
  }

  void note(Problem problem, const pf_emu_array* a, int64_t index, Access access, int64_t count = 1) {
    if (Finding* f = add(problem, a->name)) {
      f->index = index;
      f->low = problem == Problem::kMisaligned ? a->alignment : a->low;
      f->count = problem == Problem::kMisaligned ? count * a->size : (int64_t)a->count;
      f->access = (int)access;
    }
  }

  void race(const pf_emu_array* a, int64_t index, Access access, uint64_t slot, Access other) {
    if (Finding* f = add(Problem::kRace, a->name)) {
      f->index = index;
      f->access = (int)access;
      f->other_block = block_of[epoch_of(slot)];
      f->other_thread = thread_of(slot);
      f->other_access = (int)other;
    }
  }

  // Is what `slot` says unordered with what happens now, by another thread?
  bool unordered(uint64_t slot, uint64_t since) const {
    if (slot < since) return false;
    const uint64_t change = slot ^ key;
    if (change >> 32) return block_of[epoch_of(slot)] != block;
    if (change >> kClockBits == 0) return false;
    return change >> (kClockBits + 5) || clock_of(slot) > seen[thread_of(slot) & 31];
  }

  // Two readers are remembered, of different warps where there are such.
  void remember(pf_emu_cell* c, uint64_t since) const {
    if (c->read < since || same_warp(c->read, key))
      c->read = key;
    else if (c->other_read < since || same_warp(c->other_read, key))
      c->other_read = key;
  }

  void element(pf_emu_array* a, int64_t index, Access access) {
    pf_emu_cell* c = a->cells + (index - a->low);
    const uint64_t since = a->shared ? block_time : grid_time;
    const bool written = c->write >= a->first || c->atomic >= a->first;
    if (access != Access::kWrite && (!written || (a->shared && c->owner != a)))
      note(Problem::kUnwritten, a, index, access);
    if (unordered(c->write, since)) race(a, index, access, c->write, Access::kWrite);
    if (access != Access::kAtomic && unordered(c->atomic, since))
      race(a, index, access, c->atomic, Access::kAtomic);
    if (access == Access::kRead) return remember(c, since);
    c->owner = a;
    if (unordered(c->read, since)) race(a, index, access, c->read, Access::kRead);
    if (unordered(c->other_read, since)) race(a, index, access, c->other_read, Access::kRead);
    if (access == Access::kWrite)
      c->write = key;
    else if (c->atomic < since || !unordered(c->atomic, since))
      c->atomic = key;
  }

  bool inside(const pf_emu_array* a, int64_t index, int64_t count) const {
    const uint64_t k = (uint64_t)(index - a->low);
    return k < a->count && a->count - k >= (uint64_t)count;
  }

  // Where the elements lie; an address that does no harm if they do not exist.
  char* access(pf_emu_array* a, int64_t index, int64_t count, Access kind) {
    if (__builtin_expect(!inside(a, index, count), 0)) {
      note(Problem::kBounds, a, index, kind, count);
      memset(scratch, 0xff, kScratch);
      return scratch;
    }
    for (int64_t i = index; i < index + count; ++i) {
      pf_u32* counters = kind == Access::kRead ? a->loads : a->stores;
      if (counters) ++counters[i - a->low];
      if (a->cells) element(a, i, kind);
    }
    return a->data + index * a->size;
  }

  char* vector(pf_emu_array* a, int64_t index, int64_t count, Access kind) {
    const int64_t bytes = std::min<int64_t>(count * a->size, 16);  // of an access; a wider vector has several
    if (bytes > a->alignment || index * a->size % bytes) note(Problem::kMisaligned, a, index, kind, count);
    return access(a, index, count, kind);
  }

  char* atomic(pf_emu_array* a, int64_t index) {
    if (a->loads && inside(a, index, 1)) ++a->loads[index - a->low];
    return access(a, index, 1, Access::kAtomic);
  }
};

}  // namespace
