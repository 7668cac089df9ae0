"""Every chapter of the course runs, is short, has pictures and an exercise; its answers are right."""

from __future__ import annotations

import ast
import functools
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.cost.device import device, occupancy
from polyfuse.driver.partitions import kernels_by

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "course"
CHAPTERS = sorted(FOLDER.glob("[0-9]*.py"))
LINK = re.compile(r"\]\(([\w./]+\.(?:py|md))\)")
v: Any = pf.visualize


def prose(text: str) -> str:
    """The text of a chapter, without code."""
    lines = (line[2:] for line in text.splitlines() if line.startswith("# ") and not line.startswith("# %%"))
    return "\n".join([ast.get_docstring(ast.parse(text)) or "", *lines])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.stem)
def test_runs(chapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(chapter))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.stem)
def test_is_a_chapter(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert 300 <= len(prose(text).split()) <= 900
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert (
        len([i for i in imports if ast.unparse(i) not in ("import numpy as np", "import polyfuse as pf")])
        <= 2
    )
    assert sum(isinstance(n, ast.Assert) for n in ast.walk(tree)) >= 3
    shown = [n for n in tree.body if isinstance(n, ast.Expr) and "print" not in ast.unparse(n)]
    assert len(shown) - 1 >= 3, "pictures, besides the docstring"
    assert "## Exercise" in text and "<details><summary>Answer</summary>" in text and "# </details>" in text
    for target in LINK.findall(text):
        assert (FOLDER / target).exists(), target
    assert f"({chapter.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")


# --- answers -----------------------------------------------------------------------------------------------


SOFTMAX = """op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}"""


def numbers(picture: Any) -> dict[str, int]:
    found = re.findall(r"<title>S\(i=(\d), j=(\d)\) runs at [^<]*, as number (\d+)</title>", picture.svg)
    return {f"{i}, {j}": int(k) for i, j, k in found}


def test_a_first_operator() -> None:
    kernels = pf.stdlib.softmax.specialize(B_0=4096, H=1024).schedule().lower(target="cpu")
    found, x = kernels.estimate(), 4096 * 1024 * 4
    assert round(found.read / x) == 4 and round(found.written / x) == 2
    short = pf.parse(SOFTMAX).op().specialize(T=1_000_000, H=3).schedule()
    moved = [
        k.estimate().read + k.estimate().written
        for k in (
            short.lower(target="cpu"),
            short.apply(pf.LoopFusion()).lower(target="cpu").apply(pf.Stitching()),
        )
    ]
    assert [round(b / 4_000_000) for b in moved] == [22, 6]


def test_loops_are_sets() -> None:
    band = v.domain("{ S[i, j] : 0 <= i < 6 and i <= j < i + 3 and j < 6 }")
    loops = [(i, j) for i in range(6) for j in range(i, min(i + 3, 6))]
    assert len(loops) == 15 and [f"S(i={i}, j={j})" for i, j in loops] == re.findall(
        r"S\(i=\d, j=\d\)", band.svg
    )


def test_who_reads_what() -> None:
    text = "op p(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
    svg = v.accesses(pf.parse(text), M=2, N=3, K=4).svg
    assert "reads a: a broadcast: up to 3 points" in svg and "reads b: a broadcast: up to 2 points" in svg
    assert "writes c: a projection: up to 4 points" in svg


def test_dependences() -> None:
    points = "{ S[i, j] : 0 <= i, j < 4 }"
    pascal = "{ S[i, j] -> S[i + 1, j + 1]; S[i, j] -> S[i + 1, j] }"
    both = "{ S[i, j] -> S[i + 1, j]; S[i, j] -> S[i, j + 1] }"
    assert "distances (1, 0), (1, 1)" in v.dependences(points, pascal).svg
    for needs, order, legal in (
        (pascal, "{ S[i, j] -> [i] }", True),
        (pascal, "{ S[i, j] -> [j] }", False),
        (both, "{ S[i, j] -> [i] }", False),
        (both, "{ S[i, j] -> [j] }", False),
        (both, "{ S[i, j] -> [i + j] }", True),
    ):
        assert ("Illegal" not in v.dependences(points, needs, schedule=order).svg) == legal


