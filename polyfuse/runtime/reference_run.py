"""Running one statement of the reference evaluation over (a part of) its domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from polyfuse.ir.index_expr import variables as index_variables
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.runtime import reference_reduce as reduction
from polyfuse.runtime.reference_block import (
    BLOCK_ELEMENTS,
    Active,
    Block,
    BlockEvaluator,
    Store,
    both,
    restrict,
)
from polyfuse.runtime.reference_contract import contraction
from polyfuse.runtime.reference_scatter import scattered
from polyfuse.runtime.reference_values import Array, Val, is_exact

NO_DIMS = " "  # the one axis of a statement without loops
Ranges = Mapping[str, tuple[int, int]]
SCATTER_ELEMENTS = 1 << 24


@dataclass
class Runner:
    """The state of a reference run: what is known of every tensor."""

    graph: TensorGraph
    sizes: dict[str, int]
    stores: dict[str, Store]
    checked: bool

    def box(self, s: Statement, fixed: Ranges) -> Block | None:
        """The smallest rectangle around the domain, or None if it is empty.

        `fixed` narrows the ranges of some dims.
        """
        ranges: dict[str, tuple[int, int]] = {}
        for d in s.dims:
            here = BlockEvaluator(s, Block(ranges or {NO_DIMS: (0, 1)}), self.stores, self.sizes, True)
            lo, hi = int(here.index(d.lower).min()), int(here.index(d.upper).max())
            if d.name in fixed:
                lo, hi = max(lo, fixed[d.name][0]), min(hi, fixed[d.name][1])
            if hi <= lo:
                return None
            ranges[d.name] = (lo, hi)
        return Block(ranges or {NO_DIMS: (0, 1)})

    def run(self, s: Statement, fixed: Ranges, wait: bool = False) -> bool:
        """Evaluate and store `s` on its domain; with `wait`, only where all it reads is defined.

        Says whether any element was left or found waiting.
        """
        reduced = s.reduction is not None and not s.accumulate
        outer = tuple(d.name for d in s.dims if not (d.reduce and reduced))
        whole = self.statement_box(s, fixed)
        if s.accumulate:
            self._start_accumulation(s)
        if whole is None:
            return False
        full = self.box(s, fixed)
        if full is not None and not wait:
            val = self._contract(s, full)
            if val is not None:
                at = BlockEvaluator(s, full, self.stores, self.sizes, self.checked)
                self._write(s, at, val, None)
                return False
        waiting = False
        limit = SCATTER_ELEMENTS if s.accumulate else BLOCK_ELEMENTS
        for part in (full or whole).split(outer, limit):
            waiting |= self._run_block(s, part, outer, reduced, empty=full is None, wait=wait)
        return waiting

    def statement_box(self, s: Statement, fixed: Ranges) -> Block | None:
        """The box of the dims that are not reduced (an empty reduction still defines elements)."""
        if s.reduction is None or s.accumulate:
            return self.box(s, fixed)
        return self.box(replace(s, dims=tuple(d for d in s.dims if not d.reduce)), fixed)

    def _run_block(
        self, s: Statement, block: Block, outer: tuple[str, ...], reduced: bool, *, empty: bool, wait: bool
    ) -> bool:
        pending = np.zeros(block.shape, bool) if wait else None
        at = BlockEvaluator(s, block, self.stores, self.sizes, self.checked, pending)
        mask = None if empty else self._inside(s, at)
        if s.accumulate:
            self._accumulate(s, at, mask)
            return False
        if reduced:
            val = self._reduce(s, at, mask, empty)
            axes = tuple(k for n, k in block.axis.items() if n not in outer)
            inside = None if mask is None else self._inside(s, at, outer_only=True)
            waits = None if pending is None else pending.any(axis=axes, keepdims=True)
        else:
            val, inside, waits = at.expr(s.expr, mask), mask, pending
        if waits is not None:
            ready: Array = np.logical_not(waits)
            inside = both(inside, ready)
        self._write(s, at, val, inside)
        return waits is not None and bool(waits.any())

    def _inside(self, s: Statement, at: BlockEvaluator, outer_only: bool = False) -> Active:
        """Where the block is inside the domain; None if everywhere (rectangular domains)."""
        mask: Active = None
        for d in s.dims:
            if (outer_only and d.reduce) or d.name not in at.block.ranges:
                continue
            if index_variables(d.lower) or index_variables(d.upper):
                v = at.block.coordinates(d.name)
                mask = both(mask, (v >= at.index(d.lower)) & (v < at.index(d.upper)))
        return mask

    # --- reductions ---

    def _reduce(self, s: Statement, at: BlockEvaluator, mask: Active, empty: bool) -> Val:
        op, block = cast(str, s.reduction), at.block
        inner = tuple(d.name for d in s.dims if d.reduce and d.name in block.ranges)
        if empty or (mask is not None and op in ("max", "min", "argmax", "argmin")):
            self._check_not_empty(s, at, mask, empty)
        if empty:
            kind: Any = np.float64 if s.expr.dtype.is_float else np.int64
            kind = np.bool_ if s.expr.dtype.is_bool and op in ("any", "all") else kind
            start = reduction.identity(op, s.expr.dtype)
            return Val(np.full(block.shape, start, kind), 0.0, True)
        axes = tuple(block.axis[n] for n in inner)
        if op.startswith("arg"):
            (axis,) = axes
            first = block.ranges[inner[0]][0]
            return reduction.arg_extreme(op, at.expr(s.expr, mask), block.shape, axis, mask, first)
        total: reduction.Partial | None = None
        for part in block.split(inner):
            here = at
            if part is not block:
                here = BlockEvaluator(s, part, self.stores, self.sizes, self.checked, self._part(at, part))
            inside = self._inside(s, here)
            term = here.expr(s.expr, inside)
            more = reduction.partial(op, term, part.shape, axes, inside)
            total = more if total is None else reduction.merge(op, total, more)
        assert total is not None
        return reduction.finish(op, total, s.expr.dtype, _count(block, inner))

    def _part(self, at: BlockEvaluator, part: Block) -> Array | None:
        """The view of `pending` that belongs to a part of the block."""
        if at.pending is None:
            return None
        cut = tuple(
            slice(lo - at.block.ranges[n][0], hi - at.block.ranges[n][0])
            for n, (lo, hi) in part.ranges.items()
        )
        return at.pending[cut]

    def _check_not_empty(self, s: Statement, at: BlockEvaluator, mask: Active, empty: bool) -> None:
        op = cast(str, s.reduction)
        if op in ("sum", "prod", "any", "all"):
            return
        bad: Array = np.ones(at.block.shape, bool)
        if mask is not None and not empty:
            axes = tuple(at.block.axis[d.name] for d in s.dims if d.reduce)
            bad = np.asarray(~np.broadcast_to(mask, at.block.shape).any(axis=axes, keepdims=True))
        outer = self._inside(s, at, outer_only=True)
        if bool((bad if outer is None else bad & outer).any()):
            at.fail("PF451", f"{op} of no elements has no value", s.span, bad, outer)

    def _contract(self, s: Statement, full: Block) -> Val | None:
        """sum(a * b) as one matrix product over the whole box."""
        found = contraction(s, full)
        if found is None:
            return None
        parts = [restrict(full, tuple(names)) for names in found.names]
        x, y = (
            BlockEvaluator(s, part, self.stores, self.sizes, self.checked).expr(e)
            for part, e in zip(parts, (found.left, found.right), strict=True)
        )
        return found.evaluate(full, x, y, _count(full, found.reduced))

    # --- writing ---

    def _write(self, s: Statement, at: BlockEvaluator, val: Val, inside: Active) -> None:
        store = self.stores[s.target]
        outer = tuple(d.name for d in s.dims if not d.reduce)
        shape = tuple(
            n if name in outer else 1 for name, n in zip(at.block.ranges, at.block.shape, strict=True)
        )
        where, _ = at.locate(s.write, store.shape, s.target, s.span, inside) if s.write else ((), None)
        if any(extent == 0 for extent in store.shape):
            return
        v = np.broadcast_to(val.v, shape)
        if not is_exact(val.e) and is_exact(store.e):
            store.e = np.zeros(store.shape)
        e = None if is_exact(store.e) else np.broadcast_to(np.asarray(val.e, np.float64), shape)
        fast = at._as_slices(s.write, store.shape) if inside is None else None
        if fast is not None and fast[1] and set(fast[1]) == set(outer):
            slices = fast[0]
            at._aligned(store.v[slices], fast[1])[...] = v
            if e is not None:
                at._aligned(cast(Array, store.e)[slices], fast[1])[...] = e
            if store.defined is not None:
                store.defined[slices] = True
        else:
            put = np.ones(shape, bool) if inside is None else np.broadcast_to(inside, shape)
            places = tuple(np.broadcast_to(w, shape)[put] for w in where) if where else ...
            store.v[places] = v[put] if where else v.reshape(())
            if e is not None:
                cast(Array, store.e)[places] = e[put] if where else e.reshape(())
            if store.defined is not None and (where or bool(put.all())):
                store.defined[places] = True
        store.nonneg = store.nonneg and val.nonneg
        self._settle(store)

    def _settle(self, store: Store) -> None:
        if store.defined is not None and store.defined.all():
            store.defined = None

    def defined_count(self, tensor: str) -> int:
        """How many elements of a tensor are known."""
        store = self.stores[tensor]
        return store.v.size if store.defined is None else int(store.defined.sum())

    # --- accumulation ---

    def _start_accumulation(self, s: Statement) -> None:
        """What no statement defines starts at the identity (or the entry value of an inout)."""
        store = self.stores[s.target]
        if store.defined is not None and self.graph.tensor(s.target).alias is None:
            start = reduction.identity(cast(str, s.reduction), store.dtype)
            store.v[~store.defined] = start
            store.nonneg = store.nonneg and start >= 0
        store.defined = None

    def _accumulate(self, s: Statement, at: BlockEvaluator, mask: Active) -> None:
        store, op = self.stores[s.target], cast(str, s.reduction)
        term, shape = at.expr(s.expr, mask), at.block.shape
        where, unsure = at.locate(s.write, store.shape, s.target, s.span, mask)
        put = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        places = tuple(np.broadcast_to(w, shape)[put] for w in where)
        flat = np.zeros(int(put.sum()), np.int64)
        for place, extent in zip(places, store.shape, strict=True):
            flat = flat * extent + place
        v = np.broadcast_to(term.v, shape)[put]
        e = np.broadcast_to(np.asarray(term.e, np.float64), shape)[put]
        val = scattered(op, store, flat, v, e, is_exact(term.e))
        store.v, store.e = val.v, val.e
        if unsure is not None and bool(unsure.any()):
            store.e = np.full(store.shape, np.inf)
        store.nonneg = store.nonneg and term.nonneg


def _count(block: Block, names: tuple[str, ...]) -> int:
    return math.prod(block.ranges[n][1] - block.ranges[n][0] for n in names)
