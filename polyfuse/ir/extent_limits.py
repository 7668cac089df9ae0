"""Extents that 64 bits cannot hold: found before anything computes with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.index_expr import IndexExpr, evaluate, sizes, variables
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.source import Span

LARGEST = (1 << 63) - 1


def report_large(graph: TensorGraph, values: Mapping[str, int], found: Diagnostics) -> None:
    """Report PF424 for the first extent, tensor or range beyond 2^63 - 1, as far as sizes are known."""
    for span, message in (*_tensors(graph, values), *_ranges(graph, values)):
        found.error("PF424", message, span)
        return


def _tensors(graph: TensorGraph, values: Mapping[str, int]) -> Iterator[tuple[Span, str]]:
    for t in graph.tensors:
        shape = [_value(e, values) for e in t.shape]
        for axis, (e, n) in enumerate(zip(t.shape, shape, strict=True)):
            if n is not None and n > LARGEST:
                yield t.span, f"axis {axis} of '{t.name}' has the extent {_named(e, n)}; indices have 64 bits"
        known = [n for n in shape if n is not None]
        if len(known) < len(shape) or (t.role is Role.TEMP and 0 in known):
            continue
        nbytes = math.prod(n for n in known if n > 0) * t.dtype.bytes  # as NumPy counts where one is 0
        if nbytes > LARGEST:
            text = f"'{t.name}' of shape {tuple(known)} would take {nbytes} bytes"
            yield t.span, f"{text}; there are addresses for 2^63"


def _ranges(graph: TensorGraph, values: Mapping[str, int]) -> Iterator[tuple[Span, str]]:
    for s in graph.statements:
        for d in s.dims:
            for e in (d.lower, d.upper):
                n = None if variables(e) else _value(e, values)
                if n is not None and abs(n) > LARGEST:
                    yield (
                        s.span,
                        f"the range of '{d.name}' has the bound {_named(e, n)}; indices have 64 bits",
                    )


def _value(e: IndexExpr, values: Mapping[str, int]) -> int | None:
    """None for sizes that are open and for divisions by zero, which are reported elsewhere."""
    if any(n not in values for n in sizes(e)):
        return None
    try:
        return evaluate(e, values)
    except ZeroDivisionError:
        return None


def _named(e: IndexExpr, value: int) -> str:
    return str(value) if str(e) == str(value) else f"{e} = {value}"
