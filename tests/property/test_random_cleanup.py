"""Clean-up changes no bit: every rule, random expressions, random programs.

Before and after are evaluated by the scalar operations of the interpreter on special values: zeros of both
signs, infinities, NaN, subnormal and extreme numbers.  Only which NaN a NaN is may differ.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_random_programs import call_of

from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.ops import OPS
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    format_expr,
    map_expr,
    statement_reads,
)
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.graph.cleanup.identities import NEGATIVE_ZERO, RULES, Pattern, Rule
from polyfuse.layers.graph.cleanup.run import cleaned
from polyfuse.runtime.interpreter.ops import apply_op, cast, constant
from polyfuse.runtime.reference.evaluate import evaluate

Env = Mapping[str, Any]

FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.5,
    -3.5,
    1e-40,
    -1e-310,
    3e38,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
KINDS = {"floats": (F32, F64), "integers": (I8, U8, I32, I64), "bools": (BOOL,)}
KINDS["signed"] = (*KINDS["floats"], I8, I32, I64)
KINDS["numbers"] = KINDS["floats"] + KINDS["integers"]
KINDS["any"] = (*KINDS["numbers"], BOOL)


def special(dtype: DType) -> Any:
    if dtype.is_float:
        with np.errstate(over="ignore", under="ignore"):
            return np.array(FLOATS).astype(dtype.numpy)
    if dtype is BOOL:
        return np.array([False, True])
    limits = np.iinfo(dtype.numpy)
    return np.array([0, 1, 2, 3, 100, limits.min, limits.max, limits.max - 1], dtype.numpy)


def value_of(e: Expr, env: Env) -> Any:
    """An expression on scalars, as the interpreter computes it."""
    match e:
        case Const(value, dtype):
            return constant(value, dtype)
        case IndexValue(IConst(number), dtype):
            return cast(np.int64(number), I64, dtype)
        case Read(name):
            return env[name]
        case Apply(op, args):
            return apply_op(op, [value_of(a, env) for a in args], args[0].dtype)
        case Select(cond, then, other):
            return value_of(then if value_of(cond, env) else other, env)
        case Cast(arg, dtype):
            return cast(value_of(arg, env), arg.dtype, dtype)
    raise AssertionError(e)


def bits(value: Any) -> bytes | str:
    return "nan" if value != value else np.asarray(value).tobytes()


def graph_of(expr: Expr, dtypes: Mapping[str, DType]) -> TensorGraph:
    """`out = expr` of scalars."""
    tensors = [Tensor(n, t, (), Role.INPUT) for n, t in dtypes.items()]
    result = Tensor("out", expr.dtype, (), Role.OUTPUT)
    statement = Statement("out", "out", (), (), expr)
    return TensorGraph("f", (), (), (*tensors, result), (statement,), tuple(dtypes), ("out",))


def check(expr: Expr, dtypes: Mapping[str, DType], envs: list[Env]) -> Expr:
    """The cleaned expression, which has the same bits everywhere."""
    graph = graph_of(expr, dtypes)
    verify_graph(graph)
    made = cleaned(graph, [], checked=False)
    verify_graph(made)
    after = made.statement("out").expr
    with np.errstate(all="ignore"):
        for env in envs:
            before_bits, after_bits = bits(value_of(expr, env)), bits(value_of(after, env))
            assert before_bits == after_bits, f"{format_expr(expr)} -> {format_expr(after)} at {env}"
    return after


# --- each rule -------------------------------------------------------------------------------------------


def instance(pattern: Pattern, dtype: DType, dtypes: dict[str, DType]) -> Expr:
    """The pattern as an expression over scalars that are called like its variables."""
    if isinstance(pattern, tuple):
        op, *inner = pattern
        assert isinstance(op, str)
        if op == "select":
            cond, then, other = inner
            sides = (instance(then, dtype, dtypes), instance(other, dtype, dtypes))
            return Select(instance(cond, BOOL, dtypes), *sides, dtype)
        args = tuple(instance(p, dtype, dtypes) for p in inner)
        return Apply(op, args, OPS[op].result(args[0].dtype))
    if pattern == NEGATIVE_ZERO:
        return Apply("neg", (Const(0.0, dtype),), dtype)
    if isinstance(pattern, str):
        dtypes[pattern] = dtype
        return Read(pattern, (), dtype)
    if not isinstance(pattern, bool) and dtype.is_float:
        return Const(float(pattern), dtype)
    return Const(pattern, dtype)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule_is_exact_and_used(rule: Rule) -> None:
    assert rule.why
    for dtype in KINDS[rule.kind]:
        if dtype is U8 and -1 in np.ravel([p for p in rule.left if isinstance(p, int)]):
            continue
        dtypes: dict[str, DType] = {}
        expr = instance(rule.left, dtype, dtypes)
        envs: list[Env] = [{}]
        for name, t in dtypes.items():
            envs = [{**env, name: v} for env in envs for v in special(t)]
        assert check(expr, dtypes, envs) is not expr, f"{rule} does nothing on {dtype}"


# --- random expressions ----------------------------------------------------------------------------------

ARITHMETIC = ("add", "sub", "mul", "min", "max")


class Expressions:
    """Random expressions over scalars x, z (of a type) and b, full of what rules are about."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dtype = self.random.choice((F32, F64, I8, I32, U8))
        self.dtypes = {"x": self.dtype, "z": self.dtype, "b": BOOL, "h": F16, "g": BF16}

    def number(self, depth: int, dtype: DType) -> Expr:
        r = self.random
        if depth == 0 or r.random() < 0.15:
            return self._leaf(dtype)
        one = self.number(depth - 1, dtype)
        other = one if r.random() < 0.2 else self.number(depth - 1, dtype)
        match r.randrange(8):
            case 0:
                return Apply(r.choice(("neg", "abs", "neg")), (one,), dtype)
            case 1 if dtype.is_float:
                return Apply(r.choice(("floor", "ceil", "round")), (one,), dtype)
            case 2:
                return Select(self.boolean(depth - 1, dtype), one, other, dtype)
            case 3:
                via = r.choice((F32, F64, I32, I64, I8, F16, BOOL))
                return Cast(Cast(one, via), dtype)
            case 4:
                return Apply("div" if dtype.is_float else "floordiv", (one, other), dtype)
            case _:
                op = r.choice(ARITHMETIC)
                return Apply(op, (one, other), dtype)

    def _leaf(self, dtype: DType) -> Expr:
        r = self.random
        if r.random() < 0.5:
            value = r.choice((0, 1, 1, -1, 2)) if dtype is not U8 else r.choice((0, 1, 2))
            return Const(float(value) if dtype.is_float else value, dtype)
        if r.random() < 0.15:
            return IndexValue(IConst(r.choice((0, 1, 3))), dtype)
        if dtype is not self.dtype:
            return Cast(Read("x", (), self.dtype), dtype)
        if r.random() < 0.1:
            return Cast(Read(*(("h", (), F16) if r.random() < 0.5 else ("g", (), BF16))), dtype)
        return Read(r.choice("xz"), (), dtype)

    def boolean(self, depth: int, dtype: DType) -> Expr:
        r = self.random
        if depth == 0:
            return r.choice((Read("b", (), BOOL), Const(True, BOOL), Const(False, BOOL)))
        match r.randrange(4):
            case 0:
                return Apply("not", (self.boolean(depth - 1, dtype),), BOOL)
            case 1:
                sides = (self.boolean(depth - 1, dtype), self.boolean(depth - 1, dtype))
                return Apply(r.choice(("and", "or")), sides, BOOL)
            case _:
                one = self.number(depth - 1, dtype)
                other = one if r.random() < 0.4 else self.number(depth - 1, dtype)
                return Apply(r.choice(("lt", "le", "gt", "ge", "eq", "ne")), (one, other), BOOL)

    def places(self, count: int) -> list[Env]:
        draw = {n: special(t) for n, t in self.dtypes.items()}
        return [{n: self.random.choice(list(v)) for n, v in draw.items()} for _ in range(count)]


