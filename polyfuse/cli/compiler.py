"""The names of the compiler that the commands use, through the Python API but for the table of targets.

Only this module knows where they come from; commands import it when they run.
"""

from __future__ import annotations

from polyfuse.api import (
    LAYERS,
    PARTITIONS,
    TARGETS,
    TUNE,
    ArgumentError,
    Compiled,
    Diagnostics,
    Kernels,
    LoopFusion,
    Operator,
    Options,
    Packing,
    PolyfuseWarning,
    Program,
    Specialized,
    Stitching,
    check_program,
    compile,
    format_program,
    kernels_by,
    load,
    load_text,
    micro_text,
    parse_text,
    standard_programs,
    stdlib,
)
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.targets import ON_GPU, chip
from polyfuse.driver.targets import passes as passes_by_list
from polyfuse.runtime.cache.disk import package_version

__all__ = [
    "LAYERS",
    "ON_GPU",
    "PARTITIONS",
    "TARGETS",
    "TUNE",
    "ArgumentError",
    "Compiled",
    "Diagnostics",
    "Kernels",
    "LoopFusion",
    "Operator",
    "Options",
    "Packing",
    "PolyfuseWarning",
    "Program",
    "Specialized",
    "Stitching",
    "ToolchainError",
    "check_program",
    "chip",
    "compile",
    "format_program",
    "kernels_by",
    "load",
    "load_text",
    "micro_text",
    "parse_text",
    "passes_by_list",
    "standard_programs",
    "stdlib",
    "version",
]


def version() -> str:
    """The version of polyfuse."""
    return package_version()
