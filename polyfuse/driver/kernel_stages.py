"""The stages that have kernels: those of an operator with their figures, and what runs.

    Scheduled --lower--> Kernels --build--> Executable

Each is immutable; a method exists only where it is legal.  `polyfuse.driver.stages` has what comes before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from polyfuse.codegen.cpu.emit import CpuCode, Request, emit_together
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda
from polyfuse.codegen.line_map import Marks
from polyfuse.cost import machines
from polyfuse.cost.figures import Estimate
from polyfuse.cost.speed_of_light import estimate
from polyfuse.decisions import Decision, format_bytes
from polyfuse.diagnostics import ArgumentError, ScheduleError, ToolchainError
from polyfuse.driver.machine_work import projections
from polyfuse.driver.resources import ResourceTable, resource_table
from polyfuse.driver.targets import (
    Machine,
    chip,
    is_on_gpu,
    knobs_for,
    load,
    resolve_target,
    this_cpu,
    told,
)
from polyfuse.interop.arrays import to_numpy
from polyfuse.interop.device_arrays import to_device
from polyfuse.interop.torch_tensors import is_torch, write_tensors
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, product, substitute
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.schedule_tree import Member, map_members
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.layers.mapping.gpu_plan import plans_of
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching import schemes
from polyfuse.layers.stitching import schemes as dominants
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import ON_GPU, Options, TargetName
from polyfuse.poly.model.domains import specialize
from polyfuse.runtime.arguments import check_array, check_fits, dense, usable
from polyfuse.runtime.cuda.compiler import Cubin, compile_cuda
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.source import Span
from polyfuse.visualize.launches import plan_picture
from polyfuse.visualize.svg import Picture

if TYPE_CHECKING:
    from polyfuse.driver.stages import Scheduled


# --- kernels at some sizes --------------------------------------------------------------------------------


def kernels_at(kernels: KernelGraph, sizes: Mapping[str, int]) -> KernelGraph:
    """Kernels with the values of sizes that are open."""
    values: dict[str, IndexExpr] = {n: IConst(v) for n, v in sizes.items() if n in kernels.graph.sizes}
    known = {n: v for n, v in sizes.items() if n in values}

    def index(e: IndexExpr) -> IndexExpr:
        return substitute(e, sizes=values)

    def buffer(b: Buffer) -> Buffer:
        extents, shape, slots = (tuple(map(index, x)) for x in (b.extents, b.shape, b.slots))
        return replace(b, extents=extents, shape=shape, slots=slots)

    def member(m: Member) -> Member:
        return replace(m, exprs=tuple((s, index(e)) for s, e in m.exprs))

    def kernel(k: Kernel) -> Kernel:
        stages = tuple(
            replace(
                s,
                band=tuple(map(member, s.band)),
                phases=tuple(replace(p, tree=map_members(p.tree, member)) for p in s.phases),
            )
            for s in k.stages
        )
        parts, packed = (tuple(map(kernel, x)) for x in (k.parts, k.packed))
        graph, buffers = specialize(k.graph, known), tuple(map(buffer, k.buffers))
        return replace(k, graph=graph, stages=stages, buffers=buffers, parts=parts, packed=packed)

    graph = specialize(kernels.graph, known)
    return replace(kernels, graph=graph, kernels=tuple(map(kernel, kernels.kernels))) if known else kernels


# --- attributes that only a later stage has ---------------------------------------------------------------


def later_stage(missing: Mapping[str, str]) -> Callable[[object, str], Any]:
    """A `__getattr__` whose error names the call that leads to the stage where an attribute is."""

    def getattribute(self: object, name: str) -> Any:
        message = f"'{type(self).__name__}' object has no attribute '{name}'"
        if name in missing:
            message += f": call .{missing[name]} first"
        raise AttributeError(message, name=name, obj=self)

    return getattribute


# --- passes of any class ----------------------------------------------------------------------------------


Stage = TypeVar("Stage")


def applied(layer: object, stage: Stage, what: str, hint: str) -> Stage:
    """What a pass of any class makes of a stage: `layer.apply(stage)`.

    Raises ArgumentError PF413 for an object without `apply`, and for one that gives something else.
    """
    run = getattr(layer, "apply", None)
    if isinstance(layer, type):
        name = layer.__name__
        raise ArgumentError(f"{name} is a class, not a pass on {what}", code="PF413", hint=f"{name}()")
    name = type(layer).__name__
    if not callable(run):
        hint = f"{hint}, or an object with a method apply"
        raise ArgumentError(f"{name} is not a pass on {what}", code="PF413", hint=hint)
    made = run(stage)
    if type(made) is not type(stage):
        kind = type(stage).__name__
        raise ArgumentError(f"{name}.apply gave {type(made).__name__}, not {kind}", code="PF413")
    return made


@dataclass(frozen=True)
class Kernels:
    """The kernels of an operator, with their figures.

    Attributes
    ----------
    scheduled
        The stage before.
    ir
        The kernels, in launch order.
    decisions
        What led to them.
    options, target
        As they were asked for.
    stitching, packing
        Layers II and III, if they were applied.
    copied
        Inout parameters that are copied at entry.

    Examples
    --------
    >>> stage = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule().apply(pf.LoopFusion())
    >>> kernels = stage.lower(target="cuda")
    >>> kernels, kernels.apply(pf.Stitching())
    (<polyfuse Kernels softmax: 3 launched>, <polyfuse Kernels softmax: 1 launched>)
    """

    scheduled: Scheduled
    ir: KernelGraph
    decisions: tuple[Decision, ...]
    options: Options
    target: str = "cpu"
    stitching: Stitching | None = None
    packing: Packing | None = None
    copied: frozenset[str] = frozenset()

    def apply(self, layer: object) -> Kernels:
        """The kernels after layer II (dependent ones stitched), layer III (independent ones packed), or what
        the `apply` of any other object makes of them: ``apply(layer)``. Raises ArgumentError PF413 for what
        is no pass.
        """
        if isinstance(layer, Stitching):
            return self.scheduled._formed(self.options, self.target, layer, self.packing)
        if isinstance(layer, Packing):
            return self.scheduled._formed(self.options, self.target, self.stitching, layer)
        return applied(layer, self, "kernels", "use Stitching() or Packing()")

    @property
    def graph(self) -> TensorGraph:
        """The operator after the rewrites of its graph."""
        return self.ir.graph

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, in launch order."""
        return self.ir.kernels

    def picture(self) -> Picture:
        """The launches: what is fused, packed, and waits for what."""
        return plan_picture(self.ir, self.ir.graph.name)

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()

    @property
    def launches(self) -> int:
        """Number of kernels launched."""
        return len(self.ir.kernels)

    @property
    def global_bytes(self) -> int:
        """Bytes moved to and from global memory if every kernel touches each buffer once.

        What a kernel writes and then reads is not counted as read. Raises ScheduleError PF513 for open sizes.
        """
        self._require_sizes()
        total = 0
        for k in self.kernels:
            for b in k.arguments:
                written = any(s.target == b.tensor for s in k.graph.statements)
                read = any(r.tensor == b.tensor for s in k.graph.statements for r in statement_reads(s))
                total += (written or read) * b.dtype.bytes * evaluate(product(b.shape), {})
        return total

    @property
    def shared_bytes(self) -> int:
        """Bytes of on-chip storage: the largest worker's arrays of any kernel."""
        self._require_sizes()
        return max((self._local(k) for k in self.kernels), default=0)

    def _require_sizes(self) -> None:
        if self.ir.graph.sizes:
            names = ", ".join(self.ir.graph.sizes)
            raise ScheduleError(f"the sizes {names} are open", code="PF513", hint="give them to specialize()")

    @staticmethod
    def _local(kernel: Kernel) -> int:
        local = [b for b in kernel.buffers if b.scope in (Scope.LOCAL, Scope.SHARED)]
        return sum(b.dtype.bytes * evaluate(b.elements, {}) for b in local)

    @property
    def barriers(self) -> int:
        """Barriers inside kernels (kernels of layer I have none)."""
        return sum(len(k.stages) - 1 + sum(len(s.phases) - 1 for s in k.stages) for k in self.kernels)

    @property
    def library_calls(self) -> int:
        """Kernels that a library computes."""
        return sum(k.library is not None for k in self.kernels)

    def explain(self) -> str:
        """Every decision so far, one a line, and where what goes from one statement to another is kept."""
        return "\n".join([*map(str, self.told()), *(f"+ scheme {e}" for e in self.schemes().edges)])

    def plans(self) -> list[str]:
        """Of kernels on a GPU: what would be decided by hand of each (`GpuPlan`); of a CPU nothing."""
        named = (p for k in self.kernels for p in plans_of(k)) if self.target in ON_GPU else ()
        return [f"{name}: {plan}" for name, plan in named]

    def told(self) -> tuple[Decision, ...]:
        """Decisions as the code of a CPU has them, where it can be printed."""
        code = None if self.ir.graph.sizes else self.code()
        return told(self.decisions, code, self.ir) if code is not None else self.decisions

    def schemes(self) -> schemes.Schemes:
        """What goes from one statement to another, how, and why; `print` shows a table."""
        return schemes.schemes(self.ir)

    def dominants(self) -> tuple[dominants.Dominant, ...]:
        """The statements that others follow, as AStitch calls them, of all kernels in order."""
        return dominants.dominants_of(self.scheduled.graph, self.ir, self.decisions)

    if not TYPE_CHECKING:
        __getattr__ = later_stage(dict.fromkeys(("run", "source"), "build()"))

    def __repr__(self) -> str:
        return f"<polyfuse Kernels {self.ir.graph.name}: {self.launches} launched>"

    def __str__(self) -> str:
        return str(self.ir)

    def code(self) -> CpuCode | CudaCode:
        """C++ or CUDA C++, and the launch plan."""
        return self._emitted(None)

    def _emitted(self, marks: Marks | None) -> CpuCode | CudaCode:
        knobs, checked = knobs_for(self.target, self.options), self.options.checked
        request = Request(self.ir, copied=self.copied, checked=checked, knobs=knobs, marks=marks)
        return emit_cuda(request) if self.target in ON_GPU else emit_together([request])[0]

    def line_map(self) -> tuple[tuple[Span, ...], ...]:
        """The places of the program that each line of the code came from; none for lines of no statement.

        A line of a loop has the places of all that it runs. Of kernels that differ in names only the code is
        that of the first.
        """
        source, marks = self.code().source, Marks()
        found = marks.lines(self._emitted(marks).source, source)
        return found if found is not None else ((),) * len(source.split("\n"))

    def ptx(self, device: str | None = None) -> str:
        """PTX of the kernels; no GPU is needed, only a compiler.

        Parameters
        ----------
        device
            A GPU, as "A100" or "sm_80"; None: the options' one.

        Raises
        ------
        ArgumentError
            PF414 for kernels of another target.
        ToolchainError
            PF720 to PF725.
        """
        return self._compiled(chip(self._for_device(device), self.target).arch).ptx

    def estimate(self, device: str | None = None, *, sizes: Mapping[str, int] | None = None) -> Estimate:
        """What the cost model says of each kernel: bytes, operations, parallelism, seconds. Nothing runs.

        Parameters
        ----------
        device
            The GPU for kernels of a GPU; None: the options' one. Those of a CPU are estimated on this
            machine.
        sizes
            Values of sizes that are open.

        Raises
        ------
        ScheduleError
            PF513 for open sizes that have no value.
        ArgumentError
            PF414 for a device that they are not made for.
        ToolchainError
            PF725 for one that is not in the table.
        """
        known = kernels_at(self.ir, sizes or {})
        if known.graph.sizes:
            names = ", ".join(known.graph.sizes)
            hint = "give them to specialize(), or estimate(sizes={...})"
            raise ScheduleError(f"the sizes {names} are open", code="PF513", hint=hint)
        return estimate(known, self.machine(device))

    def machine(self, device: str | None = None) -> machines.Machine:
        """The machine of `estimate`, with the rates that the cost model takes for it.

        Raises what `estimate` does for a `device`.
        """
        if self.target in ON_GPU:
            return chip(self._for_device(device), self.target)
        if device is not None:
            message = f"these kernels are made for '{self.target}', not for a GPU"
            raise ArgumentError(message, code="PF414", hint="lower(target='cuda')")
        return this_cpu(self.options.threads)

    def resources(self, device: str | None = None) -> ResourceTable:
        """Registers, spills, shared memory, occupancy and 16-byte accesses of each kernel on a GPU, `device`
        as for `ptx`.

        Where nvdisasm is found: bytes in flight, pipes, projected time and what limits it as well. Raises
        what `ptx` does, and ScheduleError PF513 while sizes are open.
        """
        self._require_sizes()
        found = chip(self._for_device(device), self.target)
        plan, made = self._gpu_code().plan, self._compiled(found.arch)
        table = resource_table(plan, made, found)
        try:
            return replace(table, projected=projections(plan, made, estimate(self.ir, found), found))
        except ToolchainError as error:
            return replace(table, unprojected=error.diagnostics[0].message)

    def _for_device(self, device: str | None) -> Options:
        return self.options if device is None else replace(self.options, device=device)

    def _gpu_code(self) -> CudaCode:
        code = self.code()
        if not isinstance(code, CudaCode):
            message = f"these kernels are made for '{self.target}', not for a GPU"
            raise ArgumentError(message, code="PF414", hint="lower(target='cuda')")
        return code

    def _compiled(self, arch: str) -> Cubin:
        return compile_cuda(self._gpu_code().source, arch, options=self.options)

    def build(self, target: TargetName | None = None) -> Executable:
        """Loaded kernels, for the target that they were lowered for if `target` does not say otherwise.

        Raises
        ------
        ToolchainError
            PF701 without a compiler (the interpreter needs none).
        ScheduleError
            PF513 while sizes are open.
        ArgumentError
            PF414 for a target that they were not lowered for.
        """
        self._require_sizes()
        resolved = resolve_target(target or self.target)
        if (resolved in ON_GPU) != (self.target in ON_GPU):
            raise ArgumentError(
                f"these kernels are made for '{self.target}', not for '{resolved}'",
                code="PF414",
                hint=f"lower(target={resolved!r})",
            )
        if resolved == "interpret":
            machine = InterpretedKernels(self.ir, checked=True, copied=self.copied)
            return Executable(self, machine, None)
        code = self.code()
        return Executable(self, load(code, resolved, self.options), code)


