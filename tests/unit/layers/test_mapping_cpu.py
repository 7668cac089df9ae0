"""Which loops are spread over workers and which run in vector lanes."""

from __future__ import annotations

import pytest
from equivalence import assert_computes, assert_right, fixed_graph_of, run_kernels, seeded_inputs

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Sequence, Tree, format_tree, path
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping import loop_order
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching


def mapped(text: str, **sizes: int) -> tuple[KernelGraph, tuple[Decision, ...]]:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)


def coordinates(kernels: KernelGraph, statement: str) -> list[str]:
    """`i@blk` for each loop around a statement, outermost first."""
    (kernel,) = (k for k in kernels.kernels if statement in k.statements)
    return [f"{m.name}@{m.coordinate.value}" for m in path(tree(kernel), statement) if isinstance(m, Member)]


ROWS = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[h, t] = exp(x[h, t]) * sum[k](x[h, k]) }"
CHAIN = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }"
SUMS = "op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }"


def test_rows_are_blocks_and_elements_lanes() -> None:
    kernels, _ = mapped(ROWS, T=512, H=512)
    assert coordinates(kernels, "y") == ["h@blk", "t@vec"]


def test_small_kernels_stay_on_one_core() -> None:
    kernels, _ = mapped(ROWS, T=8, H=8)
    assert all("@blk" not in c for c in coordinates(kernels, "y"))
    assert coordinates(kernels, "y")[-1].endswith("@vec")


def test_a_long_loop_is_cut_into_blocks() -> None:
    kernels, _ = mapped(CHAIN, N=1_000_000)
    assert coordinates(kernels, "y") == ["i_blk@blk", "i@vec"]
    kernels, _ = mapped(CHAIN, N=1000)
    assert coordinates(kernels, "y") == ["i@vec"]


def test_a_reduction_is_split_over_lanes_inside_rows() -> None:
    kernels, _ = mapped(SUMS, T=512, H=512)
    assert coordinates(kernels, "s") == ["t@blk", "h@vec"]


@pytest.mark.parametrize(("channels", "lanes"), [(3, "j@vec"), (9, "b@vec")])
def test_channels_that_share_lines_do_not_turn_loops_around(channels: int, lanes: str) -> None:
    """Results a few elements apart are no stride: three terms of a window would fill no vector."""
    text = f"""op f(x: f32[H, W]) -> (y: f32[H - 2, W - 2, {channels}]) where H >= 3, W >= 3 {{
      y[i, j, 0] = sum[a in 0..3, b in 0..3](x[i + a, j + b] ** 2) for i in 0..H - 2, j in 0..W - 2
      y[i, j, c] = x[i, j] for i in 0..H - 2, j in 0..W - 2, c in 1..{channels}
    }}"""
    kernels, _ = mapped(text, H=60, W=80)
    assert coordinates(kernels, "y")[-1] == lanes
    assert_computes(fixed_graph_of(text, H=60, W=80), kernels, target="cpu")


@pytest.mark.parametrize("value", ["x[b, c, p]", "x[b, c, p] * w[c]"])
def test_argmax_over_another_axis_runs_along_memory(value: str) -> None:
    """Lanes hold neighbours, for each of which one class after the other is looked at."""
    text = f"""op f(x: f32[B, C, P], w: f32[C]) -> (a: i64[B, P]) where C >= 1 {{
      a[b, p] = argmax[c]({value})
    }}"""
    kernels, _ = mapped(text, B=4, C=5, P=2048)
    for part in ("a__best", "a__place"):
        assert coordinates(kernels, part)[-2:] == ["c@seq", "p@vec"]
    small = fixed_graph_of(text, B=2, C=3, P=37)
    assert_computes(small, form_kernels(LoopFusion().schedule(small), 2)[0], target="cpu")


