"""Random programs of the shape of models: blocks with matrix products, norms, branches, residuals, updates.

The same for the same seed.  Sizes are small, so that every layer and target can run them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from targets import Call

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text


@dataclass
class _Writer:
    """Lines of a program; `full` are tensors [T, H], `rows` [T], `columns` [H], `others` [K, H]."""

    dice: random.Random
    lines: list[str]
    full: list[str]
    rows: list[str]
    columns: list[str]
    others: list[str]
    results: list[str]
    count: int = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def pick(self, names: list[str]) -> str:
        return self.dice.choice(names[-4:] if self.dice.random() < 0.8 else names)

    def elementwise(self) -> None:
        n, a, b = self.name("e"), self.pick(self.full), self.pick(self.full)
        form = self.dice.choice(("{a} * 0.5 + tanh({b})", "max({a}, {b} * 0.25)", "{a} - 0.3 * {b}"))
        self.lines.append(f"{n}[t, h] = " + form.format(a=f"{a}[t, h]", b=f"{b}[t, h]"))
        self.full.append(n)

    def norm(self) -> None:
        n, a = self.name("n"), self.pick(self.full)
        self.lines += [
            f"{n}s[t] = sum[h]({a}[t, h])",
            f"{n}[t, h] = {a}[t, h] - {n}s[t] * 0.1 + {self.pick(self.columns)}[h]",
        ]
        self.full.append(n)
        self.rows.append(f"{n}s")

    def softmax(self) -> None:
        n, a = self.name("p"), self.pick(self.full)
        self.lines += [
            f"{n}m[t] = max[h]({a}[t, h])",
            f"{n}e[t, h] = exp({a}[t, h] - {n}m[t])",
            f"{n}d[t] = sum[h]({n}e[t, h])",
            f"{n}[t, h] = {n}e[t, h] / {n}d[t]",
        ]
        self.full.append(n)

    def product(self) -> None:
        n, a = self.name("m"), self.pick(self.full)
        self.lines.append(f"{n}[t, h] = sum[j]({a}[t, j] * w[j, h])")
        self.full.append(n)

    def columns_of(self) -> None:
        n, a = self.name("c"), self.pick(self.full)
        self.lines.append(f"{n}[h] = sum[t]({a}[t, h])")
        self.columns.append(n)

    def branch(self) -> None:
        """Something that nothing else reads, over another size."""
        n, a = self.name("o"), self.pick(self.others)
        if self.dice.random() < 0.5:
            self.lines.append(f"{n}[k, h] = {a}[k, h] * 1.5 + 0.1")
            self.others.append(n)
        else:
            self.lines.append(f"{n}[k] = sum[h](exp(0.1 * {a}[k, h]))")
        self.results.append(f"{n}: f32[{'K, H' if n in self.others else 'K'}]")

    def total(self) -> None:
        """A number that everything after may use."""
        n, a, b = self.name("g"), self.pick(self.full), self.pick(self.full)
        self.lines += [
            f"{n}s = sum[t, h]({a}[t, h] * {a}[t, h])",
            f"{n}[t, h] = {b}[t, h] / (1.0 + {n}s)",
        ]
        self.full.append(n)


def graph_call(seed: int) -> Call:
    """A program with its inputs."""
    dice = random.Random(f"graph {seed}")
    w = _Writer(dice, [], ["x"], ["r"], ["v"], ["z"], [])
    makers = (
        w.elementwise,
        w.elementwise,
        w.norm,
        w.softmax,
        w.product,
        w.columns_of,
        w.branch,
        w.branch,
        w.total,
    )
    for _ in range(dice.randint(4, 11)):
        dice.choice(makers)()
    kinds = {"T, H": w.full, "T": w.rows, "H": w.columns}
    made = [(n, shape) for shape, names in kinds.items() for n in names if n not in ("x", "r", "v")]
    last = w.full[-1]
    chosen = [m for m in made if dice.random() < 0.3 and m[0] != last]
    results = [*(f"{n}: f32[{shape}]" for n, shape in chosen), *w.results, "y: f32[T, H]"]
    w.lines.append(f"y[t, h] = {last}[t, h] + {w.pick(w.rows)}[t]")
    inout = dice.random() < 0.5
    if inout:
        w.lines.append(f"p[h] = p[h] * 0.9 + {w.pick(w.columns)}[h]")
    parameters = (
        "x: f32[T, H], w: f32[H, H], z: f32[K, H], r: f32[T], v: f32[H]" + ", inout p: f32[H]" * inout
    )
    body = "\n".join(f"  {line}" for line in w.lines)
    text = f"op f({parameters}) -> ({', '.join(results)}) {{\n{body}\n}}"
    sizes = {n: dice.choice((1, 2, 3, 5, 8, 13)) for n in "THK"}
    rng = np.random.default_rng(seed)
    shapes = {"x": "TH", "w": "HH", "z": "KH", "r": "T", "v": "H", **({"p": "H"} if inout else {})}
    inputs = {n: rng.normal(size=[sizes[c] for c in s]).astype("f4") for n, s in shapes.items()}
    graph = instantiate(parse_text(text), "f")
    used = {n: a for n, a in inputs.items() if n in graph.inputs}
    return Call(f"graph {seed}", text, graph, {n: v for n, v in sizes.items() if n in graph.sizes}, used)
