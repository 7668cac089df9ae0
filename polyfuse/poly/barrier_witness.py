"""Two accesses in conflict, as a reader understands them: loop values, threads, the element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import islpy as isl

from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.loop_ir import BarrierScope
from polyfuse.poly.conflicts import Demand, dims_of, own_names
from polyfuse.poly.loop_events import LANE, Access, Events


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of one thread. Indices that data decide are None; so is a block that may be any."""

    buffer: str
    write: bool
    element: tuple[int | None, ...]
    loops: tuple[tuple[str, int], ...]
    thread: tuple[int, int]
    block: int | None

    @property
    def place(self) -> str:
        index = ", ".join("?" if i is None else str(i) for i in self.element)
        return f"{self.buffer}[{index}]"

    def who(self, threads: tuple[int, int]) -> str:
        loops = [f"{n}={v}" for n, v in self.loops]
        row = [f"ty {self.thread[1]}"] if threads[1] > 1 else []
        block = [f"block {self.block}"] if self.block is not None else []
        at = f" (at {', '.join(loops)})" if loops else ""
        return f"tx {', '.join([str(self.thread[0]), *row, *block])}{at}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """`first` comes before `second` in program order where there is one; `scope` is the barrier it takes."""

    first: Touch
    second: Touch
    scope: BarrierScope
    threads: tuple[int, int]
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        a, b = self.first, self.second
        sizes = f" for {', '.join(f'{n}={v}' for n, v in self.sizes)}" if self.sizes else ""
        return (
            f"{b.who(self.threads)} {'writes' if b.write else 'reads'} {b.place}, which"
            f" {a.who(self.threads)} {'writes' if a.write else 'reads'} before{sizes}"
        )


def witness(events: Events, d: Demand, pairs: isl.Set) -> Conflict:
    """One pair of a set that is not empty."""
    point = pairs.sample_point()
    names = tuple(own_names(a, s, d.shared, events.ranges) for a, s in ((d.first, "a"), (d.second, "b")))
    values = {n: _at(point, isl.dim_type.set, k) for k, n in enumerate(dims_of(*names))} | {"0": 0}
    sizes = {n: _at(point, isl.dim_type.param, k) for k, n in enumerate(events.sizes)}
    sides = [
        _touch(a, {v: values[n] for v, n in mine.items()} | sizes)
        for a, mine in zip((d.first, d.second), names, strict=True)
    ]
    return Conflict(sides[0], sides[1], d.scope, events.threads, tuple(sizes.items()))


def _at(point: isl.Point, kind: isl.dim_type, position: int) -> int:
    return int(point.get_coordinate_val(kind, position).to_python())


def _touch(access: Access, env: Mapping[str, int]) -> Touch:
    def value(e: IndexExpr | None) -> int | None:
        return None if e is None else evaluate(e, env)

    element = [value(i) for i in access.indices]
    if access.count > 1 and element and element[-1] is not None:
        element[-1] += env[LANE]
    loops = [
        (r.var, evaluate(r.value, env))
        for r in access.place.regions
        if r.var is not None and r.value is not None
    ]
    nest = access.place.nest
    block = None if nest is None or nest.count is None else evaluate(nest.count, env)
    if block is not None and nest is not None and not nest.once:
        block = block % nest.blocks if nest.blocks is not None else None
    return Touch(access.buffer, access.write, tuple(element), tuple(loops), (env["tx"], env["ty"]), block)
