"""Expressions written in Python: operators on `Expression` objects make the nodes of `ast`.

    y[t, h] = fn.exp(x[t, h] - m[t]) / fn.sum[k](e[t, k])

`fn.NAME` is a function, a cast or (with index variables in brackets) a reduction, spelled as in the
language; `when(c, a, b)` is ``a if c else b``; ``&``, ``|`` and ``~`` of comparisons are ``and``, ``or`` and
``not``, else operators on bits.  What cannot be an expression is refused at once, at the line that wrote it
(PF113).
"""

from __future__ import annotations

import linecache
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from numbers import Integral, Real
from types import CodeType, FrameType
from typing import Any, NoReturn, SupportsInt, TypeAlias

from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.build_ast import MAX_HEIGHT, levels_of
from polyfuse.frontend_dsl.syntax.expr_text import expr_text
from polyfuse.frontend_dsl.syntax.names import FROM_BITS, REDUCTIONS, did_you_mean
from polyfuse.ir.ops import OPS
from polyfuse.source import NO_SPAN, SourceText, Span

# --- places in Python -------------------------------------------------------------------------------------

# Where in the user's Python source a builder was called: the places that its errors point at.
#
# A node made by the builder carries a span of the *Python* file, down to the columns of the expression
# where the interpreter knows them.  Without a source (an interactive session) the line number stays.


_OURS = ("polyfuse.frontend_dsl.builder.", "polyfuse.builder")


def here() -> Span:
    """The place in the innermost frame that is no part of the builder."""
    for frame in _frames(sys._getframe(1)):
        if not frame.f_globals.get("__name__", "").startswith(_OURS):
            return _place(frame.f_code, frame.f_lasti, frame.f_lineno)
    return NO_SPAN


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=4096)
def _place(code: CodeType, instruction: int, line: int) -> Span:
    source = _source(code.co_filename)
    starts = [0, *(i + 1 for i, c in enumerate(source.text) if c == "\n")]
    if line >= len(starts):
        bare = SourceText(source.name, "\n" * (line - 1))
        return Span(bare, line - 1, line - 1)
    found = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    first, last, left, right = found
    if first is None or last is None or left is None or right is None or last >= len(starts):
        text = source.line(line)
        begin = starts[line - 1] + len(text) - len(text.lstrip())
        return Span(source, begin, max(begin, starts[line - 1] + len(text)))
    return Span(source, _offset(source, starts, first, left), _offset(source, starts, last, right))


def _offset(source: SourceText, starts: list[int], line: int, column: int) -> int:
    """The offset of a character; the interpreter counts columns in bytes."""
    before = source.line(line).encode("utf-8", "surrogatepass")[:column]
    return starts[line - 1] + len(before.decode("utf-8", "ignore"))


@lru_cache(maxsize=64)
def _source(file: str) -> SourceText:
    return SourceText(file, "".join(linecache.getlines(file)))


HARD_KEYWORDS = ("if", "else", "for", "and", "or", "not", "true", "false", "True", "False")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UINT64_MAX = 2**64 - 1

Operand: TypeAlias = "Expression | int | float | bool"


def refuse(message: str, hint: str | None = None, code: str = "PF113") -> NoReturn:
    """An error at the place where the builder was called."""
    raise DslError(message, code=code, span=here(), hint=hint)


