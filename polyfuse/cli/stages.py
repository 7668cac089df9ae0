"""`polyfuse emit`: what an operator is after a stage of the compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import files, screen, settings

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Kernels, Operator, Options

STAGES = (
    "ast", "graph", "schedule", "kernels", "schemes", "plan", "loops", "cpp", "cuda", "ptx", "resources",
)  # fmt: skip
_OPEN = ("ast", "graph", "schedule")  # make sense with sizes that are not known
_TARGET = {"cpp": "cpu", "cuda": "cuda", "ptx": "cuda", "resources": "cuda"}  # what a stage is of
_LATER = ("micro",)


def emit(
    file: settings.File,
    stage: Annotated[str, typer.Option(metavar="STAGE", help=" | ".join(STAGES))] = "schedule",
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    layers: settings.Layers = "loop,stitch,pack",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="What kernels, plan and loops are for: cpu, cuda, ...; see `polyfuse run`."
        ),
    ] = None,
    device: settings.Device = None,
    checked: Annotated[
        bool, typer.Option("--checked", metavar="", help="Check indices from data (stages plan, cpp, cuda).")
    ] = False,
    output: settings.Output = None,
) -> None:
    """Print an operator after a stage of the compiler.

    ast, graph and schedule leave sizes open that are not given; the later stages need them all and choose
    round numbers for the missing ones. cuda, ptx and resources (registers, spills, occupancy of each kernel)
    are made for --device, an H200 if it is not given, and need no GPU.

    Examples:

      polyfuse emit stdlib:softmax --stage graph

      polyfuse emit norms.pf --stage cpp -s T=64,H=128 -o out.cpp

      polyfuse emit stdlib:softmax --stage kernels --target cuda -s B_0=4096,H=1024

      polyfuse emit stdlib:softmax --stage ptx --device A100

      polyfuse emit stdlib:softmax --stage resources --device sm_90
    """
    made_for = _target_of(stage, target, device)
    applied = settings.layers_of(layers)
    operator = files.open_operator(file, op)
    choice = settings.choice(operator, size, dtype, rank)
    if stage in _OPEN:
        text = _early(operator, stage, choice, applied)
    else:
        from polyfuse.cli.compiler import Options

        options = Options(checked=checked, device=device)
        text = _late(lowered(operator, choice, applied, made_for, options), stage)
    files.deliver(text, output)


def _target_of(stage: str, target: str | None, device: str | None) -> str:
    """The target of a stage; wrong usage if there is no such stage, or it is not of the target asked for."""
    if stage in _LATER:
        raise typer.BadParameter(f"the stage {stage} is not built yet; there are {', '.join(STAGES)}")
    if stage not in STAGES:
        raise typer.BadParameter(f"there is no stage '{stage}'; there are {', '.join(STAGES)}")
    from polyfuse.cli.compiler import ON_GPU

    own = _TARGET.get(stage)
    found = settings.target_of(target or own or "auto", device)
    if own is not None and found != "auto" and (found in ON_GPU) != (own in ON_GPU):
        raise typer.BadParameter(f"the stage {stage} is of --target {own}, not of {found}")
    return own or found


def _early(operator: Operator, stage: str, choice: settings.Choice, layers: tuple[str, ...]) -> str:
    """A stage at which sizes may be open."""
    if stage == "ast":
        return "\n".join(_tree(operator.op, ""))
    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    specialized = operator.specialize(choice.dtypes, choice.ranks, **choice.sizes)
    return str(specialized if stage == "graph" else schedule(specialized, layers))


def _late(kernels: Kernels, stage: str) -> str:
    """A stage of known sizes."""
    from polyfuse.cli.compiler import ON_GPU
    from polyfuse.runtime.report import loops_text

    match stage:
        case "kernels":
            return str(kernels)
        case "schemes":
            return "\n".join([str(kernels.schemes()), *(f"dominant {d}" for d in kernels.dominants())])
        case "plan":
            return str(kernels.code().plan)
        case "loops":
            return loops_text(kernels.ir, kernels.target in ON_GPU)
        case "ptx":
            return kernels.ptx()
        case "resources":
            return str(kernels.resources())
        case _:
            return kernels.code().source


def schedule(
    specialized: object, layers: tuple[str, ...], target: str | None = None, options: object = None
) -> object:
    """The schedule after the layers asked for; for a target with what layer II makes of the graph."""
    from polyfuse.cli.compiler import LoopFusion

    unfused = specialized.schedule()  # type: ignore[attr-defined]
    if target is not None and "stitch" in layers:
        unfused = unfused.online(options, target=target)
    return unfused.apply(LoopFusion()) if "loop" in layers else unfused


def lowered(
    operator: Operator, choice: settings.Choice, layers: tuple[str, ...], target: str, options: Options
) -> Kernels:
    """The kernels at known sizes; sizes not given are chosen, with a note."""
    from polyfuse.cli.compiler import Packing, Stitching
    from polyfuse.runtime.inputs import default_sizes

    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    sizes = default_sizes(graph, choice.sizes)
    assumed = [f"{n}={v}" for n, v in sizes.items() if n not in choice.sizes]
    if assumed:
        screen.note(f"sizes not given: {', '.join(assumed)} (choose with --size)")
    specialized = operator.specialize(choice.dtypes, choice.ranks, **sizes)
    scheduled = schedule(specialized, layers, target, options)
    kernels: Kernels = scheduled.lower(options, target=target)  # type: ignore[attr-defined]
    kernels = kernels.apply(Stitching()) if "stitch" in layers else kernels
    return kernels.apply(Packing()) if "pack" in layers else kernels


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
