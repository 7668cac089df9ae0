"""Options of the backend, and the decompositions and the partition that it asks for.

torch.compile(model, backend="polyfuse", options={"strict": True, "precision": "fused"})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from polyfuse.diagnostics import ArgumentError
from polyfuse.torch.dynamo.lowerings.table import TABLE

PRECISIONS = ("eager", "fused")
RESTS = ("aten", "inductor")


@dataclass(frozen=True)
class Settings:
    """strict      a region that cannot be compiled is an error (PF811), not ATen's
    precision   of floats of 16 bits: "eager" rounds after each operator as eager mode does, "fused" where a
                region ends
    rest        who computes what is in no region: "aten" or "inductor"
    """

    strict: bool = False
    precision: str = "eager"
    rest: str = "aten"

    @staticmethod
    def of(options: Mapping[str, Any] | None, mode: str | None = None) -> Settings:
        """What `options=` says. Raises ArgumentError PF810 for what it cannot say."""
        if mode not in (None, "default"):
            raise _refused(f"the backend 'polyfuse' has no mode {mode!r}", "leave out mode=")
        given = dict(options or {})
        names = [f.name for f in fields(Settings)]
        for n, value in given.items():
            if n not in names:
                raise _refused(f"the backend 'polyfuse' has no option {n!r}", f"options: {', '.join(names)}")
            allowed = {"strict": (True, False), "precision": PRECISIONS, "rest": RESTS}[n]
            if not any(value is v or (isinstance(v, str) and value == v) for v in allowed):
                words = ", ".join(map(repr, allowed))
                raise _refused(f"the option {n!r} cannot be {value!r}", f"one of {words}")
        if given.get("rest") == "inductor" and not _has_inductor():
            raise _refused("this version of PyTorch has no Inductor for parts of graphs", "leave out 'rest'")
        return Settings(**given)


def _has_inductor() -> bool:
    try:
        from torch._inductor.standalone_compile import AOTCompiledArtifact  # noqa: F401
    except ImportError:
        return False
    return True


def _refused(message: str, hint: str) -> ArgumentError:
    return ArgumentError(message, code="PF810", hint=hint)


# --- decompositions ---------------------------------------------------------------------------------------

DECOMPOSED = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_max_pool2d
adaptive_max_pool3d _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
batch_norm_backward _fused_rms_norm _fused_rms_norm_backward _native_batch_norm_legit
_native_batch_norm_legit_functional _native_batch_norm_legit_no_training binary_cross_entropy dist
hann_window huber_loss lcm log_sigmoid_backward log_sigmoid_forward native_batch_norm
native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward rrelu_with_noise_backward tril_indices triu_indices upsample_bilinear2d
upsample_nearest1d upsample_nearest2d upsample_nearest3d
"""
"""What is taken apart besides what torch takes apart everywhere (`core_aten_decompositions`)."""

WHOLE = """
mv dot vdot addmv addr baddbmm linalg_cross bernoulli native_dropout rand_like randn_like uniform normal
exponential _scaled_dot_product_flash_attention_for_cpu convolution_backward _weight_int8pack_mm
rrelu_with_noise grid_sampler_2d im2col col2im
"""
"""What stays whole: products, attention, random numbers."""


EACH = """
abs add addcdiv addcmul ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log
log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh
trunc
"""
"""Operators of optimizers on lists of tensors, `_foreach_add` and so on: each element by itself."""


def of_each(name: str) -> dict[Any, Any]:
    """Decompositions of an operator on lists."""
    import torch

    operator = getattr(torch.ops.aten, name)

    def run(*lists: Any, **more: Any) -> list[Any]:
        count = next(len(x) for x in lists if isinstance(x, list | tuple))
        found = []
        for k in range(count):
            own = [x[k] if isinstance(x, list | tuple) else x for x in lists]
            value = {"value": own.pop()} if name in ("addcdiv", "addcmul") and len(own) == 4 else {}
            found.append(operator(*own, **value, **more))
        return found

    every = _overloads(getattr(torch.ops.aten, f"_foreach_{name}", None))
    lists = [o for o in every if not o._schema.is_mutable and not str(o).endswith(".out")]
    numbers = name not in ("addcdiv", "addcmul")  # a tensor of numbers, one for each
    return {o: run for o in lists if numbers or not str(o).endswith(".Tensor")}


def decompositions() -> dict[Any, Any]:
    """The table for AOTAutograd: what has a lowering is not taken apart, nor is what ATen keeps."""
    return _decompositions(len(TABLE))


@cache
def _decompositions(entries: int) -> dict[Any, Any]:
    """Made once for a table of lowerings with so many entries: it is a long list."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    named = [getattr(aten, n) for n in DECOMPOSED.split() if hasattr(aten, n)]
    found = {**core_aten_decompositions(), **get_decompositions(named)}
    for n in EACH.split():
        found |= of_each(n)
    whole = {o for n in WHOLE.split() for o in _overloads(getattr(aten, n, None))}
    lowered = {r.name for r in TABLE.values()}
    return {o: f for o, f in found.items() if o not in whole and _name(o) not in lowered}


def _name(overload: Any) -> str:
    """The operator that an overload is a form of: aten.addcmul for aten.addcmul_.default."""
    return ".".join(str(overload).split(".")[:2]).removesuffix("_")


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, n) for n in packet.overloads()] if packet is not None else []


# --- forward and backward ---------------------------------------------------------------------------------


def forward_and_backward(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> tuple[Any, Any]:
    """torch's partition by a minimum cut; the backward gets what the forward overwrites as it was."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    forward, backward = min_cut_rematerialization_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **more
    )
    _keep_arguments(forward, num_fwd_outputs)
    return forward, backward


def _keep_arguments(forward: Any, results: int) -> None:
    """Copy what is kept of arguments that are written later: behind `results` results are those kept."""
    import torch

    graph = forward.graph
    written = {n.args[0]: n for n in reversed(graph.nodes) if str(n.target) == "aten.copy_.default"}
    output = next(n for n in graph.nodes if n.op == "output")
    given = list(output.args[0])
    copies: dict[Any, Any] = {}
    for k, n in enumerate(given):
        base = n
        while getattr(getattr(base, "target", None), "is_view", False):
            base = base.args[0]
        if k < results or base not in written:
            continue
        if n not in copies:
            with graph.inserting_before(written[base]):
                copies[n] = graph.call_function(torch.ops.aten.clone.default, (n,))
            copies[n].meta = dict(n.meta)
        given[k] = copies[n]
    output.args = (tuple(given),)
    forward.recompile()
