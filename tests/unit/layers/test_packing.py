"""Layer III: which kernels run side by side, and that it does not matter in which order."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from drawn_ways import DrawnWay
from targets import Call
from ways import check

import polyfuse as pf
from polyfuse.codegen.cpu.emit import PackedTask, Request, emit_together, pack_text
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.device import device
from polyfuse.diagnostics import EmulationError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import KernelGraph, touched_memory
from polyfuse.ir.launch_plan import Launch
from polyfuse.ir.rename import Names
from polyfuse.ir.target import CpuTarget, GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import joined_kernels, separate_kernels
from polyfuse.layers.packing.packing import Packing, levels, packed
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu import executable
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels

MACHINE = table_cpu(2)


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    graph = fixed_graph(instantiate(parse_text(text), "f"), sizes)
    return separate_kernels(LoopFusion().schedule(graph), CpuTarget(2), Stitching(rows=1))[0]


def branches(count: int) -> str:
    """Independent operators of different lengths."""
    inputs = ", ".join(f"x{k}: f32[N{k}, M]" for k in range(count))
    results = ", ".join(f"y{k}: f32[N{k}]" for k in range(count))
    body = "\n".join(f"  y{k}[n] = sum[m](exp(x{k}[n, m]) * {k + 1}.0)" for k in range(count))
    return f"op f({inputs}) -> ({results}) {{\n{body}\n}}"


SIZES = {f"N{k}": 3 + 5 * k for k in range(7)}


@pytest.mark.machine("zen5")
def test_independent_branches_are_one_launch() -> None:
    f = pf.compile(branches(7), target="cpu")
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(3 + 500 * k, 64)).astype("f4") for k in range(7)]
    for k, y in enumerate(f(*args)):
        np.testing.assert_allclose(y, np.exp(args[k].astype("f8")).sum(1) * (k + 1), rtol=1e-5)
    built = f.built(*args)
    assert len(built.kernels.kernels) == 1 and len(built.kernels.kernels[0].packed) == 7
    assert len(built.code.plan.launches) == 1
    assert "7 kernels side by side" in f.explain(*args)


def test_without_the_layer_each_has_its_own() -> None:
    f = pf.compile(branches(7), target="cpu", layers=("loop", "stitch"))
    args = [np.ones((3, 5), "f4")] * 7
    assert len(f.built(*args).kernels.kernels) == 7


def test_several_sums_and_what_adds_them() -> None:
    """3 x [add, sum] -> add of all: the branches in one pack, then the rest after a barrier."""
    f = pf.compile(
        """op f(a: f32[N, M], b: f32[N, M], c: f32[N, M], d: f32[N, M]) -> (y: f32[N]) {
          u[n, m] = a[n, m] + b[n, m]
          v[i, j] = c[i, j] * d[i, j]
          su = sum[n, m](u[n, m])
          sv = sum[i, j](v[i, j])
          y[n] = su + sv for n in 0..N
        }""",
        target="cpu",
    )
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(40, 50)).astype("f4") for _ in range(4)]
    want = (args[0] + args[1]).sum(dtype="f8") + (args[2] * args[3]).sum(dtype="f8")
    np.testing.assert_allclose(f(*args), np.full(40, want), rtol=1e-4)
    (kernel,) = f.built(*args).kernels.kernels
    assert len(kernel.parts) >= 2 and any(len(p.packed) == 2 for p in kernel.parts)


def test_dependent_kernels_are_never_in_one_pack() -> None:
    kernels = kernels_of(
        """op f(x: f32[N, M], w: f32[M, M], inout p: f32[N]) -> (y: f32[N, M], z: f32[N]) {
          a[n, k] = sum[m](x[n, m] * w[m, k])
          y[n, k] = sum[m](a[n, m] * w[m, k])
          z[n] = old(p[n]) * 2.0
          s = sum[n, m](x[n, m])
          p[n] = s for n in 0..N
        }""",
        N=5, M=6,
    )  # fmt: skip
    memory = {t.name: t for t in kernels.graph.tensors}
    for level in levels(kernels):
        for a, b in itertools.combinations(level, 2):
            one, other = (touched_memory(kernels.kernels[k], memory) for k in (a, b))
            assert not one.meets(other)
    writer = next(
        k for k, x in enumerate(kernels.kernels) if "p__out" in {s.target for s in x.graph.statements}
    )
    reader = next(k for k, x in enumerate(kernels.kernels) if "z" in {s.target for s in x.graph.statements})
    place = {k: n for n, level in enumerate(levels(kernels)) for k in level}
    assert place[reader] < place[writer], "z reads what p is at entry"


def test_a_kernel_that_fills_the_machine_stays_alone() -> None:
    text = """op f(x: f32[N, M], y: f32[N, M]) -> (u: f32[N, M], v: f32[N, M]) {
      u[n, m] = x[n, m] * 2.0
      v[i, j] = y[i, j] * 3.0
    }"""
    why: list[pf.Decision] = []
    made = Packing().pack(kernels_of(text, N=4096, M=4096), MACHINE, why)
    assert len(made.kernels) == 2
    refused = [d.reason for d in why if not d.taken]
    assert any("fills the machine alone" in r and "would save only" in r for r in refused), refused
    assert len(Packing(always=True).pack(kernels_of(text, N=4096, M=4096), MACHINE, []).kernels) == 1


def test_a_pack_has_no_more_parts_than_asked_for() -> None:
    made = Packing(always=True, most=3).pack(kernels_of(branches(7), M=64, **SIZES), MACHINE, [])
    assert sorted(max(1, len(k.packed)) for k in made.kernels) == [1, 3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_parts_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "PARALLEL_WORK", 1)
    kernels = kernels_of(branches(7), M=33, **SIZES)
    parts = list(kernels.kernels)
    random.Random(seed).shuffle(parts)
    orders = [list(kernels.kernels), parts]
    graphs = [replace(kernels, kernels=(packed(p),)) for p in orders]
    codes = emit_together([Request(g) for g in graphs])
    rng = np.random.default_rng(seed)
    inputs = {f"x{k}": rng.normal(size=(3 + 5 * k, 33)).astype("f4") for k in range(7)}
    results = []
    for code in codes:
        arrays = {**inputs, **{f"y{k}": np.empty(3 + 5 * k, "f4") for k in range(7)}}
        CpuExecutable(code, {}).run(arrays)
        results.append([arrays[f"y{k}"].tobytes() for k in range(7)])
    assert results[0] == results[1]


def launch(name: str, count: int, instances: int, parallel: bool = True) -> Launch:
    return Launch(name, "k", IConst(count), IConst(instances), IConst(instances), parallel)


def test_tasks_of_a_pack_cover_each_kernel_once() -> None:
    """The shares of a kernel's tasks are its iterations, none twice and none left out."""
    tasks = [
        PackedTask((launch("big", 1000, 640_000),)),
        PackedTask((launch("small", 7, 100),)),
        PackedTask((launch("two_0", 1, 50, False), launch("two_1", 30, 50))),
    ]
    text, step = pack_text("pack", "k0", tasks)
    first = [int(x) for x in text.split("first[] = {")[1].split("}")[0].split(",")]
    shares = [b - a for a, b in itertools.pairwise(first)]
    assert len(shares) == 3 and shares[0] > 10 and shares[1:] == [1, 1]
    assert step.count == IConst(first[-1]) and step.parallel
    assert text.index("two_0(") < text.index("two_1(") and "two_1(buf, num, scratch, 0, 30)" in text
    covered = [1000 * k // shares[0] for k in range(shares[0] + 1)]
    assert covered[0] == 0 and covered[-1] == 1000 and covered == sorted(covered)


def test_kernels_of_one_form_are_printed_once() -> None:
    f = pf.compile(branches(5), target="cpu")
    args = [np.ones((6, 8), "f4")] * 5
    source = f.built(*args).code.source
    assert source.count("_body(\n") == 5, "their factors differ"
    same = branches(5).replace("* 2.0", "* 1.0")
    for k in (3, 4, 5):
        same = same.replace(f"* {k}.0", "* 1.0")
    g = pf.compile(same, target="cpu")
    assert g.built(*args).code.source.count("_body(\n") == 1
    for y in g(*args):
        np.testing.assert_allclose(y, np.full(6, 8 * np.e), rtol=1e-6)


# --- on a GPU ----------------------------------------------------------------------------------------

GPU = GpuTarget(sms=4, parallel=1 << 30)


def gpu_kernels(text: str, **sizes: int) -> KernelGraph:
    graph = fixed_graph(instantiate(parse_text(text), "f"), sizes)
    return separate_kernels(LoopFusion().schedule(graph), GPU, Stitching(rows=1))[0]


def test_branches_are_ranges_of_blocks() -> None:
    f = pf.compile(branches(7), target="emulate")
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(3 + 5 * k, 40)).astype("f4") for k in range(7)]
    for k, y in enumerate(f(*args)):
        np.testing.assert_allclose(y, np.exp(args[k].astype("f8")).sum(1) * (k + 1), rtol=1e-5)
    launches = f.built(*args).code.plan.launches
    assert len(launches) < 7 and all(sum(map(len, args)) >= x.blocks.value for x in launches)
    assert sum(len(x.arguments) for x in launches) == 14


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_ranges_does_not_matter(seed: int) -> None:
    kernels = gpu_kernels(branches(5), M=70, **SIZES)
    parts = list(kernels.kernels)
    random.Random(seed).shuffle(parts)
    codes = emit_cuda_together(
        [Request(replace(kernels, kernels=(packed(p),))) for p in (list(kernels.kernels), parts)]
    )
    inputs = {f"x{k}": np.random.default_rng(k).normal(size=(3 + 5 * k, 70)).astype("f4") for k in range(5)}
    results = []
    for code in codes:
        arrays = {**inputs, **{f"y{k}": np.empty(3 + 5 * k, "f4") for k in range(5)}}
        EmulatedKernels(code, order="random").run(arrays)
        results.append([arrays[f"y{k}"].tobytes() for k in range(5)])
    assert results[0] == results[1]


