"""The scheduling helper: limits on operations, answers that are nonsense, forks, and work without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import graphs
import pytest
from halted import halted_helper

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import shape
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling import isl_worker
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout, schedule
from polyfuse.poly.scheduling.isl_worker import Helper, HelperDied, Infeasible, Job, NoAnswer, OverBudget

CHAIN = "[N] -> { A[i] -> B[i] : 0 <= i < N }"
EASY = Job("[N] -> { A[i] : 0 <= i < N; B[i] : 0 <= i < N }", "[N] -> { : N >= 0 }", CHAIN, CHAIN, CHAIN)
CYCLE = "[N] -> { A[i] -> A[N - 1 - i] : 0 <= i < N }"
IMPOSSIBLE = Job("[N] -> { A[i] : 0 <= i < N }", "[N] -> { : }", CYCLE, CYCLE, CYCLE)


def slow_job() -> Job:
    """Ten statements in three dimensions, each near each other: isl needs 10,000 to 30,000 operations."""
    dims = "i,j,k"

    def target(a: int, b: int) -> str:
        return ", ".join(f"{v} + {(a * 7 + b * q) % 5}" for q, v in enumerate(dims.split(",")))

    domain = "; ".join(f"S{k}[{dims}] : 0 <= {dims} < {1000 + k}" for k in range(10))
    pairs = "; ".join(f"S{a}[{dims}] -> S{b}[{target(a, b)}]" for a in range(10) for b in range(a + 1, 10))
    return Job(f"{{ {domain} }}", "{ : }", *(f"{{ {pairs} }}" for _ in range(3)), (("whole_component", 1),))


@pytest.fixture
def helper() -> Iterator[Helper]:
    h = Helper()
    yield h
    h.kill()


def fake(script: str) -> Helper:
    """A helper that greets properly and then runs a script."""
    program = f"import sys, os, time\nprint({isl_worker.READY!r}, flush=True)\n{script}"
    return Helper(command=(sys.executable, "-c", program))


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def process_of(h: Helper) -> subprocess.Popen[bytes]:
    assert h.process is not None
    return h.process


def test_one_process_answers_many_jobs(helper: Helper) -> None:
    first = helper.call(EASY)
    assert first == helper.call(EASY) == isl_worker.compute(EASY)
    assert helper.starts == 1


def test_it_starts_with_the_first_job_only() -> None:
    program = (
        "from polyfuse.poly.scheduling import isl_scheduler as scheduler, isl_worker as worker\n"
        "assert worker.helper().process is None and worker.helper().starts == 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])


def test_the_limit_kills_and_the_next_job_restarts(helper: Helper) -> None:
    helper.call(EASY)
    pid = process_of(helper).pid
    with pytest.raises(OverBudget, match="no answer within 10000 operations"):
        helper.call(slow_job(), 10_000)
    assert not running(pid)
    assert "schedule" in helper.call(EASY)
    assert helper.starts == 2


def test_infeasible_is_told_and_the_helper_lives_on(helper: Helper) -> None:
    with pytest.raises(Infeasible):
        helper.call(IMPOSSIBLE)
    with pytest.raises(isl_worker.Refused, match="syntax error"):
        helper.call(Job("{ nonsense", "{ : }", "{ }", "{ }", "{ }"))
    helper.call(EASY)
    assert helper.starts == 1


@pytest.mark.parametrize(
    "script",
    [
        "for line in sys.stdin: print('no json', flush=True)",
        "for line in sys.stdin: print('[1]', flush=True)",
        """for line in sys.stdin: print('{"kind": "schedule"}', flush=True)""",
        """for line in sys.stdin: print('{"kind": "surprise", "text": ""}', flush=True)""",
        "for line in sys.stdin: sys.stdout.buffer.write(bytes([255, 254, 10])); sys.stdout.flush()",
        "sys.stdin.readline(); os._exit(3)",
        "sys.stdin.close(); os.close(0); time.sleep(60)",
        "import signal; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGSEGV)",
    ],
)
def test_nonsense_and_death_are_tried_twice_then_told(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "PATIENCE_S", 0.1)
    h = fake(script)
    with pytest.raises((HelperDied, NoAnswer)):
        h.call(EASY)
    assert h.starts <= 2
    assert h.process is None


def test_a_helper_that_never_answers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "PATIENCE_S", 0.3)
    h = fake("time.sleep(60)")
    big = Job(
        *(EASY.domain, EASY.context, CHAIN, CHAIN, CHAIN), (("x" * 300_000, 1),)
    )  # more than a pipe holds
    for job in (EASY, big):
        with pytest.raises(NoAnswer, match="did not answer within 3 s"):
            h.call(job)
    assert h.process is None


def test_a_helper_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its time of the processor; it is not tried again."""
    monkeypatch.setattr(isl_worker, "PATIENCE_S", 0.3)
    ours = "from polyfuse.poly.scheduling import isl_worker as worker\n"
    real = ours + "def f(*a):\n  while True: pass\nworker.compute = f\nworker.main()"
    h = Helper(command=(sys.executable, "-c", real))
    with pytest.raises(NoAnswer, match=r"used 0\.3 s of the processor"):
        h.call(EASY)
    assert h.process is None and h.starts == 1


def test_a_helper_that_died_between_jobs_is_replaced(helper: Helper) -> None:
    helper.call(EASY)
    os.kill(process_of(helper).pid, signal.SIGKILL)
    process_of(helper).wait()
    helper.call(EASY)
    assert helper.starts == 2


