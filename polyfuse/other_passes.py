"""Passes of any class: an object whose `apply` takes a stage and gives one."""

from __future__ import annotations

from typing import TypeVar

from polyfuse.diagnostics import ArgumentError

Stage = TypeVar("Stage")


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
