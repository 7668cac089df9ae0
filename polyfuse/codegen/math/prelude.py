"""The C++ prelude of an emitted source: element types and inlined, vectorisable arithmetic.

`prelude(names)` returns headerless C++17 with the type names of `ir.dtypes` and the functions asked
for, each ``static inline`` and preceded by what it needs:

* ``pf_<op>_<dtype>`` for the compute types f32 and f64 and the integer types,
* ``pf_<to>_from_<from>`` for every pair of different dtypes.

All are straight-line code on scalars (no branches, tables or libm calls), so the compiler vectorises
the loops they are called from. The text lives in ``vector_math_*.h``; ``$X`` in them is a parameter.
`FUNCTIONS` states the largest error of each in units of the last place.

For CUDA the same functions mean the same on every argument, within another error; `codegen.math.prelude_cuda`
has what differs, and more functions, which `CUDA_FUNCTIONS` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Literal

from polyfuse.codegen.math import prelude_cuda
from polyfuse.codegen.math.conversions import (
    ROWS,
    SCALED,
    bounding_names,
    conversions,
    row_name,
    scaled_name,
)
from polyfuse.codegen.math.headers import blocks, read
from polyfuse.codegen.math.vector_reduce import delayed_functions, folds, joint_functions, scan_functions
from polyfuse.ir.dtypes import (
    ALL,
    BOOL,
    F32,
    F64,
    HALVES,
    I8,
    I16,
    I32,
    I64,
    QUARTERS,
    STORED,
    U8,
    U16,
    U32,
    U64,
    DType,
    Kind,
)
from polyfuse.ir.functions import SHORT
from polyfuse.ir.ops import OPS, Takes

Target = Literal["cpu", "cuda"]
INTEGERS: tuple[DType, ...] = (I64, I32, I16, I8, U64, U32, U16, U8)
COMPUTE_FLOATS: tuple[DType, ...] = (F32, F64)

# Largest error in ulp of the result, (f32, f64), over the domains that docs/reference/vector_math.md
# states; tests/unit/codegen/test_prelude.py holds the code to it. 0.5 is "correctly rounded".  What C has an
# operator for is no function.
_FLOAT_ULP: dict[str, tuple[float, float]] = {
    o.name: o.ulp
    for o in OPS.values()
    if o.ulp and o.takes in (Takes.FLOATS, Takes.NUMBERS) and not (o.c or o.gives)
}
_INTEGER_OPS: tuple[str, ...] = tuple(
    o.name for o in OPS.values() if o.takes in (Takes.NUMBERS, Takes.INTEGERS) and not o.gives_bool
)

# What a source says to `runtime.toolchain.compiler`. Not for all sources: gcc knows less of indices with it,
# and then keeps fewer accumulators of a tile in registers.
WRAPS = "// needs -fwrapv"
_WRAPPING = frozenset(
    [
        *(f"pf_{op}_{t.name}" for op in ("add", "sub", "mul", "neg", "pow") for t in INTEGERS),
        "pf_dot_words_i32",
        "pf_add_words_i32",
        "pf_dot_bytes_i32",
        "pf_add_bytes_i32",
    ]
)

# For sources with long chains of arithmetic: neighbouring vectors take turns, as one waits for itself.
TAKES_TURNS = (
    "// needs -fschedule-insns", "// needs -fsched-pressure", "// needs -fno-schedule-insns2",
)  # fmt: skip
_CHAINS = (
    "expm1_tail", "log", "log_sum", "scaled_tanh", "scaled_erf", "pow", "atan_tail", "asin_tail",
    "erfc_factor", "lgamma_near", "digamma_near",
)  # fmt: skip
_LONG = frozenset(f"pf_{op}_{t.name}" for op in _CHAINS for t in COMPUTE_FLOATS) | {"pf_short_power_f32"}

_TYPES = """\
typedef __INT64_TYPE__ pf_i64;
typedef __INT32_TYPE__ pf_i32;
typedef __INT16_TYPE__ pf_i16;
typedef signed char pf_i8;
typedef unsigned char pf_u8;
typedef unsigned char pf_bool;
typedef unsigned short pf_f16;
typedef unsigned short pf_bf16;
#define PF_INLINE static inline __attribute__((always_inline))
#define PF_LIMIT __attribute__((visibility("hidden")))
#if defined(__AVX512F__)
#define PF_VECTOR 64
#elif defined(__AVX__)
#define PF_VECTOR 32
#else
#define PF_VECTOR 16
#endif
"""

# What the templates of vector_math_float.h and vector_math_elementary.h are filled with. SHIFT2 is 1.5 *
# 2^MANT plus two exponent biases, SHIFT1 plus one, SHIFT_LESS_1 plus one less 1; LN2_HI has so few bits that
# its multiples by an exponent are exact. CUBE makes subnormal numbers normal, CUBE_ROOT takes it back.
_FLOAT_PARAMETERS: dict[DType, dict[str, str]] = {
    F32: {
        "F": "float", "N": "f32", "B": "f", "L": "f", "U": "unsigned", "MANT": "23",
        "SIGN": "0x80000000u", "ONE": "0x3f800000u", "TWO_M": "0x1p23f", "LOG2E": "1.44269504f",
        "LN2_HI": "0.693145752f", "LN2_LO": "1.42860682e-06f", "SHIFT2": "12583166.0f",
        "EXP_LOW": "-104.0f", "EXP_HIGH": "89.0f",
        "MAX": "0x1.fffffep127f", "LEAST": "0x1p-126f", "LN2": "0x1.62e43p-1f",
        "EXP2_LOW": "-152.0f", "EXP2_HIGH": "129.0f", "SINH_HIGH": "89.5f",
        "SHIFT1": "12583039.0f", "SHIFT_LESS_1": "12583038.0f", "SHIFT_LESS_2": "12583037.0f",
        "HALF_PI": "0x1.921fb6p+0f", "HALF_PI_LO": "-0x1.777a5cp-25f", "MASK": "0x7fffffu",
        "ROOT_HALF": "0x3f3504f3u", "CUBE": "0x1p24f", "CUBE_ROOT": "0x1p-8f", "THIRD": "0x1.555556p-2f",
        "ROOT_OF_2": "0x1.428a3p+0f", "ROOT_OF_HALF": "0x1.965feap-1f",
    },
    F64: {
        "F": "double", "N": "f64", "B": "", "L": "", "U": "unsigned long long", "MANT": "52",
        "SIGN": "0x8000000000000000ull", "ONE": "0x3ff0000000000000ull", "TWO_M": "0x1p52",
        "LOG2E": "0x1.71547652b82fep+0", "LN2_HI": "0x1.62e42fefa4000p-1",
        "LN2_LO": "-0x1.8432a1b0e2634p-43",
        "SHIFT2": "0x1.80000000007fep52", "EXP_LOW": "-746.0", "EXP_HIGH": "710.0",
        "MAX": "0x1.fffffffffffffp1023", "LEAST": "0x1p-1022", "LN2": "0x1.62e42fefa39efp-1",
        "EXP2_LOW": "-1080.0", "EXP2_HIGH": "1025.0", "SINH_HIGH": "710.6",
        "SHIFT1": "0x1.80000000003ffp52", "SHIFT_LESS_1": "0x1.80000000003fep52",
        "SHIFT_LESS_2": "0x1.80000000003fdp52",
        "HALF_PI": "0x1.921fb54442d18p+0", "HALF_PI_LO": "0x1.1a62633145c07p-54",
        "MASK": "0xfffffffffffffull", "ROOT_HALF": "0x3fe6a09e667f3bcdull", "CUBE": "0x1p54",
        "CUBE_ROOT": "0x1p-18", "THIRD": "0x1.5555555555555p-2", "ROOT_OF_2": "0x1.428a2f98d728bp+0",
        "ROOT_OF_HALF": "0x1.965fea53d6e3dp-1",
    },
}  # fmt: skip

# Division of short integers goes through a float type wide enough: the quotient lies at least
# 1 / (a b) of itself away from an integer that it is not, more than the rounding.
_DIVISION_BY_FLOAT = """\
// Floor division; 0 for b = 0, wrapping for b = -1. Vectors have no integer division, but in $D no
// quotient is rounded across an integer.
PF_INLINE $T pf_floordiv_$N($T a, $T b) {$SHIFT$MULTIPLY
  $D q = pf_floor_$M(($D)a / ((b == 0) | (b == -1) ? ($D)1 : ($D)b));
  $T i = ($T)q, n = pf_neg_$N(a);
  return ($T)((b == -1 ? n : i) & -($T)(b != 0));
}
"""
_DIVISION_BY_INTEGER = """\
// Floor division; 0 for b = 0, wrapping for b = -1.
PF_INLINE $T pf_floordiv_$N($T a, $T b) {$SHIFT$MULTIPLY
  $T d = (b == 0) | (b == -1) ? ($T)1 : b;
  $T q = a / d, r = a - q * d;
  q = q - ((r != 0) & ((r < 0) != (d < 0)));
  return (b == -1 ? pf_neg_$N(a) : q) & -($T)(b != 0);
}
"""
_DIVISION_OF_UNSIGNED = """\
// Division; 0 for b = 0.
PF_INLINE $T pf_floordiv_$N($T a, $T b) {$SHIFT
  return (a / (b == 0 ? ($T)1 : b)) & -($T)(b != 0);
}
"""
_DIVISION_BY_DOUBLE = """\
// Division; 0 for b = 0. Vectors have none, but in double no quotient is rounded across an integer.
PF_INLINE $T pf_floordiv_$N($T a, $T b) {$SHIFT
  if (__builtin_constant_p(b) && b > 0) return a / b;
  return ($T)((double)a / (b == 0 ? 1.0 : (double)b)) & -($T)(b != 0);
}
"""
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}
# By a constant power of two; arithmetic shifts and masks floor.  CUDA's compilers do this by themselves.
_BY_POWER = "\n  if (__builtin_constant_p(b) && b > 0 && !(b & (b - 1))) return ({})({});"
_POWERS = {"SHIFT": "a >> __builtin_ctzll((unsigned long long)b)", "MASK": "a & (b - 1)"}
# By another positive constant the compiler multiplies and shifts.  ~a is -1 - a: what is not negative is
# divided, so that no remainder has to be looked at, and unsigned types need no correction of the sign.
_BY_POSITIVE = """
  if (__builtin_constant_p(b) && b > 0) {
    $T s = a < 0 ? -1 : 0;
    return ($T)((($U)(a ^ s) / ($U)b) ^ ($U)s);
  }"""
_FLOAT_TO_INTEGER = """\
// Toward zero; NaN gives 0, values beyond the type its nearest end.
${ZERO}PF_INLINE $T pf_${N}_from_$M($F x) {
  bool over = x >= $LIMIT;
  $F c = x < $LOW ? $LOW : x;
  $T r = ($T)(over | (x != x) ? ($F)0 : c);
  return (r | ($MAX & -($T)over))$SAME;
}
"""
# Where floats have both ends of the type, a value is clamped to them: of a choice between them and others,
# comparisons are left, of a NaN beside unsigned ends nothing.
_FLOAT_TO_SHORT = """\
// Toward zero; NaN gives 0, values beyond the type its nearest end.
PF_LIMIT $F pf_${N}_low_$M = $LOW, pf_${N}_high_$M = $HIGH;
PF_INLINE $T pf_${N}_from_$M($F x) {
  return $CLAMPED;
}
"""
# gcc 12 makes `trunc` of a conversion to an integer and back to the float, which gives -0.0 for -0.5.  It
# cannot where a number that it has to read comes between ($SAME, a zero), nor where the integer is narrowed
# ($INT).
_CLAMPED = {
    True: "pf_${N}_within_$M(pf_at_most_$M(pf_at_least_$M(x, pf_${N}_low_$M), pf_${N}_high_$M))",
    False: "($T)pf_at_most_$M(x > pf_${N}_low_$M ? x : pf_${N}_low_$M, pf_${N}_high_$M)",
}
_FLOAT_WITHIN = """\
// Of what lies within the type, or is NaN, whose bits go: gcc 12 would make a choice in the narrow type.
${ZERO}PF_INLINE $T pf_${N}_within_$M($F x) {
  return ($T)$INT(pf_from_bits_$M(pf_bits_$M(x) & (x == x ? ~($U)0 : ($U)0)))$SAME;
}
"""
# gcc 12 drops a conversion of vectors to f32 with the one back to f64 (it compares their numbers of elements
# in place of their digits), where nothing stands between the two.
_F64_TO_F32 = """\
PF_LIMIT float pf_one_f32 = 1.0f;
PF_INLINE float pf_f32_from_f64(double x) { return (float)x * pf_one_f32; }
"""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One function (or its variants under #if) with its comment, and the functions it calls."""

    text: str
    needs: tuple[str, ...]