def checked_name(name: object, what: str) -> str:
    """The name, if the language has such names."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{name!r} cannot be the name of {what}", "names are letters, digits and '_'")
    if name in HARD_KEYWORDS:
        refuse(f"'{name}' is a keyword and cannot be the name of {what}")
    return name


class Expression:
    """What Python's operators work on: a node, and how many operators lie above one another in it.

    Its subclasses are siblings: for operands of a class and a subclass Python would swap comparisons.

    Examples
    --------
    >>> from polyfuse.builder import fn
    >>> x, i = (f := pf.ProgramBuilder().op("f")).param("x", "f32", "N"), f.index("i")
    >>> fn.exp(-x[i]) + 1, (x[i] > 0) & (x[i] < 1)
    (<value exp(-x[i]) + 1>, <value x[i] > 0 and x[i] < 1>)
    """

    __slots__ = ("_height", "_node")
    __hash__ = None  # type: ignore[assignment]  # == makes a comparison, so values are no keys
    __array_ufunc__ = None  # NumPy's scalars leave operators to this class

    def __init__(self, node: ast.Expr, height: int = 0) -> None:
        if height > MAX_HEIGHT:
            hint = "give a part of it a name in a definition of its own, or add many terms by total()"
            refuse(f"this expression is more than {MAX_HEIGHT} operators high", hint, "PF103")
        self._node = node
        self._height = height

    def __add__(self, other: Operand) -> Value:
        return _binary("+", self, other)

    def __radd__(self, other: Operand) -> Value:
        return _binary("+", other, self)

    def __sub__(self, other: Operand) -> Value:
        return _binary("-", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return _binary("-", other, self)

    def __mul__(self, other: Operand) -> Value:
        return _binary("*", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return _binary("*", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return _binary("/", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return _binary("//", other, self)

    def __mod__(self, other: Operand) -> Value:
        return _binary("%", self, other)

    def __rmod__(self, other: Operand) -> Value:
        return _binary("%", other, self)

    def __pow__(self, other: Operand) -> Value:
        return _binary("**", self, other)

    def __rpow__(self, other: Operand) -> Value:
        return _binary("**", other, self)

    def __and__(self, other: Operand) -> Value:
        return _binary(_joins("&", self, other), self, other)

    def __rand__(self, other: Operand) -> Value:
        return _binary(_joins("&", other, self), other, self)

    def __or__(self, other: Operand) -> Value:
        return _binary(_joins("|", self, other), self, other)

    def __ror__(self, other: Operand) -> Value:
        return _binary(_joins("|", other, self), other, self)

    def __xor__(self, other: Operand) -> Value:
        return _binary("^", self, other)

    def __rxor__(self, other: Operand) -> Value:
        return _binary("^", other, self)

    def __lshift__(self, other: Operand) -> Value:
        return _binary("<<", self, other)

    def __rlshift__(self, other: Operand) -> Value:
        return _binary("<<", other, self)

    def __rshift__(self, other: Operand) -> Value:
        return _binary(">>", self, other)

    def __rrshift__(self, other: Operand) -> Value:
        return _binary(">>", other, self)

    def __invert__(self) -> Value:
        op = "not" if _is_test(self._node) else "~"
        return _made(lambda e: ast.Unary(op, e, here()), self)

    def __neg__(self) -> Value:
        return _made(lambda e: ast.Unary("-", e, here()), self)

    def __lt__(self, other: Operand) -> Value:
        return _compare("<", self, other)

    def __le__(self, other: Operand) -> Value:
        return _compare("<=", self, other)

    def __gt__(self, other: Operand) -> Value:
        return _compare(">", self, other)

    def __ge__(self, other: Operand) -> Value:
        return _compare(">=", self, other)

    def __eq__(self, other: Operand) -> Value:  # type: ignore[override]
        return _compare("==", self, other)

    def __ne__(self, other: Operand) -> Value:  # type: ignore[override]
        return _compare("!=", self, other)

    def __bool__(self) -> bool:
        hint = "a choice is when(c, a, b); join conditions by & | ~, chains as (0 <= i) & (i < N)"
        refuse("an expression of the program is neither true nor false in Python", hint)

    def __iter__(self) -> NoReturn:
        refuse("an expression of the program is not a sequence in Python", "loop over Python's own objects")

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {expr_text(self._node)}>"


class Value(Expression):
    """An expression of others: ``x[i] + 1``, ``fn.exp(s)``; also a size.

    Examples
    --------
    >>> n = pf.ProgramBuilder().op("f").size("N")
    >>> 2 * n + 1
    <value 2 * N + 1>
    """

    __slots__ = ()


class Index(Expression):
    """An index variable, or with dots (`b...`) a run of them; `range` gives it a written range.

    Examples
    --------
    >>> from polyfuse.builder import fn
    >>> f = pf.ProgramBuilder().op("f")
    >>> x, k = f.param("x", "f32", "N"), f.index("k")
    >>> fn.sum[k.range(1, 4)](x[k])
    <value sum[k in 1..4](x[k])>
    """

    __slots__ = ("_bounds",)

    def __init__(self, name: str, bounds: tuple[Expression, Expression] | None = None) -> None:
        many = name.endswith("...")
        text = checked_name(name.removesuffix("..."), "an index variable")
        super().__init__(ast.Splat(text, here()) if many else ast.Name(text, here()))
        self._bounds = bounds

    @property
    def has_range(self) -> bool:
        """Whether a range was given."""
        return self._bounds is not None

    def range(self, lower: Operand, upper: Operand) -> Index:
        """The variable over ``lower..upper``: on a left side, or in a reduction."""
        if isinstance(self._node, ast.Splat):
            refuse(f"'{self._node.id}...' stands for several variables and takes no range")
        assert isinstance(self._node, ast.Name)
        return Index(self._node.id, (as_value(lower), as_value(upper)))

    def var_range(self) -> ast.VarRange:
        """As a reduction has it; without bounds where they are inferred."""
        assert isinstance(self._node, ast.Name | ast.Splat)
        lower, upper = (None, None) if self._bounds is None else (v._node for v in self._bounds)
        return ast.VarRange(self._node.id, lower, upper, isinstance(self._node, ast.Splat), here())


def node_of(x: Operand) -> ast.Expr:
    """The node of an operand."""
    return as_value(x)._node


def as_value(x: Operand) -> Expression:
    """An operand as an expression; a name is a new one here, so that errors point at its use."""
    if isinstance(x, Expression):
        if isinstance(x._node, ast.Name):
            return Value(ast.Name(x._node.id, here()))
        return x
    return literal(x)


def literal(x: object) -> Value:
    """A number or a truth value of Python (or NumPy) as a literal.

    Parameters
    ----------
    x
        It must be finite; integers have up to 64 bits.

    Raises
    ------
    DslError
        PF105 for an integer that is too large, PF113 for what is no number.

    Examples
    --------
    >>> from polyfuse.builder import literal
    >>> literal(2) / 3
    <value 2 / 3>
    """
    if isinstance(x, bool):
        return Value(ast.BoolLit(x, here()))
    if isinstance(x, Integral):
        return _integer(int(x))
    if isinstance(x, Real):
        return _float(float(x))
    hint = None
    if isinstance(x, str):
        hint = "names of sizes, index variables and tensors are made into objects first: size, index, tensor"
    refuse(f"{_shown(x)} is no number and no expression of the program", hint)


def _integer(x: SupportsInt) -> Value:
    value = int(x)
    if not -(2**63) <= value <= _UINT64_MAX:
        refuse("this integer is too large: literals go up to 2**64 - 1", "write a float", "PF105")
    number = ast.Number(abs(value), str(abs(value)), here())
    return -Value(number) if value < 0 else Value(number)


def _float(value: float) -> Value:
    if not math.isfinite(value):
        hint = "infinity is literal(1.0) / 0.0, NaN is literal(0.0) / 0.0"
        refuse(f"there is no literal for {value}", hint)
    number = ast.Number(abs(value), repr(abs(value)), here())
    return -Value(number) if math.copysign(1.0, value) < 0 else Value(number)


def _shown(x: object) -> str:
    text = repr(x)
    return text if len(text) <= 40 else f"an object of type {type(x).__name__}"


# --- nodes above others --------------------------------------------------------------------------------


def _made(make: Callable[..., ast.Expr], *parts: Operand) -> Value:
    values = [as_value(p) for p in parts]
    node = make(*(v._node for v in values))
    return Value(node, levels_of(node) + max(v._height for v in values))


def _binary(op: str, left: Operand, right: Operand) -> Value:
    return _made(lambda a, b: ast.Binary(op, a, b, here()), left, right)


def _joins(sign: str, *operands: Operand) -> str:
    """The word where one of the operands is a comparison or the like, else the sign."""
    word = {"&": "and", "|": "or"}[sign]
    return word if any(_is_test(as_value(x)._node) for x in operands) else sign


def _is_test(e: ast.Expr) -> bool:
    match e:
        case ast.Compare() | ast.BoolLit() | ast.Binary("and" | "or") | ast.Unary("not"):
            return True
        case ast.Call(name):
            return name == "bool" or (name in OPS and OPS[name].gives_bool)
        case ast.Reduce(op):
            return op in ("any", "all")
        case _:
            return False


def _compare(op: str, left: Operand, right: Operand) -> Value:
    return _made(lambda a, b: ast.Compare((a, b), (op,), here()), left, right)


def when(cond: Operand, then: Operand, other: Operand) -> Value:
    """``then if cond else other``.

    Parameters
    ----------
    cond, then, other
        Expressions or numbers.

    Examples
    --------
    >>> from polyfuse.builder import when
    >>> n = pf.ProgramBuilder().op("f").size("N")
    >>> when(n > 4, n, 4)
    <value N if N > 4 else 4>
    """
    return _made(lambda c, a, b: ast.Conditional(c, a, b, here()), cond, then, other)


def total(terms: Iterable[Operand]) -> Expression:
    """The sum of any number of terms, added in pairs: as high as the logarithm of their number.

    Parameters
    ----------
    terms
        At least one.

    Examples
    --------
    >>> from polyfuse.builder import total
    >>> n = pf.ProgramBuilder().op("f").size("N")
    >>> total([n, 1, 2, 3])
    <value N + 1 + (2 + 3)>
    """
    level = [as_value(t) for t in terms]
    if not level:
        refuse("a total of no terms")
    while len(level) > 1:
        pairs: list[Expression] = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def subscripts(indices: Operand | tuple[Operand, ...]) -> tuple[Expression, ...]:
    """The indices between brackets, each an expression."""
    every: tuple[object, ...] = indices if isinstance(indices, tuple) else (indices,)
    for i in every:
        if isinstance(i, slice) or i is Ellipsis:
            refuse("there are no slices: each axis has an index", "f.index('i') makes a variable")
    return tuple(as_value(i) if isinstance(i, Expression) else literal(i) for i in every)


def subscript(name: str, indices: Operand | tuple[Operand, ...]) -> Value:
    """``name[indices]``; with ``()`` the scalar itself."""
    found = subscripts(indices)
    if not found:
        return Value(ast.Name(name, here()))
    place = here()
    node = ast.Subscript(name, tuple(v._node for v in found), place, place)
    return Value(node, 1 + max(v._height for v in found))


def padded(name: str, indices: Operand | tuple[Operand, ...], outside: Operand) -> Value:
    """``name[indices else outside]``."""
    read, value, place = subscript(name, indices), as_value(outside), here()
    if not isinstance(read._node, ast.Subscript):
        refuse(f"'{name}' is read without indices here: none can leave its axis")
    node = ast.Padded(read._node, value._node, place)
    return Value(node, levels_of(node) + max(read._height, value._height))


class Function:
    """`fn.NAME`: called, it is ``NAME(a, b)``; with variables in brackets, ``NAME[i, j](body)``."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = checked_name(name, "a function")

    def __call__(self, *args: Any) -> Value:
        name, place = self._name, here()
        if not args:
            refuse(f"'{name}' of nothing")
        named = args[0] if name == FROM_BITS else None
        first = Value(ast.Name(named, place)) if isinstance(named, str) else args[0]
        return _made(lambda *nodes: ast.Call(name, nodes, (), place, place), first, *args[1:])

    def __getitem__(self, over: Index | tuple[Index, ...]) -> Callable[..., Value]:
        name, variables = self._name, over if isinstance(over, tuple) else (over,)
        if name not in REDUCTIONS:
            hint = did_you_mean(name, REDUCTIONS) or f"reductions are {', '.join(REDUCTIONS)}"
            refuse(f"'{name}' is not a reduction", hint, "PF109")
        if not variables or not all(isinstance(v, Index) for v in variables):
            hint = "f.index('i') makes one, i.range(0, N) gives it a range"
            refuse(f"{name}[...] takes index variables", hint)
        ranges = tuple(v.var_range() for v in variables)
        bounds = [b for v in variables for b in v._bounds or ()]

        def reduction(body: Operand, place: Operand | None = None) -> Value:
            values = [as_value(body), *([] if place is None else [as_value(place)])]
            height = 1 + max(v._height for v in (*values, *bounds))
            node, at = values[0]._node, None if place is None else values[1]._node
            return Value(ast.Reduce(name, ranges, node, here(), at), height)

        return reduction


class Functions:
    """`fn`: every function, cast and reduction of the language by its name."""

    def __getattr__(self, name: str) -> Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return Function(name)


fn = Functions()
