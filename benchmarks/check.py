"""Float64 truth of a workload, and who agrees with it.

The reference evaluator gives a value and a bound for every element; where a workload is too large for it
NumPy in float64 stands in, and the largest difference relative to the largest value is all that is said.

polyfuse must keep every bound. A peer may also miss one and be within CLOSE of the largest value: it may
round a constant of the function elsewhere (1 - beta in float64, say).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.floor import compulsory
from benchmarks.workload import Workload
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

LARGEST = 200_000_000
"""Up to so many operations the reference evaluator is used: seconds, and some GB."""
CLOSE = 1e-5


@dataclass(frozen=True)
class Verdict:
    """`ratio` is the worst difference over its bound; `error` the largest relative to the largest value."""

    ok: bool
    ratio: float | None
    error: float
    message: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Truth:
    """What a workload computes at one case, in float64."""

    def __init__(self, workload: Workload, sizes: Mapping[str, int]) -> None:
        self.workload = workload
        given = workload.inputs(sizes)
        self.by_reference = compulsory(workload.graph, sizes).operations <= LARGEST
        self._known: dict[str, Evaluated | Any] = {}
        if self.by_reference:
            found = evaluate(workload.graph, sizes, given)
            self._known = {n: found[n] for n in workload.outcomes}
        else:
            self._known = numpy_truth(workload, given)

    def judge(self, folder: Path, *, strict: bool) -> Verdict:
        """Of the results in a folder, one file each; `strict` asks for every element within its bound."""
        verdicts = [self._one(n, np.load(folder / f"{n}.npy"), strict) for n in self.workload.outcomes]
        ratios = [v.ratio for v in verdicts if v.ratio is not None]
        message = "; ".join(v.message for v in verdicts if v.message)
        worst = max(ratios) if ratios else None
        return Verdict(all(v.ok for v in verdicts), worst, max(v.error for v in verdicts), message)

    def _one(self, name: str, got: Any, strict: bool) -> Verdict:
        known = self._known[name]
        value = known.value if self.by_reference else known
        error = _relative(got, value)
        if not self.by_reference:
            return Verdict(error <= CLOSE, None, error, "" if error <= CLOSE else f"{name} differs")
        a = agrees(got, known, self.workload.graph.tensor(name).dtype)
        ok = a.ok or (error <= CLOSE and not strict)
        return Verdict(ok, a.worst_ratio, error, f"{name}: {a.message}" if a.message else "")


def numpy_truth(workload: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    """Outcome -> float64 array, by the workload's NumPy function."""
    wide = {n: a.astype(np.float64) if _is_float(a) else a for n, a in given.items()}
    found = workload.function("numpy")(**wide)
    parts = found if isinstance(found, tuple) else (found,)
    return {n: np.asarray(p) for n, p in zip(workload.outcomes, parts, strict=True)}


def _is_float(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind == "f"


def _relative(got: Any, want: Any) -> float:
    if got.shape != want.shape:
        return float("inf")
    largest = float(np.max(np.abs(want), initial=1e-30))
    return float(np.max(np.abs(got.astype(np.float64) - want), initial=0.0)) / largest