def _integers(t: DType, target: Target) -> str:
    """The functions of an integer type.  Floor divisions are on CPUs through the smallest float type that is
    exact."""
    on_cpu = target == "cpu"
    values = {"T": t.c_name, "N": t.name, "W": _wrapping(t, target)}
    values |= {k: _BY_POWER.format(t.c_name, e) if on_cpu else "" for k, e in _POWERS.items()}
    unsigned = _UNSIGNED[t.bits]
    values["MULTIPLY"] = Template(_BY_POSITIVE).substitute(values, U=unsigned) if on_cpu else ""
    d = F64 if t is I32 else F32
    division = _DIVISION_BY_FLOAT if on_cpu and t is not I64 else _DIVISION_BY_INTEGER
    if t in (U32, U64):
        division = _DIVISION_BY_DOUBLE if on_cpu and t is U32 else _DIVISION_OF_UNSIGNED
    values["U"], values["BITS"] = _UNSIGNED[max(t.bits, 32)], str(t.bits)
    values["PLACES"] = f"({values['U']})({_UNSIGNED[t.bits]})b"
    values["KEPT"] = f" & -({t.c_name})(n < {t.bits})" if t.kind is Kind.UNSIGNED else ""
    values["DIVISION"] = Template(division).substitute(values, D=d.c_name, M=d.name)
    return Template(read("vector_math_int.h")).substitute(values)


