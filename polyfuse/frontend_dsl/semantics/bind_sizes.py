"""Sizes from the shapes of arguments, and what a call must fulfil: extents that agree, constraints.

What a caller gives by name comes first, then plain names (``f32[T, H]``), what is linear in one unknown
(``3*H``, ``2*N + 1``), equality constraints, and defaults of size parameters, from the left.  A mismatch
names both arguments and their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TypeAlias

from polyfuse.diagnostics import ArgumentError, Diagnostics
from polyfuse.frontend_dsl.semantics.index_build import constraints_of, size_expr
from polyfuse.frontend_dsl.semantics.monomorphise import monomorphise
from polyfuse.frontend_dsl.semantics.signature import Signature, infer_generics, size_names
from polyfuse.frontend_dsl.semantics.size_algebra import Facts
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, evaluate, sizes, substitute
from polyfuse.ir.tensor_graph import Constraint, Role, SizeParameter, TensorGraph
from polyfuse.source import Span

Extents = tuple[IndexExpr, ...]
_Reason: TypeAlias = "tuple[str, int] | Constraint | str"
"""Why a size has its value: an axis of an argument, a constraint, or words."""

_HOLDS = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def bind_sizes(
    what: TensorGraph | Signature,
    arg_shapes: Mapping[str, Sequence[int]],
    given: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The value of every size, in the order of the graph's sizes.

    Args:
        what: a graph, or a signature (then ranks are inferred from the shapes too).
        arg_shapes: the shape of each argument by name; scalars may be left out.
        given: size parameters that the caller gives by name.

    Raises:
        ArgumentError: everything that does not fit: a missing or unknown argument (PF408), a rank
            (PF401), sizes that disagree (PF405) or cannot be solved (PF406), constraints (PF407),
            a negative extent of a result (PF409), a size parameter that there is not (PF412).
    """
    shapes = {name: tuple(int(n) for n in shape) for name, shape in arg_shapes.items()}
    task = _of_graph(what, shapes) if isinstance(what, TensorGraph) else _of_signature(what, shapes)
    check_given(task.op, [p.name for p in task.parameters], given or {})
    return task.run(given or {})


def check_given(op: str, known: Sequence[str], given: Mapping[str, object]) -> None:
    """Raises ArgumentError PF412 for sizes that the operator does not have, and for what is no size."""
    for n, value in given.items():
        if n not in known:
            hint = f"it has {', '.join(known)}" if known else None
            raise ArgumentError(f"{op} has no size '{n}'", code="PF412", hint=hint)
        if not isinstance(value, Integral) or value < 0:
            raise ArgumentError(f"size {n} cannot be {value}", code="PF412", hint="a number from 0 on")


