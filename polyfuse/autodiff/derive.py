"""From the graph of an operator to those of its gradient: a forward one that keeps values, a backward one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.autodiff.adjoint import Adjoint
from polyfuse.autodiff.keep import Choice, bytes_of, choose, firm, representative
from polyfuse.autodiff.structure import live_tensors
from polyfuse.autodiff.tidy import tidied
from polyfuse.decisions import Decision, format_bytes
from polyfuse.diagnostics import ArgumentError, Diagnostics
from polyfuse.frontend_dsl.semantics.size_algebra import Facts
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, IVar, sizes
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Const,
    IndexValue,
    IterDim,
    Read,
    Role,
    SizeParameter,
    Statement,
    Tensor,
    TensorGraph,
    statement_reads,
    walk,
)
from polyfuse.poly.legality.ranges import prove_ranges


@dataclass(frozen=True)
class Derived:
    """Both graphs, and where the arguments of the backward one come from
    (`polyfuse.gradient_pairs.Gradients`).

    `stored` are the values that are kept, as the backward graph calls them, `kept` as the forward one does.
    """

    forward: TensorGraph
    backward: TensorGraph
    wrt: tuple[str, ...]
    of: tuple[str, ...]
    cotangents: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    stored: tuple[str, ...]
    kept: tuple[str, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Wishes:
    """What the caller says: sizes that decide what is kept, and tensors that have to be, or must not be."""

    sizes: Mapping[str, int]
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()


def derive(
    graph: TensorGraph, wrt: Sequence[str] | None, of: Sequence[str] | None, wishes: Wishes
) -> Derived:
    """The gradient of an operator.

    Raises ArgumentError PF790 for names that are no inputs, results or values of it, PF791 where nothing
    flows, DslError PF792 and PF793 at what is not differentiable.
    """
    results = _results(graph, of)
    inputs = _inputs(graph, wrt, results)
    _values(graph, wishes)
    taken = (
        {t.name for t in graph.tensors}
        | set(graph.sizes)
        | {d.name for s in graph.statements for d in s.dims}
    )
    cotangents = {r: _free(f"d{graph.tensor(r).alias}_out" if graph.tensor(r).alias else f"d{r}", taken)
                  for r in results}  # fmt: skip
    gradients = {i: _free(f"d{i}", taken) for i in inputs}
    made = Adjoint(graph, cotangents, gradients, taken)
    made.derive()
    statements, tensors = tidied(made.statements, made.tensors, made.reuse)
    own = {*tensors, *cotangents.values()}
    needed = dict.fromkeys(r.tensor for s in statements for r in statement_reads(s) if r.tensor not in own)
    choice = choose(graph, needed, wishes.sizes, wishes.keep, wishes.recompute)
    backward = _backward(graph, choice, cotangents, gradients, statements, tensors)
    forward, kept = _forward(graph, choice)
    return Derived(
        forward,
        backward,
        tuple(inputs),
        tuple(results),
        tuple(cotangents.values()),
        choice.arguments,
        choice.results,
        choice.kept,
        kept,
        tuple(_decisions(graph, choice, made.notes, wishes)),
    )


# --- what is asked for ------------------------------------------------------------------------------


def _results(graph: TensorGraph, of: Sequence[str] | None) -> list[str]:
    """The results that have cotangents: floats, those of inout parameters by the parameter's name."""
    known = {t.alias or t.name: t for t in graph.tensors if t.role is Role.OUTPUT}
    if of is None:
        return [t.name for t in known.values() if t.dtype.is_float]
    for n in of:
        if n not in known:
            hint = did_you_mean(n, known) or f"it has {', '.join(known)}"
            raise ArgumentError(f"{graph.name} has no result '{n}'", code="PF790", hint=hint)
        if not known[n].dtype.is_float:
            hint = "gradients flow through floats"
            raise ArgumentError(f"result '{n}' of {graph.name} is {known[n].dtype}", code="PF791", hint=hint)
    return [known[n].name for n in of]


