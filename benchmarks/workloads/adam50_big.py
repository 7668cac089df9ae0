"""AdamW step of the 50 tensors of three BERT layers and a pooler, 21.9 million elements, in place."""

from __future__ import annotations

from benchmarks.adam_steps import AdamSteps

_LINEAR = (("H", "H"), ("H",))
_NORM = (("H",), ("H",))
_LAYER = (*_LINEAR * 4, *_NORM, ("I", "H"), ("I",), ("H", "I"), ("H",), *_NORM)
SHAPES = (*_LAYER * 3, *_LINEAR)
STEPS = AdamSteps("adam50_big", SHAPES)
SIZES = {"adam50_big": {"H": 768, "I": 3072}}
SMALL = {"H": 3, "I": 5}
TEXT = STEPS.text
inputs = STEPS.inputs
with_numpy, with_jax = STEPS.with_numpy, STEPS.with_jax
with_torch, with_torch_library = STEPS.with_torch, STEPS.with_torch_library
