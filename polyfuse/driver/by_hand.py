"""Schedules that a person edits: one primitive after the other, each proved legal.

    s = pf.schedule(program, "softmax", T=64, H=128)
    s = s.fuse("m", "e", at="t")          # a new schedule; s is what it was
    s = s.split("t", 8)
    s.history                             # the steps
    s.undo()                              # the schedule before the last one
    y = s.compile()(x)

Each step is judged by `poly.legality.schedules`, which knows nothing of the primitives.  A step that is
refused raises a ScheduleError with a pair of statement instances that would run in the wrong order, and
changes nothing.  Which loops may run in parallel is never said by hand: it follows from the dependences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError, ScheduleError
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.driver.scheduled_function import ScheduledFunction
from polyfuse.driver.stages import Scheduled
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.schedule_tree import Tree, restrict
from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph
from polyfuse.layers.fusion import remedies
from polyfuse.layers.fusion.loop_fusion import proved
from polyfuse.layers.fusion.remedies import Remedy, call
from polyfuse.layers.graph.inline import inlinable, inline
from polyfuse.layers.graph.local_copies import Refused, copy_of, local_copy, whole_definition
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import AsWritten, Stitching
from polyfuse.options import Options, TargetName
from polyfuse.poly.ast_build import loops_as_scheduled
from polyfuse.poly.legality.kept_storage import Kept, kept_in
from polyfuse.poly.model.domains import build_model, fixed_sizes_needed
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.storage import smallest
from polyfuse.poly.scheduling import tree_edit
from polyfuse.poly.scheduling.tree_convert import to_isl
from polyfuse.visualize.pseudo_code import pseudo_code

_PROVED = "legal: every instance runs after those that it needs"


@dataclass(frozen=True)
class Schedule(Scheduled):
    """A schedule that is edited by hand. `print(s)` shows its loops.

    A loop is named as it is printed, ``"h"``, or by a statement below it where several loops have that name,
    ``"y.h"``. Every primitive gives a new schedule, and raises ScheduleError: PF537 with a witness where the
    result would be illegal; PF520 to PF523 for a name that there is not, or a place that it does not fit.

    Attributes
    ----------
    specialized, ir
        As of `Scheduled`.
    kept
        Tensors that `contract` keeps less of.
    before
        The schedule before the last step; None at first.
    step
        The last step, as it is called.

    Examples
    --------
    >>> s = pf.schedule("op f(x: f32[N]) -> (y: f32[N]) { a[i] = x[i] + 1.0; y[i] = a[i] * a[i] }", N=100)
    >>> s = s.fuse("a", "y")
    >>> print(s)
    f: N = 100
    for i in 0..100:  # parallel
      a[i] = x[i] + 1.0
      y[i] = a[i] * a[i]
    """

    kept: tuple[Kept, ...] = ()
    before: Schedule | None = field(default=None, repr=False, compare=False)
    step: str = field(default="", compare=False)

    # --- what it is ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<polyfuse Schedule {self.graph.name}: {self.shape}>"

    def __str__(self) -> str:
        return "\n".join([self._title, *map(self._keeping, self.kept), self.loops])

    def _keeping(self, kept: Kept) -> str:
        if not kept.extents:
            return f"# {kept.tensor} is written in place"
        whole, less = (", ".join(map(str, e)) for e in (self.graph.tensor(kept.tensor).shape, kept.extents))
        return f"# of {kept.tensor}[{whole}] there is memory for [{less}]"

    @property
    def _title(self) -> str:
        origin = self.specialized.origin
        sizes = ", ".join(f"{n} = {v}" for n, v in origin.sizes) if origin else ""
        return f"{self.graph.name}: {sizes}" if sizes else f"{self.graph.name}:"

    @property
    def loops(self) -> str:
        """The loops as readable text, with what may run in parallel."""
        return pseudo_code(self.graph, self.tree, loops_as_scheduled(self.graph, self.tree))

    @property
    def history(self) -> tuple[str, ...]:
        """The steps that led here, the first one first."""
        return (*self.before.history, self.step) if self.before else ()

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The statements that are scheduled."""
        return self.graph.statements

    @property
    def isl_schedule(self) -> Any:
        """The schedule as islpy has it."""
        with isl_lock:
            return to_isl(build_model(self.graph), self.tree)

    def why(self, first: str, second: str) -> str:
        """Which loops the statements `first` and `second` share, and what keeps them from sharing more."""
        return self.explain(first, second)

    def undo(self) -> Schedule:
        """The schedule before the last step. Raises ScheduleError PF538 where there is none."""
        if self.before is None:
            raise ScheduleError("there is no step to undo", code="PF538", hint="history lists the steps")
        return self.before

    # --- primitives: which statements share loops ----------------------------------------------------------

    def fuse(self, first: str, second: str, at: str | None = None) -> Schedule:
        """Run two neighbours in common loops: those at their head that have the same names.

        Parameters
        ----------
        first, second
            Statements in two nests that follow one another (`move` brings them together).
        at
            The innermost loop to share; without it, all of the same names.

        Examples
        --------
        ::

            for i: a[i] = x[i]                     for i:
            for i: y[i] = a[i] * a[i]      ->        a[i] = x[i]
                                                     y[i] = a[i] * a[i]
        """
        others = partial(remedies.of_fuse, self.graph, self.tree, first, second, at)
        return self._edit(
            call("fuse", first, second, at=at), lambda: tree_edit.fuse(self.tree, first, second, at), others
        )

    def distribute(self, loop: str) -> Schedule:
        """Give each part below a loop loops of its own: the inverse of `fuse`.

        Examples
        --------
        ::

            for i:                                 for i: a[i] = x[i]
              a[i] = x[i]                  ->      for i: y[i] = a[i] * a[i]
              y[i] = a[i] * a[i]
        """
        return self._edit(call("distribute", loop), lambda: tree_edit.distribute(self.tree, loop))

    def move(self, statement: str, *, before: str | None = None, after: str | None = None) -> Schedule:
        """Run a nest before or after another statement of the same sequence.

        Parameters
        ----------
        statement
            One of the nest.
        before, after
            The other statement; one of both is given.

        Examples
        --------
        ::

            a; b; c                        ->      c; a; b             by  move("c", before="a")
        """
        return self._edit(
            call("move", statement, before=before, after=after),
            lambda: tree_edit.move(self.tree, statement, before=before, after=after),
        )

    # --- primitives: the order of one nest -----------------------------------------------------------------

    def split(self, loop: str, factor: int) -> Schedule:
        """Cut a loop into pieces of `factor` iterations (strip-mine). It is always legal.

        Examples
        --------
        ::

            for i in 0..100: S             ->      for i_tile in 0..13:
                                                     for i in 0..min(8, 100 - 8*i_tile): S
        """
        return self._edit(call("split", loop, factor), lambda: tree_edit.split(self.tree, loop, factor))

    def tile(self, loops: Many[str], factors: Many[int]) -> Schedule:
        """Split loops of one nest, by factors in their order; loops over tiles come first. Legal where the
        loops are permutable.

        Examples
        --------
        ::

            for i:                                 for i_tile:  for j_tile:
              for j: S                     ->        for i:  for j: S
        """

        def edit(tree: Tree) -> Tree:
            return tree_edit.tile(tree, loops, factors)

        text = call("tile", tuple(loops), tuple(factors))
        return self._edit(text, lambda: edit(self.tree), self._skewed(loops, edit, text))

    def interchange(self, *order: str) -> Schedule:
        """Put the loops of a perfect nest in another order; all of them are named, the outermost first.

        Examples
        --------
        ::

            for i:                                 for j:
              for j: S                     ->        for i: S          by  interchange("j", "i")
        """
        if not order:
            raise ScheduleError("interchange takes the loops in their new order", code="PF523")
        names = [tree_edit.loop_name(n) for n in order]

        def edit(tree: Tree) -> Tree:
            return tree_edit.interchange(tree, order[0], names)

        text = call("interchange", *order)
        return self._edit(text, lambda: edit(self.tree), self._skewed(order, edit, text))

    def reverse(self, loop: str) -> Schedule:
        """Run a loop backwards. Legal where it carries no dependence.

        Examples
        --------
        ::

            for i in 0..100: y[i] = x[i]   ->      for i in -99..1: y[-i] = x[-i]
        """
        return self._edit(call("reverse", loop), lambda: tree_edit.reverse(self.tree, loop))

    def skew(self, loop: str, by: str, factor: int = 1) -> Schedule:
        """Start a loop later in each iteration of a loop around it.

        It is always legal, and makes others legal: what goes back in the inner loop goes forward afterwards.

        Parameters
        ----------
        loop
            The inner loop.
        by
            The loop around it.
        factor
            So many iterations later.

        Examples
        --------
        ::

            for t:                                 for t:
              for i in 0..N: S[t, i]       ->        for i in t..N + t: S[t, i - t]
        """
        return self._edit(call("skew", loop, by, factor), lambda: tree_edit.skew(self.tree, loop, by, factor))

    def shift(self, statement: str, loop: str, by: int) -> Schedule:
        """Run a statement some iterations of a loop later than now.

        Parameters
        ----------
        statement, loop
            What is moved, and the loop.
        by
            So many iterations; earlier, if it is negative.

        Examples
        --------
        ::

            for i in 0..N:                         for i in 0..N+1:
              a[i] = x[i]                  ->        if i < N:  a[i] = x[i]
              b[i] = x[i]                            if i >= 1: b[i - 1] = x[i - 1]
        """
        name = tree_edit.loop_name(loop)
        others = partial(remedies.of_shift, self.tree, statement, name, by)
        return self._edit(
            call("shift", statement, loop, by),
            lambda: tree_edit.shift(self.tree, f"{statement}.{name}", statement, by),
            others,
        )

    def rename(self, loop: str, name: str) -> Schedule:
        """Give a loop another name: `fuse` pairs loops by their names.

        Examples
        --------
        ::

            for k: b[k] = a[k]             ->      for i: b[i] = a[i]      by  rename("b.k", "i")
        """
        return self._edit(call("rename", loop, name), lambda: tree_edit.rename(self.tree, loop, name))

    # --- primitives: where values are computed and kept -----------------------------------------------------

    def recompute(self, tensor: str, at: str | None = None) -> Schedule:
        """Compute a temporary anew where it is read (rematerialise), in place of storing all of it.

        Parameters
        ----------
        tensor
            A temporary that one statement defines.
        at
            A loop: each of its iterations computes first what it reads of the tensor, in a local tensor.
            Where iterations read the same elements, each computes its own. Without a loop the definition
            takes the place of every read.

        Raises
        ------
        ScheduleError
            PF540 where no definition can take the place of what is read.

        Examples
        --------
        ::

            for i: a[i] = exp(x[i])                for i:
            for i: y[i] = a[i] + a[i + 1]  ->        y[i] = exp(x[i]) + exp(x[i + 1])

            for i: a[i] = exp(x[i])                for i_tile in 0..13:
            for i_tile in 0..13:           ->        for i in 0..9: a__local[i_tile, i] = exp(x[8*i_tile + i])
              for i in 0..8: y[8*i_tile + i] =       for i in 0..8: y[8*i_tile + i] =
                a[..i] + a[..i + 1]                    a__local[i_tile, i] + a__local[i_tile, i + 1]
        """
        step = call("recompute", tensor, at=at)
        self._known(tensor)
        if at is not None:
            definition = whole_definition(self.graph, tensor)
            return self._copied(step, tensor, definition, at, "local")
        if inlinable(self.graph, tensor) is None:
            why = whole_definition(self.graph, tensor)
            reason = why.reason if isinstance(why, Refused) else "it cannot stand in an expression"
            raise self._unfit(step, tensor, reason)
        graph = inline(self.graph, tensor)
        tree = restrict(self.tree, frozenset(s.name for s in graph.statements))
        assert tree is not None
        return self._edit(step, lambda: tree, graph=graph)

    def cache(self, tensor: str, at: str) -> Schedule:
        """Copy what an iteration of a loop reads of a tensor to a local one first, and read it from there.

        Parameters
        ----------
        tensor
            What is copied.
        at
            The loop.

        Raises
        ------
        ScheduleError
            PF540 where data say which elements are read.

        Examples
        --------
        ::

            for t:                                 for t:
              for h: s[t] += x[t, h]                 for h: x__cache[t, h] = x[t, h]
              for h: y[t, h] = x[t, h] / s[t]  ->    for h: s[t] += x__cache[t, h]
                                                     for h: y[t, h] = x__cache[t, h] / s[t]
        """
        self._known(tensor)
        step = call("cache", tensor, at)
        return self._copied(step, tensor, copy_of(self.graph, tensor), at, "cache")

    def contract(self, tensor: str) -> Schedule:
        """Keep no more of a temporary, `tensor`, than is still needed; an inout parameter is written in
        place.

        Elements take turns in memory, which orders more instances than the values do: later steps that would
        write an element while another one is needed in its place are refused. A loop in which an element of a
        parameter is read by one iteration and replaced by another one runs in order.

        Raises
        ------
        ScheduleError
            PF541 where nothing can be saved, PF542 where a parameter is read after it would be replaced.

        Examples
        --------
        ::

            for t:                                 # of e[64, 128] there is memory for [1, 128]
              for h: e[t, h] = ...           ->    for t: ...
              for h: y[t, h] = e[t, h] / s[t]
        """
        self._known(tensor)
        step, role = call("contract", tensor), self.graph.tensor(tensor).role
        extents: tuple[IndexExpr, ...] = ()
        if role is Role.TEMP:
            with isl_lock:
                extents = smallest(build_model(self.graph), self.tree, tensor)
        if extents == self.graph.tensor(tensor).shape or role not in (Role.TEMP, Role.INOUT):
            reason = "all of it is needed at a time" if role is Role.TEMP else f"it is an {role.value}"
            hint = "fuse what writes it with what reads it first" if role is Role.TEMP else None
            span = self.graph.tensor(tensor).span
            raise ScheduleError(f"{step} is refused: {reason}", code="PF541", span=span, hint=hint)
        kept = (*(k for k in self.kept if k.tensor != tensor), Kept(tensor, extents))
        return self._edit(step, lambda: self.tree, kept=kept)

    def _copied(
        self, step: str, tensor: str, definition: Statement | Refused, at: str, suffix: str
    ) -> Schedule:
        if isinstance(definition, Refused):
            raise self._unfit(step, tensor, definition.reason)
        target = tree_edit.find(self.tree, at)
        made = local_copy(self.graph, self.tree, tensor, definition, target, suffix)
        if isinstance(made, Refused):
            raise self._unfit(step, tensor, made.reason)
        graph, tree = made
        return self._edit(step, lambda: tree, graph=graph)

    def _known(self, tensor: str) -> None:
        names = [t.name for t in self.graph.tensors]
        if tensor not in names:
            message = f"there is no tensor '{tensor}'; there are: {', '.join(names)}"
            raise ScheduleError(message, code="PF520")

    def _unfit(self, step: str, tensor: str, reason: str) -> ScheduleError:
        span = self.graph.tensor(tensor).span
        return ScheduleError(f"{step} is refused: {reason}", code="PF540", span=span)

    def _skewed(
        self, loops: Many[str], edit: Callable[[Tree], Tree], text: str
    ) -> Callable[[], Iterable[Remedy]]:
        return lambda: remedies.of_nest(self.tree, tree_edit.nest_of(self.tree, loops[0]), edit, text)

    # --- steps -----------------------------------------------------------------------------------------

    def _edit(
        self,
        step: str,
        edit: Callable[[], Tree],
        others: Callable[[], Iterable[Remedy]] = lambda: (),
        graph: TensorGraph | None = None,
        kept: tuple[Kept, ...] | None = None,
    ) -> Schedule:
        """The schedule after a change of the tree, or of the graph too.

        Raises ScheduleError PF537 where that is illegal, PF542 where it needs more storage than is kept.
        """
        graph, kept = graph or self.graph, self.kept if kept is None else kept
        names = {t.name for t in graph.tensors}
        kept = tuple(k for k in kept if k.tensor in names)
        try:
            tree = proved(graph, edit(), kept)
        except ScheduleError as refused:
            found = refused.diagnostics[0]
            if found.code == "PF542":
                raise ScheduleError([replace(found, message=f"{step} is refused: {found.message}")]) from None
            if found.code not in ("PF501", "PF502"):
                raise
            hint = remedies.remedy(self.graph, others())
            message = f"{step} is refused: {found.message}"
            raise ScheduleError([replace(found, code="PF537", message=message, hint=hint)]) from None
        told = Decision("by hand", step, True, _PROVED)
        ir = replace(self.ir, graph=graph, tree=tree, decisions=(*self.ir.decisions, told))
        return replace(self, ir=ir, kept=kept, before=self, step=step)

    def apply(self, layer: object) -> Schedule:
        """The schedule after layer I (``layer=LoopFusion()``), as a step that can be undone."""
        made = super().apply(layer)
        return Schedule(made.specialized, made.ir, before=self, step=f"apply({layer!r})")

    def with_tree(self, tree: Tree, *, check: bool = True) -> Schedule:
        """The same graph under another `tree`, as a step that can be undone; ``check=False`` proves
        nothing."""
        made = super().with_tree(tree, check=check)
        return Schedule(made.specialized, made.ir, before=self, step="with_tree(...)")

    def _with_graph(self, graph: TensorGraph, *why: Decision) -> Schedule:
        made = super()._with_graph(graph, *why)
        step = ", ".join(f"{d.kind} {d.subject}" for d in why) or "a rewrite that changed nothing"
        return Schedule(made.specialized, made.ir, before=self, step=step)

    # --- what follows ------------------------------------------------------------------------------------

    def compile(
        self, target: TargetName = "auto", *, options: Options | None = None, **switches: Any
    ) -> ScheduledFunction:
        """A function that computes the operator by this schedule, at its sizes.

        Parameters
        ----------
        target
            As for `pf.compile`.
        options
            An Options object.
        **switches
            Or its fields.

        Raises
        ------
        ArgumentError
            PF539 where the schedule is of no operator (but of a piece of one), or sizes are open.
        """
        origin = self.specialized.origin
        if origin is None or self.graph.sizes:
            what = "it is a piece of one" if origin is None else f"{', '.join(self.graph.sizes)} are open"
            message = f"the schedule of '{self.graph.name}' gives no function of an operator: {what}"
            raise ArgumentError(message, code="PF539", hint="lower().build().run(arrays)")
        return ScheduledFunction(self, origin, target, options or Options(**switches))

    def _formed(
        self, options: Options, target: str, stitching: Stitching | None, packing: Packing | None
    ) -> Kernels:
        """A kernel for each nest, as it is written; where that is not legal on the target, of each phase."""
        if stitching is not None:
            return self._telling(super()._formed(options, target, stitching, packing))
        written = AsWritten(barriers=False, tree=self.tree)
        try:
            made = super()._formed(options, target, written, packing)
        except ScheduleError as refused:
            why = Decision("as written", self.graph.name, False, refused.diagnostics[0].message)
            made = super()._formed(options, target, None, packing)
            made = replace(made, decisions=(*made.decisions, why))
        return self._telling(replace(made, stitching=None))

    def _telling(self, made: Kernels) -> Kernels:
        """The kernels, and what became of the storage that was asked for."""
        told = [d for k in self.kept if k.extents for d in kept_in(made.ir, k)]
        return replace(made, decisions=(*made.decisions, *told))


def edited(stage: Scheduled) -> Schedule:
    """A schedule to be edited, from any. Raises ScheduleError PF513 for sizes that must be known first."""
    needed = fixed_sizes_needed(stage.graph)
    if needed:
        names = ", ".join(needed)
        raise ScheduleError(
            f"the schedule needs the value of {names}",
            code="PF513",
            hint=f"pf.schedule(..., {needed[0]}=...)",
        )
    return Schedule(stage.specialized, replace(stage.ir, tree=proved(stage.graph, stage.tree)))