def _inputs(graph: TensorGraph, wrt: Sequence[str] | None, results: Collection[str]) -> list[str]:
    """The inputs that have gradients: all tensors of floats, if none are named."""
    if wrt is None:
        found = [n for n in graph.inputs if graph.tensor(n).dtype.is_float and graph.tensor(n).shape]
        live = live_tensors(graph, results, found)
        found = [n for n in found if n in live]
        if not found:
            hint = "scalars have gradients where wrt= names them"
            message = f"no result of {graph.name} depends on a tensor of floats so that a gradient flows"
            raise ArgumentError(message, code="PF791", hint=hint)
        return found
    for n in wrt:
        if n not in graph.inputs:
            hint = did_you_mean(n, graph.inputs) or f"it has {', '.join(graph.inputs)}"
            raise ArgumentError(f"{graph.name} has no parameter '{n}'", code="PF790", hint=hint)
        if not graph.tensor(n).dtype.is_float:
            message = f"parameter '{n}' of {graph.name} is {graph.tensor(n).dtype}"
            raise ArgumentError(message, code="PF791", hint="gradients flow through floats")
    live = live_tensors(graph, results, wrt)
    for n in wrt:
        if n not in live:
            message = f"no gradient flows to '{n}': no result of {graph.name} depends on it by floats"
            raise ArgumentError(message, code="PF791", hint=f"leave '{n}' out of wrt=")
    return list(wrt)


def _values(graph: TensorGraph, wishes: Wishes) -> None:
    known = [t.name for t in graph.tensors if t.role in (Role.TEMP, Role.OUTPUT)]
    for n in (*wishes.keep, *wishes.recompute):
        if n not in known:
            hint = did_you_mean(n, known) or f"it has {', '.join(known)}"
            raise ArgumentError(f"{graph.name} computes no '{n}'", code="PF790", hint=hint)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


# --- graphs -----------------------------------------------------------------------------------------


def _forward(graph: TensorGraph, choice: Choice) -> tuple[TensorGraph, tuple[str, ...]]:
    """The operator with the values that are kept as further results, and their names."""
    tensors, statements, names = list(graph.tensors), list(graph.statements), []
    for n in choice.kept:
        t = graph.tensor(n)
        if t.role is Role.INOUT:
            entry = f"{n}__in"
            tensors.append(replace(t, name=entry, role=Role.OUTPUT))
            statements.append(_copy(t, entry))
            names.append(entry)
        elif _is_partial(graph, t):
            whole = f"{n}__all"
            tensors.append(replace(t, name=whole, role=Role.OUTPUT))
            statements += _filled(graph, t, whole)
            names.append(whole)
        else:
            tensors = [replace(x, role=Role.OUTPUT) if x is t else x for x in tensors]
            names.append(n)
    outputs = (*graph.outputs, *names)
    return replace(graph, tensors=tuple(tensors), statements=tuple(statements), outputs=outputs), tuple(names)


def _is_partial(graph: TensorGraph, t: Tensor) -> bool:
    """Do its definitions leave elements out?"""
    one = [replace(x, role=Role.OUTPUT if x is t else Role.TEMP) if x.role in (Role.TEMP, Role.OUTPUT) else x
           for x in graph.tensors]  # fmt: skip
    one = [replace(x, alias=None) for x in one]
    found = Diagnostics()
    prove_ranges(replace(graph, tensors=tuple(one), outputs=(t.name,)), None, found)
    return any(d.code == "PF353" for d in found.errors)


def _filled(graph: TensorGraph, t: Tensor, name: str) -> list[Statement]:
    """A copy with zeros where nothing is defined."""
    dims = tuple(IterDim(f"i{k}", IConst(0), n) for k, n in enumerate(t.shape))
    zero = Const(0.0 if t.dtype.is_float else 0, t.dtype.compute)
    made = [Statement(name, name, dims, tuple(IVar(d.name) for d in dims), zero)]
    for k, s in enumerate(graph.writers(t.name)):
        outer = tuple(d for d in s.dims if not d.reduce)
        read = Read(t.name, s.write, t.dtype)
        made.append(Statement(f"{name}_{k}", name, outer, s.write, read, "sum", True))
    return made


def _copy(t: Tensor, name: str) -> Statement:
    dims = tuple(IterDim(f"i{k}", IConst(0), n) for k, n in enumerate(t.shape))
    at = tuple(IVar(d.name) for d in dims)
    return Statement(name, name, dims, at, Read(t.name, at, t.dtype))


