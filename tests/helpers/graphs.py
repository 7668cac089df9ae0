"""Small tensor graphs for tests, from one line of text per statement.

    graph("ln", "x[T,H]", "y[T,H]", '''
        s[t] sum= x[t,h]        | t<T, h<H*
        y[t,h] = x[t,h] - s[t]  | t<T, h<H
    ''')

A line is ``[name:] target[index] [sum|max|...][+]= expression | dims``; the statement is called as its
target unless it has a name.  A dim is ``t<T`` or ``t in 1..T``, with a star for a reduction dim.  Lower
case names are loop variables, others are sizes; ``+=`` is a scatter; ``a if c else b`` is a Select; a
read inside an index is a gather.  Temps have the shape of their dims unless they are declared.
"""

from __future__ import annotations

import ast
import re

from polyfuse.ir import index_expr as ix
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IndexExpr, IVar
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
)
from polyfuse.source import SourceText, Span

_LINE = re.compile(
    r"(?:(?P<name>\w+):\s*)?(?P<target>\w+)\[(?P<write>.*?)\]\s*(?P<red>[a-z]+)?(?P<acc>\+)?=(?!=)"
    r"(?P<expr>[^|]*)\|(?P<dims>.*)"
)
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_INDEX = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


def graph(name: str, inputs: str, outputs: str, text: str, temps: str = "") -> TensorGraph:
    """The graph of a text; see the module docstring."""
    source = SourceText(f"{name}.txt", text)
    tensors: dict[str, Tensor] = {}
    for declared, role in ((inputs, Role.INPUT), (temps, Role.TEMP), (outputs, Role.OUTPUT)):
        for tensor, shape in re.findall(r"(\w+)\[(.*?)\]", declared):
            tensors[tensor] = Tensor(tensor, F32, _indices(shape), role)
    statements, offset = [], 0
    for line in text.splitlines(keepends=True):
        found = _LINE.search(line)
        if found:
            statements.append(_statement(found, source, offset, tensors))
        offset += len(line)
    return TensorGraph(
        name,
        _sizes(tensors, statements),
        (),
        tuple(tensors.values()),
        tuple(statements),
        tuple(t.name for t in tensors.values() if t.role is Role.INPUT),
        tuple(t.name for t in tensors.values() if t.role is Role.OUTPUT),
    )


def _statement(
    found: re.Match[str], source: SourceText, offset: int, tensors: dict[str, Tensor]
) -> Statement:
    def parse(group: str) -> Expr:
        return _Reader(source, offset + found.start(group)).expr(found[group])

    def write() -> tuple[Index, ...]:
        reader = _Reader(source, offset + found.start("write"))
        return reader.indices(found["write"])

    dims = tuple(_dim(d.strip()) for d in found["dims"].split(",") if d.strip())
    target = found["target"]
    if target not in tensors:
        upper = {d.name: d.upper for d in dims}
        shape = tuple(upper[i.name] for i in write() if isinstance(i, IVar))
        tensors[target] = Tensor(target, F32, shape, Role.TEMP)
    start = offset + found.start("target")
    return Statement(
        found["name"] or target,
        target,
        dims,
        write(),
        parse("expr"),
        found["red"],
        bool(found["acc"]),
        Span(source, start, offset + found.end("expr")),
    )


def _dim(text: str) -> IterDim:
    reduce = text.endswith("*")
    found = re.fullmatch(r"(\w+)\s*(?:<|in(.*?)\.\.)(.*)", text.rstrip("*"))
    assert found, text
    return IterDim(found[1], _index(found[2] or "0"), _index(found[3]), reduce)


def _index(text: str) -> IndexExpr:
    return _to_index(ast.parse(text.strip(), mode="eval").body)


def _indices(text: str) -> tuple[IndexExpr, ...]:
    return tuple(_index(part) for part in text.split(",") if part.strip())