@pytest.mark.parametrize(
    ("place", "wanted"),
    [("x[n, c, 2*p + r, 2*q + s] * w[c, r, s]", "q"), ("x[n, 2*p + r, 2*q + s, c] * w[r, s, c]", "c")],
)
def test_windows_of_three_are_no_lanes_where_neighbours_are_two_apart(place: str, wanted: str) -> None:
    last = wanted == "c"
    image, filters = ("N, H, W, C", "3, 3, C") if last else ("N, C, H, W", "C, 3, 3")
    result, at = ("N, H//2-1, W//2-1, C", "n, p, q, c") if last else ("N, C, H//2-1, W//2-1", "n, c, p, q")
    text = f"""op f(x: f32[{image}], w: f32[{filters}]) -> (y: f32[{result}]) where H >= 4, W >= 4 {{
      y[{at}] = sum[r in 0..3, s in 0..3]({place})
    }}"""
    kernels, _ = mapped(text, N=2, C=32, H=64, W=64)
    assert coordinates(kernels, "y")[-1] == f"{wanted}@vec"


def test_phases_of_a_row_run_along_memory() -> None:
    """Pieces of a padded image whose channels come last, and what follows it: also where no loop reduces."""
    text = """op f(x: f32[N, H, W, C], w: f32[3, 3, C]) -> (y: f32[N, H, W, C]) {
      z[n, h, v, c] = x[n, h-1, v-1, c] if 1 <= h < H+1 and 1 <= v < W+1 else
          0.0 for h in 0..H+2, v in 0..W+2
      y[n, p, q, c] = max(sum[r, s](z[n, p + r, q + s, c] * w[r, s, c]), 0.0)
    }"""
    kernels, _ = mapped(text, N=2, H=28, W=28, C=64)
    lanes = {coordinates(kernels, n)[-1] for n in ("z", "y__sum", "y")}
    assert lanes == {"c@vec"}


SOFTMAX = """op f(x: f32[B, T, H]) -> (y: f32[B, T, H]) {
  m[b, t] = max[h](x[b, t, h]); e[b, t, h] = exp(x[b, t, h] - m[b, t])
  d[b, t] = sum[h](e[b, t, h]); y[b, t, h] = e[b, t, h] / d[b, t]
}"""


@pytest.mark.parametrize("known", [{"B": 1, "T": 1, "H": 700}, {"B": 1, "T": 1, "H": 100_000}])
def test_one_row_runs_in_lanes_and_a_long_one_on_all_cores(known: dict[str, int]) -> None:
    """No loop over rows is left of it."""
    graph = fixed_graph_of(SOFTMAX, **known)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1, online=False))
    loops = [m for k in kernels.kernels for m in _loops(tree(k)) if m.coordinate is not Coordinate.SEQ]
    lanes = sum(m.coordinate is Coordinate.VECTOR for m in loops)
    assert lanes >= 3, "of the largest element, of the sum and of the quotients"
    assert (len(loops) > lanes) == (known["H"] > FITTED.mapping_smallest_parallel)
    assert_computes(graph, kernels, target="cpu")


def test_steps_of_one_row_run_in_lanes() -> None:
    text = """op f(x: f32[B, T, H], u: f32[H, H]) -> (h: f32[B, T, H]) where T >= 1 {
      h[b, 0, j] = x[b, 0, j]
      h[b, t, j] = tanh(x[b, t, j] + sum[k](u[j, k] * h[b, t-1, k])) for t in 1..T
    }"""
    graph = fixed_graph_of(text, B=1, T=9, H=40)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))
    inner = [m for k in kernels.kernels for m in _loops(tree(k)) if m.coordinate is Coordinate.VECTOR]
    assert len(inner) >= 2
    assert_right(graph, run_kernels(kernels, seeded_inputs(graph), "cpu"), seeded_inputs(graph))


def _loops(t: Tree) -> list[Member]:
    match t:
        case Band(members, child):
            return [*members, *_loops(child)]
        case Sequence(children):
            return [m for c in children for m in _loops(c)]
        case Leaf():
            return []


