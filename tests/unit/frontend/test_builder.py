"""Programs built in Python are those of the text: equal trees, equal checks, errors at lines of Python."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stdlib_cases import programs

import polyfuse as pf
from polyfuse.builder import Expression, OpBuilder, ProgramBuilder, Tensor, fn, literal, total, when
from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import rewrite, rewrite_ranges
from polyfuse.frontend_dsl.syntax.parse import parse_text

ROOT = Path(__file__).parents[3]

# --- every operator of the library, transcribed ----------------------------------------------------------

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "and": operator.and_,
    "or": operator.or_,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Transcriber:
    """Says with the builder what a tree says."""

    def __init__(self, builder: ProgramBuilder, op: ast.OpDef) -> None:
        self.f = builder.op(op.name)
        for generic in op.generics:
            if generic.kind == ast.SIZE:
                default = None if generic.default is None else self.expr(generic.default)
                self.f.size_parameter(generic.name, default)
            else:
                self.f.generic(generic.name, generic.kind)
        self.tensors: dict[str, Tensor] = {}
        for p in op.params:
            default = None if p.default is None else self.number(p.default)
            make = self.f.inout if p.inout else self.f.param
            extra = {} if p.inout else {"default": default, "optional": p.optional}
            self.tensors[p.name] = make(p.name, p.type.dtype, self.extents(p.type), **extra)
        for r in op.results:
            self.tensors[r.name] = self.f.result(r.name, r.type.dtype, self.extents(r.type))
        self.f.where(*map(self.expr, op.where))
        for stmt in op.body:
            self.statement(stmt)

    def number(self, e: ast.Expr) -> Any:
        if isinstance(e, ast.Unary):
            return -self.number(e.arg)
        assert isinstance(e, ast.Number | ast.BoolLit)
        return e.value

    def extents(self, kind: ast.TensorType) -> list[Any]:
        plain = (ast.Name, ast.Splat)
        return [
            f"{e.id}{'...' * isinstance(e, ast.Splat)}" if isinstance(e, plain) else self.expr(e)
            for e in kind.extents
        ]

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            self.tensors[name] = self.f.tensor(name)
        return self.tensors[name]

    def index(self, e: ast.VarRange) -> Any:
        i = self.f.index(e.var + "..." * e.splat)
        return i if e.lower is None or e.upper is None else i.range(self.expr(e.lower), self.expr(e.upper))

    def expr(self, e: ast.Expr) -> Expression:
        match e:
            case ast.Number(value) | ast.BoolLit(value):
                return literal(value)
            case ast.Name(name):
                return self.f.index(name)
            case ast.Splat(name):
                return self.f.index(f"{name}...")
            case ast.Subscript(name, indices):
                return self.tensor(name)[tuple(map(self.expr, indices))]
            case ast.Padded(ast.Subscript(name, indices), outside):
                return self.tensor(name).get(tuple(map(self.expr, indices)), self.expr(outside))
            case ast.Reduce(op, variables, body):
                place = [] if e.place is None else [self.expr(e.place)]
                return getattr(fn, op)[tuple(map(self.index, variables))](self.expr(body), *place)
            case ast.Call(callee, args):
                return getattr(fn, callee)(*map(self.expr, args))
            case ast.Unary(op, arg):
                return -self.expr(arg) if op == "-" else ~self.expr(arg)
            case ast.Binary(op, left, right) | ast.Compare((left, right), (op,)):
                return OPERATORS[op](self.expr(left), self.expr(right))
            case ast.Conditional(cond, then, other):
                return when(self.expr(cond), self.expr(then), self.expr(other))
        raise AssertionError(e)

    def statement(self, stmt: ast.Stmt) -> None:
        match stmt:
            case ast.Let(name, kind, value):
                start = None if value is None else self.expr(value)
                self.tensors[name] = self.f.let(name, kind.dtype, self.extents(kind), start)
            case ast.CallStmt(targets, call):
                self.call(call, targets)
            case ast.Define(target, None, "=", ast.Call(callee) as call) if callee in OPS:
                self.call(call, (target,))
            case ast.Define(target, indices, op, value, ranges):
                written = {r.var: self.index(r) for r in ranges}
                left = tuple(
                    written.pop(i.id) if isinstance(i, ast.Name) and i.id in written else self.expr(i)
                    for i in indices or ()
                )
                if op == "=":
                    self.tensor(target)[left] = self.expr(value)
                else:
                    self.tensor(target).scatter(left, self.expr(value), op, list(written.values()))

    def call(self, call: ast.Call, targets: tuple[str, ...]) -> None:
        arguments = [self.expr(a) for a in call.args]
        keywords = {k: self.expr(v) for k, v in call.keywords}
        self.f.call(call.callee, *arguments, into=[self.tensor(t) for t in targets], **keywords)


OPS = {op.name for p in programs().values() for op in p.ops}


def spelled(e: ast.Expr) -> ast.Expr:
    """Numbers as Python prints them, chains of comparisons as the conjunctions that they mean."""
    if isinstance(e, ast.Number):
        return replace(e, text=repr(e.value))
    if isinstance(e, ast.Reduce):
        return replace(e, vars=rewrite_ranges(e.vars, spelled))
    if isinstance(e, ast.Compare) and len(e.ops) > 1:
        pairs = [ast.Compare(e.operands[k : k + 2], (op,)) for k, op in enumerate(e.ops)]
        return reduce(lambda a, b: ast.Binary("and", a, b), pairs)
    return e


def plain(op: ast.OpDef) -> ast.OpDef:
    def types(p: ast.Param) -> ast.Param:
        default = None if p.default is None else rewrite(p.default, spelled)
        return replace(p, type=kind(p.type), default=default)

    def kind(t: ast.TensorType) -> ast.TensorType:
        return replace(t, extents=tuple(rewrite(e, spelled) for e in t.extents))

    def statement(s: ast.Stmt) -> ast.Stmt:
        match s:
            case ast.Define():
                indices = None if s.indices is None else tuple(rewrite(i, spelled) for i in s.indices)
                ranges = rewrite_ranges(s.ranges, spelled)
                return replace(s, indices=indices, value=rewrite(s.value, spelled), ranges=ranges)
            case ast.Let():
                return replace(s, type=kind(s.type), value=s.value and rewrite(s.value, spelled))
            case ast.CallStmt():
                return replace(s, call=rewrite(s.call, spelled))

    def generic(g: ast.Generic) -> ast.Generic:
        return replace(g, default=g.default and rewrite(g.default, spelled))

    return replace(
        op,
        generics=tuple(map(generic, op.generics)),
        params=tuple(map(types, op.params)),
        results=tuple(map(types, op.results)),
        where=tuple(rewrite(w, spelled) for w in op.where),
        body=tuple(map(statement, op.body)),
    )


@pytest.mark.parametrize("name", programs())
def test_the_library_written_in_python(name: str) -> None:
    """The tree is the text's, and so is the tree of its printed form."""
    builder = ProgramBuilder()
    for op in programs()[name].ops:
        Transcriber(builder, plain(op))
    tree = builder.tree()
    assert tree.ops == tuple(map(plain, programs()[name].ops))
    assert parse_text(str(builder)) == tree


