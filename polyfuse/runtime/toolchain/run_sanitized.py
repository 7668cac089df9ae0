"""Python with sanitizers for compiled code: `python -m polyfuse.runtime.toolchain.run_sanitized script.py
...`.

The words after the module are those of a Python command: a script and its arguments, or ``-m pytest tests``.
The process ends with a report at the first access outside of an array, at the first signed overflow in an
index, and so on.  Leaks are not looked for: interpreters have many.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.toolchain.compiler import ask, find_compiler
from polyfuse.runtime.toolchain.sanitizers import ENV_SANITIZE

# Memory that nothing was written to is full of NaN, whatever the type of floats: who reads it shows it.
_ADDRESS = "detect_leaks=0:allocator_may_return_null=1:malloc_fill_byte=255:max_malloc_fill_size=1073741824"
# Extension modules may throw exceptions of C++: the first library looks for the second only at the start.
_LIBRARIES = ("libasan.so", "libstdc++.so")
_UNDEFINED = "print_stacktrace=1:halt_on_error=1"


def environment() -> dict[str, str]:
    """Of a process with sanitizers. Raises ToolchainError PF701 to PF703; PF702 is for no runtime too."""
    compiler = find_compiler()
    libraries = [ask([*compiler.command, f"-print-file-name={name}"]).strip() for name in _LIBRARIES]
    if not all(map(os.path.isabs, libraries)):
        raise ToolchainError(
            f"{compiler.version} has no {_LIBRARIES[0]}",
            code="PF702",
            hint="sanitizers need gcc, with its library libasan",
        )
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        ENV_SANITIZE: "1",
        "POLYFUSE_WORKER": "0",  # isl's process has less address space than the runtime maps
        "ASAN_OPTIONS": _joined(_ADDRESS, "ASAN_OPTIONS"),
        "UBSAN_OPTIONS": _joined(_UNDEFINED, "UBSAN_OPTIONS"),
    }


def main(words: Sequence[str]) -> None:
    """Become a Python process with sanitizers."""
    os.execve(sys.executable, [sys.executable, *words], environment())


def _joined(ours: str, name: str) -> str:
    """Our options, and after them the user's, which win."""
    return ":".join([ours, *filter(None, [os.environ.get(name)])])


if __name__ == "__main__":
    main(sys.argv[1:])
