"""Pictures of operators, domains, dependences, schedules and kernels (`pf.visualize`).

    pf.visualize.domain("{ S[i, j] : 0 <= j <= i < 5 }")

Each gives a `Picture`, which a notebook shows.  The names below load what they need when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Picture": "polyfuse.visualize.svg",
    "accesses": "polyfuse.visualize.accesses",
    "dependences": "polyfuse.visualize.polyhedra",
    "domain": "polyfuse.visualize.polyhedra",
    "schedule_order": "polyfuse.visualize.orders",
}

__all__ = ["Picture", "accesses", "dependences", "domain", "schedule_order"]

if TYPE_CHECKING:
    from polyfuse.visualize.accesses import accesses
    from polyfuse.visualize.orders import schedule_order
    from polyfuse.visualize.polyhedra import dependences, domain
    from polyfuse.visualize.svg import Picture


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'polyfuse.visualize' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
