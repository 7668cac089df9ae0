"""Kernel IR -> loop IR.

short         functions whose results are kept in 16 bits are as exact as that takes
instances     Exec nodes become stores and updates of buffers
conditions    that loops decide are resolved; those that are the same for all lanes become branches
passed by     loops that add nothing, as a condition says before them
accumulators  updates of one element over inner loops go through a scalar
last ones     iterations of vector loops that leave scalars to what follows are apart from these
windows       `i % extent` becomes `i - start` where a strip of a loop is the window
collisions    a vector loop whose updates may meet in one element runs in order
places        of scatters, and what they add, are computed in lanes
sums in one   over a short loop that lanes run along, and one around it
digits        loops that read by `i // K` and `i % K` run over windows of K
cuts          loops are cut where `min` and `max` in indices change their arms, and conditions of loads
invariants    functions of what a loop does not change are computed before it
quotients     by what a loop does not change are products, where its lanes divide more
columns       those of what stands in a column, before the rows
copies        of 16 bits convert nothing
roundings     values of 16 bits that a loop reads again stay f32
carried       what a loop reads of the steps before stays in scalars
kept rows     what several loops make of 16 bits is kept as f32
fetches       the next row's inputs are asked for before the last phase of a row
tiles, jams   sums of products stay in vector registers, where what follows them reads them; a row of totals
              gets several terms at a time, those of a small window all of them
turns         tiles that are read across their rows are turned around, and those that are stored so
long sums     over several loops, and of long rows, are kept in double
scalars       are declared in the smallest block that holds all their uses
tasks         top-level loops become functions: chunks of a parallel nest, one serial piece, or owners' shares
dots          sums along memory of a few rows and columns are computed together
rows in step  rows of a recurrence are computed together, step by step
rows in lanes sixteen of them are the lanes of vectors, where steps go along memory
rows          those that add to the same long sums, and short ones, are computed several at a time: sixteen at
              once, also in sequential loops, or some that take turns
widened       rows of 16 bits that all iterations read become f32 before them
skewed        the first phase of the next row runs before the last one of a row
long totals   of columns, or of scalars, are added up in pieces, in double
terms first   what steps of a recurrence need not wait for is computed in lanes before them
short folds   of rows that fill no vector are apart from what they fold, strip by strip
kept loops    that read elements far apart: compilers leave their rests as they are
written out   short loops with functions are, so that compilers find vectors in the loop around
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.dependence import order_collisions
from polyfuse.codegen.analysis.guards import decided
from polyfuse.codegen.analysis.index_ranges import simplify_windows
from polyfuse.codegen.cpu.workarounds import with_kept_loops, with_loops_written_out
from polyfuse.codegen.function import Task
from polyfuse.codegen.transforms.common_subexpressions import kept_rows
from polyfuse.codegen.transforms.fuse_collapse import merged_rows, sums_in_one
from polyfuse.codegen.transforms.index_set_splitting.clamped_indices import cut_loops
from polyfuse.codegen.transforms.index_set_splitting.div_mod import split_digits
from polyfuse.codegen.transforms.index_set_splitting.last_iteration import last_iterations
from polyfuse.codegen.transforms.index_set_splitting.stencil_interiors import window_borders
from polyfuse.codegen.transforms.invariant_motion import (
    column_values,
    hoist,
    task_with_column_values,
    widened,
)
from polyfuse.codegen.transforms.loop_carried_scalars import carried
from polyfuse.codegen.transforms.loop_distribution import placed, terms_first
from polyfuse.codegen.transforms.lower_statements import bodies, forwarded
from polyfuse.codegen.transforms.nan_free_extremes import spare_nan
from polyfuse.codegen.transforms.outer_vectorize.recurrences import rows_in_lanes
from polyfuse.codegen.transforms.outer_vectorize.short_rows import short_rows_in_lanes
from polyfuse.codegen.transforms.outline import block_tree, tasks_of
from polyfuse.codegen.transforms.precision import copied, rounded_once, with_short_functions
from polyfuse.codegen.transforms.prefetch import fetch_ahead, next_rows
from polyfuse.codegen.transforms.register_tiling import follow_tiles, register_tiles
from polyfuse.codegen.transforms.remainders import overlapping_ends, rows_in_pieces
from polyfuse.codegen.transforms.scalar_replacement import promoted
from polyfuse.codegen.transforms.scatter import owned
from polyfuse.codegen.transforms.short_reductions import short_folds
from polyfuse.codegen.transforms.software_pipelining import skewed
from polyfuse.codegen.transforms.strength_reduction import quotients
from polyfuse.codegen.transforms.transpose_loads import turn_tiles
from polyfuse.codegen.transforms.transpose_stores import turn_stores
from polyfuse.codegen.transforms.unroll_and_jam.batched_loops import loops_jointly
from polyfuse.codegen.transforms.unroll_and_jam.batched_rows import rows_jointly
from polyfuse.codegen.transforms.unroll_and_jam.dot_products import dots_jammed
from polyfuse.codegen.transforms.unroll_and_jam.interleaved_rows import rows_together, with_arrays
from polyfuse.codegen.transforms.unroll_and_jam.overlapping_windows import neighbours_together
from polyfuse.codegen.transforms.unroll_and_jam.recurrences import rows_in_step
from polyfuse.codegen.transforms.unroll_and_jam.reductions import jam, rows_added_up
from polyfuse.codegen.transforms.unroll_and_jam.shared_sums import rows_jammed
from polyfuse.codegen.transforms.unroll_and_jam.stencils import jammed_windows
from polyfuse.codegen.transforms.unroll_and_jam.strip_accumulators import with_held_totals
from polyfuse.codegen.transforms.unswitch import passed_by, unswitch
from polyfuse.codegen.transforms.wide_accumulators import long_sums, long_totals
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block
from polyfuse.ir.schedule_tree import sequential
from polyfuse.poly.ast_build import loops_of


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel with the functions that it becomes; `rows` of one of them take turns."""

    kernel: Kernel
    tasks: tuple[Task, ...]

    @property
    def rows(self) -> int:
        return max((len(x.loops) for t in self.tasks for x in t.ways), default=1)