@dataclass(frozen=True)
class Executable:
    """Kernels that can run: what `Kernels.build` gives.

    Attributes
    ----------
    kernels
        The stage before.
    machine
        What runs them.
    code
        Source and launch plan; None for the interpreter.

    Examples
    --------
    >>> stage = pf.stdlib.relu.specialize(B_0=3).schedule()
    >>> x, y = np.array([-1, 0, 1], "f4"), np.empty(3, "f4")
    >>> stage.lower(target="interpret").build().run({"x": x, "y": y})
    >>> y
    array([0., 0., 1.], dtype=float32)
    """

    kernels: Kernels
    machine: Machine
    code: CpuCode | CudaCode | None

    @property
    def source(self) -> str:
        """The emitted source ("" for the interpreter)."""
        return self.code.source if self.code else ""

    def _repr_html_(self) -> str:
        return self.kernels._repr_html_()

    def run(self, arrays: Mapping[str, Any]) -> None:
        """Run on memory for every argument and result.

        Parameters
        ----------
        arrays
            Dense arrays by name, of the operator's shapes and dtypes; those of results are written.
            ``p__out`` stands for what an inout parameter p becomes. Kernels on a GPU take arrays there as
            well.

        Raises
        ------
        ArgumentError
            PF408 for a missing array; PF401, PF402, PF405 for one of another rank, dtype or extent; PF417 for
            one that is elsewhere, PF418 for memory that is not dense; PF420 or PF421 for tensors of torch
            that are more than their memory.
        """
        given: dict[str, Any] = {}
        there = is_on_gpu(self.machine)
        graph = self.kernels.scheduled.specialized.graph
        for t in graph.tensors:
            if t.role is Role.TEMP:
                continue
            if t.name not in arrays:
                raise ArgumentError(f"there is no array for '{t.name}'", code="PF408", span=t.span)
            if there and (view := to_device(arrays[t.name], t.name)) is not None:
                check_fits(t, view.dtype, view.shape, {})
                given[t.name] = view
                continue
            array = check_array(t, to_numpy(arrays[t.name], t.name)[0], {})
            if not (dense(array) and usable(array)):
                raise ArgumentError(f"the memory of '{t.name}' is not dense", code="PF418", span=t.span)
            # Dims that were collapsed share the memory.
            shape = self.kernels.ir.graph.tensor(t.name).shape
            given[t.name] = array.reshape(tuple(evaluate(e, {}) for e in shape))
        written = {t.name: arrays[t.name] for t in graph.tensors if t.role in (Role.INOUT, Role.OUTPUT)}
        write_tensors({n: a for n, a in written.items() if is_torch(a)})
        self.machine.run(given)


def compare(*stages: Kernels) -> str:
    """Figures of several kernel sets side by side, as a text table; times are the cost model's, in
    microseconds.

    Parameters
    ----------
    *stages
        Kernels at known sizes.

    Examples
    --------
    >>> stage = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule().apply(pf.LoopFusion())
    >>> kernels = stage.lower(pf.Options(device="H200"), target="cuda")
    >>> print(pf.compare(kernels, kernels.apply(pf.Stitching())))
         launches   global  on chip  barriers  library calls  estimated us
    [0]         3   165 kB      0 B         0              0           ...
    [1]         1  65.5 kB     32 B         0              0           ...
    """
    rows = [("", "launches", "global", "on chip", "barriers", "library calls", "estimated us")]
    for k, s in enumerate(stages):
        rows.append(
            (
                f"[{k}]",
                str(s.launches),
                format_bytes(s.global_bytes),
                format_bytes(s.shared_bytes),
                str(s.barriers),
                str(s.library_calls),
                f"{s.estimate().seconds * 1e6:.1f}",
            )
        )
    widths = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(x.rjust(w) for x, w in zip(r, widths, strict=True)) for r in rows)