def _wrapping(t: DType, target: Target) -> str:
    """The type in which arithmetic wraps. On CPUs a signed one, as `-fwrapv` allows: gcc 12 makes wrong sums
    of small unrolled loops where terms are converted to unsigned and back."""
    signed = "pf_i64" if t is I64 else "int"
    unsigned = _UNSIGNED[max(t.bits, 32)]
    return unsigned if target == "cuda" or t in (U32, U64) else signed


def _float_to_integer(t: DType, f: DType, target: Target) -> str:
    signed = t.kind is Kind.SIGNED
    top = 1 << (t.bits - 1 if signed else t.bits)
    low = f"-0x1p{t.bits - 1}" if signed else "0x0p0"
    suffix, wide = "f" if f is F32 else "", {I64: "ll", U32: "u", U64: "ull"}.get(t, "")
    values = {
        "T": t.c_name, "N": t.name, "M": f.name, "F": f.c_name, "U": _FLOAT_PARAMETERS[f]["U"],
        "MAX": f"{top - 1}{wide}", "LIMIT": f"0x1p{top.bit_length() - 1}{suffix}", "LOW": low + suffix,
        "HIGH": f"{top - 1}.0{suffix}",
    }  # fmt: skip
    values["INT"] = "(int)" if t.bits < 32 else ""
    values["CLAMPED"] = Template(_CLAMPED[signed]).substitute(values)
    short = target == "cpu" and top <= 1 << int(_FLOAT_PARAMETERS[f]["MANT"])
    made = {"from": _FLOAT_TO_SHORT if short else _FLOAT_TO_INTEGER, "within": _FLOAT_WITHIN}
    texts = []
    for name, text in made.items():
        values["ZERO"], values["SAME"] = "", ""
        if target == "cpu" and t.bits >= 32:
            values["ZERO"] = f"PF_LIMIT {t.c_name} pf_{t}_zero_{name}_{f} = 0;\n"
            values["SAME"] = f" ^ pf_{t}_zero_{name}_{f}"
        texts.append(Template(text).substitute(values))
    return "\n".join(texts)


