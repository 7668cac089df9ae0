"""Which values are normal numbers or 0, where a core makes 0 of the denormal results of its arithmetic.

What is only read, chosen or turned around (`max(x, b)`, `-x`) may be denormal as the memory it comes from.
An instruction that takes denormals for 0 is right for the others (`pf_narrow_normal_bf16`).
"""

from __future__ import annotations

from polyfuse.codegen.short_functions import SHORT
from polyfuse.ir.loop_ir import Block, Declare
from polyfuse.ir.ops import Trait, with_trait
from polyfuse.ir.tensor_graph import Apply, Expr, Read

_ARITHMETIC = frozenset([*with_trait(Trait.NORMAL), *SHORT.values()])


def normal_names(body: Block) -> frozenset[str]:
    """Scalars of a loop's body that arithmetic makes."""
    none = frozenset[str]()
    return frozenset(n.name for n in body if isinstance(n, Declare) and n.value and is_normal(n.value, none))


def is_normal(e: Expr, names: frozenset[str] | None) -> bool:
    """Does arithmetic make a value, or is it one of these scalars?  Never where there are no such (None)."""
    match e:
        case Apply(op):
            return names is not None and op in _ARITHMETIC
        case Read(name, ()):
            return names is not None and name in names
        case _:
            return False
