"""Derived operators on every target, at odd sizes, 1 and 0; beside those that are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradient_checks import backward_arguments, inputs_for
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import with_defaults
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

# An operator, generics, sizes: one of each kind of gradient.
CASES: list[tuple[str, dict[str, str], dict[str, int]]] = [
    ("softmax", {"F": "f32"}, {"B_0": 5, "H": 37}),
    ("softmax", {"F": "f32"}, {"B_0": 3, "H": 1}),
    ("layer_norm", {"F": "f16"}, {"B_0": 7, "H": 33}),
    ("layer_norm", {"F": "f32"}, {"B_0": 0, "H": 4}),
    ("gelu", {"F": "bf16"}, {"B_0": 37}),
    ("cross_entropy", {"F": "f32", "I": "i32"}, {"B_0": 5, "C": 9}),
    ("attention", {"F": "f32"}, {"N": 1, "B_0": 2, "S": 5, "T": 7, "D": 3, "E": 4}),
    ("max_pool", {"F": "f32"}, {"N": 1, "C": 2, "H": 7, "W": 9, "K": 3, "S": 2, "P": 1}),
    (
        "conv2d",
        {"F": "f32"},
        {"N": 1, "C": 2, "K": 2, "G": 2, "H": 6, "W": 5, "R": 3, "V": 2, "S": 2, "P": 1},
    ),
    ("group_norm", {"F": "f32"}, {"N": 2, "C": 6, "G": 3, "B_0": 5}),
    ("embedding", {"F": "f32", "I": "i64"}, {"V": 5, "D": 3, "B_0": 8}),
    ("csr_matmul", {"F": "f32", "I": "i32"}, {"E": 9, "N": 4, "M": 5, "D": 3}),
    ("cumsum", {"F": "f32"}, {"B_0": 3, "T": 40}),
    ("cumprod", {"F": "f32"}, {"B_0": 2, "T": 9}),
    ("topk", {"T": "f32"}, {"B_0": 3, "H": 9, "K": 2}),
]


USUAL = ("layer_norm", "cross_entropy", "max_pool", "csr_matmul", "cumsum")


def call_of(name: str, dtypes: dict[str, str], given: dict[str, int]) -> Call:
    rng = np.random.default_rng(3)
    op = pf.stdlib.op(name)
    pair, graph = pf.grad(op, dtypes=dtypes), op.graph(dtypes)
    sizes = with_defaults(graph, given)
    arguments = backward_arguments(pair, graph, sizes, inputs_for(graph, sizes, rng), rng)
    backward = pair.backward.graph()
    return Call(f"{name} {given}", "", backward, {n: sizes[n] for n in backward.sizes}, arguments)


def test_gradients_agree_with_the_reference_on_every_target() -> None:
    check_everywhere([call_of(*case) for case in CASES if case[0] in USUAL])


@pytest.mark.slow
def test_more_gradients_agree_with_the_reference_on_every_target() -> None:
    check_everywhere([call_of(*case) for case in CASES if case[0] not in USUAL])


def test_time_runs_backward() -> None:
    """A recurrence of several tensors, whose gradient is one from the last step to the first."""
    call = call_of("rnn_layer", {"F": "f32"}, {"T": 4, "B": 2, "H": 3})
    backward = pf.grad("stdlib:rnn_layer").backward
    expected = evaluate(call.graph, call.sizes, call.inputs)
    for target in ("cpu", "emulate"):
        found = pf.compile(backward, target=target)(**call.inputs)
        for name, got in zip(call.graph.outputs, found, strict=True):
            outcome = agrees(np.asarray(got), expected[name], call.graph.tensor(name).dtype)
            assert outcome.ok, f"{target}: {name}: {outcome}"


def _rows(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def test_gradients_are_those_written_by_hand() -> None:
    rng = np.random.default_rng(0)
    x, dy, w = _rows(rng, 6, 33), _rows(rng, 6, 33), _rows(rng, 33)
    y = pf.stdlib.softmax(x)
    by_hand = {
        "softmax": (pf.stdlib.softmax_backward(dy, y), pf.grad("stdlib:softmax").backward(dy, y)),
        "gelu": (pf.stdlib.gelu_backward(dy, x), pf.grad("stdlib:gelu", ranks={"B": 2}).backward(dy, x)),
        "relu": (pf.stdlib.relu_backward(dy, x), pf.grad("stdlib:relu", ranks={"B": 2}).backward(dy, x)),
    }
    pair = pf.grad("stdlib:layer_norm")
    _, mu, var = pair.forward(x, w, w)
    _, mean, rstd = pf.stdlib.layer_norm_stats(x, w, w)
    hand, derived = pf.stdlib.layer_norm_backward(dy, x, w, mean, rstd), pair.backward(dy, x, w, mu, var)
    by_hand |= {f"layer_norm {k}": both for k, both in enumerate(zip(hand, derived, strict=True))}
    for name, (expected, got) in by_hand.items():
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_command_prints_a_program(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from polyfuse.cli.app import app

    target = tmp_path / "norm.pf"
    done = CliRunner().invoke(app, ["grad", "stdlib:layer_norm", "--wrt", "x,gamma", "-o", str(target)])
    assert done.exit_code == 0, done.output
    program = pf.parse(target)
    assert program.ops == ("layer_norm", "layer_norm_backward")
    assert [r.name for r in program.op().signature.results] == ["dx", "dgamma"]
    assert target.read_text().startswith("# + keep mu: ")
    wrong = CliRunner().invoke(app, ["grad", "stdlib:layer_norm", "--wrt", "z"])
    assert wrong.exit_code == 2 and "PF790" in wrong.output
