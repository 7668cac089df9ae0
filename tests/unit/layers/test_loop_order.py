"""How much memory a loop walks."""

from __future__ import annotations

import polyfuse as pf
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.layers.mapping.loop_order import walked


def test_an_element_that_is_read_twice_counts_once() -> None:
    """Along t one access walks and one strides, as along h: no loop is better."""
    text = "op f(x: f32[H, T]) -> (y: f32[T, H]) { y[t, h] = x[h, t] * exp(x[h, t]) }"
    graph = fixed_graph(pf.parse(text).op("f").graph(), {"T": 64, "H": 64})
    (s,) = graph.statements
    assert walked(graph, s, "t") == walked(graph, s, "h") == (0, 0)
