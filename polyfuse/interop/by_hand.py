"""Backwards that are given by hand: what their names say.

op f(x, w) -> (y, m)        backward: dy, x, m -> dx, dw
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.signature import Signature
from polyfuse.gradient_pairs import Source


def source_of(signature: Signature, name: str) -> Source:
    """Where an argument of the backward comes from: a parameter, a result, `d` and the name of a result.

    Raises ArgumentError PF804 for other names.
    """
    results = [r.name for r in signature.results]
    known = {f"d{r}": Source(name, "cotangent", r) for r in results}
    known |= {r: Source(name, "result", r) for r in results}
    known |= {p.name: Source(name, "argument", p.name) for p in signature.params}
    if name not in known:
        raise unfit(f"the backward of {signature.name} takes '{name}', which is no name of it", known)
    return known[name]


def gradient_of(signature: Signature, backward: str, name: str) -> str:
    """The parameter whose gradient a result of the backward is. Raises ArgumentError PF804 for others."""
    params = {f"d{p.name}": p.name for p in signature.params}
    if name not in params:
        raise unfit(f"'{name}' of {backward} is no gradient of a parameter of {signature.name}", params)
    return params[name]


def unfit(message: str, names: Iterable[str]) -> ArgumentError:
    """The error PF804 for names that do not fit."""
    return ArgumentError(message, code="PF804", hint=f"names are {', '.join(names)}")
