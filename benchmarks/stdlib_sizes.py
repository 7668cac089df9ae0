"""A typical size of every operator of the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfuse.frontend_dsl.semantics.signature import Signature

# Operators, then their sizes; axes of a splat are joined by x.
_TABLE = """\
relu relu_backward leaky_relu elu softplus gelu gelu_backward gelu_tanh gelu_tanh_backward: B=1024x3072
silu silu_backward silu_mul dropout random_dropout mse_loss binary_cross_entropy: B=1024x3072
swiglu rms_swiglu: B=2048 H=2816
attention: N=8 B=12 S=128 T=128 D=64 E=64
causal_attention: B=8x12 S=128 T=128 D=64 E=64
rope: B=8x12 S=512 D=32
split_heads: N=8 S=512 H=12 D=64
interest_attention: B=256 T=100 H=36
bias_gelu bias_gelu_backward: B=1024 H=3072
linear linear_gelu linear_backward: B=1024 K=768 N=3072
residual_layer_norm bias_residual_layer_norm bias_dropout_residual_layer_norm residual_chain: B=8x512 H=768
dropout_residual_layer_norm dropout_residual_layer_norm_backward: B=8x512 H=768
layer_norm layer_norm_stats layer_norm_backward rms_norm rms_norm_backward l2_normalize: B=8x512 H=768
batch_norm_relu_train batch_norm_train: N=32 C=64 H=56 W=56
batch_norm_inference batch_norm_backward instance_norm: N=32 C=64 B=56x56
group_norm: N=32 C=64 G=8 B=56x56
embedding_layer_norm: V=30522 P=512 K=2 D=768 B=8 S=512
conv2d: N=8 G=1 C=32 H=28 W=28 K=32 R=3 V=3 P=1
causal_conv1d: B=8 T=512 C=768 K=4
zero_pad2d avg_pool: N=8 C=64 H=56 W=56
max_pool: N=8 C=64 H=56 W=56 K=3 S=2 P=1
unfold: N=8 C=64 H=28 W=28 K=3 P=1
pixel_shuffle: N=8 C=16 H=56 W=56 R=2
interpolate_nearest interpolate_bilinear: N=8 C=64 H=28 W=28 O=56 Q=56
sample_between: N=8 C=64 H=28 W=28 O=56 Q=56 M=27 D=55 L=27 E=55
global_avg_pool: N=32 C=64 B=56x56
softmax_dropout softmax_dropout_backward softmax softmax_backward: B=8x12x128 H=128
log_softmax log_softmax_backward: B=512 H=30522
masked_softmax: N=8 B=12x128 H=128
causal_softmax: B=8x12 S=128 T=128
embedding embedding_backward: V=30522 D=768 B=8x512
embedding_bag: V=30522 D=64 N=4096 L=8
embedding_bag_offsets: V=30522 D=64 E=32768 N=4096
take: N=30522 D=768 B=8x512
gather: B=4096 H=768 K=64
scatter_add: N=20000 E=200000 D=64
segment_sum segment_max segment_mean: E=200000 N=20000 D=64
segment_softmax: E=200000 N=20000
csr_matmul: E=200000 N=20000 M=20000 D=64
edge_sum edge_max: N=20000 E=200000 D=64
one_hot: B=4096 K=128
histogram: B=512x1024 K=256
matmul: B=8 M=128 K=768 N=768
matvec: M=4096 K=4096
transpose: B=8 M=512 N=768
cross_entropy: B=512 C=30522
cross_entropy_backward: N=512 C=30522
adamw sgd_momentum lamb clip_factor: N=768x3072
lstm_cell gru_cell: B=256 H=1024
rnn_layer: T=32 B=32 H=256
lstm_layer: T=32 B=32 H=256
cumsum cumsum_reverse cumprod cummax cummin: B=64 T=4096
sliding_max sliding_sum: B=64 T=4096 K=64
linear_recurrence: T=512 B=8x768
stencil3: N=65536 T=16
topk: B=4096 H=64 K=8
sort argsort: B=1024 H=256
"""


def table() -> dict[str, dict[str, tuple[int, ...]]]:
    """Operator -> size or splat -> its axes (one for a size)."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in _TABLE.splitlines():
        names, _, sizes = line.partition(":")
        values = {n: tuple(map(int, v.split("x"))) for n, v in (pair.split("=") for pair in sizes.split())}
        found |= dict.fromkeys(names.split(), values)
    return found


def arguments(sig: Signature, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays of zeros for the parameters of an operator; those with defaults are left out."""
    kinds = dict(sig.generics)
    given: dict[str, Any] = {}
    for p in sig.params:
        if p.has_default:
            continue
        dtype = {"float": "f4", "number": "f4", "int": "i8"}.get(kinds.get(p.dtype, ""), p.dtype)
        shape = tuple(n for extent in p.extents for n in _axes(extent, sizes))
        given[p.name] = np.zeros(
            shape, {"bool": "?", "i64": "i8", "u64": "u8", "f32": "f4"}.get(dtype, dtype)
        )
        if not shape:
            given[p.name] = given[p.name][()]
    return given


def given(sig: Signature, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size parameters of an operator that the table has."""
    return {p.name: sizes[p.name][0] for p in sig.size_params if p.name in sizes}


def _axes(extent: str, sizes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Of one extent as written: `B...`, `2*H`, `N+1`."""
    if extent.endswith("..."):
        return sizes[extent.removesuffix("...")]
    known = {n: axes[0] for n, axes in sizes.items()}
    return (int(eval(extent, {"__builtins__": {}}, known)),)  # the text of a signature of ours