def test_a_schedule_is_time() -> None:
    points = "{ S[i, j] : 0 <= i < 3 and 0 <= j < 4 }"
    back = numbers(v.schedule_order(points, "{ S[i, j] -> [-j, -i] }"))
    assert sorted(back, key=back.__getitem__)[:3] == ["2, 3", "1, 3", "0, 3"]
    strips = numbers(v.schedule_order(points, "{ S[i, j] -> [floor(j/2), i, j] }"))
    assert sorted(strips, key=strips.__getitem__)[:4] == ["0, 0", "0, 1", "1, 0", "1, 1"]
    shared = numbers(v.schedule_order(points, "{ S[i, j] -> [2i + j] }"))
    assert [p for p, k in shared.items() if k == shared["1, 0"]] == ["0, 2", "1, 0"]


def legal(needs: str, order: str) -> bool:
    return "Illegal" not in v.dependences("{ S[i, j] : 0 <= i, j < 5 }", needs, schedule=order).svg


def test_legal_or_not() -> None:
    needs = "{ S[i, j] -> S[i + 1, j]; S[i, j] -> S[i, j + 1]; S[i, j] -> S[i + 1, j - 1] }"
    assert legal(needs, "{ S[i, j] -> [i, j] }")
    assert not legal(needs, "{ S[i, j] -> [j, i] }") and not legal(needs, "{ S[i, j] -> [i, -j] }")
    assert not legal(needs, "{ S[i, j] -> [floor(i/2), floor(j/2), i, j] }")
    assert legal(needs, "{ S[i, j] -> [floor(i/2), floor((i + j)/2), i, j] }")


def test_what_may_run_at_once() -> None:
    chapter = runpy.run_path(str(FOLDER / "07_what_may_run_at_once.py"))
    distances = [(0, 1, 0), (0, 0, 1)]
    assert [chapter["is_parallel"](distances, k) for k in range(3)] == [True, False, False]
    fronts = [(i, j + k, k) for i, j, k in distances]
    assert [chapter["is_parallel"](fronts, k) for k in range(3)] == [True, False, True]


def test_fusion() -> None:
    text = """op f(x: f32[N + 3]) -> (c: f32[N]) {
      a[i] = exp(x[i])
      b[i] = a[i] + a[i + 2] for i in 0..N+1
      c[i] = b[i] * b[i + 1] for i in 0..N
    }"""
    one = pf.schedule(text, N=20).shift("b", "i", 2).fuse("a", "b").shift("c", "i", 3).fuse("b", "c")
    assert [str(e) for t in ("a", "b") for e in one.contract(t).kept[0].extents] == ["3", "2"]
    with pytest.raises(pf.ScheduleError):
        one.shift("c", "i", -1)


def test_recompute_or_store() -> None:
    s = pf.schedule("stdlib:softmax", "softmax", B_0=4, H=1024, fusion=pf.LoopFusion())
    stored = next(t.name for t in s.graph.tensors if t.role.value == "temp" and len(t.shape) == 2)
    assert [str(e) for e in s.contract(stored).kept[0].extents] == ["1", "1024"]


