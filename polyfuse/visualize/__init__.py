"""Pictures of operators, domains, dependences, schedules and kernels (`pf.visualize`).

::

    pf.visualize.domain("{ S[i, j] : 0 <= j <= i < 5 }")

Each gives a `Picture`, which a notebook shows.  The names below load what they need when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Picture": "polyfuse.visualize.svg",
    "accesses": "polyfuse.visualize.access_relations",
    "dependences": "polyfuse.visualize.polyhedra",
    "domain": "polyfuse.visualize.polyhedra",
    "graph": "polyfuse.visualize.stages",
    "placement": "polyfuse.visualize.stages",
    "plan": "polyfuse.visualize.stages",
    "predictions": "polyfuse.visualize.predictions",
    "roofline": "polyfuse.visualize.rooflines",
    "schedule_order": "polyfuse.visualize.orders",
    "timeline": "polyfuse.visualize.stages",
    "traffic": "polyfuse.visualize.rooflines",
    "tree": "polyfuse.visualize.stages",
}

__all__ = [
    "Picture",
    "accesses",
    "dependences",
    "domain",
    "graph",
    "placement",
    "plan",
    "predictions",
    "roofline",
    "schedule_order",
    "timeline",
    "traffic",
    "tree",
]

if TYPE_CHECKING:
    from polyfuse.visualize.access_relations import accesses
    from polyfuse.visualize.orders import schedule_order
    from polyfuse.visualize.polyhedra import dependences, domain
    from polyfuse.visualize.predictions import predictions
    from polyfuse.visualize.rooflines import roofline, traffic
    from polyfuse.visualize.stages import graph, placement, plan, timeline, tree
    from polyfuse.visualize.svg import Picture


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'polyfuse.visualize' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