def _to_index(node: ast.expr) -> IndexExpr:
    match node:
        case ast.Constant(int() as value):
            return ix.as_index(value)
        case ast.Name(name):
            return IVar(name) if name[0].islower() else ix.ISize(name)
        case ast.UnaryOp(ast.USub(), operand):
            return -_to_index(operand)
        case ast.BinOp(left, op, right):
            return ix.binary(_INDEX[type(op)], _to_index(left), _to_index(right))
    raise AssertionError(ast.dump(node))


class _Reader:
    """Expressions of one line, with spans."""

    def __init__(self, source: SourceText, offset: int) -> None:
        self.source, self.offset = source, offset

    def expr(self, text: str) -> Expr:
        self.offset += len(text) - len(text.lstrip())
        return self.to_expr(ast.parse(text.strip(), mode="eval").body)

    def indices(self, text: str) -> tuple[Index, ...]:
        if not text.strip():
            return ()
        self.offset -= 2
        return tuple(self.to_index(e) for e in ast.parse(f"_[{text},]", mode="eval").body.slice.elts)

    def to_index(self, node: ast.expr) -> Index:
        data = any(isinstance(x, ast.Subscript) for x in ast.walk(node))
        return self.to_expr(node) if data else _to_index(node)

    def to_expr(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value):
                return Const(float(value), F32)
            case ast.Name():
                return IndexValue(_to_index(node), F32)
            case ast.Subscript(ast.Name(name), where):
                parts = where.elts if isinstance(where, ast.Tuple) else [where]
                span = Span(self.source, self.offset + node.col_offset, self.offset + node.end_col_offset)
                return Read(name, tuple(self.to_index(p) for p in parts), F32, span)
            case ast.BinOp(left, op, right):
                return Apply(_BINARY[type(op)], (self.to_expr(left), self.to_expr(right)), F32)
            case ast.IfExp(test, body, other):
                return Select(self.condition(test), self.to_expr(body), self.to_expr(other), F32)
        raise AssertionError(ast.dump(node))

    def condition(self, node: ast.expr) -> Expr:
        match node:
            case ast.BoolOp(op, values):
                name = "and" if isinstance(op, ast.And) else "or"
                result = self.condition(values[0])
                for v in values[1:]:
                    result = Apply(name, (result, self.condition(v)), BOOL)
                return result
            case ast.UnaryOp(ast.Not(), operand):
                return Apply("not", (self.condition(operand),), BOOL)
            case ast.Compare(left, [op], [right]):
                sides = [self.to_index(left), self.to_index(right)]
                index = (ix.IConst, ix.ISize, ix.IVar, ix.IBin)
                args = tuple(IndexValue(x, I64) if isinstance(x, index) else x for x in sides)
                return Apply(_COMPARE[type(op)], args, BOOL)
        raise AssertionError(ast.dump(node))


def _sizes(tensors: dict[str, Tensor], statements: list[Statement]) -> tuple[str, ...]:
    every = [e for t in tensors.values() for e in t.shape]
    every += [e for s in statements for d in s.dims for e in (d.lower, d.upper)]
    return tuple(dict.fromkeys(n for e in every for n in ix.sizes(e)))


# --- the graphs --------------------------------------------------------------------------------------

