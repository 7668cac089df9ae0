"""A script for a process with sanitizers: the operators that the project has, at sizes that leave tails.

python -m polyfuse.runtime.toolchain.run_sanitized tests/helpers/sanitized_corpus.py CORPUS BEGIN:END[:STEP]
[SIZES...]

CORPUS is stdlib, examples, models or operators (those of benchmarks/operators).  Operators are called as
users do, with arguments that are allocations of exactly their size, and once in a drawn way with small
thresholds, so that they take the paths of large sizes.  Results are compared with the reference: memory that
nobody wrote is NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

import models
import operator_cases
import stdlib_cases
from drawn_ways import drawn_thresholds, drawn_way
from targets import Call
from ways import first_failure

import polyfuse as pf
from benchmarks import operators
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.signature import infer_generics
from polyfuse.ir.dtypes import from_numpy
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.runtime.toolchain.sanitizers import exact_block

Array = np.ndarray[Any, np.dtype[Any]]
LINE = 64


@dataclass(frozen=True)
class Operation:
    """An operator, and arguments for it."""

    name: str
    program: pf.Program
    op: str
    inputs: Mapping[str, Any]
    given: Mapping[str, int] = field(default_factory=dict)
    """Size parameters, which stay as they are."""

    def graph(self) -> TensorGraph:
        """At the dtypes and ranks of the arguments."""
        operator = self.program.op(self.op)
        dtypes = {n: t for n, a in self.inputs.items() if (t := from_numpy(np.asarray(a).dtype)) is not None}
        found = infer_generics(operator.signature, dtypes, {n: np.ndim(a) for n, a in self.inputs.items()})
        return operator.graph(found.dtypes, found.ranks)


def of_stdlib(part: slice) -> list[Operation]:
    """For every operator one case of each dtype: the one with most elements."""
    found: dict[tuple[str, str], stdlib_cases.StdlibCase] = {}
    for case in sorted(stdlib_cases.CASES, key=lambda c: sum(np.size(a) for a in c.inputs.values())):
        found[case.op, case.dtype] = case
    chosen = sorted(found.values(), key=lambda c: (c.op, c.dtype))
    return [Operation(str(c), pf.stdlib, c.op, c.inputs, c.given) for c in chosen[part]]


def of_examples(part: slice) -> list[Operation]:
    chosen = operator_cases.CASES[::2][part]
    return [Operation(str(c), operator_cases.parsed(c.file), c.op, c.inputs, c.given) for c in chosen]


def of_models(part: slice) -> list[Operation]:
    return [Operation(m.name, m.program(), m.op, m.inputs) for m in models.MODELS[part]]


def of_operators(part: slice) -> list[Operation]:
    """At the sizes that are timed, which `SIZES` make small."""
    made = []
    for case in operators.CASES[part]:
        program = case.program()
        names = [p.name for p in program.op(case.operator).signature.params if not p.has_default]
        inputs = dict(zip(names, case.inputs(operators.case.Draw(case.name)), strict=True))
        made.append(Operation(case.name, program, case.operator, inputs))
    return made


CORPORA: dict[str, Callable[[slice], list[Operation]]] = {
    "stdlib": of_stdlib,
    "examples": of_examples,
    "models": of_models,
    "operators": of_operators,
}
# What sizes become. Short ones are often those of windows; long ones leave tails of vectors and of tiles.
SIZES: dict[str, Callable[[int], int]] = {
    "tails": lambda n: n if n < 3 else 5 if n < 5 else 2 * n + 7 if n <= 12 else 17 + n % 7,
    "one": lambda n: 1,
    "none": lambda n: 0,
}


def resized(graph: TensorGraph, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays for other sizes: elements are left out, or come again."""
    found = {}
    for name, given in inputs.items():
        a, shape = np.asarray(given), tuple(value_of(e, sizes) for e in graph.tensor(name).shape)
        if a.dtype.kind in "iu" and shape:  # most indices stay in range
            wide = a.astype("i8")
            a = np.where(wide > max(shape), wide % max(1, *shape), wide).astype(a.dtype)
        found[name] = np.resize(a, shape)
    return found