def lower(kernel: Kernel, knobs: CpuKnobs | None = None, checked: bool = False) -> LoweredKernel:
    """The kernel's functions as loop IR; `checked`: indices that are data are checked where they are used."""
    numbers, knobs = itertools.count(), knobs or CpuKnobs()
    core = knobs.on
    kernel = with_short_functions(kernel)
    block = last_iterations(accumulated(kernel, numbers))
    block = simplify_windows(block, {})
    block = order_collisions(kernel, block)
    if not (checked or kernel.owners):
        block = placed(kernel, block, numbers)
    block = cut_loops(split_digits(sums_in_one(block, core), numbers, core))
    block = quotients(kernel, hoist(kernel, block, numbers), numbers)
    block = column_values(kernel, block, numbers, core)
    block = carried(kernel, rounded_once(copied(unswitch(kernel, block))), numbers)
    block = fetch_ahead(kernel, kept_rows(kernel, block, numbers, core))
    block = follow_tiles(kernel, register_tiles(kernel, block, numbers))
    block = jam(kernel, jammed_windows(window_borders(kernel, block, numbers), core), core)
    block = overlapping_ends(kernel, merged_rows(kernel, block), core, numbers)
    block = long_sums(turn_tiles(kernel, block, numbers))
    if kernel.owners:
        return LoweredKernel(kernel, tuple(tasks_of(kernel, owned(kernel, kernel.owners, block))))
    kernel, block = turn_stores(kernel, block)
    jammed = rows_jammed(kernel, dots_jammed(kernel, tasks_of(kernel, block), knobs), knobs)
    own, tasks = rows_in_lanes(kernel, rows_in_step(kernel, jammed, knobs), knobs)
    short, tasks = short_rows_in_lanes(kernel, tasks, knobs)
    kernel, tasks = rows_jointly(kernel, tasks, knobs)
    kernel, tasks = loops_jointly(kernel, tasks, knobs)
    tasks = rows_together(kernel, tasks, knobs)
    tasks = tuple(task_with_column_values(kernel, widened(kernel, t, core), numbers, core) for t in tasks)
    kernel, tasks = skewed(kernel, tasks, knobs)
    tasks = next_rows(kernel, tasks, core)
    tasks = tuple(with_held_totals(kernel, neighbours_together(kernel, t, core), core) for t in tasks)
    tasks = tuple(rows_in_pieces(kernel, rows_added_up(kernel, t)) for t in tasks)
    tasks = tuple(_with_long_totals(kernel, t, numbers) for t in tasks)
    tasks = tasks if checked else tuple(short_folds(kernel, terms_first(kernel, t, numbers)) for t in tasks)
    tasks = tuple(with_loops_written_out(with_kept_loops(kernel, t)) for t in tasks)
    low = LoweredKernel(kernel, tasks)
    kernel = with_arrays(kernel, low.rows)
    return replace(low, kernel=replace(kernel, buffers=(*kernel.buffers, *own, *short)))


def _with_long_totals(kernel: Kernel, task: Task, numbers: itertools.count[int]) -> Task:
    """A task with long totals in pieces."""
    body, along = (long_totals(kernel, b, numbers) for b in (task.body, task.along))
    return replace(task, body=body, along=along)


def accumulated(kernel: Kernel, numbers: itertools.count[int]) -> Block:
    """Loops with bodies, values that are used again and accumulators in scalars; the same on all targets.
    `numbers` numbers the scalars."""
    block = loops_of(kernel.graph, sequential(block_tree(kernel)))
    block = spare_nan(kernel, decided(bodies(kernel, block)))
    block = passed_by(kernel, forwarded(kernel, block, numbers))
    return promoted(kernel, block, numbers)