ELEMENTWISE = graph(
    "elementwise",
    "x[T,H]",
    "y[T,H]",
    """
    a[t,h] = x[t,h] + 1   | t<T, h<H
    b[t,h] = a[t,h] + a[t,h]  | t<T, h<H
    y[t,h] = b[t,h] - x[t,h]  | t<T, h<H
    """,
)
BIAS_GELU = graph(
    "bias_gelu",
    "x[T,H] b[H]",
    "y[T,H]",
    """
    s[t,h] = x[t,h] + b[h]    | t<T, h<H
    y[t,h] = s[t,h] + s[t,h]  | t<T, h<H
    """,
)
LAYER_NORM = graph(
    "layer_norm",
    "x[T,H] g[H] b[H]",
    "y[T,H]",
    """
    sm[t] sum= x[t,h]           | t<T, h<H*
    mu[t] = sm[t] / H           | t<T
    ce[t,h] = x[t,h] - mu[t]    | t<T, h<H
    sq[t] sum= ce[t,h]          | t<T, h<H*
    rs[t] = sq[t] / H           | t<T
    nm[t,h] = ce[t,h] + rs[t]   | t<T, h<H
    y[t,h] = nm[t,h] + g[h] + b[h] | t<T, h<H
    """,
)
LAYER_NORM_BACKWARD = graph(
    "layer_norm_backward",
    "x[T,H] dy[T,H] mean[T] rstd[T] g[H]",
    "dx[T,H] dgm[H] dbt[H]",
    """
    xh[t,h] = x[t,h] - mean[t] + rstd[t]                | t<T, h<H
    dg0[t,h] = dy[t,h] + g[h]                           | t<T, h<H
    s1[t] sum= dg0[t,h]                                 | t<T, h<H*
    s2[t] sum= dg0[t,h] + xh[t,h]                       | t<T, h<H*
    dx[t,h] = dg0[t,h] - s1[t] - xh[t,h] - s2[t] + rstd[t] | t<T, h<H
    dgm[h] sum= dy[t,h] + xh[t,h]                       | h<H, t<T*
    dbt[h] sum= dy[t,h]                                 | h<H, t<T*
    """,
)
MASKED_SOFTMAX = graph(
    "masked_softmax",
    "x[B,A,S,K] m[B,K]",
    "y[B,A,S,K]",
    """
    sc[b,a,s,k] = x[b,a,s,k] + m[b,k]       | b<B, a<A, s<S, k<K
    mx[b,a,s] max= sc[b,a,s,k]              | b<B, a<A, s<S, k<K*
    ex[b,a,s,k] = sc[b,a,s,k] - mx[b,a,s]   | b<B, a<A, s<S, k<K
    sm[b,a,s] sum= ex[b,a,s,k]              | b<B, a<A, s<S, k<K*
    y[b,a,s,k] = ex[b,a,s,k] / sm[b,a,s]    | b<B, a<A, s<S, k<K
    """,
)
BATCH_NORM = graph(
    "batch_norm",
    "x[N,C,H,W]",
    "y[N,C,H,W]",
    """
    sm[c] sum= x[n,c,h,w]           | c<C, n<N*, h<H*, w<W*
    mu[c] = sm[c] / N               | c<C
    ce[n,c,h,w] = x[n,c,h,w] - mu[c] | n<N, c<C, h<H, w<W
    sq[c] sum= ce[n,c,h,w]          | c<C, n<N*, h<H*, w<W*
    rs[c] = sq[c] / N               | c<C
    y[n,c,h,w] = ce[n,c,h,w] + rs[c] | n<N, c<C, h<H, w<W
    """,
)
MATMUL_BIAS_GELU = graph(
    "matmul_bias_gelu",
    "a[I,K] b[K,J] bias[J]",
    "ge[I,J]",
    """
    mm[i,j] sum= a[i,k] + b[k,j]  | i<I, j<J, k<K*
    ad[i,j] = mm[i,j] + bias[j]   | i<I, j<J
    ge[i,j] = ad[i,j] + ad[i,j]   | i<I, j<J
    """,
)
SCAN = graph(
    "scan",
    "x[T,J]",
    "c[T,J]",
    """
    c0: c[0,j] = x[0,j]              | j<J
    c1: c[t,j] = c[t-1,j] + x[t,j]   | t in 1..T, j<J
    """,
)
SCAN_DOWN = graph(
    "scan_down",
    "x[T,J]",
    "c[T,J]",
    """
    c0: c[T-1,j] = x[T-1,j]          | j<J
    c1: c[t,j] = c[t+1,j] + x[t,j]   | t<T-1, j<J
    """,
)
STENCIL = graph(
    "stencil",
    "x[N]",
    "u[T,N]",
    """
    u0: u[0,i] = x[i]                                    | i<N
    ul: u[t,0] = u[t-1,0]                                | t in 1..T
    ur: u[t,N-1] = u[t-1,N-1]                            | t in 1..T
    um: u[t,i] = u[t-1,i-1] + u[t-1,i] + u[t-1,i+1]      | t in 1..T, i in 1..N-1
    """,
)
DIAGONAL = graph(
    "diagonal",
    "x[N,M]",
    "h[N,M]",
    """
    a: h[i,0] = x[i,0]                                   | i<N
    b: h[0,j] = x[0,j]                                   | j in 1..M
    c: h[i,j] = h[i-1,j] + h[i,j-1] + x[i,j]             | i in 1..N, j in 1..M
    """,
)
NORM_ALL = graph(
    "norm_all",
    "x[N] w[N]",
    "y[N]",
    """
    n2[] sum= w[i]       | i<N*
    y[i] = x[i] / n2[()] | i<N
    """,
)
GATHER = graph(
    "gather",
    "x[V,H] id[T] g[H]",
    "y[T,H]",
    """
    e[v,h] = x[v,h] + g[h]         | v<V, h<H
    r[t,h] = e[id[t],h]            | t<T, h<H
    y[t,h] = r[t,h] + g[h]         | t<T, h<H
    """,
)
SCATTER = graph(
    "scatter",
    "x[T,H] id[T] z[V,H]",
    "o[V,H] y[V,H]",
    """
    o0: o[v,h] = z[v,h]            | v<V, h<H
    o1: o[id[t],h] sum+= x[t,h]    | t<T, h<H
    y[v,h] = o[v,h] + 1            | v<V, h<H
    """,
)
GUARDED = graph(
    "guarded",
    "x[T,H]",
    "y[T,H]",
    """
    a[t,h] = x[t,h] + 1                                    | t<T, h<H
    y[t,h] = a[t-1,h] + a[t,h] if t >= 1 and h < H-1 else a[t,h] | t<T, h<H
    """,
)
GUARDED_SCAN = graph(
    "guarded_scan",
    "x[T,J]",
    "y[T,J]",
    """
    c[t,j] = c[t-1,j] + x[t,j] if t > 0 else x[t,j]   | t<T, j<J
    y[t,j] = c[t,j] + 1                               | t<T, j<J
    """,
)
TRIANGULAR = graph(
    "triangular",
    "x[N,N] d[N]",
    "s[N] y[N,N]",
    """
    m[i,j] = x[i,j] + d[i]       | i<N, j in 0..i+1
    s[i] sum= m[i,j]             | i<N, j in 0..i+1*
    z[i,j] = m[i,j] / s[i]       | i<N, j in 0..i+1
    y0: y[i,j] = z[i,j]          | i<N, j in 0..i+1
    y1: y[i,j] = d[j]            | i<N, j in i+1..N
    """,
    temps="m[N,N] z[N,N]",
)
SOLVE = graph(
    "solve",
    "b[N] l[N,N]",
    "x[N]",
    """
    p[i] sum= l[i,j] + x[j]      | i<N, j in 0..i*
    x[i] = b[i] - p[i]           | i<N
    """,
)
TRANSPOSED = graph(
    "transposed",
    "x[N,M] w[M]",
    "y[M,N] q[M]",
    """
    a[i,j] = x[i,j] + w[j]       | i<N, j<M
    b[j,i] = a[i,j] + 1          | j<M, i<N
    q[j] sum= b[j,i]             | j<M, i<N*
    y[j,i] = b[j,i] / q[j]       | j<M, i<N
    """,
)
STRIDED = graph(
    "strided",
    "x[2*N]",
    "y[N] z[2*N]",
    """
    a[i] = x[i] + 1              | i<2*N
    y[i] = a[2*i] + a[2*i+1]     | i<N
    z[k] = y[k // 2] + a[k]      | k<2*N
    """,
)
CONVOLUTION = graph(
    "convolution",
    "x[N] w[K]",
    "y[N]",
    """
    p0: p[i] = x[i]               | i<N
    p1: p[i] = 0                  | i in N..N+K
    c[i] sum= p[i+k] + w[k]       | i<N, k<K*
    y[i] = c[i] + p[i]            | i<N
    """,
    temps="p[N+K]",
)
TWO_RECURRENCES = graph(
    "two_recurrences",
    "x[T,J] g[T]",
    "h[T,J] c[T,J]",
    """
    c0: c[0,j] = x[0,j]                      | j<J
    h0: h[0,j] = x[0,j]                      | j<J
    f[t,j] = h[t-1,j] + g[t]                 | t in 1..T, j<J
    c1: c[t,j] = c[t-1,j] + f[t,j] + x[t,j]  | t in 1..T, j<J
    h1: h[t,j] = c[t,j] + f[t,j]             | t in 1..T, j<J
    """,
    temps="f[T,J]",
)
RNN = graph(
    "rnn",
    "x[T,D] w[D,D]",
    "h[T,D]",
    """
    h0: h[0,d] = x[0,d]                 | d<D
    m[t,d] sum= h[t-1,e] + w[e,d]       | t in 1..T, d<D, e<D*
    h1: h[t,d] = m[t,d] + x[t,d]        | t in 1..T, d<D
    """,
    temps="m[T,D]",
)

