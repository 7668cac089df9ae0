"""How much a kernel computes, in instances of a plain statement: what it is worth in threads."""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import IndexExpr, as_index, binary
from polyfuse.ir.tensor_graph import Statement, walk

# Of an instance of a statement: what it computes besides functions, each of these, and, once for all
# statements of a kernel, what it moves.  So that kernels in L2 whose work is equal take about as long.
PLAIN, FUNCTION, MOVED = 1, 16, 7
WHOLE = PLAIN + MOVED
# A launch of less work is not worth waking a worker.
PARALLEL_WORK = 24 * 1024


def work(found: Iterable[tuple[Statement, IndexExpr]]) -> IndexExpr:
    """Of statements with so many instances."""
    computed, most = as_index(0), as_index(0)
    for s, count in found:
        each = PLAIN + FUNCTION * sum(map(is_function, walk(s.expr)))
        computed = binary("+", computed, binary("*", count, each))
        most = binary("max", most, count)
    return binary("//", binary("+", computed, binary("*", most, MOVED)), WHOLE)
