"""Kernel IR -> loop IR.

instances     Exec nodes become stores and updates of buffers
accumulators  updates of one element over inner loops go through a scalar
windows       `i % extent` becomes `i - start` where a strip of a loop is the window
collisions    a vector loop whose updates may meet in one element runs in order
invariants    functions of what a loop does not change are computed before it
fetches       the next row's inputs are asked for before the last phase of a row
tiles, jams   sums of products stay in vector registers; a row of totals gets several terms at a time
scalars       are declared in the smallest block that holds all their uses
tasks         top-level loops become functions: chunks of a parallel nest, one serial piece, or owners' shares
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from polyfuse.codegen.accumulators import promoted
from polyfuse.codegen.collisions import order_collisions
from polyfuse.codegen.hoist import hoist
from polyfuse.codegen.instances import bodies, forwarded
from polyfuse.codegen.jam import jam
from polyfuse.codegen.nan_care import spare_nan
from polyfuse.codegen.owners import owned
from polyfuse.codegen.prefetch import fetch_ahead
from polyfuse.codegen.register_tiles import register_tiles
from polyfuse.codegen.tasks import Task, tasks_of
from polyfuse.codegen.windows import simplify_windows
from polyfuse.ir.kernel import Kernel, tree
from polyfuse.ir.loop_ir import Block
from polyfuse.ir.schedule_tree import sequential
from polyfuse.poly.ast_build import loops_of


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    kernel: Kernel
    tasks: tuple[Task, ...]


def lower(kernel: Kernel) -> LoweredKernel:
    """The kernel's functions as loop IR."""
    numbers = itertools.count()
    block = accumulated(kernel, numbers)
    block = simplify_windows(block, {})
    block = order_collisions(kernel, block)
    block = hoist(kernel, block, numbers)
    block = fetch_ahead(kernel, block)
    block = jam(register_tiles(kernel, block, numbers))
    made = [Task(*owned(kernel, kernel.owners, block))] if kernel.owners else tasks_of(kernel, block)
    return LoweredKernel(kernel, tuple(made))


def accumulated(kernel: Kernel, numbers: itertools.count[int]) -> Block:
    """Loops with bodies, values that are used again and accumulators in scalars; the same on all targets.
    `numbers` numbers the scalars."""
    block = loops_of(kernel.graph, sequential(tree(kernel)))
    block = spare_nan(kernel, bodies(kernel, block))
    block = forwarded(kernel, block, numbers)
    return promoted(kernel, block, numbers)
