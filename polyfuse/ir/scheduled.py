"""A tensor graph with a schedule tree: what layer I takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.decisions import Decision
from polyfuse.ir.schedule_tree import Tree, format_tree, shape
from polyfuse.ir.tensor_graph import TensorGraph


@dataclass(frozen=True, slots=True)
class ScheduledGraph:
    """`tree` orders all statements of `graph`; `decisions` tells how it came about."""

    graph: TensorGraph
    tree: Tree
    decisions: tuple[Decision, ...] = ()

    @property
    def shape(self) -> str:
        """The tree on one line."""
        return shape(self.tree)

    def __str__(self) -> str:
        return f"{self.graph.name}: {self.shape}\n{format_tree(self.tree, graph=self.graph)}"
