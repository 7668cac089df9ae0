"""How far apart the elements are that a read takes in neighbouring iterations of loops."""

from __future__ import annotations

from polyfuse.ir.index_expr import IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat
from polyfuse.ir.tensor_graph import EXPR_TYPES, Read


def strides_of(kernel: Kernel, r: Read, *loops: str) -> tuple[int, ...]:
    """In elements, by loop, along dense memory of the kernel; 0 for what is found by data and for scalars."""
    extents = next((b.extents for b in kernel.buffers if b.tensor == r.tensor), ())
    places = tuple(i for i in r.indices if not isinstance(i, EXPR_TYPES))
    if len(places) != len(extents):
        return (0,) * len(loops)
    form = flat(places, extents)
    return tuple(abs(form.factor(IVar(name))) for name in loops)
