"""CUDA C++: headerless source and the launch plan that runs it."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.launch_plan import GridPlan
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class CudaCode:
    """Source text, plan, and for checked builds the place of each check (its number is 1 + index)."""

    source: str
    plan: GridPlan
    checks: tuple[tuple[Span, str], ...]