def _cast(to: DType, frm: DType, target: Target) -> str:
    """The conversions that are one expression; floats of 16 and 8 bits pass through f32 or f64."""
    if (to, frm, target) == (F32, F64, "cpu"):
        return _F64_TO_F32
    if frm in STORED:
        # Exact, so any dtype but f32 itself may be reached through f32.
        value = f"pf_f32_from_{frm.name}(x)"
        body = value if to is F32 else f"pf_{to.name}_from_f32({value})"
    elif to in QUARTERS:
        # What f32 rounds of integers and long floats is beyond the largest number, or odd.
        body = f"pf_{to.name}_from_f32({'pf_odd_f32_from_f64(x)' if frm is F64 else '(float)x'})"
    elif to in HALVES:
        # A type that holds every value of `frm`, so that only the last step rounds.
        via = F64 if frm in (I32, U32) else F32
        body = f"pf_{to.name}_from_{via.name}(({via.c_name})x)"
    elif to is BOOL:
        body = "x != 0"
    elif frm is BOOL and to.is_float:  # gcc 12 vectorises no conversion
        body = f"x ? ({to.c_name})1 : ({to.c_name})0"
    else:
        body = f"({to.c_name})x"
    return f"PF_INLINE {to.c_name} pf_{to.name}_from_{frm.name}({frm.c_name} x) {{ return {body}; }}\n"


