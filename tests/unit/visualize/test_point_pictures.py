"""Pictures of points: what they show, that all of it can be read, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import islpy as isl
import picture_layout
import pytest

import polyfuse as pf

v: Any = pf.visualize

SOFTMAX = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
BIAS = pf.parse("op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] + b[h] }")
PRODUCT = pf.parse(
    "op mm(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
)
BLUR = pf.parse(
    "op f(x: f32[N]) -> (y: f32[N]) where N >= 3 { y[i] = (x[i-1]+x[i]+x[i+1] if 1 <= i < N-1 else x[i]) }"
)
SCAN = pf.parse("""
op running_sum(x: f32[T, H]) -> (c: f32[T, H]) where T >= 1 {
  c[0, h] = x[0, h]
  c[t, h] = c[t - 1, h] + x[t, h] for t in 1..T
}
""")
FUSED = SOFTMAX.op().specialize().schedule().apply(pf.LoopFusion())
BY_HAND = pf.schedule(SOFTMAX, "softmax", T=2, H=4).fuse("e", "s").split("e.h", 2)
_UNFUSED = SOFTMAX.op().specialize(T=512, H=256).schedule()
ON_A_GPU = [s.lower(target="cuda") for s in (_UNFUSED, _UNFUSED.apply(pf.LoopFusion()))]
TRIANGLE = "[N] -> { S[i, j] : 0 <= j <= i < N }"
SQUARE = "{ S[i, j] : 0 <= i < 4 and 0 <= j < 6 }"
NEEDS = "{ S[i, j] -> S[i + 1, j - 1]; S[i, j] -> S[i + 1, j] }"
COLUMNS = "{ S[i, j] -> [j, i] }"
TILES = "{ S[i, j] -> [floor(i/2), floor(j/2), i, j] }"
LONG = "a_statement_with_a_name_that_does_not_end_for_a_long_time"

# What the course and the pages draw, and what is hard to place.
TABLE: dict[str, Callable[[], Any]] = {
    "triangle": lambda: v.domain(TRIANGLE, N=6),
    "strided": lambda: v.domain("{ S[i, j] : 0 <= i, j < 6 and (i + 2j) mod 3 = 0 and i + j < 9 }"),
    "row": lambda: v.domain("{ S[i] : 3 <= i < 18 and i mod 2 = 0 }"),
    "negative": lambda: v.domain("{ S[i, j] : -1200 <= i < -1195 and -3 <= j <= 3 }"),
    "far right": lambda: v.domain("{ S[i] : 123450 <= i < 123460 }"),
    "three dims": lambda: v.domain("{ A[i, j, k] : 0 <= i <= 2 and 0 <= j <= k <= 4 - i }"),
    "several": lambda: v.domain(
        "{ A[i, j] : 0 <= i < 3 and 0 <= j < 5; B[i, j] : 3 <= i < 5 and 0 <= j < i; C[] }"
    ),
    "no names": lambda: v.domain("{ [i, j] : 0 <= i < 3 and 0 <= j < 5 }"),
    "nothing": lambda: v.domain(TRIANGLE, N=0),
    "long names": lambda: v.domain(
        f"{{ {LONG}[{LONG}, j] : 0 <= {LONG} < 2 and 0 <= j < 2; S[i] : 0 <= i < 2 }}"
    ),
    "operator": lambda: v.domain(SOFTMAX, T=2, H=3),
    "many points": lambda: v.domain("{ S[i, j] : 0 <= i, j < 20 }"),
    "wrapped rows": lambda: v.domain("{ S[i, j, k] : 0 <= i < 9 and 0 <= j < 3 and 0 <= k < 5 }"),
    "dependences": lambda: v.dependences(SQUARE, NEEDS),
    "broken": lambda: v.dependences(SQUARE, NEEDS, schedule=COLUMNS),
    "legal": lambda: v.dependences(SQUARE, NEEDS, schedule=TILES.replace("j/2", "(i+j)/2")),
    "curves": lambda: v.dependences(SQUARE, "{ S[i, j] -> S[i, j + 2]; S[i, j] -> S[i + 2, j + 2] }"),
    "a loop": lambda: v.dependences("{ S[i] -> S[i] : 0 <= i < 3 }"),
    "softmax": lambda: v.dependences(SOFTMAX, T=2, H=3),
    "of a point": lambda: v.dependences(SOFTMAX, T=2, H=3, at=(1, 1)),
    "thinned": lambda: v.dependences(SOFTMAX, names=("m", "e"), T=4, H=8),
    "scan": lambda: v.dependences(SCAN, T=4, H=3),
    "order": lambda: v.schedule_order(SQUARE, TILES),
    "order of a stage": lambda: v.schedule_order(FUSED, T=2, H=3),
    "at once": lambda: v.schedule_order(SQUARE, "{ S[i, j] -> [i + j] }"),
    "parallel loops": lambda: v.schedule_order(FUSED, parallel=True, T=2, H=3),
    "edited by hand": lambda: v.schedule_order(BY_HAND),
    "tree edited by hand": lambda: v.tree(BY_HAND, before=BY_HAND.undo()),
    "frame": lambda: v.schedule_order(SQUARE, TILES, frame=9),
    "large order": lambda: v.schedule_order(
        "{ A[i, j] : 0 <= i < 18 and 0 <= j < 20 }", "{ A[i, j] -> [i, j] }"
    ),
    "transposed": lambda: v.accesses("{ S[i, j] -> A[j, i] : 0 <= i < 3 and 0 <= j < 4 }"),
    "broadcast": lambda: v.accesses(BIAS, T=3, H=4),
    "product": lambda: v.accesses(PRODUCT, M=2, N=3, K=4),
    "one point": lambda: v.accesses(PRODUCT, M=2, N=3, K=4, at=(1, 1, 2)),
    "window": lambda: v.accesses(BLUR, N=8),
    "graph": lambda: v.graph(SOFTMAX.op().specialize()),
    "graph, long names": lambda: v.graph(pf.stdlib.layer_norm.specialize()),
    "tree": lambda: v.tree(FUSED, before=SOFTMAX.op().specialize().schedule()),
    "plan": lambda: v.plan(FUSED.lower(target="cpu")),
    "plans": lambda: v.plan(FUSED.lower(target="cpu"), FUSED.lower(target="cuda"), names=("cpu", "cuda")),
    "traffic": lambda: v.traffic(*ON_A_GPU, names=("apart", "fused"), device="H100"),
    "roofline": lambda: v.roofline(*ON_A_GPU, names=("apart", "fused"), device="A100"),
    "predictions": lambda: v.predictions([2e-7, 3e-5, 0.2], [1e-6, 2e-5, 4.0], title="three kernels"),
    "one prediction": lambda: v.predictions([1e-3], [1e-3]),
    "far predictions": lambda: v.predictions([1e-9, 30.0], [1e-5, 1e3]),
    "outlined": lambda: v.schedule_order(SQUARE, TILES, tiles=2),
    "two timelines": lambda: v.timeline(*ON_A_GPU, names=("apart", "fused"), device="H100"),
    "timeline": lambda: v.timeline(SOFTMAX.op().specialize(T=64, H=64).schedule().lower(target="cpu")),
}


@pytest.mark.parametrize("draw", TABLE.values(), ids=TABLE)
def test_everything_is_on_the_page_and_can_be_read(draw: Callable[[], Any]) -> None:
    picture = draw()
    picture_layout.check(picture.svg)
    assert picture == draw(), "pictures are the same, byte by byte"
    assert picture.svg in picture._repr_html_()


@pytest.mark.parametrize("name", ["triangle", "broken", "order", "broadcast"])
def test_golden(golden: Callable[[str, str], None], name: str) -> None:
    golden(f"pictures/points/{name}.svg", TABLE[name]().svg)


def points(picture: Any) -> list[str]:
    """The tips of points."""
    return re.findall(r'<title>([^<]*)</title><circle class="point"', picture.svg)


def arrows(picture: Any) -> list[tuple[str, bool]]:
    """The tips of arrows, and whether each is red."""
    found = re.findall(r'<path class="line"[^>]*stroke="([^"]*)"[^>]*><title>([^<]*)</title>', picture.svg)
    return [(tip.replace("&gt;", ">"), "bad" in colour) for colour, tip in found]


def test_a_domain_has_its_points_and_the_holes_of_its_hull() -> None:
    assert points(v.domain(TRIANGLE, N=3)) == [f"S(i={i}, j={j})" for i in range(3) for j in range(i + 1)]
    strided = v.domain("{ S[i] : 0 <= i < 9 and i mod 3 = 0 }")
    assert len(points(strided)) == 3 and strided.svg.count('class="hole"') == 4
    assert points(v.domain(SOFTMAX, "s", T=1, H=2)) == ["s(t=0, h=0)", "s(t=0, h=1)"]
    assert "There are no points." in v.domain(TRIANGLE, N=0).svg


def told(picture: Any) -> list[object]:
    """All that a picture says of points and arrows."""
    return [points(picture), arrows(picture), numbers(picture)]


def test_objects_of_isl_and_text_are_alike() -> None:
    text = "{ S[i, j] : 0 <= j <= i < 4 }"
    for kind in (isl.Set, isl.UnionSet, isl.BasicSet):
        assert told(v.domain(kind(text))) == told(v.domain(text))
    needs = "{ S[i] -> S[i + 1] : 0 <= i < 4 }"
    for kind in (isl.Map, isl.UnionMap, isl.BasicMap):
        assert told(v.dependences(kind(needs))) == told(v.dependences(needs))
    tree = isl.Schedule.from_domain(isl.UnionSet("{ S[i] : 0 <= i < 4 }"))
    tree = tree.insert_partial_schedule(isl.MultiUnionPwAff("[{ S[i] -> [(-i)] }]"))
    for given in (tree, str(tree), tree.get_root()):
        found = v.schedule_order(given)
        assert told(found) == told(v.schedule_order("{ S[i] : 0 <= i < 4 }", "{ S[i] -> [-i] }"))


def test_stages_are_as_good_as_operators() -> None:
    stage = SOFTMAX.op().specialize(T=2, H=3)
    assert v.domain(stage).svg.count("<circle") == v.domain(SOFTMAX, T=2, H=3).svg.count("<circle")
    assert points(v.domain(stage.schedule())) == points(v.domain(SOFTMAX.op(), T=2, H=3))
    assert points(v.domain(stage.schedule().lower(target="cpu"), "y"))


def test_arrows_are_the_dependences() -> None:
    tips = [tip for tip, _ in arrows(v.dependences(SCAN, T=3, H=1))]
    assert tips == ["c(h=0) → c__2(t=1, h=0)", "c__2(t=1, h=0) → c__2(t=2, h=0), distance (1, 0)"]
    # A consumer of a maximum needs all of its row.
    found = [tip for tip, _ in arrows(v.dependences(SOFTMAX, names=("m", "e"), T=1, H=2))]
    pairs = [(a, b) for a in range(2) for b in range(2)]
    assert found == [f"m(t=0, h={a}) → e(t=0, h={b}), distance (0, {b - a})" for a, b in pairs]


def test_arrows_back_in_time_are_red_and_the_first_is_named() -> None:
    picture = v.dependences(SQUARE, NEEDS, schedule=COLUMNS)
    red = {tip for tip, bad in arrows(picture) if bad}
    assert red == {
        f"S(i={i}, j={j}) → S(i={i + 1}, j={j - 1}), distance (1, -1)" for i in range(3) for j in range(1, 6)
    }
    words = re.sub(r"<[^>]*>|\n", " ", picture.svg)
    assert re.search(r"Illegal: S\(i=1, j=0\) needs +S\(i=0, j=1\)", " ".join(words.split()))
    assert not any(bad for _, bad in arrows(v.dependences(SQUARE, NEEDS, schedule="{ S[i, j] -> [i, j] }")))
    same = v.dependences("{ S[i] -> S[i + 1] : 0 <= i < 4 }", schedule="{ S[i] -> [0] }")
    assert len(arrows(same)) == 4 and all(bad for _, bad in arrows(same))


def test_arrows_of_one_point_of_one_statement() -> None:
    """Of points at a place those of both statements, with a name those of one."""
    both, one = (v.dependences(SOFTMAX, names=("m", "e"), T=2, H=4, at=at) for at in ((1, 2), ("e", 1, 2)))
    assert len(arrows(both)) == 4 + 4 - 1 and len(arrows(one)) == 4
    assert all("→ e(t=1, h=2)" in tip for tip, _ in arrows(one))
    assert "Arrows of points at (1, 2) only: 7 of 32." in both.svg
    assert "Arrows of e(1, 2) only: 4 of 32." in one.svg


def outlines(picture: Any) -> dict[str, float]:
    """The outline of each tile: its length in cells."""
    found = re.findall(r'<path class="group" d="([^"]*)"[^>]*><title>tile ([^<]*)</title>', picture.svg)
    return {tile: path.count("M") for path, tile in found}


def test_tiles_are_outlined() -> None:
    """A line around points that share the first entries of their time, with no edge inside of a tile."""
    plain = outlines(v.schedule_order(SQUARE, "{ S[i, j] -> [0, floor(i/2), floor(j/3), i, j] }", tiles=2))
    assert plain == {f"({a}, {b})": 10 for a in range(2) for b in range(2)}
    rows = outlines(v.dependences(SQUARE, NEEDS, schedule="{ S[i, j] -> [i, j] }", tiles=1))
    assert rows == {f"({i})": 14 for i in range(4)}
    leaning = v.schedule_order(SQUARE, "{ S[i, j] -> [floor(i/2), floor((i + j)/3), i, j] }", tiles=2)
    assert outlines(leaning)["(0, 1)"] == 10 + 2, "the second row is one to the left"
    assert not outlines(v.schedule_order(SQUARE, TILES))


def test_statements_of_one_row_lie_below_one_another() -> None:
    """Arrows then lead straight down; panels of several rows stand side by side."""
    for rows, below in ((1, True), (2, False)):
        svg = v.dependences(SOFTMAX, names=("m", "e"), T=rows, H=3).svg
        headings = re.findall(r'<text class="b halo" x="([\d.]+)"', svg)
        assert (len(set(headings)) == 1) == below
        curved = any("Q" in path for path in re.findall(r'class="line" d="([^"]*)"', svg))
        assert curved != below


def test_tiles_are_those_of_the_loops_where_parallel_loops_are_left_out() -> None:
    in_order, at_once = (v.schedule_order(FUSED, T=3, H=4, tiles=1, parallel=p) for p in (False, True))
    assert outlines(at_once) == outlines(in_order) and len(outlines(at_once)) == 3


def test_a_stage_is_judged_under_its_tree() -> None:
    legal = v.dependences(FUSED, schedule=FUSED, T=2, H=2)
    assert not any(bad for _, bad in arrows(legal)) and "legal at these sizes" in legal.svg
    late = "{ m[t, h] -> [1, t, h]; e[t, h] -> [0, t, h]; s[t, h] -> [2, t, h]; y[t, h] -> [3, t, h] }"
    broken = v.dependences(FUSED, schedule=late, T=2, H=2)
    assert {tip[0] for tip, bad in arrows(broken) if bad} == {"m"}


def numbers(picture: Any) -> dict[str, int]:
    return {
        tip.partition(" runs")[0]: int(tip.rpartition(" ")[2])
        for tip in re.findall(r"<title>([^<]* runs at [^<]*)</title>", picture.svg)
    }


def test_numbers_are_the_order() -> None:
    found = numbers(v.schedule_order("{ S[i, j] : 0 <= i < 2 and 0 <= j < 3 }", "{ S[i, j] -> [j, -i] }"))
    assert sorted(found, key=found.__getitem__) == [f"S(i={i}, j={j})" for j in range(3) for i in (1, 0)]
    assert sorted(found.values()) == list(range(6))
    waves = numbers(v.schedule_order("{ S[i, j] : 0 <= i < 2 and 0 <= j < 3 }", "{ S[i, j] -> [i + j] }"))
    assert {tip: k for tip, k in waves.items() if "i=0" in tip} == {f"S(i=0, j={j})": j for j in range(3)}
    fused = numbers(v.schedule_order(FUSED, T=2, H=1))
    assert [n[0] for n in sorted(fused, key=fused.__getitem__)] == [*"mesy", *"mesy"]
    program = numbers(v.schedule_order(SOFTMAX, T=2, H=1))
    assert [n[0] for n in sorted(program, key=program.__getitem__)] == [*"mmeessyy"]


def test_parallel_loops_run_at_once() -> None:
    found = numbers(v.schedule_order(FUSED, parallel=True, T=2, H=2))
    rows = [{tip: k for tip, k in found.items() if f"t={t}" in tip} for t in range(2)]
    assert list(rows[0].values()) == list(rows[1].values())
    # Updates of one maximum are not at once, elements of a row are.
    assert [rows[0][f"m(t=0, h={h})"] for h in range(2)] == [0, 1]
    assert rows[0]["y(t=0, h=0)"] == rows[0]["y(t=0, h=1)"] == max(found.values())


def test_motion_can_be_left_out() -> None:
    moving, still = v.schedule_order(SQUARE, TILES).svg, v.schedule_order(SQUARE, TILES, frame=9).svg
    assert "animation" in moving and "prefers-reduced-motion:reduce" in moving
    assert "animation" not in still and still.count('class="later"') == 24 - 10
    assert still.count('class="now"') == 1


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        ("{ S[i, j] -> A[i, j] : 0 <= i, j < 3 }", "one to one"),
        ("{ S[i, j] -> A[j, i] : 0 <= i, j < 3 }", "one to one, transposed"),
        ("{ S[i, j] -> A[j] : 0 <= i, j < 3 }", "a projection: up to 3 points for an element"),
        ("{ S[i] -> A[a] : 0 <= i < 4 and i <= a < i + 3 }", "a window of 3 elements for a point"),
        ("{ S[i] -> A[a] : 0 <= i < 4 and (a = 2i or a = 2i + 3) }", "up to 2 elements for a point"),
        ("{ S[i] -> S[i + 1] : 0 <= i < 4 }", "S → S': one to one"),
    ],
)
def test_accesses_have_their_kinds(relation: str, words: str) -> None:
    assert words in v.accesses(relation).svg


def test_accesses_of_an_operator_are_its_reads_and_its_writes() -> None:
    picture = v.accesses(BIAS, T=2, H=2)
    for words in ("reads x: one to one", "reads b: a broadcast", "y writes y: one to one"):
        assert words in picture.svg
    assert len(arrows(picture)) == 3 * 4
    assert len(arrows(v.accesses(BIAS, T=2, H=2, at=(1, 0)))) == 3
    gather = pf.parse("op g(x: f32[N], k: i64[M]) -> (y: f32[M]) { y[i] = x[k[i]] }")
    picture = v.accesses(gather, N=4, M=3)
    assert "reads x: the data say which of up to 4 elements" in picture.svg and len(arrows(picture)) == 3 * 6


def test_arrays_that_rows_read_lie_side_by_side() -> None:
    """No array stands between another one and the points that read both."""
    gather = pf.parse("op gather(x: f32[N], k: i64[M]) -> (y: f32[M]) { y[i] = x[k[i]] }")
    svg = v.accesses(gather, N=4, M=3).svg
    tops = [float(y) for y in re.findall(r'<text class="b halo" x="[\d.]+" y="([\d.]+)"', svg)]
    assert len(tops) == 4 and tops[0] == tops[1] < tops[2] < tops[3]
    assert not any("Q" in path for path in re.findall(r'class="line" d="([^"]*)"', svg))


def test_pictures_are_saved(tmp_path: Any) -> None:
    picture = v.domain(TRIANGLE, N=3)
    assert picture.save(tmp_path / "a.svg").read_text(encoding="utf-8") == picture.svg == str(picture)
    assert picture.svg in picture.save(str(tmp_path / "a.html")).read_text(encoding="utf-8")
    with pytest.raises(pf.ArgumentError, match="save it as a") as found:
        picture.save(tmp_path / "a.png")
    assert found.value.code == "PF919"


def test_two_pictures_are_put_side_by_side() -> None:
    first, second = v.schedule_order(SQUARE, TILES), v.domain(TRIANGLE, N=3)
    both = first | second
    root = ElementTree.fromstring(both.svg)
    assert both.size == (first.size[0] + 12 + second.size[0], max(first.size[1], second.size[1]))
    inner = [e for e in root if e.tag.endswith("}svg")]
    assert [float(e.get("x", 0)) for e in inner] == [0, first.size[0] + 12]
    assert (both | first).size[0] == both.size[0] + 12 + first.size[0]
    with pytest.raises(TypeError):
        first | "text"


def test_two_pictures_on_a_page_share_no_name() -> None:
    drawn = [v.dependences(SQUARE, NEEDS).svg, v.schedule_order(SQUARE, TILES).svg]
    names = [set(re.findall(r'(?:id|class)="(pf-[^" ]+)"', svg)) for svg in drawn]
    assert names[0] and names[1] and names[0].isdisjoint(names[1])


@pytest.mark.parametrize(
    ("draw", "code", "words"),
    [
        (lambda: v.domain("{ S[i"), "PF910", "isl cannot read this text: { S[i"),
        (lambda: v.domain(3), "PF910", "int is no set"),
        (lambda: v.dependences(SQUARE, SQUARE), "PF910", "a relation is needed"),
        (lambda: v.schedule_order(SQUARE), "PF910", "a relation is needed"),
        (lambda: v.schedule_order(SQUARE, FUSED), "PF910", "orders the statements of an operator"),
        (
            lambda: v.schedule_order(SQUARE, TILES, parallel=True),
            "PF910",
            "does not say what may run at once",
        ),
        (lambda: v.plan(FUSED), "PF910", "Scheduled has no kernels to draw"),
        (lambda: v.tree(SOFTMAX), "PF910", "Program has no schedule to draw"),
        (lambda: v.domain(TRIANGLE), "PF911", "the size N has no value"),
        (lambda: v.domain(SOFTMAX), "PF911", "the sizes T, H have no value"),
        (lambda: v.domain(TRIANGLE, N=3, M=4), "PF911", "there is no size M"),
        (lambda: v.domain(FUSED, T=3, H=4, K=5), "PF911", "the sizes are T, H"),
        (lambda: v.domain("{ S[i] : i >= 0 }"), "PF912", "has no end"),
        (lambda: v.domain(TRIANGLE, N=1000), "PF913", "not 500,500"),
        (lambda: v.domain(TRIANGLE, N=1000), "PF913", "such as N=16"),
        (lambda: v.domain(SOFTMAX, T=64, H=64), "PF913", "such as T=10, H=10"),
        (lambda: v.accesses(BLUR, N=401), "PF913", "at most 400"),
        (lambda: v.domain(SOFTMAX, "q", T=2, H=2), "PF914", "there is no statement q"),
        (lambda: v.accesses(SOFTMAX, T=2, H=2), "PF914", "name one of m, e, s, y"),
        (lambda: v.schedule_order(BIAS, FUSED, T=2, H=2), "PF914", "the schedule orders m"),
        (lambda: v.domain("{ S[i, j, k, l] : 0 <= i, j, k, l < 2 }"), "PF915", "has 4 dims"),
        (lambda: v.schedule_order(SQUARE, "{ S[i, j] -> [i] : j = 0 }"), "PF916", "no time for S[0, 1]"),
        (lambda: v.schedule_order(SQUARE, "{ S[i, j] -> [k] : 0 <= k < 2 }"), "PF916", "more than once"),
        (lambda: v.schedule_order(SQUARE, TILES, frame=24), "PF917", "frames are 0 to 23"),
        (lambda: v.predictions([1.0], []), "PF918", "1 measured times stand beside 0"),
        (lambda: v.predictions([1.0, 2.0], [1.0, 0.0]), "PF918", "the predicted time 1 is 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], Any], code: str, words: str) -> None:
    with pytest.raises(pf.ArgumentError) as found:
        draw()
    assert found.value.code == code and words in str(found.value)


def test_sizes_that_a_refusal_proposes_are_accepted() -> None:
    with pytest.raises(pf.ArgumentError) as found:
        v.domain(SOFTMAX, T=64, H=64)
    sizes = {n: int(k) for n, k in re.findall(r"(\w)=(\d+)", str(found.value))}
    assert set(sizes) == {"T", "H"} and v.domain(SOFTMAX, **sizes)


@pytest.mark.parametrize("stage", ["specialized", "scheduled", "kernels", "executable", "compiled"])
def test_a_stage_shows_itself(stage: str) -> None:
    at = SOFTMAX.op().specialize(T=4, H=8)
    kernels = at.schedule().lower(target="interpret")
    compiled = pf.compile(SOFTMAX, target="interpret")
    assert "&lt;polyfuse softmax" in compiled._repr_html_()
    compiled.built(__import__("numpy").ones((4, 8), "f4"))
    stages = {
        "specialized": at,
        "scheduled": at.schedule(),
        "kernels": kernels,
        "executable": kernels.build(),
        "compiled": compiled,
    }
    shown = stages[stage]._repr_html_()
    assert shown.count("<svg") == 1
    picture_layout.check(shown[shown.index("<svg") : shown.index("</svg>") + 6])


def test_a_legend_tells_points_from_arrows() -> None:
    svg = v.dependences("{ A[i] -> B[i] : 0 <= i < 2; B[i] -> C[i] : 0 <= i < 2 }").svg
    assert svg.count(' r="5" ') == 3, "a dot for each statement, none for the arrows"


def test_bars_of_launches_name_statements() -> None:
    svg = TABLE["timeline"]().svg
    assert re.findall(r">(k\d: [^<]*)</text>", svg) == ["k0: m", "k1: e", "k2: s", "k3: y"]
