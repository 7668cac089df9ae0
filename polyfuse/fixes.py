"""Hints as data: the edits that mend a finding, and a text with them carried out.

Findings that know their edits carry them (`Diagnostic.fix`). Of others `fix_of` finds them by the code: from
the place, the program, and the name or the spelling that the hint gives.

    x[i] − y[i]      PF104   ->  x[i] - y[i]            keeps the meaning: nothing else can be meant
    p[i] - m[i]      PF293   ->  p[i] - old(m[i])       keeps the meaning
    exq(x[i])        PF211   ->  exp(x[i])              may be another meaning than the one in mind
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from polyfuse.diagnostics import Diagnostic, Edit, Fix, Severity
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import statement_exprs, walk
from polyfuse.source import Span

ROUNDS = 20
"""A fix may show the next finding; so often is a program checked again."""


def fix_of(d: Diagnostic, program: ast.Program | None = None) -> Fix | None:
    """The edits that mend a finding, which `program` has; None where the hint leaves a choice."""
    if d.fix is not None or d.span is None:
        return d.fix
    found = _BY_CODE.get(d.code)
    made = found(d, d.span, program) if found is not None else None
    return made or _named(d, d.span)


def _named(d: Diagnostic, span: Span) -> Fix | None:
    """`did you mean 'exp'?`: the name that is there becomes the one meant."""
    meant = re.match(r"did you mean '(\w+)'\?", d.hint or "")
    written = re.search(r"'(\w+)'", d.message)
    if meant is None or written is None:
        return None
    at = re.search(rf"(?<!\w){re.escape(written[1])}(?!\w)", span.text)
    if at is None:
        return None
    place = Span(span.source, span.start + at.start(), span.start + at.end())
    return Fix(f"write {meant[1]} for {written[1]}", (Edit(place, meant[1]),), False)


def _lookalike(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix | None:
    """PF104: a character that looks like another one, or like none."""
    hint = d.hint or ""
    meant = re.match(r"it looks like ASCII '(.+)'; write that", hint)
    if meant is not None:
        return Fix(f"write {meant[1]}", (Edit(span, meant[1]),), True)
    if hint == "write an ordinary space":
        return Fix(hint, (Edit(span, " "),), True)
    if hint == "it cannot be seen; delete it":
        return Fix("delete it", (Edit(span, ""),), True)
    return None


def _power(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix | None:
    """PF216: `^` between floats."""
    if "written '**'" not in (d.hint or "") or span.text.count("^") != 1:
        return None
    at = span.start + span.text.index("^")
    return Fix("write **", (Edit(Span(span.source, at, at + 1), "**"),), False)


def _number(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix | None:
    """PF110: a number that begins with 0, or has a suffix."""
    meant = re.fullmatch(r"write (\d[\d_]*(?:\.\d+)?)", d.hint or "")
    return Fix(f"write {meant[1]}", (Edit(span, meant[1]),), True) if meant else None


def _at_entry(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix:
    """PF293: the read says that it is of the value at entry, which it is."""
    return Fix(f"write old({span.text})", (Edit(span, f"old({span.text})"),), True)


def _range(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix | None:
    """PF302: the range that the hint names, behind the statement or at the variable of a reduction."""
    given = re.search(r"such as: (?:for |\w+\[)(\w+ in [^<>\]]+)(?:\]\(\.\.\.\))?$", d.hint or "")
    if given is None or program is None:
        return None
    if span.source.text[: span.start].rstrip().endswith(("[", ",")) and _is_reduced(program, span):
        return Fix(f"write {given[1]}", (Edit(span, given[1]),), False)
    stmt = _statement(program, span)
    if not isinstance(stmt, ast.Define):
        return None
    begin = ", " if stmt.ranges else " for "
    place = Span(span.source, stmt.span.end, stmt.span.end)
    return Fix(f"write for {given[1]}", (Edit(place, begin + given[1]),), False)


def _is_reduced(program: ast.Program, span: Span) -> bool:
    """Whether a place is that of a variable between the brackets of a reduction."""
    stmt = _statement(program, span)
    every = [x for e in (statement_exprs(stmt) if stmt else ()) for x in walk(e)]
    return any(v.span.start == span.start for x in every if isinstance(x, ast.Reduce) for v in x.vars)


def _unused(d: Diagnostic, span: Span, program: ast.Program | None) -> Fix | None:
    """PF290: without the statements of a definition that nothing reads."""
    stmt = _statement(program, span) if program is not None else None
    if program is None or not isinstance(stmt, ast.Define):
        return None
    op = next(op for op in program.ops if stmt in op.body)
    parts = [s for s in op.body if _defines(s, stmt.target)]
    if any(isinstance(s, ast.CallStmt) for s in parts) or any(map(_is_call, parts)):
        return None  # what is called may write its arguments
    return Fix(f"remove {stmt.target}", tuple(Edit(_whole_line(s.span), "") for s in parts), True)


def _defines(s: ast.Stmt, name: str) -> bool:
    match s:
        case ast.Define():
            return s.target == name
        case ast.Let():
            return s.name == name
        case ast.CallStmt():
            return name in s.targets


def _is_call(s: ast.Stmt) -> bool:
    return isinstance(s, ast.Define) and s.indices is None and isinstance(s.value, ast.Call)


def _statement(program: ast.Program, span: Span) -> ast.Stmt | None:
    every = (s for op in program.ops for s in op.body)
    return next((s for s in every if s.span.start <= span.start and span.end <= s.span.end), None)


def _whole_line(span: Span) -> Span:
    """A statement with the separator behind it; its line as well, if nothing else is on it."""
    text = span.source.text
    start, end = span.start, span.end
    behind = re.compile(r"[ \t]*;[ \t]*").match(text, end)
    end = behind.end() if behind else end
    first = text.rfind("\n", 0, start) + 1
    last = re.compile(r"[ \t\r]*(?:\n|$)").match(text, end)
    if not text[first:start].strip() and last is not None:
        return Span(span.source, first, last.end())
    return Span(span.source, start, end)


_BY_CODE: dict[str, Callable[[Diagnostic, Span, ast.Program | None], Fix | None]] = {
    "PF104": _lookalike,
    "PF216": _power,
    "PF110": _number,
    "PF290": _unused,
    "PF293": _at_entry,
    "PF302": _range,
}


# --- carrying out -----------------------------------------------------------------------------------------


def with_fixes(text: str, fixes: Iterable[Fix]) -> tuple[str, list[Fix]]:
    """The text after the edits, and the fixes carried out: of those that overlap, the first."""
    taken: list[Edit] = []
    done: list[Fix] = []
    for fix in fixes:
        if not any(_overlap(a, b) for a in fix.edits for b in taken):
            taken += fix.edits
            done.append(fix)
    for e in sorted(taken, key=lambda e: e.span.start, reverse=True):
        text = text[: e.span.start] + e.text + text[e.span.end :]
    return text, done


def _overlap(a: Edit, b: Edit) -> bool:
    if a == b or a.span.start == b.span.start:
        return True
    return a.span.start < b.span.end and b.span.start < a.span.end


def mended(
    text: str,
    check: Callable[[str], tuple[ast.Program | None, Sequence[Diagnostic]]],
    unsafe: bool = False,
) -> tuple[str, int]:
    """A text with all its fixes carried out, and how many they were.

    `check` gives the program of a text, None where its syntax is wrong, and what is found in it. A round that
    leaves more errors than there were is taken back.
    """
    count = 0
    program, found = check(text)
    for _ in range(ROUNDS):
        own = [d for d in found if d.span is not None and d.span.source.text == text]
        fixes = [f for d in own if (f := fix_of(d, program)) is not None and (unsafe or f.keeps_meaning)]
        new, done = with_fixes(text, fixes)
        if not done:
            break
        program, after = check(new)
        if _errors(after) > _errors(found):
            break
        text, found, count = new, after, count + len(done)
    return text, count


def _errors(found: Iterable[Diagnostic]) -> int:
    return sum(d.severity is Severity.ERROR for d in found)
