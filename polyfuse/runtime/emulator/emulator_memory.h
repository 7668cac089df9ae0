// Memory of emitted kernels: with PF_EMU_CHECKED every access is a call of the engine, else plain pointers.

template <class T, int N>
struct pf_vec;  // of the emitted source

#if PF_EMU_SECTORS
// Every access is a call in the kernel itself, so that its address tells which one it is.
#define PF_EMU_INLINE __attribute__((always_inline))
#else
#define PF_EMU_INLINE
#endif

#if PF_EMU_CHECKED

// What `b_y[i]` is: converts to the value and takes one. Its address is only taken for an atomic update.
template <class T>
struct pf_emu_element {
  pf_emu_array* array;
  pf_emu_i64 index;
  PF_EMU_INLINE operator T() const { return *(const T*)pf_emu->load(array, index); }
  PF_EMU_INLINE T operator=(T value) const {
    *(T*)pf_emu->store(array, index) = value;
    return value;
  }
  PF_EMU_INLINE T operator=(const pf_emu_element& other) const { return *this = (T)other; }
  PF_EMU_INLINE T operator+=(T value) const { return *this = (T)(T(*this) + value); }
  PF_EMU_INLINE T operator-=(T value) const { return *this = (T)(T(*this) - value); }
  PF_EMU_INLINE T operator*=(T value) const { return *this = (T)(T(*this) * value); }
  PF_EMU_INLINE T operator/=(T value) const { return *this = (T)(T(*this) / value); }
  PF_EMU_INLINE T operator&=(T value) const { return *this = (T)(T(*this) & value); }
  PF_EMU_INLINE T operator|=(T value) const { return *this = (T)(T(*this) | value); }
  PF_EMU_INLINE T operator^=(T value) const { return *this = (T)(T(*this) ^ value); }
  PF_EMU_INLINE T* operator&() const { return (T*)pf_emu->address(array, index); }
};

template <class T>
struct pf_emu_read_only {
  typedef T element;
  pf_emu_array* array;
  PF_EMU_INLINE T operator[](pf_emu_i64 index) const {
    if ((pf_emu_u64)(index - array->low) < array->plain) return ((const T*)array->data)[index];
    return *(const T*)pf_emu->load(array, index);
  }
};

template <class T>
struct pf_emu_memory {
  typedef T element;
  pf_emu_array* array;
  operator pf_emu_read_only<T>() const { return {array}; }
  PF_EMU_INLINE pf_emu_element<T> operator[](pf_emu_i64 index) const { return pf_emu_element<T>{array, index}; }
};

template <int N, class Memory>
PF_EMU_INLINE inline pf_vec<typename Memory::element, N> pf_load(const Memory& memory, pf_emu_i64 index) {
  typedef typename Memory::element T;
  pf_vec<T, N> result;
  const T* from = (const T*)pf_emu->load_vector(memory.array, index, N);
  for (int k = 0; k < N; ++k) result[k] = from[k];
  return result;
}

template <int N, class T>
PF_EMU_INLINE inline void pf_store(const pf_emu_memory<T>& memory, pf_emu_i64 index, const pf_vec<T, N>& value) {
  T* to = (T*)pf_emu->store_vector(memory.array, index, N);
  for (int k = 0; k < N; ++k) to[k] = value[k];
}

template <int N, class T>
PF_EMU_INLINE inline void pf_store_once(const pf_emu_memory<T>& memory, pf_emu_i64 index, const pf_vec<T, N>& value) {
  pf_store<N>(memory, index, value);
}

