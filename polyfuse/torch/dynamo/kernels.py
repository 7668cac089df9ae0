"""Compiled regions, and how they are called with tensors.

    Program   a graph, compiled for each choice of sizes that calls come with; equal regions share one
    Call      a region in its place: which tensors go in, and the strides of what comes out

A call allocates results and temporaries through torch, waits for nothing and reads nothing back.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.open_sizes import Family
from polyfuse.driver.pipeline import Built, build
from polyfuse.interop.array_families import know_torch
from polyfuse.interop.device_arrays import torch_dtypes
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.launcher import ArrayArgument, FreshTensor, Launcher, LaunchLayout, Prepared
from polyfuse.runtime.cpu.pool import PreparedCall
from polyfuse.runtime.cuda.arguments import DeviceView
from polyfuse.torch.dynamo.lowering import Lowered
from polyfuse.torch.dynamo.lowerings.table import tensor_of
from polyfuse.torch.dynamo.sizes import Extent, Unsupported, extent_of, value_of

Tensors: TypeAlias = Sequence[Any]
Short: TypeAlias = Callable[[tuple[Any, ...]], Any]
"""From the arguments of a call to its results, or NotImplemented."""
LINE = 64
MOST_KEPT = 512
"""Choices of sizes that a call remembers."""

# --- programs ---------------------------------------------------------------------------------------------


@dataclass
class Program:
    """See the module docstring."""

    graph: TensorGraph
    target: str
    options: Options
    family: Family = field(init=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)
    _machines: dict[tuple[int, ...], _Machine] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.family = Family(self.graph, {}, "open")

    def built(self, sizes: Mapping[str, int]) -> Built:
        """What is compiled for sizes. Raises PolyfuseError."""
        return self.family.built(sizes, self._build)

    def machine(self, sizes: tuple[int, ...]) -> _Machine:
        """What runs at sizes, in the order of the graph's."""
        found = self._machines.get(sizes)
        if found is None:
            with self._lock:
                if len(self._machines) >= MOST_KEPT:
                    self._machines.clear()
                built = self.built(dict(zip(self.graph.sizes, sizes, strict=True)))
                found = self._machines[sizes] = _machine(built.executable)
        return found

    def explain(self, sizes: tuple[int, ...]) -> str:
        """Every decision for sizes, in the order of the graph's; one a line."""
        named = dict(zip(self.graph.sizes, sizes, strict=True))
        with self._lock:
            built = self.built(named)
            return "\n".join(map(str, (*built.decisions, *built.scalar_loops, *self.family.told(named))))

    def __reduce__(self) -> tuple[Any, ...]:
        return _program, (self.graph, self.target, self.options)

    def _build(self, graph: TensorGraph, fixed: Mapping[str, int], at: Mapping[str, int]) -> Built:
        return build(
            graph,
            fixed,
            target=self.target,
            fusion=LoopFusion(),
            stitching=Stitching(),
            packing=Packing(),
            options=self.options,
            at=at,
        )


