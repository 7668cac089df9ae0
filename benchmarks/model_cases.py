"""The models whose kernels are counted: operators of examples/models at usual sizes and at small ones."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

import polyfuse as pf
from benchmarks import model_functions as functions
from polyfuse.ir import dtypes as dt
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "models"
Array = npt.NDArray[Any]
Function = Callable[..., tuple[Any, ...]]
STEP = 3


@dataclass(frozen=True, eq=False)
class ModelCase:
    """One operator of a model.

    `program` and `small_program` differ where shapes are part of the program; `positive` names inputs (or
    the letters their names begin with) that must be, `below` is the bound of integer inputs.
    """

    name: str
    op: str
    program: Callable[[], pf.Program]
    function: Function
    sizes: Mapping[str, int] = field(default_factory=dict)
    small: Mapping[str, int] = field(default_factory=dict)
    small_program: Callable[[], pf.Program] | None = None
    positive: tuple[str, ...] = ()
    below: int = 3

    def __str__(self) -> str:
        return self.name

    @cached_property
    def graph(self) -> TensorGraph:
        """Its tensor graph, sizes open."""
        return self.program().op(self.op).graph()

    @cached_property
    def small_graph(self) -> TensorGraph:
        """That of the program for small sizes."""
        return (self.small_program or self.program)().op(self.op).graph()

    def parameters(self, graph: TensorGraph) -> list[Tensor]:
        """Inputs that rivals are given: those without a default."""
        found = [graph.tensor(n) for n in graph.inputs]
        return [t for t in found if t.default is None and t.name != "step"]

    def outcomes(self, graph: TensorGraph) -> list[str]:
        """Tensors in the order in which functions return them."""
        after = {t.alias: t.name for t in graph.tensors if t.alias}
        updated = [n for n in graph.inputs if graph.tensor(n).role is Role.INOUT]
        return [*graph.outputs, *(after[n] for n in updated)]

    def small_inputs(self) -> dict[str, Array]:
        """Arrays at the small sizes, the same in every process."""
        rng, graph = np.random.default_rng(zlib.crc32(self.name.encode())), self.small_graph
        found: dict[str, Array] = {}
        for t in self.parameters(graph):
            shape = tuple(evaluate(e, self.small) for e in t.shape)
            if t.dtype == dt.BOOL:
                found[t.name] = np.asarray(rng.random(shape) < 0.6)
            elif not t.dtype.is_float:
                found[t.name] = rng.integers(0, self.below, shape).astype(t.dtype.numpy)
            elif t.name.rstrip("0123456789") in self.positive:
                found[t.name] = rng.uniform(0.2, 1.8, shape).astype("f4")
            else:
                found[t.name] = rng.standard_normal(shape).astype("f4")
        return found


def _file(name: str) -> Callable[[], pf.Program]:
    return cache(lambda: pf.parse(FOLDER / f"{name}.pf"))


@cache
def script(name: str) -> ModuleType:
    """A Python file of the examples, which are no package."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _files() -> list[ModelCase]:
    bert = {"N": 8, "S": 128, "E": 768, "A": 12, "D": 64, "M": 3072}
    few = {"N": 2, "S": 3, "E": 5, "A": 2, "D": 3, "M": 7}
    encoder, dien, spread = _file("transformer_encoder"), _file("dien"), ("rstd",)
    return [
        ModelCase("encoder", "encoder_layer", encoder, functions.encoder, bert, few),
        ModelCase("encoder_train", "encoder_layer_train", encoder, functions.encoder_train, bert, few),
        ModelCase(
            "encoder_backward", "encoder_layer_backward", encoder, functions.encoder_backward, bert, few,
            positive=spread,
        ),
        ModelCase(
            "lstm", "lstm", _file("lstm"), functions.lstm,
            {"T": 16, "B": 64, "I": 256, "H": 256}, {"T": 4, "B": 3, "I": 2, "H": 3},
        ),
        ModelCase(
            "dien_attention", "dien_attention", dien, functions.dien_attention,
            {"B": 256, "T": 100, "H": 36}, {"B": 3, "T": 5, "H": 4},
        ),
        ModelCase(
            "dien", "dien", dien, functions.dien,
            {"B": 256, "T": 16, "H": 36, "I": 36}, {"B": 3, "T": 5, "H": 4, "I": 3},
        ),
        ModelCase(
            "yolo_loss", "yolo_loss", _file("yolo_loss"), functions.yolo,
            {"B": 16, "A": 3, "H": 52, "W": 52, "C": 80}, {"B": 2, "A": 3, "H": 4, "W": 5, "C": 7},
            positive=("box", "anchor"), below=7,
        ),
    ]  # fmt: skip


def _optimizers() -> list[ModelCase]:
    found = []
    for kind, function in (("adamw", functions.adamw), ("lamb", functions.lamb)):
        shapes = script("optimizer")
        for count, large, small in (
            (50, shapes.layers(10, 64, 256), shapes.layers(10, 3, 5)),
            (200, shapes.encoder(12, 768, 30522, 512), shapes.encoder(12, 2, 5, 3)),
        ):
            make = getattr(script("optimizer"), kind)
            usual, little = cache(lambda m=make, s=large: m(s)), cache(lambda m=make, s=small: m(s))
            found.append(
                ModelCase(
                    f"{kind}_{count}", f"{kind}_all", usual, function, small_program=little, positive=("v",)
                )
            )
    return found


def _many_operators() -> list[ModelCase]:
    make = script("many_operators")
    rows = [(3, 5), (1, 1), (6, 4), (3, 5), (2, 9), (3, 5), (5, 2)]
    bits = [(11, 1), (3, 5), (2, 3, 4)]
    smaller: dict[str, Callable[[], pf.Program]] = {
        "forty": lambda: make.forty(20, 5, 7),
        "branches": lambda: make.branches(rows),
        "losses": lambda: make.losses(bits),
        "added": lambda: make.added(3, 4, 9),
        "casts": lambda: make.casts(7, 5, 3),
    }
    return [
        ModelCase(
            name, name, cache(getattr(make, name)), getattr(functions, name), small_program=cache(small)
        )
        for name, small in smaller.items()
    ]


@cache
def cases() -> tuple[ModelCase, ...]:
    """All of them."""
    return (*_files(), *_optimizers(), *_many_operators())


def case(name: str) -> ModelCase:
    """By name. Raises KeyError."""
    known = {c.name: c for c in cases()}
    if name not in known:
        raise KeyError(f"there is no model '{name}'; there are {', '.join(known)}")
    return known[name]
