"""Random programs of fourteen kinds, compiled in ways drawn by their seeds, against the reference.

Each of the programs of a run is compiled in two ways, one of them for a CPU, with thresholds that its group
shares; `make test-all` runs more.  A failure shows its program, made smaller, and the way.  The long run:

    POLYFUSE_TEST_GROUPS=1000:1400 pytest -m slow tests/property/test_random_kinds.py -k "many and scans"
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from drawn_ways import DrawnWay, drawn_thresholds, drawn_way
from kinds import KINDS, kind_call
from reduce_program import reduced
from slow_eval import Slow
from targets import DEVICES, Array, Call
from thinned import thinned
from ways import Failure, Pair, first_failure

from polyfuse.codegen.cpu.emit import Request
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

TOGETHER = 4
GROUPS = range(3)
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "3:15").split(":"))
MORE_GROUPS = range(FIRST, LAST)


def seeds_of(group: int) -> range:
    return range(group * TOGETHER, (group + 1) * TOGETHER)


def drawn_ways(seed: int) -> list[DrawnWay]:
    """Two, the first for a CPU."""
    return [drawn_way(2 * seed, on_cpu=True), drawn_way(2 * seed + 1)]


def chosen(kind: str, group: int) -> list[Pair]:
    calls = {s: kind_call(kind, s) for s in seeds_of(group)}
    return [(call, way) for s, call in calls.items() for way in drawn_ways(s)]


def failure_of(pairs: list[Pair]) -> Failure | None:
    return first_failure(pairs, flush_denormals=False, vague=True)


def check_group(kind: str, group: int) -> None:
    with drawn_thresholds(group):
        failure = failure_of(chosen(kind, group))
        if failure is not None:
            smaller = reduced(failure, lambda call, way: failure_of([(call, way)]))
            pytest.fail(f"thresholds of group {group}; {smaller}", pytrace=False)


@pytest.mark.parametrize("group", thinned(GROUPS, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_agree(kind: str, group: int) -> None:
    check_group(kind, group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_agree_on_many(kind: str, group: int) -> None:
    check_group(kind, group)


# What the first programs of a kind must have between them.
FEATURES = {
    "contractions": ("sum[", " 2*", " - 1 - ", "min(", "exp(", "tanh(", "f16", "i32", "f64", "w[", "given("),
    "scatters": ("+=", "max=", "min=", "inout", "let ", " = 1.5", "f16", "i64", "u8", "counts", "exp("),
    "pieces": ("sum[k", "exp(", "t2", "f16", "f64", " % 2", "N - 1 - i", "0.25 for"),
    "scans": ("t - 1", "t + 1", "t - 2", "T - 1 - t", "tanh(", "max(", "f64", "0..T - 1"),
    "ranges": (
        "t*1+1",
        "..N]",
        "t*2",
        "max(t*",
        "min(t*",
        "else -inf",
        "-1-s",
        "prod[",
        "bool",
        "bf16",
        "z[",
    ),
    "inouts": ("p[j, i]", "p[N - 1 - i", "p[i + 1", "0..i", "r[i]", "f16", "i32", "d[j]"),
    "integers": ("//", " % ", "**", "argm", "prod[", "any[", "u8", "i64", "bool", "floor("),
    "rows": ("exp(", "rsqrt(", "argm", "c - 1", "any[", "log(", "prod[", "bf16", "f16", "C, R", "given("),
    "half_rows": ("exp(", "rsqrt(", "bf16", "f16", "C, R", "w[", "h_c[c]", "v_c[C - 1 - c]"),
    "special": ("sum[", "+=", " if ", "bf16", "exp("),
    "casts": ("f8e4m3fn(", "f8e5m2(", "i8(f64(", "i16(bool(", "f16(", "bf16(", "bool(", "i64(", "i32(f32("),
    "bits": (
        "uniform(",
        "normal(",
        "position(m, n)",
        ", m & 3)",
        "from_bits(",
        "u64",
        "u16",
        "mean[",
        ">= 0.5",
    ),
    "segments": (
        "row(p, e)",
        "row(q, e)",
        "c[n]",
        "E - 1 - e",
        "mean[",
        "prod[",
        "any[",
        "min(",
        "and e <",
        "bf16",
        "u8",
    ),
    "windows": ("2*p + r", "p >= r", "z[", "in p..p + ", "inout x", "k[", "w[c, r", "max[r", "f16", "+="),
}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_a_kind_are_varied(kind: str) -> None:
    texts = [kind_call(kind, seed).text for seed in range(110)]
    times = Counter(f for f in FEATURES[kind] for text in texts if f in text)
    assert set(times) == set(FEATURES[kind]) and min(times.values()) >= 2, times
    assert len(set(texts)) > 90


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_programs(kind: str) -> None:
    a, b = kind_call(kind, 5), kind_call(kind, 5)
    assert a.text == b.text and a.sizes == b.sizes and list(a.inputs) == list(b.inputs)
    assert all(a.inputs[n].tobytes() == b.inputs[n].tobytes() for n in a.inputs)


@pytest.mark.parametrize("kind", ["contractions", "rows", "special", "windows"])
def test_arguments_hold_special_values(kind: str) -> None:
    calls = [kind_call(kind, seed) for seed in range(60)]
    floats = [x.astype(np.float64) for c in calls for x in c.inputs.values() if x.dtype.kind not in "iub"]
    assert any(np.isnan(x).any() for x in floats) and any(np.isinf(x).any() for x in floats)
    assert any((np.signbit(x) & (x == 0)).any() for x in floats)


@pytest.mark.parametrize("kind", ["contractions", "rows", "half_rows"])
def test_optional_tensors_are_there_and_absent(kind: str) -> None:
    """Judged by the program that has all of them, and is told which are there, element by element."""
    calls = [c for c in (kind_call(kind, seed) for seed in range(110)) if "given(" in c.text]
    names = {c.name: re.findall(r"(\w+): \w+\[[^\]]*\]\?", c.text) for c in calls}
    absent = Counter(n not in c.inputs for c in calls for n in names[c.name])
    assert min(absent[True], absent[False]) >= 2
    small = [c for c in calls if sum(x.size for x in c.inputs.values()) < 400]
    assert small
    for c in small[:4]:
        text = c.text.replace("]?", "]")
        for n in names[c.name]:
            text = text.replace(f"given({n})", str(n in c.inputs).lower())
        graph = instantiate(parse_text(text), "p")
        inputs = c.inputs | {n: _unread(graph, n, c.sizes) for n in names[c.name] if n not in c.inputs}
        found, want = Slow(c.graph, c.sizes, c.inputs), evaluate(graph, c.sizes, inputs)
        for name in graph.outputs:
            outcome = agrees(found.tensor(name), want[name], graph.tensor(name).dtype)
            assert outcome, f"{c.name}, {name}: {outcome.message}\n{c.text}"


def _unread(graph: TensorGraph, name: str, sizes: dict[str, int]) -> Array:
    """What nobody reads."""
    t = graph.tensor(name)
    return np.full([evaluate_index(e, sizes) for e in t.shape], 77).astype(t.dtype.numpy)


def test_ways_are_varied() -> None:
    ways = [way for seed in range(100) for way in drawn_ways(seed)]
    assert {w.device for w in ways} == {None, *DEVICES}
    layers = Counter((bool(w.fusion), bool(w.stitching), bool(w.packing)) for w in ways)
    assert len(layers) == 8
    assert len({w.knobs for w in ways}) > 50
    assert drawn_ways(3) == drawn_ways(3)


@dataclass(frozen=True)
class _Miscompiled:
    """A way that mistakes one function for another."""

    on_cpu: bool = True

    def request(self, call: Call) -> Request:
        text = call.text.replace("tanh(", "sin(")
        return DrawnWay(LoopFusion()).request(replace(call, graph=instantiate(parse_text(text), "p")))


def test_a_wrong_answer_is_found_and_its_program_made_smaller() -> None:
    text = """op p(x: f32[N, M]) -> (a: f32[N], y: f32[N, M], z: f32[N, M]) {
  a[i] = sum[j](x[i, j])
  u[i, j] = x[i, j] * 2.0
  z[i, j] = u[i, j] + a[i]
  y[i, j] = tanh(x[i, j])
}
"""
    x = np.full((3, 5), 0.5, np.float32)
    call = Call("planted", text, instantiate(parse_text(text), "p"), {"N": 3, "M": 5}, {"x": x})
    failure = failure_of([(call, _Miscompiled())])
    assert failure is not None and failure.kind == "wrong" and "y: 15 of 15 elements" in failure.message
    smaller = reduced(failure, lambda c, way: failure_of([(c, way)]))
    assert smaller.call.text.split("{\n")[1] == "  y[i, j] = tanh(x[i, j])\n}\n"
    assert failure_of([(smaller.call, DrawnWay())]) is None


def test_a_way_is_made_plainer_where_it_does_not_matter() -> None:
    """What fails with layer I, whatever else there is."""
    cut, knobs = Clustering(most=3, partition="search"), CpuKnobs(strip=4, chunks=5)
    layers = LoopFusion(partition="rules", collapse=False), Stitching(rows=1), Packing()
    call, way = kind_call("pieces", 0), DrawnWay(*layers, cut, knobs)

    def judge(call: Call, way: DrawnWay) -> Failure | None:
        return Failure(call, way, "wrong", "as planted") if way.fusion is not None else None

    found = reduced(Failure(call, way, "wrong", "as planted"), judge)  # type: ignore[arg-type]
    assert found.way == DrawnWay(fusion=LoopFusion())
