"""Which loops may run their iterations together, statement by statement, without changing a bit.

The interpreter runs many iterations of such a loop at once as NumPy arrays ("lanes").  A loop over `v` is
safe if for every buffer that its body touches one of these holds:

* it is only read;
* some index of all its accesses is the same ``a * v + rest`` with a fixed rest: each iteration has
  elements of its own (modulo E: as long as no more than E values meet);
* it is a register that every iteration writes before it reads, and that nothing after the loop needs:
  each iteration has a register of its own;
* a single statement directly in the body accumulates into it and nothing else touches it: the updates
  are then made in the order of the iterations.

This asks nothing of the compiler's own analyses: what the schedule claims about a loop is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, variables
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, reads
from polyfuse.runtime.interpreter.program import Guard, Loop, Node, Program, Safe, Step

# What an index is, up to what `v` is: modulus (0: none) and terms of a sum.
_Key = tuple[int, frozenset[tuple[IndexExpr | None, int]]]


@dataclass(frozen=True, slots=True)
class _Access:
    indices: tuple[Index, ...]
    step: Step
    write: bool
    nested: bool  # within a loop inside the loop in question


def mark_safe(program: Program, entry: Mapping[str, str]) -> None:
    """Set `safe` on every loop. `entry`: written tensor -> the tensor whose memory it may share."""
    registers = [n for n, s in program.storage.items() if s.register]
    ends: dict[int, set[str]] = {}
    for r in registers:
        _mark_ends(program.body, r, True, ends)
    local = any(s.private and not s.register for s in program.storage.values())

    def go(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            match node:
                case Loop():
                    if not (node.block and local):
                        node.safe = _safe(program, node, entry, ends.get(id(node), set()))
                    go(node.body)
                case Guard():
                    go(node.then)
                    go(node.other)
                case Step():
                    pass

    go(program.body)


def _safe(program: Program, loop: Loop, entry: Mapping[str, str], ended: set[str]) -> Safe | None:
    touched: dict[str, list[_Access]] = {}
    inner: set[str] = set()
    _collect(loop.body, False, touched, inner, entry)
    most, private = 0, []
    for name, accesses in touched.items():
        storage = program.storage.get(name)
        if storage is not None and storage.register and name in ended:
            private.append(name)
            continue
        if loop.block and storage is not None and storage.private:
            return None
        if not any(a.write for a in accesses):
            continue
        distinct = _distinct(loop, accesses, inner)
        if distinct is not None:
            most = min(most or distinct, distinct or most)
        elif not _accumulates(accesses):
            return None
    return None if most == 1 else Safe(most, tuple(private))


def _collect(
    nodes: tuple[Node, ...],
    nested: bool,
    touched: dict[str, list[_Access]],
    inner: set[str],
    entry: Mapping[str, str],
) -> None:
    for node in nodes:
        match node:
            case Loop():
                inner.add(node.var)
                _collect(node.body, True, touched, inner, entry)
            case Guard():
                _collect(node.then, nested, touched, inner, entry)
                _collect(node.other, nested, touched, inner, entry)
            case Step():
                for name, indices, write in _accesses(node):
                    key = entry.get(name, name)
                    touched.setdefault(key, []).append(_Access(indices, node, write, nested))


def _accesses(step: Step) -> list[tuple[str, tuple[Index, ...], bool]]:
    """The write first, then the reads."""
    found = [(step.buffer, step.indices, True)]
    found += [(r.tensor, r.indices, False) for r in reads(step.expr)]
    for i in step.indices:
        if isinstance(i, EXPR_TYPES):
            found += [(r.tensor, r.indices, False) for r in reads(i)]
    return found


def _accumulates(accesses: list[_Access]) -> bool:
    """One statement, directly in the loop, adds to it."""
    return len(accesses) == 1 and accesses[0].step.op is not None and not accesses[0].nested


# --- elements of its own for each iteration -------------------------------------------------------------


def _distinct(loop: Loop, accesses: list[_Access], inner: set[str]) -> int | None:
    """How many iterations have elements of their own (0: all of them), or None."""
    best: int | None = None
    for parts in zip(*(a.indices for a in accesses), strict=True):
        keys = {_key(i) for i in parts}
        if len(keys) != 1 or None in keys:
            continue
        modulus, terms = keys.pop()  # type: ignore[misc]
        step = _coefficient(terms, loop.var, inner)
        if step == 0:
            continue
        if modulus == 0:
            return 0
        best = max(best or 0, (modulus - 1) // abs(step * loop.step) + 1)
    return best


def _coefficient(terms: frozenset[tuple[IndexExpr | None, int]], var: str, inner: set[str]) -> int:
    """Of `var`, if nothing else in the sum changes in its loop; else 0."""
    found = 0
    for atom, factor in terms:
        if atom == IVar(var):
            found = factor
        elif atom is not None and set(variables(atom)) & (inner | {var}):
            return 0
    return found


def _key(i: Index) -> _Key | None:
    if isinstance(i, EXPR_TYPES):
        return None
    match i:
        case IBin("%", left, IConst(modulus)) if modulus > 0:
            return modulus, frozenset(_terms(left).items())
        case _:
            return 0, frozenset(_terms(i).items())


def _terms(e: IndexExpr) -> dict[IndexExpr | None, int]:
    """A sum as atom -> factor (None: the constant); what is not linear is an atom."""
    match e:
        case IConst(value):
            return {None: value} if value else {}
        case IBin("+" | "-" as op, left, right):
            total = dict(_terms(left))
            for atom, factor in _terms(right).items():
                total[atom] = total.get(atom, 0) + (factor if op == "+" else -factor)
            return {a: f for a, f in total.items() if f}
        case IBin("*", IConst(c), other) | IBin("*", other, IConst(c)):
            return {a: f * c for a, f in _terms(other).items() if f * c}
        case _:
            return {e: 1}


# --- registers of its own for each iteration --------------------------------------------------------------


def _mark_ends(nodes: tuple[Node, ...], r: str, over: bool, ends: dict[int, set[str]]) -> None:
    """Collect the loops (by id) into and out of which register `r` carries no value.

    `over`: nothing after these nodes needs it.
    """
    users = [n for n in nodes if _uses(n, r)]
    for k, node in enumerate(users):
        rest = users[k + 1 :]
        after = _fresh(rest, r) if rest else over
        match node:
            case Loop():
                starts = _fresh([n for n in node.body if _uses(n, r)], r)
                if starts and after:
                    ends.setdefault(id(node), set()).add(r)
                _mark_ends(node.body, r, starts and after, ends)
            case Guard():
                _mark_ends(node.then, r, after, ends)
                _mark_ends(node.other, r, after, ends)
            case Step():
                pass


def _fresh(users: list[Node], r: str) -> bool:
    """Do these users of `r` need no value from before?"""
    if not users:
        return True
    first = users[0]
    if isinstance(first, Step):
        written = first.buffer == r and first.op is None
        return written and not any(name == r for name, _, write in _accesses(first) if not write)
    if any(isinstance(n, Step) for n in users):
        return False
    return all(_fresh([n for n in part if _uses(n, r)], r) for node in users for part in _parts(node))


def _parts(node: Node) -> tuple[tuple[Node, ...], ...]:
    match node:
        case Loop():
            return (node.body,)
        case Guard():
            return (node.then, node.other)
        case Step():
            return ()


def _uses(node: Node, r: str) -> bool:
    if isinstance(node, Step):
        return any(name == r for name, _, _ in _accesses(node))
    return any(_uses(n, r) for part in _parts(node) for n in part)
