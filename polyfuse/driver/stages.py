"""The stages after a program, before there are kernels: an operator at known sizes, and its schedules.

    Specialized --schedule--> Scheduled --lower--> Kernels (`polyfuse.driver.kernel_stages`)

Each is immutable; a method exists only where it is legal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.kernel_stages import Kernels, applied, later_stage
from polyfuse.driver.lowering import Passes, launches
from polyfuse.driver.pipeline import Built, clustering_of, fixed_graph, must_report
from polyfuse.driver.targets import knobs_for, mapped_for, resolve_target
from polyfuse.frontend_dsl.semantics.signature import Signature
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.ir.schedule_tree import ScheduledGraph, Tree
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.clustering.clusters import Clustering, cut_off
from polyfuse.layers.fusion.explain import explain_pair
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule, proved
from polyfuse.layers.graph.cleanup.run import cleaned
from polyfuse.layers.graph.inline import cache_read, inlinable, inline
from polyfuse.layers.graph.one_pass.online import online_forms
from polyfuse.layers.graph.pipeline import GraphContext, prepared
from polyfuse.layers.mapping.kernels import entry_copies, separate_kernels
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options, TargetName
from polyfuse.poly.legality.schedules import Verdict, check_schedule
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.visualize.dataflow import graph_svg
from polyfuse.visualize.schedule import before_after_svg, tree_svg
from polyfuse.visualize.svg import Picture


@dataclass(frozen=True)
class Origin:
    """The operator that a stage is of, and the sizes that were given."""

    programs: tuple[ast.Program, ...]
    signature: Signature
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Specialized:
    """An operator whose generics, and some or all sizes, are known: what `Operator.specialize` gives.

    Attributes
    ----------
    open_graph
        Its tensor graph with all sizes open.
    graph
        The graph at the sizes that are known.
    decisions
        What `clean` has done.
    origin
        The operator that it is of; None for a piece of one.

    Examples
    --------
    >>> stage = pf.stdlib.softmax.specialize(B_0=64, H=128)
    >>> stage, stage.schedule()
    (<polyfuse Specialized softmax>, <polyfuse Scheduled softmax: [B11(m); B11(e); B11(s); B11(y)]>)
    """

    open_graph: TensorGraph
    graph: TensorGraph
    decisions: tuple[Decision, ...] = ()
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def clusters(
        self,
        clustering: Clustering | None = None,
        options: Options | None = None,
        *,
        target: TargetName = "auto",
    ) -> tuple[Specialized, ...]:
        """The pieces that `compile` cuts a graph of many statements into, each an operator of its own.

        What goes from one to another is a result of the first and an input of the second.

        Parameters
        ----------
        clustering
            How it is cut; as `compile` does if not given.
        options, target
            As for `compile`.
        """
        chosen, made_for = options or Options(), resolve_target(target)
        machine, cut = mapped_for(made_for, chosen), clustering_of(clustering, chosen)
        found = [*self.decisions]
        knobs = knobs_for(made_for, chosen)
        # Each piece is called with arrays as they are.
        given = frozenset(t.name for t in self.graph.tensors if t.role is not Role.TEMP)
        report = must_report(chosen, made_for)
        parallel = chosen.scan == "parallel"
        cx = GraphContext(
            found, machine, knobs.on, report, given, disabled=knobs.disabled, parallel_scans=parallel
        )
        graph = prepared(self.graph, cx)
        pieces = cut_off(graph, cut.clusters(graph, found, machine, core=knobs.core))
        return tuple(replace(self, graph=g, decisions=tuple(found), origin=None) for g in pieces)

    def clean(self) -> Specialized:
        """The operator without what it need not compute: constants folded, exact identities applied, equal
        tensors computed once, unused ones not at all. Nothing that a checked build reports goes away."""
        found: list[Decision] = []
        graph = cleaned(self.graph, found, checked=True)
        return replace(self, graph=graph, decisions=(*self.decisions, *found))

    def schedule(self, *, clean: bool = True) -> Scheduled:
        """The identity schedule, without fusion, of the graph after `clean()`, or with ``clean=False`` of the
        graph as it is.
        """
        made = self.clean() if clean else self
        return Scheduled(self, replace(identity_schedule(made.graph), decisions=made.decisions))

    if not TYPE_CHECKING:
        __getattr__ = later_stage(
            {
                **dict.fromkeys(("apply", "lower", "tree", "explain"), "schedule()"),
                **dict.fromkeys(("build", "kernels"), "schedule().lower()"),
            }
        )

    def picture(self) -> Picture:
        """The statements, and what each reads."""
        return Picture(graph_svg(self.graph))

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()

    def __repr__(self) -> str:
        return f"<polyfuse Specialized {self.graph.name}>"

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True)
class Scheduled:
    """A schedule of an operator; layer I makes better ones of it.

    Attributes
    ----------
    specialized
        The stage before.
    ir
        The graph, its tree, and the decisions that led to it.

    Examples
    --------
    >>> stage = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule()
    >>> stage.apply(pf.LoopFusion()).shape
    'B1([B1(m); B1(e+s); B1(y)])'
    """

    specialized: Specialized
    ir: ScheduledGraph

    @property
    def tree(self) -> Tree:
        """The schedule tree; `print(s)` shows it."""
        return self.ir.tree

    @property
    def graph(self) -> TensorGraph:
        """The operator after the rewrites of its graph."""
        return self.ir.graph

    @property
    def shape(self) -> str:
        """The tree on one line, `B1([sum; mu; ...])`."""
        return self.ir.shape

    if not TYPE_CHECKING:
        _figures = ("build", "kernels", "launches", "global_bytes", "shared_bytes", "barriers", "code")
        __getattr__ = later_stage({**dict.fromkeys(_figures, "lower()"), "run": "lower().build()"})

    def __repr__(self) -> str:
        return f"<polyfuse Scheduled {self.graph.name}: {self.shape}>"

    def __str__(self) -> str:
        return str(self.ir)

    def apply(self, layer: object) -> Scheduled:
        """The schedule after layer I, or what the `apply` of any other object makes of it: ``apply(layer)``.

        Raises
        ------
        ScheduleError
            PF5xx where no legal one is found.
        ArgumentError
            PF413 for what is no pass.
        """
        if isinstance(layer, LoopFusion):
            return replace(self, ir=layer.run(self.ir))
        return applied(layer, self, "schedules", "use LoopFusion()")

    def with_tree(self, tree: Tree, *, check: bool = True) -> Scheduled:
        """The same graph under another tree.

        Which loops may run in parallel, and which bands are permutable, is computed from the dependences.

        Parameters
        ----------
        tree
            A schedule tree of the same statements.
        check
            False takes it as it is, without a proof.

        Raises
        ------
        ScheduleError
            With a witness, if it is illegal.
        """
        return replace(self, ir=replace(self.ir, tree=proved(self.graph, tree) if check else tree))

    def inline(self, tensor: str) -> Scheduled:
        """Rematerialise a temporary: its readers recompute it. The schedule starts anew, without fusion.

        Raises ArgumentError PF416 if `tensor` is no temporary that one plain definition gives.
        """
        if tensor not in {t.name for t in self.graph.tensors} or inlinable(self.graph, tensor) is None:
            raise ArgumentError(f"'{tensor}' cannot be recomputed where it is read", code="PF416")
        return self._with_graph(
            inline(self.graph, tensor), Decision("rematerialise", tensor, True, "by hand")
        )

    def cache_read(self, tensor: str) -> Scheduled:
        """Read an input into a temporary that its readers share. The schedule starts anew, without fusion.

        Raises ArgumentError PF416 if `tensor` is no input.
        """
        if tensor not in self.graph.inputs:
            names = ", ".join(self.graph.inputs)
            raise ArgumentError(f"there is no input '{tensor}'", code="PF416", hint=f"there are {names}")
        return self._with_graph(
            cache_read(self.graph, tensor), Decision("cache_read", tensor, True, "by hand")
        )

    def online(
        self,
        options: Options | None = None,
        *,
        target: TargetName = "auto",
        stitching: Stitching | None = None,
    ) -> Scheduled:
        """Reductions and sums that need their totals in one pass over memory. The schedule starts anew,
        without fusion.

        Parameters
        ----------
        options, target
            As for `compile`: it is done where that pays on the target.
        stitching
            `Stitching.online` says otherwise.

        Notes
        -----
        Online softmax: Milakov and Gimelshein, 2018.
        """
        machine = mapped_for(resolve_target(target), options or Options())
        found: list[Decision] = []
        graph = online_forms(self.graph, machine, found, wanted=(stitching or Stitching()).online)
        return self._with_graph(graph, *found)

    def _with_graph(self, graph: TensorGraph, *why: Decision) -> Scheduled:
        fresh = identity_schedule(graph)
        return replace(self, ir=replace(fresh, decisions=(*self.ir.decisions, *why)))

    def picture(self, before: Scheduled | None = None) -> Picture:
        """The tree, or beside that of another schedule, `before`."""
        title = f"{self.graph.name}: {self.shape}"
        made = before_after_svg(before.ir, self.ir) if before else tree_svg(self.tree, title, self.graph)
        return Picture(made)

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()

    def legality(self, tree: Tree | None = None) -> Verdict:
        """Legal, or Illegal with a concrete pair of statement instances: of `tree`, or of its own."""
        with isl_lock:
            return check_schedule(build_model(self.graph), tree or self.tree)

    def explain(self, first: str | None = None, second: str | None = None) -> str:
        """Every decision; of the statements `first` and `second`, which loops they share and what keeps them
        apart."""
        if first is None or second is None:
            return "\n".join(map(str, self.ir.decisions))
        return explain_pair(self.ir, first, second)

    def lower(self, options: Options | None = None, *, target: TargetName = "auto") -> Kernels:
        """Kernels of one phase each, mapped for the target and proved legal; `options` and `target` as for
        `compile`."""
        return self._formed(options or Options(), resolve_target(target), None, None)

    def _formed(
        self, options: Options, target: str, stitching: Stitching | None, packing: Packing | None
    ) -> Kernels:
        machine, knobs = mapped_for(target, options), knobs_for(target, options)
        separate, decisions = separate_kernels(self.ir, machine, stitching, knobs)
        copied, in_place = entry_copies(separate)
        kernels, packs = launches(separate, Passes(Clustering(), None, stitching, packing, machine, knobs))
        why = (*self.ir.decisions, *decisions, *in_place, *packs)
        return Kernels(self, kernels, why, options, target, stitching, packing, copied)


# --- stages of what was compiled --------------------------------------------------------------------------


class BuiltStages(Built):
    """A finished compilation whose `kernels` are `pf.Kernels`, with their figures and pictures."""

    @classmethod
    def of(cls, built: Built) -> BuiltStages:
        """The same compilation."""
        return cls(**{f.name: getattr(built, f.name) for f in fields(built)})

    @property
    def kernels(self) -> Kernels:  # type: ignore[override]
        """The kernels that run, in launch order."""
        c, low = self.compilation, self.lowered
        specialized = Specialized(c.graph, fixed_graph(c.graph, c.sizes))
        return Kernels(
            Scheduled(specialized, low.scheduled),
            low.kernels,
            self.decisions,
            c.options,
            c.target,
            c.stitching,
            c.packing,
            low.copied,
        )
