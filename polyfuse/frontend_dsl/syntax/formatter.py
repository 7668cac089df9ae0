"""Prints a program in its canonical layout; comments and the spelling of numbers stay.

    * two blanks of indentation, one statement per line, one blank line between operators,
      at most one blank line between statements (where there was one);
    * signatures and statements longer than `WIDTH` are wrapped, statements before `for`, else after the
      operator that binds loosest and is in fewest brackets;
    * a comment on its own line stays in front of what follows it, a comment behind code stays behind
      it, a comment in the middle of a statement moves in front of the statement.

``format_program(parse(format_program(p)))`` is ``format_program(p)``, and parsing the result gives a
program equal to ``p``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.expr_text import expr_text, generic_text, range_text, type_text
from polyfuse.frontend_dsl.syntax.lexical import MAX_BRACKETS
from polyfuse.source import Span

# --- comments ---------------------------------------------------------------------------------------------


_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


class Comments:
    """A cursor over the comments of a program and over the text between its parts."""

    def __init__(self, program: ast.Program) -> None:
        self._text = program.source.text
        self._source = program.source
        self._left = list(reversed(program.comments))
        self._end = 0

    def before(self, offset: int) -> list[ast.Comment]:
        """Takes the comments that begin before an offset."""
        taken = []
        while self._left and self._left[-1].span.start < offset:
            taken.append(self._left.pop())
        return taken

    def leading(self, span: Span) -> list[ast.Comment]:
        """Takes the comments in front of a node."""
        return self.before(span.start)

    def inside(self, span: Span) -> list[ast.Comment]:
        """Takes the comments within a node, and counts the node as printed."""
        taken = self.before(span.end)
        self._end = max(self._end, span.end)
        return taken

    def rest(self) -> list[ast.Comment]:
        """Takes all that are left."""
        return self.before(len(self._text) + 1)

    def any_before(self, offset: int) -> bool:
        return bool(self._left) and self._left[-1].span.start < offset

    def trailing(self, offset: int) -> str:
        """Takes the comment behind a node that ends at `offset`, as the text to append.

        Only punctuation may lie between the two.
        """
        if not self._left or self._left[-1].own_line:
            return ""
        comment = self._left[-1]
        between = self._text[offset : comment.span.start]
        if comment.span.start < offset or between.strip(" \t,;)"):
            return ""
        self._left.pop()
        self.done(comment.span)
        return f"  {comment.text}"

    def blank_before(self, span: Span) -> bool:
        """Whether a blank line lies between what was printed last and `span`."""
        gap = self._text[self._end : span.start]
        return span.start > self._end and _BLANK_LINE.search(gap) is not None

    def done(self, span: Span) -> None:
        """Counts a node or a comment as printed."""
        self._end = max(self._end, span.end)

    def skip_to(self, offset: int) -> None:
        """Counts everything before an offset as printed."""
        self._end = max(self._end, offset)

    def brace_of(self, op: ast.OpDef) -> int:
        """The offset behind the ``{`` of an operator."""
        return self._after(op.name_span.end, "{")

    def closing_after(self, offset: int) -> int:
        """The offset of the next ``)`` that is not in a comment."""
        return max(0, self._after(offset, ")") - 1)

    def _after(self, offset: int, char: str) -> int:
        for match in re.compile(rf"#[^\n]*|{re.escape(char)}").finditer(self._text, offset):
            if match.group() == char:
                return match.end()
        return 0


WIDTH = 100
INDENT = "  "

_Placed: TypeAlias = ast.Stmt | ast.Param | ast.Expr
# After which a line may be broken, as before `for`: a comma, an operator, a word of a choice; and how tightly
# it binds.
_LOOSE_FIRST = (", if else", "or", "and", "< <= > >= == !=", "|", "^", "&", "<< >>", "+ -", "* / // %")
_TIGHTNESS = {name: tightness for tightness, names in enumerate(_LOOSE_FIRST) for name in names.split()}
_ASSIGN = ("=", "+=", "max=", "min=")
# Of a reduction, and a left side: between these brackets a line is broken only where it can be nowhere else.
_TOGETHER = re.compile(
    rf"\w+\[[^\[\]]*\](?=\()|^ *\w+\[.*?\](?= (?:{'|'.join(re.escape(n) for n in _ASSIGN)}) )"
)
_BREAK = re.compile(
    rf"(?:,|(?<= )(?:{'|'.join(re.escape(n) for n in (*_TIGHTNESS, *_ASSIGN) if n != ',')})) |(?<= )(?=for )"
)


def format_program(program: ast.Program) -> str:
    """The canonical text of a program; it ends in a newline unless it is empty."""
    comments = Comments(program)
    lines: list[str] = []
    items: tuple[ast.Import | ast.OpDef | ast.FnDef, ...] = (*program.imports, *_items(program))
    before: object = None
    for item in items:
        is_op = isinstance(item, ast.OpDef) or isinstance(before, ast.OpDef)
        leading = comments.leading(item.span)
        blank = comments.blank_before(leading[0].span if leading else item.span)
        if lines and (is_op or blank or (isinstance(item, ast.FnDef) != isinstance(before, ast.FnDef))):
            lines.append("")
        _own_lines(lines, leading, "", comments)
        if leading and comments.blank_before(item.span):
            lines.append("")
        match item:
            case ast.OpDef():
                lines += _op(item, comments)
            case ast.FnDef():
                lines += [*(c.text for c in comments.inside(item.span)), *_wrap(function_text(item))]
            case _:
                lines += _import(item, comments)
        lines[-1] += comments.trailing(item.span.end)
        before = item
    rest = comments.rest()
    if lines and rest and (len(items) > len(program.imports) or comments.blank_before(rest[0].span)):
        lines.append("")
    _own_lines(lines, rest, "", comments)
    return "".join(f"{line}\n" for line in lines)


def _items(program: ast.Program) -> list[ast.OpDef | ast.FnDef]:
    """Functions and operators in the order of the text."""
    made: list[ast.OpDef | ast.FnDef] = [*program.functions, *program.ops]
    return sorted(made, key=lambda x: x.span.start) if program.source.text else made


def function_text(function: ast.FnDef) -> str:
    """A function on one line."""
    return f"fn {function.name}({', '.join(function.params)}) = {expr_text(function.body)}"


def _import(item: ast.Import, comments: Comments) -> list[str]:
    return [*(c.text for c in comments.inside(item.span)), f'import "{item.path}"']


def _own_lines(lines: list[str], found: Sequence[ast.Comment], indent: str, comments: Comments) -> None:
    """Comments on lines of their own; blank lines between them stay, before the first is the caller's."""
    for i, comment in enumerate(found):
        if i and comments.blank_before(comment.span):
            lines.append("")
        lines.append(indent + comment.text)
        comments.done(comment.span)


