"""Programs with many rows one after the other, none of which is needed for long."""

from __future__ import annotations

import random

import numpy as np
from targets import Call

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text


def chain_text(rows: int, kept: bool = False) -> str:
    """Each row is read from the one before in another order, so that threads must exchange it, and needs
    its sum. With `kept` the last result needs all rows."""
    lines = ["r0[t, h] = exp(0.5 * x[t, h])"]
    for k in range(1, rows):
        lines.append(f"r{k}[t, h] = exp(r{k - 1}[t, (h * 7 + {k}) % H] / s{k - 1}[t]) for h in 0..H")
    body = [part for k, line in enumerate(lines) for part in (line, f"s{k}[t] = sum[h](r{k}[t, h])")]
    needed = range(rows) if kept else [rows - 1]
    last = " + ".join(f"r{k}[t, H - 1 - h] / s{rows - 1}[t]" for k in needed)
    inside = "\n".join(f"  {line}" for line in [*body, f"y[t, h] = {last} for h in 0..H"])
    return f"op f(x: f32[T, H]) -> (y: f32[T, H]) {{\n{inside}\n}}"


def chain(rows: int, length: int, kept: bool = False) -> Call:
    return _call(f"{rows} rows of {length}", chain_text(rows, kept), 3, length)


def random_chain(seed: int) -> Call:
    """Rows each of which needs some of the last three, in other orders, and one of their totals."""
    rng = random.Random(f"chain {seed}")
    count, length = rng.randint(4, 9), rng.choice((1, 2, 31, 33, 64, 100, 129))
    lines = ["r0[t, h] = exp(0.5 * x[t, h])"]
    for k in range(count):
        if k:
            used = rng.sample(range(max(0, k - 3), k), min(k, rng.randint(1, 2)))
            reads = " + ".join(f"r{u}[t, {_order(rng)}]" for u in used)
            lines.append(f"r{k}[t, h] = tanh(({reads}) / (1.0 + abs(s{rng.choice(used)}[t]))) for h in 0..H")
        lines.append(f"s{k}[t] = {rng.choice(('sum', 'max', 'mean'))}[h](r{k}[t, h])")
    kept = sorted({count - 1, *rng.sample(range(count), rng.randint(0, 2))})
    last = " + ".join(f"r{k}[t, {_order(rng)}] * s{k}[t]" for k in kept)
    inside = "\n".join(f"  {line}" for line in [*lines, f"y[t, h] = {last} for h in 0..H"])
    return _call(f"seed {seed}", f"op f(x: f32[T, H]) -> (y: f32[T, H]) {{\n{inside}\n}}", 5, length)


def _order(rng: random.Random) -> str:
    return rng.choice(("h", "H - 1 - h", f"(h * 7 + {rng.randint(0, 5)}) % H", "h // 2"))


def _call(name: str, text: str, rows: int, length: int) -> Call:
    graph = instantiate(parse_text(text), "f")
    x = np.random.default_rng(length).standard_normal((rows, length)).astype(np.float32)
    return Call(name, text, graph, {"T": rows, "H": length}, {"x": x})
