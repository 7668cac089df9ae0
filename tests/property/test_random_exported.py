"""Random programs as exported libraries: calls of what is loaded back at many sizes against the reference, in
several layouts of memory.  The long run:

    POLYFUSE_TEST_GROUPS=100:200 pytest -m slow tests/property/test_random_exported.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kinds import KINDS
from open_calls import check_call, random_sizes
from test_random_open_sizes import CALLS, FIRST, LAST, program_of

import polyfuse as pf
from polyfuse.driver.export import Request, request_of, write_library
from polyfuse.driver.loaded import Loaded
from polyfuse.frontend_dsl.semantics.signature import Signature
from polyfuse.ir.tensor_graph import TensorGraph

pytestmark = pytest.mark.filterwarnings("ignore::polyfuse.PolyfuseWarning")


class Called:
    """A loaded library, as checks of calls take functions."""

    def __init__(self, loaded: Loaded, signature: Signature) -> None:
        self.loaded, self.signature = loaded, signature

    def __call__(self, **given: Any) -> object:
        return self.loaded(**given)

    def explain(self, **given: Any) -> str:
        return "\n".join(self.loaded.variants)


def written(request: Request, graph: TensorGraph, sizes: dict[str, int], path: Path) -> dict[str, int]:
    """Write the library, with as few of these sizes fixed as it takes; which are."""
    fixed: dict[str, int] = {}
    while True:
        try:
            write_library(replace(request, graph=graph, fixed=fixed), path)
            return fixed
        except pf.ArgumentError as error:
            if error.diagnostics[0].code != "PF766" or fixed == sizes:
                raise
            hint = str(error.diagnostics[0].hint)
            fixed = {n: v for n, v in sizes.items() if n in fixed or f"'{n}': " in hint} or sizes
            if not any(f"'{n}': " in hint for n in sizes):
                fixed = sizes


def calls(
    graph: TensorGraph, fixed: dict[str, int], first: dict[str, int], seed: int
) -> Iterator[dict[str, int]]:
    yield first
    for sizes in random_sizes(graph, 20 * CALLS, seed + 1, tries=2000):
        if all(sizes[n] == v for n, v in fixed.items()) and list(sizes.values()).count(0) <= 1:
            yield sizes


def check(kind: str, seed: int, folder: Path) -> None:
    text, graph = program_of(kind, seed)
    f = pf.compile(text, target="cpu", threads=2)
    first = next((s for s in random_sizes(graph, 20, seed, tries=400) if all(s.values())), None)
    if first is None:
        return
    request = request_of(pf.compile(text, target="cpu", threads=2), None, None, None, seed % 2 == 0)
    path = folder / "f.so"
    fixed = written(request, graph, first, path)
    g: Any = Called(pf.load(path), f.signature)
    for k, sizes in zip(range(CALLS), calls(graph, fixed, first, seed), strict=False):
        how = ("", "turned", "stepped")[k % 3] if seed % 2 == 0 else ""
        try:
            check_call(g, graph, sizes, seed + k, how)
        except BaseException as error:
            error.add_note(f"{kind} {seed} at {sizes} with {fixed}\n{text}")
            raise


@pytest.mark.parametrize("kind", [*KINDS, "programs"])
@pytest.mark.thin(3)
def test_exported(kind: str, tmp_path: Path) -> None:
    check(kind, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("kind", [*KINDS, "programs"])
def test_many_exported(kind: str, seed: int, tmp_path: Path) -> None:
    check(kind, seed, tmp_path)
