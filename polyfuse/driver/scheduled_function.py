"""A schedule that was made by hand as a function: what `pf.compile` gives, but for its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.background import Wanted
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.open_sizes import Family
from polyfuse.driver.pipeline import Built, Watch, compilation, printed
from polyfuse.driver.stages import Origin
from polyfuse.driver.targets import load, require_target, told
from polyfuse.ir.layouts import DENSE, Layouts
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.options import Options, TargetName
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels

if TYPE_CHECKING:
    from polyfuse.driver.by_hand import Schedule
    from polyfuse.driver.kernel_stages import Kernels


class ScheduledFunction(Compiled):
    """Kernels of one schedule; calls must agree with its sizes and types."""

    def __init__(self, schedule: Schedule, origin: Origin, target: str, options: Options) -> None:
        if options.plan_file is not None:
            message = f"{options.plan_file} has plans of fusion, and the schedule is one"
            raise ArgumentError(message, code="PF428", hint="leave plan= out")
        super().__init__(
            origin.programs,
            origin.signature,
            target=require_target(target),
            fusion=None,
            stitching=None,
            packing=None,
            clustering=None,
            options=replace(options, sizes="fixed", tune="model", compile="now"),
            wish=dict(origin.sizes),
        )
        self.schedule = schedule
        self._origin = origin

    def __reduce__(self) -> tuple[object, ...]:
        return ScheduledFunction, (self.schedule, self._origin, self._target, self.options)

    def _wanted(self, values: Mapping[str, Any]) -> Wanted:
        """Axes stay in the order that the schedule has: what lies otherwise in memory has strides.

        Raises ArgumentError PF418 where dims of the schedule were merged, which needs dense memory.
        """
        found = super()._wanted(values)
        strided = found.layouts.strided | frozenset(found.layouts.orders)
        mine, theirs = self.schedule.graph, self.schedule.specialized.graph
        for name in sorted(strided):
            if len(mine.tensor(name).shape) < len(theirs.tensor(name).shape):
                message = f"the memory of '{name}' is not dense, and the schedule has merged its axes"
                raise ArgumentError(message, code="PF418", hint=f"np.ascontiguousarray({name})")
        layouts = Layouts(strided) if strided else DENSE
        return replace(found, layouts=layouts, family=self._family(found.family.graph, layouts))

    def _family(self, graph: TensorGraph, layouts: Layouts) -> Family:
        found = super()._family(graph, layouts)
        found.mend = "the schedule is for one choice of sizes: pf.schedule(..., {name}={size})"
        return found

    def _build(
        self, layouts: Layouts, graph: TensorGraph, fixed: Mapping[str, int], at: Mapping[str, int]
    ) -> Built:
        known = self.schedule.specialized.open_graph
        if graph != known:
            types = ", ".join(f"{n}: {known.tensor(n).dtype}" for n in known.inputs)
            message = f"the schedule of '{known.name}' is for other arguments"
            raise ArgumentError(message, code="PF402", hint=f"it takes {types}")
        kernels = self.schedule.lower(self.options, target=cast(TargetName, self.target))
        step, passes = Watch(self.options), self._passes_for(layouts)
        made = compilation(graph, fixed, target=self.target, options=self.options, **passes)
        low = Lowered(self.schedule.ir, kernels.ir, kernels.copied, kernels.decisions)
        if self.target == "interpret":
            machine = InterpretedKernels(kernels.ir, at, checked=True, copied=kernels.copied)
            return Built(made, None, machine, kernels.decisions, step.seconds, low, at=at)
        code = printed(step, made, low)
        executable = step("build", lambda: load(code, self.target, self.options, at))
        return Built(made, code, executable, _told(kernels, code), step.seconds, low, at=at)


def _told(kernels: Kernels, code: CpuCode | CudaCode) -> tuple[Any, ...]:
    return told(kernels.decisions, code, kernels.ir)
