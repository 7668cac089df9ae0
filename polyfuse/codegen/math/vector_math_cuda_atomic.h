// Templates for updates of memory by several threads, by comparing and swapping the word that holds the element:
// $T the type, $N its language name, $O the reduction, $B the bits of an element. $C combines a, what is in memory,
// with b; $BITS is c as bits, $BACK bits `seen` as $T; $EARLY ends where c changes nothing. Only what grows
// (falls) in one direction may end early: the first read may be old.

PF_INLINE void pf_atomic_${O}_$N($T* address, $T b) {
  $W* const word = ($W*)address;
  $W seen, old = *(volatile $W*)word;
  do {
    seen = old;
    const $T a = $BACK, c = $C;
    $EARLY
    old = atomicCAS(word, seen, $BITS);
  } while (old != seen);
}