def test_blocks_never_race() -> None:
    """A loop over which elements are summed is no block loop, unless the sums are parts."""
    kernels, decisions = mapped("op f(x: f32[T, H]) -> (s: f32[H]) { s[h] = sum[t](x[t, h]) }", T=2048, H=64)
    for k in kernels.kernels:
        for s in k.graph.statements:
            if s.reduction is None:
                continue
            written = {str(i) for i in s.write}
            for m in path(tree(k), s.name):
                if isinstance(m, Member) and m.coordinate is Coordinate.BLK:
                    assert str(m.of(s.name)).split("//")[0] in written
    assert any(d.kind in ("rfactor", "interchange") for d in decisions)


@pytest.mark.parametrize(("samples", "steps", "split"), [(8, 128, True), (8, 8, False), (1, 128, True)])
def test_few_long_samples_are_spread(samples: int, steps: int, split: bool) -> None:
    """The gradient of a normalisation over a batch of few samples: each is work enough for a worker, and so
    are parts of a single one."""
    text = """op f(dy: f32[N, S, H], x: f32[N, S, H], w: f32[N]) -> (dx: f32[N, S, H], db: f32[H]) {
      c[n, s] = sum[h](dy[n, s, h] * x[n, s, h])
      dx[n, s, h] = dy[n, s, h] - c[n, s] * x[n, s, h] * w[n]
      db[h] = sum[n, s](dx[n, s, h])
    }"""
    fixed = fixed_graph_of(text, N=samples, S=steps, H=384)
    kernels, decisions = form_kernels(LoopFusion().schedule(fixed), 2, Stitching())
    factored = [d.taken for d in decisions if d.kind == "rfactor" and "db" in d.subject]
    assert factored == [split]
    blocks = [m for k in kernels.kernels for s in k.stages for m in s.band if m.coordinate is Coordinate.BLK]
    assert bool(blocks) >= split


def test_updates_by_data_are_not_spread() -> None:
    text = """op f(x: f32[E, F], to: i64[E], z: f32[N, F]) -> (y: f32[N, F]) {
      y[n, f] = z[n, f]
      y[to[e], f] += x[e, f]
    }"""
    kernels, _ = mapped(text, E=4000, F=32, N=50)
    name = next(s.name for s in kernels.graph.statements if s.accumulate)
    assert "e@blk" not in coordinates(kernels, name)


def test_recurrences_run_in_order_and_columns_in_lanes() -> None:
    text = """op f(x: f32[T, J]) -> (c: f32[T, J]) {
      c[0, j] = x[0, j]
      c[t, j] = c[t - 1, j] + x[t, j] for t in 1..T
    }"""
    kernels, decisions = mapped(text, T=100, J=2000)
    name = kernels.graph.statements[1].name
    found = coordinates(kernels, name)
    assert "t@seq" in found and found[-1] == "j@vec"
    assert any(d.kind == "interchange" for d in decisions)


FIELDS = """op f(v: f32[B, F, K], dy: f32[B]) -> (dv: f32[B, F, K]) {
  s[b, k] = sum[f](v[b, f, k])
  dv[b, f, k] = dy[b] * (s[b, k] - v[b, f, k])
}"""


def test_loops_of_a_perfect_nest_are_ordered_by_contiguity() -> None:
    """Layer I puts k before f in both, for their common loops; alone, neither may stride."""
    kernels, decisions = mapped(FIELDS, B=800, F=39, K=80)
    assert coordinates(kernels, "s")[-1] == "k@vec"
    assert coordinates(kernels, "dv") == ["b@blk", "f@blk", "k@vec"]
    assert any(d.kind == "interchange" for d in decisions)


WINDOW = """op f(x: f32[N, C, H + 2, W + 2], w: f32[C, 3, 3]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[c, r, s](x[n, c, p + r, q + s] * w[c, r, s])
}"""


