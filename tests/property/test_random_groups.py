"""Random programs over groups of columns against the reference; `make test-all` runs more."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.graph.one_pass import moments
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

TERMS = ("{x}", "{x} * {x}", "abs({x})", "{x} * {w}", "{x} * {z}", "exp({x} * 0.1)")
RESULTS = (
    "({u} - mu[{K}]) * rsqrt(v[{K}] + 1e-3)",
    "({u} - mu[{K}]) / (1.0 + v[{K}])",
    "{u} - mu[{K}] + v[{K}]",
)
LAYERS = (("loop", "stitch", "pack"), ("loop", "stitch", "pack"), ("loop",), ("stitch",), ())


@dataclass(frozen=True)
class Program:
    text: str
    sizes: dict[str, int]
    layers: tuple[str, ...]
    pivots: bool


def program(seed: int) -> Program:
    """A normalisation, or something like it: groups as dims, or in the numbers of columns."""
    r = random.Random(seed)
    digits = r.random() < 0.5
    outer = ["T"] * (r.random() < 0.6) + ["H"] + ["W"] * (r.random() < 0.3)
    loops = [d.lower() for d in outer]
    kept = [d for d in loops if d == "t"]
    shape = ", ".join([*outer, *(["G*C"] if digits else ["G", "C"])])
    dtype = r.choice(("f32", "f32", "f64"))

    def element(name: str, column: bool = False) -> str:
        last = ("k" if column else "g*C + c") if digits else "g, c"
        return f"{name}[{', '.join([*loops, last])}]"

    term = r.choice(TERMS)

    def terms(column: bool = False) -> str:
        weight = "w[k // C, k % C]" if digits and column else "w[g, c]"
        return term.format(x=element("x", column), z=element("z", column), w=weight)

    order = [*(d for d in loops if d != "t"), "c"]
    r.shuffle(order)
    over = ", ".join("c in 0..C" if d == "c" and digits else d for d in order)
    group, groups = ", ".join([*kept, "g"]), " for g in 0..G" if digits else ""
    lines = [
        f"mu[{group}] = mean[{over}]({terms()}){groups}",
        f"v[{group}] = mean[{over}](({terms()} - mu[{group}]) ** 2){groups}",
    ]
    results, body = [f"y: {dtype}[{shape}]"], r.choice(RESULTS)
    if r.random() < 0.4:
        results.append(f"v: {dtype}[{', '.join([d.upper() for d in kept] + ['G'])}]")
    if r.random() < 0.4:
        lines.append(f"top[{group}] = {r.choice(('max', 'min'))}[{over}]({element('x')}){groups}")
        body += " + top[{K}]"
    if r.random() < 0.4:
        whole = " for g in 0..G, c in 0..C" if digits else ""
        lines.append(f"dw[g, c] = sum[{', '.join(loops)}]({element('x')}){whole}")
        results.append(f"dw: {dtype}[G, C]")
    own = ", ".join([*kept, "k // C" if digits else "g"])
    lines.append(f"{element('y', True)} = " + body.format(u=terms(True), K=own))
    r.shuffle(lines)
    given = f"x: {dtype}[{shape}], z: {dtype}[{shape}], w: {dtype}[G, C]"
    known = ", ".join(f"{d} >= 1" for d in (*outer, "G", "C"))
    text = f"op f({given}) -> ({', '.join(results)}) where {known} {{\n  " + "\n  ".join(lines) + "\n}"
    sizes = {"T": r.randint(1, 3), "H": r.choice((16, 17, 33, 70)), "W": r.choice((1, 2, 5))}
    sizes |= {"G": r.randint(2, 6), "C": r.randint(2, 12)}
    used = {d: n for d, n in sizes.items() if d in (*outer, "G", "C")}
    return Program(text, used, r.choice(LAYERS), r.random() < 0.5)


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = program(seed)
    if p.pivots:
        monkeypatch.setattr(moments, "_near", lambda *given: False)
        monkeypatch.setattr(moments, "SHORTEST", 1)
    graph = instantiate(parse_text(p.text), "f")
    fixed = fixed_graph(graph, p.sizes)
    rng = np.random.default_rng(seed)
    inputs = {}
    for i in graph.inputs:
        t = fixed.tensor(i)
        shape = tuple(e.value for e in t.shape)  # type: ignore[union-attr]
        inputs[i] = (rng.standard_normal(shape) + 1).astype(t.dtype.numpy)
    f = pf.compile(p.text, target="cpu", layers=p.layers)
    assert "grouped columns" in f.explain(*inputs.values()), p
    found = f(*inputs.values())
    wanted = evaluate(fixed, {}, inputs)
    for name, got in zip(graph.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        assert agrees(np.asarray(got), wanted[name], graph.tensor(name).dtype), (name, p)


@pytest.mark.thin(2)
@pytest.mark.parametrize("seed", range(12))
def test_groups_agree_with_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_more_groups_agree_with_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)
