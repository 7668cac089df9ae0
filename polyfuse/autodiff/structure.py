"""Which tensors gradients flow through, and in what order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from polyfuse.ir.ops import ARG_REDUCTIONS
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, Select, TensorGraph, statement_reads


def smooth_reads(e: Expr) -> Iterable[str]:
    """The tensors on which a float depends by other ways than conditions, indices and integers."""
    match e:
        case Read(tensor, _, dtype) if dtype.is_float:
            yield tensor
        case Select(_, then, other):
            yield from smooth_reads(then)
            yield from smooth_reads(other)
        case Cast(arg) if e.dtype.is_float and arg.dtype.is_float:
            yield from smooth_reads(arg)
        case Apply(_, args) if e.dtype.is_float:
            for a in args:
                yield from smooth_reads(a)
        case _:
            return


def live_tensors(graph: TensorGraph, results: Collection[str], inputs: Collection[str]) -> set[str]:
    """Those that depend on the inputs and that the results depend on."""
    needs: dict[str, set[str]] = {}
    for s in graph.statements:
        if s.reduction not in ARG_REDUCTIONS:
            needs.setdefault(s.target, set()).update(smooth_reads(s.expr))
    for t in graph.tensors:
        if t.alias is not None:  # elements that are not written stay
            needs.setdefault(t.name, set()).add(t.alias)
    behind: dict[str, set[str]] = {}
    for target, read in needs.items():
        for r in read:
            behind.setdefault(r, set()).add(target)
    return _reached(inputs, behind) & _reached(results, needs)


def _reached(start: Collection[str], to: Mapping[str, set[str]]) -> set[str]:
    found, left = set(start), list(start)
    while left:
        for n in to.get(left.pop(), ()):
            if n not in found:
                found.add(n)
                left.append(n)
    return found


def groups(graph: TensorGraph, names: Collection[str]) -> list[tuple[tuple[str, ...], bool]]:
    """The tensors, those first that others are computed from; those of a recurrence together, and told so."""
    needs = {t.name: dict[str, None]() for t in graph.tensors if t.name in names}
    for s in graph.statements:
        if s.target in needs:
            needs[s.target].update(dict.fromkeys(r.tensor for r in statement_reads(s) if r.tensor in needs))
    found = _components({n: tuple(m) for n, m in needs.items()})
    return [(group, len(group) > 1 or group[0] in needs[group[0]]) for group in found]


def _components(needs: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Strongly connected components by Tarjan's algorithm, without recursion."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []
    for root in needs:
        if root in number:
            continue
        work: list[tuple[str, int]] = [(root, 0)]
        while work:
            name, at = work.pop()
            if at == 0:
                number[name] = low[name] = len(number)
                stack.append(name)
            if at < len(needs[name]):
                work.append((name, at + 1))
                other = needs[name][at]
                if other not in number:
                    work.append((other, 0))
                elif other in stack:
                    low[name] = min(low[name], number[other])
                continue
            if low[name] == number[name]:
                k = stack.index(name)
                found.append(tuple(stack[k:]))
                del stack[k:]
            elif work:
                pass
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
    return found
