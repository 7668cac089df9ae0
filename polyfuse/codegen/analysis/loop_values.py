"""What loops compute, in numbers that do not round: two forms of a block are compared by running both.

Floats are numbers modulo a prime: sums may be in any order, a quotient is a product with an inverse, and what
two different polynomials give is equal by a chance of one in 10^17 (Schwartz and Zippel).  A function gives a
number that follows from its name and its argument, a min or max takes one of its operands by an order of all
numbers, and no conversion between floats changes anything.  Integers are themselves, and wrap.  Memory that
nobody has stored to has numbers that follow from its name and place.

A block becomes a Python function, and each loop says first how much it will do: what is too long stops there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any
from zlib import crc32

from polyfuse.codegen.analysis.row_batch import ROW, of_all
from polyfuse.ir.dtypes import I64, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, substitute
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    Comment,
    Declare,
    Delinearize,
    For,
    If,
    LocalRole,
    Node,
    OwnedLoop,
    Prefetch,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    VectorLoad,
    VectorStore,
    begin_of,
    end_of,
    nodes_of,
    vector_rows,
)
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    map_expr,
)

PRIME = 2**61 - 1
HALF = PRIME // 2
# Integers that are data: indices, mostly, and some of them out of range.
INTEGERS, LEAST = 13, -1
# Floats that become integers without change.
WHOLE = 2**40
# How terms of register tiles are applied to an element of the left and one of the right factor.
_DOTS = {"words": "dot_words", "bytes": "dot_bytes", "pairs": "dot_pairs"}
_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


class Skipped(Exception):
    """Why a block is not run: what it has that this module knows nothing of, or how long it would take."""


class Unknown(Skipped):
    """A variable that stands for a number before the block."""


class Memory(dict[Any, int]):
    """The elements of an array or scalar by their indices."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__()
        self.seed, self.dtype = crc32(name.encode()), dtype

    def __missing__(self, place: Any) -> int:
        self[place] = value = drawn(hash((self.seed, place)), self.dtype)
        return value


class Memories(dict[str, Memory]):
    """All memory by name."""

    def of(self, name: str, dtype: DType) -> Memory:
        if name not in self:
            self[name] = Memory(name, dtype)
        return self[name]

    def differs(self, other: Memories, names: Callable[[str], bool]) -> str | None:
        """An element that has another value in the other memories, as text."""
        for name in sorted({*self, *other}):
            if not names(name):
                continue
            dtype = (self if name in self else other)[name].dtype
            mine, theirs = self.of(name, dtype), other.of(name, dtype)
            for place in [*mine, *(p for p in theirs if p not in mine)]:
                if mine[place] != theirs[place]:
                    return f"{name}[{', '.join(map(str, place))}]"
        return None


def drawn(number: int, dtype: DType) -> int:
    """The value of a dtype that a number stands for."""
    if dtype.is_float:
        return number * 0x9E3779B97F4A7C15 % PRIME
    if dtype.is_bool:
        return number >> 5 & 1
    return (number >> 5) % INTEGERS + (LEAST if dtype.name[0] == "i" else 0)


# --- what the functions call ---------------------------------------------------------------------------


def _called(op: str, to: DType) -> Callable[..., int]:
    """A value of a type for each list of operands."""
    seed, limit = crc32(op.encode()), 2 ** min(31, to.bits - 1)

    def function(*args: int) -> int:
        number = hash((seed, *args))
        return number * 0x9E3779B97F4A7C15 % PRIME if to.is_float else number % limit

    return function


def _inverse(x: int) -> int:
    return pow(x, -1, PRIME) if x else 0


def _greatest(a: int, b: int) -> int:
    return a if (a + HALF) % PRIME >= (b + HALF) % PRIME else b


def _least(a: int, b: int) -> int:
    return a if (a + HALF) % PRIME <= (b + HALF) % PRIME else b


