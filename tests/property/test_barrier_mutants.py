"""Every barrier that the compiler inserts is needed, and a missing one is seen.

Operators and random programs are mapped so that threads of several warps work together.  Each barrier is
deleted by itself: from the loop IR, where the static check must report the kernel, and from the source, where
the emulator must catch two threads in the act.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from row_chains import chain, random_chain
from row_gradients import backward_call
from targets import Call, told_apart
from test_random_programs import call_of as random_call
from test_random_stitching import call_of as stitching_call
from thinned import thinned

from polyfuse.codegen.cuda import functions as device_tasks
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda_together
from polyfuse.diagnostics import EmulationError
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Barrier, Block, For, If, Node
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Select, reads, walk
from polyfuse.poly.barriers.proof import Unsafe, check_barriers, unneeded_barriers
from polyfuse.runtime.emulator.emulator import EmulatedKernels

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from test_cuda_shapes import FLOATS, PLAIN
from test_cuda_shapes import call_of as long_call
from test_emulated import calls as operator_calls
from test_stdlib_targets import chosen

SEEDS = range(32)
WARPS = GpuTarget(sms=2, threads=64, row_threads=64, parallel=1 << 30)  # a row is shared by two warps
BLOCKS = GpuTarget(sms=4, threads=64, longest=256, parallel=256, least=16)  # long rows, reductions factored
GRIDS = GpuTarget(sms=3, threads=64, longest=64, parallel=64, least=16, resident_threads=128)  # factored more
ODD = GpuTarget(sms=3, threads=96, row_threads=48, vector=1, parallel=256)  # no shuffles
DEVICES = {"warps": WARPS, "blocks": BLOCKS, "grids": GRIDS, "odd": ODD}
TOGETHER = 30
WARP = 32

each_device = pytest.mark.parametrize("device", DEVICES)

_KERNEL = re.compile(r'^extern "C" __global__ .*?^}\n', re.MULTILINE | re.DOTALL)
_BARRIER = re.compile(r"^ *(__syncthreads\(\)|pf_grid_barrier\(\w+\));.*\n", re.MULTILINE)
_CAUGHT = ("PF730", "PF731")  # a race, or a read of what nothing has written yet


@dataclass(frozen=True)
class Inserted:
    """A function's loops with their barriers, and what else the check must know."""

    kernel: Kernel
    block: Block
    blocks: IndexExpr
    copied: frozenset[str]

    def without(self, number: int) -> Inserted:
        """The same with one barrier less."""
        return replace(self, block=_without(self.block, itertools.count(-number)))

    def problem(self) -> bool:
        return isinstance(check_barriers(self.kernel, self.block, self.blocks, self.copied), Unsafe)


def _without(block: Block, count: Iterator[int]) -> Block:
    """The block less the barrier at which the count is 0."""
    result: list[Node] = []
    for node in block:
        match node:
            case Barrier():
                if next(count) == 0:
                    continue
            case For():
                node = replace(node, body=_without(node.body, count))
            case If():
                then = _without(node.then, count)
                node = replace(node, then=then, other=_without(node.other, count))
        result.append(node)
    return tuple(result)


@dataclass
class Found:
    """Counts over mutants."""

    functions: int = 0
    barriers: int = 0
    of_the_grid: int = 0
    by_seed: Counter[int] = field(default_factory=Counter)
    by_code: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.functions} kernels, {self.barriers} barriers, {self.of_the_grid} of them of the grid; "
            f"mutants by the seed that finds them: {dict(self.by_seed)}, by code: {dict(self.by_code)}"
        )


def emitted(
    calls: Sequence[Call], devices: Sequence[GpuTarget], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[Call, CudaCode]], list[Inserted]]:
    """Every call's code for every device: layer I, and layer II without and with grid barriers.

    Then all functions in their order.
    """
    inserted: list[Inserted] = []
    make = device_tasks._with_barriers

    def watched(kernel: Kernel, whole: Block, blocks: IndexExpr, copied: frozenset[str]) -> Block:
        made = make(kernel, whole, blocks, copied)
        inserted.append(Inserted(kernel, made, blocks, copied))
        return made

    layers = ((False, False), (True, False), (True, True))
    requests = [
        (call, request)
        for call in calls
        for _, request in told_apart([call.device_request(d, True, *x) for d in devices for x in layers])
    ]
    with monkeypatch.context() as patch:
        patch.setattr(device_tasks, "_with_barriers", watched)
        codes = emit_cuda_together([r for _, r in requests])
    return [(call, code) for (call, _), code in zip(requests, codes, strict=True)], inserted


