"""Eight times as many errors, constraints or statements on a line take the front end eight times as long."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pytest

import polyfuse as pf

HEAD = "op f(x: f32[N]) -> (y: f32[N])"
LAST = "y[i] = x[i] }"


def many(line: str, joint: str = "\n") -> Callable[[int], str]:
    """An operator of so many lines."""
    return lambda n: f"{HEAD} {{ {joint.join(line.format(k) for k in range(n))}{joint}{LAST}"


def operators(line: str, joint: str = "\n") -> Callable[[int], str]:
    return lambda n: joint.join([*[line.format(k) for k in range(n)], f"{HEAD} {{ {LAST}"])


def sizes(constraint: str, *more: str) -> Callable[[int], str]:
    """An operator of so many sizes, with a constraint on each."""

    def text(n: int) -> str:
        params = ", ".join(f"x{k}: f32[N{k}]" for k in range(n + 1))
        where = ", ".join([*[constraint.format(k, k + 1) for k in range(n)], *more])
        return f"op f({params}) -> (y: f32[N0]) where {where} {{ y[i] = x0[i] }}"

    return text


FAMILIES = {
    "unknown names": many("t{0}[i] = q{0}[i]"),
    "unknown names on a line": many("t{0}[i] = q{0}[i]", "; "),
    "misspelt names": many("tensor{0}[i] = tensr{0}[i]"),
    "unknown functions": many("t{0} = g{0}(x)"),
    "misspelt operators": lambda n: (
        "\n".join(f"op helper{k}(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] }}" for k in range(n))
        + f"\n{HEAD} {{\n"
        + "\n".join(f"t{k} = heler{k}(x)" for k in range(n))
        + f"\n{LAST}"
    ),
    "wrong types": many("t{0}[i] = x[i] and x[i]"),
    "ranks": many("t{0}[i] = x[i, i]"),
    "elements defined twice": many("t[i] = x[i]"),
    "results that are not defined": lambda n: (
        f"op f(x: f32[N]) -> ({', '.join(f'y{k}: f32[N]' for k in range(n))}) {{ y0[i] = x[i] }}"
    ),
    "operators with an error": operators("op g{0}(x: f32[N]) -> (y: f32[N]) {{ y[i] = q[i] }}"),
    "operators on a line": operators("op g{0}(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] }}", " "),
    "statements on a line": many("t{0}[i] = x[i] + 1.0", "; "),
    "comments": many("t{0}[i] = x[i]  # {0}"),
    "misspelt generics": lambda n: (
        f"op f[{', '.join(f'F{k}: float' for k in range(n))}]("
        + f"{', '.join(f'x{k}: G{k}[N]' for k in range(n))}) -> (y: f32[N]) {{ y[i] = 1.0 }}"
    ),
    "bounds of a size": lambda n: f"{HEAD} where {', '.join(f'N >= {k}' for k in range(n))} {{ {LAST}",
    "bounds of sizes": sizes("N{0} >= 1"),
    "sizes in order": sizes("N{0} <= N{1}"),
    "one size above all": sizes("N{0} <= N", "N >= 1"),
    "values of sizes": sizes("N{0} == {1}"),
    "unknown sizes": lambda n: f"{HEAD} where {', '.join(f'M{k} >= {k}' for k in range(n))} {{ {LAST}",
}


def seconds(text: str) -> float:
    """Of the processor, to read a program."""
    start = time.process_time()
    try:
        pf.parse(text)
    except pf.PolyfuseError as e:
        assert e.diagnostics
    return time.process_time() - start


@pytest.mark.parametrize("name", FAMILIES)
def test_eight_times_as_much_takes_eight_times_as_long(name: str) -> None:
    text = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        least = min(seconds(text(60)) for _ in range(3))
        assert min(seconds(text(480)) for _ in range(2)) < 14 * least


def test_hints_of_the_first_hundred_unknown_names_are_there() -> None:
    with pytest.raises(pf.PolyfuseError) as e:
        pf.parse(FAMILIES["misspelt names"](100))
    found = [d.hint or "" for d in e.value.diagnostics]
    assert len(found) == 100
    assert sum("did you mean" in hint for hint in found) >= 90
