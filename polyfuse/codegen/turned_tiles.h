// Tiles of memory turned around (`codegen.transposed`). PF_VECTOR is the machine's width in bytes.

// The numbers 0 .. N - 1 as a pack.
template <int... L> struct pf_numbers {};
template <int N, int... L> struct pf_below : pf_below<N - 1, N - 1, L...> {};
template <int... L> struct pf_below<0, L...> { typedef pf_numbers<L...> type; };
template <int SIZE> struct pf_bits;
template <> struct pf_bits<1> { typedef unsigned char type; };
template <> struct pf_bits<2> { typedef unsigned short type; };
template <> struct pf_bits<4> { typedef unsigned int type; };
template <> struct pf_bits<8> { typedef unsigned long long type; };
// Squares of N elements of SIZE bytes go through registers, in log2(N) rounds over pairs of vectors whose numbers
// differ in one bit.  Within pieces of 16 bytes lanes of both are taken by turns, which machines do in one
// instruction; vectors are then numbered with these bits the other way round.  Whole pieces are exchanged.
// AHEAD asks for the lines of the next square: hardware does not follow so many rows.
template <int SIZE, int N, int AHEAD> struct pf_square {
  typedef typename pf_bits<SIZE>::type T;
  typedef T V __attribute__((vector_size(SIZE * N)));
  typedef typename pf_below<N>::type Lanes;
  struct __attribute__((packed, may_alias)) A { V v; };
  static constexpr int PIECE = 16 / SIZE < N ? 16 / SIZE : N;
  // The lane, of two vectors one after the other, that a round puts into lane l of the lower or the upper one.
  static constexpr int lane(int l, int bit, int upper) {
    if (bit >= PIECE) return l & bit ? N + (upper ? l : l - bit) : (upper ? l + bit : l);
    const int group = l % PIECE / bit + upper * (PIECE / bit);
    return l / PIECE * PIECE + group / 2 * bit + l % bit + group % 2 * N;
  }
  static constexpr int place(int k) {
    int reversed = k / PIECE * PIECE;
    for (int bit = 1; bit < PIECE; bit *= 2) reversed += k & bit ? PIECE / 2 / bit : 0;
    return reversed;
  }
  template <int BIT, int UPPER, int... L> PF_INLINE V chosen(V a, V b, pf_numbers<L...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, lane(L, BIT, UPPER)...);
#else
    return __builtin_shuffle(a, b, V{lane(L, BIT, UPPER)...});
#endif
  }
  template <int BIT> PF_INLINE void rounds(V* v) {
    if constexpr (BIT < N) {
#pragma GCC unroll 16
      for (int k = 0; k < N; ++k)
        if (!(k & BIT)) {
          const V a = v[k], b = v[k | BIT];
          v[k] = chosen<BIT, 0>(a, b, Lanes());
          v[k | BIT] = chosen<BIT, 1>(a, b, Lanes());
        }
      rounds<2 * BIT>(v);
    }
  }
  PF_INLINE void turn(T* to, pf_i64 room, const T* from, pf_i64 step) {
    V v[N];
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) {
      v[k] = ((const A*)(from + k * step))->v;
      if (AHEAD) __builtin_prefetch(from + (k + N) * step);
    }
    rounds<1>(v);
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) ((A*)(to + k * room))->v = v[place(k)];
  }
  // Along the memory whose rows are farther apart: eight of them that crowd in one set of a cache find room.
  PF_INLINE void all(T* to, pf_i64 room, const T* from, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
    const bool far = room > step;
    const pf_i64 outer = far ? rows : lanes, inner = far ? lanes : rows;
    for (pf_i64 i = 0; i < outer; i += N) {
      const pf_i64 o = i + N <= outer ? i : outer - N;
      for (pf_i64 j = 0; j < inner; j += N) {
        const pf_i64 n = j + N <= inner ? j : inner - N, r = far ? o : n, l = far ? n : o;
        turn(to + r * room + l, room, from + l * step + r, step);
      }
    }
  }
};
// `rows` times `lanes` elements: in `to` rows are `room` apart and neighbours in them `next`, in `from` rows
// are `along` and neighbours `step`.  Where `next` and `along` are 1, by squares.
template <int SIZE, int AHEAD>
static __attribute__((noinline)) void pf_turn(void* to, pf_i64 room, pf_i64 next, const void* from,
    pf_i64 along, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
  typedef typename pf_bits<SIZE>::type T;
  typedef T A __attribute__((may_alias));
  const int most = PF_VECTOR / SIZE < 16 ? PF_VECTOR / SIZE : 16;
  const pf_i64 least = along != 1 || next != 1 ? 0 : rows < lanes ? rows : lanes;
  if (least >= most)
    return pf_square<SIZE, most, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  if (most > 8 && least >= 8)
    return pf_square<SIZE, 8, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  if (most > 4 && least >= 4)
    return pf_square<SIZE, 4, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  for (pf_i64 r = 0; r < rows; ++r)
    for (pf_i64 l = 0; l < lanes; ++l)
      ((A*)to)[r * room + l * next] = ((const A*)from)[r * along + l * step];
}