def with_defaults(graph: TensorGraph, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes given, and the size parameters that follow from them by constraints and defaults."""
    if not graph.size_parameters:
        return dict(sizes)
    task = _Binding(graph.name, graph.sizes, {}, {}, graph.constraints, {}, {}, graph.size_parameters)
    found = task.solved(sizes)
    task.diags.raise_if_errors(ArgumentError)
    mine = {p.name for p in graph.size_parameters}
    return {n: v for n, v in found.items() if n in sizes or n in mine}


def check_constraints(graph: TensorGraph, values: Mapping[str, int]) -> None:
    """Raises ArgumentError PF407 for every constraint that these values contradict; the others stay open."""
    diags = Diagnostics()
    for c in graph.constraints:
        used = dict.fromkeys((*sizes(c.left), *sizes(c.right)))
        if all(n in values for n in used) and not _holds(c, values):
            text = ", ".join(f"{n} = {values[n]}" for n in used)
            diags.error("PF407", f"{graph.name} needs {c}, but {text}", _written(c))
    diags.raise_if_errors(ArgumentError)


def _of_graph(graph: TensorGraph, shapes: Mapping[str, tuple[int, ...]]) -> _Binding:
    params = {t.name: t.shape for t in graph.tensors if t.role in (Role.INPUT, Role.INOUT)}
    results = {t.name: t.shape for t in graph.tensors if t.name in graph.outputs}
    spans = {t.name: t.span for t in graph.tensors}
    ordered = {name: params[name] for name in graph.inputs}
    parameters = graph.size_parameters
    return _Binding(graph.name, graph.sizes, ordered, results, graph.constraints, spans, shapes, parameters)


def _of_signature(sig: Signature, shapes: Mapping[str, tuple[int, ...]]) -> _Binding:
    known = {p.name for p in sig.params}
    generics = infer_generics(sig, {}, {n: len(s) for n, s in shapes.items() if n in known})
    quiet = Diagnostics()
    op = monomorphise(sig.op, generics.dtypes, generics.ranks, quiet)
    names = {n: ISize(n) for n in size_names(op)}

    def extents(written: Sequence[ast.Expr]) -> Extents:
        found = [size_expr(e, names, quiet, "an extent", op.name) for e in written]
        return tuple(e for e in found if e is not None)

    params = {p.name: extents(p.type.extents) for p in op.params}
    results = {r.name: extents(r.type.extents) for r in op.results}
    constraints = tuple(c for e in op.where for c in constraints_of(e, names, quiet, op.name))
    defaults = {
        x.name: size_expr(x.default, names, quiet, "a default", op.name)
        for x in op.size_parameters
        if x.default is not None
    }
    quiet.raise_if_errors()
    parameters = tuple(SizeParameter(x.name, defaults.get(x.name)) for x in op.size_parameters)
    spans = {p.name: p.span for p in (*op.params, *op.results)}
    return _Binding(op.name, tuple(names), params, results, constraints, spans, shapes, parameters)


@dataclass
class _Binding:
    """One solution of extents == shapes."""

    op: str
    names: tuple[str, ...]
    params: Mapping[str, Extents]
    results: Mapping[str, Extents]
    constraints: tuple[Constraint, ...]
    spans: Mapping[str, Span]
    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[SizeParameter, ...] = ()
    values: dict[str, int] = field(default_factory=dict)
    because: dict[str, _Reason] = field(default_factory=dict)
    diags: Diagnostics = field(default_factory=Diagnostics)

    def run(self, given: Mapping[str, int]) -> dict[str, int]:
        self._arguments()
        self.diags.raise_if_errors(ArgumentError)
        self.solved(given)
        self.diags.raise_if_errors(ArgumentError)
        self._extents(given)
        self._unsolved()
        self.diags.raise_if_errors(ArgumentError)
        self._constraints()
        self._results()
        self.diags.raise_if_errors(ArgumentError)
        return {n: self.values[n] for n in self.names}

    def _error(self, code: str, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.diags.error(code, message, span, hint)

    def _arguments(self) -> None:
        for name, shape in self.shapes.items():
            if name not in self.params:
                hint = did_you_mean(name, self.params)
                self._error("PF408", f"{self.op} has no parameter '{name}'", None, hint)
            elif len(shape) != len(self.params[name]):
                extents = ", ".join(map(str, self.params[name]))
                message = f"argument '{name}' of {self.op} has shape {shape}, expected [{extents}]"
                self._error("PF401", message, self.spans[name])
        missing = [n for n, extents in self.params.items() if extents and n not in self.shapes]
        if missing:
            names = ", ".join(f"'{n}'" for n in missing)
            self._error("PF408", f"{self.op} also needs {names}")

    # --- solving -------------------------------------------------------------------------------------

    def solved(self, given: Mapping[str, int]) -> dict[str, int]:
        """The values that follow; problems of defaults are in `diags`."""
        for n, value in given.items():
            self.values[n], self.because[n] = int(value), "it is given"
        while self._bind_one() or self._take_default():
            pass
        return self.values

    def _take_default(self) -> bool:
        for p in self.parameters:
            if p.name in self.values or p.default is None:
                continue
            if any(n not in self.values for n in sizes(p.default)):
                continue
            value = _value(p.default, self.values)
            if value is None or value < 0:
                used = ", ".join(f"{n} = {self.values[n]}" for n in sizes(p.default))
                message = f"no value of {p.name} for {self.op}: its default {p.default} is {value} for {used}"
                self._error("PF406", message, None, f"give it: {self.op}(..., {p.name}=...)")
                value = 0
            self.values[p.name], self.because[p.name] = value, "that is its default"
            return True
        return False

    def _equations(self) -> list[tuple[IndexExpr, IndexExpr, _Reason]]:
        found: list[tuple[IndexExpr, IndexExpr, _Reason]] = []
        for name, extents in self.params.items():
            for axis, e in enumerate(extents):
                found.append((e, IConst(self.shapes[name][axis]), (name, axis)))
        found += [(c.left, c.right, c) for c in self.constraints if c.op == "=="]
        return found

    def _bind_one(self) -> bool:
        known: dict[str, IndexExpr] = {n: IConst(v) for n, v in self.values.items()}
        for plain in (True, False):
            for left, right, source in self._equations():
                unknown = {*sizes(left), *sizes(right)} - set(self.values)
                if len(unknown) != 1:
                    continue
                (name,) = unknown
                if plain and (left != ISize(name) or not isinstance(right, IConst)):
                    continue
                difference = substitute(left, sizes=known) - substitute(right, sizes=known)
                value = _root(difference, name)
                if value is not None and value >= 0:
                    self.values[name], self.because[name] = value, source
                    return True
        return False

    # --- checking ------------------------------------------------------------------------------------

    def _extents(self, given: Mapping[str, int]) -> None:
        found = list(self._mismatches())
        hint = self._transposed(given) if found else None
        for name, axis, e, expected in found:
            self._mismatch(name, axis, e, expected, hint)
            hint = None

    def _mismatches(self) -> Iterator[tuple[str, int, IndexExpr, int | None]]:
        for name, extents in self.params.items():
            for axis, e in enumerate(extents):
                if any(n not in self.values for n in sizes(e)):
                    continue
                expected = _value(e, self.values)
                if self.shapes[name][axis] != expected:
                    yield name, axis, e, expected

    def _transposed(self, given: Mapping[str, int]) -> str | None:
        """The one argument with which all would fit if its last two axes changed places."""
        found = []
        for name, shape in self.shapes.items():
            if len(shape) < 2:
                continue
            turned = {**self.shapes, name: (*shape[:-2], shape[-1], shape[-2])}
            trial = replace(self, shapes=turned, values={}, because={}, diags=Diagnostics())
            trial.solved(given)
            if not trial.diags.found and not any(trial._mismatches()):
                found.append(f"{name}.T" if len(shape) == 2 else f"{name}.swapaxes(-1, -2)")
        return f"{found[0]} fits: two axes are the other way round" if len(found) == 1 else None

    def _mismatch(
        self, name: str, axis: int, extent: IndexExpr, expected: int | None, hint: str | None
    ) -> None:
        shape = self.shapes[name]
        message = f"size mismatch in {self.op}: '{name}' has shape {shape}, axis {axis} is {extent}"
        if isinstance(extent, IConst):
            self._error("PF405", f"{message} and must have extent {extent}", self.spans[name], hint)
            return
        message += f" = {expected}" if expected is not None else ""
        for size in sizes(extent):
            source = self.because[size]
            if isinstance(source, tuple):
                other, other_axis = source
                other_text = f"'{other}' has shape {self.shapes[other]}"
                message += f"; {size} = {self.values[size]} because {other_text} (axis {other_axis})"
            else:
                message += f"; {size} = {self.values[size]} because {source}"
        self._error("PF405", message, self.spans[name], hint)

    def _unsolved(self) -> None:
        for n in self.names:
            if n in self.values:
                continue
            for name, extents in self.params.items():
                for axis, e in enumerate(extents):
                    if n in sizes(e):
                        text = f"'{name}' has shape {self.shapes[name]}, axis {axis} is {e}"
                        message = f"no value of {n} fits the arguments of {self.op}: {text}"
                        self._error("PF406", message, self.spans[name])
                        break
            self._unsolved_constraint(n)
            if not self.diags.errors:
                message = f"the arguments of {self.op} do not give the size {n}"
                hint = "add a constraint such as `where M == 2*N`"
                if any(p.name == n for p in self.parameters):
                    hint = f"give it: {self.op}(..., {n}=...)"
                self._error("PF406", message, None, hint)

    def _unsolved_constraint(self, name: str) -> None:
        """PF406 for the equations that name this size alone among the unknown ones."""
        for c in self.constraints:
            used = dict.fromkeys((*sizes(c.left), *sizes(c.right)))
            others = [n for n in used if n != name]
            if c.op != "==" or name not in used or not others or not self.values.keys() >= set(others):
                continue
            values = ", ".join(f"{n} = {self.values[n]}{self._source(n)}" for n in others)
            message = f"no value of {name} fits the arguments of {self.op}: it needs {c}, but {values}"
            self._error("PF406", message, _written(c))

    def _constraints(self) -> None:
        for c in self.constraints:
            if _holds(c, self.values):
                continue
            used = dict.fromkeys((*sizes(c.left), *sizes(c.right)))
            values = ", ".join(f"{n} = {self.values[n]}{self._source(n)}" for n in used)
            self._error("PF407", f"{self.op} needs {c}, but {values}", _written(c))

    def _source(self, size: str) -> str:
        source = self.because[size]
        return f" (axis {source[1]} of '{source[0]}')" if isinstance(source, tuple) else ""

    def _results(self) -> None:
        for name, extents in self.results.items():
            for axis, e in enumerate(extents):
                value = _value(e, self.values)
                if value is None or value < 0:
                    given = ", ".join(f"{n} = {self.values[n]}" for n in sizes(e))
                    message = (
                        f"axis {axis} of the result '{name}' of {self.op} would have extent {e} = {value}"
                    )
                    self._error("PF409", f"{message} for {given}", self.spans[name])


def _root(difference: IndexExpr, name: str) -> int | None:
    """The integer that makes a linear expression in one size 0."""
    p = Facts().canon(difference)
    slope = p.get((ISize(name),), 0)
    if slope == 0 or any(m not in ((), (ISize(name),)) for m in p):
        return None
    offset = p.get((), 0)
    return None if offset % slope else -offset // slope


def _holds(c: Constraint, values: Mapping[str, int]) -> bool:
    left, right = _value(c.left, values), _value(c.right, values)
    return left is not None and right is not None and _HOLDS[c.op](left, right)


def _written(c: Constraint) -> Span | None:
    """Where a constraint stands, if it stands in a text."""
    return c.span if c.span.source.text else None


def _value(e: IndexExpr, values: Mapping[str, int]) -> int | None:
    """None for a division by zero."""
    try:
        return evaluate(e, values)
    except ZeroDivisionError:
        return None
