"""Shared by all tests: golden files, and the helpers (`helpers/graphs.py`, `helpers/brute_force.py`)."""

from __future__ import annotations

import difflib
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

# Between every two passes the intermediate forms are verified; a test that wants otherwise says so.
os.environ.setdefault("POLYFUSE_VERIFY", "1")

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
# Helpers, and what tests of one folder take from those of another one.
sys.path[:0] = [
    str(TESTS),
    str(TESTS / "helpers"),
    *(str(f) for f in sorted((TESTS / "unit").iterdir()) if f.is_dir()),
]

_changed = pytest.StashKey[list[str]]()


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests of any size are spread over workers."""
    monkeypatch.setattr("polyfuse.cost.cpu_tables.FITTED.mapping_smallest_parallel", 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-update", action="store_true", help="write golden files instead of comparing with them"
    )
    parser.addoption(
        "--machine", metavar="KIND", help="run as on a machine of this kind (tests/helpers/machines.py)"
    )
    parser.addoption("--decisions", action="store_true", help="only tests of decisions that name no machine")
    parser.addoption(
        "--answers",
        metavar="FILE",
        type=Path,
        help="note what tests are told of the machine; with --decisions: leave out those told the same",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests are a million objects that stay: no collection of garbage goes through them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not read of whose tests `--answers` leaves none."""
    if not (config.getoption("--decisions") and (file := config.getoption("--answers"))):
        return None
    from machines import is_left_out

    where = collection_path.relative_to(config.rootpath).as_posix()
    return is_left_out(file, config.getoption("--machine"), where) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from thinned import places_of_thin_tests

    for test, every, place in list(places_of_thin_tests(items)):
        if place % every:
            test.add_marker("slow")
    if config.getoption("--decisions"):
        from machines import looks_at_decisions, same_answers

        kept = [test for test in items if looks_at_decisions(test)]
        if file := config.getoption("--answers"):
            same = same_answers(file, config.getoption("--machine"))
            kept = [test for test in kept if not same(test)]
        left = set(kept)
        config.hook.pytest_deselected(items=[test for test in items if test not in left])
        items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_changed] = []
    if kind := config.getoption("--machine"):
        from machines import MACHINES, as_on

        if kind not in MACHINES:
            raise pytest.UsageError(f"--machine: there is no {kind!r}, one of {', '.join(MACHINES)}")
        machine = as_on(kind)
        machine.__enter__()
        config.add_cleanup(lambda: machine.__exit__(None, None, None))
    if (file := config.getoption("--answers")) and not config.getoption("--decisions"):
        from machines import Answers

        config.pluginmanager.register(Answers(file), "answers")


@pytest.fixture(autouse=True)
def machine_of_decisions(request: pytest.FixtureRequest) -> Iterator[None]:
    """`@pytest.mark.machine("zen3")`: the test speaks of decisions for such a machine, and asks no other."""
    marker = request.node.get_closest_marker("machine")
    if marker is None:
        yield
        return
    from machines import decided_for

    with decided_for(*marker.args):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("trees/softmax.txt", text)` compares a text with a file below tests/golden."""
    config = request.config

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        text = text.rstrip("\n") + "\n"
        old = file.read_text(encoding="utf-8") if file.exists() else None
        if old == text:
            return
        if config.getoption("--golden-update"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            config.stash[_changed].append(name)
            return
        if old is None:
            pytest.fail(f"there is no golden file {name}; write it with pytest --golden-update")
        lines = difflib.unified_diff(old.splitlines(), text.splitlines(), name, "now", lineterm="")
        pytest.fail("\n".join([*lines, "accept it with pytest --golden-update"]), pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in sorted(config.stash[_changed]):
        terminalreporter.write_line(f"golden file written: tests/golden/{name}")
