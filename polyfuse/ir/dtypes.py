"""Element types: the dtypes of the language and what every target calls them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class Kind(Enum):
    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype: language name, kind, size in bits, C++ spelling of a stored element."""

    name: str
    kind: Kind
    bits: int
    c_name: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer dtype."""
        if self.kind is Kind.UNSIGNED:
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def holds(self, other: DType) -> bool:
        """Of integer dtypes: is each value of the other one of this?"""
        (low, high), (least, most) = self.limits, other.limits
        return low <= least and most <= high

    @property
    def word(self) -> DType:
        """The integers without a sign that are as wide."""
        return BY_NAME[f"u{self.bits}"]

    @property
    def compute(self) -> DType:
        """The type arithmetic happens in: f32 for the floats of 16 and 8 bits, itself otherwise."""
        return F32 if self in STORED else self

    @property
    def numpy(self) -> np.dtype[Any]:
        return _numpy()[self.name]

    @property
    def eps(self) -> float:
        """Unit roundoff's double (machine epsilon); 0 for integers and bool."""
        return _EPS.get(self.name, 0.0)

    def __str__(self) -> str:
        return self.name


F64 = DType("f64", Kind.FLOAT, 64, "double")
F32 = DType("f32", Kind.FLOAT, 32, "float")
F16 = DType("f16", Kind.FLOAT, 16, "pf_f16")
BF16 = DType("bf16", Kind.FLOAT, 16, "pf_bf16")
F8E4M3 = DType("f8e4m3fn", Kind.FLOAT, 8, "unsigned char")
F8E5M2 = DType("f8e5m2", Kind.FLOAT, 8, "unsigned char")
I64 = DType("i64", Kind.SIGNED, 64, "pf_i64")
I32 = DType("i32", Kind.SIGNED, 32, "pf_i32")
I16 = DType("i16", Kind.SIGNED, 16, "pf_i16")
I8 = DType("i8", Kind.SIGNED, 8, "pf_i8")
U64 = DType("u64", Kind.UNSIGNED, 64, "unsigned long long")
U32 = DType("u32", Kind.UNSIGNED, 32, "unsigned")
U16 = DType("u16", Kind.UNSIGNED, 16, "unsigned short")
U8 = DType("u8", Kind.UNSIGNED, 8, "pf_u8")
BOOL = DType("bool", Kind.BOOL, 8, "pf_bool")

# Floats of 16 bits, which are stored so and computed in f32.
HALVES: tuple[DType, ...] = (F16, BF16)
# Those of 8 bits, for which no generic stands.
QUARTERS: tuple[DType, ...] = (F8E4M3, F8E5M2)
STORED: tuple[DType, ...] = (*HALVES, *QUARTERS)
FLOATS: tuple[DType, ...] = (F64, F32, F16, BF16)
ALL: tuple[DType, ...] = (*FLOATS, *QUARTERS, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
BY_NAME: dict[str, DType] = {t.name: t for t in ALL}

_EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_EPS |= {"f8e4m3fn": 2.0**-3, "f8e5m2": 2.0**-2}


@cache
def _numpy() -> dict[str, np.dtype[Any]]:
    """NumPy's dtypes by name; who only checks programs needs no NumPy."""
    import ml_dtypes
    import numpy as np

    return {
        "f64": np.dtype(np.float64),
        "f32": np.dtype(np.float32),
        "f16": np.dtype(np.float16),
        "bf16": np.dtype(ml_dtypes.bfloat16),
        "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
        "i64": np.dtype(np.int64),
        "i32": np.dtype(np.int32),
        "i16": np.dtype(np.int16),
        "i8": np.dtype(np.int8),
        "u64": np.dtype(np.uint64),
        "u32": np.dtype(np.uint32),
        "u16": np.dtype(np.uint16),
        "u8": np.dtype(np.uint8),
        "bool": np.dtype(np.bool_),
    }


@cache
def _by_numpy() -> dict[np.dtype[Any], DType]:
    return {d: BY_NAME[n] for n, d in _numpy().items()}


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The language dtype of a NumPy dtype (native byte order only), or None if there is none."""
    return _by_numpy().get(dtype)
