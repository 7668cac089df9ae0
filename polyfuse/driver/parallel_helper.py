"""The process that lowers clusters for another one: ``python -m polyfuse.driver.parallel_helper``.

It is told once what to lower by, then gets a cluster a line and gives kernels back, until the caller closes
the pipe or has not asked for a while.  Where it fails, whatever the reason, it says so, and the caller
lowers that cluster itself: errors are those of the caller.
"""

from __future__ import annotations

import os

from polyfuse.driver.feedback import Lessons, NoLessons, pieces_of
from polyfuse.driver.lowering import Made, Passes
from polyfuse.driver.parallel import GREETING, LIMIT_S, Answer, Begin, pack, unpack
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.scheduling import isl_worker
from polyfuse.runtime.cache.plans import KeptLessons
from polyfuse.support.processes import limited, peak_memory, serve

# So long it waits for the next compilation.
IDLE_S = 120.0


class _Helper:
    """What a helper knows between two lines."""

    def __init__(self) -> None:
        self.passes: Passes | None = None
        self.lessons: Lessons = NoLessons()

    def answer(self, line: str) -> str:
        with limited(LIMIT_S):
            try:
                made = self._made(unpack(line))
            except Exception:  # the caller finds out what is wrong, where it can be told
                made = None
            return pack(Answer(made, peak_memory())).decode()

    def _made(self, request: Begin | TensorGraph) -> Made | None:
        if isinstance(request, TensorGraph):
            assert self.passes is not None
            return pieces_of(request, self.passes, self.lessons)
        self.passes = request.passes
        self.lessons = KeptLessons() if request.kept else NoLessons()
        for name, value in request.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        return []


def main() -> None:
    """Serve. isl's helper is in this session, so that both end together."""
    isl_worker.helper().session = False
    serve(GREETING, _Helper().answer, IDLE_S)


if __name__ == "__main__":
    main()
