"""What the shell offers while a command line is typed: files, operators, sizes, stages, targets.

A completer reads the file that is named already, through the parser alone; a file that is wrong or missing
offers nothing. `polyfuse --install-completion` asks the shell to use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from polyfuse.cli.files import LIBRARY
from polyfuse.diagnostics import PolyfuseError

if TYPE_CHECKING:
    from polyfuse.cli.compiler import ast


def words(*given: str) -> Callable[[str], list[str]]:
    """Completes one of some words."""
    return lambda incomplete: _beginning(given, incomplete)


def listed(*given: str) -> Callable[[str], list[str]]:
    """Completes the last word of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        used = before.split(",")
        return [before + comma + w for w in given if w.startswith(last) and w not in used]

    return complete


def programs(incomplete: str) -> list[str]:
    """Folders, .pf files, and operators of the standard library as `stdlib:softmax`."""
    return [*paths(incomplete), *_beginning(_library(incomplete), incomplete)]


def paths(incomplete: str) -> list[str]:
    """Folders and .pf files."""
    folder, _, begin = incomplete.rpartition("/")
    shown = f"{folder}/" if "/" in incomplete else ""
    try:
        inside = sorted(Path(shown or ".").iterdir())
    except OSError:
        return []
    found = [p for p in inside if p.name.startswith(begin) and (begin or not p.name.startswith("."))]
    return [f"{shown}{p.name}{'/' if p.is_dir() else ''}" for p in found if p.is_dir() or p.suffix == ".pf"]


def programs_and_codes(incomplete: str) -> list[str]:
    """The same, and the codes of errors."""
    from polyfuse.cli.pages import titles

    codes = _beginning(titles(), incomplete) if incomplete.upper().startswith("PF") else []
    return [*codes, *programs(incomplete)]


def library_operators(incomplete: str) -> list[str]:
    """Operators of the standard library."""
    from polyfuse.cli.compiler import standard_programs

    return _beginning((op.name for p in standard_programs() for op in p.ops), incomplete)


def _library(incomplete: str) -> list[str]:
    if not incomplete.startswith(LIBRARY):
        return [LIBRARY] if LIBRARY.startswith(incomplete) else []
    return [LIBRARY + name for name in library_operators(incomplete.removeprefix(LIBRARY))]


def operators(ctx: typer.Context, incomplete: str) -> list[str]:
    """Operators of the file that is named."""
    return _beginning((op.name for op in _ops(ctx)), incomplete)


def sizes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Sizes of the operator that is named, as `T=`; those of `B...` are `B_0=`, `B_1=`."""
    from polyfuse.cli.compiler import signature

    found: list[str] = []
    for op in _chosen(ctx):
        known = signature(op)
        found += [f"{v}_0" for v in known.rank_variables]
        found += [n for n in known.sizes if n not in known.rank_variables]
    return _assignments(found, incomplete)


def dtypes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Generic types of the operator, as `F=`, then dtypes."""
    from polyfuse.cli.compiler import DTYPES, signature

    before, equals, _ = incomplete.rpartition("=")
    if equals:
        return _beginning((f"{before}={t}" for t in DTYPES), incomplete)
    names = [n for op in _chosen(ctx) for n, _ in signature(op).generics]
    return _assignments(names, incomplete)


def ranks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Rank variables of the operator, as `B=`."""
    from polyfuse.cli.compiler import signature

    return _assignments([v for op in _chosen(ctx) for v in signature(op).rank_variables], incomplete)


def optionals(ctx: typer.Context, incomplete: str) -> list[str]:
    """Optional tensors of the operator."""
    return _beginning((p.name for op in _chosen(ctx) for p in op.params if p.optional), incomplete)


def _assignments(names: Sequence[str], incomplete: str) -> list[str]:
    """`NAME=` for each name that the list does not have yet."""
    before, comma, last = incomplete.rpartition(",")
    used = {part.partition("=")[0] for part in before.split(",")}
    fresh = [n for n in dict.fromkeys(names) if n not in used]
    return [f"{before}{comma}{n}=" for n in fresh if f"{n}=".startswith(last)]


def _ops(ctx: typer.Context) -> tuple[ast.OpDef, ...]:
    """The operators of the file that the command line names."""
    from polyfuse.cli.compiler import load_file, standard_programs

    # Behind an option that waits for its value, arguments are left as they were found.
    file = ctx.params.get("file") or next((a for a in ctx.args if not a.startswith("-")), None)
    if not isinstance(file, str) or file == "-":
        return ()
    if file.startswith(LIBRARY):
        name = file.removeprefix(LIBRARY)
        return tuple(op for p in standard_programs() for op in p.ops if op.name == name)
    try:
        return load_file(file).main.ops
    except (OSError, PolyfuseError):
        return ()


def _chosen(ctx: typer.Context) -> tuple[ast.OpDef, ...]:
    """The operator that --op names, else the last one."""
    found, name = _ops(ctx), ctx.params.get("op")
    return tuple(op for op in found if op.name == name) if name else found[-1:]


def _beginning(given: Iterable[str], incomplete: str) -> list[str]:
    return [w for w in given if w.lower().startswith(incomplete.lower())]
