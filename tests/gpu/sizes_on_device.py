"""Operators with open sizes on a device: one compiled function at many sizes against the reference.

    found = check_sizes_on_device("stdlib softmax", "cuda")

Sizes are drawn, 0, 1 and primes among them; arrays that are only read lie densely, turned or with steps, and
come from torch, PyCUDA or NumPy in turn.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from kinds import KINDS, kind_call
from on_device import Result, is_wrong
from open_calls import DRAWN, DrawnCall, drawn_call, drawn_choice, laid_out, random_sizes
from programs import random_program

import polyfuse as pf
from benchmarks.gpu_arrays import to_device, to_host
from polyfuse.diagnostics import DeviceError, PolyfuseError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.tensor_graph import TensorGraph

Array = np.ndarray[Any, np.dtype[Any]]
OPERATORS = (
    "softmax", "layer_norm", "layer_norm_backward", "rms_norm", "masked_softmax", "causal_softmax",
    "cross_entropy", "cross_entropy_backward", "lstm_cell", "gru_cell", "attention", "causal_attention",
    "gelu", "cumsum", "batch_norm_train", "linear", "conv2d", "max_pool", "segment_softmax", "random_dropout",
    "adamw", "topk", "sort", "embedding_bag", "rope", "transpose", "matmul", "group_norm",
)  # fmt: skip
LONG = (*DRAWN, 97, 127, 128, 129, 251, 256, 1000, 1009, 4096, 4099, 30_011)
FEW, SHORT = 4, (1, 2, 3, 4, 5, 8)
"""Operators with more sizes than a few are called at short ones."""
CALLS, KIND_CALLS = 14, 8
MOST_INSTANCES = 300_000
HOW = ("", "", "turned", "", "stepped")


@dataclass
class Sizes:
    """What calls of one operator at many sizes have shown.

    us: host microseconds of calls at sizes not seen before that compiled nothing; short_us: of those with
    tensors of torch that were checked and launched in C.  variants: how many there were in the end.
    """

    name: str
    compared: int = 0
    ratio: float = 0.0
    variants: int = 0
    us: list[float] = field(default_factory=list)
    short_us: list[float] = field(default_factory=list)
    wrong: list[Result] = field(default_factory=list)

    @property
    def median_us(self) -> float | None:
        """Of the calls that compiled nothing."""
        return round(median(self.us), 1) if self.us else None

    @property
    def median_short_us(self) -> float | None:
        """Of those in C."""
        return round(median(self.short_us), 1) if self.short_us else None


def sizes_items(first: int, seeds: int) -> list[str]:
    """What can be checked: operators of the library, so many programs of each kind and of the language."""
    known = [op for op in OPERATORS if op in pf.stdlib.ops]
    return [
        *(f"stdlib {op}" for op in known),
        *(f"{kind} {seed}" for seed in range(first, first + seeds) for kind in (*KINDS, "programs")),
    ]


def check_sizes_on_device(
    item: str, target: str = "cuda", failed: Callable[[Result], None] = lambda result: None
) -> Sizes:
    """Calls of an item at many sizes; `failed` is told of what is wrong at once."""
    kind, _, name = item.partition(" ")
    found = Sizes(item)
    f, graph, text = _compiled(kind, name, target)
    seed = int(name) if name.isdigit() else 0
    drawn, calls = (LONG, CALLS) if kind == "stdlib" else (DRAWN, KIND_CALLS)
    drawn = drawn if len(graph.sizes) <= FEW else SHORT
    many = list(random_sizes(graph, calls, seed, tries=40 * calls, drawn=drawn, most=MOST_INSTANCES))
    for k, sizes in enumerate(many):
        call = drawn_call(f, graph, sizes, seed + k)
        if call is None:
            continue
        how, arrays = (
            HOW[(5 * k // len(many) + seed) % len(HOW)],
            ("torch", "torch", "pycuda", "numpy")[k % 4],
        )
        result = Result(item, f"{sizes}, {how or 'dense'}, {arrays}", None, "")
        try:
            messages = _one(f, call, found, arrays if target == "cuda" else "numpy", how)
        except PolyfuseError as error:
            if error.diagnostics[0].code == "PF406":  # shapes leave a size open
                continue
            messages = [f"{type(error).__name__}: {error}"[:600]]
            if isinstance(error, DeviceError):  # this process can do nothing on the device any more
                failed(_told(f, call, result, messages, text))
                raise
        if messages:
            found.wrong.append(_told(f, call, result, messages, text))
            failed(found.wrong[-1])
    found.variants = len(f.variants)
    return found


def _compiled(kind: str, name: str, target: str) -> tuple[pf.Compiled, TensorGraph, str]:
    if kind == "stdlib":
        op = pf.stdlib.op(name)
        return pf.compile(pf.stdlib, name, target=target, sizes="auto"), op.graph(), name
    if kind == "programs":
        p = random_program(int(name))
        graph, text = instantiate(pf.parse(p.text).programs, p.op), p.text
    else:
        call = kind_call(kind, int(name))
        graph, text = call.graph, call.text
    return pf.compile(text, target=target, **drawn_choice(graph, int(name))), graph, text


def _one(f: pf.Compiled, call: DrawnCall, found: Sizes, arrays: str, how: str) -> list[str]:
    """Messages of what is wrong with one call."""
    before, in_c = len(f.variants), _in_c(f)
    given = call.arguments(partial(_lent, arrays=arrays, how=how), partial(_lent, arrays=arrays))
    start = time.perf_counter()
    made = call.made(f, given)
    us = 1e6 * (time.perf_counter() - start)
    if len(f.variants) == before:  # it compiled nothing
        found.us.append(us)
        found.short_us += [us] if in_c == [True] else []
    found.compared += 1
    agreements = call.judged({n: _back(a) for n, a in made.items()})
    found.ratio = max([found.ratio, *(a.worst_ratio for a in agreements.values())])
    return [f"{n}: {a.message}" for n, a in agreements.items() if is_wrong(a)]


def _in_c(f: Any) -> list[bool]:
    """For each call from now on: is it checked and launched in C?"""
    short, found = type(f)._in_short, []

    def noted(given: tuple[object, ...], out: object) -> Any:
        results = short(f, given, out)
        found.append(results is not NotImplemented)
        return results

    f._in_short = noted
    return found


def _lent(a: Array, arrays: str, how: str = "") -> Any:
    """An array in a library's memory on the device, laid out somehow."""
    if arrays == "numpy":
        return laid_out(a, how).copy(order="K") if how != "stepped" else laid_out(a, how)
    if arrays == "pycuda" and (lent := _pycuda(laid_out(a, ""))) is not None:
        return lent
    if how == "turned":
        return to_device(np.ascontiguousarray(a.T), "cuda").permute(*reversed(range(a.ndim)))
    if how == "stepped":
        wide = laid_out(a, how)
        return to_device(np.ascontiguousarray(wide.base), "cuda")[..., 1::2]
    return to_device(np.array(a), "cuda")


def _pycuda(a: Array) -> Any:
    """An array of PyCUDA; None where there is none of this type."""
    try:
        gpuarray = importlib.import_module("pycuda.gpuarray")
        importlib.import_module("pycuda.autoprimaryctx")
    except Exception:  # it is not there, or it does not work with this driver
        return None
    return gpuarray.to_gpu(a) if a.dtype.kind in "fiu" and a.dtype.isbuiltin == 1 and a.size else None


def _back(a: Any) -> Any:
    return a.get() if hasattr(a, "get") and not isinstance(a, np.ndarray) else to_host(a)


def _told(f: pf.Compiled, call: DrawnCall, result: Result, messages: list[str], text: str) -> Result:
    try:
        told = f.explain(**call.inputs, **call.given)
        source = f.built(**call.inputs, **call.given).executable.code.source
    except (PolyfuseError, AttributeError) as error:
        told, source = "", f"// no source: {error}"
    about = "\n".join([f"{result.name} at {result.how}", *messages, text, told])
    lines = [f"// {line}" for line in about.splitlines()]
    message = "; ".join(messages)[:600]
    return Result(result.name, result.how, None, message, "\n".join([*lines, source, ""]))
