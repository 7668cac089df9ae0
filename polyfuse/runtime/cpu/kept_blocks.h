// Memory that calls lent to their results, kept for the next call that needs as much of it: a part of launcher.cpp.
//
// The arena (`memory.py`) makes blocks and takes them back in Python, for 3 us, and for 10 us where a kernel has just
// filled the caches. Who holds a block is known by the references to its array: those of results on it, and ours.

struct Kept {
  int64_t bytes;  // as the layout of a call asks for them
  Object array;
  int64_t extent;  // of the array, of bytes, as it was lent
};

constexpr int64_t kMostKept = 16;
Kept kept[kMostKept];  // the one used last in front: its lines may still be cached
int64_t nkept, kept_bytes, most_kept_bytes;

// Has anything but the list a reference to an array? Its count is the lower half of the word.
inline bool lent(Object array) { return static_cast<uint32_t>(static_cast<pf_array*>(array)->references) > 1; }

// Is it the array that was lent? Whoever has a result has its base too, and may resize that in place.
inline bool whole(const Kept& one) {
  const pf_array& a = *static_cast<pf_array*>(one.array);
  return a.rank == 1 && *a.extents == one.extent && a.dtype == py.byte_dtype;
}

void drop(Object* objects, int64_t count) {
  for (int64_t k = 0; k < count; ++k) py.decref(objects[k]);
}

void put_in_front(Kept one, int64_t before) {
  std::memmove(kept + 1, kept, size_t(before) * sizeof(Kept));
  kept[0] = one;
}

// A reference to a block that nobody uses, or null.
Object kept_block(int64_t bytes) {
  for (int64_t k = 0; k < nkept; ++k) {
    if (kept[k].bytes != bytes || lent(kept[k].array) || !whole(kept[k])) continue;
    put_in_front(kept[k], k);
    return owned(kept[0].array);
  }
  return nullptr;
}

// Remember a block; those that have not been used for longest are forgotten for it, which may run Python code.
void keep(int64_t bytes, Object array) {
  if (bytes > most_kept_bytes) return;
  Object gone[kMostKept];
  int64_t ngone = 0;
  while (nkept == kMostKept || kept_bytes + bytes > most_kept_bytes) {
    kept_bytes -= kept[--nkept].bytes;
    gone[ngone++] = kept[nkept].array;
  }
  put_in_front(Kept{bytes, owned(array), *static_cast<pf_array*>(array)->extents}, nkept++);
  kept_bytes += bytes;
  drop(gone, ngone);
}

void forget_all() {
  Object gone[kMostKept];
  const int64_t ngone = nkept;
  for (int64_t k = 0; k < ngone; ++k) gone[k] = kept[k].array;
  nkept = kept_bytes = 0;
  drop(gone, ngone);
}
