"""AdamW step of 50 small tensors, in place."""

from __future__ import annotations

from benchmarks.adam_steps import AdamSteps

SHAPES = (("K", "K"), ("K",), ("L", "K"), ("L",), ("K", "L")) * 10
STEPS = AdamSteps("adam50_small", SHAPES)
SIZES = {"adam50_small": {"K": 64, "L": 256}}
SMALL = {"K": 3, "L": 5}
TEXT = STEPS.text
inputs = STEPS.inputs
with_numpy, with_jax = STEPS.with_numpy, STEPS.with_jax
with_torch, with_torch_library = STEPS.with_torch, STEPS.with_torch_library
