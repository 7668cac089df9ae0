"""The passes of a CPU: kernel IR -> loop IR -> functions.

`LOOPS` work on the loops of a kernel, `FUNCTIONS` on what they become when they are
outlined: chunks of a parallel nest, or one serial piece.  A kernel with owners has an owner's share instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polyfuse.codegen.common_passes import COMMON
from polyfuse.codegen.cpu.workarounds import with_kept_loops, with_loops_written_out
from polyfuse.codegen.decisions import Made, noted
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import Loops, Pass, PassContext, Pipeline, on_block, on_each, on_functions
from polyfuse.codegen.transforms.common_subexpressions import common_subexpressions
from polyfuse.codegen.transforms.fuse_collapse import collapse_reductions, fuse_loops
from polyfuse.codegen.transforms.index_set_splitting.clamped_indices import split_clamped_indices
from polyfuse.codegen.transforms.index_set_splitting.div_mod import split_div_mod
from polyfuse.codegen.transforms.index_set_splitting.last_iteration import (
    peel_first_iterations,
    peel_last_iterations,
)
from polyfuse.codegen.transforms.index_set_splitting.stencil_interiors import split_stencils
from polyfuse.codegen.transforms.invariant_motion import (
    hoist,
    hoist_columns,
    hoist_conversions,
    hoist_function_columns,
)
from polyfuse.codegen.transforms.load_balance import with_cut_rows, with_shares
from polyfuse.codegen.transforms.loop_carried_scalars import loop_carried_scalars
from polyfuse.codegen.transforms.loop_distribution import (
    distribute_recurrences,
    distribute_scatters,
)
from polyfuse.codegen.transforms.outer_vectorize.recurrences import vectorize_recurrences
from polyfuse.codegen.transforms.outer_vectorize.short_rows import vectorize_short_rows
from polyfuse.codegen.transforms.outline import outlined, with_run_loops
from polyfuse.codegen.transforms.precision import (
    plain_copies,
    rounded_once,
    short_functions,
)
from polyfuse.codegen.transforms.prefetch import prefetch_next_row, prefetch_rows, prefetch_rows_of_data
from polyfuse.codegen.transforms.register_tiling import fuse_tile_epilogues, register_tiles
from polyfuse.codegen.transforms.scatter import owner_computes, serialize_conflicts
from polyfuse.codegen.transforms.short_reductions import short_folds
from polyfuse.codegen.transforms.software_pipelining import software_pipelined
from polyfuse.codegen.transforms.strength_reduction import divide_by_reciprocals, simplify_windows
from polyfuse.codegen.transforms.transpose_loads import transpose_loads
from polyfuse.codegen.transforms.transpose_stores import transpose_stores
from polyfuse.codegen.transforms.unroll_and_jam.batched_loops import loops_jointly
from polyfuse.codegen.transforms.unroll_and_jam.batched_rows import rows_jointly
from polyfuse.codegen.transforms.unroll_and_jam.dot_products import DOT_PRODUCTS
from polyfuse.codegen.transforms.unroll_and_jam.interleaved_rows import INTERLEAVED_ROWS
from polyfuse.codegen.transforms.unroll_and_jam.overlapping_windows import neighbours_together
from polyfuse.codegen.transforms.unroll_and_jam.recurrences import RECURRENCES
from polyfuse.codegen.transforms.unroll_and_jam.reductions import REDUCTIONS, SHORT_SUMS
from polyfuse.codegen.transforms.unroll_and_jam.rule import LoopRule, NestRule, with_arrays
from polyfuse.codegen.transforms.unroll_and_jam.shared_sums import SHARED_SUMS
from polyfuse.codegen.transforms.unroll_and_jam.stencils import jammed_windows
from polyfuse.codegen.transforms.unroll_and_jam.strip_accumulators import with_held_totals
from polyfuse.codegen.transforms.unswitch import unswitch
from polyfuse.codegen.transforms.vector_epilogues import (
    narrow_vectors,
    overlapping_tails,
)
from polyfuse.codegen.transforms.wide_accumulators import wide_row_totals, with_wide_totals
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import Kernel


def _jammed_loops(rule: LoopRule) -> Pass:
    """A rule of unroll-and-jam for loops that are no functions yet."""
    run = on_block(lambda k, b, cx: rule.in_block(k, b, cx.knobs)[0])
    return Pass(f"unroll-and-jam:{rule.name}", rule.does, run)


def _unroll_and_jam(rule: LoopRule | NestRule) -> Pass:
    return Pass(
        f"unroll-and-jam:{rule.name}", rule.does, on_functions(lambda k, t, cx: rule.run(k, t, cx.knobs))
    )


def _outlined(x: Loops, cx: PassContext) -> Loops:
    return replace(x, block=(), functions=tuple(outlined(x.kernel, x.block)))


def _owned(x: Loops, cx: PassContext) -> Loops:
    assert x.kernel.owners
    return replace(
        x, block=(), functions=tuple(outlined(x.kernel, owner_computes(x.kernel, x.kernel.owners, x.block)))
    )


def _short_functions(x: Loops, cx: PassContext) -> Loops:
    kernel = short_functions(x.kernel)
    return x if kernel is x.kernel else replace(x, kernel=kernel)


def _distributed_scatters(x: Loops, cx: PassContext) -> Loops:
    """Checks stand where an index is used, and owners find their share by it."""
    if cx.checked or x.kernel.owners:
        return x
    return replace(x, block=distribute_scatters(x.kernel, x.block, cx.numbers))


def _transposed_stores(x: Loops, cx: PassContext) -> Loops:
    kernel, block = transpose_stores(x.kernel, x.block)
    return replace(x, kernel=kernel, block=block)


def _recurrences_in_lanes(x: Loops, cx: PassContext) -> Loops:
    arrays, functions = vectorize_recurrences(x.kernel, x.functions, cx.knobs)
    return replace(x, functions=functions, arrays=(*x.arrays, *arrays))


def _short_rows_in_lanes(x: Loops, cx: PassContext) -> Loops:
    arrays, functions = vectorize_short_rows(x.kernel, x.functions, cx.knobs)
    return replace(x, functions=functions, arrays=(*x.arrays, *arrays))


def _batched_rows(x: Loops, cx: PassContext) -> Loops:
    kernel, functions = rows_jointly(x.kernel, x.functions, cx.knobs)
    return replace(x, kernel=kernel, functions=functions)


def _batched_loops(x: Loops, cx: PassContext) -> Loops:
    kernel, functions = loops_jointly(x.kernel, x.functions, cx.knobs)
    return replace(x, kernel=kernel, functions=functions)


def _pipelined(x: Loops, cx: PassContext) -> Loops:
    kernel, functions = software_pipelined(x.kernel, x.functions, cx.knobs)
    return replace(x, kernel=kernel, functions=functions)


def _with_arrays(x: Loops, cx: PassContext) -> Loops:
    kernel = with_arrays(x.kernel, x.rows)
    return replace(x, kernel=replace(kernel, buffers=(*kernel.buffers, *x.arrays)), arrays=())


LOOPS = Pipeline(
    "loops",
    (
        Pass(
            "short-functions",
            "functions whose results are kept in 16 bits are as exact as that takes",
            _short_functions,
        ),
        *COMMON,
        Pass(
            "peel-first-iteration",
            "iterations that find in scalars what is set before vector loops are apart from them",
            on_block(lambda k, b, cx: peel_first_iterations(b)),
            False,
        ),
        Pass(
            "peel-last-iteration",
            "iterations that leave scalars to what follows are apart from vector loops",
            on_block(lambda k, b, cx: peel_last_iterations(b)),
            False,
        ),
        Pass(
            "simplify-window-indices",
            "`i % E` becomes `i - start` in a loop over one window of E",
            on_block(lambda k, b, cx: simplify_windows(b, {})),
        ),
        Pass(
            "serialize-conflicts",
            "vector loops whose updates may meet in one element run in order",
            on_block(lambda k, b, cx: serialize_conflicts(k, b)),
            False,
        ),
        Pass(
            "loop-distribution:scatters",
            "places and terms of updates are computed in lanes, then made in order",
            _distributed_scatters,
        ),
        Pass(
            "collapse-reductions",
            "a sum over a short loop and one around it is one loop",
            on_block(lambda k, b, cx: collapse_reductions(b, cx.core)),
        ),
        Pass(
            "index-set-splitting:div-mod",
            "loops that read by `i // K` and `i % K` run over windows of K",
            on_block(lambda k, b, cx: split_div_mod(b, cx.numbers, cx.core)),
        ),
        Pass(
            "index-set-splitting:clamped-indices",
            "loops are cut where min and max in indices, or guards, change",
            on_block(lambda k, b, cx: split_clamped_indices(b)),
        ),
        Pass(
            "invariant-motion:scalars",
            "functions of what a loop does not change are computed before it",
            on_block(lambda k, b, cx: hoist(k, b, cx.numbers)),
        ),
        Pass(
            "strength-reduction:quotients",
            "quotients by what a loop does not change are products",
            on_block(lambda k, b, cx: divide_by_reciprocals(k, b, cx.numbers)),
        ),
        Pass(
            "invariant-motion:columns",
            "functions of what stands in a column are computed before the rows",
            on_block(lambda k, b, cx: hoist_columns(k, b, cx.numbers, cx.core)),
        ),
        Pass(
            "unswitch",
            "conditions that are the same for all lanes are branches around the loop",
            on_block(lambda k, b, cx: unswitch(k, b)),
        ),
        Pass(
            "precision:copies",
            "copies of 16 bits convert nothing",
            on_block(lambda k, b, cx: plain_copies(b)),
        ),
        Pass(
            "precision:rounded-once",
            "values of 16 bits that a loop reads again stay f32, rounded",
            on_block(lambda k, b, cx: rounded_once(b)),
        ),
        Pass(
            "loop-carried-scalars",
            "what a loop reads of the steps before stays in scalars",
            on_block(lambda k, b, cx: loop_carried_scalars(k, b, cx.numbers)),
        ),
        Pass(
            "common-subexpressions",
            "what several loops make of elements of 16 bits is kept as f32",
            on_block(lambda k, b, cx: common_subexpressions(k, b, cx.numbers, cx.core)),
        ),
        Pass(
            "prefetch:rows",
            "the next row's inputs are prefetched before the last phase of a row",
            on_block(lambda k, b, cx: prefetch_rows(k, b, cx.core)),
        ),
        Pass(
            "register-tiling",
            "sums of products stay in vector registers",
            on_block(lambda k, b, cx: register_tiles(k, b, cx.numbers)),
        ),
        Pass(
            "fuse-tile-epilogue",
            "what follows a register tile reads its sums where the tile has left them",
            on_block(lambda k, b, cx: fuse_tile_epilogues(k, b)),
        ),
        Pass(
            "index-set-splitting:stencil-interiors",
            "the interior of a stencil has no conditions",
            on_block(lambda k, b, cx: split_stencils(k, b, cx.numbers, unswitch)),
        ),
        Pass(
            "unroll-and-jam:stencils",
            "the terms of a small window are added at once",
            on_block(lambda k, b, cx: jammed_windows(b, cx.core)),
        ),
        _jammed_loops(REDUCTIONS),
        Pass(
            "fuse-loops",
            "loops over a row, one after the other, become one",
            on_block(lambda k, b, cx: fuse_loops(k, b)),
        ),
        Pass(
            "overlapping-tails",
            "the rest of a row is one more vector, which computes some elements again",
            on_block(lambda k, b, cx: overlapping_tails(k, b, cx.core, cx.numbers)),
        ),
        Pass(
            "transpose-tiles:loads",
            "tiles that are read across the lanes are transposed in registers",
            on_block(lambda k, b, cx: transpose_loads(k, b, cx.numbers)),
        ),
        Pass(
            "wide-accumulators:rows",
            "sums over several loops are kept in double",
            on_block(lambda k, b, cx: wide_row_totals(k, b)),
        ),
    ),
)

OWNED = Pipeline(
    "owners",
    (
        Pass(
            "outline:owners",
            "loops become functions: each worker has a share of a scatter's result",
            _owned,
            False,
        ),
    ),
)

FUNCTIONS = Pipeline(
    "functions",
    (
        Pass(
            "transpose-tiles:stores",
            "tiles that are stored across the lanes are transposed in registers",
            _transposed_stores,
        ),
        Pass(
            "outline",
            "top-level loops become functions: chunks of a parallel nest, or a serial piece",
            _outlined,
            False,
        ),
        _unroll_and_jam(DOT_PRODUCTS),
        _unroll_and_jam(SHARED_SUMS),
        _unroll_and_jam(RECURRENCES),
        Pass(
            "outer-vectorize:recurrences",
            "rows of a recurrence along memory are lanes",
            _recurrences_in_lanes,
        ),
        Pass("outer-vectorize:short-rows", "rows shorter than a vector are lanes", _short_rows_in_lanes),
        Pass(
            "unroll-and-jam:batched-rows",
            "short rows sixteen at once: their totals are combined together",
            _batched_rows,
        ),
        Pass(
            "unroll-and-jam:batched-loops",
            "short rows of sequential loops sixteen at once: their totals are combined together",
            _batched_loops,
        ),
        _unroll_and_jam(INTERLEAVED_ROWS),
        Pass(
            "invariant-motion:conversions",
            "rows of 16 bits that all iterations read become f32 before them",
            on_each(lambda k, t, cx: hoist_conversions(k, t, cx.core)),
        ),
        Pass(
            "invariant-motion:function-columns",
            "functions of what stands in a column are computed before a function's rows",
            on_each(lambda k, t, cx: hoist_function_columns(k, t, cx.numbers, cx.core)),
        ),
        Pass(
            "software-pipelining",
            "the first phase of the next row runs before the last one of a row",
            _pipelined,
        ),
        Pass(
            "prefetch:next-row",
            "the last pass over a row prefetches the next one",
            on_functions(lambda k, t, cx: prefetch_next_row(k, tuple(t), cx.core)),
        ),
        Pass(
            "unroll-and-jam:overlapping-windows",
            "rows whose windows overlap go several at a time, strip by strip",
            on_each(lambda k, t, cx: neighbours_together(k, t, cx.core)),
        ),
        Pass(
            "unroll-and-jam:strip-accumulators",
            "totals of a row stay in registers while a small window adds to them",
            on_each(lambda k, t, cx: with_held_totals(k, t, cx.core)),
        ),
        _unroll_and_jam(SHORT_SUMS),
        Pass(
            "narrow-vectors",
            "short rows are vectors of the lengths that a machine has",
            on_each(lambda k, t, cx: narrow_vectors(k, t)),
        ),
        Pass(
            "prefetch:rows-of-data",
            "loops whose bounds are data prefetch rows that data names",
            on_each(lambda k, t, cx: t if cx.checked else prefetch_rows_of_data(k, t, cx.core)),
        ),
        Pass(
            "wide-accumulators:columns",
            "totals of long loops are added up in pieces, in double",
            on_each(lambda k, t, cx: with_wide_totals(k, t, cx.numbers)),
        ),
        Pass(
            "loop-distribution:recurrences",
            "what steps need not wait for is computed in lanes before them",
            on_each(lambda k, t, cx: t if cx.checked else distribute_recurrences(k, t, cx.numbers)),
        ),
        Pass(
            "loop-distribution:short-reductions",
            "reductions of rows that fill no vector are apart from what they reduce, strip by strip",
            on_each(lambda k, t, cx: t if cx.checked else short_folds(k, t)),
        ),
        Pass(
            "keep-loops",
            "loops that read elements far apart are left as they are by the compiler",
            on_each(lambda k, t, cx: with_kept_loops(k, t)),
            False,
        ),
        Pass(
            "unroll-short-loops",
            "the compiler unrolls short loops with functions, to find vectors in the loop around",
            on_each(lambda k, t, cx: with_loops_written_out(t)),
        ),
        Pass(
            "run-loops",
            "short rows of a nest that follow one another are found together",
            on_each(lambda k, t, cx: with_run_loops(t)),
        ),
        Pass(
            "load-balance:rows",
            "workers share rows out by how many elements these have",
            on_each(lambda k, t, cx: t if cx.checked else with_shares(k, t)),
        ),
        Pass(
            "load-balance:long-rows",
            "rows that fill a 64th of all work are cut, and their totals joined",
            on_each(lambda k, t, cx: with_cut_rows(k, t)),
        ),
        Pass("declare-arrays", "arrays of workers that passes added are declared", _with_arrays, False),
    ),
)

PIPELINES = (LOOPS, OWNED, FUNCTIONS)


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel with the functions that it becomes; `rows` of one of them are interleaved.  `noted`: what
    passes did and declined."""

    kernel: Kernel
    functions: tuple[Function, ...]
    rows: int = 1
    noted: Made = field(default=frozenset(), compare=False)


def lower(kernel: Kernel, knobs: CpuKnobs | None = None, checked: bool = False) -> LoweredKernel:
    """The kernel's functions as loop IR; `checked`: indices that are data are checked where they are used."""
    cx = PassContext(knobs or CpuKnobs(), checked)
    loops = LOOPS.run(Loops(kernel), cx)
    done = (OWNED if kernel.owners else FUNCTIONS).run(loops, cx)
    return LoweredKernel(done.kernel, done.functions, done.rows, noted(cx))