DEPENDENT = """op f(x: f32[N, M]) -> (y: f32[N, M]) {
  s[n] = sum[m](x[n, m])
  t = sum[n](s[n])
  y[n, m] = x[n, m] / t
}"""


def test_an_illegal_pack_is_wrong_and_the_emulator_says_so() -> None:
    """Two kernels that write one tensor, forced into one pack: blocks race."""
    kernels = gpu_kernels(branches(2).replace("N1", "N0"), N0=6, M=40)
    one, other = kernels.kernels
    assert levels(kernels) == [[0, 1]]
    same = Names({"y1": "y0"}, {}).kernel(other)
    wrong = replace(kernels, kernels=(one, same))
    assert levels(wrong) == [[0], [1]], "the layer keeps them apart"
    (code,) = emit_cuda_together([Request(replace(kernels, kernels=(packed([one, same]),)))])
    arrays = {n: np.ones((6, 40), "f4") for n in ("x0", "x1")}
    arrays |= {n: np.zeros(6, "f4") for n in ("y0", "y1")}
    with pytest.raises(EmulationError, match="y0"):
        EmulatedKernels(code, order="random").run(arrays)


def test_kernels_with_barriers_of_the_grid_are_in_no_pack() -> None:
    """Their blocks must all be resident: a pack would have others among them."""
    kernels = joined_kernels(gpu_kernels(DEPENDENT, N=40, M=33), GPU, Stitching(barriers=True), [])
    (joined,) = kernels.kernels
    other = gpu_kernels(branches(2), M=8, **SIZES)
    tensors = (*kernels.graph.tensors, *other.graph.tensors)
    both = KernelGraph(replace(kernels.graph, tensors=tensors), (joined, *other.kernels))
    found = Packing(always=True).pack(both, device("H200"), [])
    assert [len(k.packed) for k in found.kernels] == [0, 2] and found.kernels[0] is joined


