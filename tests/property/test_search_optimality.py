"""How far a search is from the best partition, and that what it finds computes the right thing.

The best partition of a graph of up to ten statements is found exactly (`partition_oracle`), by the model that
the search has: seconds of each group as one kernel, independent ones side by side in one launch.
"""

from __future__ import annotations

import random
import statistics

import pytest
from partition_oracle import best_partition, components, partitions
from targets import Call, compare_results
from test_random_programs import call_of
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.driver.lowering import Lowered, Passes, lower_clusters
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clustering.clusters import Clustering, search_of
from polyfuse.layers.clustering.search import Order, PlanSearch, bits
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.evaluate import evaluate

SEARCH = Clustering(partition="search", whole=0)
GPU = GpuTarget(sms=4, parallel=256, least=16)


class _Text:
    """A random program of elementwise operators, sums of rows and columns, broadcasts, transpositions."""

    def __init__(self, statements: int, dice: random.Random) -> None:
        self.dice = dice
        self.known = {"full": ["x", "z"], "row": ["v"], "column": ["g"]}
        self.lines = [self._line(k) for k in range(statements)]

    def _one(self, kind: str) -> str:
        return self.dice.choice(self.known[kind][-6:])

    def _line(self, k: int) -> str:
        full, row, column = self._one("full"), self._one("row"), self._one("column")
        choices = (
            (15, "row", "[t]", f"{self.dice.choice(('sum', 'max'))}[h]({full}[t, h])"),
            (12, "column", "[h]", f"sum[t]({full}[t, h])"),
            (7, "full", "[t, h]", f"{full}[h, t] + 1.0"),
            (11, "full", "[t, h]", f"{full}[t, h] - {row}[t]"),
            (10, "full", "[t, h]", f"{full}[t, h] * {column}[h]"),
            (7, "row", "[t]", f"exp({row}[t])"),
            (6, "column", "[h]", f"exp({column}[h]) + {self._one('column')}[h]"),
            (32, "full", "[t, h]", f"{full}[t, h] * 0.5 + tanh({self._one('full')}[t, h])"),
        )
        _, kind, at, value = self.dice.choices(choices, [c[0] for c in choices])[0]
        self.known[kind].append(f"n{k}")
        return f"  n{k}{at} = {value}"

    def __str__(self) -> str:
        shape = {n: "T, T" if kind == "full" else "T" for kind, names in self.known.items() for n in names}
        right = " ".join(line.split("=", 1)[1] for line in self.lines)
        results = [n for n in shape if n.startswith("n") and f"{n}[" not in right]
        outs = ", ".join(f"{n}: f32[{shape[n]}]" for n in results)
        params = "x: f32[T, T], z: f32[T, T], v: f32[T], g: f32[T]"
        return "\n".join([f"op f({params}) -> ({outs}) {{", *self.lines, "}"])


def random_graph(seed: int) -> TensorGraph:
    dice = random.Random(seed)
    text = str(_Text(dice.randint(4, 10), dice))
    return fixed_graph(instantiate(parse_text(text), "f"), {"T": dice.choice((8, 64, 256, 1024, 4096))})


def best_seconds(search: PlanSearch) -> float:
    """Of the best partition there is."""
    nodes, count = search.nodes, len(search.nodes.statements)
    joined = [0] * count
    for a, b in nodes.edges:
        joined[a] |= 1 << b
        joined[b] |= 1 << a
    tied = [*joined]
    for readers in (*nodes.shared, *Order.of(count, nodes.edges).outputs):
        for k in bits(readers):
            tied[k] |= readers & ~(1 << k)

    def seconds(group: int) -> float | None:
        """Of one launch: parts with no edge between them are kernels of their own, side by side, or one where
        they read the same."""
        ways = partitions(components(group, joined))
        launches = [parts for parts in ways if all(len(components(p, tied)) == 1 for p in parts)]
        return min(search.cost.packed([search.of(p) for p in parts]) for parts in launches)

    return best_partition(count, nodes.edges, seconds)[0]


@pytest.mark.parametrize(
    ("target", "graphs"),
    thinned([(CpuTarget(2), 80), (CpuTarget(2), 200), (GpuTarget(), 200)], 3, several=True),
    ids=str,
)
def test_plans_are_near_the_best(target: Target, graphs: int) -> None:
    """Within 5 % on average; worse than the best by no more than half, and never better than it."""
    found = []
    for seed in range(9000, 9000 + graphs):
        search = search_of(random_graph(seed), target)
        found.append(search.best().seconds / best_seconds(search))
    assert min(found) > 1 - 1e-9
    assert statistics.mean(found) < 1.05
    assert max(found) < 1.5


def test_the_oracle_on_a_graph_that_can_be_counted() -> None:
    """a -> b -> c: {a, b} costs 3, {b, c} 2, {a, c} would make a cycle with b, all three 9, one alone 2."""
    cost = {0b011: 3.0, 0b110: 2.0, 0b101: 0.1, 0b111: 9.0}
    assert best_partition(3, [(0, 1), (1, 2)], lambda g: cost.get(g, 2.0)) == (4.0, (0b001, 0b110))
    assert sorted(map(len, partitions([1, 2, 4]))) == [1, 2, 2, 2, 3]
    assert components(0b1011, [0b0010, 0b0001, 0, 0b0100]) == [0b0011, 0b1000]


def test_plans_are_partitions_without_cycles() -> None:
    for seed in range(60):
        graph = random_graph(seed)
        clusters = SEARCH.clusters(graph, [], GPU if seed % 2 else 2)
        assert sorted(n for c in clusters for n in c) == sorted(s.name for s in graph.statements)
        done: set[str] = set(graph.inputs)
        for names in clusters:
            written = {graph.statement(n).target for n in names}
            assert graph_reads(graph, names) <= done | written
            done |= written


def graph_reads(graph: TensorGraph, names: tuple[str, ...]) -> set[str]:
    return {t.name for t in graph.tensors for s in graph.readers(t.name) if s.name in names}


# --- results ----------------------------------------------------------------------------------------------


def lowered(call: Call, machine: Target) -> Lowered:
    graph = fixed_graph(call.graph, call.sizes)
    passes = Passes(SEARCH, LoopFusion(), Stitching(rows=1, barriers=False), Packing(), machine)
    low = lower_clusters(graph, SEARCH.clusters(graph, [], machine), passes)
    verify_kernels(low.kernels)
    return low


def request(low: Lowered) -> Request:
    return Request(low.kernels, copied=low.copied)


@pytest.mark.parametrize("group", thinned(range(6), 6))
def test_random_programs_agree(group: int) -> None:
    calls = [call_of(8000 + group * 10 + k) for k in range(10)]
    codes = emit_together([request(lowered(c, CpuTarget(2))) for c in calls])
    for call, code in zip(calls, codes, strict=True):
        check(call, CpuExecutable(code, {}))


def test_random_programs_agree_in_the_emulator() -> None:
    calls = [call_of(8500 + k) for k in range(12)]
    codes = emit_cuda_together([request(lowered(c, GPU)) for c in calls])
    for call, code in zip(calls, codes, strict=True):
        check(call, EmulatedKernels(code, order="random"))


def check(call: Call, machine: CpuExecutable | EmulatedKernels) -> None:
    inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
    want = evaluate(call.graph, call.sizes, inputs)
    arrays = call.memory()
    machine.run(arrays)
    compare_results(call, arrays, want, f"searched, {type(machine).__name__}")
