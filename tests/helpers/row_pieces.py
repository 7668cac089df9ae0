"""Programs over the pieces of rows: calls for the emulator, and their source for a usual GPU."""

from __future__ import annotations

import numpy as np
from equivalence import fixed_graph_of
from targets import Call

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.decisions import Decision
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching


def call_of(name: str, text: str, special: tuple[str, ...] = (), **sizes: int) -> Call:
    """A program, of inputs with NaN and infinity in some places of those that are `special`."""
    graph = instantiate(parse_text(text), "f")
    used = {n: v for n, v in sizes.items() if n in graph.sizes}
    rng = np.random.default_rng(len(text) + sum(sizes.values()))
    inputs = {}
    for t in (graph.tensor(n) for n in graph.inputs):
        array = rng.standard_normal([evaluate(e, used) for e in t.shape])
        if array.size > 40 and t.name in special:
            array.flat[array.size // 3], array.flat[array.size // 2] = np.nan, -np.inf
        inputs[t.name] = array.astype(t.dtype.numpy)
    return Call(f"{name} {used}", text, graph, used, inputs)


def source_of(text: str, **sizes: int) -> tuple[str, list[tuple[int, int]], list[Decision]]:
    """The functions of a program, the threads of their blocks, and what was decided."""
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    kernels, decisions = form_kernels(scheduled, GpuTarget(), Stitching())
    code = emit_cuda(Request(kernels))
    functions = code.source[code.source.index('extern "C"') :]
    return functions, [x.threads for x in code.plan.launches], list(decisions)