def test_kernels_with_blocks_of_any_size_share_a_launch_where_that_pays() -> None:
    """Rows of 20 to 5,000 elements have blocks of 256, 640 and 768 threads: one launch where they leave room
    on the machine, several where the largest blocks would keep others out."""
    inputs = ", ".join(f"x{k}: f32[N{k}, M{k}]" for k in range(5))
    results = ", ".join(f"y{k}: f32[N{k}]" for k in range(5))
    body = "\n".join(f"  y{k}[n] = sum[m](exp(x{k}[n, m]))" for k in range(5))
    text = f"op f({inputs}) -> ({results}) {{\n{body}\n}}"
    lengths = {f"M{k}": m for k, m in enumerate((64, 3000, 128, 5000, 20))}
    found = []
    for rows in (300, 200_000):
        graph = fixed_graph(
            instantiate(parse_text(text), "f"), {**lengths, **{f"N{k}": rows for k in range(5)}}
        )
        kernels = separate_kernels(LoopFusion().schedule(graph), GpuTarget(), Stitching())[0]
        assert len({k.threads for k in kernels.kernels}) > 2
        found.append(Packing().pack(kernels, device("H200"), []))
    few, many = found
    assert len(few.kernels) == 1 and len(many.kernels) > 1
    sizes = {**lengths, **{f"N{k}": 3 for k in range(5)}}
    graph = fixed_graph(instantiate(parse_text(text), "f"), sizes)
    kernels = separate_kernels(LoopFusion().schedule(graph), GpuTarget(), Stitching())[0]
    (code,) = emit_cuda_together([Request(Packing().pack(kernels, device("H200"), []))])
    assert len(code.plan.launches) == 1
    rng = np.random.default_rng(0)
    arrays = {f"x{k}": rng.normal(size=(3, sizes[f"M{k}"])).astype("f4") for k in range(5)}
    arrays |= {f"y{k}": np.empty(3, "f4") for k in range(5)}
    EmulatedKernels(code, order="random").run(arrays)
    for k in range(5):
        np.testing.assert_allclose(arrays[f"y{k}"], np.exp(arrays[f"x{k}"].astype("f8")).sum(1), rtol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (3, 4)])
