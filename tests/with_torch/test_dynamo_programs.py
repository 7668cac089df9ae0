"""Random programs of ATen operators: compiled ones give what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from dynamo_programs import Program, program

WIDE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def agrees(made: Program, precision: str, dynamic: bool | None = None) -> None:
    """Results of one program: values within rounding, dtypes, shapes and strides the same."""
    same(made, made, made.arguments, precision, dynamic)


def gradients_agree(made: Program, precision: str = "eager", dynamic: bool | None = None) -> None:
    """Gradients of a weighted sum of all results of floats are those of eager."""

    def total(*given: torch.Tensor) -> list[torch.Tensor]:
        results = [y for y in made(*given) if y.requires_grad]
        weights = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos() for y in results]
        return [(y * w).sum() for y, w in zip(results, weights, strict=True)]

    def gradients(run: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
        def found(*given: torch.Tensor) -> list[torch.Tensor]:
            own = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
            sums = run(*own)
            if not sums:
                return []
            every = torch.autograd.grad(sums, [x for x in own if x.requires_grad], allow_unused=True)
            return [x for x in every if x is not None]

        return found

    same(made, total, made.arguments, precision, dynamic, gradients)


def same(
    made: Program,
    f: Callable[..., list[torch.Tensor]],
    given: Sequence[torch.Tensor],
    precision: str,
    dynamic: bool | None = None,
    of: Callable[..., Callable[..., list[torch.Tensor]]] = lambda run: run,
) -> None:
    """Eager and compiled give the same: of `f`, or what `of` makes of that."""
    torch._dynamo.reset()
    wanted = of(f)(*given)
    options = {"precision": precision, "strict": True}
    found = of(torch.compile(f, backend="polyfuse", options=options, dynamic=dynamic))(*given)
    dtypes = {t.dtype for t in (*given, *wanted)}
    dtypes |= {torch.bfloat16} if "to" in dict(made.steps) else set()
    wide = max(WIDE.get(d, 0.0) for d in dtypes)
    for want, got in zip(wanted, found, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), made.text
        strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (want, got)]
        assert of(f) is not f or want.numel() < 2 or strides[0] == strides[1], made.text
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


@pytest.mark.parametrize("seed", [2, 7])
def test_gradients_of_a_random_program(seed: int) -> None:
    gradients_agree(program(seed, 12))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_gradients_of_many_random_programs(seed: int) -> None:
    gradients_agree(program(seed), dynamic=True if seed % 3 == 0 else None)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["eager", "fused"])
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_programs(seed: int, precision: str) -> None:
    agrees(program(seed), precision, dynamic=True if seed % 3 == 0 else None)
