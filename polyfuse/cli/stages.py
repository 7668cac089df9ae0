"""`polyfuse emit`: what an operator is after a stage of the compiler; `polyfuse grad`: its gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import completion, files, screen, settings
from polyfuse.options import ON_GPU, TARGETS

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Kernels, Operator, Options, Specialized


STAGES = (
    "ast", "graph", "micro", "schedule", "kernels", "schemes", "plan", "loops", "cpp", "cuda", "ptx",
    "resources",
)  # fmt: skip
_OPEN = ("ast", "graph", "schedule")  # make sense with sizes that are not known
_TARGET = {"cpp": "cpu", "cuda": "cuda", "ptx": "cuda", "resources": "cuda"}  # what a stage is of


def emit(
    file: settings.File,
    stage: Annotated[
        str, typer.Option(metavar="STAGE", help=" | ".join(STAGES), autocompletion=completion.words(*STAGES))
    ] = "schedule",
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    layers: settings.Layers = "loop,stitch,pack",
    partition: settings.Partition = "connect",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="What kernels, plan and loops are for: cpu, cuda, ...; see `polyfuse run`.",
            autocompletion=completion.words(*TARGETS),
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
    are made for --device, an H200 if it is not given, and need no GPU. micro has the clusters that a graph is
    cut into, and in each the micro-graphs of Apollo's rules.

    Examples:

      polyfuse emit stdlib:softmax --stage graph

      polyfuse emit norms.pf --stage cpp -s T=64,H=128 -o out.cpp

      polyfuse emit stdlib:softmax --stage kernels --target cuda -s B_0=4096,H=1024

      polyfuse emit stdlib:softmax --stage ptx --device A100

      polyfuse emit stdlib:softmax --stage resources --device sm_90
    """
    made_for = _target_of(stage, target, device)
    applied = settings.layers_of(layers)
    cut = settings.partition_of(partition, applied)
    if stage == "schedule" and cut == "search":
        raise typer.BadParameter(
            "the stage schedule is of one graph: --partition connect or rules; see micro"
        )
    operator = files.open_operator(file, op, without)
    choice = settings.choice(operator, size, dtype, rank)
    if stage in _OPEN:
        text = _early(operator, stage, choice, applied, cut)
    else:
        from polyfuse.cli.compiler import Options, micro_text

        options = Options(checked=checked, device=device)
        if stage == "micro":
            text = micro_text(at_sizes(operator, choice), cut, options, made_for)  # type: ignore[arg-type]
        else:
            text = _late(lowered(operator, choice, applied, made_for, options, cut), stage)
    files.deliver(text, output)


def _target_of(stage: str, target: str | None, device: str | None) -> str:
    """The target of a stage; wrong usage if there is no such stage, or it is not of the target asked for."""
    settings.one_of(stage, STAGES, f"there is no stage '{stage}'")
    own = _TARGET.get(stage)
    found = settings.target_of(target or own or "auto", device)
    if own is not None and found != "auto" and (found in ON_GPU) != (own in ON_GPU):
        raise typer.BadParameter(f"the stage {stage} is of --target {own}, not of {found}")
    return own or found


def _early(
    operator: Operator, stage: str, choice: settings.Choice, layers: tuple[str, ...], partition: str
) -> str:
    """A stage at which sizes may be open."""
    if stage == "ast":
        return "\n".join(_tree(operator.op, ""))
    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    specialized = operator.specialize(choice.dtypes, choice.ranks, **choice.sizes)
    return str(specialized if stage == "graph" else schedule(specialized, layers, partition))


def _late(kernels: Kernels, stage: str) -> str:
    """A stage of known sizes."""
    from polyfuse.runtime.report import loops_text

    match stage:
        case "kernels":
            return str(kernels)
        case "schemes":
            return "\n".join([str(kernels.schemes()), *(f"dominant {d}" for d in kernels.dominants())])
        case "plan":
            return "\n".join([*kernels.plans(), str(kernels.code().plan)])
        case "loops":
            return loops_text(kernels.ir, kernels.target in ON_GPU)
        case "ptx":
            return kernels.ptx()
        case "resources":
            return str(kernels.resources())
        case _:
            return kernels.code().source


def schedule(specialized: object, layers: tuple[str, ...], partition: str = "connect") -> object:
    """The schedule of one graph after the layers asked for."""
    from polyfuse.cli.compiler import LoopFusion

    unfused = specialized.schedule()  # type: ignore[attr-defined]
    fusion = LoopFusion(partition="rules" if partition == "rules" else "whole")
    return unfused.apply(fusion) if "loop" in layers else unfused


def at_sizes(operator: Operator, choice: settings.Choice) -> Specialized:
    """The operator at known sizes; those that are not given are chosen, with a note."""
    return operator.specialize(choice.dtypes, choice.ranks, **sizes_of(operator, choice))


def sizes_of(operator: Operator, choice: settings.Choice) -> dict[str, int]:
    """All sizes; those that are not given are chosen, with a note."""
    from polyfuse.runtime.inputs import default_sizes

    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    sizes = default_sizes(graph, choice.sizes)
    assumed = [f"{n}={v}" for n, v in sizes.items() if n not in choice.sizes]
    if assumed:
        screen.note(f"sizes not given: {', '.join(assumed)} (choose with --size)")
    return sizes


def lowered(
    operator: Operator,
    choice: settings.Choice,
    layers: tuple[str, ...],
    target: str,
    options: Options,
    partition: str = "connect",
) -> Kernels:
    """The kernels at known sizes."""
    from polyfuse.cli.compiler import kernels_by

    return kernels_by(at_sizes(operator, choice), partition, layers, options, target)  # type: ignore[arg-type]


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


# --- gradients ---------------------------------------------------------------------------------------------


def grad(
    file: settings.File,
    op: settings.Op = None,
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Inputs to differentiate by, as x,y; all tensors of floats without it."
        ),
    ] = None,
    of: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Results whose gradients are given; all of floats without it."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A value that the forward operator returns.")
    ] = None,
    recompute: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A value that is computed again.")
    ] = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    output: settings.Output = None,
) -> None:
    """Print the gradient of an operator, as an operator of the language.

    Where values of the operator are kept for the gradient, an operator that returns them comes first.
    Comments say what is kept and what is computed again. What is printed is a program.

    Examples:

      polyfuse grad stdlib:softmax

      polyfuse grad norms.pf --op layer_norm --wrt x,gamma

      polyfuse grad stdlib:layer_norm -d F=f16 --recompute mu -o layer_norm_gradient.pf
    """
    from polyfuse.cli.compiler import grad as differentiate

    operator = files.open_operator(file, op, without)
    choice = settings.choice(operator, size, dtype, rank)
    pair = differentiate(
        operator,
        _names(wrt),
        of=_names(of),
        dtypes=choice.dtypes,
        ranks=choice.ranks,
        sizes=choice.sizes,
        keep=_names(keep) or (),
        recompute=_names(recompute) or (),
    )
    remarks = "".join(f"# {line}\n" for line in pair.explain().splitlines())
    programs = (pair.forward.program, pair.backward.program) if pair.kept else (pair.backward.program,)
    files.deliver(remarks + "\n".join(map(str, programs)), output)


def _names(given: list[str] | None) -> tuple[str, ...] | None:
    """Names that commas separate, or several options."""
    return None if given is None else tuple(n.strip() for text in given for n in text.split(",") if n.strip())
