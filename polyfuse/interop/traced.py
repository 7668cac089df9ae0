"""Calls that torch traces: one node of its graph, whatever the function does inside.

traced("scale#3", False, (x,), {"a": 2.0})
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def traced(token: str, given: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of the function that has a token; `given`: there is memory for results."""
    package: Any = sys.modules[
        "polyfuse"
    ]  # which loads what is asked for: operators of torch build on all of it
    return package.torch.operators.dispatched(token, given, args, kwargs)


torch.compiler.allow_in_graph(traced)
