"""Random programs as exported libraries and as machine code of a stand-in for a GPU: calls of what is loaded
back at many sizes against the reference, in several layouts of memory.  The long run:

    POLYFUSE_TEST_GROUPS=100:200 pytest -m slow tests/property/test_random_exported.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_stand_ins
import numpy as np
import pytest
from kinds import KINDS
from open_calls import check_call, random_sizes
from test_random_open_sizes import CALLS, FIRST, LAST, program_of

import polyfuse as pf
from polyfuse.driver import export, loaded
from polyfuse.driver.export import Request, request_of, write_grids, write_library
from polyfuse.driver.loaded import Loaded
from polyfuse.frontend_dsl.semantics.signature import Signature
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.cuda.compiler import Cubin

pytestmark = pytest.mark.filterwarnings("ignore::polyfuse.PolyfuseWarning")


class Called:
    """A loaded library, as checks of calls take functions."""

    def __init__(self, function: Loaded, signature: Signature) -> None:
        self.loaded, self.signature = function, signature

    def __call__(self, **given: Any) -> object:
        return self.loaded(**given)

    def explain(self, **given: Any) -> str:
        return "\n".join(self.loaded.variants)


class CalledOnGpu(Called):
    """The same with arrays on the device, which lie there as they do on the host."""

    def __call__(self, **given: Any) -> object:
        arrays = {n: a for n, a in given.items() if isinstance(a, np.ndarray) and a.ndim}
        there = {n: _there(a) for n, a in arrays.items()}
        found = self.loaded(**{**given, **there})
        for p in self.signature.params:
            if p.inout and p.name in there:
                np.copyto(arrays[p.name], there[p.name].elements)
        parts = found if isinstance(found, tuple) else (found,)
        made = tuple(getattr(x, "elements", x) for x in parts)
        return made if isinstance(found, tuple) else made[0]


def _there(a: Any) -> Any:
    driver = gpu_stand_ins._drivers[-1]
    if a.flags.c_contiguous:
        return gpu_stand_ins.tensor(driver, a)
    if a.T.flags.c_contiguous:
        return gpu_stand_ins.tensor(driver, a.T).permute(*reversed(range(a.ndim)))
    return gpu_stand_ins.tensor(driver, a.base)[..., 1::2]


def written(request: Request, graph: TensorGraph, sizes: dict[str, int], path: Path) -> dict[str, int]:
    """Write the library, with as few of these sizes fixed as it takes; which are."""
    fixed: dict[str, int] = {}
    write = write_grids if request.target == "cuda" else write_library
    while True:
        try:
            write(replace(request, graph=graph, fixed=fixed), path)
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


def check(kind: str, seed: int, folder: Path, target: Any = "cpu") -> None:
    text, graph = program_of(kind, seed)
    f = pf.compile(text, target=target, threads=2)
    first = next((s for s in random_sizes(graph, 20, seed, tries=400) if all(s.values())), None)
    if first is None:
        return
    request = request_of(f, None, None, None, seed % 2 == 0)
    path = folder / ("f.so" if target == "cpu" else "f.json")
    fixed = written(request, graph, first, path)
    g: Any = (Called if target == "cpu" else CalledOnGpu)(pf.load(path), f.signature)
    for k, sizes in zip(range(CALLS), calls(graph, fixed, first, seed), strict=False):
        how = ("", "turned", "stepped")[k % 3] if seed % 2 == 0 else ""
        try:
            check_call(g, graph, sizes, seed + k, how)
        except BaseException as error:
            error.add_note(f"{kind} {seed} at {sizes} with {fixed}\n{text}")
            raise


@pytest.mark.parametrize("kind", [*KINDS, "programs"])
@pytest.mark.thin(5)
def test_exported(kind: str, tmp_path: Path) -> None:
    check(kind, 0, tmp_path)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = gpu_stand_ins.use(monkeypatch)
    cubin = lambda source, *_, **__: Cubin(source.encode(), "", {}, "", "none")  # noqa: E731
    monkeypatch.setattr(export, "compile_cuda", cubin)
    monkeypatch.setattr(loaded, "open_driver", lambda: driver)
    monkeypatch.setitem(sys.modules, "torch", gpu_stand_ins.Torch(driver))


@pytest.mark.parametrize("kind", [*KINDS, "programs"])
@pytest.mark.thin(5)
def test_exported_for_a_gpu(kind: str, tmp_path: Path, gpu: None) -> None:
    check(kind, 2, tmp_path, "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("kind", [*KINDS, "programs"])
def test_many_exported_for_a_gpu(kind: str, seed: int, tmp_path: Path, gpu: None) -> None:
    check(kind, seed, tmp_path, "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("kind", [*KINDS, "programs"])
def test_many_exported(kind: str, seed: int, tmp_path: Path) -> None:
    check(kind, seed, tmp_path)
