"""Loads that both sides of a condition make are made before it.

    for i @vec: y[i] = x[i] if i != k else -x[i]
becomes
    for i @vec: u = x[i]; y[i] = u if i != k else -u

What a condition on indices guards is not loaded in vectors (`Printer.fence`); what both sides load is made in
any case.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.c_family import guarded_load, guards_index
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update
from polyfuse.ir.tensor_graph import Cast, Expr, Read, Select, children, map_expr


def with_shared_loads(loop: For, numbers: itertools.count[int]) -> For:
    """See the module docstring; a loop where other loads stay guarded remains as it is. `numbers` numbers the
    scalars."""
    if not guarded_load(loop.body):
        return loop
    body = tuple(n for node in loop.body for n in _freed(node, numbers))
    return loop if guarded_load(body) else replace(loop, body=body)


def _freed(node: Node, numbers: itertools.count[int]) -> list[Node]:
    if not isinstance(node, (Store, Update)):
        return [node]
    guarded = _guarded(node.value)
    scalars = {x: Read(f"%u{next(numbers)}", (), x.dtype) for x in _certain(node.value) if x in guarded}
    value = map_expr(node.value, lambda e: scalars.get(e, e))
    return [*(Declare(s.tensor, s.dtype, x) for x, s in scalars.items()), replace(node, value=value)]


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


def _guarded(e: Expr) -> set[Expr]:
    """Loads under a condition on indices."""
    found = {x for part in children(e) for x in _guarded(part)}
    if isinstance(e, Select) and guards_index(e.cond):
        found |= {x for side in (e.then, e.other) for x in _loads(side)}
    return found


def _loads(e: Expr) -> set[Expr]:
    return {e} if _is_load(e) else {x for part in children(e) for x in _loads(part)}
