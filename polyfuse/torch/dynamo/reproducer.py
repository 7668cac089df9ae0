"""A region as a module of ATen's operators: what runs where it has no kernels, and a file that shows it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyfuse.torch.dynamo.lowering import Lowered
from polyfuse.torch.dynamo.lowerings.table import tensor_of
from polyfuse.torch.dynamo.partition import Region

FOLDER = "polyfuse-reproducers"


def graph_of(region: Region, low: Lowered) -> Any:
    """The region's nodes as a graph of their own; its arguments are those of the region's call."""
    import torch

    made = torch.fx.Graph()
    new: dict[Any, Any] = {}
    for k, n in enumerate(low.inputs):
        new[n] = made.placeholder(f"p{k}")
    for k, s in enumerate(low.symbols):
        new[s] = made.placeholder(f"s{k}")

    def copy(n: Any) -> Any:
        if n not in new:
            if n.op != "call_function" or (
                tensor_of(n) is None and not isinstance(n.meta.get("val"), list | tuple)
            ):
                raise LookupError(f"{n} is no tensor")
            for a in n.all_input_nodes:
                copy(a)
            new[n] = made.node_copy(n, lambda a: new[a])
        return new[n]

    for n in region.nodes:
        copy(n)
    made.output([new[n] for n in low.outputs])
    return made


def module_of(region: Region, low: Lowered) -> Callable[..., Sequence[Any]]:
    """The region computed by ATen; made when it is called first."""
    found: list[Any] = []

    def run(*arguments: Any) -> Sequence[Any]:
        import torch

        if not found:
            found.append(torch.fx.GraphModule(torch.nn.Module(), graph_of(region, low)))
        results: Sequence[Any] = found[0](*arguments)
        return results

    return run


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
