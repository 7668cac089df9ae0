"""Times of launches as a timeline that Perfetto and chrome://tracing open (Trace Event Format, JSON).

text = timeline("encoder layer", [("k0: a, b", 12e-6), ("k1: c", 3e-6)])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polyfuse.ir.kernel import Kernel


def timeline(
    title: str, launches: Sequence[tuple[str, float]], facts: Mapping[str, object] | None = None
) -> str:
    """JSON of launches that run one after the other, each with its name and seconds."""
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": title}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "launches"}},
    ]
    start = 0.0
    for name, seconds in launches:
        events.append({"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": seconds * 1e6})
        start += seconds * 1e6
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(facts or {})}, indent=1
    )


def launch_names(kernels: Sequence[Kernel], launched: Sequence[str]) -> list[str]:
    """For each launch of a plan, its kernel and the first of its statements."""
    statements = {k.name: [s for s in k.statements if not s.endswith("__init")] for k in kernels}
    return [f"{name}: {', '.join(statements[name][:4])}" for name in launched]
