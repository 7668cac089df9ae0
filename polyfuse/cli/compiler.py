"""The names of the compiler that the commands use, through the Python API but for what needs less.

Only this module knows where they come from; commands import it when they run, and each name loads what it
needs when it is asked for: to check a program loads neither code generation nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfuse.api import (
        Compiled,
        Kernels,
        LoopFusion,
        Operator,
        Packing,
        Program,
        Specialized,
        Stitching,
        compile,
        grad,
        kernels_by,
        micro_text,
        stdlib,
    )
    from polyfuse.checking import Checked, check_loaded, check_programs
    from polyfuse.diagnostics import ArgumentError, Diagnostics, PolyfuseWarning, ToolchainError
    from polyfuse.driver.targets import chip
    from polyfuse.driver.targets import passes as passes_by_list
    from polyfuse.fixes import mended
    from polyfuse.forms import Tuned, export, tune
    from polyfuse.frontend_dsl.semantics.signature import signature
    from polyfuse.frontend_dsl.syntax import ast
    from polyfuse.frontend_dsl.syntax.formatter import format_program
    from polyfuse.frontend_dsl.syntax.imports import load_file, load_text
    from polyfuse.frontend_dsl.syntax.parse import parse_text
    from polyfuse.ir.dtypes import BY_NAME as DTYPES
    from polyfuse.library import source_of, standard_operator, standard_programs
    from polyfuse.options import Options

_FROM = {
    "polyfuse.api": "Compiled Kernels LoopFusion Operator Packing Program Specialized Stitching compile "
    "grad kernels_by micro_text stdlib",
    "polyfuse.checking": "Checked check_loaded check_programs",
    "polyfuse.diagnostics": "ArgumentError Diagnostics PolyfuseWarning ToolchainError",
    "polyfuse.driver.targets": "chip passes",
    "polyfuse.fixes": "mended",
    "polyfuse.forms": "Tuned export tune",
    "polyfuse.frontend_dsl.semantics.signature": "signature",
    "polyfuse.frontend_dsl.syntax": "ast",
    "polyfuse.frontend_dsl.syntax.formatter": "format_program",
    "polyfuse.frontend_dsl.syntax.imports": "load_file load_text",
    "polyfuse.frontend_dsl.syntax.parse": "parse_text",
    "polyfuse.ir.dtypes": "BY_NAME",
    "polyfuse.library": "source_of standard_operator standard_programs",
    "polyfuse.options": "Options",
}
_WHERE = {name: (module, name) for module, names in _FROM.items() for name in names.split()}
_WHERE["passes_by_list"], _WHERE["DTYPES"] = _WHERE.pop("passes"), _WHERE.pop("BY_NAME")

__all__ = [
    "DTYPES",
    "ArgumentError",
    "Checked",
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
    "Tuned",
    "ast",
    "check_loaded",
    "check_programs",
    "chip",
    "compile",
    "export",
    "format_program",
    "grad",
    "kernels_by",
    "load_file",
    "load_text",
    "mended",
    "micro_text",
    "parse_text",
    "passes_by_list",
    "signature",
    "source_of",
    "standard_operator",
    "standard_programs",
    "stdlib",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _WHERE[name]
    value = globals()[name] = getattr(import_module(module), there)
    return value