def test_scatters_and_lets() -> None:
    text = """op f(w: f32[E], x: f32[N, F], dst: i64[E], h: f16[N]) -> (y: f32[N, F], m: f32) {
      let agg: f32[N, F] = 0
      let rounded: f16[N]
      rounded[n] = h[n]
      agg[dst[e], j] += w[e] * x[dst[e], j]
      agg[n, 0] += f32(rounded[n]) for n in 0..N
      y[n, j] = agg[n, j] if 2 * n < N or not (j == 0) else -1e-5
      y[0, 0] = 0.0
      m = max[n in 0..N, j](x[n, j])
    }"""
    builder = ProgramBuilder()
    Transcriber(builder, parse_text(text).ops[0])
    assert builder.tree().ops == (plain(parse_text(text).ops[0]),)


# --- what users write ----------------------------------------------------------------------------------


def layer(f: OpBuilder, x: Tensor, w: Tensor) -> Tensor:
    """A layer that is called many times: its locals get names of their own."""
    t, h, k = f.indices("t h k")
    s, y = f.tensor("s"), f.tensor("y")
    s[t, h] = fn.sum[k](x[t, k] * w[k, h])
    y[t, h] = fn.tanh(s[t, h]) + x[t, h]
    return y


SEGMENTS = """op segments(x: f32[E], ptr: i32[N + 1]) -> (p: f32[E], r: i64[E]) {
  s[n] = sum[e in max(0, ptr[n])..min(ptr[n + 1], E)](exp(x[e])) for n in 0..N
  p[e] = exp(x[e]) / s[row(ptr, e)]
  r[e] = row(ptr, e)
}
"""


