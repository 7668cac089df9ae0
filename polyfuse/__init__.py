"""polyfuse: polyhedral scheduling with layered operator fusion.

    import polyfuse as pf

    program = pf.parse("op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }")
    scale = pf.compile(program, "scale")
    y = scale(x, 2.0)

The names below load what they need when they are first used, so that importing polyfuse stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "parse": "polyfuse.api",
    "compile": "polyfuse.api",
    "compare": "polyfuse.api",
    "schedule": "polyfuse.forms",
    "op": "polyfuse.forms",
    "grad": "polyfuse.api",
    "Gradients": "polyfuse.gradient_pairs",
    "export": "polyfuse.forms",
    "tune": "polyfuse.forms",
    "Tuned": "polyfuse.tuning.search",
    "load": "polyfuse.driver.loaded",
    "Program": "polyfuse.api",
    "ProgramBuilder": "polyfuse.builder",
    "Operator": "polyfuse.api",
    "Specialized": "polyfuse.api",
    "Scheduled": "polyfuse.api",
    "Schedule": "polyfuse.driver.by_hand",
    "Kernels": "polyfuse.api",
    "Executable": "polyfuse.api",
    "PolyfuseWarning": "polyfuse.api",
    "Compiled": "polyfuse.driver.compiled",
    "LoopFusion": "polyfuse.layers.fusion.loop_fusion",
    "Stitching": "polyfuse.layers.stitching.stitching",
    "Packing": "polyfuse.layers.packing.packing",
    "Clustering": "polyfuse.layers.clustering.clusters",
    "GpuPlan": "polyfuse.gpu_plan",
    "Options": "polyfuse.options",
    "open": "polyfuse.options",
    "Decision": "polyfuse.decisions",
    "PolyfuseError": "polyfuse.diagnostics",
    "DslError": "polyfuse.diagnostics",
    "ArgumentError": "polyfuse.diagnostics",
    "ScheduleError": "polyfuse.diagnostics",
    "CodegenError": "polyfuse.diagnostics",
    "ToolchainError": "polyfuse.diagnostics",
    "CacheError": "polyfuse.diagnostics",
    "InternalError": "polyfuse.diagnostics",
}

__all__ = [
    "ArgumentError",
    "CacheError",
    "Clustering",
    "CodegenError",
    "Compiled",
    "Decision",
    "DslError",
    "Executable",
    "GpuPlan",
    "Gradients",
    "InternalError",
    "Kernels",
    "LoopFusion",
    "Operator",
    "Options",
    "Packing",
    "PolyfuseError",
    "PolyfuseWarning",
    "Program",
    "ProgramBuilder",
    "Schedule",
    "ScheduleError",
    "Scheduled",
    "Specialized",
    "Stitching",
    "ToolchainError",
    "Tuned",
    "__version__",
    "compare",
    "compile",
    "export",
    "grad",
    "load",
    "op",
    "open",
    "parse",
    "schedule",
    "stdlib",
    "tune",
]

if TYPE_CHECKING:
    from polyfuse.api import (
        Executable,
        Kernels,
        Operator,
        PolyfuseWarning,
        Program,
        Scheduled,
        Specialized,
        compare,
        compile,
        grad,
        parse,
    )
    from polyfuse.builder import ProgramBuilder
    from polyfuse.decisions import Decision
    from polyfuse.diagnostics import (
        ArgumentError,
        CacheError,
        CodegenError,
        DslError,
        InternalError,
        PolyfuseError,
        ScheduleError,
        ToolchainError,
    )
    from polyfuse.driver.by_hand import Schedule
    from polyfuse.driver.compiled import Compiled
    from polyfuse.driver.loaded import load
    from polyfuse.forms import export, op, schedule, tune
    from polyfuse.gradient_pairs import Gradients
    from polyfuse.layers.clustering.clusters import Clustering
    from polyfuse.layers.fusion.loop_fusion import LoopFusion
    from polyfuse.layers.packing.packing import Packing
    from polyfuse.layers.stitching.stitching import Stitching
    from polyfuse.options import Options, open
    from polyfuse.tuning.search import Tuned

    stdlib: Program


def __getattr__(name: str) -> Any:
    if name == "stdlib":
        value = import_module("polyfuse.api").stdlib()
    elif name in ("torch", "jax", "visualize"):
        value = import_module(f"polyfuse.{name}")
    elif name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    else:
        raise AttributeError(f"module 'polyfuse' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
