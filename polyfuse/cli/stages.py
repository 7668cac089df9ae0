"""`polyfuse emit`: what an operator is after a stage of the compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import files, screen, settings

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Kernels, Operator

STAGES = ("ast", "graph", "schedule", "kernels", "plan", "loops", "cpp")
_OPEN = ("ast", "graph", "schedule")  # make sense with sizes that are not known
_LATER = ("micro", "cuda", "ptx")


def emit(
    file: settings.File,
    stage: Annotated[str, typer.Option(metavar="STAGE", help=" | ".join(STAGES))] = "schedule",
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    layers: settings.Layers = "loop,stitch",
    checked: Annotated[
        bool, typer.Option("--checked", metavar="", help="Check indices from data (stages plan, cpp).")
    ] = False,
    output: settings.Output = None,
) -> None:
    """Print an operator after a stage of the compiler.

    ast, graph and schedule leave sizes open that are not given; the later stages need them all and choose
    round numbers for the missing ones.

    Examples:

      polyfuse emit stdlib:softmax --stage graph

      polyfuse emit norms.pf --stage cpp -s T=64,H=128 -o out.cpp
    """
    if stage in _LATER:
        raise typer.BadParameter(f"the stage {stage} is not built yet; there are {', '.join(STAGES)}")
    if stage not in STAGES:
        raise typer.BadParameter(f"there is no stage '{stage}'; there are {', '.join(STAGES)}")
    applied = settings.layers_of(layers)
    operator = files.open_operator(file, op)
    files.deliver(_text(operator, stage, size, dtype, rank, applied, checked), output)


def _text(
    operator: Operator,
    stage: str,
    size: list[str] | None,
    dtype: list[str] | None,
    rank: list[str] | None,
    layers: tuple[str, ...],
    checked: bool,
) -> str:
    choice = settings.choice(operator, size, dtype, rank)
    if stage == "ast":
        return "\n".join(_tree(operator.op, ""))
    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    if stage in _OPEN:
        specialized = operator.specialize(choice.dtypes, choice.ranks, **choice.sizes)
        return str(specialized if stage == "graph" else schedule(specialized, layers))
    kernels = lowered(operator, choice, layers, checked)
    if stage == "kernels":
        return str(kernels)
    if stage == "plan":
        return str(kernels.code().plan)
    if stage == "loops":
        from polyfuse.runtime.report import loops_text

        return loops_text(kernels.ir)
    return kernels.code().source


def schedule(specialized: object, layers: tuple[str, ...]) -> object:
    """The schedule after the layers asked for."""
    from polyfuse.cli.compiler import LoopFusion

    unfused = specialized.schedule()  # type: ignore[attr-defined]
    return unfused.apply(LoopFusion()) if "loop" in layers else unfused


def lowered(
    operator: Operator, choice: settings.Choice, layers: tuple[str, ...], checked: bool = False
) -> Kernels:
    """The kernels at known sizes; sizes not given are chosen, with a note."""
    from polyfuse.cli.compiler import Options, Stitching
    from polyfuse.runtime.inputs import default_sizes

    graph = operator.graph(choice.dtypes, choice.ranks)
    sizes = default_sizes(graph, choice.sizes)
    assumed = [f"{n}={v}" for n, v in sizes.items() if n not in choice.sizes]
    if assumed:
        screen.note(f"sizes not given: {', '.join(assumed)} (choose with --size)")
    specialized = operator.specialize(choice.dtypes, choice.ranks, **sizes)
    kernels: Kernels = schedule(specialized, layers).lower(Options(checked=checked))  # type: ignore[attr-defined]
    return kernels.apply(Stitching()) if "stitch" in layers else kernels


def _tree(node: object, indent: str, label: str = "") -> Iterator[str]:
    """A syntax tree, one node a line; places in the text are left out."""
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        yield f"{indent}{label}{node!r}"
        return
    plain, inner = [], []
    for f in dataclasses.fields(node):
        value = getattr(node, f.name)
        if "span" in f.name or f.name in ("source", "comments"):
            continue
        if dataclasses.is_dataclass(value) or (isinstance(value, tuple) and value):
            inner.append((f.name, value))
        elif value not in (None, ()):
            plain.append(f"{f.name}={value!r}")
    yield f"{indent}{label}{type(node).__name__}{' ' if plain else ''}{', '.join(plain)}"
    for name, value in inner:
        if not isinstance(value, tuple):
            yield from _tree(value, indent + "  ", f"{name}: ")
            continue
        yield f"{indent}  {name}:"
        for child in value:
            yield from _tree(child, indent + "    ")