def test_ranges_that_data_bounds_and_rows_of_elements() -> None:
    b = ProgramBuilder()
    f = b.op("segments")
    size, count = f.sizes("N E")
    x, ptr = f.param("x", "f32", count), f.param("ptr", "i32", size + 1)
    p, r = f.result("p", "f32", "E"), f.result("r", "i64", "E")
    s, (n, e) = f.tensor("s"), f.indices("n e")
    row_of = fn.max(0, ptr[n]), fn.min(ptr[n + 1], count)
    s[n.range(0, size)] = fn.sum[e.range(*row_of)](fn.exp(x[e]))
    p[e] = fn.exp(x[e]) / s[fn.row(ptr, e)]
    r[e] = fn.row(ptr, e)
    assert b.tree().ops == (plain(parse_text(SEGMENTS).ops[0]),)
    given = np.ones(5, np.float32), np.array([0, 2, 2, 5], np.int32)
    p_found, r_found = map(np.asarray, pf.compile(b.program(), target="interpret")(*given))
    np.testing.assert_array_equal(r_found, [0, 0, 2, 2, 2])
    np.testing.assert_allclose(p_found, [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], 1e-6)


def test_pointers_of_a_row_with_subscripts_are_refused_at_the_line_of_python() -> None:
    b = ProgramBuilder()
    f = b.op("f")
    ptr, r, e = f.param("ptr", "i32", "N"), f.result("r", "i64", "N"), f.index("e")
    r[e] = fn.row(ptr[e], e)
    with pytest.raises(DslError) as caught:
        b.program()
    found = caught.value.diagnostics[0]
    assert found.code == "PF261" and found.span is not None
    assert "fn.row(ptr[e], e)" in found.span.text


def test_a_loop_over_layers() -> None:
    b = pf.ProgramBuilder("layers.py")
    f = b.op("deep")
    x = f.param("x", "f32", ("T", "H"))
    out = f.result("out", "f32", ("T", "H"))
    weights = [f.param(f"w{k}", "f32", ("H", "H")) for k in range(3)]
    value = x
    for w in weights:
        value = layer(f, value, w)
    f.call("softmax", value, into=out)
    program = b.program()
    assert program.ops == ("deep",)
    assert [s.target for s in program.op().op.body if isinstance(s, ast.Define)] == [
        *("s", "y", "s_2", "y_2", "s_3", "y_3", "out")
    ]
    assert str(pf.parse(str(b))) == str(program)

    rng = np.random.default_rng(0)
    data = rng.standard_normal((5, 4), "f4")
    arrays = [rng.standard_normal((4, 4), "f4") for _ in weights]
    got = pf.compile(program, target="interpret")(data, *arrays)
    want = data.astype("f8")
    for w in arrays:
        want = np.tanh(want @ w) + want
    want = np.exp(want) / np.exp(want).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_calls_with_several_results_and_inout_parameters() -> None:
    b = ProgramBuilder()
    norm = b.op("norms")
    x = norm.param("x", "f32", "N")
    i = norm.index("i")
    low, high = norm.result("low", "f32"), norm.result("high", "f32")
    low[()] = fn.min[i](x[i])
    high[()] = fn.max[i](x[i])
    f = b.op("step")
    p, g = f.inout("p", "f32", 6), f.param("g", "f32", 6)
    spread = f.result("spread", "f32")
    found = f.call("norms", g)
    assert isinstance(found, tuple) and [t.name for t in found] == ["low", "high"]
    spread[()] = found[1] - found[0]
    assert f.call("sgd_momentum", p, g, f.inout("buf", "f32", 6), lr=0.5) is None
    buf, start = np.ones(6, "f4"), np.zeros(6, "f4")
    data = np.arange(6, dtype="f4")
    assert pf.compile(b.program(), target="interpret")(start, data, buf) == 5.0
    np.testing.assert_allclose(buf, 0.9 + data)
    np.testing.assert_allclose(start, -0.5 * buf)


