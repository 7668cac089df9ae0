"""Models of many operators against NumPy, the form of their files, and programs built in Python."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from models import FOLDER, MODELS, Model, script
from thinned import thinned

import polyfuse as pf
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import Role
from polyfuse.runtime.reference.evaluate import evaluate

FILES = sorted(FOLDER.glob("*.pf"))
SCRIPTS = sorted(FOLDER.glob("*.py"))
# Results in float64 of constants and scalars that are f32 numbers are that far from exact.
TOLERANCE = 2e-6
# One of each kind goes through the whole pipeline.
COMPILED = (
    "encoder-2x5x3x2x7x11",
    "encoder_backward_f32-2x3x2x2x5x7",
    "lstm-5x3x4x2",
    "dien_attention-3x7x5",
    "dien-2x1x1",
    "yolo-2x3x4x5x7",
    "adamw-50",
    "lamb-few",
    "forty",
    "branches",
    "losses",
    "added",
    "casts",
)


def compare(model: Model, found: dict[str, np.ndarray], tolerance: float) -> None:
    expected = model.expected()
    assert set(found) == set(expected)
    for name, want in expected.items():
        assert found[name].shape == want.shape, name
        np.testing.assert_allclose(
            found[name].astype("f8"), want, rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=[pytest.mark.slow] * m.name.endswith("-200")) for m in MODELS], ids=str
)
def test_agrees_with_numpy(model: Model) -> None:
    graph = model.graph()
    found = evaluate(graph, model.sizes(graph), model.inputs)
    names = {t.alias or t.name: t.name for t in graph.tensors if t.role is Role.OUTPUT}
    assert not any(found[n].undecided.any() for n in names.values())
    compare(model, {k: np.asarray(found[n].value) for k, n in names.items()}, model.tolerance or TOLERANCE)


@pytest.mark.parametrize("model", thinned([m for m in MODELS if m.name in COMPILED], 2), ids=str)
def test_compiled_agrees_with_numpy(model: Model) -> None:
    compare(model, model.call(target="cpu"), 1e-3 if model.name == "casts" else 2e-5)


def test_every_kind_is_compiled() -> None:
    assert set(COMPILED) <= {m.name for m in MODELS}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_are_formatted_and_sound(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    assert format_program(parse_text(text)) == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = pf.parse(path)
    for name in program.ops:
        program.op(name).graph()  # every access is in range at all sizes


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_print_programs(path) -> None:  # type: ignore[no-untyped-def]
    run = [sys.executable, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pf.parse(done.stdout).ops


def test_built_programs_are_those_of_their_text() -> None:
    for model in MODELS:
        main = model.program().programs[0]
        assert parse_text(format_program(main)) == main, model.name


def test_the_optimizers_have_the_tensors_they_claim() -> None:
    module = script("optimizer")
    assert len(module.layers(10, 64, 256)) == 50
    shapes = module.encoder(12, 768, 30522, 512)
    assert len(shapes) == 200
    assert 109e6 < sum(int(np.prod(s)) for s in shapes) < 111e6  # BERT-base


def test_gradients_of_the_encoder_agree_with_autograd() -> None:
    torch = pytest.importorskip("torch")
    model = next(m for m in MODELS if m.name.startswith("encoder_backward-"))
    forward = next(m for m in MODELS if m.name.startswith("encoder_train-2"))
    arrays = {n: a.astype("f8") for n, a in forward.inputs.items()}
    program = model.program()
    saved = pf.compile(program, "encoder_layer_train", target="interpret")(**arrays)
    names = [r.name for r in program.op("encoder_layer_train").signature.results]
    have = {**arrays, **dict(zip(names, saved, strict=True))}
    dy = np.random.default_rng(3).standard_normal(saved[0].shape)
    wanted = [p.name for p in program.op("encoder_layer_backward").signature.params]
    found = pf.compile(program, "encoder_layer_backward", target="interpret")(
        **{n: dy if n == "dy" else have[n] for n in wanted}
    )
    leaves = {n: torch.tensor(a, requires_grad=n != "mask") for n, a in arrays.items()}
    encoder_in_torch(torch, **leaves).backward(torch.tensor(dy))
    results = [r.name for r in program.op("encoder_layer_backward").signature.results]
    for name, got in zip(results, found, strict=True):
        np.testing.assert_allclose(got, leaves[name[1:]].grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


def encoder_in_torch(torch, x, mask, w_qkv, b_qkv, w_out, b_out, gamma1, beta1, w_up, b_up, w_down,
                     b_down, gamma2, beta2):  # type: ignore[no-untyped-def]  # fmt: skip
    f, width, heads = torch.nn.functional, x.shape[-1], w_qkv.shape[1]
    packed = f.linear(x, w_qkv.reshape(-1, width), b_qkv.reshape(-1))
    q, k, v = packed.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    context = f.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    attended = f.linear(context.transpose(1, 2).flatten(2), w_out.flatten(1), b_out)
    h = f.layer_norm(attended + x, (width,), gamma1, beta1)
    up = f.gelu(f.linear(h, w_up, b_up))
    return f.layer_norm(f.linear(up, w_down, b_down) + h, (width,), gamma2, beta2)