def _texts(target: Target) -> dict[str, str]:
    """Every function of the templates that all targets share, by name."""
    floats = "\n".join([read("vector_math_float.h"), read("vector_math_elementary.h")])
    texts = [read("vector_math_f64.h"), read("vector_math_f32.h"), read("vector_math_tails.h")]
    texts.append(read("vector_math_gamma.h"))
    texts += [Template(floats).substitute(_FLOAT_PARAMETERS[t]) for t in COMPUTE_FLOATS]
    texts += [read("vector_math_cast.h"), read("vector_math_bits.h")]
    for t in INTEGERS:
        texts.append(_integers(t, target))
        texts.extend(_float_to_integer(t, f, target) for f in COMPUTE_FLOATS)
    found = dict(blocks("\n".join(texts)))
    for to in ALL:
        for frm in ALL:
            name = f"pf_{to.name}_from_{frm.name}"
            if to is not frm and name not in found:
                found[name] = _cast(to, frm, target)
    return found


def _rows() -> dict[str, str]:
    """The text of the functions of rows, of quotients, of short functions and those of words, by name."""
    text = "\n".join([read("vector_rows.h"), read("vector_quotient.h")])
    suffix = {F32: "ps", F64: "pd"}
    each = [Template(text).substitute(_FLOAT_PARAMETERS[t], S=suffix[t]) for t in COMPUTE_FLOATS]
    return dict(
        blocks("\n".join([*each, read("vector_short.h"), read("vector_words.h"), read("vector_lists.h")]))
    )


@cache
def _chunks(target: Target) -> Mapping[str, _Chunk]:
    """Every function by name."""
    texts = _texts(target)
    if target == "cuda":
        texts = prelude_cuda.functions(texts)
    else:
        texts = texts | folds() | joint_functions() | scan_functions() | delayed_functions()
        texts = texts | conversions() | _rows()
    chunks: dict[str, _Chunk] = {}
    for name, text in texts.items():
        called = dict.fromkeys(re.findall(r"\b(pf_\w+)\(", text))
        called.pop(name)
        chunks[name] = _Chunk(text, tuple(called))
    return chunks


