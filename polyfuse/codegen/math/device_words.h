// Words of launches in stages, and of those with a table of arguments.

// Memory that another stage of the launch writes: what was read of it before a barrier is not read again from
// a cache that does not see other blocks' writes.
#ifndef PF_EMULATE
#define PF_STAGE_IN(T) const T* const
#define PF_STAGE_OUT(T) T* const
#define PF_TABLE const unsigned long long* const __restrict__
#define PF_ROW const unsigned long long* const
template <class T> PF_INLINE const T* pf_in(PF_ROW row, int place) { return (const T*)row[place]; }
template <class T> PF_INLINE T* pf_out(PF_ROW row, int place) { return (T*)row[place]; }
#endif
template <class T> PF_INLINE T pf_number(PF_ROW row, int place) { return *(const T*)(row + place); }

// The part that a task belongs to: the last one whose first task is not behind it.
PF_INLINE int pf_part(const pf_i64* first, int parts, pf_i64 task) {
  int low = 0;
  for (int high = parts; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (first[middle] <= task) low = middle;
    else high = middle;
  }
  return low;
}
