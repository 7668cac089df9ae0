"""Types of expressions: dtypes, and the weak types of literals, sizes and index values.

    Ty = BOTTOM            nothing known yet (a self-read during inference)
       | ERROR             an error was reported; agrees with everything
       | WEAK_INT          integer literals, sizes, index values
       | WEAK_FLOAT        float literals, and weak integers in float functions
       | SOFT              f32 that came from f16 or bf16 operands
       | a dtype

`join` is the type two operands meet in.  f16 and bf16 values are computed in f32, so the result of an
operation on them is SOFT: it meets f16, bf16 and f32 operands alike, while an f16 tensor does not meet
an f32 tensor without a cast.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.dtypes import BF16, BOOL, F16, F32, I64, DType


@dataclass(frozen=True, slots=True)
class Ty:
    kind: str
    dtype: DType | None = None

    @property
    def is_weak(self) -> bool:
        return self.kind in ("weak int", "weak float")

    @property
    def is_float(self) -> bool:
        return self.kind in ("weak float", "soft") or (self.dtype is not None and self.dtype.is_float)

    @property
    def is_integer(self) -> bool:
        return self.kind == "weak int" or (self.dtype is not None and self.dtype.is_integer)

    @property
    def is_bool(self) -> bool:
        return self.dtype is BOOL

    @property
    def is_unknown(self) -> bool:
        return self.kind in ("bottom", "error")

    @property
    def compute(self) -> DType:
        """The dtype a value of this type is computed in, where nothing else decides."""
        if self.dtype is not None:
            return self.dtype.compute
        return I64 if self.kind == "weak int" else F32

    def __str__(self) -> str:
        match self.kind:
            case "weak int":
                return "an integer literal or index value"
            case "weak float":
                return "a float literal"
            case "soft":
                return "f32"
            case _:
                return str(self.dtype) if self.dtype else "unknown"


BOTTOM = Ty("bottom")
ERROR = Ty("error")
WEAK_INT = Ty("weak int")
WEAK_FLOAT = Ty("weak float")
SOFT = Ty("soft")
BOOLEAN = Ty("dtype", BOOL)
INDEX = Ty("dtype", I64)


def hard(dtype: DType) -> Ty:
    return Ty("dtype", dtype)


def join(a: Ty, b: Ty) -> Ty | None:
    """The type in which `a` and `b` meet, or None if a cast is needed."""
    if a.kind == "error" or b.kind == "error":
        return ERROR
    if a == b or b.kind == "bottom":
        return a
    if a.kind == "bottom":
        return b
    if a.is_weak and b.is_weak:
        return WEAK_FLOAT
    for weak, other in ((a, b), (b, a)):
        if weak.is_weak:
            fits = other.is_float or (other.is_integer and weak.kind == "weak int")
            return other if fits else None
    for soft, other in ((a, b), (b, a)):
        if soft.kind == "soft":
            return SOFT if other.dtype in (F16, BF16, F32) else None
    return None


def computed(t: Ty) -> Ty:
    """The type of an operation's result on operands that meet in `t`."""
    return SOFT if t.dtype in (F16, BF16) else t


def assignable(value: Ty, target: DType) -> bool:
    """Whether a value may be stored in a tensor of dtype `target` without a cast.

    Computed f32 may go to f16 and bf16 (rounding there), and their values to f32.
    """
    met = join(value, hard(target))
    if met is not None:
        return True
    pair = {value.dtype, target}
    return F32 in pair and bool(pair & {F16, BF16})