#define PF_IN(T) const pf_emu_read_only<T>
#define PF_OUT(T) const pf_emu_memory<T>
template <class T>
inline pf_emu_read_only<T> pf_in(void* const* row, int place) {
  return {(pf_emu_array*)row[place]};
}
template <class T>
inline pf_emu_memory<T> pf_out(void* const* row, int place) {
  return {(pf_emu_array*)row[place]};
}
#define PF_SHARED(T, name, n)                                              \
  static pf_emu_site name##_site = {#name, (n), (int)sizeof(T), 0, nullptr}; \
  const pf_emu_memory<T> name = {pf_emu_shared(&name##_site)}
#define PF_REUSED(T, name, n, home)                                        \
  static pf_emu_site name##_site = {#name, (n), (int)sizeof(T), 0, nullptr}; \
  const pf_emu_memory<T> name = {pf_emu_reused(&name##_site, home.array)}

#else

template <int N, class T>
inline pf_vec<T, N> pf_load(const T* memory, pf_emu_i64 index) {
  pf_vec<T, N> result;
  for (int k = 0; k < N; ++k) result[k] = memory[index + k];
  return result;
}

template <int N, class T>
inline void pf_store(T* memory, pf_emu_i64 index, const pf_vec<T, N>& value) {
  for (int k = 0; k < N; ++k) memory[index + k] = value[k];
}

template <int N, class T>
inline void pf_store_once(T* memory, pf_emu_i64 index, const pf_vec<T, N>& value) {
  pf_store<N>(memory, index, value);
}

#define PF_IN(T) const T* const
#define PF_OUT(T) T* const
template <class T>
inline const T* pf_in(void* const* row, int place) {
  return (const T*)row[place];
}
template <class T>
inline T* pf_out(void* const* row, int place) {
  return (T*)row[place];
}
#define PF_SHARED(T, name, n)                                              \
  static pf_emu_site name##_site = {#name, (n), (int)sizeof(T), 0, nullptr}; \
  T* const name = (T*)pf_emu_shared(&name##_site)->data
#define PF_REUSED(T, name, n, home) T* const name = (T*)home

#endif

// One stage of a launch and another, one thread and another: reads and writes are seen alike. Where a GPU has the address of a buffer in a
// table, there is what an entry point would get.
#define PF_STAGE_IN(T) PF_IN(T)
#define PF_STAGE_OUT(T) PF_OUT(T)
#define PF_INOUT(T) PF_OUT(T)
#define PF_TABLE void* const* const
#define PF_ROW void* const* const

// Every array has memory of its own here: what goes beyond its end is seen.
#define PF_DYNAMIC(T, name, n, offset) PF_SHARED(T, name, n)

inline pf_emu_array* pf_emu_shared(pf_emu_site* site) {
  return site->serial == pf_emu->serial ? site->array : pf_emu->shared(site, nullptr);
}

inline pf_emu_array* pf_emu_reused(pf_emu_site* site, pf_emu_array* home) {
  return site->serial == pf_emu->serial ? site->array : pf_emu->shared(site, home);
}

// ---- how an entry point turns a table of addresses into arguments --------------------------------------
template <class P>
struct pf_emu_argument {
  static P get(void* slot) { return *(const P*)slot; }  // by value
};
template <class T>
struct pf_emu_argument<T*> {
  static T* get(void* slot) { return (T*)slot; }
};
#if PF_EMU_CHECKED
template <class T>
struct pf_emu_argument<pf_emu_read_only<T>> {
  static pf_emu_read_only<T> get(void* slot) { return {(pf_emu_array*)slot}; }
};
template <class T>
struct pf_emu_argument<pf_emu_memory<T>> {
  static pf_emu_memory<T> get(void* slot) { return {(pf_emu_array*)slot}; }
};
#endif

template <int N, class Memory>
PF_EMU_INLINE inline auto pf_load_if(bool asked, const Memory& memory, pf_emu_i64 index) {
  decltype(pf_load<N>(memory, index)) loaded = {};
  if (asked) loaded = pf_load<N>(memory, index);
  return loaded;
}

template <int... K>
struct pf_emu_places {};
template <int N, int... K>
struct pf_emu_count : pf_emu_count<N - 1, N - 1, K...> {};
template <int... K>
struct pf_emu_count<0, K...> {
  typedef pf_emu_places<K...> places;
};

template <class... P, int... K>
inline void pf_emu_spread(void (*kernel)(P...), void* const* slots, pf_emu_places<K...>) {
  kernel(pf_emu_argument<P>::get(slots[K])...);
}

// Runs one thread of a kernel, whatever its parameters are.
template <class... P>
inline void pf_emu_call(void (*kernel)(P...), void* const* slots) {
  pf_emu_spread(kernel, slots, typename pf_emu_count<sizeof...(P)>::places());
}
