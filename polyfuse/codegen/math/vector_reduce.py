"""Horizontal reductions of a CPU: the lanes of one vector, and those of several rows at once.

An array of partial results becomes one number, in vectors to the end.

A tree of loops would do as well, but gcc unrolls loops of 16 and fewer iterations before it looks for
vectors, and takes the array apart element by element: half of the time of a softmax over 128 columns.

Only reductions of whole words are here; `offered` says which.
"""

from __future__ import annotations

from string import Template

from polyfuse.codegen.math.headers import blocks, read
from polyfuse.ir.dtypes import F32, F64, I32, I64, DType

# --- horizontal reductions --------------------------------------------------------------------------------

OPS = ("sum", "prod", "max", "min")
DTYPES = (F32, F64, I32, I64)
# Lanes have to fill whole vectors of any machine, or one of these bytes.
FEWEST_BYTES = 32

# The type in which totals wrap, and how two values become one.
WRAPPING = {I32: "unsigned", I64: "unsigned long long"}
COMBINED = {"sum": "a + b", "prod": "a * b", "max": "a > b ? a : b", "min": "a < b ? a : b"}
_FOUR = """\
  const $E l0 = x[0], l1 = x[1], l2 = x[2], l3 = x[3];
  const $E m0 = $M0, m1 = $M1;
  return ($T)($M);"""
_TWO = """\
  const $E m0 = x[0], m1 = x[1];
  return ($T)($M);"""


def fold_name(op: str, dtype: DType) -> str:
    return f"pf_fold_{op}_{dtype.name}"


def offered(op: str, dtype: DType, lanes: int) -> bool:
    """Is there a function for the total of so many lanes?"""
    return op in OPS and dtype in DTYPES and lanes * dtype.bytes >= FEWEST_BYTES


def folds() -> dict[str, str]:
    """The text of every function, by name."""
    return {fold_name(op, t): _fold(op, t) for op in OPS for t in DTYPES}


