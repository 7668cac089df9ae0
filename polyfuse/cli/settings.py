"""Options that several commands have, and the reading of NAME=VALUE lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import completion
from polyfuse.diagnostics import nearest
from polyfuse.options import COST, LAYERS, ON_GPU, PARTITIONS, TARGETS, TUNE

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Operator


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A .pf file, - for standard input, or stdlib:OPERATOR.",
        autocompletion=completion.programs,
    ),
]
FileOrCode = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="As for `run`, or the code of an error: PF402.",
        autocompletion=completion.programs_and_codes,
    ),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Files, or folders with .pf files; - is standard input.",
        autocompletion=completion.paths,
    ),
]
Op = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The operator; without it, the last one of the file.",
        autocompletion=completion.operators,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        "-s",
        metavar="NAME=N",
        help="A size, as T=4096; may be repeated.",
        autocompletion=completion.sizes,
    ),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        "-d",
        metavar="NAME=DTYPE",
        help="The type of a generic, as F=f16.",
        autocompletion=completion.dtypes,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="An optional tensor that is absent; may be repeated.",
        autocompletion=completion.optionals,
    ),
]
Ranks = Annotated[
    list[str] | None,
    typer.Option(
        "--rank",
        "-r",
        metavar="NAME=N",
        help="How many axes B... stands for, as B=2; 1 if not given.",
        autocompletion=completion.ranks,
    ),
]
Layers = Annotated[
    str,
    typer.Option(
        metavar="LAYERS",
        help="What fuses: loop (I), stitch (II), pack (III), several of them, or none.",
        autocompletion=completion.listed(*LAYERS, "none"),
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What may fuse: connect (what large tensors connect), rules (Apollo's micro-graphs) or search "
        "(the patterns that the cost model likes best).",
        autocompletion=completion.words(*PARTITIONS),
    ),
]
Tune = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Among variants of the code: model (the cost model's choice) or measure (the fastest one).",
        autocompletion=completion.words(*TUNE),
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="Which model tells how long variants take: projected, learned (it names one, or those that are "
        "measured) or auto (the better one says what is measured).",
        autocompletion=completion.words(*COST),
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="A plan that `polyfuse tune` wrote, or `Compiled.keep_tuning`: it is taken."
    ),
]
Checked = Annotated[
    bool, typer.Option("--checked", metavar="", help="An index from data out of range is an error.")
]
Library = Annotated[
    str,
    typer.Option(
        metavar="WHEN",
        help="Matrix products by BLAS or cuBLAS: auto (where that is faster), always (wherever it can be) or "
        "never.",
        autocompletion=completion.words("auto", "always", "never"),
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="auto (a GPU if there is one, else the CPU), cpu, cuda, emulate (CUDA on the CPU, looking for "
        "races), or interpret (no compiler needed, slow).",
        autocompletion=completion.words(*TARGETS),
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="GPU", help="The GPU that kernels are made for, as H200, A100, or sm_90."),
]
Resident = Annotated[
    int | None,
    typer.Option(
        "--resident", metavar="N", min=1, help="Blocks that the emulator's device holds at once; else all."
    ),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of the terminal."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """The generics and sizes asked for."""

    sizes: dict[str, int]
    dtypes: dict[str, str]
    ranks: dict[str, int]


def choice(
    operator: Operator, sizes: list[str] | None, dtypes: list[str] | None, ranks: list[str] | None
) -> Choice:
    """The NAME=VALUE options of a command, checked against the operator. Usage errors exit with 2."""
    from polyfuse.runtime.inputs import dtype_names

    signature = operator.signature
    found = pairs(dtypes, "--dtype")
    known("--dtype", found, [n for n, _ in signature.generics], operator.name, "generic type")
    for name, value in found.items():
        if value not in dtype_names():
            raise typer.BadParameter(f"{name}={value}: a type is one of {', '.join(dtype_names())}")
    lengths = _numbers(ranks, "--rank")
    known("--rank", lengths, signature.rank_variables, operator.name, "rank variable")
    return Choice(_numbers(sizes, "--size"), found, lengths)


def check_sizes(operator: Operator, given: dict[str, int], names: Sequence[str]) -> None:
    """Every size given is one of the operator's."""
    known("--size", given, names, operator.name, "size")


