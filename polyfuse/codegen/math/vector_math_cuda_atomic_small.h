// The same for elements of one or two bytes: the others in the 32-bit word keep what they have.

PF_INLINE void pf_atomic_${O}_$N($T* address, $T b) {
  const unsigned long long at = (unsigned long long)address;
  pf_u32* const word = (pf_u32*)(at & ~3ull);
  const pf_u32 shift = (pf_u32)(at & 3ull) * 8u, mask = $MASK << shift;
  pf_u32 seen, old = *(volatile pf_u32*)word;
  do {
    seen = old;
    const $T a = ($T)(seen >> shift), c = $C;
    $EARLY
    old = atomicCAS(word, seen, (seen & ~mask) | (((pf_u32)c & $MASK) << shift));
  } while (old != seen);
}