def test_include_makes_the_operators_of_a_program_known(tmp_path: Any) -> None:
    (tmp_path / "inner.pf").write_text("op half[F: float](x: F[N]) -> (y: F[N]) { y[n] = x[n] * 0.5 }\n")
    outer = tmp_path / "outer.pf"
    outer.write_text(
        'import "inner.pf"\nop quarter(x: f32[N]) -> (y: f32[N]) {\nh = half(x)\ny = half(h)\n}\n'
    )
    b = ProgramBuilder()
    b.include(pf.parse(outer))
    f = b.op("eighth")
    q = f.call("quarter", f.param("x", "f32", "N"), into="q")
    assert isinstance(q, Tensor) and q.name == "q"
    f.call("half", q, into=f.result("y", "f32", "N"))
    assert b.program().ops == ("quarter", "half", "eighth")
    assert parse_text(str(b)) == b.tree()
    assert pf.compile(b.program(), target="interpret")(np.float32([8.0, 4.0])).tolist() == [1.0, 0.5]


def test_many_terms_are_added_in_pairs() -> None:
    b = ProgramBuilder()
    f = b.op("f")
    i = f.index("i")
    parts = [f.param(f"x{k}", "f32", k + 1) for k in range(250)]
    y = f.result("y", "f32")
    y[()] = fn.sqrt(total(fn.sum[i](x[i] * x[i]) for x in parts))
    assert parse_text(str(b)) == b.tree()
    with pytest.raises(DslError, match="no terms"):
        total([])


def test_numbers_of_numpy_and_python() -> None:
    b = ProgramBuilder()
    f = b.op("f")
    x, y = f.param("x", "f64", "N"), f.result("y", "f64", "N")
    i = f.index("i")
    y[i] = np.float32(0.5) * x[i] + np.int32(-2) - (x[i] ** -3.0) / np.float64(1e-30) + 1e22
    assert str(b).splitlines()[1] == "  y[i] = 0.5 * x[i] + -2 - x[i] ** -3.0 / 1e-30 + 1e+22"
    assert parse_text(str(b)) == b.tree()


def test_the_example_of_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "builder.md").read_text(encoding="utf-8")
    text = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(text, "builder.md", "exec"), names)
    assert parse_text(str(names["b"])) == names["b"].tree()
    assert str(names["update"].signature).count("inout") == 9


# --- errors --------------------------------------------------------------------------------------------


def fresh() -> tuple[ProgramBuilder, OpBuilder, Any, Any]:
    b = ProgramBuilder()
    f = b.op("f")
    return b, f, f.param("x", "f32", "N"), f.index("i")