def known(option: str, given: Iterable[str], names: Sequence[str], op: str, what: str) -> None:
    """Every name given to an option is one of the operator's."""
    for name in given:
        if name not in names:
            have = f"it has {', '.join(names)}" if names else "it has none"
            raise typer.BadParameter(f"{option}: {op} has no {what} '{name}'; {have}")


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE lists of an option, the values as text."""
    found: dict[str, str] = {}
    for part in [p for g in given or () for p in g.split(",")]:
        name, equals, value = (x.strip() for x in part.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not '{part}'")
        if name in found:
            raise typer.BadParameter(f"{option} gives {name} twice")
        found[name] = value
    return found


def _numbers(given: Sequence[str] | None, option: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in pairs(given, option).items():
        if not (value.isascii() and value.replace("_", "").isdecimal()):
            raise typer.BadParameter(f"{option} {name}={value}: a number from 0 on is expected")
        found[name] = int(value)
    return found


def one_of(text: str, words: Sequence[str], what: str) -> str:
    """A word of several, of which `what` says that it is none. Usage errors exit with 2."""
    if text not in words:
        near = nearest(text.lower(), words)
        meant = f"did you mean {near}? There are" if near else "there are"
        raise typer.BadParameter(f"{what}; {meant} {', '.join(words)}")
    return text


def layers_of(text: str) -> tuple[str, ...]:
    """`loop,stitch,pack`, some of them, or `none` as the layers of a compilation."""
    names = tuple(x.strip() for x in text.split(",") if x.strip())
    if names == ("none",) or not names:
        return ()
    return tuple(one_of(n, (*LAYERS, "none"), f"there is no layer '{n}'") for n in names)


def partition_of(text: str, layers: tuple[str, ...]) -> str:
    """A partition by name, which must be one of the layers asked for."""
    one_of(text, PARTITIONS, f"there is no partition '{text}'")
    if text == "rules" and "loop" not in layers:
        raise typer.BadParameter("--partition rules is how layer I fuses: --layers must name loop")
    return text


def tune_of(text: str, target: str) -> str:
    """How variants are chosen; those of code for a CPU or a GPU can be measured."""
    one_of(text, TUNE, f"there is no way '{text}' to tune")
    if text == "measure" and target not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter("--tune measure is for --target cpu or cuda")
    return text


def cost_of(text: str, target: str) -> str:
    """Which model tells how long variants of the code take; one was trained on code for a CPU."""
    one_of(text, COST, f"there is no model of cost '{text}'")
    if text == "learned" and target not in ("auto", "cpu"):
        raise typer.BadParameter("--cost learned is for --target cpu")
    return text


def path_of(text: str | None) -> Path | None:
    """A file that an option names."""
    return Path(text) if text else None


def target_of(text: str, device: str | None = None, resident: int | None = None) -> str:
    """A target, and whether the options that only some targets have are right for it."""
    one_of(text, TARGETS, f"there is no target '{text}'")
    if device is not None and text not in ON_GPU:
        raise typer.BadParameter(f"--device is for kernels of a GPU, --target {' or '.join(ON_GPU)}")
    if resident is not None and text != "emulate":
        raise typer.BadParameter("--resident is for --target emulate")
    if device is not None:
        _require_device(device)
    return text


def _require_device(text: str) -> None:
    from polyfuse.cli.compiler import Options, ToolchainError, chip

    try:
        chip(Options(device=text))
    except ToolchainError as error:
        (found,) = error.diagnostics
        raise typer.BadParameter(f"--device {text}: {found.message}; {found.hint}") from None