@pytest.mark.parametrize(("width", "along"), [(28, "q"), (15, "q"), (3, "q"), (2, "s")])
def test_short_windows_leave_the_lanes_to_what_lies_beside(width: int, along: str) -> None:
    """Both walk along memory; three terms fill no vector, and fifteen columns more of it."""
    kernels, _ = mapped(WINDOW, N=4, C=16, H=28, W=width)
    assert coordinates(kernels, "y")[-1] == f"{along}@vec"


STATES = """op f(x: f32[B, T, K], w: f32[K, K]) -> (y: f32[B, K]) where T >= 1, K >= 1 {
  s[b, 0, k] = x[b, 0, k]
  s[b, t, k] = max[j](s[b, t-1, j] + w[j, k]) + x[b, t, k] for t in 1..T
  y[b, k] = s[b, T-1, k]
}"""


def test_small_factors_decide_between_equals() -> None:
    """States walk along memory in both loops, and small weights, which stay in cache, only in that over k."""
    kernels, _ = mapped(STATES, B=16, T=128, K=48)
    assert coordinates(kernels, "s__max")[-1] == "k@vec"
    assert (
        coordinates(mapped(STATES.replace("w[j, k]", "w[k, j]"), B=16, T=128, K=48)[0], "s__max")[-1]
        == "j@vec"
    )
    assert coordinates(mapped(STATES, B=16, T=128, K=15)[0], "s__max")[-1] == "k@vec"


POOL = """op f(x: f32[N, H, W]) -> (y: f32[N, H // {1}, W // {1}]) {{
  y[n, i, j] = {0}[a in 0..{1}, b in 0..{1}](x[n, {1}*i + a, {1}*j + b])
    for n in 0..N, i in 0..H // {1}, j in 0..W // {1}
}}"""
CUBES = """op f(x: f32[N, K, K, K]) -> (y: f32[N, K // 2, K // 2, K // 2]) {
  y[n, h, i, j] = sum[a in 0..2, b in 0..2, c in 0..2](x[n, 2*h + a, 2*i + b, 2*j + c])
    for n in 0..N, h in 0..K // 2, i in 0..K // 2, j in 0..K // 2
}"""


@pytest.mark.parametrize("reduction", ["sum", "max"])
@pytest.mark.parametrize(("window", "lanes"), [(3, "j"), (4, "j"), (5, "j"), (8, "j"), (17, "b")])
def test_windows_that_do_not_overlap_leave_the_lanes_to_the_results(
    reduction: str, window: int, lanes: str
) -> None:
    """Unless they fill a vector themselves. Results are few beside what is read, and lie side by side."""
    text, side = POOL.format(reduction, window), 20 * window
    assert coordinates(mapped(text, N=64, H=side, W=side)[0], "y")[-1] == f"{lanes}@vec"
    for width in (5, 17):
        graph = fixed_graph_of(text, N=2, H=2 * window + 1, W=width * window + 1)
        assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


@pytest.mark.parametrize("length", [24, 40])
def test_lanes_go_along_the_results_of_cubes(length: int) -> None:
    assert coordinates(mapped(CUBES, N=64, K=length)[0], "y")[-1] == "j@vec"
    graph = fixed_graph_of(CUBES, N=2, K=length)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


LOOKED_UP = """op f(w: f32[V, D], i: i64[B, S]) -> (y: f32[B, S]) {
  y[b, s] = sum[d](w[i[b, s], d] ** 2)
}"""


@pytest.mark.parametrize("words", [100, 100_000])
def test_rows_that_are_looked_up_are_walked_where_they_stay_in_cache_too(words: int) -> None:
    """Lanes along words would take each number from another row, by itself."""
    kernels, _ = mapped(LOOKED_UP, V=words, B=512, S=32, D=16)
    assert coordinates(kernels, "y")[-1] == "d@vec"


