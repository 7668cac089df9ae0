"""Operators whose indices are data: gathers, scatters, counts."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case

EDGES, NODES = 200_000, 20_000


def _edges(d: Any) -> tuple[Any, ...]:
    return d(NODES, 64), d(EDGES), d.ints(0, NODES, EDGES), d.ints(0, NODES, EDGES)


def _scattered(d: Any) -> tuple[Any, ...]:
    return d(NODES, 64), d.ints(0, NODES, 100_000), d(100_000, 64)


def _torch_edge_max(t: Any, f: Any, x: Any, src: Any, dst: Any) -> Any:
    start = t.full_like(x, -float("inf"))
    return start.index_reduce_(0, dst, x[src], "amax")


def _torch_added(t: Any, f: Any, y: Any, index: Any, x: Any) -> None:
    y.index_add_(0, index, x)


def _torch_segments(t: Any, f: Any, x: Any, z: Any) -> Any:
    total = t.zeros(1000, x.shape[1]).index_add_(0, z, x)
    return total / t.bincount(z, minlength=1000).clamp(min=1)[:, None]


def _jax_segments(j: Any, n: Any, x: Any, z: Any) -> Any:
    total = n.zeros((1000, x.shape[1])).at[z].add(x)
    return total / n.maximum(n.bincount(z, length=1000), 1)[:, None]


CASES = (
    *(
        Case(
            name,
            "take",
            inputs,
            lambda t, f, x, index: x[index],
            lambda j, n, x, index: x[index],
        )
        for name, inputs in (
            ("rows of a table", lambda d: (d(30522, 256), d.ints(0, 30522, 8, 512))),
            ("rows of a table of f16", lambda d: (d(5000, 128, dtype="f16"), d.ints(0, 5000, 20_000))),
            ("short rows of a table", lambda d: (d(20_000, 3), d.ints(0, 20_000, 200_000, dtype="i32"))),
        )
    ),
    Case(
        "elements along rows",
        "gather",
        lambda d: (d(4096, 768), d.ints(0, 768, 4096, 64)),
        lambda t, f, x, index: x.gather(1, index),
        lambda j, n, x, index: n.take_along_axis(x, index, 1),
    ),
    Case(
        "means of bags of rows",
        """op f(t: f32[V, D], i: i64[B, L]) -> (y: f32[B, D]) where L >= 1 {
          y[b, d] = mean[l](t[i[b, l], d])
        }""",
        lambda d: (d(30522, 256), d.ints(0, 30522, 64, 128)),
        lambda t, f, x, index: f.embedding_bag(index, x, mode="mean"),
        lambda j, n, x, index: x[index].mean(1),
    ),
    Case(
        "one-hot rows times a table",
        """op f(i: i64[N], t: f32[V, D]) -> (y: f32[N, D]) {
          y[n, d] = sum[v]((1.0 if i[n] == v else 0.0) * t[v, d])
        }""",
        lambda d: (d.ints(0, 200, 512), d(200, 64)),
        lambda t, f, i, x: f.one_hot(i, 200).to(t.float32) @ x,
        lambda j, n, i, x: j.nn.one_hot(i, 200) @ x,
    ),
    Case(
        "sums along edges",
        "edge_sum",
        _edges,
        lambda t, f, x, w, src, dst: t.zeros_like(x).index_add_(0, dst, w[:, None] * x[src]),
        lambda j, n, x, w, src, dst: n.zeros_like(x).at[dst].add(w[:, None] * x[src]),
    ),
    Case(
        "maxima along edges",
        "edge_max",
        lambda d: (d(5000, 64), d.ints(0, 5000, 50_000), d.ints(0, 5000, 50_000)),
        _torch_edge_max,
        lambda j, n, x, src, dst: n.full_like(x, -n.inf).at[dst].max(x[src]),
    ),
    Case(
        "rows added to rows",
        "scatter_add",
        _scattered,
        _torch_added,
        lambda j, n, y, index, x: y.at[index].add(x),
        updated=(0,),
    ),
    Case(
        "means of segments",
        """op f(x: f32[E, D], z: i64[E]) -> (y: f32[1000, D]) {
          let total: f32[1000, D] = 0.0
          let count: i64[1000] = 0
          total[z[e], d] += x[e, d]
          count[z[e]] += 1
          y[n, d] = total[n, d] / f32(max(count[n], 1))
        }""",
        lambda d: (d(50_000, 32), d.ints(0, 1000, 50_000)),
        _torch_segments,
        _jax_segments,
    ),
    Case(
        "histogram of bytes",
        "op f(x: u8[N]) -> (h: i64[256]) { h[x[i]] += 1 }",
        lambda d: (d.ints(0, 256, 2_000_000, dtype="u8"),),
        lambda t, f, x: t.bincount(x, minlength=256),
        lambda j, n, x: n.bincount(x, length=256),
    ),
    Case(
        "weighted counts",
        "op f(x: i32[N], w: f32[N]) -> (h: f32[5000]) { h[x[i]] += w[i] }",
        lambda d: (d.ints(0, 5000, 1_000_000, dtype="i32"), d.unit(1_000_000)),
        lambda t, f, x, w: t.bincount(x, w, 5000),
        lambda j, n, x, w: n.bincount(x, w, length=5000),
        tolerance=1e-3,
    ),
)
