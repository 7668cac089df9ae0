"""Run a group of calls on the device and nothing else: what the memory checker watches.

PyTorch is left out: the checker would watch all of it, and it keeps freed memory, in which errors go unseen.

`python -m gpu.exercise "workloads 0-9"`
"""

from __future__ import annotations

import sys

from gpu.job import Job
from gpu.part_reference import run


def main(item: str) -> int:
    """0 if every result is right."""
    result = run(item, Job("cuda", quick=False), api=False)
    print(result["message"])
    return 0 if result["status"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
