"""Functions that call PyTorch as people do, for `benchmarks.torch_operators`: activations, norms, pools,
reductions, scans and losses, with arguments at a usual size and at one inside the cache (256 KB)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional

PLACES = ("usual", "cache")
Shape: TypeAlias = tuple[int, ...]
Made: TypeAlias = Callable[[Shape], list[Any]]

# --- arguments --------------------------------------------------------------------------------------------


def _one(shape: Shape) -> list[Any]:
    return [torch.randn(shape)]


def _two(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randn(shape)]


def _three(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def _with_slopes(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.rand(shape[1])]


def _with_last(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])]


def _with_channels(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])]


def _near_one(shape: Shape) -> list[Any]:
    return [1 + 0.01 * torch.randn(shape)]


def _labels(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randint(0, shape[1], (shape[0],))]


def _logs_of_pictures(shape: Shape) -> list[Any]:
    return [torch.randn(shape).log_softmax(1), torch.randint(0, shape[1], (shape[0], *shape[2:]))]


def _truths(shape: Shape) -> list[Any]:
    return [torch.randn(shape), (torch.rand(shape) < 0.5).float()]


def _parts(shape: Shape) -> list[Any]:
    return [torch.rand(shape) * 0.98 + 0.01, (torch.rand(shape) < 0.5).float()]


def _distributions(shape: Shape) -> list[Any]:
    return [torch.randn(shape).log_softmax(-1), torch.randn(shape).softmax(-1)]


def _signs(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.randn(shape).sign()]


def _ranked(shape: Shape) -> list[Any]:
    return [*_two(shape), torch.randn(shape).sign()]


def _counts(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.poisson(torch.full(shape, 3.0))]


def _with_variances(shape: Shape) -> list[Any]:
    return [*_two(shape), torch.rand(shape) + 0.1]


def _masked(shape: Shape) -> list[Any]:
    return [torch.randn(shape), torch.rand(shape) < 0.5]


# --- functions that are no single call --------------------------------------------------------------------


def _rms_norm(x: Any, w: Any, _: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def _sums_before(x: Any) -> Any:
    zeros = torch.zeros_like(x.select(1, 0).unsqueeze(1))
    return torch.cumsum(torch.cat((zeros, x), 1), 1)[:, :-1]


def _cosines(a: Any, b: Any) -> Any:
    return (1 - functional.cosine_similarity(a, b, 1)).mean()


def _gaussian(a: Any, b: Any, variance: Any) -> Any:
    variance = variance.clamp(min=1e-6)  # torch's own function reads data to check them
    return 0.5 * (variance.log() + (a - b) ** 2 / variance).mean()


ROWS, SMALL_ROWS = (256, 8192), (128, 512)
PICTURES, SMALL_PICTURES = (8, 32, 64, 64), (2, 16, 44, 44)
BOXES, SMALL_BOXES = (4, 16, 24, 32, 32), (2, 4, 16, 22, 22)
SERIES, SMALL_SERIES = (16, 64, 2048), (4, 16, 1024)
MATRICES, SMALL_MATRICES = (16, 256, 512), (4, 64, 256)
PAIRS, SMALL_PAIRS = (256, 4096), (64, 1024)
CLASSES, SMALL_CLASSES = (4096, 100), (1024, 64)


@dataclass(frozen=True)
class Function:
    """What is called, how its arguments are made, and the sizes."""

    function: Callable[..., Any]
    made: Made
    usual: Shape
    cache: Shape

    def inputs(self, place: str) -> list[Any]:
        """The arguments at a size."""
        return self.made(self.usual if place == "usual" else self.cache)


def _of(
    function: Callable[..., Any], made: Made = _one, sizes: tuple[Shape, Shape] = (ROWS, SMALL_ROWS)
) -> Function:
    return Function(function, made, *sizes)


_PICTURES, _BOXES, _SERIES = (PICTURES, SMALL_PICTURES), (BOXES, SMALL_BOXES), (SERIES, SMALL_SERIES)
_MATRICES, _PAIRS, _CLASSES = (MATRICES, SMALL_MATRICES), (PAIRS, SMALL_PAIRS), (CLASSES, SMALL_CLASSES)

FUNCTIONS: dict[str, Function] = {
    "relu": _of(functional.relu),
    "leaky relu": _of(lambda x: functional.leaky_relu(x, 0.02)),
    "prelu": _of(functional.prelu, _with_slopes, _PICTURES),
    "elu": _of(functional.elu),
    "selu": _of(functional.selu),
    "gelu": _of(functional.gelu),
    "gelu by tanh": _of(lambda x: functional.gelu(x, approximate="tanh")),
    "silu": _of(functional.silu),
    "mish": _of(functional.mish),
    "hardswish": _of(functional.hardswish),
    "sigmoid": _of(torch.sigmoid),
    "tanh": _of(torch.tanh),
    "softplus": _of(functional.softplus),
    "softsign": _of(functional.softsign),
    "log sigmoid": _of(functional.logsigmoid),
    "glu": _of(functional.glu),
    "softmax": _of(lambda x: functional.softmax(x, 1)),
    "log softmax": _of(lambda x: functional.log_softmax(x, 1)),
    "softmax of columns": _of(lambda x: functional.softmax(x, 1), _one, _MATRICES),
    "layer norm": _of(lambda x, w, b: functional.layer_norm(x, w.shape, w, b), _with_last),
    "rms norm": _of(_rms_norm, _with_last),
    "batch norm": _of(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True), _with_channels, _PICTURES
    ),
    "group norm": _of(lambda x, w, b: functional.group_norm(x, 8, w, b), _with_channels, _PICTURES),
    "instance norm": _of(functional.instance_norm, _one, _PICTURES),
    "l1 norm": _of(lambda x: x / x.abs().sum(1, keepdim=True)),
    "l2 norm": _of(functional.normalize),
    "frobenius norm": _of(lambda x: x / torch.linalg.vector_norm(x), _one, _PICTURES),
    "max pool 1d": _of(lambda x: functional.max_pool1d(x, 4, 4), _one, _SERIES),
    "max pool 2d": _of(lambda x: functional.max_pool2d(x, 2), _one, _PICTURES),
    "max pool 2d, overlapping": _of(lambda x: functional.max_pool2d(x, 3, 2, 1), _one, _PICTURES),
    "max pool 3d": _of(lambda x: functional.max_pool3d(x, 2), _one, _BOXES),
    "avg pool 1d": _of(lambda x: functional.avg_pool1d(x, 4, 2), _one, _SERIES),
    "avg pool 2d": _of(lambda x: functional.avg_pool2d(x, 3), _one, _PICTURES),
    "avg pool 3d": _of(lambda x: functional.avg_pool3d(x, 2), _one, _BOXES),
    "global avg pool": _of(lambda x: functional.adaptive_avg_pool2d(x, 1), _one, _PICTURES),
    "sum of rows": _of(lambda x: x.sum(-1)),
    "sum of columns": _of(lambda x: x.sum(1), _one, _MATRICES),
    "mean of columns": _of(lambda x: x.mean(1), _one, _MATRICES),
    "max of columns": _of(lambda x: x.max(1)[0], _one, _MATRICES),
    "min of rows": _of(lambda x: x.min(-1)[0]),
    "argmax of columns": _of(lambda x: x.argmax(1), _one, _MATRICES),
    "argmin of rows": _of(lambda x: x.argmin(-1)),
    "product of rows": _of(lambda x: x.prod(-1), _near_one),
    "variance of rows": _of(lambda x: x.var(-1)),
    "logsumexp of rows": _of(lambda x: x.logsumexp(-1)),
    "sum": _of(torch.sum),
    "cumsum": _of(lambda x: x.cumsum(1)),
    "cumsum of columns": _of(lambda x: x.cumsum(1), _one, _MATRICES),
    "cumprod": _of(lambda x: x.cumprod(1), _near_one),
    "reverse cumsum": _of(lambda x: x.flip(1).cumsum(1).flip(1)),
    "exclusive cumsum": _of(_sums_before),
    "masked cumsum": _of(lambda x, m: (x * m).cumsum(1), _masked),
    "mse loss": _of(functional.mse_loss, _two, _PAIRS),
    "smooth l1 loss": _of(functional.smooth_l1_loss, _two, _PAIRS),
    "huber loss": _of(functional.huber_loss, _two, _PAIRS),
    "cross entropy loss": _of(functional.cross_entropy, _labels, _CLASSES),
    "nll loss": _of(functional.nll_loss, _logs_of_pictures, _PICTURES),
    "bce with logits loss": _of(functional.binary_cross_entropy_with_logits, _truths, _PAIRS),
    "bce loss": _of(functional.binary_cross_entropy, _parts, _PAIRS),
    "kl div loss": _of(lambda a, b: functional.kl_div(a, b, reduction="batchmean"), _distributions, _PAIRS),
    "hinge loss": _of(lambda a, b: (1 - a * b).clamp(min=0).mean(), _signs, _PAIRS),
    "cosine loss": _of(_cosines, _two, _PAIRS),
    "triplet loss": _of(functional.triplet_margin_loss, _three, _PAIRS),
    "margin ranking loss": _of(functional.margin_ranking_loss, _ranked, _PAIRS),
    "poisson loss": _of(functional.poisson_nll_loss, _counts, _PAIRS),
    "gaussian loss": _of(_gaussian, _with_variances, _PAIRS),
}
