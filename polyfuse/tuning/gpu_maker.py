"""The process that makes plans of GPU kernels for another one: ``python -m polyfuse.tuning.gpu_maker``.

It is told a compilation, then variants, a line each; it makes and compiles the plan and says its
projected time (`polyfuse.tuning.gpu_candidates`).  What crashes the compiler ends this process alone.
"""

from __future__ import annotations

import json
import os

from polyfuse.driver.parallel import unpack
from polyfuse.driver.pipeline import Compilation
from polyfuse.poly.scheduling import isl_worker
from polyfuse.support.processes import ENV_JOBS, limited, serve
from polyfuse.tuning.gpu_candidates import GREETING, made
from polyfuse.tuning.table import Variant

# So long a plan may take, and so long the process waits for the next one.
LIMIT_S, IDLE_S = 60.0, 60.0


class _Maker:
    """What the process knows between two lines."""

    def __init__(self) -> None:
        self.base: Compilation | None = None

    def answer(self, line: str) -> str:
        """One line for another."""
        with limited(LIMIT_S):
            if self.base is None:
                self.base = unpack(line)
                return json.dumps({})
            return json.dumps(made(self.base, Variant.of_json(json.loads(line))))


def main() -> None:
    """Serve. isl's helper is in this session, so that both end together; there are as many of these processes
    as there are cores, and each works alone."""
    os.environ[ENV_JOBS] = "1"
    isl_worker.helper().session = False
    serve(GREETING, _Maker().answer, IDLE_S)


if __name__ == "__main__":
    main()