@pytest.mark.parametrize("group", range(10))
def test_random_expressions_keep_their_bits(group: int) -> None:
    changed = 0
    for seed in range(group * 60, group * 60 + 60):
        made = Expressions(seed)
        expr = made.number(5, made.dtype)
        changed += check(expr, made.dtypes, made.places(40)) is not expr
    assert changed > 10


# --- random programs -------------------------------------------------------------------------------------


def in_cycles(graph: TensorGraph) -> set[str]:
    """Tensors that are defined by way of others that need them: those are not compared."""
    reads = {
        t.name: {r.tensor for s in graph.writers(t.name) for r in statement_reads(s)} for t in graph.tensors
    }
    found = set()
    for name in reads:
        seen: set[str] = set()
        waiting = [n for n in reads[name] if n != name]
        while waiting:
            n = waiting.pop()
            if n not in seen:
                seen.add(n)
                waiting += reads[n]
        found |= {name} & seen
    return found


def doubled(graph: TensorGraph) -> TensorGraph:
    """The graph with every temporary twice, the second of which only other second ones read."""
    apart = in_cycles(graph)
    twins = {
        t.name: f"{t.name}_twin"
        for t in graph.tensors
        if t.role is Role.TEMP
        and t.name not in apart
        and not any(s.accumulate for s in graph.writers(t.name))
    }

    def other(e: Expr) -> Expr:
        return replace(e, tensor=twins[e.tensor]) if isinstance(e, Read) and e.tensor in twins else e

    more: list[Statement] = []
    for k, s in enumerate(graph.statements):
        if s.target in twins:
            copy = replace(s, name=f"{s.name}_twin", target=twins[s.target], expr=map_expr(s.expr, other))
            more += [s, copy]
        else:
            more.append(replace(s, expr=map_expr(s.expr, other)) if k % 2 else s)
    tensors = [replace(graph.tensor(n), name=twin) for n, twin in twins.items()]
    return replace(graph, tensors=(*graph.tensors, *tensors), statements=tuple(more))


@pytest.mark.parametrize("group", range(8))
def test_temporaries_that_are_there_twice_are_computed_once(group: int) -> None:
    """And the results are those of the graph before, to the bit: no sum is taken in another order."""
    for seed in range(group * 10, group * 10 + 10):
        call = call_of(seed)
        graph = fixed_graph(call.graph, call.sizes)
        made = cleaned(doubled(graph), [], checked=True)
        verify_graph(made)
        assert not [t.name for t in made.tensors if t.name.endswith("_twin")], f"seed {seed}"
        wanted, found = evaluate(graph, {}, call.inputs), evaluate(made, {}, call.inputs)
        for t in graph.tensors:
            if t.role is Role.OUTPUT:
                np.testing.assert_array_equal(
                    found[t.name].value, wanted[t.name].value, f"seed {seed}: {t.name}"
                )
