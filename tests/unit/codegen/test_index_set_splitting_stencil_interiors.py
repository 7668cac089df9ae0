"""Windows over a border: what lies within has no conditions, and all of it computes the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from targets import Call, check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IConst, evaluate
from polyfuse.ir.loop_ir import For, If, Node, Store, Update, format_block, nodes_of, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, Select, reads, walk
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

GUARD = "0 <= p+r-1 < H and 0 <= q+s-1 < W"
POOL = f"""op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {{
  y[n, p, q] = sum[r in 0..3, s in 0..3](x[n, p+r-1, q+s-1] if {GUARD} else 0.0) / 9.0
}}"""
MOST = f"""op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {{
  y[n, p, q] = max[r in 0..3, s in 0..3](x[n, p+r-1, q+s-1] if {GUARD} else -inf)
}}"""
FILTER = f"""op f(x: f32[N, H, W], w: f32[N, 3, 3]) -> (y: f32[N, H, W]) {{
  y[n, p, q] = sum[r in 0..3, s in 0..3]((x[n, p+r-1, q+s-1] if {GUARD} else 0.0) * w[n, r, s])
}}"""
STEPS = """op f(x: f64[N, 2*H, 2*W]) -> (y: f64[N, H, W]) {
  y[n, p, q] = min[r in 0..3, s in 0..3](x[n, 2*p+r-1, 2*q+s-1] if 0 <= 2*p+r-1 < 2*H and 0 <= 2*q+s-1 < 2*W
                                         else inf)
}"""
DILATED = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[r in 0..5, s in 0..5](x[n, p+2*r-4, q+2*s-4] if 0 <= p+2*r-4 < H and 0 <= q+2*s-4 < W
                                         else 0.0)
}"""
LINE = """op f(x: f32[N, W]) -> (y: f32[N, W]) {
  y[n, q] = sum[s in 0..9](x[n, q+s-4] if 4 <= q+s < W+4 else 0.0) / f32(min(q + 5, W) - max(q - 4, 0))
}"""
CAUSAL = """op f(x: f32[N, W], w: f32[N, 6]) -> (y: f32[N, W], z: f32[N, W]) {
  y[n, q] = sum[s in 0..6]((x[n, q-s] if q >= s else 1.0) * w[n, s])
  z[n, q] = y[n, q] * y[n, q]
}"""
COLUMNS = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[r in 0..5](x[n, p+r-2, q] if 0 <= p+r-2 < H else 0.0) + 1.0
}"""
ANY_ORDER = """op f(x: f32[N, H, W], w: f32[3, 3]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[r in 0..3, s in 0..3]((x[n, p+1-r, q+1-s] if 0 <= q+1-s < W and 0 <= p+1-r < H
                                          else w[r, s] * 2.0) * (w[r, s] if r != 1 else 0.5))
}"""
HALVES = POOL.replace("f32", "f16").replace("x[n, p+r-1, q+s-1]", "f32(x[n, p+r-1, q+s-1])").replace(
    "/ 9.0", "* 0.125"
).replace("y[n, p, q] = ", "y[n, p, q] = f16(").replace("* 0.125", "* 0.125)")  # fmt: skip
PROGRAMS = {
    "pool": POOL,
    "most": MOST,
    "filter": FILTER,
    "steps": STEPS,
    "dilated": DILATED,
    "line": LINE,
    "causal": CAUSAL,
    "columns": COLUMNS,
    "any_order": ANY_ORDER,
    "halves": HALVES,
}


def nodes(text: str, **sizes: int) -> Iterator[Node]:
    graph = LoopFusion().schedule(fixed_graph(instantiate(parse_text(text), "f"), sizes))
    for k in form_kernels(graph, 2, Stitching())[0].kernels:
        for t in lower(k).functions:
            yield from nodes_of(t.block)


def rows(text: str, **sizes: int) -> list[For]:
    return [n for n in nodes(text, **sizes) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]


def terms_of(row: For) -> list[Read]:
    return [r for v in values_of(row.body) for r in reads(v) if r.tensor == "x"]


@pytest.mark.parametrize("text", [POOL, FILTER, MOST])
def test_the_inner_part_has_all_terms_at_once(text: str) -> None:
    most = max(rows(text, N=8, H=56, W=56), key=lambda x: len(terms_of(x)))
    bounds = {(IConst(1), IConst(49)), (IConst(1), IConst(55)), (IConst(39), IConst(55))}
    assert (most.lower, most.upper) in bounds
    assert len(terms_of(most)) == 9
    assert not any(isinstance(e, Select) for v in values_of(most.body) for e in walk(v))
    assert isinstance(most.body[0], Store)  # totals are set in the same loop


def test_places_beside_it_are_written_out_where_rows_lie_within() -> None:
    (choice,) = (n for n in nodes(POOL, N=8, H=56, W=56) if isinstance(n, If) and n.other)
    own = [n for n in choice.then if isinstance(n, Update)]
    assert [len(reads(n.value)) for n in own] == [6, 6]
    assert [n.indices[-1] for n in own] == [IConst(0), IConst(55)]
    (loop, *_) = (n for n in choice.other if isinstance(n, For) and n.coordinate is Coordinate.SEQ)
    assert (loop.lower, loop.upper) == (IConst(0), IConst(1))


def test_strips_of_a_long_row_have_borders_in_the_first_and_the_last() -> None:
    """Places in the row of a worker, `c % 256`, are found though a loop begins at a border."""
    found = rows(LINE, N=64, W=8192)
    assert "%256" not in format_block(tuple(found))
    assert max(len(terms_of(x)) for x in found) == 9


def test_short_rows_stay() -> None:
    assert not [n for n in nodes(POOL, N=64, H=64, W=3) if isinstance(n, If) and n.other]


def call(text: str, n: int, h: int, w: int) -> Call:
    rng = np.random.default_rng(h * 100 + w)
    graph = instantiate(parse_text(text), "f")
    sizes = {name: {"N": n, "H": h, "W": w}[name] for name in graph.sizes}
    inputs = {}
    for t in (graph.tensor(name) for name in graph.inputs):
        shape = tuple(evaluate(e, sizes) for e in t.shape)
        inputs[t.name] = rng.standard_normal(shape).astype(t.dtype.numpy)
    x = inputs["x"].reshape(-1)
    for k, value in enumerate((np.nan, np.inf, -np.inf, -0.0)):
        x[(7 + 31 * k) % x.size] = value
    return Call(f"{n} x {h} x {w}", text, graph, sizes, inputs)


@pytest.mark.parametrize("name", thinned(tuple(PROGRAMS), 5))
def test_programs_agree(name: str) -> None:
    widths = (1, 2, 17, 18, 21, 40) if name not in ("line", "causal") else (1, 3, 20, 259, 530)
    heights = (1, 2, 3, 6) if "H" in PROGRAMS[name] else (1,)
    check_everywhere([call(PROGRAMS[name], 2, h, w) for h in heights for w in widths], interpret=False)


# Rows of windows from and up to columns that another index decides, with something else beside them.
RAGGED = """op f(x: f32[T, H]) -> (y: f32[T, H]) where H >= 1 {{
  y[t, h] = sum[k in 0..3](x[t, h + k - 1] if 0 <= h + k - 1 < H else 0.0) for t in 0..T, h in {0}
  y[t, h] = 0.5 for t in 0..T, h in {1}
}}"""


@pytest.mark.parametrize(("t", "h"), [(12, 9), (60, 40), (93, 9)])
@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("0..min(t + 1, H)", "min(t + 1, H)..H"),
        ("min(t, H)..H", "0..min(t, H)"),
        ("0..max(H - t, 0)", "max(H - t, 0)..H"),
    ],
)
def test_ends_that_are_not_known_are_computed(inside: str, outside: str, t: int, h: int) -> None:
    x = np.random.default_rng(h).standard_normal((t, h)).astype("f4")
    padded = np.pad(x, ((0, 0), (1, 1)))
    windows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    rows, columns = np.mgrid[:t, :h]
    names = {"t": rows, "H": h, "min": np.minimum, "max": np.maximum}
    begin, end = (eval(e, names) for e in inside.split(".."))
    found = pf.compile(RAGGED.format(inside, outside))(x)
    expected = np.where((columns >= begin) & (columns < end), windows, np.float32(0.5))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "condition",
    ["(h - k) % 2 == 0 and h - k >= 0", "h - k >= 0 and (h - k) // 8 == h // 8", "k <= h % 3 and h - k >= 0"],
)
@pytest.mark.parametrize("h", [5, 9, 16, 33])
def test_conditions_of_digits_of_a_place_are_its_own(condition: str, h: int) -> None:
    text = f"""op f(x: f32[T, H], w: f32[3]) -> (y: f32[T, H]) {{
      y[t, h] = sum[k in 0..3](x[t, h - k] * w[k] if {condition} else 0.0) for t in 0..T, h in 0..H
    }}"""
    rng = np.random.default_rng(h)
    for t in (1, 3, 8):
        x, w = rng.standard_normal((t, h)).astype("f4"), rng.standard_normal(3).astype("f4")
        terms = (
            (x[:, j - k] * w[k] if eval(condition, {"h": j, "k": k}) else x[:, 0] * 0 for k in range(3))
            for j in range(h)
        )
        np.testing.assert_allclose(
            pf.compile(text)(x, w), np.stack([sum(x) for x in terms], 1), rtol=1e-5, atol=1e-6
        )
