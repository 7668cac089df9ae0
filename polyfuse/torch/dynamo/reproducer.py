"""A region as a module of ATen's operators: what runs where it has no kernels, and a file that shows it."""

from __future__ import annotations

import hashlib
import operator
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from polyfuse.torch.dynamo.lowering import Lowered
from polyfuse.torch.dynamo.lowerings.table import tensor_of
from polyfuse.torch.dynamo.partition import Region

FOLDER = "polyfuse-reproducers"
_OF_SIZES = {
    "Add": operator.add, "Mul": operator.mul, "Pow": operator.pow, "Mod": operator.mod,
    "PythonMod": operator.mod, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
}  # fmt: skip


def graph_of(region: Region, low: Lowered) -> Any:
    """The region's nodes as a graph of their own; its arguments are those of the region's call."""
    import torch

    made = torch.fx.Graph()
    new: dict[Any, Any] = {}
    for k, n in enumerate(low.inputs):
        new[n] = made.placeholder(f"p{k}")
    for k, s in enumerate(low.symbols):
        new[s] = made.placeholder(f"s{k}")

    def number(e: Any) -> Any:
        if e in new:
            return new[e]
        if e.is_Integer:
            return int(e)
        each = _OF_SIZES.get(type(e).__name__)
        if each is None:
            raise LookupError(f"a size is {e}")
        return reduce(lambda a, b: made.call_function(each, (a, b)), map(number, e.args))

    def copy(n: Any) -> Any:
        if n not in new:
            size = getattr(getattr(n.meta.get("val"), "node", None), "expr", None)
            if size is not None:
                new[n] = number(size)
                return new[n]
            if n.op != "call_function":
                raise LookupError(f"{n} is no argument")
            for a in n.all_input_nodes:
                copy(a)
            new[n] = made.node_copy(n, lambda a: new[a])
        return new[n]

    for n in region.nodes:
        copy(n)
    made.output([new[n] for n in low.outputs])
    return made


@dataclass(frozen=True)
class Text:
    """A graph as a function in Python, which can be kept: its source, and the objects that it names."""

    source: str
    names: Mapping[str, Any]

    @staticmethod
    def of(code: Any) -> Text:
        """From what FX made."""
        return Text(code.src, dict(code.globals))

    def function(self) -> Callable[..., Any]:
        """The function; its first argument has the constants."""
        found = dict(self.names)
        exec(compile(self.source, "<graph kept by polyfuse>", "exec"), found)
        made: Callable[..., Any] = found["forward"]
        return made

    def __getstate__(self) -> dict[str, Any]:
        modules = {n: v.__name__ for n, v in self.names.items() if isinstance(v, ModuleType)}
        others = {n: v for n, v in self.names.items() if n not in modules}
        return {"source": self.source, "others": others, "modules": modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = state["others"] | {n: import_module(m) for n, m in state["modules"].items()}
        object.__setattr__(self, "source", state["source"])
        object.__setattr__(self, "names", names)


class ByAten:
    """A region computed by ATen; made when it is called first."""

    def __init__(self, region: Region, low: Lowered) -> None:
        self._parts: Any = (region, low)
        self._text: Text | None = None
        self._run: Callable[..., Any] | None = None

    @property
    def text(self) -> Text:
        """Raises LookupError for a region that reads what is no tensor."""
        if self._text is None:
            self._text = Text.of(graph_of(*self._parts).python_code("self"))
        return self._text

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        if self._run is None:
            self._run = self.text.function()
        results: Sequence[Any] = self._run(None, *arguments)
        return results

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": None, "_text": self.text, "_run": None}


_SCRIPT = """# A region that polyfuse could not compile: {why}
import torch
from torch import device, inf, nan

import polyfuse


{code}

{arguments}
torch.compile(forward, backend="polyfuse", options={{"strict": True}})(None, *arguments)
"""


def save(region: Region, low: Lowered, why: str) -> str:
    """Write a script that shows the failure; where it is."""
    try:
        code = graph_of(region, low).python_code("self").src
    except LookupError as problem:
        return f"no file ({problem})"
    values = []
    for n in low.inputs:
        t = tensor_of(n)
        size, strides = [int(x) for x in t.shape], [int(x) for x in t.stride()]
        make = f"torch.empty_strided({size}, {strides}, dtype={t.dtype}, device={str(t.device)!r})"
        values.append(f"{make}.{'normal_()' if t.dtype.is_floating_point else 'zero_()'}")
    listed = "".join(f"    {v},\n" for v in values)
    text = _SCRIPT.format(why=" ".join(why.split()), code=code, arguments=f"arguments = [\n{listed}]")
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    except OSError as problem:
        return f"no file ({problem})"
    return str(folder / f"{name}.py")
