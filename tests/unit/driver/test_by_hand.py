"""Schedules edited by hand: each primitive where it is legal, and refused with a witness where it is not."""

from __future__ import annotations

import doctest
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_force import Enumeration

import polyfuse as pf
from polyfuse.ir.kernel import Scope
from polyfuse.ir.schedule_tree import Band, Coordinate, map_members, members_of

PROGRAM = pf.parse("""
op square(x: f32[N]) -> (y: f32[N]) {
  a[i] = x[i] + 1.0
  y[i] = a[i] * a[i]
}
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
op stencil(x: f32[N]) -> (b: f32[N]) where N >= 4 {
  a[i] = exp(x[i])
  b[i] = a[i - 1] + a[i] + a[i + 1] for i in 1..N-1
  b[0] = a[0]
  b[N - 1] = a[N - 1]
}
op grid(x: f32[T, N]) -> (u: f32[T, N]) where N >= 3, T >= 2 {
  u[0, i] = x[0, i]
  u[t, i] = x[t, i] + u[t - 1, i - 1] + u[t - 1, i + 1] for t in 1..T, i in 1..N-1
  u[t, 0] = x[t, 0] for t in 1..T
  u[t, N - 1] = x[t, N - 1] for t in 1..T
}
op add(inout p: f32[N]) { p[i] = p[N - 1 - i] + 1.0 }
op left(inout p: f32[N]) where N >= 2 {
  p[i] = old(p[i + 1]) + 1.0 for i in 0..N-1
  p[N - 1] = 3.0
}
op rows(z: f32[N, M]) -> (s: f32[N], y: f32[N, M]) {
  s[i] = sum[j](z[i, j])
  y[i, j] = z[i, j] * 2.0
}
""")


def schedule(name: str, **sizes: int) -> pf.Schedule:
    return pf.schedule(PROGRAM, name, **sizes)


SQUARE = schedule("square", N=10)
SOFTMAX = schedule("softmax", T=6, H=8)
STENCIL = schedule("stencil", N=10)
GRID = schedule("grid", T=5, N=9)
ONE_NEST = SOFTMAX.fuse("m", "e", at="t").fuse("e", "s", at="t").fuse("e", "s").fuse("s", "y", at="t")

