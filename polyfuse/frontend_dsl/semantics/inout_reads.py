"""Reads of inout parameters, which mean values at entry: the warning PF293 where the text may mean another.

    m[i] = mom * m[i] + g[i]
    p[i] = p[i] - m[i]           reads the m of before the call: m[i] is written by the other statement

`old(m[i])` says so, and is no mistake.  Nor is a read by what the new value is made of, as of m_new in
`m[i] = m_new[i]`: it can mean no other value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import children, statement_exprs
from polyfuse.frontend_dsl.syntax.names import OLD, Library


def read_at_entry(e: ast.Expr) -> ast.Name | ast.Subscript | ast.Padded | None:
    """What `old(...)` reads, None where `e` is something else."""
    match e:
        case ast.Call(callee, (ast.Name() | ast.Subscript() | ast.Padded() as read,), ()) if callee == OLD:
            return read
        case _:
            return None


def warn_entry_reads(op: ast.OpDef, library: Library, home: ast.Program, diags: Diagnostics) -> None:
    """PF293 for statements that read what another statement of the operator writes in place."""
    inouts = frozenset(p.name for p in op.params if p.inout)
    if not inouts:
        return
    statements = [_Statement.of(s, inouts, library, home) for s in op.body]
    for name in sorted(inouts):
        writers = [s for s in statements if name in s.writes]
        used = _made_of(writers, statements)
        for s in statements:
            other = next((w for w in writers if w is not s), None)
            read = next((r for r in s.reads if _name(r) == name), None)
            if other is not None and read is not None and s not in used:
                _warn(name, read, other.node, diags)


@dataclass(eq=False)
class _Statement:
    """What a statement writes: parameters in place, and tensors that it defines.  `reads` are those of
    parameters that do not say `old`, `names` all that it mentions."""

    node: ast.Stmt
    writes: frozenset[str]
    defines: frozenset[str]
    reads: list[ast.Name | ast.Subscript]
    names: frozenset[str]

    @classmethod
    def of(cls, s: ast.Stmt, inouts: frozenset[str], library: Library, home: ast.Program) -> _Statement:
        call = s.call if isinstance(s, ast.CallStmt) else s.value if isinstance(s, ast.Define) else None
        given = _in_place(call, library, home) if isinstance(call, ast.Call) else []
        targets = {s.target} if isinstance(s, ast.Define) else set[str]()
        targets |= set(s.targets) if isinstance(s, ast.CallStmt) else set()
        targets |= {s.name} if isinstance(s, ast.Let) else set()
        every = [r for e in statement_exprs(s) for r in _reads(e)]
        reads = [r for r in every if _name(r) in inouts and not any(r is e for e in given)]
        if isinstance(s, ast.Define):  # the element that it writes itself is no other's
            reads = [r for r in reads if not (_name(r) == s.target and _indices(r) == (s.indices or ()))]
        writes = (targets | {e.id for e in given}) & inouts
        return cls(s, frozenset(writes), frozenset(targets - inouts), reads, frozenset(map(_name, every)))


def _made_of(writers: list[_Statement], statements: list[_Statement]) -> set[_Statement]:
    """The statements whose tensors the writers need, directly or by way of others."""
    found: set[_Statement] = set()
    waiting = list(writers)
    while waiting:
        names = waiting.pop().names
        new = [s for s in statements if s.defines & names and s not in found]
        found.update(new)
        waiting += new
    return found


def _in_place(call: ast.Call, library: Library, home: ast.Program) -> list[ast.Name]:
    """The arguments of a call that the called operator writes."""
    found = library.find(call.callee, home)
    if found is None:
        return []
    given = dict(zip((p.name for p in found[0].params), call.args, strict=False)) | dict(call.keywords)
    arguments = [given.get(p.name) for p in found[0].params if p.inout]
    return [e for e in arguments if isinstance(e, ast.Name)]


def _reads(e: ast.Expr) -> Iterator[ast.Name | ast.Subscript]:
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, ast.Name | ast.Subscript):
            yield x
        old = read_at_entry(x)
        if isinstance(old, ast.Padded):
            stack.append(old.outside)
            old = old.read
        stack += reversed(children(x if old is None else old))


def _name(e: ast.Name | ast.Subscript) -> str:
    return e.id if isinstance(e, ast.Name) else e.name


def _indices(e: ast.Name | ast.Subscript) -> tuple[ast.Expr, ...]:
    return e.indices if isinstance(e, ast.Subscript) else ()


def _warn(name: str, read: ast.Name | ast.Subscript, writer: ast.Stmt, diags: Diagnostics) -> None:
    hint = f"write {OLD}({read.span.text or name}) for the value at entry, or name the new one"
    if isinstance(writer, ast.Define) and writer.op == "=" and not writer.ranges:
        indices = writer.span.text[len(name) :].partition("=")[0].strip()
        hint += f" and read that: {name}_new{indices} = ...; {name}{indices} = {name}_new{indices}"
    message = f"this '{name}' is the value at entry, not what another statement makes of it"
    place = writer.target_span if isinstance(writer, ast.Define) else writer.span
    diags.warning("PF293", message, read.span, hint, ((place, f"'{name}' is written here"),))
