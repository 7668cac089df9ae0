"""The passes of a GPU over loops, before and after they become what one thread does (`codegen.cuda.spmd`).

`LOOPS` work on the loops of a kernel, the first of them on its statements.  `THREADS` work on those of a
function whose threads have vectors, before loops over threads go away; `ACCESSES` on what a thread does.
Barriers come last (`codegen.cuda.functions`).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.common_passes import COMMON
from polyfuse.codegen.cuda.early_loads import early_loads
from polyfuse.codegen.cuda.partial_vectors import bounds_of_rows, without_certain
from polyfuse.codegen.cuda.vectorize import VectorAccess, thread_tiles, vector_sums_in_registers
from polyfuse.codegen.passes import Loops, Pass, PassContext, Pipeline, on_block
from polyfuse.codegen.transforms.approximate_functions import approximate_functions, forms_of
from polyfuse.codegen.transforms.load_balance import left_to_blocks
from polyfuse.codegen.transforms.lower_statements import forward_to_loops, lower_statements
from polyfuse.codegen.transforms.outline import block_tree
from polyfuse.codegen.transforms.precision import rounded_once, short_functions
from polyfuse.codegen.transforms.scalar_replacement import merge_initial, uncombined
from polyfuse.codegen.transforms.wide_accumulators import wide_column_totals
from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.schedule_tree import sequential
from polyfuse.poly.ast_build import loops_of


def _short_functions(x: Loops, cx: PassContext) -> Loops:
    own = (Scope.REGISTER, Scope.LOCAL, Scope.SHARED)
    return _with_forms(x, short_functions(x.kernel, own, sums=True), cx)


def _approximate_functions(x: Loops, cx: PassContext) -> Loops:
    return _with_forms(x, approximate_functions(x.kernel), cx)


def _with_forms(x: Loops, kernel: Kernel, cx: PassContext) -> Loops:
    if kernel is x.kernel:
        return x
    cx.note_forms(forms_of(kernel))
    return replace(x, kernel=kernel)


def _check_shared_updates(x: Loops, cx: PassContext) -> Loops:
    """Raises ScheduleError PF536."""
    if (lost := uncombined(x.kernel, x.block)) is not None:
        message = f"threads share a loop that updates '{lost.buffer}', and each would keep a part of it"
        raise ScheduleError([Diagnostic("PF536", message, hint="compile it with fewer layers")])
    return x


def _vector_accesses(x: Loops, cx: PassContext) -> Loops:
    vectors = VectorAccess(x.kernel, cx.strided, cx.numbers)
    block = vectors.block(x.block)
    cx.aligned |= vectors.aligned
    return replace(x, block=block)


def _lowered(x: Loops, cx: PassContext) -> Loops:
    kernel = x.kernel
    loops = loops_of(kernel.graph, sequential(block_tree(kernel)))
    return replace(x, block=lower_statements(kernel, bounds_of_rows(kernel.graph, loops)))


LOOPS = Pipeline(
    "loops",
    (
        Pass(
            "short-functions",
            "functions whose results are kept in 16 bits are as exact as that takes",
            _short_functions,
        ),
        Pass(
            "approximate-functions",
            "functions, quotients and roots of f32 are as exact as the reference asks for",
            _approximate_functions,
        ),
        replace(COMMON[0], run=_lowered),
        *COMMON[1:],
        Pass(
            "precision:rounded-once",
            "values of 16 bits that a loop reads again stay f32, rounded",
            on_block(lambda k, b, cx: rounded_once(b)),
        ),
        Pass("check-shared-updates", "all that threads add up comes together", _check_shared_updates, False),
        Pass(
            "wide-accumulators:columns",
            "totals of long loops are added up in pieces, in double",
            on_block(lambda k, b, cx: wide_column_totals(k, b, cx.numbers)),
        ),
        Pass(
            "forward-stores:loops",
            "what all threads of a row know is not read again from where one of them stores it",
            on_block(lambda k, b, cx: forward_to_loops(k, merge_initial(without_certain(b)), cx.numbers)),
        ),
        Pass(
            "load-balance:rows",
            "rows of data are left to the blocks that compute them",
            on_block(lambda k, b, cx: left_to_blocks(b)),
        ),
    ),
)

THREADS = Pipeline(
    "threads",
    (
        Pass(
            "register-tiling",
            "sums of products over a tile of rows and a vector of columns stay in registers",
            on_block(lambda k, b, cx: thread_tiles(k, b, cx.numbers)),
        ),
        Pass(
            "scalar-replacement:vector-sums",
            "sums of a vector's elements over a loop are an array of the thread",
            on_block(lambda k, b, cx: vector_sums_in_registers(k, b, cx.numbers)),
        ),
    ),
)

ACCESSES = Pipeline(
    "accesses",
    (
        Pass("vector-accesses", "elements of a vector are loaded and stored by one access", _vector_accesses),
        Pass(
            "early-loads",
            "rounds of a row that may not exist are loaded before those that do",
            on_block(lambda k, b, cx: early_loads(k, b)),
        ),
    ),
)

PIPELINES = (LOOPS, THREADS, ACCESSES)
