// Tiles of memory turned around (`codegen.transforms.transpose_loads`). PF_VECTOR is the machine's width in bytes.

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
// AHEAD = 1 asks for the lines of the next square: hardware does not follow so many rows. With 2, lines of `to` come
// from farther away than those of `from`.
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
      if (AHEAD == 1) __builtin_prefetch(from + (k + N) * step);
    }
    rounds<1>(v);
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) ((A*)(to + k * room))->v = v[place(k)];
  }
  // Along the memory whose rows are farther apart, or come from farther away: eight of them that crowd in one set of a cache find room.
  PF_INLINE void all(T* to, pf_i64 room, const T* from, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
    const bool far = AHEAD == 2 || (room < 0 ? -room : room) > (step < 0 ? -step : step);
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
// are `along` and neighbours `step`.  Where both `next` and `along` are 1 or -1, by squares.
template <int SIZE, int AHEAD>
static __attribute__((noinline)) void pf_turn(void* to, pf_i64 room, pf_i64 next, const void* from,
    pf_i64 along, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
  typedef typename pf_bits<SIZE>::type T;
  typedef T A __attribute__((may_alias));
  if (along == -1) {
    to = (T*)to + (rows - 1) * room, from = (const T*)from - (rows - 1);
    room = -room, along = 1;
  }
  if (next == -1) {
    to = (T*)to - (lanes - 1), from = (const T*)from + (lanes - 1) * step;
    step = -step, next = 1;
  }
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
// Rows of H elements, one behind the other, N of them at a time, apart: vectors of the first, the second, ...
// elements. Lane l of these is element H l + k of what the rows are together, and comes from one of H vectors.
template <int SIZE, int H, int N> struct pf_rows {
  typedef typename pf_bits<SIZE>::type T;
  typedef T V __attribute__((vector_size(SIZE * N)));
  typedef typename pf_below<N>::type Lanes;
  struct __attribute__((packed, may_alias)) A { V v; };
  // The lane of two vectors, what there is so far and vector S, for lane l of number K of the results.
  template <int K, int S, bool APART> static constexpr int lane(int l) {
    const int at = APART ? H * l + K : N * K + l;
    const int from = APART ? at / N : at % H, place = APART ? at % N : at / H;
    return from == S ? N + place : S == 1 && from == 0 ? place : l;
  }
  template <int K, int S, bool APART, int... L> PF_INLINE V found(const V* x, V so_far, pf_numbers<L...> all) {
    if constexpr (S == H) return so_far;
#if defined(__clang__) || __GNUC__ >= 12
    else return found<K, S + 1, APART>(x, __builtin_shufflevector(so_far, x[S], lane<K, S, APART>(L)...), all);
#else
    else return found<K, S + 1, APART>(x, __builtin_shuffle(so_far, x[S], V{lane<K, S, APART>(L)...}), all);
#endif
  }
  template <int K, bool APART> PF_INLINE void each(T* to, pf_i64 step, const V* x) {
    if constexpr (K < H) {
      ((A*)(to + K * step))->v = found<K, 1, APART>(x, x[0], Lanes());
      each<K + 1, APART>(to, step, x);
    }
  }
  template <bool APART> PF_INLINE void turn(T* to, pf_i64 to_step, const T* from, pf_i64 step) {
    V x[H];
#pragma GCC unroll 16
    for (int k = 0; k < H; ++k) x[k] = ((const A*)(from + k * step))->v;
    each<0, APART>(to, to_step, x);
  }
};
// Lanes of a vector, of `most`, that so many elements fill: a power of two.
constexpr int pf_whole(int most, int elements) { return most <= elements ? most : pf_whole(most / 2, elements); }
// `pf_turn` of ROWS times LANES elements. Rows that lie one behind the other take no squares.
template <int SIZE, int ROWS, int LANES>
PF_INLINE void pf_turn_short(void* to, pf_i64 room, pf_i64 next, const void* from, pf_i64 along, pf_i64 step) {
  typedef typename pf_bits<SIZE>::type T;
  constexpr bool apart = ROWS < LANES;
  constexpr int length = apart ? ROWS : LANES, many = apart ? LANES : ROWS;
  constexpr int lanes = pf_whole(PF_VECTOR / SIZE, many);
  if (many % lanes || room != LANES || next != 1 || along != 1 || step != ROWS)
    return pf_turn<SIZE, 0>(to, room, next, from, along, step, ROWS, LANES);
#pragma GCC unroll 4
  for (int l = 0; l < many; l += lanes) {
    T* const t = (T*)to + l * (apart ? 1 : length);
    const T* const f = (const T*)from + l * (apart ? length : 1);
    pf_rows<SIZE, length, lanes>::template turn<apart>(t, apart ? many : lanes, f, apart ? lanes : many);
  }
}