def check_mutants(
    calls: Sequence[Call], devices: Sequence[GpuTarget], monkeypatch: pytest.MonkeyPatch
) -> Found:
    """Delete each barrier of each function, one at a time: the check and the emulator must see it.

    No function has a barrier that it is as safe without.
    """
    found = Found()
    codes, inserted = emitted(calls, devices, monkeypatch)
    source = codes[0][1].source
    functions = [m[0] for m in _KERNEL.finditer(source)]
    assert len(functions) == len(inserted)
    owner = {launch.function: (call, code) for call, code in codes for launch in code.plan.launches}
    mutants: list[tuple[str, str, Call, CudaCode, bool]] = []
    texts: list[str] = []
    seen: set[str] = set()
    for text, one in zip(functions, inserted, strict=True):
        (name,) = re.findall(r"(\w+)\(\n", text)[:1]
        body = text.replace(name, "")
        barriers = list(_BARRIER.finditer(text))
        if not barriers or body in seen:
            continue
        seen.add(body)
        found.functions += 1
        found.barriers += len(barriers)
        found.of_the_grid += sum(b[1].startswith("pf_grid") for b in barriers)
        unneeded = unneeded_barriers(one.kernel, one.block, one.blocks, one.copied)
        assert not one.problem() and unneeded == (), f"{unneeded}\n{text}"
        for k, barrier in enumerate(barriers):
            assert one.without(k).problem(), f"not reported: {barrier[0]}in\n{text}"
            before = text[barriers[k - 1].end() if k else 0 : barrier.start()]
            if one.kernel.threads[0] * one.kernel.threads[1] <= WARP and "pf_warp_" in before:
                continue  # shuffles order lanes in the emulator, as on GPUs, but not by CUDA's word
            fresh = f"{name}_less_{k}"
            texts.append((text[: barrier.start()] + text[barrier.end() :]).replace(f"{name}(", f"{fresh}("))
            mutants.append((name, fresh, *owner[name], _chosen_by_data(one.kernel)))
        assert not one.without(len(barriers)).problem()  # there are no others
    together = "\n".join([source, *texts])
    for name, fresh, call, code, by_data in mutants:
        launches = tuple(
            replace(launch, function=fresh) if launch.function == name else launch
            for launch in code.plan.launches
        )
        mutant = replace(code, source=together, plan=replace(code.plan, launches=launches))
        seed, findings = caught(mutant, call)
        if not findings and by_data:
            continue  # these data choose elements that threads wrote themselves
        assert findings, f"{call.name}: nothing found in {len(SEEDS)} orders\n{mutant.plan.launches}"
        assert findings <= set(_CAUGHT), findings
        found.by_seed[seed] += 1
        found.by_code.update(findings)
    print(found)
    return found


def caught(mutant: CudaCode, call: Call) -> tuple[int, set[str]]:
    """The first seed with which the emulator finds something, and the codes of its findings, if it does."""
    for seed in SEEDS:
        try:
            EmulatedKernels(mutant, order="random", seed=seed).run(call.memory())
        except EmulationError as e:
            return seed, {d.code for d in e.diagnostics}
    return len(SEEDS), set()


def _chosen_by_data(kernel: Kernel) -> bool:
    """Does it depend on data which elements a kernel reads?"""
    exprs = [e for s in kernel.graph.statements for e in walk(s.expr)]
    return any(isinstance(e, Select) and any(True for _ in reads(e.cond)) for e in exprs)


def operators(*dtypes: str) -> list[list[Call]]:
    calls = operator_calls([c for c in chosen() if c.dtype in dtypes])
    return [calls[k : k + TOGETHER] for k in range(0, len(calls), TOGETHER)]


@pytest.mark.parametrize("device", thinned(DEVICES, 4))
def test_long_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [long_call(op, 2, n) for op in (*FLOATS, *PLAIN) for n in (260, 1023)]
    assert check_mutants(calls, [DEVICES[device]], monkeypatch).barriers >= 24


@pytest.mark.parametrize("group", thinned(range(len(operators("f32"))), 4))
def test_operators(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_mutants(operators("f32")[group], [WARPS], monkeypatch)


@pytest.mark.parametrize("device", thinned(("grids", "warps"), 2))
def test_several_reductions(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_mutants([stitching_call(k) for k in range(6)], [DEVICES[device]], monkeypatch)
    assert found.barriers > found.of_the_grid > 0


def test_random_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_mutants([random_call(k) for k in range(4)], [WARPS], monkeypatch).barriers >= 3


@pytest.mark.parametrize("chains", thinned([3, 6], 2))
def test_shared_places(chains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that lie in the memory of earlier ones: barriers between two users of one place are needed."""
    calls = [chain(5, 130), chain(4, 200, kept=True), *(random_chain(k) for k in range(chains))]
    places = [
        b.place
        for call in calls
        for k in call.device_request(WARPS, True, True, False).kernels.kernels
        for b in k.buffers
    ]
    assert sum(p is not None for p in places) >= 10
    assert check_mutants(calls, [WARPS], monkeypatch).barriers >= 20


def test_sums_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of warps add up in shared memory one after the other: each barrier in between is needed."""
    calls = [backward_call(200, 100), backward_call(131, 257)]
    assert check_mutants(calls, [BLOCKS], monkeypatch).barriers >= 8


@pytest.mark.slow
@each_device
def test_all_operators(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_mutants(operator_calls(chosen()), [DEVICES[device]], monkeypatch)


@pytest.mark.slow
@each_device
@pytest.mark.parametrize("group", range(4))
def test_many_programs(group: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(group * TOGETHER, (group + 1) * TOGETHER)
    calls = [call_of(k) for k in seeds for call_of in (random_call, stitching_call)]
    check_mutants(calls, [DEVICES[device]], monkeypatch)
