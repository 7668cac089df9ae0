"""What a process and those that lower clusters for it say to each other.

Lines are pickles in base 64.  Both ends are the same program on the same machine, and the pipe is private.
"""

from __future__ import annotations

import base64
import copyreg
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from polyfuse.ir.dtypes import BY_NAME, DType
from polyfuse.lowering import Made, Passes
from polyfuse.source import SourceText

GREETING = "polyfuse lowering helper 1"
# A cluster takes up to half a second, and isl may be asked several times for seconds each.
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Begin:
    """What the next clusters are lowered by; `kept`: lessons are those of the cache on disk."""

    passes: Passes
    kept: bool
    environment: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """Kernels of a cluster, or None where it failed; the largest memory of the helper so far, in bytes."""

    made: Made | None
    peak: int


def pack(value: object) -> bytes:
    """A line. Dtypes keep their identity, source texts become one object again."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[DType] = _reduced_dtype
    pickler.dispatch_table[SourceText] = _reduced_source
    pickler.dump(value)
    return base64.b64encode(out.getvalue())


def unpack(line: bytes | str) -> Any:
    """The value of a line that `pack` made."""
    return pickle.loads(base64.b64decode(line))


def _reduced_dtype(dtype: DType) -> tuple[Any, ...]:
    return _dtype, (dtype.name,)


def _dtype(name: str) -> DType:
    return BY_NAME[name]


def _reduced_source(source: SourceText) -> tuple[Any, ...]:
    return _source, (source.name, source.text)


@lru_cache(maxsize=64)
def _source(name: str, text: str) -> SourceText:
    return SourceText(name, text)
