"""What the learned cost model sees of kernels: the same for other names, another for other sizes or code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.function import function_of
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import KernelGraph as Kernels
from polyfuse.ir.loop_ir import For, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.learn.features import (
    FEATURES_VERSION,
    GROUPS,
    KERNEL_FEATURES,
    NODE_FEATURES,
    OPCODES,
    KernelGraph,
    kernel_graphs,
    learned_cpu,
)
from polyfuse.learn.loop_graph import LoopGraph
from polyfuse.options import Options

SOFTMAX = """op soft(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  y[t, h] = e[t, h] * g[h] / sum[k](e[t, k])
}"""
PRODUCT = """op prod(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) {
  c[m, n] = max(sum[k](a[m, k] * b[k, n]), 0.0)
}"""
GATHER = """op rows(x: f32[V, H], i: i64[T]) -> (y: f32[T, H], z: f32[T]) {
  y[t, h] = x[i[t], h]
  z[t] = sum[h](x[i[t], h])
}"""
TEXTS = {"softmax": SOFTMAX, "product": PRODUCT, "gather": GATHER}
SIZES = {"T": 300, "H": 200, "M": 64, "K": 96, "N": 48, "V": 500}
KNOBS = CpuKnobs(core=Core())


@cache
def kernels(text: str, knobs: CpuKnobs = KNOBS, **sizes: int) -> Kernels:
    """The kernels of a program for a named core and one thread."""
    programs = parse_text(text)
    graph = instantiate(programs, programs.ops[0].name)
    known = {n: v for n, v in {**SIZES, **sizes}.items() if n in graph.sizes}
    options = Options(threads=1, progress=False, verify=False, dump=None)
    made = Compilation(
        graph, known, LoopFusion(), options, stitching=Stitching(), packing=Packing(), knobs=knobs
    )
    return made.lowered(Watch(options)).kernels


def graphs(text: str, knobs: CpuKnobs = KNOBS, **sizes: int) -> tuple[KernelGraph, ...]:
    return kernel_graphs(kernels(text, knobs, **sizes), learned_cpu(knobs.on, 1), knobs)


def renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b\w+\b", lambda m: names.get(m[0], m[0]), text)


def every_name(text: str) -> dict[str, str]:
    """Another name for each of a text, in an order that is not theirs."""
    kept = {"op", "f32", "i64", "max", "sum", "exp", "mean", "for", "in"}
    found = sorted(set(re.findall(r"\b[A-Za-z]\w*\b", text)) - kept)
    return {n: ("Q" if n.isupper() else "q") + str(len(found) - k) for k, n in enumerate(found)}


@pytest.mark.parametrize("name", TEXTS)
def test_equal_kernels_have_equal_features_whatever_their_names(name: str) -> None:
    text = TEXTS[name]
    names = every_name(text)
    other = renamed(text, names)
    sizes = {names[n]: v for n, v in SIZES.items() if n in names}
    first, second = graphs(text), graphs(other, **sizes)
    assert other != text
    assert [g.key for g in first] == [g.key for g in second]


@pytest.mark.parametrize(
    ("name", "size"), [("softmax", "T"), ("softmax", "H"), ("product", "K"), ("gather", "V")]
)
def test_other_sizes_have_other_features(name: str, size: str) -> None:
    first, second = graphs(TEXTS[name]), graphs(TEXTS[name], **{size: 2 * SIZES[size]})
    assert [g.key for g in first] != [g.key for g in second]


@pytest.mark.parametrize("change", [{"rows": 2}, {"jointly": True}, {"lane_bytes": 512}, {"core": AVX2}])
def test_other_code_has_other_features(change: dict[str, object]) -> None:
    usual = graphs(SOFTMAX, H=64)
    assert [g.key for g in graphs(SOFTMAX, replace(KNOBS, **change), H=64)] != [g.key for g in usual]


def test_arrays_have_the_shapes_that_are_told() -> None:
    for g in graphs(SOFTMAX):
        assert g.opcodes.dtype == np.int16 and g.opcodes.max() < len(OPCODES)
        assert g.nodes.shape == (len(g.opcodes), len(NODE_FEATURES)) and g.nodes.dtype == np.float32
        assert g.edges.dtype == np.int32 and g.edges.shape[0] == 2 and g.edges.max() < len(g.opcodes)
        assert g.kernel.shape == (len(KERNEL_FEATURES),) and g.kernel.dtype == np.float32
        assert np.isfinite(g.nodes).all() and np.isfinite(g.kernel).all() and (g.kernel >= 0).all()
        assert np.array_equal(g.nodes, g.nodes.astype(np.float16).astype(np.float32))
    assert {n for group in GROUPS.values() for n in group} < set(KERNEL_FEATURES)
    assert len(set(NODE_FEATURES)) == len(NODE_FEATURES) and len(set(OPCODES)) == len(OPCODES)


def test_other_features_have_another_version() -> None:
    """Weights and samples belong to one: where this fails, count `FEATURES_VERSION` up."""
    names = "\n".join((*OPCODES, *NODE_FEATURES, *KERNEL_FEATURES))
    digest = hashlib.sha256(names.encode()).hexdigest()[:12]
    assert (FEATURES_VERSION, digest) == (1, "0d7ba81005b8")


def of(g: KernelGraph, opcode: str, feature: str) -> list[float]:
    """A feature of all nodes with an opcode, as it was before the logarithm."""
    column = g.nodes[g.opcodes == OPCODES.index(opcode), NODE_FEATURES.index(feature)]
    return [round(2.0 ** float(x) - 1) for x in column]


def test_figures_of_nodes() -> None:
    (g,) = graphs(SOFTMAX, T=256, H=256)
    (exp,) = of(g, "op.exp", "iterations")
    assert abs(exp - 256 * 256) < 64
    assert {*of(g, "loop.vec", "trip")} == {255} or {*of(g, "loop.vec", "trip")} == {256}
    assert of(g, "store", "stride").count(4) >= 1
    bytes_of = {*of(g, "tensor", "tensor bytes")}
    assert any(abs(b - 4 * 256 * 256) < 512 for b in bytes_of)


def test_what_a_loop_does_not_change_counts_outside_of_it() -> None:
    """for a in 0..10: for b in 0..50: y[a, b] = exp(x[a])"""
    found = kernels("op f(x: f32[T], z: f32[H]) -> (y: f32[T, H]) { y[t, h] = exp(x[t]) + z[h] }", T=10, H=50)
    (kernel,) = found.kernels
    inner = For("b", IConst(0), IConst(50), 1, (_store(),), Coordinate.SEQ)
    outer = For("a", IConst(0), IConst(10), 1, (inner,), Coordinate.SEQ)
    loops = LoopGraph(64)
    loops.add(kernel, (function_of((), (outer,)),), {})
    table = loops.table()
    exp = table.nodes[table.opcodes == OPCODES.index("op.exp")]
    add = table.nodes[table.opcodes == OPCODES.index("op.add")]
    assert [round(2.0 ** float(n[0]) - 1) for n in (*exp, *add)] == [10, 500]


def _store() -> Store:
    x = Read("x", (IVar("a"),), F32)
    return Store(
        "y",
        (IVar("a"), IVar("b")),
        Apply("add", (Apply("exp", (x,), F32), Read("z", (IVar("b"),), F32)), F32),
    )


def test_loops_that_are_there_are_not_made_again() -> None:
    made = kernels(SOFTMAX)
    asked: list[str] = []

    def known(k: object, knobs: CpuKnobs) -> object:
        asked.append(k.name)  # type: ignore[attr-defined]
        return lower(k, knobs)  # type: ignore[arg-type]

    found = kernel_graphs(made, learned_cpu(Core(), 1), KNOBS, known)  # type: ignore[arg-type]
    assert [g.key for g in found] == [g.key for g in graphs(SOFTMAX)] and asked
