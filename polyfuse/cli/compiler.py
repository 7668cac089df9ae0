"""The names of the compiler that the commands use, all through the Python API.

Only this module knows where they come from; commands import it when they run.
"""

from __future__ import annotations

from polyfuse.api import (
    LAYERS,
    TARGETS,
    ArgumentError,
    Diagnostics,
    Kernels,
    LoopFusion,
    Operator,
    Options,
    PolyfuseWarning,
    Program,
    Stitching,
    check_program,
    compile,
    format_program,
    load,
    load_text,
    parse_text,
    standard_programs,
    stdlib,
)
from polyfuse.runtime.cache import package_version

__all__ = [
    "LAYERS",
    "TARGETS",
    "ArgumentError",
    "Diagnostics",
    "Kernels",
    "LoopFusion",
    "Operator",
    "Options",
    "PolyfuseWarning",
    "Program",
    "Stitching",
    "check_program",
    "compile",
    "format_program",
    "load",
    "load_text",
    "parse_text",
    "standard_programs",
    "stdlib",
    "version",
]


def version() -> str:
    """The version of polyfuse."""
    return package_version()
