"""Random programs of ATen operators: compiled ones give what eager gives."""

from __future__ import annotations

import pytest
import torch
from dynamo_programs import Program, program

WIDE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def agrees(made: Program, precision: str, dynamic: bool | None = None) -> None:
    """Results of one program: values within rounding, dtypes, shapes and strides the same."""
    torch._dynamo.reset()
    wanted = made(*made.arguments)
    options = {"precision": precision, "strict": True}
    found = torch.compile(made, backend="polyfuse", options=options, dynamic=dynamic)(*made.arguments)
    dtypes = {t.dtype for t in (*made.arguments, *wanted)}
    dtypes |= {torch.bfloat16} if "to" in dict(made.steps) else set()
    wide = max(WIDE.get(d, 0.0) for d in dtypes)
    for want, got in zip(wanted, found, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), made.text
        strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (want, got)]
        assert want.numel() < 2 or strides[0] == strides[1], made.text
        if want.dtype.is_floating_point:
            large = float(want.double().nan_to_num(0, 0, 0).abs().amax()) if want.numel() else 1.0
            close = {"rtol": wide, "atol": wide * max(large, 1.0), "equal_nan": True}
            torch.testing.assert_close(
                got.double(), want.double(), **close, msg=lambda m: f"{made.text}: {m}"
            )
        elif wide < 1e-2:  # rounding may decide what is larger
            assert torch.equal(got, want), made.text


@pytest.mark.parametrize("seed", range(6))
def test_a_random_program(seed: int) -> None:
    agrees(program(seed, 12), "eager" if seed % 2 else "fused")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["eager", "fused"])
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_programs(seed: int, precision: str) -> None:
    agrees(program(seed), precision, dynamic=True if seed % 3 == 0 else None)
