"""Types of the expressions of one statement: names, ranks, dtypes, arities, index expressions.

A `Typer` never stops at an error: it reports, gives the type ERROR, which agrees with everything, and
goes on.  The types it found are what `expr_build` builds from.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.index_build import NotIndex, is_data, to_index
from polyfuse.frontend_dsl.semantics.inout_reads import read_at_entry
from polyfuse.frontend_dsl.semantics.rows import pointers_of
from polyfuse.frontend_dsl.semantics.scope import Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.weak_types import (
    BOOLEAN,
    ERROR,
    INDEX,
    WEAK_FLOAT,
    WEAK_INT,
    Ty,
    computed,
    hard,
    join,
)
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import bounds, walk
from polyfuse.frontend_dsl.syntax.names import (
    BITS,
    BITS_OF_BOOLS,
    BITWISE,
    FLOAT_FUNCTIONS,
    FROM_BITS,
    FUNCTIONS,
    GIVEN,
    OLD,
    POSITION,
    REDUCTIONS,
    ROW,
    Library,
    axes,
    function_meant,
    number_hint,
    reduction_form,
)
from polyfuse.ir.dtypes import BY_NAME, F32, U64
from polyfuse.ir.index_expr import IndexExpr, IVar
from polyfuse.ir.ops import ARG_REDUCTIONS, OPS, PLACED, Takes
from polyfuse.source import CalledSpan, Span

_UNSUITABLE = "PF216"


class Typer:
    """Infers and checks; `types` maps id(expression) to its type."""

    def __init__(self, scope: Scope, library: Library, diags: Diagnostics, variables: Iterable[str] = ()):
        self.scope, self.library, self.diags = scope, library, diags
        self.variables = list(variables)
        self.types: dict[int, Ty] = {}
        self.target: str | None = None

    def lookup(self, name: str) -> IndexExpr | None:
        """Index variables and sizes; nothing else is an index expression by itself."""
        return IVar(name) if name in self.variables else self.scope.sizes.get(name)

    def infer(self, e: ast.Expr) -> Ty:
        match e:
            case ast.Number(value):
                t = WEAK_INT if isinstance(value, int) else WEAK_FLOAT
            case ast.BoolLit():
                t = BOOLEAN
            case ast.Name():
                t = self._name(e)
            case ast.Subscript():
                t = self._subscript(e)
            case ast.Padded(read, outside):
                found = self.infer(read), self.infer(outside)
                t = computed(self._meet(*found, e, "the element and the value outside"))
            case ast.Reduce():
                t = self._reduce(e)
            case ast.Call():
                t = self._call(e)
            case ast.Unary():
                t = self._unary(e)
            case ast.Binary("and" | "or" as op, left, right):
                t = self._logical(op, (left, right))
            case ast.Binary():
                t = self._arithmetic(e)
            case ast.Compare():
                t = self._compare(e)
            case ast.Conditional(cond, then, other):
                self.condition(cond)
                t = computed(
                    self._meet(self.infer(then), self.infer(other), e, "the branches of a conditional")
                )
            case ast.Splat():
                t = self._error("PF224", f"'{e.id}...' can only stand in a subscript", e.span)
        self.types[id(e)] = t
        return t

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> Ty:
        self.diags.error(code, message, span, hint)
        return ERROR

    # --- names -------------------------------------------------------------------------------------

    def _name(self, e: ast.Name) -> Ty:
        if self.lookup(e.id) is not None:
            return WEAK_INT
        info = self.scope.reads.get(e.id)
        if info is None:
            if self.scope.names_constant(e.id):
                return WEAK_FLOAT
            if not self.diags.is_first(e.id, self.scope.owner):
                return ERROR
            hint = number_hint(e.id) or self.scope.unknown_hint(e.id, self.diags, 0, tuple(self.variables))
            if hint is None:
                hint = "an index variable stands on the left side or in a reduction such as sum[i](...)"
            return self._error("PF201", f"unknown name '{e.id}'", e.span, hint)
        if info.rank:
            mine = self.variables if len(self.variables) >= info.rank else list("ijklmnpq" * 9)
            letters = ", ".join(mine[: info.rank])
            message = f"'{e.id}' has {axes(info.rank)} and no indices here"
            return self._error("PF204", message, e.span, f"write {e.id}[{letters}]")
        return self._value(info)

    def _value(self, info: TensorInfo) -> Ty:
        return ERROR if info.failed else info.ty

    def _subscript(self, e: ast.Subscript) -> Ty:
        for index in e.indices:
            self.index(index)
        info = self.scope.reads.get(e.name)
        if info is None:
            if self.lookup(e.name) is not None:
                what = "an index variable" if e.name in self.variables else "a size"
                return self._error("PF204", f"'{e.name}' is {what} and has no elements", e.name_span)
            if not self.diags.is_first(e.name, self.scope.owner):
                return ERROR
            hint = self.scope.unknown_hint(e.name, self.diags, len(e.indices))
            return self._error("PF201", f"unknown tensor '{e.name}'", e.name_span, hint)
        if info.rank is not None and info.rank != len(e.indices):
            count = f"{len(e.indices)} {'index' if len(e.indices) == 1 else 'indices'}"
            related = ((info.span, f"'{e.name}' comes from here"),)
            self.diags.error(
                "PF204", f"'{e.name}' has {axes(info.rank)}, got {count}", e.span, related=related
            )
            return ERROR
        return self._value(info)

    def index(self, e: ast.Expr) -> None:
        """Check one subscript: affine, or an integer value."""
        if is_data(e, self.lookup) or isinstance(e, ast.Splat):
            t = self.infer(e)
            if not (t.is_integer or t.is_unknown):
                what = "a float" if t.is_float else f"of type {t}"
                hint = "cast it, as in i64(x)" if t.is_float else None
                self._error("PF225", f"this index is {what}, not an integer", e.span, hint)
            return
        try:
            to_index(e, self.lookup)
        except NotIndex as problem:
            problem.report(self.diags)

    # --- operations ----------------------------------------------------------------------------------

    def _meet(self, a: Ty, b: Ty, e: ast.Expr, what: str) -> Ty:
        t = join(a, b)
        if t is not None:
            return t
        if a.is_weak or b.is_weak:
            weak, other = (a, b) if a.is_weak else (b, a)
            message = f"{weak} does not fit the type {other} of the other operand"
            return self._error(
                "PF205", message, e.span, f"cast one side, as in {self._cast_hint(weak, other)}"
            )
        return self._error("PF205", f"dtype mismatch: {what} are {a} and {b}", e.span, _cast_to(a, b))

    @staticmethod
    def _cast_hint(weak: Ty, other: Ty) -> str:
        return "f32(...)" if weak.kind == "weak float" else f"{'i32' if other.is_bool else other}(...)"

    def condition(self, e: ast.Expr) -> None:
        t = self.infer(e)
        if not (t.is_bool or t.is_unknown):
            self._error(_UNSUITABLE, f"a condition must be a bool, this is {_named(t)}", e.span, "compare it")

    def _logical(self, op: str, operands: tuple[ast.Expr, ...]) -> Ty:
        for e in operands:
            t = self.infer(e)
            if not (t.is_bool or t.is_unknown):
                hint = "compare it with something to get a bool"
                self._error(_UNSUITABLE, f"'{op}' takes bools, this is {_named(t)}", e.span, hint)
        return BOOLEAN

    def _unary(self, e: ast.Unary) -> Ty:
        if e.op == "not":
            return self._logical("not", (e.arg,))
        t = self.infer(e.arg)
        if e.op == "~" and t.is_float:
            return self._error(_UNSUITABLE, f"'~' takes integers, this is {_named(t)}", e.span)
        if e.op == "-" and t.is_bool:
            return self._error(_UNSUITABLE, "'-' is not defined for bool", e.span, "use 'not'")
        return computed(t)

    def _arithmetic(self, e: ast.Binary) -> Ty:
        a, b = self.infer(e.left), self.infer(e.right)
        if e.op in BITS_OF_BOOLS and a.is_bool != b.is_bool and not (a.is_unknown or b.is_unknown):
            hint = "it binds tighter than comparisons: write 'and' or 'or', or put those in parentheses"
            message = f"dtype mismatch: the operands of '{e.op}' are {a} and {b}"
            return self._error("PF205", message, e.span, hint)
        t = self._meet(a, b, e, f"the operands of '{e.op}'")
        if e.op in BITWISE:
            return self._bitwise(e, t)
        if t.is_bool:
            hint = "use 'and', 'or', or cast with i32(...) or f32(...)"
            return self._error(_UNSUITABLE, f"'{e.op}' is not defined for bool", e.span, hint)
        if e.op == "/" and t.is_integer:
            hint = "use '//' to round down, or make one side a float: 1.0 / H, f32(i) / N"
            return self._error("PF215", "'/' on integers", e.span, hint)
        if e.op == "**" and t.is_integer:
            self._integer_power(e.right)
        return computed(t)

    def _bitwise(self, e: ast.Binary, t: Ty) -> Ty:
        """Of integers; `&`, `|` and `^` of bools as well, which join them."""
        if t.is_float:
            hint = "a power is written '**'" if e.op == "^" else None
            message = f"'{e.op}' takes integers, this is {_named(t)}"
            return self._error(_UNSUITABLE, message, e.span, hint)
        if t.is_bool and e.op not in BITS_OF_BOOLS:
            hint = "cast with u32(...)"
            return self._error(_UNSUITABLE, f"'{e.op}' is not defined for bool", e.span, hint)
        return t

    def _integer_power(self, exponent: ast.Expr) -> None:
        if isinstance(exponent, ast.Unary) and isinstance(exponent.arg, ast.Number):
            hint = "make the base a float: 2.0 ** -3, f32(k[i]) ** -1"
            self._error(_UNSUITABLE, "a negative power of an integer is no integer", exponent.span, hint)

    def _compare(self, e: ast.Compare) -> Ty:
        found = [self.infer(o) for o in e.operands]
        for k, op in enumerate(e.ops):
            whole = len(e.ops) == 1 or isinstance(e.span, CalledSpan)
            span = e.span if whole else e.operands[k].span.to(e.operands[k + 1].span)
            pair = ast.Compare(e.operands[k : k + 2], (op,), span)
            t = self._meet(found[k], found[k + 1], pair, f"the operands of '{op}'")
            if t.is_bool and op not in ("==", "!="):
                self._error(_UNSUITABLE, f"'{op}' is not defined for bool", pair.span)
        return BOOLEAN

    # --- reductions ------------------------------------------------------------------------------------

    def _reduce(self, e: ast.Reduce) -> Ty:
        for r in e.vars:
            for b in bounds((r,)):
                if is_data(b, self.lookup):
                    self._data_bound(e, b)
                else:
                    self.bound(b)
            self._check_new_variable(r)
            self.variables.append(r.var)
        t = self.infer(e.body)
        del self.variables[len(self.variables) - len(e.vars) :]
        return ERROR if self._misplaced(e) else self._reduced(e, t)

    def _misplaced(self, e: ast.Reduce) -> bool:
        """Report a place that must not, or must stand behind the operand, or is none."""
        over = ", ".join(r.var for r in e.vars)
        if e.place is None and e.op in PLACED:
            hint = f"the first has the place 0: {e.op}[{over}]({e.body.span.text}, 0)"
            self._error("PF276", f"{e.op} takes a place behind its operand", e.span, hint)
        elif e.place is not None and e.op not in PLACED:
            named = "argsmallest" if e.op in ("min", "argmin") else "arglargest"
            hint = f"{named}[i](x[i], k) gives the i of what stands at place k"
            self._error("PF275", f"{e.op} takes one operand and no place", e.place.span, hint)
        elif e.place is not None:
            return self._no_place(e.place)
        else:
            return False
        return True

    def _no_place(self, place: ast.Expr) -> bool:
        """Report a place that is no index expression."""
        if is_data(place, self.lookup):
            if not self._unknown_in(place):
                hint = "write out the order as a tensor, with an index for the place, and read that"
                message = "a place is made of index variables and sizes, not of data"
                self._error("PF277", message, place.span, hint)
            return True
        try:
            to_index(place, self.lookup)
        except NotIndex as problem:
            problem.report(self.diags)
            return True
        return False

    def bound(self, b: ast.Expr) -> None:
        """Check a bound of a range: sizes and outer variables only."""
        try:
            if is_data(b, self.lookup):
                if self._unknown_in(b):
                    return
                raise NotIndex("PF307", "a bound cannot depend on data", b.span, "guard the body instead")
            to_index(b, self.lookup)
        except NotIndex as problem:
            if problem.code == "PF303":
                problem.code = "PF307"
            problem.report(self.diags)

    def _data_bound(self, e: ast.Reduce, b: ast.Expr) -> None:
        """Check a bound of a reduction that is data: an integer, of what the language has no other use."""
        t = self.infer(b)
        if e.op in ARG_REDUCTIONS:
            which = "max" if e.op == "argmax" else "min"
            found = f"find the value with {which}, and the first index that has it with min"
            hint: str | None = None if e.op in PLACED else found
            self._error("PF258", f"{e.op} takes no bounds from data: its range may be empty", b.span, hint)
        elif any(isinstance(x, ast.Reduce) for x in walk(b)):
            hint = "give it a name first, as in first[n] = min[k](...), and write first[n] here"
            self._error("PF260", "a bound holds a reduction", b.span, hint)
        elif t.dtype is U64 or not (t.is_integer or t.is_unknown):
            what = "a float" if t.is_float else f"of type {t}"
            hint = None if t.is_bool else "cast it, as in i64(...)"
            self._error("PF260", f"this bound is {what}, not an integer that i64 has", b.span, hint)

    def _unknown_in(self, b: ast.Expr) -> bool:
        """Does a bound hold an unknown name? That is the mistake then."""
        found = False
        for x in walk(b):
            if isinstance(x, ast.Name) and self.lookup(x.id) is None and x.id not in self.scope.reads:
                self._name(x)
                found = True
        return found

    def _check_new_variable(self, r: ast.VarRange) -> None:
        hint = "choose another name for it"
        if r.var in self.variables:
            message = f"the reduction variable '{r.var}' is an index variable here already"
            self._error("PF223", message, r.span, hint)
        elif r.var in self.scope.sizes:
            self._error("PF223", f"'{r.var}' is a size and cannot be an index variable", r.span, hint)
        elif self.scope.scalar(r.var) is not None:
            self._error("PF223", f"'{r.var}' is a scalar and cannot be an index variable", r.span, hint)

    def _reduced(self, e: ast.Reduce, t: Ty) -> Ty:
        if e.op in ARG_REDUCTIONS and len(e.vars) != 1:
            hint = "flatten the axes first, or reduce them one after the other"
            return self._error("PF310", f"{e.op} takes one variable, got {len(e.vars)}", e.span, hint)
        if e.op in ("any", "all"):
            if t.is_bool or t.is_unknown:
                return BOOLEAN
            hint = "compare the elements, as in any[i](x[i] != 0)"
            return self._error(_UNSUITABLE, f"{e.op} takes bools, this is {_named(t)}", e.body.span, hint)
        if t.is_bool:
            hint = "use any or all, or cast with i32(...)"
            return self._error(_UNSUITABLE, f"{e.op} is not defined for bool", e.body.span, hint)
        if e.op in ARG_REDUCTIONS:
            return INDEX
        if e.op == "mean" and t.is_integer:
            if t.is_weak:
                return WEAK_FLOAT
            hint = "cast the elements, as in mean[i](f32(x[i]))"
            return self._error(_UNSUITABLE, f"mean takes floats, this is {_named(t)}", e.body.span, hint)
        return computed(t)

    # --- calls -----------------------------------------------------------------------------------------

    def _call(self, e: ast.Call) -> Ty:
        if e.callee == OLD:
            return self._old(e)
        mine = not self.library.is_operator(e.callee, self.scope.home)
        if mine and e.callee == POSITION:
            return self._position(e)
        if mine and e.callee == FROM_BITS:
            return self._from_bits(e)
        if mine and e.callee == ROW:
            return self._row(e)
        if mine and e.callee == GIVEN:
            hint = "declare it with '?', as in bias: f32[H]?"
            return self._error(
                "PF248", f"'{GIVEN}' takes an optional parameter of this operator", e.span, hint
            )
        found = [self.infer(a) for a in e.args]
        if e.callee in BY_NAME:
            return self._cast(e, found)
        if not mine or not (e.callee in FUNCTIONS or e.callee == BITS):
            return self._not_a_function(e)
        low, high = FUNCTIONS.get(e.callee, (1, 1))
        if e.keywords:
            return self._error("PF203", f"{e.callee} takes no keyword arguments", e.keywords[0][1].span)
        if not low <= len(found) <= high:
            few = f"{low} argument{'s' if low > 1 else ''}"
            expected = few if low == high else f"{low} or more arguments"
            return self._error("PF203", f"{e.callee} takes {expected}, got {len(found)}", e.span)
        return self._function(e, found)

    def _bits(self, e: ast.Call, t: Ty) -> Ty:
        if t.is_unknown:
            return t
        if not t.is_float:
            hint = "an integer is its bits" if t.is_integer else None
            return self._error(_UNSUITABLE, f"bits takes floats, this is {_named(t)}", e.span, hint)
        return hard((t.dtype or F32).word)

    def _from_bits(self, e: ast.Call) -> Ty:
        first = e.args[0] if e.args else None
        dtype = BY_NAME.get(first.id) if isinstance(first, ast.Name) else None
        if dtype is None or not dtype.is_float or len(e.args) != 2 or e.keywords:
            message = "from_bits takes the dtype of a float and an unsigned integer of its width"
            return self._error("PF265", message, e.span, "write from_bits(f32, u), where u is a u32")
        found = self.infer(e.args[1])
        met = join(found, hard(dtype.word))
        if met is None or not (met.is_integer or met.is_unknown):
            message = f"from_bits({dtype}, ...) takes {dtype.word}, this is {_named(found)}"
            hint = f"cast it, as in {dtype.word}(...)" if found.is_integer else None
            return self._error(_UNSUITABLE, message, e.args[1].span, hint)
        return hard(dtype)

    def _position(self, e: ast.Call) -> Ty:
        for a in e.args:
            if not (isinstance(a, ast.Name) and a.id in self.variables):
                hint = "as in position(t, h); a place that is computed is an integer, such as (t + 1) * H + h"
                return self._error("PF266", "position takes index variables", a.span, hint)
        if e.keywords:
            return self._error("PF203", "position takes no keyword arguments", e.keywords[0][1].span)
        return INDEX

    def _words(self, e: ast.Call, found: list[Ty]) -> Ty:
        """Of integers of 64 bits, which those of every type are."""
        for a, t in zip(e.args, found, strict=True):
            if not (t.is_integer or t.is_unknown):
                self._error(_UNSUITABLE, f"{e.callee} takes integers, this is {_named(t)}", a.span)
        word = e.args[3]
        if isinstance(word, ast.Number) and word.value > 3:
            self._error("PF267", f"a counter has the words 0 to 3, this is {word.text}", word.span)
        return hard(OPS[e.callee].result(U64))

    def _function(self, e: ast.Call, found: list[Ty]) -> Ty:
        if e.callee == BITS:
            return self._bits(e, found[0])
        if e.callee in OPS and OPS[e.callee].takes is Takes.U64:
            return self._words(e, found)
        if e.callee == "select":
            self.condition(e.args[0])
            return computed(self._meet(found[1], found[2], e, "the branches of select"))
        t = found[0]
        for other in found[1:]:
            t = self._meet(t, other, e, f"the arguments of {e.callee}")
        if t.is_bool:
            return self._error(_UNSUITABLE, f"{e.callee} is not defined for bool", e.span)
        if e.callee == "pow" and t.is_integer:
            self._integer_power(e.args[1])
        floating = e.callee in FLOAT_FUNCTIONS
        if floating and t.is_integer and not t.is_weak:
            hint = f"cast the argument, as in {e.callee}(f32(...))"
            return self._error(_UNSUITABLE, f"{e.callee} takes floats, this is {_named(t)}", e.span, hint)
        if OPS[e.callee].gives_bool:
            return BOOLEAN
        return WEAK_FLOAT if floating and t.is_weak else computed(t)

    def _old(self, e: ast.Call) -> Ty:
        read = read_at_entry(e)
        element = read.read if isinstance(read, ast.Padded) else read
        name = element.id if isinstance(element, ast.Name) else element.name if element is not None else None
        if read is None or name not in self.scope.inouts:
            hint = "such as old(m[i]), where m is an inout parameter; other values do not change"
            return self._error("PF294", "'old' takes an inout parameter or an element of one", e.span, hint)
        return self.infer(read)

    def _row(self, e: ast.Call) -> Ty:
        """A call that `rows` has rewritten: its pointers are integers."""
        pointer = pointers_of(e)
        if pointer is None:
            return ERROR
        t = self.infer(e.args[0])
        found = self.types[id(pointer)]
        if found.is_unknown or (found.is_integer and found.dtype is not U64):
            return t
        message = f"the pointers of '{ROW}' are integers that i64 has, these are {_named(found)}"
        return self._error("PF263", message, pointer.span)

    def _cast(self, e: ast.Call, found: list[Ty]) -> Ty:
        if len(found) != 1 or e.keywords:
            return self._error("PF203", f"the cast {e.callee} takes 1 argument, got {len(found)}", e.span)
        return hard(BY_NAME[e.callee])

    def _in_lines(self, e: ast.Call, op: ast.OpDef) -> str:
        """A call inside an expression as statements: operators take whole tensors and give them."""
        if e.keywords or len(e.args) != 1 or not (op.params and op.params[0].type.extents):
            return f"give its result a name first: t = {e.callee}(...)"
        taken = {*self.scope.reads, *self.scope.sizes, *self.variables}
        names = [n for n in (f"{e.callee}{k}" for k in ("_x", "_y", *range(2, 99))) if n not in taken]
        (arg,) = e.args
        if isinstance(arg, ast.Subscript) and _plain_element(arg):
            return f"call it for the whole tensor: {names[1]} = {e.callee}({arg.name}); then read " + (
                f"{names[1]}{arg.span.text[len(arg.name) :]} here"
            )
        info = self.scope.reads.get(arg.id) if isinstance(arg, ast.Name) else None
        if info is not None and info.rank:
            at = f"[{', '.join(self.variables[: info.rank])}]"
            called = f"{names[1]} = {e.callee}({arg.span.text})"
            return f"call it for the whole tensor: {called}; then read {names[1]}{at} here"
        used = {x.id for x in walk(arg) if isinstance(x, ast.Name)}
        at = f"[{', '.join(v for v in self.variables if v in used)}]".replace("[]", "")
        given = f"{names[0]}{at} = {arg.span.text}; {names[1]} = {e.callee}({names[0]})"
        return f"call it for the whole tensor: {given}; then read {names[1]}{at} here"

    def _not_a_function(self, e: ast.Call) -> Ty:
        if not self.diags.is_first(f"{e.callee}()", self.scope.owner):
            return ERROR
        found = self.library.find(e.callee, self.scope.home)
        if found is not None:
            hint: str | None = self._in_lines(e, found[0])
            message = f"the operator '{e.callee}' is called inside an expression"
            return self._error("PF213", message, e.callee_span, hint)
        if e.callee in REDUCTIONS:
            hint = f"a reduction names its variables: {reduction_form(e.callee)}"
            return self._error("PF202", f"unknown function '{e.callee}'", e.callee_span, hint)
        functions = self.library.functions_of(len(e.args))
        hint = function_meant(e.callee, [a.span.text for a in e.args], functions)
        return self._error("PF202", f"unknown function or operator '{e.callee}'", e.callee_span, hint)


def _plain_element(e: ast.Expr) -> bool:
    return isinstance(e, ast.Subscript) and all(isinstance(i, ast.Name) for i in e.indices)


def _cast_to(a: Ty, b: Ty) -> str:
    """Which of two values of different dtypes to cast: the narrower float, the integer beside a float."""
    if a.is_float and b.is_float:
        narrow, wide = sorted((a, b), key=lambda t: F32.bits if t.dtype is None else t.dtype.bits)
        return f"cast the {narrow} side, as in {wide}(...)"
    return f"cast one of them, as in {a if a.is_float else b}(...)"


def _named(t: Ty) -> str:
    return str(t)