def test_parts_that_have_nothing_to_do(sizes: tuple[int, int]) -> None:
    text = """op f(x: f32[N], y: f32[M]) -> (a: f32[N], b: f32[M]) {
      a[i] = exp(x[i])
      b[i] = exp(y[i])
    }"""
    x, y = (np.ones(n, np.float32) for n in sizes)
    for found, given in zip(pf.compile(text, target="emulate")(x, y), (x, y), strict=True):
        np.testing.assert_allclose(found, np.exp(given), rtol=1e-6)


@pytest.mark.parametrize("device", [None, "usual"])
def test_a_part_that_touches_no_memory(device: str | None) -> None:
    """What it computes was read under conditions that never hold at these sizes."""
    text = """op p(x: f32[A, A], z: f32[B]) -> (y: f32[B], s: f32) where A >= 1 {
  t[i] = prod[j in 0..A](1.0 + tanh(f32(j))) for i in 0..B
  s = sum[i, j](x[i, j] ** 2)
  y[i] = z[i] + (t[i - 2] if i >= 2 else 0.0) + (t[i + 2] if i < B - 2 else 1.0)
}"""
    numbers = np.random.default_rng(3)
    inputs = {"x": numbers.normal(size=(2, 2)).astype("f4"), "z": numbers.normal(size=2).astype("f4")}
    call = Call("never read", text, instantiate(parse_text(text), "p"), {"A": 2, "B": 2}, inputs)
    check([(call, DrawnWay(LoopFusion(), packing=Packing(always=True), device=device))])