def test_an_interrupt_does_not_leave_an_answer_behind(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.call(EASY)

    def interrupt(self: Helper, deadline: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Helper, "read_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            helper.call(IMPOSSIBLE)
    assert "schedule" in helper.call(EASY)


def test_threads_share_one_helper(helper: Helper) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(helper.call(EASY))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(answers) == 8 and len(set(answers)) == 1
    assert helper.starts == 1


def test_a_forked_process_starts_its_own_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    h = isl_worker.helper()
    h.call(EASY)
    parent = process_of(h).pid
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        ok = b"0"
        try:
            h.call(EASY)
            ok = b"1" if process_of(h).pid != parent else b"0"
            h.kill()
        finally:
            os.write(write, ok)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert running(parent) and process_of(h).pid == parent
    starts = h.starts
    h.call(EASY)
    assert h.starts == starts


def test_a_fork_while_a_thread_holds_the_helper_does_not_hang() -> None:
    h = isl_worker.helper()
    with h.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            status = 1
            try:
                h.call(EASY)
                h.kill()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert status == 0


def test_the_helper_ends_with_its_parent() -> None:
    program = (
        "import os\nfrom polyfuse.poly.scheduling import isl_worker as worker\n"
        "from test_isl_worker import EASY\n"
        "worker.solve(EASY)\nprint(worker.helper().process.pid, flush=True)\n{end}"
    )
    tests = Path(__file__).parents[2]
    known = [str(tests), str(tests / "helpers"), str(Path(__file__).parent), str(tests.parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(known), "POLYFUSE_WORKER": "1"}
    for end in ("", "os._exit(0)"):
        command = [sys.executable, "-c", program.format(end=end)]
        pid = int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
        for _ in range(100):
            if not running(pid):
                break
            time.sleep(0.05)
        assert not running(pid)


# --- a machine that is busy --------------------------------------------------------------------------


def test_a_slow_start_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import time; time.sleep(1.5)\nfrom polyfuse.poly.scheduling.isl_worker import main\nmain()"
    h = Helper(command=(sys.executable, "-c", script))
    monkeypatch.setattr(isl_worker, "_helper", h)
    assert shape(schedule(build_model(graphs.NORM_ALL))) == "[B1(n2); B1(y)]"
    assert h.starts == 1
    h.kill()


def test_a_helper_that_hardly_runs_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock goes on while it stands still; what it counts does not."""
    jobs = [(EASY, isl_worker.MAX_OPERATIONS), (slow_job(), isl_worker.MAX_OPERATIONS), (slow_job(), 10_000)]

    def outcomes() -> list[str]:
        found = []
        for job, operations in jobs:
            try:
                found.append(isl_worker.solve(job, operations))
            except isl_worker.WorkerError as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    monkeypatch.setattr(isl_worker, "_given_up", {})
    want = outcomes()
    assert [w.partition(":")[0] for w in want] == ["{ domain", "{ domain", "OverBudget"]
    with halted_helper() as helper:
        assert outcomes() == want
        assert helper.starts == 1


def test_the_limit_is_met_at_the_same_operation_everywhere(helper: Helper) -> None:
    """In the helper, here, and the second time: there is one number that is just enough."""

    def enough(operations: int) -> bool:
        try:
            isl_worker.compute(EASY, operations)
        except OverBudget:
            return False
        return True

    low, high = 1, isl_worker.MAX_OPERATIONS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    for _ in range(2):
        assert helper.call(EASY, high) == isl_worker.compute(EASY, high)
        with pytest.raises(OverBudget):
            helper.call(EASY, low)


def test_what_was_given_up_costs_its_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "_given_up", {})
    asked: list[int] = []

    def tired(self: Helper, job: Job, operations: int) -> str:
        asked.append(operations)
        raise OverBudget(f"{operations}")

    monkeypatch.setattr(Helper, "call", tired)
    for operations, text in ((10, "10"), (10, "10"), (9, "10"), (11, "11")):
        with pytest.raises(OverBudget, match=text):
            isl_worker.solve(EASY, operations)
    assert asked == [10, 11]


# --- without a helper ------------------------------------------------------------------------------


def test_no_helper_can_be_started() -> None:
    for command in (("/nonexistent/python",), (sys.executable, "-c", "print('hello')")):
        h = Helper(command=command)
        with pytest.raises(isl_worker.HelperUnavailable):
            h.call(EASY)
        with pytest.raises(isl_worker.HelperUnavailable):
            h.call(EASY)
        assert h.starts <= 1


def test_without_a_helper_jobs_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "_helper", Helper(command=("/nonexistent/python",)))
    assert isl_worker.solve(EASY) == isl_worker.compute(EASY)


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "_helper", Helper())
    monkeypatch.setenv("POLYFUSE_WORKER", "0")
    model = build_model(graphs.LAYER_NORM)
    assert shape(schedule(model)) == "B1([B1(sm); mu; B1(ce+sq); rs; B1(nm+y)])"
    assert isl_worker.helper().starts == 0


def test_here_the_limit_holds_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_WORKER", "0")
    with pytest.raises(OverBudget):
        isl_worker.solve(slow_job(), 10_000)
    with pytest.raises(Infeasible):
        isl_worker.solve(IMPOSSIBLE)


# --- as errors of the compiler -----------------------------------------------------------------------


def test_failures_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (
        (OverBudget("too much"), "PF511"),
        (NoAnswer("it hangs"), "PF514"),
        (Infeasible("none"), "PF512"),
        (HelperDied("gone"), "PF514"),
        (isl_worker.Refused("isl says no"), "PF514"),
    )
    for error, code in cases:

        def fail(job: Job, operations: int, error: isl_worker.WorkerError = error) -> str:
            raise error

        monkeypatch.setattr(isl_worker, "solve", fail)
        with pytest.raises(ScheduleError) as caught:
            schedule(build_model(graphs.BIAS_GELU))
        assert caught.value.code == code
        assert isinstance(caught.value, ScheduleTimeout) == isinstance(error, OverBudget | NoAnswer)
