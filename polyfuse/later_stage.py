"""The error of an attribute that only a later stage has: it names the call that leads there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def later_stage(missing: Mapping[str, str]) -> Callable[[object, str], Any]:
    """A `__getattr__` whose error names the call that leads to the stage where an attribute is."""

    def getattribute(self: object, name: str) -> Any:
        message = f"'{type(self).__name__}' object has no attribute '{name}'"
        if name in missing:
            message += f": call .{missing[name]} first"
        raise AttributeError(message, name=name, obj=self)

    return getattribute
