"""`polyfuse build`: an operator as a shared library, or as machine code of a GPU, with a C header."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from polyfuse.cli import completion, files, screen, settings
from polyfuse.options import BLAS, Blas

Whose = Annotated[
    str,
    typer.Option(
        metavar="WHOSE",
        help="Large matrix products: never (by kernels of the library), or caller (by functions of BLAS "
        "that the caller passes; for cpu).",
        autocompletion=completion.words(*BLAS),
    ),
]


def build(
    file: settings.File,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the library and its header go.")
    ] = ".",
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    layers: settings.Layers = "loop,stitch,pack",
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="TARGET", help="cpu, or cuda: cubins and their launches.")
    ] = "cpu",
    device: settings.Device = None,
    checked: Annotated[
        bool,
        typer.Option("--checked", metavar="", help="Calls fail where an index from data is out of range."),
    ] = False,
    blas: Whose = "never",
) -> None:
    """Write an operator as a library with a C header, for the CPU or a GPU.

    The library needs neither Python nor polyfuse. Sizes that are not given are arguments of the function.
    With --target cuda it is machine code for a GPU, a description of its launches, and a C header.

    Examples:

      polyfuse build stdlib:softmax -o out

      polyfuse build norms.pf --op layer_norm -s H=768 -o out

      polyfuse build stdlib:matmul -r B=0 -s M=512,N=512,K=512 --blas caller -o out

      polyfuse build stdlib:softmax --target cuda --device sm_90 -o out
    """
    from polyfuse.cli.compiler import Options, compile, export

    operator = files.open_operator(file, op, without)
    if operator.signature.is_open:
        operator = operator.without()
    choice = settings.choice(operator, size, dtype, rank)
    settings.check_sizes(operator, choice.sizes, operator.graph(choice.dtypes, choice.ranks).sizes)
    _check(target, device, blas)
    options = Options(checked=checked, device=device)
    made = settings.layers_of(layers)
    function = compile(operator, target="cuda" if target == "cuda" else "cpu", layers=made, options=options)
    path = Path(output, f"{operator.name}.{'so' if target == 'cpu' else 'json'}")
    with screen.working("compiling"):
        header = export(
            function,
            path,
            dtypes=choice.dtypes,
            ranks=choice.ranks,
            sizes=choice.sizes,
            blas=cast(Blas, blas),
        )
    screen.show(f"{path}\n{header}")


def _check(target: str, device: str | None, blas: str) -> None:
    """Refuse what operators cannot be written for."""
    if target not in ("cpu", "cuda"):
        raise typer.BadParameter(f"operators are written for cpu or cuda, not for {target}")
    if device is not None and target == "cpu":
        raise typer.BadParameter("--device is for --target cuda")
    settings.target_of(target, device)
    settings.one_of(blas, BLAS, f"--blas {blas}: nobody computes products so")
    if blas == "caller" and target == "cuda":
        raise typer.BadParameter("--blas caller is for --target cpu")
