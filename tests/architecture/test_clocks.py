"""What is generated depends on no clock: where decisions are made nobody asks what time it is."""

from __future__ import annotations

import ast

import pytest
from package_sources import Module, imports, modules

# Modules that decide what is generated: these packages, and all at the top of the package but those below.
DECIDE = ("ir", "frontend_dsl", "poly", "cost", "layers", "codegen", "driver", "tuning")
# Why a module may look at a clock or wait for so long.
MAY_ASK = {
    "polyfuse.driver.pipeline": "tells how long each step took",
    "polyfuse.support.progress": "tells how far it is",
    "polyfuse.support.processes": "ends helpers that hang",
    "polyfuse.driver.parallel": "calls in helpers where they pay; they do what this process would do",
    "polyfuse.driver.parallel_helper": "ends itself if its caller is gone",
    "polyfuse.poly.scheduling.isl_worker": "ends isl's helper where that hangs, and says so",
    # Where the user asks for measurements (`tune`, `feedback="measure"`):
    "polyfuse.tuning.trial": "measures",
    "polyfuse.tuning.trials": "measures",
    "polyfuse.tuning.tuner": "measures",
    "polyfuse.tuning.search": "measures, and ends where its time is up",
    "polyfuse.tuning.candidates": "measures",
    "polyfuse.tuning.gpu_trial": "measures",
    "polyfuse.tuning.gpu_candidates": "measures",
    "polyfuse.tuning.gpu_maker": "ends itself if its caller is gone",
}
CLOCKS = ("time", "datetime", "sched", "timeit", "resource")
# Words for waiting no longer than, and for limits on seconds.
WAITS = {"timeout", "alarm", "setitimer", "limited", "Timer"}


def decides(module: Module) -> bool:
    first, *rest = module.name.split(".")[1:] or [""]
    return first in DECIDE or not rest


def asked(module: Module) -> list[str]:
    """Clocks that a module imports, and what it gives so much time."""
    found = [f"{i.line}: {i.target}" for i in imports(module) if i.target.split(".")[0] in CLOCKS]
    for node in ast.walk(module.tree):
        names = {k.arg for k in node.keywords} if isinstance(node, ast.Call) else set()
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        if isinstance(node, ast.Name):
            names.add(node.id)
        found += [f"{node.lineno}: {n}" for n in names & WAITS if isinstance(node, ast.expr)]
    return found


@pytest.mark.parametrize("module", [m for m in modules() if decides(m)], ids=lambda m: m.name)
def test_nobody_asks_a_clock(module: Module) -> None:
    found = asked(module)
    assert not found or module.name in MAY_ASK, f"{module.where}: {', '.join(found)}"


def test_who_may_ask_does() -> None:
    by_name = {m.name: m for m in modules()}
    assert [n for n in MAY_ASK if n not in by_name or not asked(by_name[n])] == []
