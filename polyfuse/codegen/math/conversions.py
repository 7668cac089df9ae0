"""Names of functions of the prelude that passes choose: conversions of 16 bits, short and scaled ones."""

from __future__ import annotations

import re

from polyfuse.codegen.math.headers import read
from polyfuse.ir.dtypes import ALL, F32, F64, DType
from polyfuse.ir.ops import Trait, with_trait

BOUNDING = {"max": "at_least", "min": "at_most"}
FLOAT_FORMATS = {F32: ">f", F64: ">d"}


def bounding_names() -> tuple[str, ...]:
    """The functions that are called."""
    bounding = [f"pf_{b}_{t.name}" for b in BOUNDING.values() for t in FLOAT_FORMATS]
    return (*bounding, *(f"pf_{i.name}_within_{t.name}" for i in ALL if i.is_integer for t in FLOAT_FORMATS))


# The error of a value of these is at most the sum of those of its operands.
RELATIVE = with_trait(Trait.RELATIVE)


ROWS = with_trait(Trait.ROWS)


def row_name(op: str, dtype: DType) -> str:
    return f"pf_row_{op}_{dtype.name}"


SCALED = with_trait(Trait.SCALED)


def scaled_name(op: str) -> str:
    return f"pf_scaled_{op}_f32"


# So many are converted at once.
STEP = 16


def conversions() -> dict[str, str]:
    """The text of the functions, by name."""
    parts = read("vector_halves.h").split("PF_INLINE ")[1:]
    texts = [f"PF_INLINE {p.rstrip()}\n" for p in parts]
    return {
        re.findall(r"\bpf_(?:widen|narrow|narrow_normal|wide|row_round|row_round_normal)_b?f16\b", t)[0]: t
        for t in texts
    }