class Programs:
    """Programs by what they compute: equal regions are compiled once in a process."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Program] = {}

    def of(self, graph: TensorGraph, target: str, options: Options) -> Program:
        """The program of a graph."""
        key = (repr(graph), target, repr(options))
        return self._found.setdefault(key, Program(graph, target, options))


PROGRAMS = Programs()


def _program(graph: TensorGraph, target: str, options: Options) -> Program:
    """A program from its pickle."""
    return PROGRAMS.of(graph, target, options)


# --- what runs at known sizes -----------------------------------------------------------------------------


class _Machine:
    """Kernels at known sizes: called with the addresses of p0, p1, ..., o0, o1, ..."""

    executable: Any

    def run(self, tensors: Mapping[str, Any]) -> None:
        """Run on tensors by name."""
        raise NotImplementedError

    def short(
        self, inputs: Sequence[_Layout], written: Sequence[bool], results: Sequence[_Layout]
    ) -> Short | None:
        """A call of tensors that are as these, where there is a shorter way than `run`."""
        return None

    @property
    def launches(self) -> int:
        """How many kernels."""
        return len(self.executable.plan.launches)


class _OnCpu(_Machine):
    """By addresses; each thread has a table of its own."""

    def __init__(self, executable: CpuExecutable) -> None:
        self.executable = executable
        self.local = threading.local()
        plan = executable.plan
        self.spaces, self.bytes = executable.workspace()
        self.named = [(k, b.alias or b.name) for k, b in enumerate(plan.buffers) if b.name not in self.spaces]
        self.within = [(k, self.spaces[b.name]) for k, b in enumerate(plan.buffers) if b.name in self.spaces]
        self.plain = not plan.copied and not any(b.strided for b in plan.buffers)

    def short(
        self, inputs: Sequence[_Layout], written: Sequence[bool], results: Sequence[_Layout]
    ) -> Short | None:
        """A call in C of tensors that are as these; None where it has to go through Python."""
        know_torch()
        launcher, plan = Launcher.get(), self.executable.plan
        places: dict[str, list[int]] = {}
        for k, name in self.named:
            places.setdefault(name, []).append(k)
        if launcher is None or not self.plain or not all(f"p{k}" in places for k in range(len(inputs))):
            return None
        call = self.executable.prepare()
        layout = LaunchLayout(
            prepared=Prepared.of(call),
            arguments=[x.argument(places[f"p{k}"], written[k]) for k, x in enumerate(inputs)],
            results=(),
            shared=0,
            spaces=self.within,
            space_bytes=self.bytes,
            space_block=-1,
            blocks=(),
            finish=self.executable.check_library if any(x.library for x in plan.launches) else None,
        )
        made = [FreshTensor(places[f"o{k}"][0], r.shape, r.strides, r.dtype) for k, r in enumerate(results)]
        return launcher.region(layout, made, call)

    def run(self, tensors: Mapping[str, Any]) -> None:
        """Run on tensors by name."""
        if not self.plain:
            self.executable.run(self._arrays(tensors))
            return
        call = self._prepared()
        buffers = call.buffers
        for k, name in self.named:
            buffers[k] = tensors[name].data_ptr()
        if self.bytes:
            import torch

            space = torch.empty(self.bytes + LINE, dtype=torch.uint8)
            base = -(-space.data_ptr() // LINE) * LINE
            for k, offset in self.within:
                buffers[k] = base + offset
        call.check()
        self.executable.check_library()

    def _prepared(self) -> PreparedCall:
        if not hasattr(self.local, "call"):
            call, status = self.executable.prepare(), np.zeros(1, np.int64)
            call.buffers[len(self.executable.plan.buffers)] = status.__array_interface__["data"][0]
            self.local.call, self.local.status = call, status
        found: PreparedCall = self.local.call
        return found

    def _arrays(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        sizes, found = self.executable.sizes, {}
        for b in self.executable.plan.buffers:
            if (name := b.alias or b.name) in tensors:
                shape = tuple(evaluate(e, sizes) for e in b.shape)
                memory = (ctypes.c_char * (math.prod(shape) * b.dtype.bytes)).from_address(
                    tensors[name].data_ptr()
                )
                found[b.name] = np.frombuffer(memory, b.dtype.numpy).reshape(shape)
        return found


class _OnGpu(_Machine):
    """On the current stream of torch, with memory of torch's alone: graphs capture it, workspace included."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable

    def run(self, tensors: Mapping[str, Any]) -> None:
        """Run on tensors by name."""
        import torch

        device = next(iter(tensors.values())).device.index
        stream = torch.cuda.current_stream(device).cuda_stream
        found = {}
        for b in self.executable.plan.buffers:
            if (name := b.alias or b.name) in tensors:
                shape = tuple(evaluate(e, self.executable.sizes) for e in b.shape)
                steps = [b.dtype.bytes * math.prod(shape[d + 1 :]) for d in range(len(shape))]
                t = tensors[name]
                found[b.name] = DeviceView(
                    t.data_ptr(), b.dtype.numpy, shape, tuple(steps), device, stream, owner=t
                )
        nbytes = self.executable.workspace()[1]
        space = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{device}") if nbytes else None
        self.executable.run(found, None if space is None else space.data_ptr())


def _machine(executable: Any) -> _Machine:
    return _OnCpu(executable) if isinstance(executable, CpuExecutable) else _OnGpu(executable)


# --- calls ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Shape, strides and dtype of a tensor, in torch's words."""

    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    dtype: Any
    device: Any

    @staticmethod
    def of(node: Any) -> _Layout:
        t = tensor_of(node)
        return _Layout(tuple(map(extent_of, t.shape)), tuple(map(extent_of, t.stride())), t.dtype, t.device)

    def at(self, values: Mapping[Any, int]) -> _Layout:
        """Where sizes have values."""
        shape, strides = (tuple(value_of(e, dict(values)) for e in x) for x in (self.shape, self.strides))
        return _Layout(shape, strides, self.dtype, self.device)

    def argument(self, places: Sequence[int], written: bool) -> ArrayArgument:
        """As the launcher has it, at known sizes."""
        import torch

        dtype = dict(torch_dtypes(torch))[self.dtype]
        steps = tuple(s * dtype.itemsize for s in self.strides)
        also = places[1] if len(places) > 1 else -1
        return ArrayArgument(dtype, self.shape, steps, places[0], also, written)


