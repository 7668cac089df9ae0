"""Types of expressions: dtypes, and the weak types of literals, sizes and index values.

    Ty = BOTTOM            nothing known yet (a self-read during inference)
       | ERROR             an error was reported; agrees with everything
       | WEAK_INT          integer literals, sizes, index values
       | WEAK_FLOAT        float literals, and weak integers in float functions
       | SOFT              f32 that came from operands of 16 or 8 bits
       | a dtype

`join` is the type two operands meet in.  f16, bf16 and f32 values are computed in f32, where nothing of them
is lost: they meet in SOFT.  `agree` is stricter: a generic stands for one dtype, which an f16 and an f32
tensor are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.dtypes import BOOL, F32, I64, QUARTERS, DType


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


def agree(a: Ty, b: Ty) -> Ty | None:
    """The type that `a` and `b` both are, literals and computed f32 taken as what they meet; else None."""
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
    soft = "soft" in (a.kind, b.kind)
    return SOFT if soft and _is_in_f32(a) and _is_in_f32(b) else None


def join(a: Ty, b: Ty) -> Ty | None:
    """The type in which the operands `a` and `b` meet, or None if a cast is needed.

    Where both are computed in f32, nothing is lost: that is what they meet in.
    """
    met = agree(a, b)
    return SOFT if met is None and _is_in_f32(a) and _is_in_f32(b) else met


def _is_in_f32(t: Ty) -> bool:
    """Whether values of the type are computed in f32."""
    return t.kind == "soft" or (t.dtype is not None and t.dtype.compute is F32)


def computed(t: Ty) -> Ty:
    """The type of an operation's result on operands that meet in `t`."""
    return SOFT if _is_in_f32(t) and t.dtype is not F32 else t


def assignable(value: Ty, target: DType) -> bool:
    """Whether a value may be stored in a tensor of dtype `target` without a cast.

    Computed f32 may go to f16 and bf16 (rounding there), and their values to f32; to f8e4m3fn and f8e5m2 only
    what is cast.
    """
    if target in QUARTERS:
        return value.is_unknown or value.is_weak or value.dtype is target
    if agree(value, hard(target)) is not None:
        return True
    return F32 in (value.dtype, target) and _is_in_f32(value) and target.compute is F32