def test_a_few_channels_are_no_lanes() -> None:
    text = """op f(x: u8[N, P, 3], m: f32[3], s: f32[3]) -> (y: f32[N, 3, P]) {
      y[n, c, p] = (f32(x[n, p, c]) - m[c]) * s[c]
    }"""
    kernels, _ = mapped(text, N=8, P=5000)
    assert coordinates(kernels, "y")[-1] == "p@vec"


def test_factors_of_a_transpose_decide_nothing() -> None:
    text = "op f(x: f32[I, J], s: f32[J]) -> (y: f32[J, I]) { y[j, i] = x[i, j] * s[j] }"
    assert coordinates(mapped(text, I=500, J=77)[0], "y")[-1] == "i@vec"


WEIGHTS = """op f(x: f32[H + 2, W + 2]) -> (y: f32[H, W]) {
  g[p, q, a, b] = exp(-(x[p+a, q+b] - x[p+1, q+1]) ** 2) for p in 0..H, q in 0..W, a in 0..3, b in 0..3
  n[p, q] = sum[a, b](g[p, q, a, b])
  y[p, q] = sum[a, b](g[p, q, a, b] * x[p+a, q+b]) / n[p, q]
}"""


def test_registers_are_no_memory_to_walk_along() -> None:
    """Weights of neighbours are passed on in registers, however they would lie in memory."""
    kernels, _ = mapped(WEIGHTS, H=60, W=300)
    assert coordinates(kernels, "n")[-1] == "q@vec"


GATES = """op f(x: f32[T, B, H], w: f32[2, H, H], u: f32[2, H, H]) -> (y: f32[T, B, H]) {
  g[t, b, k, j] = sum[i](x[t, b, i] * w[k, i, j])
  r[t, b, j] = sigmoid(g[t, b, 0, j] + sum[i](y[t-1, b, i] * u[0, i, j])) for t in 1..T
  c[t, b, j] = tanh(g[t, b, 1, j] + r[t, b, j] * sum[i](y[t-1, b, i] * u[1, i, j])) for t in 1..T
  y[0, b, j] = tanh(g[0, b, 1, j])
  y[t, b, j] = (1.0 - r[t, b, j]) * c[t, b, j] + r[t, b, j] * y[t-1, b, j] for t in 1..T
}"""


def test_sums_within_a_step_run_along_memory() -> None:
    """Sums and what follows share the loop over j; weights lie along it."""
    kernels, decisions = mapped(GATES, T=9, B=8, H=64)
    for name in ("r__sum", "c__sum"):
        assert coordinates(kernels, name)[-3:] == ["t@seq", "i@seq", "j@vec"]
    assert any(d.kind == "interchange" and d.subject == "j" for d in decisions)


@pytest.mark.parametrize("sizes", [(1, 3, 5), (2, 1, 1), (3, 2, 33), (4, 0, 3), (5, 5, 64)])
def test_sums_within_a_step_compute_the_same(sizes: tuple[int, int, int]) -> None:
    graph = fixed_graph_of(GATES, T=sizes[0], B=sizes[1], H=sizes[2])
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