BAD: list[tuple[Callable[[Any, Any, Any, Any], object], str, str]] = [
    (lambda b, f, x, i: 0 <= i < 3, "PF113", "neither true nor false"),
    (lambda b, f, x, i: x[0:3], "PF113", "no slices"),
    (lambda b, f, x, i: x[...], "PF113", "no slices"),
    (lambda b, f, x, i: x["i"], "PF113", "made into objects first"),
    (lambda b, f, x, i: x[i] + None, "PF113", "None is no number"),
    (lambda b, f, x, i: x[i] * float("nan"), "PF113", "no literal for nan"),
    (lambda b, f, x, i: x[i] + 2**64, "PF105", "too large"),
    (lambda b, f, x, i: x[i] + (-(2**63) - 1), "PF105", "too large"),
    (lambda b, f, x, i: list(x), "PF113", "not a sequence"),
    (lambda b, f, x, i: fn.foo[i](x[i]), "PF109", "not a reduction"),
    (lambda b, f, x, i: fn.sum["i"](x[i]), "PF113", "index variables"),
    (lambda b, f, x, i: fn.exp(), "PF113", "of nothing"),
    (lambda b, f, x, i: sum(x[i] for _ in range(300)), "PF103", "200 operators"),
    (lambda b, f, x, i: f.call("adamv", x), "PF202", "did you mean 'adamw'"),
    (lambda b, f, x, i: f.call("softmax", x, into=("a", "b")), "PF230", "1 result (y), into= names 2"),
    (lambda b, f, x, i: b.op("f"), "PF108", "defined twice"),
    (lambda b, f, x, i: f.tensor("for"), "PF113", "a keyword"),
    (lambda b, f, x, i: f.param("2x", "f32"), "PF113", "letters, digits"),
    (lambda b, f, x, i: f.param("z", "f32", "3*N"), "PF113", "3 * f.size('H')"),
    (lambda b, f, x, i: f.index("b...").range(0, 3), "PF113", "takes no range"),
    (lambda b, f, x, i: f.tensor("t").scatter(i, x[i], "*="), "PF113", "no scatter '*='"),
]


@pytest.mark.parametrize(("bad", "code", "words"), BAD)
def test_refused_at_once_at_the_line_of_python(bad: Any, code: str, words: str) -> None:
    with pytest.raises(DslError) as caught:
        bad(*fresh())
    (found,) = caught.value.diagnostics
    assert found.code == code and words in found.render()
    assert found.span is not None and found.span.source.name == __file__
    assert found.span.line == bad.__code__.co_firstlineno


def test_checks_point_at_the_expression_in_python() -> None:
    b, f, x, i = fresh()
    y = f.result("y", "f32", "N")
    y[i] = (
        fn.tanh(x[i])  # é: columns are characters, not bytes
        + fn.expp(x[i])
    )
    with pytest.raises(DslError) as caught:
        b.program()
    (found,) = caught.value.diagnostics
    assert found.code == "PF202" and found.span is not None
    assert found.span.text == "fn.expp(x[i])"
    first = inspect.getsourcelines(test_checks_point_at_the_expression_in_python)[1]
    assert (found.span.source.name, found.span.line) == (__file__, first + 5)


def test_all_errors_of_a_program_are_reported_together() -> None:
    b, f, x, i = fresh()
    y = f.result("y", "f32", "N")
    y[i] = x[i + 1, 0]
    f.result("z", "f32", "N")
    x[i] = 0.0
    with pytest.raises(DslError) as caught:
        b.program()
    assert sorted(d.code for d in caught.value.diagnostics) == ["PF204", "PF208", "PF211"]
    assert all(d.span is not None and d.span.source.name == __file__ for d in caught.value.diagnostics)


def test_places_without_a_source() -> None:
    code = "b = ProgramBuilder()\nf = b.op('f')\nf.tensor('2x')\n"
    with pytest.raises(DslError) as caught:
        exec(compile(code, "<typed>", "exec"), {"ProgramBuilder": ProgramBuilder})
    assert str(caught.value.diagnostics[0].span) == "<typed>:3:1"
    assert "PF113" in str(caught.value)
