"""Programs of the whole language whose arguments hold what is no number, infinities, zeros and denormals."""

from __future__ import annotations

import random

import numpy as np
from programs import random_program
from targets import Array, Call

from kinds.writer import SPECIAL
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text


def special(seed: int) -> Call:
    made = random_program(seed)
    dice = random.Random(f"special {seed}")
    inputs = {name: _with_special(dice, np.array(values)) for name, values in made.inputs.items()}
    graph = instantiate(parse_text(made.text), made.op)
    return Call(f"special, seed {seed}", made.text, graph, made.sizes, inputs)


def _with_special(dice: random.Random, values: Array) -> Array:
    is_float = values.dtype.kind not in "iub"  # bfloat16 has a kind of its own
    if is_float and values.ndim and values.size and dice.random() < 0.6:
        for _ in range(dice.choice((1, 1, 2, 4))):
            values[tuple(dice.randrange(s) for s in values.shape)] = dice.choice(SPECIAL)
    return values
