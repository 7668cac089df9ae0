"""Programs that must fail the range proofs: code, line, column and example; and some that must pass."""

from __future__ import annotations

import pytest

from polyfuse.diagnostics import Diagnostic, Diagnostics
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.poly.legality.obligations import Obligation
from polyfuse.poly.legality.ranges import prove_ranges

X = "op f(x: f32[N]) -> (y: f32[N])"
XY = "op f(a: f32[N], b: f32[M]) -> (y: f32[N + M])"
SCAN = "op f(x: f32[T, N]) -> (c: f32[T, N])"
SCAN1 = SCAN + " where T >= 1"


def prove(text: str, sizes: dict[str, int] | None = None) -> tuple[list[Diagnostic], frozenset[Obligation]]:
    program = parse_text(text)
    found = Diagnostics()
    still_open = prove_ranges(instantiate(program, program.ops[-1].name), sizes, found)
    return found.errors, still_open


def body(head: str, *lines: str) -> str:
    return "\n".join([head + " {", *("  " + line for line in lines), "}"])


# (program, sizes or None, code, line, column, message)
MUST_FAIL: dict[str, tuple[str, dict[str, int] | None, str, int, int, str]] = {
    "beyond the end": (
        body(X, "y[i] = x[i + 1]"), None, "PF350", 2, 10,
        "reads x[i + 1] out of range: for i = 3 (N = 4), index 4 is not in 0..4",
    ),
    "beyond the end, sizes known": (
        body(X, "y[i] = x[i + 1]"), {"N": 8}, "PF350", 2, 10,
        "reads x[i + 1] out of range: for i = 7 (N = 8), index 8 is not in 0..8",
    ),
    "before the start": (
        body(X, "y[i] = x[i - 1]"), None, "PF350", 2, 10,
        "reads x[i - 1] out of range: for i = 0 (N = 4), index -1 is not in 0..4",
    ),
    "guard too weak by one": (
        body(X, "y[i] = x[i - 2] if i >= 1 else 0.0"), None, "PF350", 2, 10,
        "reads x[i - 2] out of range: for i = 1 (N = 4), index -1 is not in 0..4",
    ),
    "guard on the wrong side": (
        body(X, "y[i] = 0.0 if i >= 1 else x[i - 1]"), None, "PF350", 2, 29,
        "for i = 0 (N = 4), index -1",
    ),
    "or does not guard": (
        body(X, "y[i] = x[i - 1] if i >= 1 or i == 0 else 0.0"), None, "PF350", 2, 10,
        "for i = 0 (N = 4), index -1",
    ),
    "a condition on data does not guard": (
        body(X, "y[i] = x[i - 1] if x[i] > 0.0 else 0.0"), None, "PF350", 2, 10,
        "for i = 0 (N = 4), index -1",
    ),
    "chained comparison too wide": (
        body(X, "y[i] = x[i - 1] + x[i + 1] if 1 <= i < N else x[i]"), None, "PF350", 2, 21,
        "reads x[i + 1] out of range: for i = 3 (N = 4), index 4 is not in 0..4",
    ),
    "constant index without a constraint": (
        body(X, "y[i] = x[5]"), None, "PF350", 2, 10, "for i = 0 (N = 4), index 5 is not in 0..4",
    ),
    "constant index with a constraint too weak": (
        body(X + " where N >= 5", "y[i] = x[5]"), None, "PF350", 2, 10,
        "for i = 0 (N = 5), index 5 is not in 0..5",
    ),
    "modulo larger than the axis": (
        body("op f(x: f32[2, N]) -> (y: f32[N])", "y[i] = x[i % 3, i]"), None, "PF350", 2, 10,
        "reads x[i%3, i] out of range: for i = 2 (N = 4), index 2 is not in 0..2",
    ),
    "half of an odd size": (
        body("op f(x: f32[N]) -> (y: f32[N + 1])", "y[i] = x[i // 2 + N // 2] for i in 0..N + 1"), None,
        "PF350", 2, 10, "for i = 4 (N = 4), index 4 is not in 0..4",
    ),
    "reversed, off by one": (
        body(X, "y[i] = x[N - i]"), None, "PF350", 2, 10, "for i = 0 (N = 4), index 4 is not in 0..4",
    ),
    "a reduction too long": (
        body("op f(x: f32[N]) -> (y: f32[N])", "y[i] = sum[j in 0..i + 2](x[j])"), None, "PF350", 2, 29,
        "for i = 3, j = 4 (N = 4), index 4 is not in 0..4",
    ),
    "strides, sizes known": (
        body("op f(x: f32[M], z: f32[B, S]) -> (y: f32[B, S])", "y[b, s] = x[b*S + s] + z[b, s]"),
        {"M": 11, "B": 3, "S": 4}, "PF350", 2, 13,
        "reads x[b*S + s] out of range: for b = 2, s = 3 (M = 11, B = 3, S = 4), index 11 is not in 0..11",
    ),
    "definition in place too long": (
        "op f(inout x: f32[N]) {\n  x[i] = 1.0 for i in 0..N + 1\n}", None, "PF351", 2, 3,
        "writes x[i] out of range: for i = 4 (N = 4), index 4 is not in 0..4",
    ),
    "defined twice in place": (
        "op f(inout x: f32[N]) where N >= 2 {\n  x[i] = 1.0\n  x[0] = 2.0\n}", None, "PF352", 3, 3,
        "x[0] is defined twice (N = 4)",
    ),
    "definition too long": (
        body(X, "y[i] = x[0] for i in 0..N + 1"), None, "PF351", 2, 3,
        "writes y[i] out of range: for i = 4 (N = 4), index 4 is not in 0..4",
    ),
    "overlap by one": (
        body(XY, "y[i] = a[i] for i in 0..N", "y[i] = b[i - N] if i >= N else 0.0 for i in N - 1..N + M"),
        {"N": 3, "M": 2}, "PF352", 3, 3,
        "y[2] is defined twice (N = 3, M = 2) (the other definition is in line 2)",
    ),
    "overlap for one size only": (
        body(X, "y[0] = x[0]", "y[N - 1] = x[0]", "y[i] = x[i] for i in 1..N - 1"), None, "PF352", 3, 3,
        "y[0] is defined twice (N = 1)",
    ),
    "index values that meet": (
        body(X, "y[i // 2] = x[i]"), None, "PF352", 2, 3,
        "y[0] is defined twice: for i = 0 (N = 4), and for i = 1",
    ),
    "variables that meet, sizes known": (
        body("op f(a: f32[N, M]) -> (y: f32[N * M])", "y[i*N + j] = a[i, j]"), {"N": 2, "M": 3},
        "PF352", 2, 3, "y[2] is defined twice: for i = 0, j = 2 (N = 2, M = 3), and for i = 1, j = 0",
    ),
    "every second element": (
        body("op f(x: f32[N]) -> (y: f32[2*N])", "y[2*i + 1] = x[i]"), None, "PF353", 2, 3,
        "no definition covers y[0] (N = 4)",
    ),
    "a computed index too far": (
        body(X, "y[i + 1] = x[i]"), None, "PF351", 2, 3,
        "writes y[i + 1] out of range: for i = 3 (N = 4), index 4 is not in 0..4",
    ),
    "pieces that need one another": (
        body("op f(x: f32[N]) -> (y: f32[2*N])", "y[2*i] = y[2*i + 1] + x[i] for i in 0..N",
             "y[2*i + 1] = y[2*i] for i in 0..N"),
        None, "PF355", 2, 12, "for i = 0 (N = 4), y[0] needs y[1]",
    ),
    "a gap": (
        body(XY, "y[i] = a[i] for i in 0..N", "y[i] = b[i - N] for i in N + 1..N + M"), None, "PF353", 2, 3,
        "no definition covers y[4] (N = 4, M = 4)",
    ),
    "a corner missing": (
        body("op f(x: f32[N, N]) -> (y: f32[N, N])", "y[i, j] = x[i, j] for i in 0..N, j in 1..N",
             "y[i, 0] = x[i, 0] for i in 1..N"),
        {"N": 3}, "PF353", 2, 3, "no definition covers y[0, 0] (N = 3)",
    ),
    "an undefined element is read": (
        body(X, "s[i] = x[i] for i in 1..N", "y[i] = s[i]"), None, "PF354", 3, 10,
        "reads s[i], which no definition covers: for i = 0 (N = 4), that is s[0]",
    ),
    "an undefined element may be read, by data": (
        body("op f(x: f32[8], n: i64[N]) -> (y: f32[N])", "let t: f32[8]", "t[i] = x[i] for i in 1..4",
             "y[i] = t[min(max(n[i], 1), 4)]"),
        None, "PF354", 4, 10,
        "reads t[min(max(n[i], 1), 4)], which may be t[4], that no definition covers: for i = 0",
    ),
    "a quotient of a remainder is 0": (
        body("op f(x: f32[8]) -> (y: f32[13])", "y[i] = 0.0 for i in 0..5",
             "y[i] = x[((i + 3) % 8) // 8 - 1] for i in 5..13"),
        None, "PF350", 3, 10, "for i = 5, index -1 is not in 0..8",
    ),
    "a sum of quotients, divided": (
        body("op f(x: f32[8]) -> (y: f32[16])", "y[i] = 0.0 for i in 0..8",
             "y[i] = x[100000000 * ((i // 8 * 8 + i) // 8 - 1)] for i in 8..16"),
        None, "PF350", 3, 10, "for i = 8, index 100000000 is not in 0..8",
    ),
    "a guard that wraps is none": (
        body("op f(x: f32[4]) -> (y: f32[8])", "y[i] = x[i] if i * 4611686018427387904 == i else x[0]"),
        None, "PF350", 2, 10, "for i = 4, index 4 is not in 0..4",
    ),
    "a guard of i64 that wraps is none": (
        body("op f(x: f32[4]) -> (y: f32[8])",
             "y[i] = x[i] if i * 4611686018427387904 < i // (i + 1) else x[0]"),
        None, "PF350", 2, 10, "for i = 4, index 4 is not in 0..4",
    ),
    "a range beyond 64 bits": (
        body("op f(x: f32[N]) -> (y: f32)", "y = sum[i in 0..N*N*N*N](x[i % N])"), {"N": 10**5},
        "PF362", 2, 3,
        "the range of 'i' is too large: N*N*N*N is 100000000000000000000",
    ),
    "an extent beyond 64 bits": (
        body("op f(x: f32[N]) -> (y: f32[N*N*N*N])", "y[i] = x[0]"), {"N": 10**5}, "PF362", 1, 21,
        "an extent of 'y' is too large: N*N*N*N is 100000000000000000000",
    ),
    "an index with parts beyond 64 bits": (
        body(X, "y[i] = x[i * 4611686018427387904 // 4611686018427387904]"), {"N": 3}, "PF362", 2, 10,
        "an index is too large: 4611686018427387904",
    ),
    "a place of a scatter with parts beyond 64 bits": (
        body(X, "y[i * N * N // N // N] += x[i]"), {"N": 2 * 10**6}, "PF362", 2, 3,
        "an index is too large: i*N*N is in 0..7999996000000000000",
    ),
    "an index that is no value of i32": (
        body("op f(k: i32[N]) -> (y: i32[N])", "y[i] = k[i] + i * 3000000000"), {"N": 5}, "PF363", 2, 17,
        "i*3000000000 is no value of i32: for i = 1 (N = 5) it is 3000000000",
    ),
    "an index that is no value of u8, under a guard": (
        body("op f(k: u8[N]) -> (y: u8[N])", "y[i] = k[i] + i if i <= 256 else k[i]"), {"N": 500},
        "PF363", 2, 17,
        "i is no value of u8: for i = 256 (N = 500) it is 256",
    ),
    "a product of indices that may be no value of u8": (
        body("op f(k: u8[N]) -> (y: u8[N])", "y[i] = k[i] + i * i for i in 0..N"), {"N": 17}, "PF363", 2, 17,
        "i*i may be no value of u8: it lies in 0..256",
    ),
    "a size that is no value of i8": (
        body("op f(k: i8[N]) -> (y: i8[N])", "y[i] = max(k[i], N)"), {"N": 128}, "PF363", 2, 20,
        "N is no value of i8: for i = 0 (N = 128) it is 128",
    ),
    "a recurrence without a start": (
        body(SCAN, "c[t, j] = c[t - 1, j] + x[t, j] for t in 1..T"), {"T": 3, "N": 2}, "PF353", 2, 3,
        "no definition covers c[0, 0] (T = 3, N = 2)",
    ),
    "a recurrence that reads a later element": (
        body("op f(x: f32[T]) -> (c: f32[T])", "c[0] = x[0]", "c[t] = c[T - t] + x[t] for t in 1..T"), None,
        "PF355", 3, 10,
        "reads c[T - t], which is not defined before it: for t = 1 (T = 4), c[1] needs c[3] needs c[1]",
    ),
    "two tensors that need each other": (
        body("op f(x: f32[T]) -> (a: f32[T], b: f32[T])", "a[t] = b[t] + x[t] for t in 0..T",
             "b[t] = a[t] * 2.0 for t in 0..T"),
        {"T": 5}, "PF355", 2, 10, "for t = 0 (T = 5), a[0] needs b[0] needs a[0]",
    ),
    "two tensors, a step each way": (
        body("op f(x: f32[T]) -> (a: f32[T], b: f32[T])",
             "a[t] = x[t] + (b[t - 1] if t >= 1 else 0.0) for t in 0..T",
             "b[t] = a[t + 1] if t < T - 1 else x[t] for t in 0..T"),
        None, "PF355", 2, 18, "for t = 1 (T = 4), a[1] needs b[0] needs a[1]",
    ),
    "an element that needs itself under a guard": (
        body(SCAN, "c[t, j] = x[t, j] + (c[t, j] if t >= 1 else 0.0) + (c[t, j-1] if j >= 1 else 1.0)"
             " for t in 0..T, j in 0..N"),
        None, "PF355", 2, 24, "for t = 1, j = 0 (T = 4, N = 4), c[1, 0] needs c[1, 0]",
    ),
    "a recurrence through a gather": (
        body("op f(x: f32[T], p: i32[T]) -> (c: f32[T])", "c[0] = x[0]", "c[t] = c[p[t]] for t in 1..T"),
        None, "PF355", 3, 10, "for t = 1 (T = 4), c[1] needs c[1]",
    ),
    "division by a size that is 0": (
        body("op f(x: f32[N, K]) -> (y: f32[N])", "y[i] = x[i // K, 0]"), {"N": 3, "K": 0}, "PF356", 2, 10,
        "division by zero in the index i//K (N = 3, K = 0)",
    ),
    "max of nothing": (
        body(X, "y[i] = max[j in 0..i](x[j])"), {"N": 3}, "PF359", 2, 3,
        "max of no elements: for i = 0 (N = 3)",
    ),
    "a place behind the last": (
        body("op f(x: f32[N, M]) -> (y: i64[N, 3])", "y[i, k] = arglargest[j](x[i, j], k)"), None,
        "PF380", 2, 3,
        "a place that its elements do not have: for i = 0, k = 1 (N = 1, M = 1), place 1 is not in 0..1",
    ),
    "a place behind the last of a triangle": (
        body("op f(x: f32[N]) -> (y: i64[N])", "y[i] = argsmallest[j in 0..i+1](x[j], 1)"), {"N": 3},
        "PF380", 2, 3,
        "for i = 0 (N = 3), place 1 is not in 0..1",
    ),
    "a place before the first": (
        body("op f(x: f32[N]) -> (y: i64[N])", "y[i] = argsmallest[j](x[j], i - 1)"), {"N": 3}, "PF380", 2, 3,
        "for i = 0 (N = 3), place -1 is not in 0..3",
    ),
    "a negative extent": (
        body("op f(x: f32[N]) -> (y: f32[N - 2])", "y[i] = x[i + 1] for i in 0..N - 2"), {"N": 1}, "PF360",
        1, 21, "extent N - 2 of y is -1 (N = 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUST_FAIL)
def test_must_fail(name: str) -> None:
    text, sizes, code, line, column, message = MUST_FAIL[name]
    errors, _ = prove(text, sizes)
    found = [(e.code, e.span.line, e.span.column) for e in errors if e.span]
    assert (code, line, column) in found, [e.render() for e in errors]
    error = next(e for e in errors if e.span and (e.code, e.span.line, e.span.column) == (code, line, column))
    assert message in error.message
    assert error.code == "PF360" or error.hint


# (program, the hint, what it must not say): a hint names only what can help.
HINTS: dict[str, tuple[str, str, str]] = {
    "guard": (body(X, "y[i] = x[i + 1]"), "`x[i + 1] if i + 1 < N else ...`", "where"),
    "guard below": (body(X, "y[i] = x[i - 1]"), "`x[i - 1] if i - 1 >= 0 else ...`", "where"),
    "in a reduction": (body(X, "y[i] = sum[k in 0..N](x[k + 1]) + x[i]"), "`[k in 0..N]`", "where"),
    "a constant": (body(X, "y[i] = x[5]"), "`where N >= 6`", "guard"),
    "the extent": (body(X, "y[i] = x[N]"), "they are in 0..N, without the end", "where"),
    "two sizes": (body(XY, "y[i] = a[i] + b[i] for i in 0..N"), "`where M >= N`", "N >= 2"),
    "a definition": (body(X, "y[i] = 1.0 for i in 0..N + 1"), "than `for i in 0..N + 1`", "guard"),
    "a fixed range": (
        body(X, "y[i] = x[i] for i in 0..2", "y[i] = x[i] for i in 2..N"), "`where N >= 2`", "M",
    ),
    "overlap": (body(X, "y[i] = x[i]", "y[0] = x[0]"), "ranges that do not meet", "where"),
    "overlap of small sizes": (body(X, "y[0] = x[0]", "y[N - 1] = x[0]", "y[i] = x[i] for i in 1..N - 1"),
                               "`where N >= 2`", "guard"),
}  # fmt: skip


@pytest.mark.parametrize("name", HINTS)
def test_hints(name: str) -> None:
    text, words, absent = HINTS[name]
    errors, _ = prove(text)
    hints = [e.hint or "" for e in errors]
    assert any(words in h for h in hints), hints
    assert not any(absent in h for h in hints), hints


MUST_PASS = {
    "pad": body("op f(x: f32[N]) -> (y: f32[N + 2])", "y[i] = x[i - 1] if 1 <= i <= N else 0.0"),
    "pad in pieces": body(
        "op f(x: f32[N]) -> (y: f32[N + 2])", "y[0] = 0.0", "y[N+1] = 0.0", "y[i] = x[i-1] for i in 1..N+1"
    ),
    "concat": body(XY, "y[i] = a[i] for i in 0..N", "y[i] = b[i - N] for i in N..N + M"),
    "stencil": body(X, "y[i] = x[i - 1] + x[i + 1] if 1 <= i and i < N - 1 else x[i]"),
    "stencil, negated": body(X, "y[i] = x[i] if not (i >= 1 and i + 1 < N) else x[i - 1] + x[i + 1]"),
    "stencil, or": body(X, "y[i] = x[i] if i == 0 or i >= N - 1 else x[i - 1] + x[i + 1]"),
    "not equal": body(X, "y[i] = x[i - 1] if i != 0 else x[i]"),
    "scan": body(SCAN1, "c[0, j] = x[0, j]", "c[t, j] = c[t-1, j] + x[t, j] for t in 1..T"),
    "scan down": body(
        SCAN1, "c[T - 1, j] = x[T - 1, j]", "c[t, j] = c[t+1, j] + x[t, j] for t in 0..T-1"
    ),
    "stencil over time": body(
        SCAN1,
        "c[0, j] = x[0, j]",
        "c[t, j] = (c[t-1, j-1] if j >= 1 else 0.0) + (c[t-1, j+1] if j < N - 1 else 0.0)"
        " for t in 1..T, j in 0..N",
    ),
    "wavefront": body(
        SCAN,
        "c[t, j] = x[t, j] + (max(c[t-1, j], c[t, j-1]) if t >= 1 and j >= 1 else 0.0)"
        " for t in 0..T, j in 0..N",
    ),
    "tree": body("op f(x: f32[T]) -> (c: f32[T]) where T > 0", "c[0] = x[0]", "c[t] = c[t//2] for t in 1..T"),
    "repeat": body("op f(x: f32[N]) -> (y: f32[3*N])", "y[i] = x[i // 3]"),
    "modulo": body("op f(x: f32[4, N]) -> (y: f32[N])", "y[i] = x[i % 4, N - 1 - i]"),
    "triangle": body(X, "y[i] = sum[j in 0..i + 1](x[i - j])"),
    "pooling": body("op f(x: f32[N, M]) -> (y: f32[N // 2, M // 2])",
                    "y[i, j] = max[a in 0..2, b in 0..2](x[2*i + a, 2*j + b])"),
    "gather": body("op f(x: f32[N], t: i32[M]) -> (y: f32[M])", "y[i] = x[t[i]]"),
    "remainders of remainders": body("op f(x: f32[4], c: f32[N]) -> (y: f32[N])", "y[i] = x[i%4%4] * c[i]"),
    "data that operations keep in a piece": body(
        "op f(x: f32[8], n: i64[N]) -> (y: f32[N])", "let t: f32[8]", "t[i] = x[i] for i in 1..4",
        "y[i] = t[min(max(n[i], 1), 3)]",
    ),
    "an index under a guard as u8": body(
        "op f(k: u8[N]) -> (y: u8[N])", "y[i] = k[i] + i if i < 256 else k[i] + u8(i * 300)"
    ),
    "a triangle as i8": body(
        "op f(k: i8[N]) -> (y: i8[N])", "y[i] = sum[j in 0..i + 1](k[i] + i - j if i < 128 else k[j])"
    ),
    "numbers that wrap": body("op f(k: i64[N]) -> (y: i64[N])", "y[i] = k[i] + i * 4611686018427387904 // 3"),
    "scatter": body("op f(x: f32[M], t: i32[M], z: f32[N]) -> (y: f32[N])", "y[t[i]] += x[i]"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUST_PASS)
def test_must_pass_with_symbolic_sizes(name: str) -> None:
    errors, still_open = prove(MUST_PASS[name])
    assert not errors, [e.render() for e in errors]
    assert not still_open


@pytest.mark.parametrize("name", MUST_PASS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_must_pass_with_known_sizes(name: str, size: int) -> None:
    errors, still_open = prove(MUST_PASS[name], {"N": size, "M": size + 1, "T": size})
    assert not errors, [e.render() for e in errors]
    assert not still_open


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    "text",
    [
        body(X, "y[i] = x[((i - 3) % N + N) % N]"),  # as C shifts around
        body("op f(x: f32[M], c: f32[N]) -> (y: f32[N])", "y[i] = x[(i % M) % M] * c[i]"),
    ],
)
def test_remainders_by_sizes_that_are_known(text: str, size: int) -> None:
    errors, still_open = prove(text, {"N": size, "M": size + 1})
    assert not errors, [e.render() for e in errors]
    assert not still_open
