"""Compiled graphs that torch keeps for later processes, in AOTAutogradCache.

    first process      trace, partition, lower, compile; the graph as text, calls and the report are kept
    later processes    what Dynamo traced has the same key: the text is run, kernels come from our own cache

The key is torch's, of Dynamo's graph, its arguments, and torch's versions and settings; beside it stand the
version and the files of polyfuse (`registration.mark_caches`) and the options of the backend.  The backward
is compiled together with the forward, since both are kept as one.

Importing this module fails where torch keeps only what Inductor made (`BundledOutputCodeLoadable` takes all).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch._functorch.config as functorch_config
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.aot_autograd_result import BundledOutputCodeLoadable  # noqa: F401
from torch._functorch._aot_autograd.autograd_cache import (
    BypassAOTAutogradCache,
    should_use_local_autograd_cache,
)
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode

from polyfuse.torch.dynamo.report import COUNTERS, GRAPHS, GraphReport
from polyfuse.torch.dynamo.reproducer import Text

Compiler: TypeAlias = Callable[..., Any]
_CONFIG = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
"""Torch keeps what we give it, and not a key of what Inductor has kept."""

if not all(hasattr(functorch_config, name) for name in _CONFIG):
    raise ImportError("this torch keeps only what Inductor made")

_tensors: ContextVar[tuple[Any, ...]] = ContextVar("tensors", default=())
"""References to the parameters of the model that is compiled now."""


@dataclass(frozen=True)
class _Kept:
    """What is kept of a graph: its text, constants by name, the report with the calls of regions."""

    text: Text
    constants: dict[str, Any]
    report: GraphReport


class CompiledGraph(OutputCode):  # type: ignore[misc]
    """What computes a graph; it takes a list of arguments, and empties it."""

    def __init__(self, run: Callable[[list[Any]], Any], module: Any, text: Text, told: GraphReport) -> None:
        super().__init__()
        self._boxed_call = True
        self.run: Any = run
        self.parts: Any = (module, text, told)
        self.kept = b""

    def __call__(self, inputs: Any) -> Any:
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Become what can be kept. Raises BypassAOTAutogradCache where that cannot be."""
        module, text, told = self.parts
        if told.failures:
            raise BypassAOTAutogradCache("a region could not be compiled, and is to be tried again")
        try:
            kept = _Kept(text, _constants(module), replace(told, tensors=()))
            self.kept = pickle.dumps(kept)
        except Exception as problem:  # the graph can be run, if not kept
            raise BypassAOTAutogradCache(f"the graph cannot be kept: {problem}") from problem
        self.run = self.parts = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """In a later process: run the text, and load kernels. Raises PolyfuseError."""
        if self.run is not None:
            return
        start = time.perf_counter()
        kept: _Kept = pickle.loads(self.kept)
        told = kept.report
        for call in told.calls:
            if call.is_known:
                call.compile()
        self.run = partial(kept.text.function(), SimpleNamespace(**kept.constants))
        told.kept, told.tensors, told.seconds = True, _tensors.get(), time.perf_counter() - start
        counters[COUNTERS]["kept"] += 1
        counters[COUNTERS]["regions"] += len(told.calls)
        GRAPHS.append(told)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def _constants(module: Any) -> dict[str, Any]:
    """Tensors that the graph has as attributes. Raises LookupError for what else it may have."""
    found = {n.target: getattr(module, n.target, None) for n in module.graph.nodes if n.op == "get_attr"}
    for name, value in found.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise LookupError(f"{name} is no tensor")
    return found


def _compiler(compiler: Compiler) -> Compiler:
    """Of ours, one whose graphs torch keeps."""
    made: Compiler = SerializableAOTDispatchCompiler(CompiledGraph, partial(compiler, wrap=CompiledGraph))
    return made


@contextmanager
def keeping(told: str, tensors: tuple[Any, ...]) -> Iterator[Callable[[Compiler], Compiler]]:
    """While a model is compiled: gives what makes compilers from ours, whose graphs torch keeps.  `told`:
    the options, for the key."""
    if not should_use_local_autograd_cache():
        yield lambda compiler: compiler
        return
    tag = f"{torch.compiler.config.cache_key_tag} polyfuse backend {told}"
    token = _tensors.set(tensors)
    try:
        with functorch_config.patch(_CONFIG), torch.compiler.config.patch(cache_key_tag=tag):
            yield _compiler
    finally:
        _tensors.reset(token)
