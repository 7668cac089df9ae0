"""Every standard operator through the CUDA compiler: nothing spills, nothing is indexed at run time in a
thread's own memory, and shared memory is what the plan says.

In a usual run an operator is compiled for one of three architectures, in `make test-all` for all. No GPU is
needed, only NVRTC or nvcc.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from stdlib_cases import CASES, StdlibCase
from targets import DEVICES, told_apart
from test_emulated import calls
from test_stdlib_targets import chosen, groups, on_devices
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.driver.targets import mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import compile_cuda, find_cuda_compiler

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# The oldest that all compilers of today know stands for the V100's.
ARCH = {"V100": "sm_75", "A100": "sm_80", "H200": "sm_90"}
H200 = GpuTarget(sms=132)
SPLITTING = DEVICES["usual"]  # small reductions are factored over blocks, as large ones are on the H200


def _has_compiler() -> bool:
    try:
        find_cuda_compiler()
    except ToolchainError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not _has_compiler(), reason="neither NVRTC (pip install nvidia-cuda-nvrtc-cu12) nor nvcc is here"
)


def check_compiles(
    cases: list[StdlibCase],
    devices: tuple[GpuTarget, ...] = (H200, SPLITTING),
    *,
    fused: bool = True,
    stitched: bool = False,
    barriers: bool | None = None,
    spilt: int = 0,
    archs: tuple[str, ...] = ARCHITECTURES,
) -> None:
    """`spilt`: bytes that a kernel may spill, each stored once and loaded once."""
    requests = [
        (case, request)
        for case, call in zip(cases, calls(cases), strict=True)
        for _, request in told_apart([call.device_request(d, fused, stitched, barriers) for d in devices])
    ]
    codes = emit_cuda_together([r for _, r in requests])
    launches = [
        (f"{case} ({launch.kernel})", launch)
        for (case, _), code in zip(requests, codes, strict=True)
        for launch in code.plan.launches
    ]
    for arch in archs:
        found = compile_cuda(codes[0].source, arch, timeout_s=120).resources
        for name, launch in launches:
            taken = found[launch.function]
            own = taken.spill_stores, taken.spill_loads, taken.stack
            assert max(own) <= spilt, f"{name}, {arch}: {taken}"
            assert taken.shared == launch.shared_bytes - launch.dynamic_bytes, f"{name}, {arch}: {taken}"


def with_architectures(every: int) -> list[Any]:
    """Each group of operators with one architecture, which the groups take in turn, and with the others.

    Of these a usual run has the first and those that follow it after so many; it has not all dtypes.
    """
    found: list[Any] = []
    for k, group in enumerate(groups(on_devices())):
        one = ARCHITECTURES[k % len(ARCHITECTURES)]
        found += [(group, (one,)), (group, tuple(a for a in ARCHITECTURES if a != one))]
    rest = [pytest.param(g, ARCHITECTURES, marks=pytest.mark.slow) for g in groups(on_devices(usual=False))]
    return [*thinned(found, every, several=True), *rest]


def named(part: list[StdlibCase] | tuple[str, ...]) -> str:
    return "+".join(part) if isinstance(part, tuple) else f"{part[0].op}..{part[-1].op}"


@pytest.mark.parametrize(("cases", "archs"), with_architectures(6), ids=named)
def test_operators_compile(cases: list[StdlibCase], archs: tuple[str, ...]) -> None:
    check_compiles(cases, archs=archs)


@pytest.mark.parametrize(("cases", "archs"), with_architectures(8), ids=named)
def test_stitched_operators_compile(cases: list[StdlibCase], archs: tuple[str, ...]) -> None:
    check_compiles(cases, (H200,), stitched=True, archs=archs)


CROSS_ENTROPY = """
op f(x: F[T, C], target: i64[T]) -> (loss: f32) {
  m[t] = max[c](x[t, c])
  s[t] = sum[c](exp(x[t, c] - m[t]))
  loss = mean[t](m[t] + log(s[t]) - x[t, target[t]])
}"""
WITH_GRADIENT = """
op f(x: F[T, C], target: i64[T]) -> (loss: f32, dx: F[T, C]) {
  m[t] = max[c](x[t, c])
  e[t, c] = exp(x[t, c] - m[t])
  s[t] = sum[c](e[t, c])
  loss = mean[t](m[t] + log(s[t]) - x[t, target[t]])
  dx[t, c] = (e[t, c] / s[t] - (1.0 if c == target[t] else 0.0)) / T
}"""


# The longest rows take the most registers.
@pytest.mark.parametrize("device", ("V100", "A100", "H200"))
@pytest.mark.parametrize("columns", thinned((50257, 32768, 30522), 3))
def test_long_rows_do_not_spill(columns: int, device: str) -> None:
    """Vocabularies of BERT and GPT-2: as many elements in registers as a block of 1024 threads has."""
    requests = []
    for text, dtype in itertools.product((CROSS_ENTROPY, WITH_GRADIENT), ("f32", "f16")):
        graph = instantiate(parse_text(text.replace("F[", f"{dtype}[")), "f")
        scheduled = schedule(fixed_graph(graph, {"T": 512, "C": columns}), LoopFusion())
        target = mapped_for("emulate", Options(device=device))
        requests.append(Request(form_kernels(scheduled, target, Stitching())[0]))
    source = emit_cuda_together(requests)[0].source
    for name, taken in compile_cuda(source, ARCH[device], timeout_s=120).resources.items():
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0), f"{name}: {taken}"


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(CASES), ids=lambda g: f"{g[0]}..")
def test_all_cases_compile(cases: list[StdlibCase]) -> None:
    # Three f64: five cells of lstm_layer, with tanh and exp, in a thread of a block of 3 (rnn_layer: one).
    check_compiles(cases, spilt=24)


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(chosen()), ids=lambda g: f"{g[0].op}..{g[-1].op}")
def test_unfused_operators_compile(cases: list[StdlibCase]) -> None:
    check_compiles(cases, fused=False)


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(chosen()), ids=lambda g: f"{g[0].op}..{g[-1].op}")
def test_joined_operators_compile(cases: list[StdlibCase]) -> None:
    """With barriers of the grid wherever they can be."""
    check_compiles(cases, stitched=True, barriers=True)
