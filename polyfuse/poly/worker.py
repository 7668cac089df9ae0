"""isl's scheduler in one long-lived helper process, because it cannot be interrupted in ours.

`solve` sends a `Job` (isl texts) to ``python -m polyfuse.poly.worker`` and gets the text of a schedule
back: one line of JSON each way, nothing executable.  The helper starts on the first job, serves the
whole process (all threads, one job at a time), and is killed when a job passes its time limit, when it
answers nonsense and at exit; the next job starts another.  A process forked from ours starts its own.

Where no helper can be started, or with ``POLYFUSE_WORKER=0``, jobs run in this process under isl's
limit on operations, which is a rough measure of time but never hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

import islpy as isl

from polyfuse.children import Child, ChildDied, ChildLate, ChildUnavailable, limited, serve

# What isl counts is allocations: this many a second on a slow machine (measured: 5 to 12 million).
OPERATIONS_PER_SECOND = 4_000_000
MEMORY_LIMIT = 4 << 30
READY = "polyfuse scheduling helper 1"
# What is left of a limit when a job is reached differs a little each time.
SAME_LIMIT = 1.2
MOST_LATE = 1000


class WorkerError(Exception):
    """A job gave no schedule."""


class Infeasible(WorkerError):
    """isl proved, or gave up on the ground, that no affine schedule exists."""


class Refused(WorkerError):
    """isl reported another error."""


class OverBudget(WorkerError):
    """The time limit (in the helper) or the limit on operations (in this process) was reached."""


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
    """Start the helper if need be, so that its start counts against no time limit."""
    if _wanted():
        with contextlib.suppress(HelperUnavailable):
            helper().start()


def solve(job: Job, limit_s: float) -> str:
    """The text of a schedule for a job. Raises Infeasible, OverBudget, HelperDied or Refused.

    A job that had as much time before is not tried again: a hang costs its time limit once.
    """
    if limit_s <= SAME_LIMIT * _late.get(job, 0.0):
        raise OverBudget("the time limit was reached before")
    try:
        if _wanted():
            with contextlib.suppress(HelperUnavailable):
                return helper().call(job, limit_s)
        return compute(job, max(1, int(limit_s * OPERATIONS_PER_SECOND)))
    except OverBudget:
        while len(_late) >= MOST_LATE:
            _late.pop(next(iter(_late)))
        _late[job] = limit_s
        raise


def compute(job: Job, max_operations: int = 0) -> str:
    """Run isl's scheduler here, in a context of its own; 0 operations mean no limit."""
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
    context.set_max_operations(max_operations)
    try:
        schedule = constraints.compute_schedule()
    except isl.Error as error:
        if "unable to carry" in str(error):
            raise Infeasible("unable to carry dependences") from None
        # Out of operations or memory, isl may complain of anything.
        raise OverBudget(f"isl gave up: {error}") from None
    context.set_max_operations(0)
    return str(schedule.to_str())


# --- the side of the caller ------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Helper(Child):
    """The helper process of isl's scheduler."""

    module: str = "polyfuse.poly.worker"
    greeting: str = READY

    def start(self) -> None:
        """Start the process if it does not run. Raises HelperUnavailable."""
        with self.lock, contextlib.suppress(ChildDied):  # then the call starts another
            self._started()

    def call(self, job: Job, limit_s: float) -> str:
        """Solve a job; a helper that dies or answers nonsense is replaced once."""
        with self.lock:
            for _ in range(2):
                try:
                    self._started()
                    return self._solve(job, limit_s)
                except (ChildDied, HelperDied):
                    self.kill()
                except (Infeasible, Refused, HelperUnavailable):
                    raise
                except ChildLate as error:
                    self.kill()
                    raise OverBudget(str(error)) from None
                except BaseException:
                    self.kill()  # out of its budget, or an interrupt: its answer would still come
                    raise
            raise HelperDied("the scheduling helper failed twice on this problem")

    def _started(self) -> None:
        try:
            self.ensure_started()
        except ChildUnavailable as error:
            raise HelperUnavailable(str(error)) from None

    def _solve(self, job: Job, limit_s: float) -> str:
        request = {"job": asdict(job), "limit_s": limit_s}
        answer = _parse_answer(self.exchange(json.dumps(request).encode(), limit_s))
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
_late: dict[Job, float] = {}


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
    with limited(float(request["limit_s"])):
        return json.dumps(_answer(Job(**given)))


def _answer(job: Job) -> dict[str, str]:
    try:
        return {"kind": "schedule", "text": compute(job)}
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
