"""What the launcher is told of tensors of another library (``tensors.h``)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ElementKind:
    """A type of elements: DLPack's code, the dtype of the library and NumPy's."""

    code: int
    theirs: object
    ours: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class TensorLibrary:
    """How tensors on the host are read and made.

    types: exactly these.  describe: the address of the function of DLPack's exchange interface that describes
    a tensor; 0 where tensors are asked by their attributes.  flag: an attribute that must be false, unless
    `excuse()` is.  negated: a method that must give False.  refuse: must be false of each tensor.  guard:
    (object, attribute, value) that must be so at each call.  busy: functions that tell of tracers and the
    like: where one gives something true, the long way decides.  make: (extents, strides, dtype) -> a tensor.
    lend: (array) -> a tensor on its memory.  write: told of the tensors that are written, in a tuple; where
    it returns False the long way decides.  strided: what the attribute `layout` of usual tensors is.
    """

    types: tuple[type, ...]
    kinds: Sequence[ElementKind]
    describe: int
    flag: str
    excuse: Callable[[], object]
    negated: str
    refuse: Callable[[Any], object] | None
    guard: tuple[object, str, object] | None
    busy: Sequence[Callable[[], object]]
    make: Callable[..., object]
    lend: Callable[[Any], object]
    write: Callable[[tuple[Any, ...]], bool]
    strided: object


_ATTRIBUTES = {
    "on_host": "is_cpu", "layout": "layout", "shape": "shape", "stride": "stride", "address": "data_ptr",
    "dtype": "dtype",
}  # fmt: skip


class _Kind(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("theirs", ctypes.c_void_p),
        ("ours", ctypes.c_void_p),
    )


_OBJECTS = ("flag", "excuse", "negated", "refuse", "guard", "guard_name", "guard_value")
_MORE_OBJECTS = (
    "make", "lend", "write", "on_host", "layout", "strided", "shape", "stride", "address", "dtype",
)  # fmt: skip


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("ntypes", ctypes.c_int64),
        ("nkinds", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("kinds", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _OBJECTS),
        ("nbusy", ctypes.c_int64),
        ("busy", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _MORE_OBJECTS),
    )


def structure(library: TensorLibrary) -> tuple[ctypes.Structure, object]:
    """The same as C reads it, and what has to be kept for it."""
    guard, guard_name, guard_value = library.guard or (None, None, None)
    objects: dict[str, object] = {n: sys.intern(a) for n, a in _ATTRIBUTES.items()}
    objects |= {"flag": sys.intern(library.flag), "negated": sys.intern(library.negated)}
    objects |= {n: getattr(library, n) for n in ("excuse", "refuse", "make", "lend", "write", "strided")}
    objects |= {"guard": guard, "guard_value": guard_value}
    objects |= {"guard_name": guard_name and sys.intern(guard_name)}
    types = (ctypes.c_void_p * len(library.types))(*map(id, library.types))
    busy = (ctypes.c_void_p * max(1, len(library.busy)))(*map(id, library.busy))
    kinds = (_Kind * len(library.kinds))(
        *(_Kind(k.code, k.ours.itemsize, id(k.theirs), id(k.ours)) for k in library.kinds)
    )
    made = _Tensors(
        ntypes=len(types),
        nkinds=len(kinds),
        types=ctypes.addressof(types),
        kinds=ctypes.addressof(kinds),
        nbusy=len(library.busy),
        busy=ctypes.addressof(busy),
        describe=library.describe or None,
        **{n: None if x is None else id(x) for n, x in objects.items()},
    )
    return made, (library, objects, types, kinds, busy)
