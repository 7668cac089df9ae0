"""The CPU's totals of lanes: an array of partial results becomes one number, in vectors to the end.

A tree of loops would do as well, but gcc unrolls loops of 16 and fewer iterations before it looks for
vectors, and takes the array apart element by element: half of the time of a softmax over 128 columns.

Only reductions of whole words are here; `offered` says which.
"""

from __future__ import annotations

from string import Template

from polyfuse.codegen.headers import read
from polyfuse.ir.dtypes import F32, F64, I32, I64, DType

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
