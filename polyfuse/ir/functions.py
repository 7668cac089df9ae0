"""Which operations are functions: what takes as long as ten additions and more."""

from __future__ import annotations

from polyfuse.ir.ops import OPS, Cost, Form, Trait, of_cost, with_trait
from polyfuse.ir.powers import exponent
from polyfuse.ir.tensor_graph import Apply, Expr, walk

# Functions that have a short form, and its name.
SHORT = {op: f"short_{op}" for op in with_trait(Trait.SHORT)}
# A quotient of f32 by what neighbouring elements have in common, and a reciprocal.
ALIKE_DIV, RECIPROCAL = "alike_div", "fast_reciprocal"
# Shorter texts of operations by name: what they are forms of, and their errors.
FORMS: dict[str, tuple[str, Form]] = {
    f"{f.prefix}_{o.name}": (o.name, f) for o in OPS.values() for f in o.forms
}
# With a constant factor of the operand as another operand.
SCALED_NEAR = {
    o.name: f"scaled_near_{o.name}" for o in OPS.values() if o.has(Trait.SCALED) and o.form("near")
}
FORMS |= {name: FORMS[f"near_{op}"] for op, name in SCALED_NEAR.items()}
FORMS |= dict.fromkeys((ALIKE_DIV, RECIPROCAL), FORMS["fast_div"])
_FUNCTIONS = of_cost(Cost.FUNCTION) | frozenset(SHORT.values())


def is_function(e: Expr) -> bool:
    """Does an expression end in a function, or a short one (`codegen.transforms.precision`)?"""
    return isinstance(e, Apply) and e.op in _FUNCTIONS and exponent(e) is None


def has_function(e: Expr) -> bool:
    """Is there a function in an expression?"""
    return any(map(is_function, walk(e)))
