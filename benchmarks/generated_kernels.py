"""Kernels in what other compilers generate: Inductor's C++, and the optimised HLO of XLA for a CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FUNCTION = re.compile(r"async_compile\.cpp_pybinding\(.*?r?'''(.*?)'''", re.DOTALL)
_CALL = re.compile(r"^\s+cpp_fused\w*\(", re.MULTILINE)
_TOKEN = re.compile(r"\bfor\s*\(|[{}]")
# Attributes of an instruction that name computations which run on their own, not inside of a kernel.
_BODIES = re.compile(r"(?:body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)[^\n]*\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\([^()]*\)|\S+) ([\w\-]+)\((.*)$", re.MULTILINE)
# Instructions without a loop of their own over elements: names, structure, copies of whole buffers, and what
# a library computes.
NO_KERNELS = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "copy-start", "copy-done",
     "after-all", "dot", "convolution", "custom-call", "while", "call", "conditional"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InductorCount:
    """`functions` of generated C++, their outermost loops (`nests`, at least 1), and `calls` of them."""

    functions: int
    nests: int
    calls: int


def count_inductor(source: str) -> InductorCount:
    """Kernels in the wrapper that Inductor writes for a CPU."""
    bodies = _FUNCTION.findall(source)
    return InductorCount(len(bodies), sum(max(1, loop_nests(b)) for b in bodies), len(_CALL.findall(source)))


def loop_nests(text: str) -> int:
    """Loops of C++ that no other loop contains. Loops have braces."""
    depth, found, within, opening = 0, 0, -1, False
    for token in _TOKEN.findall(text):
        match token:
            case "{":
                if opening:
                    within, opening = depth, False
                depth += 1
            case "}":
                depth -= 1
                if depth == within:
                    within = -1
            case _ if within < 0 and not opening:
                found, opening = found + 1, True
    return found


@dataclass(frozen=True, slots=True)
class XlaCount:
    """Instructions of the optimised HLO: `fusions`, `loops` (not fused), and by a library: `library`."""

    fusions: int
    loops: int
    library: int


def count_xla(text: str) -> XlaCount:
    """Kernels in a module: the entry, and bodies of loops, each of them once."""
    computations = {name: (bool(entry), body) for entry, name, body in _COMPUTATION.findall(text)}
    (entry,) = (name for name, (is_entry, _) in computations.items() if is_entry)
    fusions = loops = library = 0
    for name in dict.fromkeys(_own(entry, {n: body for n, (_, body) in computations.items()})):
        for op, rest in _INSTRUCTION.findall(computations[name][1]):
            if op == "fusion":
                product = _has_product(computations[_called(rest)][1])
                fusions, library = fusions + (not product), library + product
            else:
                loops += op not in NO_KERNELS
                library += op in ("dot", "convolution", "custom-call")
    return XlaCount(fusions, loops, library)


def _own(name: str, bodies: dict[str, str]) -> Iterator[str]:
    """A computation, and those that its loops, calls and branches run."""
    yield name
    for op, rest in _INSTRUCTION.findall(bodies[name]):
        if op in ("while", "conditional"):
            for inner in _BODIES.findall(rest):
                yield from _own(inner, bodies)
        elif op == "call":
            yield from _own(_called(rest, "to_apply"), bodies)


def _called(rest: str, attribute: str = "calls") -> str:
    found = re.search(rf"\b{attribute}=%?([\w.\-]+)", rest)
    assert found is not None, rest
    return found[1]


def _has_product(body: str) -> bool:
    return any(op in ("dot", "convolution") for op, _ in _INSTRUCTION.findall(body))