# What a schedule becomes; before and after as loops.
LEGAL: dict[str, tuple[Callable[[], pf.Schedule], str]] = {
    "fuse": (
        lambda: SQUARE.fuse("a", "y"),
        "for i in 0..10:  # parallel\n  a[i] = x[i] + 1.0\n  y[i] = a[i] * a[i]",
    ),
    "distribute": (lambda: SQUARE.fuse("a", "y").distribute("i"), SQUARE.loops),
    "split": (
        lambda: SQUARE.fuse("a", "y").split("i", 4),
        "for i_tile in 0..3:  # parallel\n  for i in 0..min(4, 10 - 4*i_tile):  # parallel\n"
        "    a[4*i_tile + i] = x[4*i_tile + i] + 1.0\n"
        "    y[4*i_tile + i] = a[4*i_tile + i] * a[4*i_tile + i]",
    ),
    "tile": (
        lambda: schedule("rows", N=8, M=6).tile(("y.i", "y.j"), (4, 3)),
        "for i in 0..8:  # parallel\n  for j in 0..6:  # a reduction: any order\n    s[i] += z[i, j]\n"
        "for i_tile in 0..2:  # parallel\n  for j_tile in 0..2:  # parallel\n"
        "    for i in 0..4:  # parallel\n      for j in 0..3:  # parallel\n"
        "        y[4*i_tile + i, 3*j_tile + j] = z[4*i_tile + i, 3*j_tile + j] * 2.0",
    ),
    "interchange": (
        lambda: schedule("rows", N=8, M=6).interchange("s.j", "i"),
        "for j in 0..6:  # a reduction: any order\n  for i in 0..8:  # parallel\n    s[i] += z[i, j]\n"
        "for i in 0..8:  # parallel\n  for j in 0..6:  # parallel\n    y[i, j] = z[i, j] * 2.0",
    ),
    "reverse": (
        lambda: SQUARE.fuse("a", "y").reverse("i"),
        "for i in -9..1:  # parallel\n  a[-i] = x[-i] + 1.0\n  y[-i] = a[-i] * a[-i]",
    ),
    "shift": (
        lambda: SQUARE.shift("y", "i", 2).fuse("a", "y"),
        "for i in 0..12:  # in order\n  if i <= 9:\n    a[i] = x[i] + 1.0\n"
        "  if i >= 2:\n    y[i - 2] = a[i - 2] * a[i - 2]",
    ),
    "rename": (
        lambda: SQUARE.rename("a.i", "k"),
        "for k in 0..10:  # parallel\n  a[k] = x[k] + 1.0\nfor i in 0..10:  # parallel\n  y[i] = a[i] * a[i]",
    ),
    "recompute": (
        lambda: SQUARE.recompute("a"),
        "for i in 0..10:  # parallel\n  y[i] = (x[i] + 1.0) * (x[i] + 1.0)",
    ),
    "recompute at": (
        lambda: STENCIL.split("b.i", 4).recompute("a", at="i_tile"),
        "for i in 0..10:  # parallel\n  a[i] = exp(x[i])\n"
        "for i_tile in 0..3:  # parallel\n"
        "  for i in max(0, 1 - 4*i_tile)..min(6, 11 - 4*i_tile):  # parallel\n"
        "    a__local[i_tile, i] = exp(x[4*i_tile + i - 1])\n"
        "  for i in max(0, 1 - 4*i_tile)..min(4, 9 - 4*i_tile):  # parallel\n"
        "    b[4*i_tile + i] = (a__local[i_tile, i] + a__local[i_tile, i + 1]) + a__local[i_tile, i + 2]\n"
        "b__2: b[0] = a[0]\nb__3: b[9] = a[9]",
    ),
    "cache": (
        lambda: schedule("rows", N=8, M=6).fuse("s", "y", at="i").cache("z", at="i"),
        "for i in 0..8:  # parallel\n  for d1 in 0..6:  # parallel\n    z__cache[i, d1] = z[i, d1]\n"
        "  for j in 0..6:  # a reduction: any order\n    s[i] += z__cache[i, j]\n"
        "  for j in 0..6:  # parallel\n    y[i, j] = z__cache[i, j] * 2.0",
    ),
    "move": (
        lambda: schedule("rows", N=8, M=6).move("y", before="s"),
        "for i in 0..8:  # parallel\n  for j in 0..6:  # parallel\n    y[i, j] = z[i, j] * 2.0\n"
        "for i in 0..8:  # parallel\n  for j in 0..6:  # a reduction: any order\n    s[i] += z[i, j]",
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_step(name: str) -> None:
    make, expected = LEGAL[name]
    s = make()
    assert s.loops == expected
    assert s.legality()
    assert s.undo().undo() == s.undo().before if len(s.history) > 1 else s.undo().history == ()


# Steps that are refused: code, what the message says, the hint.
ILLEGAL: dict[str, tuple[Callable[[], object], str, str, str | None]] = {
    "fuse, shared loop of a total": (
        lambda: SOFTMAX.fuse("m", "e"),
        "PF537",
        "e(t=0, h=0) reads an element before it is written: it needs m(t=0, h=1)",
        "s.fuse('m', 'e', at='t')",
    ),
    "fuse, a neighbour": (
        lambda: STENCIL.fuse("a", "b"),
        "PF537",
        "b(i=1) reads an element before it is written: it needs a(i=2)",
        "s.shift('b', 'i', 1).fuse('a', 'b')",
    ),
    "interchange": (
        lambda: GRID.interchange("u__2.i", "t"),
        "PF537",
        "it needs u__2(t=1, i=2)",
        "s.skew('u__2.i', 't', 1).interchange('u__2.i', 't')",
    ),
    "tile": (
        lambda: GRID.tile(("u__2.t", "u__2.i"), (2, 4)),
        "PF537",
        "it needs u__2(",
        "s.skew('u__2.i', 't', 1).tile(('u__2.t', 'u__2.i'), (2, 4))",
    ),
    "reverse": (lambda: GRID.reverse("u__2.t"), "PF537", "it needs u__2(", None),
    "distribute": (
        lambda: pf.schedule(
            "op f(x: f32[N]) -> (b: f32[N]) where N >= 2 {"
            " a[0] = x[0]; b[0] = a[0]; a[i] = b[i - 1] + x[i] for i in 1..N; b[i] = a[i] for i in 1..N }",
            N=6,
        ).distribute("i"),
        "PF537",
        "it needs b__2(",
        None,
    ),
    "shift": (
        lambda: SQUARE.fuse("a", "y").shift("a", "i", 1),
        "PF537",
        "y(i=0) reads an element before it is written: it needs a(i=0)",
        None,
    ),
    "shift by too much": (
        lambda: SQUARE.shift("y", "i", 2).fuse("a", "y").shift("a", "i", 4),
        "PF537",
        "it needs a(",
        "by 2 it is legal: s.shift('a', 'i', 2)",
    ),
    "move": (lambda: SOFTMAX.move("y", before="s"), "PF537", "it needs s(", None),
    "undo": (lambda: SOFTMAX.undo(), "PF538", "no step to undo", "history"),
    "recompute of an input": (lambda: SOFTMAX.recompute("x"), "PF540", "no temporary", None),
    "recompute of a total": (lambda: SOFTMAX.recompute("s"), "PF540", "expression", None),
    "recompute at a loop that does not read": (
        lambda: SOFTMAX.recompute("e", at="m.t"), "PF540", "nothing in loop t reads it", None,
    ),
    "recompute of a recurrence": (
        lambda: pf.schedule(
            "op f(x: f32[N]) -> (y: f32[N]) { a[i] = x[i] + (a[i-1] if i > 0 else 0.0); y[i] = a[i] + 1.0 }",
            N=5,
        ).recompute("a", at="y.i"),
        "PF540", "recurrence", None,
    ),
    "contract of what is needed": (lambda: SOFTMAX.contract("e"), "PF541", "all of it", "fuse"),
    "contract of an input": (lambda: SOFTMAX.contract("x"), "PF541", "an input", None),
    "contract of a parameter": (
        lambda: schedule("add", N=9).contract("p"),
        "PF542",
        "p(i=5) reads 'p' after p(i=3) has replaced the element",
        None,
    ),
    "a step after contract": (
        lambda: ONE_NEST.contract("e").distribute("t"),
        "PF542",
        "[6, 8] of 'e' are needed at a time, there is memory for [1, 8]: "
        "y(t=0, h=0) would find what e(t=5, h=0) wrote",
        None,
    ),
    "a step after contract of a parameter": (
        lambda: schedule("left", N=9).contract("p").reverse("i"),
        "PF542",
        "p(i=0) reads 'p' after p(i=1) has replaced the element",
        None,
    ),
    "a loop": (lambda: SOFTMAX.reverse("k"), "PF520", "no loop 'k'", None),
    "a tensor": (lambda: SOFTMAX.cache("k", at="m.t"), "PF520", "no tensor 'k'", None),
    "several loops": (lambda: SOFTMAX.reverse("t"), "PF521", "'m.t'", None),
    "a loop that is not around": (lambda: GRID.skew("u__2.t", "i"), "PF522", "not around", None),
    "a loop that is not shared": (lambda: SOFTMAX.fuse("m", "e", at="k"), "PF522", "can share t, h", None),
    "no order": (lambda: GRID.interchange(), "PF523", "new order", None),
    "skew by nothing": (lambda: GRID.skew("u__2.i", "t", 0), "PF523", "by 0", None),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_refused_step(name: str) -> None:
    step, code, says, hint = ILLEGAL[name]
    with pytest.raises(pf.ScheduleError) as caught:
        step()
    (found,) = caught.value.diagnostics
    assert (found.code, says in found.message) == (code, True), found.message
    assert found.hint is None if hint is None else hint in (found.hint or "")
    if code in ("PF537", "PF540", "PF541", "PF542"):
        assert found.span and found.span.source.text


@pytest.mark.parametrize("name", [n for n, (_, code, _, hint) in ILLEGAL.items() if code == "PF537" and hint])
def test_what_a_hint_says_is_legal(name: str) -> None:
    start = {"fuse, shared loop of a total": SOFTMAX, "fuse, a neighbour": STENCIL, "interchange": GRID,
             "tile": GRID, "shift by too much": SQUARE.shift("y", "i", 2).fuse("a", "y")}[name]  # fmt: skip
    with pytest.raises(pf.ScheduleError) as caught:
        ILLEGAL[name][0]()
    text = (caught.value.diagnostics[0].hint or "").rpartition(": ")[2]
    assert eval(text, {"s": start}).legality()


def test_which_loops_are_parallel_is_computed() -> None:
    """A hand-made tree says nothing of it: the flags are those that layer I proves."""
    plain = PROGRAM.op("softmax").specialize(T=6, H=8).schedule()
    fused = plain.apply(pf.LoopFusion())
    bare = map_members(fused.tree, lambda m: replace(m, coincident=False))
    assert plain.with_tree(bare).tree == fused.tree
    assert ONE_NEST.shape == "B1([B1(m); B1(e+s); B1(y)])"


def test_permutable_bands() -> None:
    """Skewed loops are one permutable band; before the skew they are not."""
    skewed = GRID.skew("u__2.i", "t")
    band = next(b for b in skewed.tree.children if isinstance(b, Band) and len(b.members) == 2)
    assert band.permutable and [m.coincident for m in band.members] == [False, True]
    assert not any(isinstance(b, Band) and len(b.members) == 2 for b in GRID.tree.children)  # t and i apart


def test_nothing_changes_and_everything_is_kept() -> None:
    before = SQUARE.loops
    after = SQUARE.fuse("a", "y").split("i", 4)
    assert SQUARE.loops == before and SQUARE.history == ()
    assert after.history == ("fuse('a', 'y')", "split('i', 4)")
    assert after.undo() == SQUARE.fuse("a", "y") and after.undo().undo() == SQUARE
    assert [str(d) for d in after.ir.decisions if d.kind == "by hand"] == [
        "+ by hand fuse('a', 'y'): legal: every instance runs after those that it needs",
        "+ by hand split('i', 4): legal: every instance runs after those that it needs",
    ]
    assert "share the loops over i_tile, i" in after.why("a", "y")
    again = pickle.loads(pickle.dumps(after))
    assert again == after and again.history == after.history


def test_it_begins_with_what_it_is_given() -> None:
    stage = PROGRAM.op("softmax").specialize(T=6, H=8)
    assert pf.schedule(stage).tree == SOFTMAX.tree
    layer_one = stage.schedule().apply(pf.LoopFusion())
    assert pf.schedule(layer_one).tree == layer_one.tree
    automatic = pf.schedule(PROGRAM, "softmax", T=6, H=8, fusion=pf.LoopFusion())
    assert automatic.tree == layer_one.tree and len(automatic.history) == 1
    assert automatic.undo() == SOFTMAX
    assert SOFTMAX.with_tree(ONE_NEST.tree).history == ("with_tree(...)",)
    assert SOFTMAX.inline("e").undo() == SOFTMAX
    told = ONE_NEST.contract("e").lower(target="cpu").explain()
    assert "+ kept e: k0 keeps 8 elements where 8 suffice" in told
    assert [s.name for s in SOFTMAX.statements] == ["m", "e", "s", "y"]
    assert "S_m" in str(SOFTMAX.isl_schedule)
    with pytest.raises(pf.ScheduleError, match="PF513"):
        pf.schedule("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[(i * N) % N] }")


def test_open_sizes_are_proved_for_all_values() -> None:
    s = pf.schedule(PROGRAM, "square").fuse("a", "y")
    assert s.loops.startswith("for i in 0..N:  # parallel")
    with pytest.raises(pf.ArgumentError, match="PF539"):
        s.compile()
    with pytest.raises(pf.ScheduleError, match="PF537"):
        s.shift("a", "i", 1)


@pytest.mark.parametrize("target", ["interpret", "cpu", "emulate"])
def test_schedules_compute_what_the_operator_does(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype("f")
    wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for s in (SOFTMAX, ONE_NEST.contract("e"), ONE_NEST.cache("x", at="t").split("t", 4)):
        found = s.compile(target, threads=1)
        assert np.allclose(found(x), wanted, rtol=1e-5)
        assert all(f"by hand {step}" in found.explain(x) for step in s.history)
    with pytest.raises(pf.ArgumentError, match=r"(?s)PF515.*pf.schedule\(\.\.\., "):
        found(x[:3])


def test_a_size_parameter_that_the_schedule_has_need_not_be_given_again() -> None:
    text = "op g[T: size](x: f32[N]) -> (y: f32[T]) { y[i] = x[i % N] }"
    f = pf.schedule(text, N=3, T=4).compile("interpret")
    x = np.arange(3, dtype="f")
    assert f(x).tolist() == f(x, T=4).tolist() == [0, 1, 2, 0]
    assert pickle.loads(pickle.dumps(f))(x).tolist() == [0, 1, 2, 0]
    with pytest.raises(pf.ArgumentError, match="PF515"):
        f(x, T=5)


def test_parallel_loops_of_a_hand_made_tree_are_vector_lanes_and_threads() -> None:
    tiled = schedule("rows", N=64, M=64).tile(("y.i", "y.j"), (8, 16))
    on_cpu = tiled.lower(pf.Options(threads=2), target="cpu")
    trees = [p.tree for k in on_cpu.kernels for p in k.stages[0].phases]
    assert all(members_of(t, Coordinate.VECTOR) for t in trees)
    on_gpu = tiled.lower(target="cuda")
    assert all(k.threads[0] > 1 for k in on_gpu.kernels)
    assert ONE_NEST.lower(target="cuda").launches == 1  # one nest is one kernel


def test_a_copy_reads_no_element_that_nothing_writes() -> None:
    """The last tile is not full: its local tensor has elements that nothing writes."""
    tiled = schedule("rows", N=7, M=4).split("y.i", 4).cache("z", at="y.i_tile")
    again = tiled.cache("z__cache", at="y.i")
    found = Enumeration(again.graph, {})
    assert ("z__cache", (1, 3, 0)) not in found.writes
    assert all(cell in found.writes for cell in found.reads if cell[0] != "z")
    later = schedule("rows", N=7, M=4).split("y.i", 4).shift("y", "i_tile", 1).cache("z", at="y.i_tile")
    with pytest.raises(pf.ScheduleError, match="never written"):
        later.cache("z__cache", at="y.i")


def test_threads_share_the_loops_inside_of_a_tile() -> None:
    """Overlapped tiles: a block computes what its tile reads in shared memory."""
    s = pf.schedule(
        """op f(x: f32[N, M]) -> (b: f32[N, M]) where N >= 2 {
          a[i, j] = exp(x[i, j])
          b[i, j] = a[i - 1, j] + a[i + 1, j] for i in 1..N-1
          b[0, j] = x[0, j]
          b[N - 1, j] = x[N - 1, j]
        }""",
        N=50,
        M=64,
    )
    tiled = s.tile(("b.i", "b.j"), (8, 32)).recompute("a", at="j_tile")
    assert "a" not in [t.name for t in tiled.graph.tensors]
    kernels = tiled.lower(target="cuda")
    kernel = next(k for k in kernels.kernels if len(k.graph.statements) > 1)
    assert kernel.threads == (32, 1) and kernel.find("a__local").scope is Scope.SHARED
    loops = members_of(kernel.stages[0].phases[0].tree, Coordinate.THREAD)
    assert [len(m.exprs) for m in loops] == [1, 1]


def test_the_page_tells_the_truth() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "schedules.md").read_text(encoding="utf-8")
    text = "\n\n".join(re.findall(r"```python\n(.*?)\n```", page, re.DOTALL))
    found = doctest.DocTestParser().get_doctest(text, {"pf": pf}, "the page", None, None)
    assert found.examples and doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found).failed == 0