GUARDS = graph(
    "guards",
    "x[N,M] k[N]",
    "y[N,M] z[N,M]",
    """
    a[i,j] = x[i,j] + 1                                                        | i<N, j<M
    b[i,j] = a[i-1,j] if not (i == 0 or j > i) else a[i,j]                     | i<N, j<M
    y[i,j] = b[i,j+1] + 1 if k[i] > k[0] and j < M-1 else b[i,0]               | i<N, j<M
    z[i,j] = y[i-1,j] if (i != 0 and j % 2 == 1) or (i > 1 and k[i] < 0) else 0 | i<N, j<M
    """,
)
COMPUTED_SCATTER = graph(
    "computed_scatter",
    "x[T] id[T]",
    "o[V] c[V] m[]",
    """
    p[t] = id[t] + x[t]          | t<T
    o0: o[v] = 0                 | v<V
    o1: o[p[t]] sum+= x[t]       | t<T
    o2: o[id[t]] sum+= p[t]      | t<T
    c[v] = o[v] / o[0] if v > 0 else o[v] | v<V
    m[] max= c[v]                | v<V*
    """,
)
WRAPPED = graph(
    "wrapped",
    "x[T,8]",
    "y[T,8] r[8,T]",
    """
    a[t,i] = x[t,i] + 1                              | t<T, i<8
    b[t,i] = a[t,(i+1) % 8] + a[t,7-i]               | t<T, i<8
    y[t,i] = b[t,2*(i//2)] + b[t,i]                  | t<T, i<8
    r[i,t] = y[t,i] + a[0,i]                         | i<8, t<T
    """,
)
TWO_SUMS = graph(
    "two_sums",
    "x[I,J] w[I,J]",
    "y[I,J] t[]",
    """
    r[i] sum= x[i,j]             | i<I, j<J*
    c[j] sum= x[i,j] + w[i,j]    | j<J, i<I*
    y[i,j] = r[i] + c[j]         | i<I, j<J
    t[] sum= y[i,j] + r[i]       | i<I*, j<J*
    """,
)

GOLDEN = (
    ELEMENTWISE,
    BIAS_GELU,
    LAYER_NORM,
    LAYER_NORM_BACKWARD,
    MASKED_SOFTMAX,
    BATCH_NORM,
    MATMUL_BIAS_GELU,
    SCAN,
    SCAN_DOWN,
    STENCIL,
    DIAGONAL,
)
ALL = (
    *GOLDEN,
    NORM_ALL,
    GATHER,
    SCATTER,
    GUARDED,
    GUARDED_SCAN,
    TRIANGULAR,
    SOLVE,
    TRANSPOSED,
    STRIDED,
    CONVOLUTION,
    TWO_RECURRENCES,
    RNN,
    GUARDS,
    COMPUTED_SCATTER,
    WRAPPED,
    TWO_SUMS,
)
