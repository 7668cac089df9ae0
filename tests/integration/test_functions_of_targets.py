"""The functions that came later, in programs, on all targets and layers, against the reference."""

from __future__ import annotations

import shutil
from functools import cache

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import LAYERS
from polyfuse.ir.dtypes import BF16, F16, F32, F64, DType
from polyfuse.ir.ops import OPS
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

# Those of numbers; `philox4x32` counts.
NAMES = [o.name for o in OPS.values() if o.yields and o.arity <= 2]
TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
CASES = [(F32, 333), (F32, 1), (F32, 0), (F64, 333), (F64, 17), (F16, 333), (BF16, 333)]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 1e-4, 3e4, 1e-30, 8, 10, -3]
OTHERS = [-0.0, 0.0, np.nan, np.inf, 1, np.inf, -np.inf, 0, -0.0, 1, -1, 3, 7, -2, 5, 0.3, 2]


@cache
def program() -> str:
    """Each of an element as it is, and of one that is computed, whose error it passes on."""
    lines, results = [], []
    for n in NAMES:
        more = OPS[n].arity == 2
        direct = f"{n}(x[i]{', w[i]' if more else ''})"
        made = f"{n}(sqrt(abs(x[i])) * w[i]{', w[i] * 0.3 + x[i]' if more else ''})"
        if OPS[n].gives_bool:
            direct, made = f"F({direct})", f"F({made})"
        lines += [f"a_{n}[i] = {direct}", f"b_{n}[i] = {made}"]
        results += [f"a_{n}: F[N]", f"b_{n}: F[N]"]
    return f"op f[F: float](x: F[N], w: F[N]) -> ({', '.join(results)}) {{\n" + "\n".join(lines) + "\n}"


@cache
def case(t: DType, n: int) -> tuple[np.ndarray, np.ndarray, dict[str, Evaluated]]:
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal(n) * 3, rng.standard_normal(n) * 2
    with np.errstate(all="ignore"):
        x[: len(SPECIAL)], w[: len(OTHERS)] = SPECIAL[:n], OTHERS[:n]
        x, w = x.astype(t.numpy), w.astype(t.numpy)
        graph = pf.parse(program()).op("f").graph({"F": t})
        return x, w, evaluate(graph, {"N": n}, {"x": x, "w": w})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("t", "n"), CASES, ids=str)
def test_targets_agree_with_the_reference(t: DType, n: int, target: str) -> None:
    x, w, want = case(t, n)
    f = pf.compile(program(), target=target)
    # A place that is aligned to its elements only.
    moved = [np.concatenate([a[:1], a])[1:] if n else a for a in (x, w)]
    for name, got in zip(want, f(*moved), strict=True):
        assert agrees(np.asarray(got), want[name], t), name
        if n == 333 and name[0] == "a":
            assert want[name].undecided.mean() < 0.02, name


@pytest.mark.parametrize("layers", [(), LAYERS], ids=["none", "all"])
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_layers_agree_with_the_reference(layers: tuple[str, ...]) -> None:
    x, w, want = case(F32, 333)
    f = pf.compile(program(), layers=layers)
    for name, got in zip(want, f(x, w), strict=True):
        assert agrees(np.asarray(got), want[name], F32), name


def test_the_baseline_agrees() -> None:
    x, w, want = case(F32, 333)
    graph = pf.parse(program()).op("f").graph({"F": F32})
    with np.errstate(all="ignore"):
        found = baseline(graph, {"N": 333})({"x": x, "w": w})
    for name, held in want.items():
        # Of far quotients NumPy has all digits; of minus infinity SciPy has another value.
        if not name.endswith(("fmod", "lgamma")):
            assert agrees(np.asarray(found[name]), held, F32), name


@pytest.mark.parametrize("name", NAMES)
def test_another_value_does_not_agree(name: str) -> None:
    """Where the reference has decided, it is not vague."""
    _, _, want = case(F32, 333)
    for part in "ab":
        held = want[f"{part}_{name}"]
        off = held.value + 0.01 * (1 + np.abs(held.value))
        wrong = np.where(np.isfinite(held.value), off, held.value).astype(np.float32)
        assert not agrees(wrong, held, F32)


def test_constants_are_folded_where_all_targets_have_the_same_bits() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * sign(-3.0) + trunc(2.75) + log1p(0.5) }"
    f = pf.compile(text, target="cpu" if "cpu" in TARGETS else "interpret")
    made = f.explain(np.zeros(3, np.float32))
    source = f.built(np.zeros(3, np.float32)).code.source if "cpu" in TARGETS else "pf_log1p_f32"
    assert "pf_sign" not in source and "pf_trunc" not in source and "pf_log1p_f32" in source, made