def _fold(op: str, t: DType) -> str:
    element = WRAPPING.get(t, t.c_name) if op in ("sum", "prod") else t.c_name

    def of(a: str, b: str) -> str:
        return COMBINED[op].replace("b", "$").replace("a", a).replace("$", b)

    steps = Template(_FOUR if t.bytes == 4 else _TWO).substitute(
        E=element, T=t.c_name, M0=of("l0", "l2"), M1=of("l1", "l3"), M=of("m0", "m1")
    )
    return Template(read("vector_folds.h")).substitute(
        T=t.c_name, N=t.name, O=op, E=element, S=steps,
        C=of("a", "b"), C32=of("a32", "b32"), C16=of("a16", "b16"),
        LOW32=_elements("w", 0, 32 // t.bytes), HIGH32=_elements("w", 32 // t.bytes, 32 // t.bytes),
        LOW16=_elements("y", 0, 16 // t.bytes), HIGH16=_elements("y", 16 // t.bytes, 16 // t.bytes),
    )  # fmt: skip


def _elements(vector: str, first: int, count: int) -> str:
    """Part of a vector as a list; compilers see that it is one piece."""
    return ", ".join(f"{vector}[{first + k}]" for k in range(count))


# --- batched horizontal reductions ------------------------------------------------------------------------

# Totals of several rows at once: as many vectors of lanes as a vector has lanes become one, in log2 steps.
#
#     a = a0 a1 a2 a3         a0+a2 b0+b2 a1+a3 b1+b3 ┐
#     b = b0 b1 b2 b3   ->                            ├ ->  a b c d, all totals
#     c, d alike              c0+c2 d0+d2 c1+c3 d1+d3 ┘
#
# Each step puts parts of two vectors into two others and combines these: for each row there are two
# instructions that move lanes, and one that computes.  Of one row alone each step waits for the one before,
# and works on half as many lanes.


_WIDTHS = (64, 32, 16)
# What changes no total: for an extreme any of its terms.
_NEUTRAL = {"sum": "0", "prod": "1", "max": "v[0]", "min": "v[0]"}
# Lanes move within pieces of so many bytes at less cost than between them.
_PIECE = 16


def part_name(op: str, dtype: DType) -> str:
    return f"pf_part_{op}_{dtype.name}"


def join_name(op: str, dtype: DType) -> str:
    return f"pf_join_{op}_{dtype.name}"


def joins(op: str, dtype: DType) -> bool:
    """Are there functions for totals of several rows?"""
    return op in OPS and dtype in DTYPES


def joint_functions() -> dict[str, str]:
    """The text of every function, by name."""
    return dict(blocks("\n".join(_text(op, t) for op in OPS for t in DTYPES)))


def _text(op: str, t: DType) -> str:
    element = WRAPPING.get(t, t.c_name) if op in ("sum", "prod") else t.c_name
    steps = {f"STEPS{w}": _steps(COMBINED[op], w // t.bytes, _PIECE // t.bytes) for w in _WIDTHS}
    return Template(read("vector_joins.h")).substitute(
        T=t.c_name, N=t.name, O=op, E=element, C=COMBINED[op], I=_NEUTRAL[op], **steps
    )


def _steps(both: str, lanes: int, piece: int) -> str:
    """All of them, as loops that the compiler unrolls; `both` is the reduction of a and b."""
    lines: list[str] = []
    size = 1
    while size < lanes:
        first, second = (", ".join(map(str, moved)) for moved in _moved(lanes, piece, size))
        size *= 2
        lines += [
            f"    for (int i = 0; i < {lanes // size}; ++i) {{",
            f"      const V a = __builtin_shufflevector(x[2 * i], x[2 * i + 1], {first});",
            f"      const V b = __builtin_shufflevector(x[2 * i], x[2 * i + 1], {second});",
            f"      x[i] = {both};",
            "    }",
        ]
    return "\n".join(lines)


def _moved(lanes: int, piece: int, size: int) -> tuple[list[int], list[int]]:
    """Lanes of two vectors, one after the other, for both operands of a step, where `size` neighbours are of
    as many rows: inside of pieces the low and the high halves by turns, then whole pieces."""
    if size < piece:
        low = [start + k for start in range(0, lanes, piece) for k in range(piece // 2)]
        groups = [low[k : k + size] for k in range(0, len(low), size)]
        first = [lane for g in groups for lane in (*g, *(x + lanes for x in g))]
        return first, [x + piece // 2 for x in first]
    even = [start + k for start in range(0, 2 * lanes, 2 * piece) for k in range(piece)]
    return even, [x + piece for x in even]


# --- totals up to each lane -------------------------------------------------------------------------------

# Each lane takes in the one before, then that two before, and so on: log2 steps. One without such a lane adds
# 0, or is an extreme with itself. Sums of the longest vectors go by halves of 2, 4, ... lanes: the second one
# adds the total of the first, under a mask (a fifth faster than shifts on Zen 5; without masks slower).
SCANS = ("sum", "max", "min")
_LATER = {"sum": "a + b", "max": "(b > a)NAN ? b : a", "min": "(b < a)NAN ? b : a"}


def scan_name(op: str, dtype: DType) -> str:
    return f"pf_scan_{op}_{dtype.name}"


def scan_functions() -> dict[str, str]:
    """The text of every function, by name."""
    return {scan_name(op, t): _scan(op, t) for op in SCANS for t in DTYPES}


def _scan(op: str, t: DType) -> str:
    element = WRAPPING.get(t, t.c_name) if op == "sum" else t.c_name
    both = _LATER[op].replace("NAN", " | (b != b)" if t.is_float else "")
    steps = {f"STEPS{w}": _shifts(op == "sum", both, w // t.bytes) for w in _WIDTHS}
    if op == "sum":
        steps["STEPS64"] = _halves((I32 if t.bytes == I32.bytes else I64).c_name, 64 // t.bytes)
    return Template(read("vector_scans.h")).substitute(T=t.c_name, N=t.name, O=op, E=element, C=both, **steps)


def _shifts(zero: bool, both: str, lanes: int) -> str:
    """`b` has what is some lanes before, 0 or the lane itself where nothing is."""
    lines, by = [], 1
    while by < lanes:
        moved = [k - by if k >= by else lanes if zero else k for k in range(lanes)]
        places = ", ".join(map(str, moved))
        lines.append(f"  {{ const W b = __builtin_shufflevector(a, z, {places}); a = {both}; }}")
        by *= 2
    return "\n".join(lines)


def _halves(integer: str, lanes: int) -> str:
    """`b` has the total of a first half in all lanes of the second one, which the mask `m` chooses."""
    lines, half = [f"  typedef {integer} M __attribute__((vector_size(PF_VECTOR)));"], 1
    while half < lanes:
        second = [k // half % 2 for k in range(lanes)]
        places = ", ".join(str(k // (2 * half) * 2 * half + half - 1) for k in range(lanes))
        lines += [
            f"  {{ const M m = {{{', '.join(str(-x) for x in second)}}};",
            f"    const W b = __builtin_shufflevector(a, a, {places}), c = a + b; a = m ? c : a; }}",
        ]
        half *= 2
    return "\n".join(lines)


# --- lanes of vectors before ------------------------------------------------------------------------------

# Windows that end at each lane join those that ended some places before (`codegen.cpu.vectorize.windows`).


def delayed_name(op: str, dtype: DType) -> str:
    return f"pf_delayed_{op}_{dtype.name}"


def lanes_name(op: str, dtype: DType) -> str:
    """The type of the vectors that it takes."""
    return f"pf_lanes_{op}_{dtype.name}"


def delayed_functions() -> dict[str, str]:
    """The text of every function, by name."""
    return {delayed_name(op, t): _delayed(op, t) for op in SCANS for t in DTYPES}


def _delayed(op: str, t: DType) -> str:
    element = WRAPPING.get(t, t.c_name) if op == "sum" else t.c_name
    integer = (I32 if t.bytes == I32.bytes else I64).c_name
    return Template(read("vector_windows.h")).substitute(T=t.c_name, N=t.name, O=op, E=element, I=integer)
