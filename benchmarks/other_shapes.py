"""Shapes beside the public ones: `python -m benchmarks --others`.

The public shapes are what the code generator was looked at most with.  These ask whether it is the compiler
that is fast, or the case: rows that are short, long or no multiple of a vector, few rows and many, arrays
that fit a cache or none, layers of other networks.
"""

from __future__ import annotations

Sizes = dict[str, int]

_ROWS: tuple[Sizes, ...] = (
    {"T": 100_000, "H": 16},
    {"T": 20_000, "H": 100},
    {"T": 100_000, "H": 5},
    {"T": 777, "H": 1023},
    {"T": 64, "H": 30_000},
    {"T": 8192, "H": 2048},
)
_ACTIVATIONS: tuple[Sizes, ...] = (
    {"T": 300, "H": 1000},
    {"T": 5000, "H": 64},
    {"T": 100_000, "H": 7},
    {"T": 2048, "H": 11_008},
)

OTHERS: dict[str, tuple[Sizes, ...]] = {
    "adamw": ({"N": 100_003}, {"N": 8_000_000}, {"N": 30_000_000}),
    "adam50_small": ({"K": 20, "L": 33}, {"K": 256, "L": 512}),
    "astitch_768": _ROWS,
    "bias_gelu": _ACTIVATIONS,
    "bn_train_relu": (
        {"N": 8, "C": 256, "H": 14, "W": 14},
        {"N": 64, "C": 3, "H": 112, "W": 112},
        {"N": 128, "C": 512, "H": 7, "W": 7},
    ),
    "dien_attention": ({"B": 64, "T": 50, "H": 18}, {"B": 1024, "T": 33, "H": 64}),
    "dropout_residual": _ACTIVATIONS,
    "emb_sum_ln": (
        {"V": 50_257, "P": 1024, "K": 2, "B": 4, "S": 1024, "D": 100},
        {"V": 1000, "P": 128, "K": 2, "B": 64, "S": 128, "D": 256},
        {"V": 100, "P": 32, "K": 2, "B": 512, "S": 32, "D": 16},
    ),
    "gelu_bwd_dbias": _ACTIVATIONS,
    "gnn_segsum": (
        {"N": 1000, "E": 30_000, "F": 16},
        {"N": 50_000, "E": 100_000, "F": 100},
        {"N": 100_000, "E": 300_000, "F": 4},
    ),
    "lamb50": ({"K": 20, "L": 33}, {"K": 256, "L": 512}),
    "ln_bwd": _ROWS,
    "ln_fwd": _ROWS,
    "lstm_cell": ({"B": 16, "H": 100}, {"B": 2048, "H": 512}),
    "many_small": ({"N": 17, "M": 33}, {"N": 512, "M": 300}),
    "mm_bias_gelu": ({"T": 128, "K": 512, "H": 512}, {"T": 1000, "K": 300, "H": 77}),
    "msoftmax": (
        {"N": 64, "A": 8, "S": 20, "T": 20},
        {"N": 2, "A": 16, "S": 1000, "T": 1000},
        {"N": 16, "A": 12, "S": 1, "T": 777},
        {"N": 8, "A": 8, "S": 64, "T": 7},
    ),
    "res_ln": _ROWS,
    "residual_chain": _ACTIVATIONS,
    "rms_swiglu": (
        {"T": 300, "H": 1000},
        {"T": 10_000, "H": 50},
        {"T": 16, "H": 14_336},
        {"T": 50_000, "H": 5},
    ),
    "rope": (
        {"N": 1, "A": 32, "S": 2048, "D": 64},
        {"N": 4, "A": 4, "S": 333, "D": 20},
        {"N": 1, "A": 3, "S": 827, "D": 9},
    ),
    "softmax": _ROWS,
    "xent_fwd": ({"N": 10_000, "C": 10}, {"N": 128, "C": 128_256}, {"N": 4096, "C": 1000}),
}


def case_name(workload: str, sizes: Sizes) -> str:
    """`ln_fwd T=777 H=1023`."""
    return " ".join([workload, *(f"{n}={v}" for n, v in sizes.items())])


def named_sizes(case: str) -> Sizes:
    """The sizes of such a name. Raises KeyError for a name that is none."""
    _, *parts = case.split(" ")
    if not parts or not all("=" in p for p in parts):
        raise KeyError(case)
    return {n: int(v) for n, v in (p.split("=") for p in parts)}
