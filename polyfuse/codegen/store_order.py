"""Loops that store several large results are there twice, once with instructions in the order of the text.

    body(p, m, g):  for c @vec:  m[c] = f(m[c], g[c]);  p[c] = h(p[c], m[c])

gcc moves the store to m before the load of p.  Where both lie at the same place of a page, that load waits:
its address looks like that of a store under way.  Large arrays mostly do, as systems give them whole pages,
so which code runs is decided by where arrays begin.  Elsewhere the order of gcc is a little faster, as it is
in loops with functions, if not many arrays come from memory (docs/targets.md).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from polyfuse.ir.functions import has_function
from polyfuse.ir.loop_ir import For, Node, Store, values_of
from polyfuse.ir.schedule_tree import Coordinate

# Bytes of an element that is not converted.
LEAST_BYTES = 4
IN_ORDER = """#if defined(__x86_64__) && !defined(__clang__)
#define PF_IN_ORDER __attribute__((optimize("no-schedule-insns", "no-schedule-insns2")))
#else
#define PF_IN_ORDER
#endif
// Do pointers agree in the line of a page?
#define PF_ALIKE(a, b) ((((__UINTPTR_TYPE__)(a) ^ (__UINTPTR_TYPE__)(b)) & 4032) == 0)

"""


def stores_several(loop: Node, large: Set[str]) -> bool:
    """Do lanes store elements of several of these tensors, and compute no functions and convert nothing?"""
    if not isinstance(loop, For) or loop.coordinate is not Coordinate.VECTOR:
        return False
    stores = [n for n in loop.body if isinstance(n, Store) and n.value.dtype.bytes >= LEAST_BYTES]
    return len({n.buffer for n in stores} & large) > 1 and not any(map(has_function, values_of(loop.body)))


def two_orders(name: str, text: str, parameters: Sequence[str], alike: Sequence[str]) -> str:
    """A function's text in both orders, and under its name the choice: in order where pointers are alike."""
    head = f"void {name}("
    given = ", ".join(p.split()[-1].lstrip("*") for p in parameters)
    declared = ",\n    ".join(parameters)
    first, *others = alike
    same = " && ".join(f"PF_ALIKE({first}, {p})" for p in others)
    return "\n".join(
        [
            text.replace(head, f"void {name}_any(", 1),
            text.replace(head, f"PF_IN_ORDER void {name}_in_order(", 1),
            f"PF_INLINE {head}\n    {declared}) {{",
            f"  if ({same})",
            f"    {name}_in_order({given});",
            "  else",
            f"    {name}_any({given});",
            "}",
        ]
    )
