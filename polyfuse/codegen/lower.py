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

from polyfuse.codegen.accumulators import promoted
from polyfuse.codegen.carried import carried
from polyfuse.codegen.collisions import order_collisions
from polyfuse.codegen.column_values import column_values, task_with_column_values
from polyfuse.codegen.copies import copied
from polyfuse.codegen.cut_loops import cut_loops
from polyfuse.codegen.decided import decided
from polyfuse.codegen.digits import split_digits
from polyfuse.codegen.dots_jammed import dots_jammed
from polyfuse.codegen.held_totals import with_held_totals
from polyfuse.codegen.hoist import hoist
from polyfuse.codegen.instances import bodies, forwarded
from polyfuse.codegen.jam import jam
from polyfuse.codegen.jammed_windows import jammed_windows
from polyfuse.codegen.joint_loops import loops_jointly
from polyfuse.codegen.kept_loops import with_kept_loops
from polyfuse.codegen.kept_rows import kept_rows
from polyfuse.codegen.last_iterations import last_iterations
from polyfuse.codegen.long_sums import long_sums
from polyfuse.codegen.long_totals import long_totals
from polyfuse.codegen.merged_rows import merged_rows
from polyfuse.codegen.nan_care import spare_nan
from polyfuse.codegen.neighbours import neighbours_together
from polyfuse.codegen.next_rows import next_rows
from polyfuse.codegen.overlapping_ends import overlapping_ends
from polyfuse.codegen.owners import owned
from polyfuse.codegen.passed_by import passed_by
from polyfuse.codegen.places import placed
from polyfuse.codegen.prefetch import fetch_ahead
from polyfuse.codegen.quotients import quotients
from polyfuse.codegen.register_tiles import register_tiles
from polyfuse.codegen.roundings import rounded_once
from polyfuse.codegen.row_pieces import rows_in_pieces
from polyfuse.codegen.rows_added_up import rows_added_up
from polyfuse.codegen.rows_in_lanes import rows_in_lanes
from polyfuse.codegen.rows_in_step import rows_in_step
from polyfuse.codegen.rows_jammed import rows_jammed
from polyfuse.codegen.rows_jointly import rows_jointly
from polyfuse.codegen.rows_together import rows_together, with_arrays
from polyfuse.codegen.short_folds import short_folds
from polyfuse.codegen.short_functions import with_short_functions
from polyfuse.codegen.short_rows_in_lanes import short_rows_in_lanes
from polyfuse.codegen.skewed import skewed
from polyfuse.codegen.sums_in_one import sums_in_one
from polyfuse.codegen.tasks import Task, tasks_of
from polyfuse.codegen.terms_first import terms_first
from polyfuse.codegen.tile_followers import follow_tiles
from polyfuse.codegen.time_parts import block_tree
from polyfuse.codegen.transposed import turn_tiles
from polyfuse.codegen.turned_stores import turn_stores
from polyfuse.codegen.unswitch import unswitch
from polyfuse.codegen.widened import widened
from polyfuse.codegen.window_borders import window_borders
from polyfuse.codegen.windows import simplify_windows
from polyfuse.codegen.written_out import with_loops_written_out
from polyfuse.ir.cpu_knobs import CpuKnobs
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
