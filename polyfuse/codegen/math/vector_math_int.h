// Templates for the integer types: $T the type, $N its language name, $W the type that arithmetic wraps in
// (at least 32 bits wide: what it would be promoted to), $U the unsigned one, $BITS the width, $PLACES b as
// unsigned, $KEPT a mask of what has no sign to be left, $DIVISION the floor division, $MASK what `vector_math`
// has for powers of two.

PF_INLINE $T pf_add_$N($T a, $T b) { return ($T)(($W)a + ($W)b); }

PF_INLINE $T pf_sub_$N($T a, $T b) { return ($T)(($W)a - ($W)b); }

PF_INLINE $T pf_mul_$N($T a, $T b) { return ($T)(($W)a * ($W)b); }

PF_INLINE $T pf_neg_$N($T a) { return ($T)(($W)0 - ($W)a); }

PF_INLINE $T pf_abs_$N($T a) { return a < ($T)0 ? pf_neg_$N(a) : a; }

PF_INLINE $T pf_sign_$N($T a) { return ($T)((a > 0) - (a < 0)); }

PF_INLINE $T pf_min_$N($T a, $T b) { return a < b ? a : b; }

PF_INLINE $T pf_max_$N($T a, $T b) { return a > b ? a : b; }

PF_INLINE $T pf_bitand_$N($T a, $T b) { return ($T)(a & b); }

PF_INLINE $T pf_bitor_$N($T a, $T b) { return ($T)(a | b); }

PF_INLINE $T pf_bitxor_$N($T a, $T b) { return ($T)(a ^ b); }

PF_INLINE $T pf_bitnot_$N($T a) { return ($T)~a; }

// The number of places is read as unsigned; $BITS and more leave nothing, or the sign.
PF_INLINE $T pf_shl_$N($T a, $T b) {
  const $U n = $PLACES;
  return n < $BITS ? ($T)(($U)a << (n & ($BITS - 1))) : ($T)0;
}

PF_INLINE $T pf_shr_$N($T a, $T b) {
  const $U n = $PLACES;
  return (a >> (n < $BITS ? n : $BITS - 1))$KEPT;
}

// a where m is -1, b where it is 0.
PF_INLINE $T pf_choose_$N($T m, $T a, $T b) { return (a & m) | (b & ~m); }

$DIVISION

// a - floor(a / b) b; 0 for b = 0.
PF_INLINE $T pf_mod_$N($T a, $T b) {$MASK
  return pf_sub_$N(a, pf_mul_$N(pf_floordiv_$N(a, b), b)) & -($T)(b != 0);
}

// Square and multiply, wrapping. A negative exponent leaves 0 except for the bases 1 and -1.
PF_INLINE $T pf_pow_$N($T a, $T e) {
  $W r = 1, s = ($W)a;
  for ($W n = e < ($T)0 ? ($W)0 : ($W)e; n; n >>= 1) {
    r = n & 1 ? r * s : r;
    s = s * s;
  }
  $T unit = a == ($T)1 ? ($T)1 : a == ($T)-1 ? ($T)(e & 1 ? -1 : 1) : ($T)0;
  return e < ($T)0 ? unit : ($T)r;
}
