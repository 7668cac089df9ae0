"""What stages have in common: passes of any class, and the error of what only a later stage has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from polyfuse.diagnostics import ArgumentError

Stage = TypeVar("Stage")


def later_stage(missing: Mapping[str, str]) -> Callable[[object, str], Any]:
    """A `__getattr__` whose error names the call that leads to the stage where an attribute is."""

    def getattribute(self: object, name: str) -> Any:
        message = f"'{type(self).__name__}' object has no attribute '{name}'"
        if name in missing:
            message += f": call .{missing[name]} first"
        raise AttributeError(message, name=name, obj=self)

    return getattribute


def applied(layer: object, stage: Stage, what: str, hint: str) -> Stage:
    """What a pass of any class makes of a stage: `layer.apply(stage)`.

    Raises ArgumentError PF413 for an object without `apply`, and for one that gives something else.
    """
    run = getattr(layer, "apply", None)
    if isinstance(layer, type):
        name = layer.__name__
        raise ArgumentError(f"{name} is a class, not a pass on {what}", code="PF413", hint=f"{name}()")
    name = type(layer).__name__
    if not callable(run):
        hint = f"{hint}, or an object with a method apply"
        raise ArgumentError(f"{name} is not a pass on {what}", code="PF413", hint=hint)
    made = run(stage)
    if type(made) is not type(stage):
        kind = type(stage).__name__
        raise ArgumentError(f"{name}.apply gave {type(made).__name__}, not {kind}", code="PF413")
    return made
