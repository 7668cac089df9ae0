"""Loads that both sides of a condition make, or that are in range whatever it says, are made before it.

    for i @vec: y[i] = x[i] if i != k else -x[i]
    for j @vec: s += 1 / d[i, j] if i != j else 0
becomes
    for i @vec: u = x[i]; y[i] = u if i != k else -u
    for j @vec: u = d[i, j]; s += 1 / u if i != j else 0

What a condition on indices guards is not loaded in vectors (`Printer.fence`), as it may be outside of its
tensor.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.c_family import guarded_load, guards_index
from polyfuse.codegen.decided import Loops, never_negative
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update
from polyfuse.ir.tensor_graph import EXPR_TYPES, Cast, Expr, Read, Select, children, map_expr


def with_shared_loads(kernel: Kernel, loop: For, around: Loops, numbers: itertools.count[int]) -> For:
    """See the module docstring; a loop where other loads stay guarded remains as it is. `around` are the
    loops that it is in; `numbers` numbers the scalars."""
    if not guarded_load(loop.body):
        return loop
    body = tuple(n for node in loop.body for n in _freed(kernel, node, (*around, loop), numbers))
    return loop if guarded_load(body) else replace(loop, body=body)


def _freed(kernel: Kernel, node: Node, around: Loops, numbers: itertools.count[int]) -> list[Node]:
    if not isinstance(node, (Store, Update)):
        return [node]
    guarded, certain = _guarded(node.value), _certain(node.value)
    free = [x for x in guarded if x in certain or _in_range(kernel, x, around)]
    scalars = {x: Read(f"%u{next(numbers)}", (), x.dtype) for x in free}
    value = map_expr(node.value, lambda e: scalars.get(e, e))
    return [*(Declare(s.tensor, s.dtype, x) for x, s in scalars.items()), replace(node, value=value)]


def _in_range(kernel: Kernel, load: Expr, around: Loops) -> bool:
    """Is an element inside of its tensor in all iterations of the loops?"""
    if not isinstance(load, Read):
        return isinstance(load, Cast) and _in_range(kernel, load.arg, around)
    b = kernel.buffer(load.tensor)
    return b.extents == b.shape and all(
        not isinstance(i, EXPR_TYPES) and never_negative(i, around) and never_negative(e - 1 - i, around)
        for i, e in zip(load.indices, b.shape, strict=True)
    )


def _is_load(e: Expr) -> bool:
    """Does an expression only load an element, converted perhaps?"""
    return _is_load(e.arg) if isinstance(e, Cast) else isinstance(e, Read) and bool(e.indices)


def _certain(e: Expr) -> dict[Expr, None]:
    """Loads that are made whatever the conditions in an expression are, in order."""
    if _is_load(e):
        return {e: None}
    if isinstance(e, Select):
        other = _certain(e.other)
        both = {x: None for x in _certain(e.then) if x in other}
        return {**_certain(e.cond), **both}
    return {x: None for part in children(e) for x in _certain(part)}


def _guarded(e: Expr) -> dict[Expr, None]:
    """Loads under a condition on indices, in order."""
    found = {x: None for part in children(e) for x in _guarded(part)}
    if isinstance(e, Select) and guards_index(e.cond):
        found |= {x: None for side in (e.then, e.other) for x in _loads(side)}
    return found


def _loads(e: Expr) -> dict[Expr, None]:
    return {e: None} if _is_load(e) else {x: None for part in children(e) for x in _loads(part)}
