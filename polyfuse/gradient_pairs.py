"""An operator and its gradient as a pair, and where the arguments of the backward one come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfuse.autodiff.derive import Derived
from polyfuse.decisions import Decision

if TYPE_CHECKING:
    from polyfuse.api import Operator


@dataclass(frozen=True)
class Source:
    """Where an argument of a backward operator comes from.

    Attributes
    ----------
    parameter
        What the backward operator calls it.
    kind
        "cotangent" (the gradient of a result), "argument" (of the forward operator), "result" (one that the
        operator has anyway, after the call) or "kept" (one that only the pair's forward operator has).
    name
        The result that it is the gradient of, the argument, or the result.
    """

    parameter: str
    kind: str
    name: str


@dataclass(frozen=True)
class Gradients:
    """An operator and its gradient, as a pair of operators of the language: what `grad` gives.

    Attributes
    ----------
    operator
        What was differentiated.
    forward
        It takes what the operator takes, and returns its results, then the values in `kept`.
    backward
        It takes what `sources` says, and returns the gradients of the inputs in `wrt`, both in this order.
    wrt
        Inputs that have gradients.
    of
        Results that have cotangents; an inout parameter stands for its value after the call.
    kept
        Results of `forward` that `operator` does not have; without any, they compute the same.
    sources
        Where each argument of `backward` comes from.
    sizes
        Those that `backward` has to be given by name, as no shape of an argument says them: as they were in
        the forward call.
    decisions
        What is kept and what is computed again, and why.

    Examples
    --------
    >>> pair = pf.grad("op square(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * x[i] }")
    >>> print(pair.backward.program)
    op square_backward(dy: f32[N], x: f32[N]) -> (dx: f32[N]) {
      dx[i] = 2.0 * dy[i] * x[i]
    }
    >>> pair.backward(np.ones(3, "f4"), np.array([1, 2, 3], "f4"))
    array([2., 4., 6.], dtype=float32)
    """

    operator: Operator
    forward: Operator
    backward: Operator
    wrt: tuple[str, ...]
    of: tuple[str, ...]
    kept: tuple[str, ...]
    sources: tuple[Source, ...]
    sizes: tuple[str, ...]
    decisions: tuple[Decision, ...]

    def __str__(self) -> str:
        """The program of both operators."""
        return f"{self.forward.program}\n{self.backward.program}"

    def __repr__(self) -> str:
        return f"<polyfuse gradients of {self.operator.name} with respect to {', '.join(self.wrt)}>"

    def explain(self) -> str:
        """The `decisions`, one a line."""
        return "\n".join(map(str, self.decisions))


def sources_of(found: Derived, names: Mapping[str, str]) -> tuple[Source, ...]:
    known = {c: Source(c, "cotangent", names[r]) for c, r in zip(found.cotangents, found.of, strict=True)}
    known |= {n: Source(n, "argument", n) for n in found.arguments}
    known |= {n: Source(n, "result", names[n]) for n in found.results}
    known |= {n: Source(n, "kept", kept) for n, kept in zip(found.stored, found.kept, strict=True)}
    return tuple(known[n] for n in found.backward.inputs)
