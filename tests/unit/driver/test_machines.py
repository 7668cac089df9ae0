"""Kinds of machine that tests speak of, whatever machine runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from avx512 import can_emulate
from machines import (
    MACHINES,
    THREADS,
    Answers,
    as_on,
    decided_for,
    is_left_out,
    looks_at_decisions,
    same_answers,
)

from polyfuse.driver import targets
from polyfuse.driver import targets as estimates
from polyfuse.ir.cpu_core import AVX2
from polyfuse.ir.target import CpuTarget
from polyfuse.options import Options
from polyfuse.runtime.toolchain import compiler

ROOT = Path(__file__).resolve().parents[3]
SOURCE = 'extern "C" int lanes() {\n#if defined(__AVX512F__)\nreturn 16;\n#else\nreturn 8;\n#endif\n}\n'


@pytest.mark.parametrize("kind", MACHINES)
def test_decisions_are_those_of_the_kind(kind: str) -> None:
    with decided_for(kind):
        core = estimates.this_core()
        cpu = estimates.this_cpu()
        target = targets.mapped_for("cpu", Options())
    wanted = MACHINES[kind]
    assert (core.l1, core.l2) == (wanted.caches.l1, wanted.caches.l2)
    assert cpu.levels[2].capacity == wanted.caches.l3 and not cpu.measured
    assert target == CpuTarget(THREADS) and cpu.threads == THREADS
    wide = "avx512f" in wanted.features
    assert core.vector_bytes == (64 if wide else AVX2.vector_bytes)


@pytest.mark.machine("zen3")
def test_a_marked_test_asks_no_other_machine() -> None:
    assert estimates.this_core().l2 == MACHINES["zen3"].caches.l2


@pytest.mark.skipif(not can_emulate(), reason="needs gcc for a processor with AVX2")
@pytest.mark.parametrize("kind", ["haswell", "skylake"])
def test_code_is_compiled_for_the_kind(kind: str) -> None:
    with as_on(kind):
        lanes = compiler.load_shared(SOURCE, plain=True).lanes()
    assert lanes == (16 if "avx512f" in MACHINES[kind].features else 8)


def test_the_option_takes_a_kind() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--machine", "z80", __file__], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 4 and "there is no 'z80', one of haswell, zen3" in done.stderr + done.stdout


def test_tests_of_decisions_are_found(request: pytest.FixtureRequest) -> None:
    """This one has words such as explain and source in its text; the marked one names its machine."""
    tests = {t.name.partition("[")[0]: t for t in request.session.items if t.path == Path(__file__)}
    assert looks_at_decisions(request.node)
    marked = tests.get("test_a_marked_test_asks_no_other_machine")
    assert marked is None or not looks_at_decisions(marked)


def test_tests_that_other_machines_tell_the_same_are_left_out(tmp_path: Path) -> None:
    """Of a function with parameters one that asks is enough; a function that did not run is kept."""
    plugin = Answers(tmp_path / "answers")
    questions = {
        "a.py::asks[1]": lambda: None,
        "a.py::asks[2]": estimates.this_core,
        "b.py::counts": targets.default_threads,
    }
    with decided_for("zen3"):
        plugin.pytest_sessionstart()
        for name, ask in questions.items():
            plugin.pytest_runtest_protocol()
            ask()
            test: Any = SimpleNamespace(nodeid=name, user_properties=[])
            plugin.pytest_runtest_makereport(test, SimpleNamespace(when="teardown"))  # type: ignore[arg-type]
            plugin.pytest_runtest_logreport(test)
        plugin.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    asked = [*list(questions)[:2], "b.py::new"]
    for kind, kept in (("zen3", asked[2:]), ("zen4", asked)):
        same: Any = same_answers(plugin.file, kind)
        assert [n for n in (*questions, "b.py::new") if not same(SimpleNamespace(nodeid=n))] == kept
    files = ("a.py", "b.py", "c.py")
    assert [is_left_out(plugin.file, "zen4", name) for name in files] == [False, True, False]