def _size(x: int) -> int:
    return x if x <= HALF else PRIME - x


def _whole(x: int) -> int:
    signed = x if x <= HALF else x - PRIME
    return signed if abs(signed) < WHOLE else x % INTEGERS + LEAST


def _wrapped(value: str, dtype: DType) -> str:
    """An integer, as a dtype holds it."""
    if dtype.name[0] == "u":
        return f"({value} & {2**dtype.bits - 1})"
    half = 2 ** (dtype.bits - 1)
    return f"(({value} + {half} & {2 * half - 1}) - {half})"


def _floor(op: str) -> Callable[[int, int], int]:
    return (lambda a, b: a // b if b else 0) if op == "//" else (lambda a, b: a % b if b else 0)


def _constant(value: float, dtype: DType) -> int:
    if not dtype.is_float:
        return int(value)
    if math.isnan(value):
        return HALF - 1
    if math.isinf(value):
        return HALF if value > 0 else HALF + 1
    exact = Fraction(value)
    return exact.numerator * _inverse(exact.denominator % PRIME) % PRIME


def _but_last_reversed(steps: range) -> tuple[int, ...]:
    return (*reversed(steps[:-1]), *steps[-1:])


_CALLED: Mapping[str, Any] = {
    "but_last_reversed": _but_last_reversed,
    "greatest": _greatest,
    "least": _least,
    "inverse": _inverse,
    "size": _size,
    "whole": _whole,
    "div": _floor("//"),
    "mod": _floor("%"),
    "Memory": Memory,
}


@dataclass(slots=True)
class _Budget:
    """So many statements are run."""

    left: int

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise Skipped("too long")


# --- blocks as Python ----------------------------------------------------------------------------------


@dataclass(slots=True)
class LoopProgram:
    """Collects the lines of a Python function; `run` runs it.  `buffers` say where data indices are clamped.
    Vector loops may be run `backwards`: their iterations are independent.  The last one stays the last where
    a scalar keeps what it stores (a lastprivate variable)."""

    buffers: Mapping[str, Buffer]
    backwards: bool = False
    lines: list[str] = field(default_factory=list)
    memories: dict[str, tuple[str, DType]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)  # scalars that are variables of indices
    globals: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Delinearize] = field(default_factory=dict)  # in loops over a variable: others
    count: int = 0

    def run(self, memories: Memories, variables: Mapping[str, int], budget: int) -> int:
        """Run the function on memories; what is left of the budget.  Raises Skipped."""
        left = _Budget(budget)
        left.take(len(self.lines))
        head = [f"  {m} = memories.of({name!r}, dtype_{m})" for name, (m, _) in self.memories.items()]
        head += [f"  {v} = variables[{name!r}]" for name, v in self.parameters.items() if name in variables]
        if missing := [n for n in self.parameters if n not in variables]:
            raise Unknown(missing[0])
        text = "\n".join(["def run(memories, variables, take):", *head, *self.lines, "  return"])
        space: dict[str, Any] = {f"dtype_{m}": dtype for m, dtype in self.memories.values()}
        space |= {**_CALLED, **self.globals}
        try:
            exec(compile(text, "<loops>", "exec"), space)
        except (SyntaxError, RecursionError, MemoryError):
            raise Skipped("loops in too many loops") from None
        space["run"](memories, variables, left.take)
        return left.left

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def line(self, text: str, depth: int) -> None:
        self.lines.append("  " * depth + text)

    def variable(self, name: str) -> str:
        """A variable of a loop: those that no loop of the program has are parameters."""
        if name in self.numbers:
            return self.expr(Read(name, (), I64))
        if name in self.own:
            return f"i_{name}"
        return self.parameters.setdefault(name, f"i_{name}")

    def inside(self, block: Block, depth: int, *variables: str) -> None:
        """A block in braces, in which loops have these variables."""
        known, own, rows = dict(self.known), set(self.own), dict(self.rows)
        self.own |= set(variables)
        self.line("pass", depth)
        self.block(block, depth)
        self.known, self.own, self.rows = known, own, rows

    def block(self, block: Block, depth: int = 1) -> None:
        for n in block:
            self.node(n, depth)

    def node(self, n: Node, depth: int) -> None:
        match n:
            case For():
                self._loop(n, depth)
            case If(cond, then, other):
                self.line(f"if {self.expr(cond)}:", depth)
                self.inside(then, depth + 1)
                self.line("else:", depth)
                self.inside(other, depth + 1)
            case Declare(name, dtype, value, count, role):
                if role is LocalRole.PLACES:
                    self.places.add(name)
                self._declare(name, dtype, value, count, depth)
                if role is LocalRole.INDEX and value is not None:
                    self.numbers.add(name)
            case Store(buffer, indices, value):
                stored = self.expr(value)
                self.line(f"{self.element(buffer, indices, value.dtype)} = {stored}", depth)
            case Update(buffer, indices, op, value):
                place = self.element(buffer, indices, value.dtype)
                total = self.apply(COMBINES[op], [place, self.expr(value)], value.dtype, value.dtype)
                self.line(f"{place} = {total}", depth)
            case RegisterTile():
                self._tile(n, depth)
            case TransposedTile():
                self._turned(n, depth)
            case OwnedLoop():
                self._owned(n, depth)
            case VectorLoad(name, dtype, buffer, indices, count, cond):
                array = self._array(name, dtype, depth)
                if cond is not None:
                    self.line(f"if {self.expr(cond)}:", depth)
                    depth += 1
                for k, at in enumerate(self._elements(buffer, indices, count)):
                    self.line(f"{array}[{k},] = {self.element(buffer, at, dtype)}", depth)
            case VectorStore(buffer, indices, name, count):
                dtype = self.buffers[buffer].dtype
                for k, to in enumerate(self._elements(buffer, indices, count)):
                    element = self.element(name, (IConst(k),), dtype)
                    self.line(f"{self.element(buffer, to, dtype)} = {element}", depth)
            case Delinearize():
                self._delinearized(n, depth)
            case Comment() | Prefetch() | Barrier():
                pass
            case _:
                raise Skipped(type(n).__name__)

    def _loop(self, n: For, depth: int, key: Callable[[int], None] | None = None) -> None:
        """A loop; with `key` the iterations for which it prints a condition."""
        if all(isinstance(x, Prefetch) for x in n.body):
            return
        low, high = self.index(n.lower), self.index(n.upper)
        outer = self.fresh("v") if n.var in self.own else ""
        if outer:  # a variable of a loop around has the same name
            self.line(f"{outer} = i_{n.var}", depth)
        self.line(f"take(-(min(0, {low} - {high}) // {n.step}) * {len(n.body) + 1})", depth)
        if any(isinstance(x, Delinearize) and x.until is not None for x in n.body):
            self._runs(n, low, high, depth)
            return
        steps = f"range({low}, {high}, {n.step})"
        if self.backwards and n.coordinate is Coordinate.VECTOR:
            steps = f"{'but_last_' if self._keeps_a_scalar(n) else ''}reversed({steps})"
        self.line(f"for i_{n.var} in {steps}:", depth)
        known, own = dict(self.known), set(self.own)
        self.own.add(n.var)
        if n.var in self.rows:
            self._find(self.rows[n.var], depth + 1)
        if n.var == ROW:
            self._row(n, depth + 1)
        if key is not None:
            key(depth + 1)
        self.inside(n.body, depth + 1 + (key is not None))
        self.known, self.own = known, own
        if outer:
            self.line(f"i_{n.var} = {outer}", depth)

    def _keeps_a_scalar(self, n: For) -> bool:
        stores = (x.buffer for x in nodes_of(n.body) if isinstance(x, Store))
        return any(b in self.buffers and self.buffers[b].scope is Scope.REGISTER for b in stores)

    def _runs(self, n: For, low: str, high: str, depth: int) -> None:
        """A loop over iterations that goes on after those that its body is for."""
        self.line(f"i_{n.var} = {low}", depth)
        self.line(f"while i_{n.var} < {high}:", depth)
        self.line(f"take({len(n.body) + 1})", depth + 1)
        self.inside(n.body, depth + 1, n.var)

    def _delinearized(self, n: Delinearize, depth: int) -> None:
        if n.over is not None:
            self.rows[n.over.var] = n
        else:
            self._find(n, depth)

    def _find(self, n: Delinearize, depth: int) -> None:
        """The variables of a nest from the number of an iteration; the innermost runs fastest."""
        *outer, last = n.loops
        loops = n.loops if n.until is None else (*outer, replace(last, var=begin_of(last)))
        number = self.index(n.number)
        self.line(f"rest = {number}", depth)
        for x in reversed(loops[1:]):
            extent = self.index(binary("-", x.upper, x.lower))
            self.line(f"i_{x.var} = {self.index(x.lower)} + rest % {extent}; rest //= {extent}", depth)
        self.line(f"i_{loops[0].var} = {self.index(loops[0].lower)} + rest", depth)
        if n.until is not None:
            first, end = f"i_{begin_of(last)}", f"i_{end_of(last)}"
            until = f"{first} + {self.index(n.until)} - {number}"
            self.line(f"{end} = min({until}, {self.index(last.upper)}); {number} += {end} - {first}", depth)
        self.own |= {*n.variables}

    def _row(self, n: For, depth: int) -> None:
        """Totals of each row of a batch are in arrays of all rows."""
        for name in n.lanes if n.joint else ():
            dtype = next(
                u.value.dtype for u in nodes_of(n.body) if isinstance(u, Update) and u.buffer == name
            )
            self.known[name] = self.element(of_all(name), (IVar(ROW),), dtype)

    def _declare(self, name: str, dtype: DType, value: Expr | None, count: int, depth: int) -> None:
        start = None if value is None else self.expr(value)
        if count:
            array = self._array(name, dtype, depth)
            if start is not None:
                self.line(f"take({count})", depth)
                self.line(f"for k in range({count}): {array}[k,] = {start}", depth)
            return
        own = self.fresh("s")
        self.line(f"{own} = {start if start is not None else drawn(crc32(name.encode()), dtype)}", depth)
        self.known[name] = own

    def _array(self, name: str, dtype: DType, depth: int) -> str:
        array = self.fresh("a")
        self.globals[f"dtype_{array}"] = dtype
        self.line(f"{array} = Memory({name!r}, dtype_{array})", depth)
        self.known[name] = array
        return array

    def _tile(self, n: RegisterTile, depth: int) -> None:
        (row, first_row), (lane, first_lane) = n.start
        array = self._array(n.name, n.dtype, depth)
        for name, first in ((row, first_row), (lane, first_lane)):
            self.line(f"i_{name} = {self.index(first)}", depth)
            self.own.add(name)
        own = set(self.own)
        self.line(f"take({n.rows * n.lanes})", depth)
        self.line(f"for tr in range({n.rows}):", depth)
        self.line(f"  for tl in range({n.lanes}):", depth)
        depth += 2
        self.line("tt = 0", depth)
        self.own |= {"tile_row", "tile_lane"}
        for name, begin, k, side in (("row", row, "tr", 0), ("lane", lane, "tl", 1)):
            self.line(f"i_tile_{name} = i_{begin} + {k}", depth)
            if (end := n.ends[side]) is not None and not n.held[side]:
                self.line(f"i_tile_{name} = min(i_tile_{name}, {self.index(end)} - 1)", depth)
        inner = depth
        for x in n.loops:
            low, high = self.index(x.lower), self.index(x.upper)
            self.line(f"take(max(0, {high} - {low}))", inner)
            self.line(f"for i_{x.var} in range({low}, {high}, {x.step}):", inner)
            self.own.add(x.var)
            inner += 1
        term = self._term(n)
        self.line(f"tt = {self.apply('add', ['tt', term], n.dtype, n.dtype)}", inner)
        self.line(f"{array}[tr * {n.lanes} + tl,] = tt", depth)
        self.own = own

    def _term(self, n: RegisterTile) -> str:
        """What one step of a tile adds to a sum."""
        left = _at(n.left, n.row, "tile_row")
        right = _at(n.right, n.lane, "tile_lane")
        a, b, dtype = self.expr(left), self.expr(right), n.left.dtype
        match n.term:
            case "product":
                return self.apply("mul", [a, b], dtype, dtype)
            case "difference":
                apart = self.apply("sub", [a, b], dtype, dtype)
                return self.apply("mul", [apart, apart], dtype, dtype)
            case "row bytes":
                return self.apply("dot_bytes", [b, a], dtype, dtype)
            case _:
                return self.apply(_DOTS[n.term], [a, b], dtype, dtype)

    def _turned(self, n: TransposedTile, depth: int) -> None:
        array = self._array(n.name, n.dtype, depth) if n.to is None else ""
        own = set(self.own)
        for x in (n.row, n.lane):
            low, high = self.index(x.lower), self.index(x.upper)
            self.line(f"take(max(0, {high} - {low}))", depth)
            self.line(f"for i_{x.var} in range({low}, {high}):", depth)
            self.own.add(x.var)
            depth += 1
        place = (
            self.element(*n.to, n.dtype)
            if n.to is not None
            else f"{array}[(i_{n.row.var} - {self.index(n.row.lower)}) * {n.lanes}"
            f" + i_{n.lane.var} - {self.index(n.lane.lower)},]"
        )
        self.line(f"{place} = {self.element(n.buffer, n.indices, n.dtype)}", depth)
        self.own = own

    def _owned(self, n: OwnedLoop, depth: int) -> None:
        low, high = map(self.index, n.share)

        def key(at: int) -> None:
            value = f"max(0, min({self.expr(n.key)}, {self.index(n.extent)} - 1))"
            self.line(f"if {low} <= {value} < {high}:", at)

        self._loop(n.loop, depth, key)

    # --- values ---------------------------------------------------------------------------------------

    def _elements(self, buffer: str, indices: tuple[Index, ...], count: int) -> Iterator[tuple[Index, ...]]:
        """Those of a vector."""
        for part, elements in vector_rows(indices, count, self.buffers[buffer].extents):
            yield from (_later(part, k) for k in range(elements))

    def element(self, name: str, indices: tuple[Index, ...], dtype: DType) -> str:
        """An element, to be read or stored to."""
        places = ", ".join(self.place(name, k, i) for k, i in enumerate(indices))
        found = self.known.get(name)
        if found is not None:
            return f"{found}[{places},]" if found[0] == "a" and places else found
        buffer = self.buffers.get(name)
        if buffer is not None and buffer.scope is Scope.REGISTER:
            places = ""
        kept = buffer.dtype if buffer else dtype
        memory, _ = self.memories.setdefault(name, (f"m{len(self.memories)}", kept))
        return f"{memory}[{places},]" if places else f"{memory}[()]"

    def place(self, name: str, k: int, i: Index) -> str:
        if not isinstance(i, EXPR_TYPES):
            return self.index(i)
        value, buffer = self.expr(i), self.buffers.get(name)
        if buffer is None or (isinstance(i, Read) and i.tensor in self.places):
            return value
        return f"max(0, min({value}, {self.index(buffer.extents[k])} - 1))"

    def index(self, e: IndexExpr) -> str:
        match e:
            case IConst(value):
                return f"({value})"
            case IVar(name) | ISize(name):
                return self.variable(name)
            case IBin("+" | "-" | "*" as op, left, right):
                return f"({self.index(left)} {op} {self.index(right)})"
            case IBin("//" | "%" as op, left, right):
                if isinstance(right, IConst) and right.value:
                    return f"({self.index(left)} {op} {right.value})"
                return f"{'div' if op == '//' else 'mod'}({self.index(left)}, {self.index(right)})"
            case IBin(op, left, right):
                return f"{op}({self.index(left)}, {self.index(right)})"

    def expr(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                return f"({_constant(value, dtype)})"
            case IndexValue(index, dtype):
                at = self.index(index)
                if dtype.is_float:
                    return f"({at} % {PRIME})"
                return _wrapped(at, dtype) if dtype.bits < 64 else at
            case Read(tensor, indices, dtype):
                return self.element(tensor, indices, dtype)
            case Cast(arg, dtype):
                return self.cast(self.expr(arg), arg.dtype, dtype)
            case Select(cond, then, other):
                return f"({self.expr(then)} if {self.expr(cond)} else {self.expr(other)})"
            case Apply(op, args, dtype):
                return self.apply(op, [self.expr(a) for a in args], args[0].dtype, dtype)

    def cast(self, value: str, source: DType, target: DType) -> str:
        if target.is_bool:
            return value if source.is_bool else f"({value} != 0)"
        if source.is_float:
            return value if target.is_float else _wrapped(f"whole({value})", target)
        return f"({value} % {PRIME})" if target.is_float else _wrapped(value, target)

    def apply(self, op: str, args: list[str], of: DType, to: DType) -> str:
        """An operation on operands of a dtype."""
        op = op.removeprefix("short_").removeprefix("waiting_")
        match op:
            case "add" | "sub" | "mul" if not of.is_bool:
                text = f"({args[0]} {_INFIX[op]} {args[1]})"
                return f"({text} % {PRIME})" if of.is_float else _wrapped(text, to)
            case "div":
                return f"({args[0]} * inverse({args[1]}) % {PRIME})"
            case "quotient":  # by a divisor times its scale
                return f"({args[0]} * {args[3]} * inverse({args[1]}) % {PRIME})"
            case "choose":
                return f"({args[1]} if {args[0]} else {args[2]})"
            case "neg":
                return f"(-{args[0]} % {PRIME})" if of.is_float else _wrapped(f"-{args[0]}", to)
            case "abs":
                return f"size({args[0]})" if of.is_float else _wrapped(f"abs({args[0]})", to)
            case "min" | "max" if not of.is_bool:
                name = {"min": "least", "max": "greatest"}[op] if of.is_float else op
                return f"{name}({args[0]}, {args[1]})"
            case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
                a, b = (f"(({x} + {HALF}) % {PRIME})" for x in args) if of.is_float else args
                return f"({a} {_COMPARE[op]} {b})"
            case "and" | "or" | "min" | "max" | "mul" | "add":
                return f"({args[0]} {'and' if op in ('and', 'min', 'mul') else 'or'} {args[1]})"
            case "not":
                return f"(not {args[0]})"
            case "floordiv" | "mod" if of.is_integer:
                return _wrapped(f"{'div' if op == 'floordiv' else 'mod'}({args[0]}, {args[1]})", to)
            case "isnan":
                return "False"
            case _:
                name = f"f_{op}_{to}"
                self.globals[name] = _called(op, to)
                return f"{name}({', '.join(args)})"


def _at(r: Read, var: str, by: str) -> Expr:
    """An element at another value of a variable."""
    return map_expr(r, lambda x: x, lambda i: substitute(i, {var: IVar(by)}))


def _later(indices: tuple[Index, ...], k: int) -> tuple[Index, ...]:
    """The element some places further in its row."""
    last = indices[-1]
    if isinstance(last, EXPR_TYPES):
        raise Skipped("a vector at an index that is data")
    return (*indices[:-1], last + k)