PROGRAMS = {
    "rows": ROWS,
    "fields": """op f(v: f32[T, H, K]) -> (dv: f32[T, H, K]) where K == 7 {
        s[b, k] = sum[f](v[b, f, k])
        dv[b, f, k] = s[b, k] - v[b, f, k]
    }""",
    "sums": SUMS,
    "columns": "op f(x: f32[T, H]) -> (s: f32[H]) { s[h] = max[t](x[t, h]) }",
    "both": """op f(x: f32[T, H]) -> (r: f32[T], c: f32[H], a: f32) {
        r[t] = sum[h](x[t, h])
        c[h] = sum[t](x[t, h])
        a = sum[t, h](x[t, h])
    }""",
    "scan": """op f(x: f32[T, H]) -> (c: f32[T, H]) {
        c[0, j] = x[0, j]
        c[t, j] = c[t - 1, j] + x[t, j] for t in 1..T
    }""",
    "scan of rows": """op f(x: f32[T, H]) -> (c: f32[T, H]) {
        c[t, 0] = x[t, 0]
        c[t, j] = c[t, j - 1] + x[t, j] for j in 1..H
    }""",
    "transpose": "op f(x: f32[T, H]) -> (y: f32[H, T]) { a[t, h] = exp(x[t, h]); y[h, t] = a[t, h] }",
    "triangle": "op f(x: f32[T, H]) -> (s: f32[T]) where H >= T { s[t] = sum[h in 0..t + 1](x[t, h]) }",
    "shift": """op f(x: f32[T, H]) -> (y: f32[T, H]) {
        a[t, h] = exp(x[t, h - 1]) if h >= 1 else 0.5 for t in 0..T, h in 0..H
        y[t, h] = a[t, h] * 2.0
    }""",
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_everything_spread_as_far_as_possible(
    text: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits of size put out of force, so that small tensors show every mapping."""
    for name, value in (
        ("mapping_smallest_parallel", 1),
        ("mapping_strip", 4),
        ("sinking_sunk_strip", 4),
    ):
        monkeypatch.setattr(FITTED, name, value)
    for sizes in ({"T": 33, "H": 37}, {"T": 1, "H": 9}, {"T": 17, "H": 17}):
        if "H >= T" in text and sizes["H"] < sizes["T"]:
            continue
        graph = fixed_graph_of(text, **sizes, **({"K": 7} if "K == 7" in text else {}))
        kernels, _ = form_kernels(LoopFusion().schedule(graph), threads)
        assert_computes(graph, kernels, target="cpu" if threads == 2 else "interpret")


def test_the_tree_tells_the_coordinates() -> None:
    kernels, _ = mapped(CHAIN, N=1_000_000)
    assert format_tree(tree(kernels.kernels[0])).splitlines() == [
        "band* i_blk (parallel @blk: y->i//2048)",
        "  band* i (parallel @vec: y->i)",
        "    y",
    ]


BACKWARD = """op f(x: f32[T, H]) -> (y: f32[T, H], g: f32[H]) {
  c[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] * c[t]
  g[h] = sum[t](x[t, h] * 2.0)
}"""


@pytest.mark.parametrize(
    ("rows", "parts"),
    [(64, "2 chunks of 32"), (4096, "32 chunks of 128"), (16, "2 chunks of 8"), (96, "4 chunks of 24")],
)
def test_parts_whose_results_are_rows_have_several_of_them(rows: int, parts: str) -> None:
    graph = fixed_graph_of(BACKWARD, T=rows, H=20_000)
    _, decisions = form_kernels(LoopFusion().schedule(graph), 2, Stitching())
    assert any(f"over {parts} iterations of t" in d.reason for d in decisions if d.kind == "rfactor")


def test_parts_whose_results_are_numbers_may_be_of_few_rows() -> None:
    text = "op f(x: f32[T, H], w: f32[H]) -> (s: f32) { s = sum[t, h](x[t, h] * w[h]) }"
    _, decisions = mapped(text, T=64, H=20_000)
    assert any("over 32 chunks of 2 iterations" in d.reason for d in decisions if d.kind == "rfactor")


def test_strips_of_columns_are_shared_out_evenly() -> None:
    found = {
        (n, t): loop_order.sunk_strip(n, t) for n, t in ((768, 2), (3072, 2), (768, 1), (300, 2), (1000, 3))
    }
    assert found == {(768, 2): 192, (3072, 2): 256, (768, 1): 256, (300, 2): 160, (1000, 3): 176}
    assert loop_order.sunk_strip(255, 2) == loop_order.sunk_strip(None, 8) == FITTED.sinking_sunk_strip


# The mean of each column, then a sum over all that reads it: they agree on j, along which memory lies.
NORMED = """op f(g: f32[N, M]) -> (y: f32[N, M]) where N >= 1, M >= 1 {
  c[j] = mean[i](g[i, j] ** 2) + 1.0
  r = sqrt(mean[i, j]((g[i, j] * rsqrt(c[j])) ** 2))
  y[i, j] = g[i, j] / r
}"""


def test_sums_run_along_memory() -> None:
    """In whatever order the schedule has their loops, and though another nest agrees on the loop along it."""
    kernels, _ = mapped(
        "op f(g: f32[N, M], h: f32[N]) -> (r: f32) { r = sum[j, i](g[i, j] * h[i]) }", N=50, M=40
    )
    assert [c.split("@")[0] for c in coordinates(kernels, "r")][-1] == "j"
    scheduled = LoopFusion().schedule(fixed_graph_of(NORMED, N=60, M=50))
    kernels, decisions = form_kernels(scheduled, 2, Stitching())
    (total,) = (s.name for k in kernels.kernels for s in k.graph.statements if s.name == "r__sum")
    assert [c.split("@")[0] for c in coordinates(kernels, total)][-1] == "j"
    assert any(d.kind == "stitch" and d.subject.startswith("r__sum to") and not d.taken for d in decisions)


@pytest.mark.parametrize(("n", "m"), [(600, 500), (1, 1), (1, 700), (700, 1), (33, 20)])
def test_sums_along_memory_compute_the_same(n: int, m: int) -> None:
    graph = fixed_graph_of(NORMED, N=n, M=m)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2, Stitching())[0])


# Sums of columns, and a total over the columns in the same kernel.
TOTALS = """op f(g: f32[N, M]) -> (b: f32[M], n: f32, m: f32) where N >= 1, M >= 1 {
  b[j] = sum[i](g[i, j])
  n = sum[j](b[j] ** 2)
  m = max[j](abs(b[j]))
}"""


def test_a_total_over_columns_does_not_turn_their_sums() -> None:
    graph = LoopFusion().schedule(fixed_graph_of(TOTALS, N=1000, M=800))
    kernels, decisions = form_kernels(graph, 2, Stitching())
    (kernel,) = kernels.kernels
    assert [c.split("@")[0] for c in coordinates(kernels, "b")][-1] == "j"
    assert any(d.kind == "interchange" and d.taken for d in decisions)
    # Pieces of rows as long as those of sums alone, not as short as parts of a total may be.
    (chunks,) = {evaluate(s.dims[0].upper, {}) for s in kernel.graph.statements if s.name == "n__part"}
    assert chunks == -(-800 // loop_order.sunk_strip(800, 2))


@pytest.mark.parametrize(("n", "m"), [(40, 700), (1, 1), (1, 600), (600, 1), (70, 259)])
def test_totals_over_columns_compute_the_same(n: int, m: int) -> None:
    graph = fixed_graph_of(TOTALS, N=n, M=m)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2, Stitching())[0])


@pytest.mark.parametrize(("columns", "along"), [(64, "d"), (1, "k")])
def test_rows_that_data_choose_are_read_along_their_columns(columns: int, along: str) -> None:
    """Values and numbers of rows lie along k, but what is read of the rows lies apart for each k."""
    text = """op f(v: f32[N, K], c: i32[N, K], x: f32[M, D]) -> (y: f32[N, D]) {
      y[n, d] = sum[k](v[n, k] * x[c[n, k], d])
    }"""
    kernels, _ = mapped(text, N=500, K=16, M=500, D=columns)
    assert [c.split("@")[0] for c in coordinates(kernels, "y")][-1] == along


def test_an_image_whose_elements_data_choose_is_no_row() -> None:
    """What is read jumps along p and q, which are one loop, as along c; all else lies along q."""
    text = """op f(x: f32[C, H, W], u: i64[P, Q], v: i64[P, Q]) -> (y: f32[C, P, Q]) {
      y[c, p, q] = x[c, u[p, q], v[p, q]] + x[c, v[p, q], u[p, q]]
    }"""
    kernels, _ = mapped(text, C=16, H=64, W=64, P=64, Q=64)
    assert [c.split("@")[0] for c in coordinates(kernels, "y")][-1] == "p_q"