@dataclass(frozen=True)
class _AtSizes:
    """What a call needs at known sizes."""

    machine: _Machine
    short: Short | None
    strides: tuple[tuple[int, ...], ...]
    results: tuple[_Layout, ...]


class Call:
    """A region in its place in a graph; called with its tensors, then with its sizes."""

    def __init__(self, low: Lowered, program: Program, fallback: Callable[..., Tensors], name: str) -> None:
        self.__name__ = name
        self.program, self.symbols = program, low.symbols
        self.inputs = [_Layout.of(n) for n in low.inputs]
        self.results = [_Layout.of(n) for n in low.outputs]
        self.copied = [n in low.copied for n in low.inputs]
        self.names = [f"p{k}" for k in range(len(self.inputs))]
        self.written = [n in low.mutated for n in low.inputs]
        self.fallback = fallback
        self.failed: list[str] = []
        self._known: dict[tuple[int, ...], _AtSizes | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": {}, "failed": []}

    @property
    def is_known(self) -> bool:
        """Are all sizes numbers?"""
        return not self.symbols

    def compile(self) -> None:
        """Compile it now. Raises PolyfuseError."""
        self._known[()] = self._at(())

    @property
    def launches(self) -> int | None:
        """Kernels at the sizes that it was compiled for first."""
        first = next((x for x in self._known.values() if x is not None), None)
        return None if first is None else first.machine.launches

    def explain(self) -> str:
        """Every decision for the sizes that it was compiled for first, one a line."""
        first = next((sizes for sizes, x in self._known.items() if x is not None), None)
        if first is None:
            return "not compiled yet: its sizes come with a call"
        return self.program.explain(first)

    def __call__(self, *arguments: Any) -> Tensors:
        count = len(self.inputs)
        tensors, sizes = arguments[:count], arguments[count:]
        found = self._known[sizes] if sizes in self._known else self._first(sizes)
        if found is None:
            return self.fallback(*arguments)
        if found.short is not None:
            results: Tensors = found.short(arguments)
            if results is not NotImplemented:
                return results
        named: dict[str, Any] = {}
        for name, t, strides, copied in zip(self.names, tensors, found.strides, self.copied, strict=True):
            if copied or t.stride() != strides or t.is_neg() or t._is_zerotensor():
                t = _restrided(t, strides, copied)
            named[name] = t
        results = [_empty(r) for r in found.results]
        for k, r in enumerate(results):
            named[f"o{k}"] = r
        try:
            found.machine.run(named)
        except PolyfuseError as problem:  # before anything is launched
            if any(self.written):
                raise
            self.failed.append(problem.diagnostics[0].message)
            return self.fallback(*arguments)
        for name, t, written in zip(self.names, tensors, self.written, strict=True):
            if written and named[name] is not t:
                t.copy_(named[name])
        return results

    def _first(self, sizes: tuple[int, ...]) -> _AtSizes | None:
        """At sizes that were not seen before; None where they cannot be compiled for."""
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        try:
            self._known[sizes] = self._at(sizes)
        except Exception as problem:  # a fault of ours is no fault of the model
            self._known[sizes] = None
            self.failed.append(told_by(problem))
        return self._known[sizes]

    def _at(self, sizes: tuple[int, ...]) -> _AtSizes:
        values = dict(zip(self.symbols, map(int, sizes), strict=True))
        inputs = [x.at(values) for x in self.inputs]
        results = tuple(x.at(values) for x in self.results)
        machine = self.program.machine(tuple(map(int, sizes)))
        short = None if any(self.copied) else machine.short(inputs, self.written, results)
        return _AtSizes(machine, short, tuple(x.strides for x in inputs), results)


def told_by(problem: Exception) -> str:
    """What an exception says, in a line of a report."""
    if isinstance(problem, PolyfuseError):
        return problem.diagnostics[0].message
    return str(problem) if isinstance(problem, Unsupported) else f"{type(problem).__name__}: {problem}"


def _restrided(t: Any, strides: tuple[int, ...], copied: bool) -> Any:
    """The tensor as kernels know it: row-major where it had gaps, what torch is to negate negated."""
    import torch

    t = torch.zeros_like(t) if t._is_zerotensor() else t.resolve_neg()  # without memory, or not as in memory
    if copied:
        return t.contiguous()
    if all(n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides, strict=True)):
        return t
    made = torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device)
    return made.copy_(t)


def _empty(layout: _Layout) -> Any:
    import torch

    return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=layout.device)
