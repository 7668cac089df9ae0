"""Layer II's golden kernel counts: what operators with several reductions become, on both targets.

`CASES` holds what is reached.  A count that gets better or worse fails here, and is then written down anew;
`issue` is the most that the operator should take.  Each operator also agrees with the reference at a small
size, on a CPU and in the emulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from targets import Array, Call, check_emulated, check_everywhere
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.cost.device import device
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.driver.resources import resource_table
from polyfuse.driver.targets import mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir import dtypes as dt
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import compile_cuda, find_cuda_compiler

CPU, GPU = 2, GpuTarget()
# The columns of `Case.counts`.
WAYS = (("cpu", True), ("cpu", False), ("gpu", True), ("gpu", False))


@dataclass(frozen=True, eq=False)
class Case:
    """An operator, its usual size and a small one, and the kernels it takes.

    issue   the number of kernels it should take on a GPU
    counts  what it takes: on the CPU with layer I and without, on a GPU with layer I and without
    """

    name: str
    issue: int
    counts: tuple[int, int, int, int]
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    text: str
    high: int = 3  # integer inputs are below

    def __str__(self) -> str:
        return self.name


CASES = (
    Case(
        "layer_norm", 1, (1, 1, 1, 1),
        {"T": 4096, "H": 768}, {"T": 5, "H": 39},
        """op f(x: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
          mu[t] = mean[h](x[t, h])
          var[t] = mean[h]((x[t, h] - mu[t]) ** 2)
          y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
        }""",
    ),
    Case(
        "layer_norm_backward", 2, (1, 1, 1, 1),
        {"T": 4096, "H": 768}, {"T": 9, "H": 37},
        """op f(dy: f32[T, H], x: f32[T, H], gamma: f32[H], mu: f32[T], rstd: f32[T])
            -> (dx: f32[T, H], dgamma: f32[H], dbeta: f32[H]) {
          xhat[t, h] = (x[t, h] - mu[t]) * rstd[t]
          g[t, h] = dy[t, h] * gamma[h]
          c1[t] = mean[h](g[t, h])
          c2[t] = mean[h](g[t, h] * xhat[t, h])
          dx[t, h] = rstd[t] * (g[t, h] - c1[t] - xhat[t, h] * c2[t])
          dgamma[h] = sum[t](dy[t, h] * xhat[t, h])
          dbeta[h] = sum[t](dy[t, h])
        }""",
    ),
    Case(
        "masked_softmax", 1, (1, 1, 1, 1),
        {"N": 8, "A": 12, "S": 128, "T": 128},
        {"N": 2, "A": 2, "S": 3, "T": 21},
        """op f(x: f32[N, A, S, T], mask: f32[N, T], scale: f32 = 0.125) -> (y: f32[N, A, S, T]) {
          z[n, a, s, t] = x[n, a, s, t] * scale + mask[n, t]
          m[n, a, s] = max[t](z[n, a, s, t])
          e[n, a, s, t] = exp(z[n, a, s, t] - m[n, a, s])
          d[n, a, s] = sum[t](e[n, a, s, t])
          y[n, a, s, t] = e[n, a, s, t] / d[n, a, s]
        }""",
    ),
    Case(
        "softmax_dropout_backward", 1, (1, 1, 1, 1),
        {"N": 64, "A": 12, "S": 128, "T": 128},
        {"N": 2, "A": 1, "S": 5, "T": 33},
        """op f(dy: f32[N, A, S, T], prob: f32[N, A, S, T], keep: bool[N, A, S, T], p: f32 = 0.1)
            -> (dx: f32[N, A, S, T]) {
          g[n, a, s, t] = dy[n, a, s, t] / (1.0 - p) if keep[n, a, s, t] else 0.0
          d[n, a, s] = sum[t](g[n, a, s, t] * prob[n, a, s, t])
          dx[n, a, s, t] = prob[n, a, s, t] * (g[n, a, s, t] - d[n, a, s])
        }""",
    ),
    Case(
        "lstm_cell", 1, (1, 1, 1, 1),
        {"B": 256, "H": 1024}, {"B": 3, "H": 13},
        """op f(gx: f32[B, 4*H], gh: f32[B, 4*H], bias: f32[4*H], c: f32[B, H])
            -> (h_next: f32[B, H], c_next: f32[B, H]) {
          i[b, j] = sigmoid(gx[b, j] + gh[b, j] + bias[j]) for j in 0..H
          f[b, j] = sigmoid(gx[b, j+H] + gh[b, j+H] + bias[j+H]) for j in 0..H
          g[b, j] = tanh(gx[b, j + 2*H] + gh[b, j + 2*H] + bias[j + 2*H]) for j in 0..H
          o[b, j] = sigmoid(gx[b, j + 3*H] + gh[b, j + 3*H] + bias[j + 3*H]) for j in 0..H
          s[b, j] = f[b, j] * c[b, j] + i[b, j] * g[b, j]
          c_next[b, j] = s[b, j]
          h_next[b, j] = o[b, j] * tanh(s[b, j])
        }""",
    ),
    Case(
        "batch_norm_train", 1, (1, 1, 1, 1),
        {"N": 32, "C": 64, "S": 3136}, {"N": 3, "C": 5, "S": 20},
        """op f(x: f32[N, C, S], gamma: f32[C], beta: f32[C], inout running_mean: f32[C],
            inout running_var: f32[C], momentum: f32 = 0.1, eps: f32 = 1e-5) -> (y: f32[N, C, S]) {
          m[c] = mean[n, s](x[n, c, s])
          v[c] = mean[n, s]((x[n, c, s] - m[c]) ** 2)
          r[c] = rsqrt(v[c] + eps)
          y[n, c, s] = max((x[n, c, s] - m[c]) * r[c] * gamma[c] + beta[c], 0.0)
          running_mean[c] = (1.0 - momentum) * running_mean[c] + momentum * m[c]
          running_var[c] = (1.0 - momentum) * running_var[c] + momentum * v[c]
        }""",
    ),
    Case(
        "astitch", 1, (1, 1, 1, 1),
        {"T": 4096, "H": 768}, {"T": 6, "H": 37},
        """op f(x: f32[T, H], y: f32[T, H]) -> (z: f32[T, H]) {
          r1[t] = sum[h](x[t, h] * x[t, h])
          p[t] = (0.01 * r1[t] + 1.0) ** 1.3
          c[t, h] = p[t] + y[t, h]
          r2[t] = sum[h](c[t, h] * c[t, h])
          z[t, h] = c[t, h] * (r2[t] + 1e-6) ** -0.5
        }""",
    ),
    Case(
        "elementwise_log_softmax", 1, (1, 1, 1, 1),
        {"T": 4096, "H": 768}, {"T": 4, "H": 35},
        """op f(x: f32[T, H], bias: f32[H]) -> (y: f32[T, H]) {
          u[t, h] = tanh(x[t, h] + bias[h]) * 30.0
          m[t] = max[h](u[t, h])
          s[t] = sum[h](exp(u[t, h] - m[t]))
          y[t, h] = u[t, h] - m[t] - log(s[t])
        }""",
    ),
    Case(
        "cross_entropy_and_gradient", 1, (1, 1, 1, 1),
        {"T": 512, "C": 30522}, {"T": 7, "C": 41},
        """op f(x: f32[T, C], target: i64[T]) -> (loss: f32, dx: f32[T, C]) {
          m[t] = max[c](x[t, c])
          e[t, c] = exp(x[t, c] - m[t])
          s[t] = sum[c](e[t, c])
          loss = mean[t](m[t] + log(s[t]) - x[t, target[t]])
          dx[t, c] = (e[t, c] / s[t] - (1.0 if c == target[t] else 0.0)) / T
        }""",
        high=41,
    ),
    Case(
        "group_norm_silu", 1, (1, 1, 1, 1),
        {"N": 32, "G": 8, "K": 8, "S": 1024},
        {"N": 2, "G": 3, "K": 2, "S": 15},
        """op f(x: f32[N, G*K, S], gamma: f32[G, K], beta: f32[G, K], eps: f32 = 1e-5)
            -> (y: f32[N, G*K, S]) {
          mu[n, g] = mean[k in 0..K, s](x[n, g*K + k, s]) for g in 0..G
          var[n, g] = mean[k in 0..K, s]((x[n, g*K + k, s] - mu[n, g]) ** 2)
          z[n, c, s] = (x[n, c, s] - mu[n, c//K]) * rsqrt(var[n, c//K] + eps) * gamma[c//K, c%K] +
              beta[c//K, c%K]
          y[n, c, s] = z[n, c, s] / (1.0 + exp(-z[n, c, s]))
        }""",
    ),
    Case(
        "lamb", 1, (1, 1, 1, 1),
        {"N": 2362368}, {"N": 301},
        """op f(inout p: f32[N], g: f32[N], inout m: f32[N], inout v: f32[N], lr: f32 = 1e-3,
            beta1: f32 = 0.9, beta2: f32 = 0.999, eps: f32 = 1e-6, wd: f32 = 0.01, clip: f32 = 1.0) {
          g_norm = sqrt(sum[n](g[n] * g[n]))
          scale = min(1.0, clip / (g_norm + 1e-6))
          m_new[n] = beta1 * m[n] + (1.0 - beta1) * (g[n] * scale)
          v_new[n] = beta2 * abs(v[n]) + (1.0 - beta2) * (g[n] * scale) * (g[n] * scale)
          u[n] = m_new[n] / 0.1 / (sqrt(v_new[n] / 0.001) + eps) + wd * p[n]
          p2 = sum[n](p[n] * p[n])
          u2 = sum[n](u[n] * u[n])
          ratio = sqrt(p2) / sqrt(u2) if p2 > 0.0 and u2 > 0.0 else 1.0
          p[n] = p[n] - lr * ratio * u[n]
          m[n] = m_new[n]
          v[n] = v_new[n]
        }""",
    ),
)  # fmt: skip

# Stages of operators that need barriers of the grid, or of the workers: on the H200, the V100, a CPU; and the
# kernels where barriers are forbidden.
STAGES = {
    "group_norm_silu": ((2, 2, 1), (2, 2, 1)),
    "layer_norm_backward": ((2, 2, 2), (2, 2, 2)),
    "cross_entropy_and_gradient": ((3, 3, 3), (3, 3, 3)),
    "lamb": ((7, 7, 7), (7, 7, 7)),
}


def has_compiler() -> bool:
    try:
        find_cuda_compiler()
    except ToolchainError:
        return False
    return True


def graph_of(case: Case) -> TensorGraph:
    return instantiate(parse_text(case.text), "f")


@cache
def reached(case: Case) -> tuple[int, ...]:
    fixed = fixed_graph(graph_of(case), case.sizes)
    counts = []
    for target, fused in WAYS:
        scheduled = schedule(fixed, LoopFusion() if fused else None)
        kernels, _ = form_kernels(scheduled, CPU if target == "cpu" else GPU, Stitching())
        counts.append(len(kernels.kernels))
    return tuple(counts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_counts(case: Case) -> None:
    assert reached(case) == case.counts, f"{case}: (cpu, cpu without layer I, GPU, GPU without layer I)"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer_two_never_adds_kernels(case: Case) -> None:
    fixed = fixed_graph(graph_of(case), case.sizes)
    for (target, fused), count in zip(WAYS, reached(case), strict=True):
        scheduled = schedule(fixed, LoopFusion() if fused else None)
        alone, _ = form_kernels(scheduled, CPU if target == "cpu" else GPU)
        assert count <= len(alone.kernels)


def test_none_is_above() -> None:
    assert not [c.name for c in CASES if max(c.counts) > c.issue]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_tables_take_one_kernel(case: Case) -> None:
    """On H200, V100 and CPU; the combination of a gradient's columns is a stage after a barrier, and
    a launch where barriers are forbidden."""
    fixed = fixed_graph(graph_of(case), case.sizes)
    targets = [mapped_for("emulate", Options(device=d)) for d in ("H200", "V100")] + [CPU]
    scheduled = schedule(fixed, LoopFusion())
    joined = [form_kernels(scheduled, t, Stitching())[0].kernels for t in targets]
    apart = [form_kernels(scheduled, t, Stitching(barriers=False))[0].kernels for t in targets]
    forced = [form_kernels(scheduled, t, Stitching(barriers=True))[0].kernels for t in targets]
    assert [len(kernels) for kernels in (*joined, *forced)] == [1] * 6
    found = tuple(len(k.stages) for (k,) in joined), tuple(map(len, apart))
    assert found == STAGES.get(case.name, ((1, 1, 1), (1, 1, 1)))


@pytest.mark.skipif(not has_compiler(), reason="no CUDA compiler here")
@pytest.mark.parametrize("name", thinned(["H200", "A100"], 2))  # compilers of today have left the V100 behind
def test_compiled_grids_are_resident(name: str) -> None:
    """With the registers that the compiler took, every block of a grid with barriers fits the device; and
    what is joined does not spill."""
    for case in (c for c in CASES if c.name in STAGES):
        target = mapped_for("emulate", Options(device=name))
        scheduled = schedule(fixed_graph(graph_of(case), case.sizes), LoopFusion())
        kernels = form_kernels(scheduled, target, Stitching())[0]
        code = emit_cuda(Request(kernels, copied=entry_copies(kernels)[0]))
        built = compile_cuda(code.source, device(name).arch, timeout_s=120)
        (found,) = resource_table(code.plan, built, device(name)).kernels
        assert found.launch.cooperative
        assert found.blocks <= found.occupancy.blocks_per_sm * device(name).sms, case.name
        assert not found.taken.spill_stores, case.name


# --- agreement ---------------------------------------------------------------------------------------


def call_of(case: Case, seed: int = 0) -> Call:
    """The case at its small size, with normal inputs."""
    graph, rng = graph_of(case), np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for t in graph.tensors:
        if t.name not in graph.inputs or t.default is not None:
            continue
        shape = tuple(evaluate(e, case.small) for e in t.shape)
        if t.dtype == dt.BOOL:
            inputs[t.name] = rng.random(shape) < 0.7
        elif t.dtype.is_float:
            inputs[t.name] = rng.standard_normal(shape).astype(t.dtype.numpy)
        else:
            inputs[t.name] = rng.integers(0, case.high, shape).astype(t.dtype.numpy)
    return Call(case.name, case.text, graph, dict(case.small), inputs)


def test_all_agree_on_a_cpu() -> None:
    check_everywhere([call_of(c) for c in CASES])


@pytest.mark.parametrize("part", thinned(range(3), 3))
def test_all_agree_in_the_emulator(part: int) -> None:
    calls = [call_of(c) for c in CASES[part::3]]
    check_emulated(calls, fused=(True, False), stitched=(True,), orders=("random",))


@pytest.mark.parametrize("part", thinned(range(3), 3))
def test_all_agree_with_barriers_of_the_grid(part: int) -> None:
    check_emulated([call_of(c) for c in CASES[part::3]], stitched=(True,), barriers=True)
