"""Inputs of a run: arrays from a file, ranges that are asked for, and seeded values for all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfuse.cli import screen, settings

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Operator
    from polyfuse.runtime.distributions import Distribution


Arrays = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="FILE.npz", help="Arrays for inputs, by name, as numpy.savez writes them."
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LO..HI",
        help="Values of an input, from LO up to HI (integers below HI); may be repeated.",
    ),
]


@dataclass(frozen=True)
class Wanted:
    """What was asked for: arrays, and the lowest and highest values of other inputs."""

    arrays: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def wanted(operator: Operator, file: str | None, ranges: Sequence[str] | None) -> Wanted:
    """The options --input and --range, checked against the operator. Usage errors exit with 2."""
    found = Wanted(_arrays(file) if file else {}, _ranges(ranges))
    names = [p.name for p in operator.signature.params]
    settings.known("--input", found.arrays, names, operator.name, "input")
    settings.known("--range", found.ranges, names, operator.name, "input")
    for name in found.ranges:
        if name in found.arrays:
            raise typer.BadParameter(f"--range {name}: --input has an array of that name")
    return found


def _arrays(file: str) -> dict[str, Any]:
    import zipfile

    import numpy as np

    try:
        if Path(file).exists() and not Path(file).is_file():
            raise OSError(None, "no regular file")  # opening a pipe would wait for a writer
        with np.load(file, allow_pickle=False) as loaded:
            if not hasattr(loaded, "files"):
                raise ValueError  # one array without a name
            return {n: loaded[n] for n in loaded.files}
    except OSError as error:
        raise typer.BadParameter(f"--input {file}: {error.strerror or error}") from None
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile):
        text = "no archive of named arrays, as numpy.savez(file, x=..., y=...) writes it"
        raise typer.BadParameter(f"--input {file}: it is {text}") from None


def _ranges(given: Sequence[str] | None) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, text in settings.pairs(given, "--range").items():
        try:
            low, high = map(float, text.split(".."))
        except ValueError:
            raise typer.BadParameter(f"--range {name}={text}: two numbers are expected, as 0..1") from None
        if not -float("inf") < low < high < float("inf"):
            raise typer.BadParameter(f"--range {name}={text}: from a number to a larger one")
        found[name] = (low, high)
    return found


# --- what follows for sizes and generics ------------------------------------------------------------------


def choice_for(operator: Operator, choice: settings.Choice, arrays: Mapping[str, Any]) -> settings.Choice:
    """The generics and sizes asked for, and those that arrays have."""
    from polyfuse.runtime.inputs import dtype_name

    signature = operator.signature
    generics = {n for n, _ in signature.generics}
    sizes, dtypes, ranks = dict(choice.sizes), dict(choice.dtypes), dict(choice.ranks)
    for p in (p for p in signature.params if p.name in arrays):
        array = arrays[p.name]
        if p.dtype in generics and (name := dtype_name(array)) is not None:
            dtypes.setdefault(p.dtype, name)
        if len(p.rank_variables) == 1 and array.ndim >= p.axes:
            ranks.setdefault(p.rank_variables[0], array.ndim - p.axes)
    graph = operator.graph(dtypes, ranks)
    for t in map(graph.tensor, graph.inputs):
        extents = getattr(arrays.get(t.name), "shape", ())
        for e, n in zip(t.shape, extents, strict=False):
            if str(e) in graph.sizes:
                sizes.setdefault(str(e), n)
    return settings.Choice(sizes, dtypes, ranks)


def make(graph: Any, sizes: Mapping[str, int], seed: int, asked: Wanted) -> dict[str, Any]:
    """All inputs. What is chosen so that results are numbers is said on standard error."""
    from polyfuse.runtime.arguments import check_array
    from polyfuse.runtime.distributions import exactly, suitable
    from polyfuse.runtime.inputs import make_inputs

    chosen = {n: _distribution(graph.tensor(n), low, high) for n, (low, high) in asked.ranges.items()}
    for t in (graph.tensor(n) for n in asked.arrays):
        chosen[t.name] = exactly(check_array(t, _native(t, asked.arrays[t.name]), sizes))
    found = suitable(graph, sizes, seed, chosen, whole=bool(asked.arrays))
    if found:
        texts = ", ".join(f"{n} {d.text}" for n, d in found.items())
        screen.note(f"values chosen so that results are numbers: {texts} (choose with --range or --input)")
    return make_inputs(graph, sizes, seed, {**chosen, **found})


def _native(t: Any, array: Any) -> Any:
    """An array as an operator takes it: files know no bf16, whose numbers they hold as two bytes, and indices
    may have fewer bits."""
    if t.dtype.name == "i64" and array.dtype.kind in "iu" and array.dtype.itemsize < t.dtype.bytes:
        return array.astype(t.dtype.numpy)
    if array.dtype.kind == "V" and array.dtype.itemsize == t.dtype.numpy.itemsize:
        return array.view(t.dtype.numpy)
    return array


def _distribution(t: Any, low: float, high: float) -> Distribution:
    from polyfuse.runtime.distributions import between

    if t.dtype.is_bool:
        raise typer.BadParameter(f"--range {t.name}: it is of bool, which has no range")
    if t.dtype.is_float:
        return between(low, high)
    if low != int(low) or high != int(high):
        raise typer.BadParameter(f"--range {t.name}: it is of {t.dtype}, so its range is of integers")
    import numpy as np

    limits = np.iinfo(t.dtype.numpy)
    if low < limits.min or high > int(limits.max) + 1:
        raise typer.BadParameter(f"--range {t.name}: numbers of {t.dtype} are {limits.min}..{limits.max}")
    return replace(between(low, high), draw=lambda random, shape: random.integers(int(low), int(high), shape))
