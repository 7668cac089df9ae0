"""Dependence relations against relations written by hand, and against the enumerator."""

from __future__ import annotations

from dataclasses import replace

import graphs
import islpy as isl
import pytest
from brute_force import Enumeration
from graphs import graph

from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.poly.model import dependences
from polyfuse.poly.model.domains import PolyModel, build_model, specialize


def same(model: PolyModel, relation: isl.UnionMap, text: str) -> bool:
    """Is the relation the one written down, for all sizes that are allowed?"""
    sizes = ", ".join(f"N_{n}" for n in model.params)
    wanted = isl.UnionMap.read_from_str(model.context, f"[{sizes}] -> {{ {text} }}")
    allowed = model.assumptions
    return bool(relation.intersect_params(allowed).is_equal(wanted.intersect_params(allowed)))


def test_flow_of_a_broadcast() -> None:
    g = graph("g", "x[T]", "y[T,H]", "a[t] = x[t] | t<T\ny[t,h] = a[t] | t<T, h<H")
    m = build_model(g)
    assert same(m, dependences.flow(m), "S_a[t] -> S_y[t, h] : 0 <= t < N_T and 0 <= h < N_H")


def test_a_consumer_of_a_reduction_needs_all_its_updates() -> None:
    m = build_model(graphs.NORM_ALL)
    assert same(m, dependences.flow(m), "S_n2[i] -> S_y[k] : 0 <= i < N_N and 0 <= k < N_N")


def test_flow_of_a_recurrence() -> None:
    m = build_model(graphs.SCAN)
    first = "S_c0[j] -> S_c1[1, j] : 0 <= j < N_J and N_T > 1"
    next_ = "S_c1[t, j] -> S_c1[t + 1, j] : 1 <= t < N_T - 1 and 0 <= j < N_J"
    assert same(m, dependences.flow(m), f"{first}; {next_}")


def test_a_guard_limits_the_flow() -> None:
    text = "a[t] = x[t] | t<T\ny[t] = a[t-1] if t >= 1 and t < 5 else x[t] | t<T"
    m = build_model(graph("g", "x[T]", "y[T]", text))
    assert same(m, dependences.flow(m), "S_a[t] -> S_y[t + 1] : 0 <= t and t < 4 and t + 1 < N_T")


def test_both_sides_of_a_guard_on_data_count() -> None:
    text = "a[t] = x[t] | t<T\ny[t] = a[t] if x[t] > 0 else a[0] | t<T"
    g = graph("g", "x[T]", "y[T]", text.replace("x[t] > 0", "x[t] > x[0]"))
    m = build_model(g)
    assert same(m, dependences.flow(m), "S_a[t] -> S_y[t] : 0 <= t < N_T; S_a[0] -> S_y[t] : 0 <= t < N_T")


def test_a_gather_may_read_the_whole_range() -> None:
    m = build_model(graphs.GATHER)
    every = "S_e[v, h] -> S_r[t, h] : 0 <= v < N_V and 0 <= t < N_T and 0 <= h < N_H"
    assert same(m, dependences.flow(m), f"{every}; S_r[t, h] -> S_y[t, h] : 0 <= t < N_T and 0 <= h < N_H")


def test_definitions_come_before_accumulations() -> None:
    m = build_model(graphs.SCATTER)
    box = "0 <= v < N_V and 0 <= t < N_T and 0 <= h < N_H"
    assert same(m, dependences.accumulation_order(m), f"S_o0[v, h] -> S_o1[t, h] : {box}")
    last = "S_o0[v, h] -> S_y[v, h] : 0 <= v < N_V and 0 <= h < N_H"
    flow = f"{last}; S_o1[t, h] -> S_y[v, h] : {box}"
    assert same(m, dependences.flow(m), flow)
    assert same(m, dependences.ordering(m), f"{flow}; S_o0[v, h] -> S_o1[t, h] : {box}")


def test_updates_of_one_element() -> None:
    m = build_model(graphs.LAYER_NORM)
    box = "0 <= t < N_T and 0 <= a < N_H and 0 <= b < N_H"
    text = "; ".join(f"S_{s}[t, a] -> S_{s}[t, b] : {box}" for s in ("sm", "sq"))
    assert same(m, dependences.reduction_self(m), text)


def test_shared_reads_tie_the_sums_of_layer_norm_backward() -> None:
    m = build_model(graphs.LAYER_NORM_BACKWARD)
    ties = dependences.shared_reads(m)
    box = "0 <= t < N_T and 0 <= h < N_H"
    wanted = f"S_dg0[t, h] -> S_dgm[h, t] : {box}; S_dgm[h, t] -> S_dbt[h, t] : {box}"
    assert same(m, ties, wanted)


def test_reads_that_are_not_injective_tie_nothing() -> None:
    text = "y[t,h] = b[h] | t<T, h<H\nz[t,h] = b[h] | t<T, h<H"
    m = build_model(graph("g", "b[H]", "y[T,H] z[T,H]", text))
    assert dependences.shared_reads(m).is_empty()


def test_reads_of_an_entry_value_come_before_its_replacement() -> None:
    text = "y[t] = p[t] + p[0] | t<T"
    g = graph("g", "p[T]", "y[T]", text)
    tensors = tuple(
        replace(t, role=Role.INOUT) if t.name == "p" else replace(t, alias="p") for t in g.tensors
    )
    m = build_model(replace(g, tensors=tensors))
    wanted = "S_y[t] -> S_y[t] : 0 <= t < N_T; S_y[t] -> S_y[0] : 0 <= t < N_T"
    assert same(m, dependences.anti(m, "p"), wanted)
    assert dependences.anti(m, "x").is_empty()


@pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)
def test_ordering_is_what_enumeration_finds(g: TensorGraph) -> None:
    sizes = dict(zip(g.sizes, (4, 3, 2, 2), strict=False))
    model = build_model(specialize(g, sizes))
    found = set()

    def collect(point: isl.Set) -> None:
        ends = point.unwrap()
        values = []
        for side, whole in ((isl.dim_type.in_, ends.domain()), (isl.dim_type.out, ends.range())):
            name = (ends.get_tuple_name(side) or "").removeprefix("S_")
            p = whole.sample_point()
            count = whole.dim(isl.dim_type.set)
            where = (p.get_coordinate_val(isl.dim_type.set, k).to_python() for k in range(count))
            values.append((name, tuple(map(int, where))))
        found.add(tuple(values))

    def collect_map(m: isl.Map) -> None:
        m.wrap().foreach_point(lambda p: collect(isl.Set.from_point(p)))

    dependences.ordering(model).foreach_map(collect_map)
    e = Enumeration(g, sizes)
    wanted = {(a, b) for sources, sinks in e._dependences() for a in sources for b in sinks}
    assert found == wanted
