"""Passes of all targets, which come first: kernel IR -> loop IR with accumulators in scalars."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.analysis.guards import simplify_guards
from polyfuse.codegen.passes import Loops, Pass, PassContext, on_block
from polyfuse.codegen.transforms.data_ranges import data_ranges
from polyfuse.codegen.transforms.lower_statements import forward_stores, lower_statements
from polyfuse.codegen.transforms.nan_free_extremes import nan_free_extremes
from polyfuse.codegen.transforms.outline import block_tree
from polyfuse.codegen.transforms.scalar_replacement import accumulators_in_scalars
from polyfuse.codegen.transforms.unswitch import skip_empty_loops
from polyfuse.ir.schedule_tree import sequential
from polyfuse.poly.ast_build import loops_of


def _lowered(x: Loops, cx: PassContext) -> Loops:
    kernel = x.kernel
    return replace(x, block=lower_statements(kernel, loops_of(kernel.graph, sequential(block_tree(kernel)))))


COMMON = (
    Pass("lower-statements", "instances of statements become stores and updates of buffers", _lowered, False),
    Pass(
        "simplify-guards",
        "conditions that the loops around decide are resolved",
        on_block(lambda k, b, cx: simplify_guards(b)),
    ),
    Pass(
        "data-ranges",
        "loops have the bounds that data gives, in place of conditions",
        on_block(lambda k, b, cx: data_ranges(k, b, cx.numbers)),
    ),
    Pass(
        "nan-free-extremes",
        "extremes whose results are NaN anyway need not look for NaN",
        on_block(lambda k, b, cx: nan_free_extremes(k, b)),
    ),
    Pass(
        "forward-stores",
        "what is stored and read again in one iteration is a scalar",
        on_block(lambda k, b, cx: forward_stores(k, b, cx.numbers)),
        False,
    ),
    Pass(
        "skip-empty-loops",
        "loops that add nothing, as a condition says before them, are passed by",
        on_block(lambda k, b, cx: skip_empty_loops(k, b)),
    ),
    Pass(
        "scalar-replacement:accumulators",
        "updates of one element over inner loops go through a scalar",
        on_block(lambda k, b, cx: accumulators_in_scalars(k, b, cx.numbers)),
        False,
    ),
)