def _max_ulp() -> dict[str, float]:
    table: dict[str, float] = {}
    for op, ulp in _FLOAT_ULP.items():
        table.update({f"pf_{op}_f32": ulp[0], f"pf_{op}_f64": ulp[1]})
    table.update({f"pf_{op}_{t.name}": 0.0 for op in _INTEGER_OPS for t in INTEGERS})
    table.update({f"pf_{o.name}_{t.name}": 0.0 for o in OPS.values() for t, _ in o.gives})
    for to in ALL:
        for frm in ALL:
            if to is not frm:
                exact = not to.is_float or (frm.is_float and to.bits > frm.bits) or frm.is_bool
                table[f"pf_{to.name}_from_{frm.name}"] = 0.0 if exact else 0.5
    return table


FUNCTIONS: dict[str, float] = _max_ulp()
"""Every function that `prelude` offers, with its largest error in ulp (0: exact, 0.5: one rounding)."""


SHORT_FUNCTIONS: tuple[str, ...] = tuple(f"pf_{op}_f32" for op in SHORT.values())
"""Those for results of 16 bits, within `short_functions.UNIT` of the value."""


ROW_FUNCTIONS: tuple[str, ...] = (
    *(row_name(op, t) for op in ROWS for t in COMPUTE_FLOATS),
    *(row_name(op, F32) for op in SHORT.values()),
)
"""Those that work on many elements in place, a multiple of 16."""


ROW_POWERS: tuple[str, ...] = tuple(row_name("pow", t) for t in COMPUTE_FLOATS)
"""Those that take an exponent for all of them as well."""


WORD_FUNCTIONS: tuple[str, ...] = (
    *("pf_word_i32", "pf_dot_words_i32", "pf_add_words_i32"),
    *("pf_half_i32", "pf_dot_bytes_i32", "pf_add_bytes_i32"),
    *("pf_pair_f32", "pf_dot_pairs_f32", "pf_add_pairs_f32"),
)
"""Those of two or four integers, or two bf16, in a word."""


CHOICES: tuple[str, ...] = (
    *(f"pf_choose_{t.name}" for t in (F32, F64, I32, I64)),
    *(f"pf_waiting_{op}_{t.name}" for op in ("max", "min") for t in COMPUTE_FLOATS),
)
"""Those that choose between two numbers without a branch (`codegen.transforms.loop_distribution`)."""


CPU_FUNCTIONS: frozenset[str] = frozenset(
    [
        *FUNCTIONS,
        *folds(),
        *joint_functions(),
        *scan_functions(),
        *delayed_functions(),
        *conversions(),
        *ROW_FUNCTIONS,
        *ROW_POWERS,
        *SHORT_FUNCTIONS,
        *map(scaled_name, SCALED),
        *bounding_names(),
        *WORD_FUNCTIONS,
        *CHOICES,
        "pf_listed",
        *(f"pf_quotient_{t.name}" for t in COMPUTE_FLOATS),
    ]
)
"""Every function that `prelude` offers for the CPU."""


CUDA_FUNCTIONS: frozenset[str] = frozenset(FUNCTIONS) | frozenset(prelude_cuda.names())
"""Every function that `prelude` offers for CUDA."""


def prelude(functions: Iterable[str], target: Target = "cpu") -> str:
    """The head of an emitted source: types, and `functions` with what they call, callees first; before them
    the flags that a compiler needs for them.

    Raises `KeyError` for a name that is not in `CPU_FUNCTIONS` (`CUDA_FUNCTIONS` for CUDA). The text depends
    only on the set of names.
    """
    offered = CUDA_FUNCTIONS if target == "cuda" else CPU_FUNCTIONS
    chunks = _chunks(target)
    done: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in done:
            for callee in chunks[name].needs:
                add(callee)
            done[name] = None

    for name in sorted(set(functions)):
        if name not in offered:
            raise KeyError(name)
        add(name)
    head = prelude_cuda.head() if target == "cuda" else _TYPES
    needs = [] if target == "cuda" else _needs(done.keys())
    return "\n".join([*needs, head, *(chunks[name].text for name in done)])


def _needs(functions: Set[str]) -> list[str]:
    """Lines for `runtime.toolchain.compiler`."""
    wraps, long = not functions.isdisjoint(_WRAPPING), not functions.isdisjoint(_LONG)
    return [*[WRAPS] * wraps, *TAKES_TURNS * long]