def _op(op: ast.OpDef, comments: Comments) -> list[str]:
    brace = comments.brace_of(op)
    lines = _signature(op, brace, comments)
    lines[-1] += comments.trailing(brace)
    comments.skip_to(brace)
    first = True
    for stmt in op.body:
        leading = comments.leading(stmt.span)
        blank = comments.blank_before(leading[0].span if leading else stmt.span)
        if blank and not first:
            lines.append("")
        _own_lines(lines, leading, INDENT, comments)
        if leading and comments.blank_before(stmt.span):
            lines.append("")
        lines += [INDENT + c.text for c in comments.inside(stmt.span)]
        lines += _wrap(INDENT + statement_text(stmt))
        lines[-1] += comments.trailing(stmt.span.end)
        first = False
    rest = comments.before(op.span.end)
    if rest and not first and comments.blank_before(rest[0].span):
        lines.append("")
    _own_lines(lines, rest, INDENT, comments)
    comments.skip_to(op.span.end)
    return [*lines, "}"]


# --- statements ----------------------------------------------------------------------------------------


def statement_text(stmt: ast.Stmt) -> str:
    """A statement on one line."""
    match stmt:
        case ast.Define():
            target = stmt.target
            if stmt.indices is not None:
                target = expr_text(ast.Subscript(stmt.target, stmt.indices))
            ranges = f" for {', '.join(map(range_text, stmt.ranges))}" if stmt.ranges else ""
            return f"{target} {stmt.op} {expr_text(stmt.value)}{ranges}"
        case ast.Let():
            value = "" if stmt.value is None else f" = {expr_text(stmt.value)}"
            return f"let {stmt.name}: {type_text(stmt.type)}{value}"
        case ast.CallStmt():
            left = f"({', '.join(stmt.targets)}) = " if stmt.targets else ""
            return left + expr_text(stmt.call)


def _wrap(line: str) -> list[str]:
    """Breaks a long line before `for`, after a comma or an operator, at the loosest one that does."""
    lines: list[str] = []
    while len(line) > WIDTH:
        cut = _best_break(line)
        if cut is None:
            break
        lines.append(line[:cut].rstrip())
        line = INDENT * 3 + line[cut:]
    return [*lines, line]


