"""The axis planner on random graphs: legal, honest about parallel loops, deterministic and fast."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import graphs
import pytest
from brute_force import Enumeration
from graphs import graph

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import Member, Tree, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.axis_planner import plan, program_order
from polyfuse.poly.dependences import ordering
from polyfuse.poly.domains import build_model
from polyfuse.poly.legality import check_schedule, parallel
from polyfuse.poly.tree_edit import loops

GRAPHS = 320
SIZES = (
    {"T": 3, "H": 2, "S": 4},
    {"T": 2, "H": 4, "S": 3},
    {"T": 1, "H": 1, "S": 1},
    {"T": 4, "H": 3, "S": 2},
)


class _Random:
    """Random graphs: elementwise, broadcast, reduced, transposed and recurrent statements over T, H, S."""

    def __init__(self, seed: int, length: int) -> None:
        self.rng = random.Random(seed)
        # Tensors by the sizes of their dims, in order of their making.
        self.known = {"TH": ["x", "w"], "HT": ["v"], "T": ["r"], "H": ["g"], "THS": ["z"], "": ["k"]}
        self.lines: list[str] = []
        for n in range(length):
            makers = (
                self.elementwise, self.elementwise, self.broadcast, self.reduce, self.transpose,
                self.recurrence, self.total, self.gather,
            )  # fmt: skip
            self.rng.choice(makers)(f"s{n}")

    def pick(self, shape: str) -> str:
        name = self.rng.choice(self.known.setdefault(shape, [])[-5:])
        return f"{name}[{self.index(shape)}]" if shape else f"{name}[()]"

    def index(self, shape: str) -> str:
        return ",".join(c.lower() for c in shape)

    def loops(self, shape: str, reduced: str = "") -> str:
        return ", ".join(f"{c.lower()}<{c}" + ("*" if c in reduced else "") for c in shape)

    def add(self, name: str, shape: str, text: str) -> None:
        self.known.setdefault(shape, []).append(name)
        self.lines.append(text)

    def elementwise(self, name: str) -> None:
        shape = self.rng.choice([s for s, names in self.known.items() if names])
        text = f"{name}[{self.index(shape)}] = {self.pick(shape)} + {self.pick(shape)} | {self.loops(shape)}"
        self.add(name, shape, text)

    def broadcast(self, name: str) -> None:
        whole, part = self.rng.choice((("TH", "T"), ("TH", "H"), ("HT", "T"), ("THS", "TH"), ("TH", "")))
        text = f"{name}[{self.index(whole)}] = {self.pick(whole)} - {self.pick(part)} | {self.loops(whole)}"
        self.add(name, whole, text)

    def reduce(self, name: str) -> None:
        whole, part = self.rng.choice(
            (("TH", "T"), ("TH", "H"), ("HT", "T"), ("THS", "TH"), ("THS", "T"), ("THS", "H"))
        )
        left = "".join(c for c in whole if c not in part)
        kind = self.rng.choice(("sum", "max"))
        dims = self.loops(part + left, left)
        self.add(name, part, f"{name}[{self.index(part)}] {kind}= {self.pick(whole)} | {dims}")

    def transpose(self, name: str) -> None:
        old, new = self.rng.choice((("TH", "HT"), ("HT", "TH")))
        self.add(name, new, f"{name}[{self.index(new)}] = {self.pick(old)} + 1 | {self.loops(new)}")

    def recurrence(self, name: str) -> None:
        edge, step, where = self.rng.choice(
            (("0", "t-1", "t in 1..T"), ("T-1", "t+1", "t in 0..T-1"), ("0", "t-1", "t in 1..T"))
        )
        read = self.pick("TH")
        self.lines.append(f"{name}_first: {name}[{edge},h] = {read.replace('[t,', f'[{edge},')} | h<H")
        self.add(name, "TH", f"{name}[t,h] = {name}[{step},h] + {read} | {where}, h<H")

    def total(self, name: str) -> None:
        self.add(name, "", f"{name}[] sum= {self.pick('TH')} | t<T*, h<H*")

    def gather(self, name: str) -> None:
        read = self.pick("TH").replace("[t,", "[id[t],")
        self.add(name, "TH", f"{name}[t,h] = {read} + {self.pick('TH')} | t<T, h<H")

    def graph(self, name: str) -> TensorGraph:
        recurrent = [line.split(":")[0] for line in self.lines if "_first:" in line]
        temps = " ".join(f"{n.removesuffix('_first')}[T,H]" for n in recurrent)
        inputs = "x[T,H] w[T,H] v[H,T] r[T] g[H] z[T,H,S] k[] id[T]"
        return graph(name, inputs, "", "\n".join(self.lines), temps)


def random_graph(seed: int, length: int) -> TensorGraph:
    return _Random(seed, length).graph(f"random{seed}")


def coincident(tree: Tree) -> list[Member]:
    return [m for m in loops(tree) if m.coincident]


@pytest.mark.parametrize("batch", range(8))
def test_random_graphs_are_planned_legally(batch: int) -> None:
    for seed in range(batch * GRAPHS // 8, (batch + 1) * GRAPHS // 8):
        g = random_graph(seed, 2 + seed % 9)
        tree = plan(g)
        assert sorted(statements(tree)) == sorted(s.name for s in g.statements)
        model = build_model(g)
        verdict = check_schedule(model, tree)
        assert verdict, (seed, verdict)
        order = ordering(model)
        for m in coincident(tree):
            assert parallel(model, tree, m, order), (seed, m.name)
        e = Enumeration(g, SIZES[seed % len(SIZES)])
        assert e.complete(tree) and e.ordered(tree), seed
        assert all(e.parallel(tree, m) for m in coincident(tree)), seed


@pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)
def test_known_graphs(g: TensorGraph) -> None:
    try:
        tree = plan(g)
    except ScheduleError as error:
        assert error.code == "PF510" and g is graphs.SOLVE
        return
    assert check_schedule(build_model(g), tree)
    assert plan(g) == tree


def test_a_parallel_loop_is_not_given_up_for_a_fusion() -> None:
    """Reading a neighbour is no recurrence: both loops stay parallel, in two phases."""
    assert shape(plan(graphs.GUARDED)) == "B1([B1(a); B1(y)])"


def test_layer_norm_backward_keeps_its_rows_parallel() -> None:
    assert shape(plan(graphs.LAYER_NORM_BACKWARD)) == "B1([B1(xh+dg0+s1+s2+dgm+dbt); B1(dx)])"


def test_a_recurrence_along_no_axis_is_refused_with_its_place() -> None:
    g = graph("swap", "x[N]", "y[N]", "y0: y[i] = y[N-1-i] | i in 1..N")
    with pytest.raises(ScheduleError) as caught:
        plan(g)
    assert caught.value.code == "PF510"
    span = caught.value.diagnostics[0].span
    assert span is not None and span.text.startswith("y[i] = y[N-1-i]")


def test_program_order_follows_the_dependences() -> None:
    assert program_order(graphs.TWO_RECURRENCES, ["h1", "c1", "f"]) == ("f", "c1", "h1")


def test_time_per_statement(record_property: Callable[[str, object], None]) -> None:
    for length, limit in ((20, 0.2), (100, 0.5), (400, 4.0)):
        g = random_graph(length, length)
        best = min(_timed(g) for _ in range(3))
        record_property(f"seconds for {len(g.statements)} statements", best)
        print(f"{len(g.statements)} statements: {1e3 * best:.1f} ms")
        assert best < limit


def _timed(g: TensorGraph) -> float:
    start = time.perf_counter()
    plan(g)
    return time.perf_counter() - start