def apart(a: Any, gap: int) -> Any:
    """A copy that ends where its allocation ends, and begins `gap` elements behind a cache line."""
    a = np.asarray(a)
    if not a.shape:
        return a[()]
    before = gap * a.dtype.itemsize
    block, _ = exact_block(before + a.nbytes, LINE)
    found = block[before:].view(a.dtype).reshape(a.shape)
    found[...] = a
    return found


def strided(a: Any) -> Any:
    """A view of every second element of the last dimension."""
    a = np.asarray(a)
    if not a.shape:
        return a[()]
    wide = apart(np.repeat(a, 2, -1)[..., : max(0, 2 * a.shape[-1] - 1)], 0)
    return wide[..., ::2]


# How arguments lie, and the options of a call.
CALLED: dict[str, tuple[Callable[[Any], Any], pf.Options]] = {
    "behind a line": (lambda a: apart(a, 1), pf.Options(threads=1, progress=False)),
    "strided": (strided, pf.Options(threads=3, progress=False, library="never")),
}


def possible(operation: Operation, names: Sequence[str]) -> Iterator[tuple[str, Call]]:
    """The operator at those of the sizes at which it has a meaning, where they differ, by their names."""
    graph = operation.graph()
    given = bind_sizes(graph, {n: np.shape(a) for n, a in operation.inputs.items()}, operation.given)
    seen = []
    for name in names:
        sizes = {n: SIZES[name](size) for n, size in given.items()} | dict(operation.given)
        if sizes in seen:
            continue
        seen.append(sizes)
        inputs = resized(graph, operation.inputs, sizes)
        try:
            sizes = bind_sizes(graph, {n: a.shape for n, a in inputs.items()}, operation.given)
            fixed_graph(graph, sizes)
        except PolyfuseError:
            continue
        yield name, Call(f"{operation.name}, {name}", operation.op, graph, sizes, inputs)


def called(operation: Operation, call: Call) -> Iterator[str]:
    """What is wrong with the results of compiled functions."""
    inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
    want = evaluate(call.graph, call.sizes, inputs, checked=False)
    for way, (placed, options) in CALLED.items():
        compiled = pf.compile(operation.program, operation.op, options=options)
        given = {n: placed(a) for n, a in call.inputs.items()}
        found = compiled(**given, **operation.given)
        results = found if isinstance(found, tuple) else () if found is None else (found,)
        named = dict(zip([r.name for r in compiled.signature.results], results, strict=True))
        for t in call.graph.tensors:
            if t.role is Role.OUTPUT:
                got = np.asarray(given[t.alias] if t.alias else named[t.name])
                agreed = agrees(got, want[t.name], t.dtype)
                if agreed.mismatches or got.shape != want[t.name].value.shape:
                    yield f"{call.name}, {way}: {t.name}: {agreed.message}"


def drawn(call: Call, seed: int) -> Iterator[str]:
    """What is wrong with kernels that are compiled in a way of this seed."""
    way = drawn_way(seed, on_cpu=True)
    if way.fusion:  # isl alone takes minutes here, where a limit counts its operations, not the time
        way = replace(way, fusion=replace(way.fusion, scheduler="auto"))
    with drawn_thresholds(seed):
        if failure := first_failure([(call, way)], vague=True):
            yield str(failure)


def wrong(operation: Operation, names: Sequence[str]) -> Iterator[str]:
    """What is wrong at these sizes. The name of each call goes to standard error, before reports of it."""
    for name, call in possible(operation, names):
        print(call.name, call.sizes, file=sys.stderr, flush=True)
        yield from called(operation, call)
        if name == "tails":
            yield from drawn(call, crc32(call.name.encode()))


def run(corpus: str, part: slice, names: Sequence[str]) -> None:
    """Prints what is wrong, and at last how many operators there were."""
    operations = CORPORA[corpus](part)
    for operation in operations:
        for message in wrong(operation, names):
            print(message)
    print(f"{len(operations)} operators")


if __name__ == "__main__":
    _, name, bounds, *sizes = sys.argv
    run(name, slice(*(int(b) if b else None for b in bounds.split(":"))), sizes or list(SIZES))
