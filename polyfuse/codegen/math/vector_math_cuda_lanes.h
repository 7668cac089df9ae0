// Templates for reductions over neighbouring lanes and into memory: $T the type, $N its language name, $O the
// reduction, $C how it combines a and b, $S the type that a shuffle moves.

// Butterfly: after each step two lanes hold the same sum, so in the end all do, bit by bit.
PF_INLINE $T pf_warp_${O}_$N($T a, int width) {
  const pf_u32 lanes = pf_lanes(width);
  $T b;
  if (width > 16) { b = ($T)__shfl_xor_sync(lanes, ($S)a, 16); a = $C; }
  if (width > 8) { b = ($T)__shfl_xor_sync(lanes, ($S)a, 8); a = $C; }
  if (width > 4) { b = ($T)__shfl_xor_sync(lanes, ($S)a, 4); a = $C; }
  if (width > 2) { b = ($T)__shfl_xor_sync(lanes, ($S)a, 2); a = $C; }
  if (width > 1) { b = ($T)__shfl_xor_sync(lanes, ($S)a, 1); a = $C; }
  return a;
}