def _backward(
    graph: TensorGraph,
    choice: Choice,
    cotangents: Mapping[str, str],
    gradients: Mapping[str, str],
    statements: Sequence[Statement],
    tensors: Mapping[str, Tensor],
) -> TensorGraph:
    given = [replace(graph.tensor(r), name=n, role=Role.INPUT, alias=None) for r, n in cotangents.items()]
    read = [graph.tensor(n) for n in (*choice.arguments, *choice.results, *choice.kept)]
    given += [replace(t, role=Role.INPUT, alias=None) for t in read if t.shape]
    given += [replace(t, role=Role.INPUT, alias=None) for t in read if not t.shape]
    again = [replace(graph.tensor(n), role=Role.TEMP, alias=None) for n in choice.again]
    copied = [s for s in graph.statements if s.target in choice.again]
    results = [tensors[n] for n in gradients.values()]
    temps = [t for t in tensors.values() if t.role is Role.TEMP]
    all_tensors = (*given, *results, *again, *temps)
    all_statements = _named_apart([*copied, *_ordered(statements)])
    used = _sizes_of(all_tensors, all_statements)
    constraints = tuple(c for c in graph.constraints if {*sizes(c.left), *sizes(c.right)} <= used)
    open_ = _not_given(given, used, graph)
    return TensorGraph(
        f"{graph.name}_backward",
        tuple(n for n in graph.sizes if n in used),
        constraints,
        tuple(all_tensors),
        tuple(all_statements),
        tuple(t.name for t in given),
        tuple(t.name for t in results),
        size_parameters=tuple(SizeParameter(n, None) for n in open_),
    )


def _named_apart(statements: Iterable[Statement]) -> list[Statement]:
    found: list[Statement] = []
    taken: set[str] = set()
    for s in statements:
        name, k = s.name, 2
        while name in taken:
            name, k = f"{s.name}_{k}", k + 1
        taken.add(name)
        found.append(replace(s, name=name))
    return found


def _ordered(statements: Sequence[Statement]) -> list[Statement]:
    """Definitions before what reads them, for those who read; in a recurrence there is no such order."""
    writers: dict[str, list[Statement]] = {}
    for s in statements:
        writers.setdefault(s.target, []).append(s)
    done: dict[str, None] = {}
    found: list[Statement] = []

    def visit(s: Statement) -> None:
        if s.name in done:
            return
        done[s.name] = None
        for r in statement_reads(s):
            for w in writers.get(r.tensor, ()):
                visit(w)
        found.append(s)

    for s in statements:
        visit(s)
    return found


def _sizes_of(tensors: Iterable[Tensor], statements: Iterable[Statement]) -> set[str]:
    found = {n for t in tensors for e in t.shape for n in sizes(e)}
    for s in statements:
        found |= {n for d in s.dims for e in (d.lower, d.upper) for n in sizes(e)}
        for e in (s.expr, *(i for i in s.write if isinstance(i, EXPR_TYPES))):
            for x in walk(e):
                if isinstance(x, IndexValue):
                    found |= set(sizes(x.index))
                elif isinstance(x, Read):
                    found |= {n for i in x.indices if not isinstance(i, EXPR_TYPES) for n in sizes(i)}
        found |= {n for i in s.write if not isinstance(i, EXPR_TYPES) for n in sizes(i)}
        found |= set(sizes(s.place)) if s.place is not None else set()
    return found


def _not_given(given: Iterable[Tensor], used: Collection[str], graph: TensorGraph) -> list[str]:
    """The sizes that do not follow from the shapes of arguments: callers give them."""
    facts = Facts()
    known: set[str] = set()
    equations: list[IndexExpr] = [e for t in given for e in t.shape]
    changed = True
    while changed:
        changed = False
        for e in equations:
            left = set(sizes(e)) - known
            if len(left) == 1:
                (name,) = left
                p = facts.canon(e)
                others = {m: c for m, c in p.items() if ISize(name) not in m}
                slope = {m: c for m, c in p.items() if ISize(name) in m}
                hidden = any(name in sizes(a) for m in others for a in m)
                if hidden or any(m.count(ISize(name)) > 1 for m in slope):
                    continue
                known.add(name)
                changed = True
    return [n for n in graph.sizes if n in used and n not in known]


def _decisions(
    graph: TensorGraph, choice: Choice, notes: Iterable[tuple[str, str]], wishes: Wishes
) -> Iterable[Decision]:
    values, stays = representative(graph, wishes.sizes), firm(graph)
    for n in choice.kept:
        why = "fewer bytes than what it follows from"
        if n in wishes.keep:
            why = "as asked for"
        elif n in stays:
            why = "sums, extremes, orders, scatters and recurrences are not computed again"
        moved = format_bytes(2 * bytes_of(graph.tensor(n), values))
        yield Decision("keep", n, True, f"{why}; {moved} are written and read")
    for n in choice.results:
        yield Decision("keep", n, True, "a result, which is in memory anyway")
    for n in choice.again:
        size = bytes_of(graph.tensor(n), values)
        yield Decision(
            "recompute", n, True, "follows from what the backward operator reads", saved_bytes=2 * size
        )
    for n, reason in notes:
        yield Decision("scatter", n, True, reason)
