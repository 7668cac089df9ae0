"""How much a kernel computes, in instances of a plain statement: what it is worth in threads."""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import IndexExpr, as_index, binary
from polyfuse.ir.tensor_graph import Statement, walk

# Of an instance of a statement: what it computes besides functions, each of these, and, once for all
# statements of a kernel, what it moves.  On Zen 4 and in L2 a sum of two arrays, the unit, takes 0.1 ns, an
# element of a LayerNorm 0.14, of a softmax 0.3, of a gated RMSNorm 0.42.
PLAIN, FUNCTION, MOVED = 1, 16, 7
WHOLE = PLAIN + MOVED


def work(found: Iterable[tuple[Statement, IndexExpr]]) -> IndexExpr:
    """Of statements with so many instances."""
    computed, most = as_index(0), as_index(0)
    for s, count in found:
        each = PLAIN + FUNCTION * sum(map(is_function, walk(s.expr)))
        computed = binary("+", computed, binary("*", count, each))
        most = binary("max", most, count)
    return binary("//", binary("+", computed, binary("*", most, MOVED)), WHOLE)
