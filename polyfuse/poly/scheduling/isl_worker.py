"""isl's scheduler in one long-lived helper process, because it cannot be interrupted in ours.

`solve` sends a `Job` (isl texts) to ``python -m polyfuse.poly.scheduling.isl_worker`` and gets the text of a
schedule back: one line of JSON each way, nothing executable.  The helper starts on the first job, serves the
whole process (all threads, one job at a time), and is killed when it does not answer, when it answers
nonsense and at exit; the next job starts another.  A process forked from ours starts its own.

What a job may cost is a number of isl's operations, so that the answer depends on the job alone and never
on how busy the machine is.  Clocks only end a helper that hangs (`PATIENCE_S`), and the error says so.

Where no helper can be started, or with ``POLYFUSE_WORKER=0``, jobs run in this process under the same limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass, fields
from typing import Any

import islpy as isl

from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable, limited, serve

# Of one job; recurrences of models need up to 80,000. isl counts allocations and steps of linear programs:
# 2 million a second for a statement or two, 100,000 for ten statements.
MAX_OPERATIONS = 1_000_000
# Seconds of the processor for one job, many times what the operations take: isl then hangs in what it does
# not count. And so many times as long by the clock, should a helper not run at all.
PATIENCE_S, STANDS_STILL = 60.0, 10
MEMORY_LIMIT = 4 << 30
READY = "polyfuse scheduling helper 2"
MOST_REMEMBERED = 1000


class WorkerError(Exception):
    """A job gave no schedule."""


class Infeasible(WorkerError):
    """isl proved, or gave up on the ground, that no affine schedule exists."""


class Refused(WorkerError):
    """isl reported another error."""


class OverBudget(WorkerError):
    """The limit on operations was reached."""


class NoAnswer(WorkerError):
    """The helper hangs, and was ended."""


class HelperDied(WorkerError):
    """The helper ended or answered nonsense, twice for the same job."""


class HelperUnavailable(WorkerError):
    """No helper process can be started here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of isl's scheduler. All fields are isl texts; `options` are its integer settings."""

    domain: str
    context: str
    validity: str
    coincidence: str
    proximity: str
    options: tuple[tuple[str, int], ...] = ()


def _wanted() -> bool:
    return os.environ.get("POLYFUSE_WORKER", "1") != "0" and os.name == "posix"


def prepare() -> None:
    """Start the helper if need be, so that whoever holds isl's lock need not wait for that."""
    if _wanted():
        with contextlib.suppress(HelperUnavailable):
            helper().start()


def solve(job: Job, operations: int = MAX_OPERATIONS) -> str:
    """The text of a schedule for a job. Raises Infeasible, OverBudget, NoAnswer, HelperDied or Refused.

    A job that was given up is not tried again with as many operations: it costs its limit once.
    """
    if job in _given_up and operations <= _given_up[job][0]:
        _, kind, text = _given_up[job]
        raise kind(text)
    try:
        if _wanted():
            with contextlib.suppress(HelperUnavailable):
                return helper().call(job, operations)
        return compute(job, operations)
    except (OverBudget, NoAnswer) as error:
        while len(_given_up) >= MOST_REMEMBERED:
            _given_up.pop(next(iter(_given_up)))
        _given_up[job] = operations, type(error), str(error)
        raise


def compute(job: Job, operations: int = MAX_OPERATIONS) -> str:
    """Run isl's scheduler here, in a context of its own, with so many operations."""
    context = isl.Context()
    for name, value in job.options:
        getattr(context, f"set_schedule_{name}")(value)
    try:
        constraints = isl.ScheduleConstraints.on_domain(isl.UnionSet.read_from_str(context, job.domain))
        constraints = constraints.set_context(isl.Set.read_from_str(context, job.context))
        for kind in ("validity", "coincidence", "proximity"):
            relation = isl.UnionMap.read_from_str(context, getattr(job, kind))
            constraints = getattr(constraints, f"set_{kind}")(relation)
    except isl.Error as error:
        raise Refused(str(error)) from None
    context.reset_operations()
    context.set_max_operations(operations)
    try:
        schedule = constraints.compute_schedule()
    except isl.Error as error:
        if "unable to carry" in str(error):
            raise Infeasible("unable to carry dependences") from None
        # Out of operations or memory, isl may complain of anything.
        raise OverBudget(f"isl gives no answer within {operations} operations ({error})") from None
    context.set_max_operations(0)
    return str(schedule.to_str())