def _best_break(line: str) -> int | None:
    """Where to break: in fewest brackets, there after the loosest operator, the last one that fits.

    A place in the first half of the width is one only if all that follows fits on the next line. After `=`
    a line breaks behind a long left side, if the right side then fits, and where there is no other place.
    """
    depths, depth = [], 0
    for char in line:
        depth += (char in "([") - (char in ")]")
        depths.append(depth)
    for part in _TOGETHER.finditer(line):
        for k in range(*part.span()):
            depths[k] += MAX_BRACKETS
    found = [m for m in _BREAK.finditer(line, len(INDENT) * 3 + 1) if m.end() <= WIDTH + 1]
    fits = [m for m in found if len(INDENT) * 3 + len(line) - m.end() <= WIDTH]
    late = [m for m in found if m.end() > WIDTH // 2]
    for m in fits:
        if m in late and m[0].strip() in _ASSIGN:
            return m.end()
    good = [m for m in found if m in fits or m in late]
    inner = [m for m in good or found if m[0].strip() not in _ASSIGN] or good or found

    def looseness(m: re.Match[str]) -> tuple[int, int, int]:
        return depths[m.start()], _TIGHTNESS.get(m[0].strip(), 0) if m[0] else -1, -m.end()

    return min(inner, key=looseness).end() if inner else None


# --- signatures ----------------------------------------------------------------------------------------


def _signature(op: ast.OpDef, brace: int, comments: Comments) -> list[str]:
    """From ``op`` to ``{``, on as few lines as fit."""
    generics = [generic_text(g) for g in op.generics]
    *above, head = _fill(f"op {op.name}[", generics, "]") if generics else [f"op {op.name}"]
    params = [_param(p) for p in op.params]
    results = [_param(r) for r in op.results]
    where = [expr_text(w) for w in op.where]
    if comments.any_before(brace):
        return [*above, *_commented(op, head, (params, results, where), brace, comments)]
    arrow = f" -> ({', '.join(results)})" if results else ""
    constraints = f" where {', '.join(where)}" if where else ""
    one_line = f"{head}({', '.join(params)}){arrow}{constraints} {{"
    if len(one_line) <= WIDTH and not above:
        return [one_line]
    lines = [*above, *_fill(f"{head}(", params, ")")]
    if arrow and len(arrow + constraints) + 5 <= WIDTH:
        lines.append(f"   {arrow}{constraints}")
    else:
        lines += _fill("    -> (", results, ")") if arrow else []
        lines += _fill("    where ", where, "") if constraints else []
    lines[-1] += " {"
    return lines


def _param(param: ast.Param) -> str:
    inout = "inout " if param.inout else ""
    default = f" = {expr_text(param.default)}" if param.default is not None else ""
    optional = "?" if param.optional else ""
    return f"{inout}{param.name}: {type_text(param.type)}{optional}{default}"


def _fill(prefix: str, texts: Sequence[str], close: str) -> list[str]:
    """``prefix a, b, c close``, as many on a line as fit (two columns are left for a brace)."""
    lines, line = [], prefix
    for i, text in enumerate(texts):
        piece = text + (close if i == len(texts) - 1 else ",")
        gap = "" if line.endswith(("(", "[", " ")) else " "
        if len(line) + len(gap) + len(piece) > WIDTH - 2 and line.strip():
            lines.append(line.rstrip())
            line, gap = INDENT * 4, ""
        line += gap + piece
    return [*lines, line if texts else line + close]


def _commented(
    op: ast.OpDef, head: str, texts: tuple[list[str], list[str], list[str]], brace: int, comments: Comments
) -> list[str]:
    """A signature that holds comments: one parameter, result and constraint per line."""
    params, results, where = texts
    lines = [f"{head}("]
    end = comments.closing_after(op.params[-1].span.end if op.params else op.name_span.end)
    _listed(lines, op.params, params, end, comments)
    lines.append(")")
    if results:
        lines[-1] += " -> ("
        end = comments.closing_after(op.results[-1].span.end)
        _listed(lines, op.results, results, end, comments)
        lines.append(")")
    if where:
        lines[-1] += " where"
        _listed(lines, op.where, where, op.where[-1].span.end, comments, last="")
    left = comments.before(brace - 1)
    _own_lines(lines, left, INDENT * 2, comments)
    if "#" in lines[-1]:
        return [*lines, "{"]
    lines[-1] += " {"
    return lines


def _listed(
    lines: list[str],
    nodes: Sequence[_Placed],
    texts: Sequence[str],
    end: int,
    comments: Comments,
    last: str = ",",
) -> None:
    """One node per line with its comments, then the comments up to `end`."""
    for i, (node, text) in enumerate(zip(nodes, texts, strict=True)):
        lines += [INDENT * 2 + c.text for c in comments.before(node.span.end)]
        comma = "," if i < len(nodes) - 1 else last
        lines.append(INDENT * 2 + text + comma)
        lines[-1] += comments.trailing(node.span.end)
    lines += [INDENT * 2 + c.text for c in comments.before(end)]
