"""Kinds of machine that decisions are made for, whatever machine runs the tests.

    @pytest.mark.machine("zen3")          a test of a decision says which machine it speaks of
    pytest --machine zen3 tests/unit      any other test, as if it ran on such a machine

A kind has what decisions see of a processor: its features, family, caches, two threads and no measured
rates.  With `--machine` its code is compiled for such a processor too; where the processor at hand has no
AVX-512, that is emulated (`avx512`).  `--decisions` leaves the tests that look at decisions or at texts and
name no machine: `make machines` runs those as on other kinds.  `benchmarks.core_kinds` has
the kinds.

    pytest --answers FILE                              note what each test was told of the machine at hand
    pytest --answers FILE --decisions --machine zen3   and leave out those that a zen3 tells the same

A test that asks nothing, or gets the same answers, does the same on that machine.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path

import pytest
from avx512 import avx512_flags, can_emulate

from polyfuse.driver import targets
from polyfuse.runtime.toolchain import compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

from benchmarks.core_kinds import BYTES, KINDS, PAIRS, THREADS, CoreKind, answers_of, decided_for

__all__ = [
    "MACHINES",
    "THREADS",
    "Answers",
    "as_on",
    "decided_for",
    "is_left_out",
    "looks_at_decisions",
    "same_answers",
]

MACHINES = KINDS
# What gcc is told beside `-march=x86-64-v4`.
_FLAG = {BYTES: "-mavx512vnni", PAIRS: "-mavx512bf16"}


def flags_of(kind: CoreKind) -> tuple[str, ...]:
    """What makes g++ compile for it, on this machine; after all other flags."""
    if "avx512f" not in kind.features:
        return ("-march=x86-64-v3",)
    if kind.features <= compiler.cpu_features():
        return ("-march=x86-64-v4", *(flag for name, flag in _FLAG.items() if name in kind.features))
    return avx512_flags(PAIRS in kind.features)


# How tests get at decisions and texts.
_LOOKS = re.compile(
    r"\b(source|cpu_source|code|built|explain|decisions|told|why|ir|lower|estimate|core|this_core|table_cpu)\b"
)


def looks_at_decisions(test: pytest.Item) -> bool:
    """Does a test look at what was decided or at a text, without naming a machine?"""
    function = getattr(test, "function", None)
    if function is None or test.get_closest_marker("machine"):
        return False
    return bool(_LOOKS.search(inspect.getsource(function)))


class Answers:
    """A plugin: for each test function the kinds of machine that tell one of its tests otherwise than the
    machine at hand. Workers send them with their reports; whoever gets the reports writes the file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.asked: set[str] = set()
        self.found: dict[str, set[str]] = defaultdict(set)
        self.patch = pytest.MonkeyPatch()

    def pytest_sessionstart(self) -> None:
        for name in answers_of("zen3"):
            others = {kind: answers_of(kind)[name] for kind in MACHINES}
            self.patch.setattr(targets, name, self._watched(getattr(targets, name), others))

    def _watched(
        self, ask: Callable[..., object], others: dict[str, Callable[..., object]]
    ) -> Callable[..., object]:
        @wraps(ask)
        def watched(*args: object, **named: object) -> object:
            answer = ask(*args, **named)
            self.asked |= {kind for kind, other in others.items() if other(*args, **named) != answer}
            return answer

        return watched

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        self.asked = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append(("kinds", sorted(self.asked)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, kinds in report.user_properties:
            if name == "kinds" and isinstance(kinds, list):
                self.found[_function(report.nodeid)] |= set(kinds)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.patch.undo()
        if not hasattr(session.config, "workerinput"):
            found = {name: sorted(kinds) for name, kinds in sorted(self.found.items())}
            self.file.write_text(json.dumps(found, indent=0), encoding="utf-8")


def _function(test: str) -> str:
    return test.partition("[")[0]


def same_answers(file: Path, kind: str) -> Callable[[pytest.Item], bool]:
    """Was a test's function told what a machine of this kind tells, in the run that wrote the file?"""

    def same(test: pytest.Item) -> bool:
        function = _function(test.nodeid)
        return kind not in _noted(file).get(function.partition("::")[0], {}).get(function, [kind])

    return same


def is_left_out(file: Path, kind: str, module: str) -> bool:
    """Are there tests of a module in that run, all of whose functions were told the same?"""
    noted = _noted(file).get(module)
    return noted is not None and not any(kind in kinds for kinds in noted.values())


@cache
def _noted(file: Path) -> dict[str, dict[str, list[str]]]:
    """By module and function: on which kinds of machine they may do otherwise."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    if file.exists():
        for function, kinds in json.loads(file.read_text(encoding="utf-8")).items():
            found[function.partition("::")[0]][function] = kinds
    return found


@contextmanager
def compiled_with(flags: tuple[str, ...]) -> Iterator[None]:
    """The g++ on the PATH takes these flags for `-march=native` meanwhile."""
    real = shutil.which("g++")
    assert real is not None, "needs g++"
    words = [f'for word do shift; [ "$word" = -march=native ] && set -- "$@" {shlex.join(flags)}']
    words += ['|| set -- "$@" "$word"; done']
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        program = Path(folder) / "g++"
        program.write_text(f'#!/bin/sh\n{" ".join(words)}\nexec {shlex.quote(real)} "$@"\n')
        program.chmod(0o755)
        patch.setenv("PATH", folder, prepend=os.pathsep)
        patch.delenv("CXX", raising=False)
        yield


@contextmanager
def as_on(name: str) -> Iterator[None]:
    """Decisions and code meanwhile are those for a machine of this kind."""
    if not can_emulate():
        pytest.exit(f"--machine {name} needs gcc for a processor with AVX2", returncode=2)
    kind = MACHINES[name]
    with decided_for(name), compiled_with(flags_of(kind)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "cpu_features", lambda: kind.features)
        yield
