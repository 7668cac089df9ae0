"""Assembles docs/reference/api.md from the docstrings of the public names.

python docs/build_api_reference.py            writes docs/reference/api.md
python docs/build_api_reference.py --check    fails if it is not up to date
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from page import publish

import polyfuse as pf

TARGET = Path(__file__).parent / "reference" / "api.md"

_HEAD = """\
<!-- Made by docs/build_api_reference.py from the docstrings; edit them there. -->
# The Python API

`import polyfuse as pf`; every name below is `pf.NAME`. A program goes through immutable stages, and a method
exists only where it is legal:

    parse -> Program -> Operator -> Specialized -> Scheduled -> Kernels -> Executable

`pf.compile` walks all of them and gives a function. `pf.stdlib` is the program of the
[standard library](stdlib.md), `pf.open` says that kernels have a size as a parameter
([open sizes](open_sizes.md)). Errors have codes, explained in [errors](../errors.md).
"""

# In the order of the way of the data; what is not named here follows in alphabetical order.
FIRST = (
    "parse", "compile", "op", "compare", "Program", "Operator", "Specialized", "Scheduled", "schedule",
    "Schedule", "LoopFusion", "Kernels", "Executable", "Compiled", "Options", "Decision",
)  # fmt: skip


def build() -> str:
    names = [*FIRST, *sorted(set(pf.__all__) - set(FIRST) - {"open", "stdlib", "__version__"})]
    return "\n".join([_HEAD, *(_entry(name, getattr(pf, name)) for name in names)])


def _entry(name: str, thing: Any) -> str:
    if not inspect.isclass(thing):
        return f"## `{name}`\n\n```python\n{name}{_signature(thing)}\n```\n\n{_text(thing)}\n"
    lines = [f"## `{name}`", "", _text(thing), ""]
    if issubclass(thing, BaseException):
        return "\n".join(lines)
    for key, value in vars(thing).items():
        if key.startswith("_") and key != "__call__":
            continue
        found = _member(key, value)
        if found:
            lines += [found, ""]
    return "\n".join(lines)


def _member(name: str, value: Any) -> str | None:
    if isinstance(value, property) or type(value).__name__ == "cached_property":
        getter = value.fget if isinstance(value, property) else value.func
        return f"### `.{name}`\n\n{_text(getter)}" if inspect.getdoc(getter) else None
    if inspect.isfunction(value) and (inspect.getdoc(value) or name == "__call__"):
        shown = f"({name[2:-2]})" if name == "__call__" else f".{name}"
        text = _text(value) if inspect.getdoc(value) else "Call it; see above."
        return f"### `{shown}`\n\n```python\n{shown}{_signature(value)}\n```\n\n{text}"
    return None


def _signature(thing: Any) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))
    return text.replace("(self, ", "(").replace("(self)", "()").replace("polyfuse.", "")


def _text(thing: Any) -> str:
    """A docstring as Markdown: paragraphs that are laid out in columns, or indented, are code."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(f"```text\n{p}\n```" if _laid_out(p) else p for p in paragraphs)


def _laid_out(paragraph: str) -> bool:
    return any(line.startswith((" ", "@")) or "   " in line for line in paragraph.splitlines())


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
