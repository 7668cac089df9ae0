"""How long each case may take on an H200, and in which order cases are timed where time is short.

A bar is what a hand-written kernel of the same machine reached, or the best peer's time where nobody was
faster; compulsory bytes over the speed of a copy is the limit of most.  A case without a bar stands for the
same operator at another size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
CHIP = "NVIDIA H200"
BARS: Mapping[str, float] = {
    "ln_fwd 65536x768 f32": 0.098,
    "ln_fwd 16384x768 bf16": 0.0149,
    "ln_fwd 16384x768 f32": 0.0271,
    "res_ln 16384x768 f16": 0.021,
    "res_ln 65536x768 bf16": 0.0726,
    "ln_bwd 65536x768 f32": 0.161,
    "ln_bwd 16384x768 f32": 0.048,
    "msoftmax 64x16x512x512 f32": 0.520,
    "msoftmax 64x16x512x512 bf16": 0.290,
    "softmax 750000x32 f32": 0.0475,
    "softmax 750000x32 bf16": 0.0260,
    "softmax 8x1048576 f32": 0.034,
    "softmax 8x1048576 bf16": 0.025,
    "softmax 64x30000 f32": 0.0103,
    "softmax 64x30000 bf16": 0.0097,
    "bn_train_relu 128x64x112x112 f32": 0.31,
    "bn_train_relu 128x64x112x112 f16": 0.18,
    "bias_gelu 65536x3072 f32": 0.379,
    "bias_gelu 65536x3072 bf16": 0.225,
    "gelu_bwd_dbias 16384x3072 f32": 0.145,
    "gelu_bwd_dbias 65536x3072 bf16": 0.32,
    "rms_swiglu 65536x2816 f32": 0.56,
    "rms_swiglu 16384x2816 bf16": 0.072,
    "xent_fwd 16384x30522 f32": 0.50,
    "xent_fwd 16384x30522 bf16": 0.25,
    "rope 64x16x2048x64 f32": 1.02,
    "rope 64x16x2048x64 bf16": 0.515,
    "dropout_residual 16384x768 f32": 0.0468,
    "dropout_residual 65536x768 bf16": 0.091,
    "lstm_cell 16384x1024 f32": 0.170,
    "lstm_cell 16384x1024 bf16": 0.088,
    "astitch_768 16384x768 f32": 0.038,
    "adamw 300000000 f32": 1.98,
    "residual_chain 65536x768 f32": 0.231,
}
"""Milliseconds by the label of a case."""


def earlier(device: str | None) -> dict[str, Any]:
    """What was measured before on a chip of this name, as `workloads.json` has it; nothing for others."""
    for file in sorted(RESULTS.glob("*/workloads.json")):
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if "cases" in data and data["about"]["device"] == device:
            return data
    return {"about": {}, "cases": {}}


def by_distance(labels: Iterable[str], before: Mapping[str, Any]) -> list[str]:
    """Cases with a bar first: of each operator and type the one that is furthest from it, then the others,
    the furthest first; last those without a bar, in their order."""
    cases = before["cases"]

    def distance(label: str) -> float:
        entry = cases.get(label, {}).get("entries", {}).get("polyfuse")
        return float(entry["ms"]) / BARS[label] if entry else 1.0

    labels = list(labels)
    barred = sorted((n for n in labels if n in BARS), key=distance, reverse=True)
    first: dict[tuple[str, str], str] = {}
    for label in barred:
        name, _, dtype = label.split(" ")
        first.setdefault((name, dtype), label)
    leaders = set(first.values())
    return [
        *(n for n in barred if n in leaders),
        *(n for n in barred if n not in leaders),
        *(n for n in labels if n not in BARS),
    ]
