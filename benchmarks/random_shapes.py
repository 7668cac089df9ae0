"""Shapes that nobody chose: `python -m benchmarks --random 40 --seed 3`.

Each size is drawn on a logarithmic scale, so that 5 columns are as likely as 5000; every second one is then
brought to a multiple of a power of two, as most sizes of models are. The same seed draws the same cases.
"""

from __future__ import annotations

import math
import random

from benchmarks.floor import compulsory
from benchmarks.other_shapes import Sizes, case_name
from benchmarks.workload import Workload, load

Ranges = dict[str, tuple[int, int]]
# The working set: below these calls alone are timed, and above them a case takes minutes.
LEAST_BYTES, MOST_BYTES = 4_000, 200_000_000

_ROWS: Ranges = {"T": (1, 100_000), "H": (1, 30_000)}
RANGES: dict[str, Ranges] = {
    "adam50_small": {"K": (1, 512), "L": (1, 1024)},
    "adamw": {"N": (1, 10_000_000)},
    "astitch_768": _ROWS,
    "bias_gelu": _ROWS,
    "bn_train_relu": {"N": (2, 128), "C": (1, 1024), "H": (1, 128), "W": (1, 128)},
    "dien_attention": {"B": (1, 2048), "T": (1, 200), "H": (1, 128)},
    "dropout_residual": _ROWS,
    "emb_sum_ln": {
        "V": (10, 60_000),
        "P": (1024, 1024),
        "K": (2, 2),
        "B": (1, 64),
        "S": (1, 1024),
        "D": (1, 2048),
    },
    "gelu_bwd_dbias": _ROWS,
    "gnn_segsum": {"N": (1, 100_000), "E": (1, 500_000), "F": (1, 256)},
    "lamb50": {"K": (1, 512), "L": (1, 1024)},
    "ln_bwd": _ROWS,
    "ln_fwd": _ROWS,
    "lstm_cell": {"B": (1, 2048), "H": (1, 2048)},
    "many_small": {"N": (1, 1024), "M": (1, 1024)},
    "msoftmax": {"N": (1, 16), "A": (1, 16), "S": (1, 1024), "T": (1, 1024)},
    "res_ln": _ROWS,
    "residual_chain": _ROWS,
    "rms_swiglu": _ROWS,
    "rope": {"N": (1, 8), "A": (1, 32), "S": (1, 4096), "D": (1, 128)},
    "softmax": _ROWS,
    "xent_fwd": {"N": (1, 16_384), "C": (2, 130_000)},
}


def draw(count: int, seed: int, only: list[str]) -> list[tuple[Workload, str]]:
    """So many pairs of a workload, in turns of all or of those named, and a case. Raises KeyError."""
    if unknown := [n for n in only if n not in RANGES]:
        raise KeyError(f"there is no workload '{unknown[0]}' to draw; there are {', '.join(RANGES)}")
    rng = random.Random(seed)
    workloads = [load(n) for n in only or RANGES]
    rng.shuffle(workloads)
    chosen = [workloads[k % len(workloads)] for k in range(count)]
    return [(w, case_name(w.name, _sizes(w, rng))) for w in chosen]


def _sizes(workload: Workload, rng: random.Random) -> Sizes:
    while True:
        sizes = {n: _size(low, high, rng) for n, (low, high) in RANGES[workload.name].items()}
        if LEAST_BYTES <= compulsory(workload.graph, sizes).working_set <= MOST_BYTES:
            return sizes


def _size(low: int, high: int, rng: random.Random) -> int:
    value = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    step = 2 ** rng.randint(2, 7)
    return value // step * step if rng.random() < 0.5 and low <= value // step * step else value
