"""The contenders of `benchmarks.operator_peers`, each in a process of its own.

{"do": "prepare", "kind", "case", "folder"} -> number of results; those of a first call are in the folder
{"do": "turn"}                              -> seconds of the fastest call in a turn
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.operators import CASES, Case
from benchmarks.turns import OURS, fastest, limit_cores, serve

Made = tuple[Callable[[], Any], Callable[[Any], list[Any]]]
"""A call, and what makes arrays of what it returned: results, then updated arguments."""


def ours(case: Case, given: Sequence[Any], threads: int) -> Made:
    """This project, called as its users do."""
    import polyfuse as pf

    options = pf.Options(threads=threads, progress=False)
    f = pf.compile(case.program(), case.operator, options=options)
    return lambda: f(*given), lambda found: [*_listed(found), *(given[k] for k in case.updated)]


def with_torch(case: Case, given: Sequence[Any], threads: int, compiled: bool) -> Made:
    """PyTorch; each case begins with nothing compiled, else later ones would be eager."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    arguments = [_tensor(torch, a) for a in given]
    plain = case.torch if compiled else (case.eager or case.torch)

    def function(*args: Any) -> Any:
        return plain(torch, torch.nn.functional, *args)

    f = function
    if compiled:
        torch._dynamo.reset()
        f = torch.compile(function, dynamic=False)

    def arrays(found: Any) -> list[Any]:
        outcomes = [*_listed(found), *(arguments[k] for k in case.updated)]
        return [(a.float() if a.dtype == torch.bfloat16 else a).numpy() for a in outcomes]

    return lambda: f(*arguments), arrays


def with_jax(case: Case, given: Sequence[Any]) -> Made:
    """jax.jit; what is updated is donated, and its new value passed on."""
    import jax

    jax.config.update("jax_enable_x64", any(a.dtype == np.float64 for a in given))
    arguments = [jax.numpy.array(a) for a in given]
    f = jax.jit(lambda *args: case.jax(jax, jax.numpy, *args), donate_argnums=case.updated)

    def call() -> Any:
        found = jax.block_until_ready(f(*arguments))
        for k, new in zip(case.updated, _listed(found), strict=False):
            arguments[k] = new
        return found

    return call, lambda found: [np.asarray(a) for a in _listed(found)]


def cases_of(kind: str) -> tuple[Case, ...]:
    """The cases of a table: `half`, or `ordinary`."""
    if kind == "half":
        from benchmarks.half_precision_cases import CASES as HALVES

        return HALVES
    return CASES


def made(peer: str, case: Case, threads: int) -> Made:
    """A contender's call of a case."""
    given = case.arguments()
    if peer == OURS:
        return ours(case, given, threads)
    if peer == "jax.jit":
        return with_jax(case, given)
    return with_torch(case, given, threads, peer == "compiled")


def _listed(found: Any) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _tensor(torch: Any, a: Any) -> Any:
    """PyTorch's from_numpy knows no bf16."""
    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _plain(a: Any) -> Any:
    """As a dtype that files know."""
    return np.asarray(a, "f4") if a.dtype.name == "bfloat16" else np.asarray(a)


class _Answers:
    """The case that is at turn, ready to be called."""

    def __init__(self, peer: str, threads: int) -> None:
        self._peer, self._threads = peer, threads
        self._call: Callable[[], Any] = lambda: None

    def to(self, command: dict[str, Any]) -> Any:
        if command["do"] == "turn":
            return fastest(self._call)
        self._call = lambda: None  # frees the last one's memory first
        self._call, arrays = made(self._peer, cases_of(command["kind"])[command["case"]], self._threads)
        outcomes = arrays(self._call())
        for k, a in enumerate(outcomes):
            np.save(Path(command["folder"]) / f"{k}.npy", _plain(a))
        return len(outcomes)


def versions(peer: str) -> dict[str, str]:
    """Of what a contender uses. Raises ImportError where it is missing."""
    import importlib

    name = {OURS: "polyfuse", "jax.jit": "jax"}.get(peer, "torch")
    return {name: importlib.import_module(name).__version__}


def main(peer: str, threads: int, inbox: int, outbox: int) -> None:
    """Answer commands until the pipe is closed."""

    def begin() -> tuple[Any, Any]:
        limit_cores(threads)
        return versions(peer), _Answers(peer, threads).to

    serve(inbox, outbox, begin)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
