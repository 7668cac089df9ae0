"""Docstrings in numpydoc's form, and which of them are public.

summary line

Parameters
----------
first, second        names as the signature has them, `*args` and `**kwargs` with their stars
    What they are.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import polyfuse as pf

SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "See Also", "Examples")
_HEAD = re.compile(r"^([A-Z][A-Za-z ]+)\n(-{3,})$", re.MULTILINE)
_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
# Modules whose `__all__` is public, beside the package's own; those of peers are read, not imported.
MODULES = ("visualize", "builder")
PEERS = ("torch", "jax")


@dataclass(frozen=True)
class Documented:
    """A public class, function, method or property."""

    name: str
    kind: str
    doc: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return self.doc.partition("\n\n")[0]

    @cached_property
    def sections(self) -> dict[str, str]:
        """Title -> text, in order; a title that is underlined by another length is kept with it."""
        parts = _HEAD.split(self.doc)
        return {
            title if len(title) == len(line) else f"{title} {line}": text.strip("\n")
            for title, line, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        }

    def entries(self, section: str) -> tuple[str, ...]:
        """The names that a section explains, in order."""
        lines = self.sections.get(section, "").splitlines()
        heads = [line.partition(" : ")[0] for line in lines if line and not line[0].isspace()]
        return tuple(n.strip() for head in heads for n in head.split(","))

    @property
    def codes(self) -> set[str]:
        """Codes of errors that it names, those of ranges left out."""
        return set(re.findall(r"\bPF\d{3}\b(?!-)", self.doc))


def public() -> tuple[Documented, ...]:
    """All that is public, with methods and properties."""
    found = {f"pf.{n}": getattr(pf, n) for n in pf.__all__ if n != "__version__"}
    for module in MODULES:
        inside = import_module(f"polyfuse.{module}")
        found |= {f"pf.{module}.{n}": getattr(inside, n) for n in inside.__all__}
    of_values = [x for name, thing in found.items() for x in _documented(name, thing)]
    of_text = [x for module in PEERS for x in _in_text(module)]
    return (*{d.name: d for d in (*of_values, *of_text)}.values(),)


def objects() -> dict[str, Any]:
    """The public classes and functions that can be imported, by name."""
    names = [d.name for d in public() if d.kind in ("class", "function")]
    own = [n for n in names if n.split(".")[1] not in PEERS]
    return {n: _value(n) for n in own}


def _value(name: str) -> Any:
    _, *parts = name.split(".")
    if parts[0] in MODULES:
        return getattr(import_module(f"polyfuse.{parts[0]}"), parts[1])
    return getattr(pf, parts[0])


def _documented(name: str, thing: Any) -> Iterator[Documented]:
    doc = inspect.getdoc(thing) or ""
    if inspect.isfunction(thing):
        yield Documented(name, "function", doc, _parameters(thing))
    elif inspect.isclass(thing):
        fields = (
            tuple(f.name for f in fields_of(thing) if not f.name.startswith("_"))
            if is_dataclass(thing)
            else ()
        )
        yield Documented(name, "class", doc, _parameters(thing), fields)
        for member, value in vars(thing).items():
            if not member.startswith("_"):
                yield from _member(f"{name}.{member}", value)
    # Values, as `pf.open`, are explained by their classes.


def _member(name: str, value: Any) -> Iterator[Documented]:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if inspect.isfunction(value):
        yield Documented(name, "method", inspect.getdoc(value) or "", _parameters(value))
    elif isinstance(value, property | cached_property):
        yield Documented(name, "property", inspect.getdoc(value) or "")


def _parameters(thing: Any) -> tuple[str, ...]:
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # of what Python made, of calls that have signatures of their own
        return ()
    return tuple(_STARS.get(p.kind, "") + p.name for p in found if p.name not in ("self", "cls"))


# --- modules of peers -----------------------------------------------------------------------------------


def _in_text(module: str) -> Iterator[Documented]:
    """Public names of a module that needs another library, read from its sources."""
    folder = Path(pf.__file__).parent / module
    trees = {f.stem: ast.parse(f.read_text(encoding="utf-8")) for f in sorted(folder.glob("*.py"))}
    names = next(ast.literal_eval(s.value) for s in trees["__init__"].body if isinstance(s, ast.Assign))
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                yield from _of_node(f"pf.{module}.{node.name}", node)


def _of_node(name: str, node: ast.FunctionDef | ast.ClassDef) -> Iterator[Documented]:
    doc = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        yield Documented(name, "class", doc)
        for f in node.body:
            if isinstance(f, ast.FunctionDef) and not f.name.startswith("_"):
                is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in f.decorator_list)
                (made,) = _of_node(f"{name}.{f.name}", f)
                kind = "property" if is_property else "method"
                yield Documented(made.name, kind, made.doc, made.parameters[1:])
        return
    a = node.args
    stars = (("*", a.vararg), ("**", a.kwarg))
    many, named = ([s + x.arg] if x else [] for s, x in stars)
    names = [x.arg for x in (*a.posonlyargs, *a.args)] + many + [x.arg for x in a.kwonlyargs] + named
    yield Documented(name, "function", doc, tuple(names))