# --- the side of the caller ------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Helper(Child):
    """The helper process of isl's scheduler."""

    module: str = "polyfuse.poly.scheduling.isl_worker"
    greeting: str = READY

    def start(self) -> None:
        """Start the process if it does not run. Raises HelperUnavailable."""
        with self.lock, contextlib.suppress(ChildDied):  # then the call starts another
            self._started()

    def call(self, job: Job, operations: int = MAX_OPERATIONS) -> str:
        """Solve a job; a helper that dies or answers nonsense is replaced once."""
        with self.lock:
            for _ in range(2):
                try:
                    self._started()
                    return self._solve(job, operations)
                except HelperDied:
                    self.kill()
                except ChildDied:
                    hangs = self._used_up()
                    self.kill()
                    if hangs:
                        raise NoAnswer(f"isl used {PATIENCE_S:g} s of the processor and was ended") from None
                except (Infeasible, Refused, HelperUnavailable):
                    raise
                except ChildLate:
                    self.kill()
                    waited = STANDS_STILL * PATIENCE_S
                    raise NoAnswer(f"isl did not answer within {waited:g} s and was ended") from None
                except BaseException:
                    self.kill()  # it has the memory of a large job, or its answer would still come
                    raise
            raise HelperDied("the scheduling helper failed twice on this problem")

    def _used_up(self) -> bool:
        """Did the process end because it used up its seconds of the processor?"""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process is not None and self.process.wait(1) == -signal.SIGPROF
        return False

    def _started(self) -> None:
        try:
            self.ensure_started()
        except ChildUnavailable as error:
            raise HelperUnavailable(str(error)) from None

    def _solve(self, job: Job, operations: int) -> str:
        request = {"job": asdict(job), "operations": operations, "patience_s": PATIENCE_S}
        answer = _parse_answer(self.exchange(json.dumps(request).encode(), STANDS_STILL * PATIENCE_S))
        match answer.get("kind"):
            case "schedule":
                return str(answer["text"])
            case "infeasible":
                raise Infeasible(str(answer["text"]))
            case "budget":
                raise OverBudget(str(answer["text"]))
            case "failed":
                raise Refused(str(answer["text"]))
        raise HelperDied("the scheduling helper answered nonsense")


def _parse_answer(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise HelperDied("the scheduling helper answered nonsense")
    return answer


_helper = Helper()
_given_up: dict[Job, tuple[int, type[WorkerError], str]] = {}


def helper() -> Helper:
    """The helper of this process."""
    return _helper


# --- the side of the helper ------------------------------------------------------------------------


def answer(line: str) -> str:
    """What the helper says to one line."""
    request = json.loads(line)
    names = {f.name for f in fields(Job)}
    given = {k: v for k, v in request["job"].items() if k in names}
    given["options"] = tuple((str(k), int(v)) for k, v in given.get("options", ()))
    patience_s = float(request["patience_s"])
    signal.setitimer(signal.ITIMER_PROF, patience_s)
    with limited(STANDS_STILL * patience_s):
        text = json.dumps(_answer(Job(**given), int(request["operations"])))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return text


def _answer(job: Job, operations: int) -> dict[str, str]:
    try:
        return {"kind": "schedule", "text": compute(job, operations)}
    except Infeasible as error:
        return {"kind": "infeasible", "text": str(error)}
    except OverBudget as error:
        return {"kind": "budget", "text": str(error)}
    except WorkerError as error:
        return {"kind": "failed", "text": str(error)}


def main() -> None:
    """The helper: answers jobs, with so much memory at most."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or hard > MEMORY_LIMIT:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, hard))
    serve(READY, answer)


if __name__ == "__main__":
    main()
