"""One printer for the C family: loop IR to C++ statements and expressions.

A target gives a `Names`: what buffers and scalars are called, and how an element is addressed.  Only
prefixed names of letters, digits and underscores reach the text.  Arithmetic follows the language:
integers wrap, `//` and `%` floor, NaN propagates through min and max; every function comes from
`codegen.math.prelude`, and the printer collects which ones it used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.line_map import Origins
from polyfuse.ir.dtypes import F32, I32, I64, QUARTERS, U64, DType
from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, wrapped
from polyfuse.ir.intervals import of_dtype
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    Combine,
    Comment,
    Declare,
    Delinearize,
    Exec,
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
    values_of,
)
from polyfuse.ir.ops import COMBINES, NEGATED, OPS
from polyfuse.ir.powers import ROOTS, exponent, has_root
from polyfuse.ir.quarter_floats import stored
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
    children,
    reads,
    walk,
)

# Loops of at most so many iterations gcc unrolls before it looks for vectors: scalars or gathers are left.
UNROLLED = 16


@dataclass(slots=True)
class Printer:
    """Prints loop IR. `element(buffer, indices)` is an lvalue.

    `functions` collects the names of the prelude's functions that the text calls.  With `lazy`, no side of
    a conditional is computed in vain (checked builds must not report it).  `made` collects what of certain
    decisions the text has (`codegen.decisions`), `roles` what it has declared.  `within` prints a number that
    is checked.  `origins` marks lines with where they came from (`codegen.line_map`).
    """

    element: Callable[[Printer, str, tuple[Index, ...]], str]
    functions: set[str] = field(default_factory=set)
    lazy: bool = False
    index_type: str = "pf_i64"
    made: set[tuple[str, str]] = field(default_factory=set, kw_only=True)
    roles: dict[str, LocalRole] = field(default_factory=dict, kw_only=True)
    within: Callable[[Printer, Apply], str] | None = field(default=None, kw_only=True)
    origins: Origins | None = field(default=None, kw_only=True)

    # --- statements -----------------------------------------------------------------------------------

    def block(self, nodes: Block, indent: str) -> list[str]:
        return [line for node in nodes for line in self.marked(node, indent)]

    def marked(self, node: Node, indent: str) -> list[str]:
        """The lines of a node, with marks if they are asked for."""
        lines = self.node(node, indent)
        return lines if self.origins is None else self.origins.marked(node, lines)

    def node(self, node: Node, indent: str) -> list[str]:
        if isinstance(node, Declare):
            self.roles[node.name] = node.role
        match node:
            case For():
                return self.loop(node, indent)
            case If(cond, then, other):
                lines = [f"{indent}if ({bare(self.expr(cond))}) {{"]
                lines += self.fence((node,), indent + "  ") + self.block(then, indent + "  ")
                if other:
                    lines += [f"{indent}}} else {{", *self.block(other, indent + "  ")]
                return [*lines, f"{indent}}}"]
            case Declare(count=count) if count:
                return self.array(node, indent)
            case Declare(name, dtype, value):
                start = f" = {bare(self.expr(value))}" if value is not None else ""
                return [f"{indent}{dtype.c_name} {scalar_name(name)}{start};"]
            case Store(buffer, indices, value):
                return [f"{indent}{self.element(self, buffer, indices)} = {bare(self.expr(value))};"]
            case Update(atomic=True):
                return self.atomic(node, indent)
            case Update():
                return self.update(node, indent)
            case Prefetch(buffer, indices):
                return [f"{indent}__builtin_prefetch(&{self.element(self, buffer, indices)});"]
            case Comment(text):
                return [f"{indent}// {text}"]
            case RegisterTile():
                return self.tile(node, indent)
            case TransposedTile():
                return self.transposed(node, indent)
            case OwnedLoop():
                return self.owned(node, indent)
            case Delinearize():
                return self.delinearized(node, indent)
            case Barrier() | Combine() | VectorLoad() | VectorStore():
                return self.device_node(node, indent)
            case Exec():
                raise AssertionError("instances are lowered before printing")
            case _:
                assert_never(node)

    def device_node(self, node: Barrier | Combine | VectorLoad | VectorStore, indent: str) -> list[str]:
        """What only a GPU has."""
        raise AssertionError(f"not for this target: {node}")

    def tile(self, node: RegisterTile, indent: str) -> list[str]:
        """Sums of products in vector registers."""
        raise AssertionError(f"not for this target: {node}")

    def transposed(self, node: TransposedTile, indent: str) -> list[str]:
        """A tile of memory with its two loops exchanged."""
        raise AssertionError(f"not for this target: {node}")

    def owned(self, node: OwnedLoop, indent: str) -> list[str]:
        """The iterations of a loop that an owner of elements is to run."""
        raise AssertionError(f"not for this target: {node}")

    def delinearized(self, node: Delinearize, indent: str) -> list[str]:
        """The variables of an iteration of a nest."""
        raise AssertionError(f"not for this target: {node}")

    def update(self, node: Update, indent: str) -> list[str]:
        place = self.element(self, node.buffer, node.indices)
        total = self.combine(node.op, place, self.expr(node.value), node.value.dtype)
        return [f"{indent}{place} = {bare(total)};"]

    def atomic(self, node: Update, indent: str) -> list[str]:
        """An update of memory that other threads update as well."""
        raise AssertionError(f"not for this target: {node}")

    def array(self, node: Declare, indent: str) -> list[str]:
        """A small array of a thread."""
        raise AssertionError(f"not for this target: {node}")

    def combine(self, op: str, left: str, right: str, dtype: DType) -> str:
        return self.operation(COMBINES[op], [left, right], dtype)

    def loop(self, loop: For, indent: str) -> list[str]:
        lower, upper = self.index(loop.lower), self.index(loop.upper)
        step = f"{loop.var} += {loop.step}" if loop.step != 1 else f"++{loop.var}"
        first = f"{self.index_type} {loop.var} = {lower}"
        if isinstance(loop.upper, IBin) and loop.upper.op in ("min", "max"):
            # gcc 12 computes a minimum again for each iteration (`-fno-tree-pre`).
            first, upper = f"{first}, {loop.var}_e = {upper}", f"{loop.var}_e"
        head = f"{indent}for ({first}; {loop.var} < {upper}; {step}) {{"
        body = self.fence(loop.body, indent + "  ") + self.block(loop.body, indent + "  ")
        if loop.upper == loop.lower + 1:
            return [
                f"{indent}{{",
                f"{indent}  const {self.index_type} {loop.var} = {lower};",
                *body,
                f"{indent}}}",
            ]
        return [*self.pragma(loop, indent), head, *body, f"{indent}}}"]

    def pragma(self, loop: For, indent: str) -> list[str]:
        """What the compiler is told of a loop.

        Legality and `codegen.analysis.dependence` have proved that iterations of vector loops do not meet.
        """
        if loop.coordinate is not Coordinate.VECTOR:
            return []
        if loop.written:
            return [f"{indent}PF_IVDEP PF_WRITTEN"]
        return [f"{indent}PF_IVDEP{' PF_ROLLED' * _stays_rolled(loop)}"]

    def fence(self, body: Block, indent: str) -> list[str]:
        """gcc 12 vectorises loads under a condition wrongly where few lanes are used: such loops stay scalar.

        Layer I turns guards into loop bounds (`layers.graph.domains`), so few remain.
        """
        return (
            [f'{indent}__asm__ volatile("");  // a guarded load: not vectorised']
            if guarded_load(body)
            else []
        )

    # --- expressions ------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                return literal(value, dtype)
            case IndexValue(index, dtype):
                text = self.index(index)
                return self.cast(text if text.isalnum() else f"({bare(text)})", I64, dtype)
            case Read(tensor, indices):
                return self.element(self, tensor, indices)
            case Cast(arg, dtype):
                return self.cast(self.expr(arg), arg.dtype, dtype)
            case Select():
                return self._select(e)
            case Apply("pow", (base, _)) if (n := exponent(e)) is not None:
                return self.power(base, n)
            case Apply("within", (value, _, _)):
                return self.expr(value) if self.within is None else self.within(self, e)
            case Apply(op, args):
                return self.operation(op, [self.expr(a) for a in args], args[0].dtype)
            case _:
                assert_never(e)

    def _select(self, e: Select) -> str:
        """Lazy where the condition guards an index; else both sides are computed, then one is chosen.

        gcc 12 vectorises a load under a condition on bytes wrongly (8 lanes), and one that is not
        conditional better; a condition on data never makes an index legal, so nothing is lost.
        """
        cond, then, other = self.expr(e.cond), self.expr(e.then), self.expr(e.other)
        if self.lazy or guards_index(e.cond):
            return f"({cond} ? {then} : {other})"
        c = e.dtype.c_name
        return f"({{ const {c} q0 = {then}; const {c} q1 = {other}; {cond} ? q0 : q1; }})"

    def power(self, base: Expr, n: float) -> str:
        """A root, or a product of squares of squares, or both (`ir.powers`): of -inf that is an infinity."""
        dtype, c = base.dtype, base.dtype.c_name
        if abs(n) in ROOTS:
            root = self._root(self.expr(base), dtype)
            return self.operation("div", [literal(1.0, dtype), root], dtype) if n < 0 else root
        value, one = self.expr(base), literal(1.0, dtype) if dtype.is_float else ""
        lines, product, square = [f"const {c} q = {value};"], "", "q"
        if has_root(n):
            size = self.operation("abs", ["x"], dtype)
            size = self.operation("div", [one, size], dtype) if n < 0 else size
            lines = [f"const {c} x = {value};", f"const {c} q = {size};"]
        elif n < 0:
            lines = [f"const {c} q = {self.operation('div', [one, value], dtype)};"]
        whole = int(abs(n))
        for k in range(whole.bit_length()):
            if k:
                twice = self.operation("mul", [square, square], dtype)
                last = not product and whole == 1 << k
                square = twice if last else f"q{1 << k}"
                lines += [] if last else [f"const {c} {square} = {twice};"]
            if whole >> k & 1:
                product = self.operation("mul", [square, product], dtype) if product else square
        if has_root(n):
            root = self._root("x", dtype)
            root = self.operation("div", [one, root], dtype) if n < 0 else root
            product = self.operation("mul", [product, root], dtype)
        return f"({{ {' '.join(lines)} {product}; }})"

    def _root(self, value: str, dtype: DType) -> str:
        """value ** 0.5: as powers go, that of -0.0 is 0.0, that of an infinity infinite."""
        infinity, root = literal(math.inf, dtype), self.operation("sqrt", ["q"], dtype)
        chosen = f"q == -{infinity} ? {infinity} : {root} + {literal(0.0, dtype)}"
        return f"({{ const {dtype.c_name} q = {value}; {chosen}; }})"

    def operation(self, op: str, args: list[str], dtype: DType) -> str:
        """`op` on operands of `dtype`, as C."""
        sign = OPS[op].c_sign(dtype) if op in OPS else ""
        if not sign:
            return self.call(f"pf_{op}_{dtype.name}", args)
        return f"({sign}{args[0]})" if len(args) == 1 else f"({args[0]} {sign} {args[1]})"

    def call(self, function: str, args: list[str]) -> str:
        self.functions.add(function)
        return f"{function}({', '.join(map(bare, args))})"

    def cast(self, value: str, source: DType, target: DType) -> str:
        if source == target:
            return value
        return self.call(f"pf_{target.name}_from_{source.name}", [value])

    # --- indices --------------------------------------------------------------------------------------

    def index(self, e: IndexExpr) -> str:
        match e:
            case IConst(value):
                kept = wrapped(value)  # as a factor of what is always 0 it may be larger
                return (
                    str(kept)
                    if abs(kept) < 2**31
                    else literal(kept, I64)
                    if kept == -(2**63)
                    else f"{kept}LL"
                )
            case ISize(name):
                return f"N_{name}"
            case IVar(name):
                return scalar_name(name) if self.roles.get(name) is LocalRole.INDEX else name
            case IBin("+" | "-" | "*" as op, left, right):
                return f"({self.index(left)} {op} {self.index(right)})"
            case IBin("//" | "%" as op, left, right):
                name = "floordiv" if op == "//" else "mod"
                return self.call(f"pf_{name}_i64", [self.index(left), self.index(right)])
            case IBin(op, left, right):
                return self.call(f"pf_{op}_i64", [self.index(left), self.index(right)])
            case _:
                assert_never(e)

    def data_index(self, e: Expr, extent: IndexExpr) -> str:
        """A gathered index, clamped to its range (`checked` builds report it before); in 32 bits where these
        hold both."""
        if isinstance(e, Read) and self.roles.get(e.tensor) is LocalRole.PLACES:
            return self.expr(e)
        narrow = I32.holds(e.dtype) and isinstance(extent, IConst) and 0 < extent.value <= 2**31
        dtype = I32 if narrow else I64
        value = self.cast(self.expr(e), e.dtype, dtype)
        low, high = of_dtype(e.dtype)
        if low < 0:
            value = self.call(f"pf_max_{dtype}", [value, "0"])
        if not (isinstance(extent, IConst) and high < extent.value):
            value = self.call(f"pf_min_{dtype}", [value, self.index(extent - 1)])
        return value


def bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    inner = text[1:-1]
    return text if inner.startswith("{") else inner


def guards_index(cond: Expr) -> bool:
    """Does a condition compare indices, so that it may be what makes an access legal?"""
    return any(
        isinstance(x, Apply) and x.op in NEGATED and all(isinstance(a, (IndexValue, Const)) for a in x.args)
        for x in walk(cond)
    )


def certain_reads(e: Expr) -> list[Read]:
    """Reads that happen whatever conditions on indices say."""
    if isinstance(e, Select) and guards_index(e.cond):
        return certain_reads(e.cond)
    found = [e] if isinstance(e, Read) else []
    return found + [r for c in children(e) for r in certain_reads(c)]


def guarded_load(block: Block) -> bool:
    """Does a block (not the loops inside it) load memory under a condition on indices?"""
    for node in block:
        match node:
            case Store(_, indices, value) | Update(_, indices, _, value):
                every = [value, *(i for i in indices if isinstance(i, EXPR_TYPES))]
                if any(_guards_load(x) for e in every for x in walk(e)):
                    return True
            case Declare(value=value) if value is not None and any(map(_guards_load, walk(value))):
                return True
            case If(cond, then, other):
                if guarded_load(then) or guarded_load(other):
                    return True
                if guards_index(cond) and any(isinstance(n, For) for n in (*then, *other)):
                    return True  # short loops are unrolled: then their loads are what the condition guards
            case _:
                pass
    return False


def _guards_load(e: Expr) -> bool:
    if not (isinstance(e, Select) and guards_index(e.cond)):
        return False
    return any(r.indices for side in (e.then, e.other) for r in reads(side))


def literal(value: float | int | bool, dtype: DType) -> str:
    """A C literal with exactly the value that the dtype gives it."""
    if dtype.is_bool:
        return "(pf_bool)1" if value else "(pf_bool)0"
    if dtype.is_float:
        return _float_literal(float(value), dtype)
    number = int(value)
    if dtype is U64:
        return f"{number}ull"
    if number == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"({dtype.c_name}){number}LL" if number >= 0 else f"({dtype.c_name})({number}LL)"


def _float_literal(value: float, dtype: DType) -> str:
    if dtype in QUARTERS:
        return f"({dtype.c_name}){int(stored(value, dtype).view(np.uint8))}"
    if dtype.bits == 16:
        bits = np.asarray(value).astype(dtype.numpy).view(np.uint16)
        return f"({dtype.c_name}){int(bits)}"
    f = "f" if dtype == F32 else ""
    if math.isnan(value):
        return f'__builtin_nan{f}("")'
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value)) if dtype == F32 else value
    if math.isinf(rounded):
        return f"(-__builtin_inf{f}())" if rounded < 0 else f"__builtin_inf{f}()"
    text = f"{rounded.hex()}{f}"
    return f"({text})" if math.copysign(1.0, rounded) < 0 else text


def _stays_rolled(loop: For) -> bool:
    """Is a short loop to be vectorised as it is? Where it fills whole vectors; and where it has functions and
    fills none, as scalars take longer for them.  Others are faster unrolled."""
    trip = trip_of(loop) or UNROLLED + 1
    if trip > UNROLLED or trip < 5:
        return loop.vector
    functions = any(is_function(e) for v in values_of(loop.body) for e in walk(v))
    return loop.vector or (trip < 8 if functions else trip % 8 == 0)
