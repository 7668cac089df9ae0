"""What exported operators have in common: names and types of C, sizes as C computes them, JSON about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar
from polyfuse.ir.tensor_graph import Constraint, Role, Tensor, TensorGraph

FORMAT = "1"
"""Of what a library says of itself."""
STATUS = (
    ("done", "all is well"),
    ("sizes", "sizes that the operator does not take"),
    ("no kernels", "sizes, strides or addresses that there are no kernels for"),
    ("no memory", "no memory for temporaries"),
    ("index", "an index from data is out of range (libraries made with checked=True)"),
    ("no blas", "a matrix product is needed, and no function for it was given"),
    ("no workspace", "workspace is needed, and NULL was given"),
)
"""What a call returns, by number; failures of CUDA's driver are `DRIVER` and its own number."""
DRIVER = 1000
_WORDS = frozenset(
    """
    alignas alignof and asm auto bool break case catch char class compl concept const constexpr continue
    decltype default delete do double else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not nullptr operator or private protected public register
    requires restrict return short signed sizeof static struct switch template this throw true try typedef
    typeid typename typeof union unsigned using virtual void volatile while xor
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Interface:
    """An operator as C sees it; `text` is its signature, `version` that of polyfuse."""

    graph: TensorGraph
    text: str
    version: str

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that sizes and arguments do not get."""

    @property
    def symbol(self) -> str:
        """What the function is called in C."""
        return f"polyfuse_{plain(self.graph.name)}"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(map(self.graph.tensor, self.graph.inputs))

    @property
    def results(self) -> tuple[Tensor, ...]:
        return tuple(map(self.graph.tensor, self.graph.outputs))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (*self.inputs, *self.results)

    @property
    def turned(self) -> tuple[Tensor, ...]:
        """Inputs whose strides are arguments."""
        return tuple(t for t in self.inputs if t.role is Role.INPUT and t.shape)

    def sizes_and_arguments(self) -> tuple[list[str], list[str]]:
        """Names in C."""
        found = self.names()
        return found[: len(self.graph.sizes)], found[len(self.graph.sizes) :]

    def names(self, of: Sequence[str] | None = None) -> list[str]:
        """C names of sizes and arguments, all different."""
        found: list[str] = []
        for n in (*self.graph.sizes, *(t.name for t in self.arguments)):
            name = plain(n) + "_" * (plain(n) in _WORDS or plain(n) in self.reserved)
            while name in found or any(f"{x}_strides" == name for x in found):
                name += "_"
            found.append(name)
        return found if of is None else found[: len(of)]

    def described(self) -> dict[str, object]:
        """What there is to say of it in JSON."""
        return {
            "polyfuse": FORMAT,
            "version": self.version,
            "name": self.graph.name,
            "symbol": self.symbol,
            "text": self.text,
            "sizes": list(self.graph.sizes),
            "inputs": [_about(t) for t in self.inputs],
            "results": [_about(t) for t in self.results],
            "constraints": [listed_constraint(c) for c in self.graph.constraints],
            "parameters": [(p.name, p.default and listed(p.default)) for p in self.graph.size_parameters],
        }


class SizeText:
    """Index expressions as C that computes them from sizes `s`; functions have names with a prefix."""

    def __init__(
        self, sizes: Sequence[str], fixed: Mapping[str, int] | None = None, prefix: str = ""
    ) -> None:
        self.places = {n: k for k, n in enumerate(sizes)}
        self.fixed, self.prefix = fixed or {}, prefix

    def of(self, e: IndexExpr) -> str:
        """The value of an expression."""
        match e:
            case IConst(value):
                return f"INT64_C({value})"
            case ISize(name):
                return f"INT64_C({self.fixed[name]})" if name in self.fixed else f"s[{self.places[name]}]"
            case IBin(op, left, right):
                a, b = self.of(left), self.of(right)
                called = {"//": "floor_div", "%": "floor_mod", "min": "least_of", "max": "most_of"}.get(op)
                return f"{self.prefix}{called}({a}, {b})" if called else f"({a} {op} {b})"
            case IVar():
                raise AssertionError("an extent depends on sizes alone")

    def condition(self, c: Constraint) -> str:
        """Does it hold?"""
        return f"{self.of(c.left)} {c.op} {self.of(c.right)}"


def status_codes() -> str:
    """Definitions of C, the same in all headers."""
    codes = ",\n".join(f"  {status(w)} = {k}" for k, (w, _) in enumerate(STATUS))
    return f"""\
#ifndef POLYFUSE_STATUS
#define POLYFUSE_STATUS
enum {{
{codes},
  POLYFUSE_DRIVER = {DRIVER}
}};
#endif
"""


def status_meaning(*left_out: str) -> str:
    """Lines of a comment."""
    return "\n".join(f" *   {status(w):22} {why}" for w, why in STATUS if w not in left_out)


def status(what: str) -> str:
    """What a status is called in C."""
    return f"POLYFUSE_{what.upper().replace(' ', '_')}"


def by_value(t: Tensor) -> bool:
    """Is it passed as a number?"""
    return t.role is Role.INPUT and not t.shape


def declared(t: Tensor, name: str) -> str:
    """A parameter of a function of C."""
    kind = _c_name(t)
    if by_value(t):
        return f"{kind} {name}"
    return f"{'const ' if t.role is Role.INPUT else ''}{kind}* {name}"


def _c_name(t: Tensor) -> str:
    """A type of C99."""
    if t.dtype in (F32, F64):
        return t.dtype.c_name
    return f"{t.dtype.numpy.name}_t" if t.dtype.is_integer else f"uint{t.dtype.bits}_t"


def _about(t: Tensor) -> dict[str, object]:
    found: dict[str, object] = {"name": t.name, "dtype": t.dtype.name, "role": t.role.value}
    found["shape"] = [listed(e) for e in t.shape]
    if t.default is not None:
        found["default"] = t.default
    return found


def listed(e: IndexExpr) -> object:
    """An index expression as JSON has it: 3, "T", ["+", "T", 1]."""
    match e:
        case IConst(value):
            return value
        case ISize(name) | IVar(name):
            return name
        case IBin(op, left, right):
            return [op, listed(left), listed(right)]


def listed_constraint(c: Constraint) -> tuple[str, object, object]:
    """A condition of sizes in JSON."""
    return c.op, listed(c.left), listed(c.right)


def plain(name: str) -> str:
    """Letters, digits and `_`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def in_comment(text: str) -> str:
    """Text that ends no comment."""
    return text.replace("*/", "* /").replace("/*", "/ *")