def test_what_no_schedule_can_do() -> None:
    both = (
        "op f(x: f32[T, H]) -> (a: f32[T], b: f32[T]) {\n a[t] = max[h](x[t, h])\n b[t] = min[h](x[t, h])\n}"
    )
    assert "b[t] min=" in str(pf.schedule(pf.parse(both), "f", T=2, H=4).fuse("a", "b"))
    assert np.spacing(np.float32(1e12)) == 65536
    steps = [(0.5, x) for x in (1.0, -2.0, 3.0, 4.0)]

    def joined(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
        return second[0] * first[0], second[0] * first[1] + second[1]

    left = functools.reduce(joined, steps)
    assert left == joined(joined(*steps[:2]), joined(*steps[2:]))
    assert left[1] == functools.reduce(lambda y, step: step[0] * y + step[1], steps, 0.0)


def test_packing() -> None:
    texts = (
        "op f(x: f32[N]) -> (a: f32[N], b: f32[N]) {\n a[i] = x[i] + 1.0\n b[i] = x[i] * 2.0\n}",
        "op f(x: f32[N]) -> (a: f32[N], b: f32[N]) {\n a[i] = x[i] + 1.0\n b[i] = a[i] * 2.0\n}",
        "op f(inout p: f32[N], g: f32[N]) -> (n: f32) {\n"
        " n = sum[i](old(p[i]) ** 2)\n p[i] = old(p[i]) - g[i]\n}",
    )
    unfused = [pf.parse(t).op().specialize(N=1000).schedule() for t in texts]
    apart = [s.lower(target="cuda") for s in unfused]
    assert [k.apply(pf.Packing()).launches for k in apart] == [1, 2, 2]
    assert [s.apply(pf.LoopFusion()).lower(target="cuda").launches for s in unfused[:2]] == [1, 1]


@pytest.mark.parametrize(("read", "scheme"), [((0, 0), "Local"), ((0, -1), "Regional"), ((-1, 0), "Global")])
def test_stitching(read: tuple[int, int], scheme: str) -> None:
    """A row is a block and a place in it a thread; pairs of producer and consumer are enumerated."""
    pairs = [((t + read[0], h + read[1]), (t, h)) for t in range(1, 4) for h in range(1, 4)]
    block = all(a[0] == b[0] for a, b in pairs)
    found = "Local" if all(a == b for a, b in pairs) else "Regional" if block else "Global"
    assert found == scheme


def test_a_transformer_layer() -> None:
    text = (FOLDER / "13_a_transformer_layer.py").read_text(encoding="utf-8")
    program = re.search(r'pf\.parse\("""(.*?)"""', text, re.DOTALL)
    sizes = re.search(r"bert = (.*)", text)
    assert program and sizes
    op = pf.parse(program[1]).op("between").specialize(**ast.literal_eval(sizes[1]))
    ways = ((), ("loop",), ("loop", "stitch", "pack"))
    made = [kernels_by(op, "connect", w, pf.Options(device="H200"), target="cuda") for w in ways]
    apart, loops, fused = (round(1e3 * k.estimate("H200").seconds, 2) for k in made)
    assert apart == 0.32 > loops > fused == 0.10
    assert [round((p + apart) / (p + fused), 2) for p in (17, 17 / 20)] == [1.01, 1.23]
    assert sum(bool({"softmax_1__m", "softmax_1__s", "p"} & set(k.statements)) for k in made[1].kernels) == 3


def test_from_schedule_to_code() -> None:
    text = (FOLDER / "14_from_schedule_to_code.py").read_text(encoding="utf-8")
    by_hand = re.search(r"(def occupancy.*?)\n\n", text, re.DOTALL)
    scope: dict[str, Any] = {}
    assert by_hand
    exec(by_hand[1], scope)
    for registers in (32, 40, 64, 128):
        assert scope["occupancy"](registers) == occupancy(device("H200"), 128, registers, 0).fraction
    assert occupancy(device("H200"), 128, 128, 0).fraction * 64 == 16

    def kernels(read: str, width: int) -> pf.Kernels:
        e = "op f(x: f32[T, H]) -> (y: f32[T, H]) {\n e[t, h] = exp(x[t, h])\n s[t] = sum[h](e[t, h])\n"
        op = pf.parse(f"{e} y[t, h] = e[t, {read}] / s[t]\n}}").op().specialize(T=4096, H=width)
        return op.schedule().apply(pf.LoopFusion()).lower(target="cuda").apply(pf.Stitching())

    (wide,) = kernels("h", 8192).kernels
    assert (
        wide.threads == (128, 1)
        and ["64" for b in wide.buffers if b.tensor == "e"]
        == [str(b.extents[-1]) for b in wide.buffers if b.tensor == "e"]
        and "  // red" in kernels("h", 8192).code().source
    )
    for read, barriers in (("H - 1 - h", 1), ("h", 0)):
        source = kernels(read, 1024).code().source
        assert source[source.index('extern "C"') :].count("__syncthreads") == barriers


def test_model_against_clock() -> None:
    measured = np.array([3.0, 3.3])
    for predicted, error, chosen in (((1.0, 1.2), 65, 0), ((3.2, 3.1), 6, 1)):
        told = np.array(predicted)
        assert round(100 * np.abs(told / measured - 1).mean()) == error and np.argmin(told) == chosen
    assert round(100 * (measured[1] / measured[0] - 1)) == 10
