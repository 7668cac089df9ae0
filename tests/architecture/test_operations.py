"""Facts about operations stand in one table: who else names one has a kernel of it, or speaks of it alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from package_sources import Module, literals, modules

from polyfuse.ir.ops import OPS, Cost

# Names that say nothing else: add and min are words, log is a file.
TELLING = {o.name for o in OPS.values() if o.called and o.cost in (Cost.FUNCTION, Cost.DIVIDER)} - {"log"}
# Module -> functions that it names, and why.
KERNELS = {  # the interpreter has what NumPy has not
    "polyfuse.ir.ops": TELLING,
    "polyfuse.runtime.interpreter.ops": {
        "rsqrt",
        "sigmoid",
        "erf",
        "erfc",
        "lgamma",
        "digamma",
        "pow",
        "philox4x32",
    },
    "polyfuse.runtime.reference.ops": TELLING,  # values with bounds
    "polyfuse.runtime.numpy_text": {"sigmoid", "pow"},  # x ** 2 is np.square
    "polyfuse.torch.dynamo.lowerings.pointwise": TELLING,  # what operators of torch are in ours
    "polyfuse.torch.dynamo.lowerings.reductions": {"exp", "sqrt"},
}
ALONE = {
    "polyfuse.ir.powers": {"pow"},  # powers that are products
    "polyfuse.ir.contraction": {"pow"},  # squares of differences
    "polyfuse.layers.graph.one_pass.cascades": {"exp", "pow"},  # softmax and variance
    "polyfuse.layers.graph.one_pass.online": {"exp"},
    "polyfuse.autodiff.algebra": {"pow"},  # powers of factors
    "polyfuse.autodiff.vanish": {"pow"},
    "polyfuse.cost.operations": {"pow", "sqrt"},  # of powers
    "polyfuse.codegen.c_printer": {"pow", "sqrt"},
    "polyfuse.codegen.cuda.emit": {"pow"},
    "polyfuse.codegen.cpu.vectorize.math_calls": {"pow"},  # with one exponent
    "polyfuse.codegen.math.prelude": {"pow"},  # wraps, and its own sources
    "polyfuse.codegen.transforms.strength_reduction": {
        "sqrt",
        "rsqrt",
    },  # how often each takes the unit that divides
    "polyfuse.runtime.machine.op_rates": {"pow"},  # the function of two
    "polyfuse.frontend_dsl.semantics.typer": {"pow"},  # negative exponents of integers
    "polyfuse.layers.graph.cleanup.identities": {"pow"},
    "polyfuse.layers.graph.cleanup.folding": {"pow"},
    "polyfuse.runtime.reference.block": {"pow"},
    "polyfuse.torch.dynamo.terms": {"pow"},  # Python's **
}
# Made by code generation, of no row.
FORMS = {"quotient", "choose"}


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_functions_are_named_in_the_table(module: Module) -> None:
    allowed = KERNELS.get(module.name, set()) | ALONE.get(module.name, set())
    found = {(text, line) for line, text in literals(module) if text in TELLING - allowed}
    assert not found, f"{module.where} knows {sorted(found)}: is it a fact for ir/ops.py?"


def test_exceptions_are_needed() -> None:
    for m in modules():
        if m.name in ALONE:
            assert ALONE[m.name] <= {text for _, text in literals(m)}, m.where


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_every_operation_that_is_named_is_in_the_table(module: Module) -> None:
    unknown = {name for name in _operations(module) if name not in OPS and name not in FORMS}
    assert not unknown, f"{module.where}: {sorted(unknown)}"


def _operations(module: Module) -> Iterator[str]:
    """What makes or matches an operation of a graph: Apply("exp", ...), also in patterns."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="Apply") | ast.Attribute(attr="Apply"), args=[first, *_]):
                yield from _strings(first)
            case ast.MatchClass(cls=ast.Name(id="Apply") | ast.Attribute(attr="Apply"), patterns=[first, *_]):
                yield from _strings(first)
            case _:
                pass


def _strings(node: ast.AST) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.isidentifier():
            yield n.value
