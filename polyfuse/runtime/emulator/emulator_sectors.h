// Memory transactions: the sectors of 32 bytes that the lanes of a warp touch together.
//
// Lanes run one after another here, so what they do together is found afterwards. Accesses of two lanes belong
// together if they are made at the same place of the source, and both lanes came there by the same loops: in the
// same iteration of each, as far as that can be told from how often a lane entered a loop, or made the access,
// since the loop around began. A GPU lets lanes meet again at the end of a loop in the same way.

namespace {

constexpr int kSectorBytes = 32;
constexpr int kFetched = 2;  // counter of a buffer after loads and stores

inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 29) * 0x94d049bb133111ebull;
  return x ^ x >> 32;
}

// Keys that are hashes, each with a number; 0 is no key.
struct Tally {
  struct Slot {
    uint64_t key, times;
  };
  std::vector<Slot> slots = std::vector<Slot>(1024);
  size_t used = 0;

  // How often a key was met before.
  uint64_t met(uint64_t key) {
    if (used * 2 > slots.size()) grow();
    Slot& s = find(key | 1);
    used += !s.key;
    s.key = key | 1;
    return s.times++;
  }

  Slot& find(uint64_t key) {
    size_t k = key >> 20 & (slots.size() - 1);
    while (slots[k].key && slots[k].key != key) k = (k + 1) & (slots.size() - 1);
    return slots[k];
  }

  void grow() {
    std::vector<Slot> old(slots.size() * 2);
    old.swap(slots);
    for (const Slot& s : old)
      if (s.key) find(s.key) = s;
  }

  void clear() {
    if (used) std::fill(slots.begin(), slots.end(), Slot{});
    used = 0;
  }
};

struct Sectors {
  Tally lanes;  // by lane: loops entered, accesses made
  Tally warps;  // by warp: sectors touched
  Tally blocks;  // by block: sectors loaded since the last barrier of the grid

  void clear() {
    lanes.clear();
    warps.clear();
    blocks.clear();
  }

  // The way of a lane from here on: in a loop, the so-manieth time since the loop around began.
  uint64_t entered(uint64_t way, uint64_t loop, uint64_t lane) {
    const uint64_t here = mixed(way, loop);
    return mixed(here, lanes.met(mixed(here, lane)) + 1);
  }

  void touch(pf_emu_array* a, int64_t index, int64_t count, bool stores, const void* site, uint64_t way,
             uint64_t lane, uint64_t warp, uint64_t since) {
    uint64_t here = mixed(way, (uint64_t)site * 2 + stores);
    here = mixed(mixed(here, lanes.met(mixed(here, lane)) + 1), warp);
    const int64_t first = index * a->size, last = first + count * a->size - 1;
    for (int64_t k = first >> 5; k <= last >> 5; ++k) {
      const uint64_t sector = mixed((uint64_t)(uintptr_t)a->data, (uint64_t)k);
      if (warps.met(mixed(here, sector))) continue;
      ++a->sectors[stores];
      if (!stores && !blocks.met(mixed(mixed(warp >> 5, since), sector))) ++a->sectors[kFetched];
    }
  }
};

static_assert(kSectorBytes == 1 << 5, "shifts by 5 are divisions");

}  // namespace
