"""What the range proofs leave open, how fast they are, and how they fail."""

from __future__ import annotations

import time

import pytest
from graph_helpers import (
    K,
    M,
    N,
    T,
    const,
    define,
    dim,
    graph,
    i,
    inner,
    j,
    op,
    read,
    result,
    source,
    t,
    temp,
)
from pace import in_time

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.index_expr import ISize, IVar, as_index
from polyfuse.ir.tensor_graph import Constraint, TensorGraph
from polyfuse.poly.legality import obligations
from polyfuse.poly.legality.obligations import Obligation
from polyfuse.poly.legality.ranges import prove_ranges


def prove(
    g: TensorGraph, sizes: dict[str, int] | None = None, only: frozenset[Obligation] | None = None
) -> tuple[list[str], list[str]]:
    """Codes of the errors, and of what is left open."""
    found = Diagnostics()
    still_open = prove_ranges(g, sizes, found, only)
    return [e.code for e in found.errors], sorted(o.code for o in still_open)


def reads_at(index: object, *, where: tuple[Constraint, ...] = (), extent: object = N) -> TensorGraph:
    """y[i, j] = x[index] over N x M."""
    return graph(
        [source("x", extent), result("y", N, M)],
        [define("y", [dim(i, N), dim(j, M)], [i, j], read("x", index))],
        constraints=where,
    )


def test_products_of_sizes_are_proved_when_sizes_are_known() -> None:
    g = reads_at(i * M + j, extent=N * M)
    assert prove(g) == ([], ["PF350"])
    assert prove(g, {"M": 4}) == ([], [])  # affine once the stride is known
    assert prove(g, {"N": 3, "M": 4, "K": 0, "T": 0}) == ([], [])
    wrong = reads_at(i * M + j + 1, extent=N * M)
    assert prove(wrong) == ([], ["PF350"])
    assert prove(wrong, {"M": 4})[0] == ["PF350"]


def test_only_what_was_left_open_is_proved_again() -> None:
    g = reads_at(i * M + j, extent=N * M + (-1))
    found = Diagnostics()
    still_open = prove_ranges(g, None, found)
    assert {o.code for o in still_open} == {"PF350", "PF360"} and not found.errors
    sizes = {"N": 3, "M": 4, "K": 0, "T": 0}
    assert prove(g, sizes, still_open)[0] == ["PF350"]
    assert prove(g, sizes, frozenset()) == ([], [])


def test_a_failure_for_size_zero_only_is_left_open() -> None:
    g = graph([source("x", N), result("y")], [define("y", [], [], read("x", 0))], "N")
    assert prove(g) == ([], ["PF350"])
    assert prove(g, {"N": 1}) == ([], [])
    assert prove(g, {"N": 0})[0] == ["PF350"]


def test_constraints_are_assumed() -> None:
    assert prove(reads_at(5))[0] == ["PF350"]
    assert prove(reads_at(5, where=(Constraint(">=", N, as_index(6)),))) == ([], [])
    assert prove(reads_at(i + M, extent=K, where=(Constraint("==", K, N + M),))) == ([], [])


def test_a_constraint_that_is_not_affine_leaves_open_what_it_touches() -> None:
    by_group = Constraint("==", N % M, as_index(0))
    assert prove(reads_at(i + 1, where=(by_group,))) == ([], ["PF350"])
    assert prove(reads_at(i + 1, extent=N, where=(Constraint("==", K % T, as_index(0)),)))[0] == ["PF350"]


def test_opaque_products_are_still_compared() -> None:
    g = graph(
        [source("x", N * M), result("y", N * M)],
        [define("y", [dim(i, N * M, 1)], [i], read("x", i - 1)), define("y", [], [0], const(0.0))],
        "N M",
    )
    errors, still_open = prove(g)
    assert not errors and "PF350" not in still_open  # i - 1 for i in 1..N*M is in 0..N*M


def test_a_product_of_variables_is_an_error_once_sizes_are_known() -> None:
    assert prove(reads_at(i * j)) == ([], ["PF350"])
    assert prove(reads_at(i * j), {"N": 2, "M": 2, "K": 0, "T": 0})[0] == ["PF357"]


def test_division_by_zero() -> None:
    assert prove(reads_at(IVar("i") // as_index(0)))[0] == ["PF356"]
    assert prove(reads_at(i // K), {"N": 2, "M": 2, "K": 0, "T": 0})[0] == ["PF356"]
    assert prove(reads_at(i // K), {"N": 0, "M": 2, "K": 0, "T": 0}) == ([], [])


def test_negative_divisors_floor() -> None:
    assert prove(reads_at(-(i // -1)))[0] == []
    assert prove(reads_at((i % -3) + 2), {"N": 7, "M": 1, "K": 0, "T": 0})[0] == []
    assert prove(reads_at((i % -3) + 1), {"N": 7, "M": 1, "K": 0, "T": 0})[0] == ["PF350"]


def test_no_proof_is_an_error_only_when_sizes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obligations, "OPERATIONS", 3)
    g = reads_at(i - j + M)
    assert prove(g) == ([], ["PF350"])
    assert prove(g, {"N": 2, "M": 2, "K": 0, "T": 0})[0] == ["PF358"]


def test_an_index_written_twice_is_found() -> None:
    g = graph([source("x", N), result("y", N)], [define("y", [dim(i, N), dim(j, N)], [i], read("x", j))])
    assert "PF352" in prove(g, {"N": 3, "M": 0, "K": 0, "T": 0})[0]


def test_hostile_names_and_long_indices() -> None:
    """User names reach isl as numbers only; a very long index is not handed to it."""
    a, b = IVar("exists"), ISize("mod")
    g = graph(
        [source("and", b), result("or", b)],
        [define("or", [dim(a, b)], [a], read("and", b - 1 - a))],
        "mod",
    )
    assert prove(g) == ([], [])
    deep = i
    for _ in range(150):
        deep = (deep + j) // 2
    assert prove(reads_at(deep), {"N": 2, "M": 2, "K": 0, "T": 0})[0] == ["PF357"]


def test_layer_norm_is_fast() -> None:
    centred = op("sub", read("x", t, i), read("mu", t))
    g = graph(
        [source("x", T, N), temp("mu", T), temp("v", T), result("y", T, N)],
        [
            define("mu", [dim(t, T), inner(i, N)], [t], read("x", t, i), "sum"),
            define("v", [dim(t, T), inner(i, N)], [t], op("mul", centred, centred), "sum"),
            define("y", [dim(t, T), dim(i, N)], [t, i], op("mul", centred, op("rsqrt", read("v", t)))),
        ],
    )
    assert prove(g) == ([], [])
    start = time.process_time()
    prove(g)
    assert in_time(time.process_time() - start, 0.02)
