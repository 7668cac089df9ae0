"""Made-up samples for the learned cost model: their times follow from features, edges, and a little noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyfuse.learn.features import KERNEL_FEATURES, NODE_FEATURES, OPCODES, KernelGraph
from polyfuse.learn.samples import PLANS, VARIANTS, Sample, Samples, collected

FEW = ("loop.blk", "loop.vec", "load", "store", "op.add", "op.exp", "op.div")
CODES = np.array([OPCODES.index(name) for name in FEW], np.int16)
EXP, DIV = CODES[5], CODES[6]


def graph(random: np.random.Generator, nodes: int | None = None, ns: float | None = None) -> KernelGraph:
    """A kernel of some nodes, each of which but the first uses an earlier one."""
    n = int(random.integers(3, 12)) if nodes is None else nodes
    codes = random.choice(CODES, n)
    edges = np.array([[random.integers(0, k), k] for k in range(1, n)], np.int32).reshape(-1, 2).T
    rows = np.zeros((n, len(NODE_FEATURES)), np.float32)
    rows[:, 0] = random.uniform(0, 12, n)
    rows[:, 1] = random.uniform(0, 4, n)
    kernel = np.zeros(len(KERNEL_FEATURES), np.float32)
    kernel[: len(kernel) // 2] = random.uniform(0, 8, len(kernel) // 2)
    kernel[KERNEL_FEATURES.index("vector bytes")] = 6.0
    projected = 10 ** random.uniform(3, 6) if ns is None else ns
    kernel[KERNEL_FEATURES.index("projected ns")] = np.log2(1 + projected)
    return KernelGraph(codes, rows.astype(np.float16).astype(np.float32), edges, kernel)


def seconds(g: KernelGraph) -> float:
    """What it takes: the projected time, more where functions are, and where they feed divisions."""
    projected = 2.0 ** g.kernel[KERNEL_FEATURES.index("projected ns")] * 1e-9
    chained = sum(g.opcodes[a] == EXP and g.opcodes[b] == DIV for a, b in g.edges.T)
    many = (g.opcodes == EXP).mean() * g.nodes[:, 0].mean() / 6
    return float(projected * np.exp(0.6 * min(2, chained) + 1.0 * many - 0.05 * (g.kernel[0] - 4)))


def made_up(programs: int = 60, variants: int = 6, seed: int = 0, noise: float = 0.01) -> Samples:
    """Samples of both tasks; the first one of a group is the compiler's choice."""
    return collected(_samples(programs, variants, np.random.default_rng(seed), noise), {"machine": "none"})


def _samples(programs: int, variants: int, random: np.random.Generator, noise: float) -> Iterator[Sample]:
    for p in range(programs):
        task = PLANS if p % 3 == 0 else VARIANTS
        near = float(10 ** random.uniform(3, 6))
        for v in range(variants):
            kernels = int(random.integers(1, 4)) if task == PLANS else 1
            steps = tuple(graph(random, ns=near / kernels) for _ in range(kernels))
            projected = near * 1e-9
            t = sum(map(seconds, steps)) * float(np.exp(noise * random.standard_normal()))
            name = f"variant {v}"
            yield Sample(f"random/{p}", "random", task, name, v == 0, t, noise, projected, steps)
