"""The Python side: one immutable class for each stage of the way.

    parse -> Program -> Operator -> Specialized -> Scheduled -> Kernels -> Executable

A method exists only where it is legal; `compile` walks all stages at once and gives a function.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from polyfuse.autodiff.derive import Wishes, derive
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.checking import check_loaded, open_graph
from polyfuse.diagnostics import ArgumentError, Diagnostics, PolyfuseWarning
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.kernel_stages import Executable, Kernels, compare, later_stage
from polyfuse.driver.partitions import kernels_by, micro_text, passes_of
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.driver.stages import Origin, Scheduled, Specialized
from polyfuse.driver.targets import require_target
from polyfuse.frontend_dsl.semantics.bind_sizes import check_constraints, check_given, with_defaults
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.semantics.optionals import optionals
from polyfuse.frontend_dsl.semantics.signature import Signature, axis_of, signature, size_names
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.imports import load, load_text
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.gradient_pairs import Gradients, sources_of
from polyfuse.ir.dtypes import DType
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.library import LISTED, standard_programs
from polyfuse.options import (
    LAYERS,
    PARTITIONS,
    TARGETS,
    TUNE,
    Open,
    Options,
    Partition,
    Sizes,
    TargetName,
    Wish,
    open,
)

__all__ = [
    "LAYERS",
    "PARTITIONS",
    "TARGETS",
    "TUNE",
    "ArgumentError",
    "Clustering",
    "Compiled",
    "Diagnostics",
    "Executable",
    "Gradients",
    "Kernels",
    "LoopFusion",
    "Operator",
    "Options",
    "Packing",
    "PolyfuseWarning",
    "Program",
    "Scheduled",
    "Specialized",
    "Stitching",
    "check_program",
    "checked",
    "compare",
    "compile",
    "format_program",
    "grad",
    "kernels_by",
    "load",
    "load_text",
    "micro_text",
    "open",
    "parse",
    "parse_text",
    "standard_programs",
    "stdlib",
]

LIBRARY = "stdlib:"
"""How the name of an operator of the standard library begins where a program may stand."""


def parse(text_or_path: str | os.PathLike[str]) -> Program:
    """A program from text, or from a ``.pf`` file, its syntax, names, types and ranges checked.

    What is read and defined (PF350 and the like) is proved later: when an operator is specialised or
    compiled, or by `polyfuse check`.

    Parameters
    ----------
    text_or_path
        Text of the language, or a file: a path object, or a string that ends in ``.pf``.

    Returns
    -------
    Program
        Its operators, and those that it may call.

    Raises
    ------
    DslError
        All errors of the file at once, each with its place; PF107 for a file that cannot be read. Warnings
        are issued as PolyfuseWarning.

    Examples
    --------
    >>> pf.parse("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[i] }")
    <polyfuse program: twice>
    """
    return checked(load(text_or_path).programs)


def checked(programs: tuple[ast.Program, ...]) -> Program:
    """A program from syntax trees, the one asked for last, as `parse` gives it: with every check made."""
    done = check_loaded(programs)
    done.found.raise_if_errors()
    for d in done.found.warnings:
        warnings.warn(d.render(), PolyfuseWarning, stacklevel=3)
    return Program(done.programs)


def stdlib() -> Program:
    """The standard operators (`pf.stdlib`)."""
    return Program(standard_programs())


@dataclass(frozen=True)
class Program:
    """Parsed and checked operators; each is an attribute, too.

    Attributes
    ----------
    programs
        Syntax trees: that of the file asked for, then those that it may call.

    Examples
    --------
    >>> program = pf.parse("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[i] }")
    >>> program.ops, program.twice
    (('twice',), <polyfuse operator twice(x: f32[N]) -> (y: f32[N])>)
    >>> print(program)
    op twice(x: f32[N]) -> (y: f32[N]) {
      y[i] = x[i] + x[i]
    }
    """

    programs: tuple[ast.Program, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operators of the file (of all files, for the standard library)."""
        own = self.programs if self._is_library else self.programs[:1]
        return tuple(op.name for p in own for op in p.ops)

    @property
    def _is_library(self) -> bool:
        return bool(self.programs) and self.programs[0].source.name.startswith("stdlib/")

    def op(self, name: str | None = None) -> Operator:
        """An operator by its `name`; the last of the file for None. Raises ArgumentError PF411 if there is
        none."""
        chosen = name if name is not None else self.ops[-1] if self.ops else None
        for p in self.programs:
            for op in p.ops:
                if op.name == chosen:
                    return Operator(self, op)
        if chosen is None:
            raise ArgumentError("the program has no operator", code="PF411")
        listed = LISTED if self._is_library else f"there are {', '.join(self.ops)}" if self.ops else None
        hint = did_you_mean(chosen, self.ops) or listed
        raise ArgumentError(f"there is no operator '{chosen}'", code="PF411", hint=hint)

    def backward(self, name: str | None = None, wrt: Sequence[str] | None = None, **wishes: Any) -> Operator:
        """The operator that gives the gradients of one of these: ``grad(self.op(name), wrt,
        **wishes).backward``.

        Parameters
        ----------
        name
            As for `op`.
        wrt, **wishes
            As for `grad`.
        """
        return grad(self.op(name), wrt, **wishes).backward

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Operator:
            """An operator by its name, where the class has no attribute of that name: `pf.stdlib.gelu`."""
            internal = name.startswith("__") or name == "programs"  # asked for while a copy is made
            if internal or name not in self.ops:
                hint = None if internal else did_you_mean(name, self.ops)
                message = f"'Program' object has no attribute or operator '{name}'"
                raise AttributeError(f"{message}; {hint}" if hint else message)
            found = self.__dict__[name] = self.op(name)
            return found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.ops]

    def __getstate__(self) -> dict[str, object]:
        return {"programs": self.programs}

    def __deepcopy__(self, memo: object) -> Program:
        return self

    def __repr__(self) -> str:
        return f"<polyfuse program: {', '.join(self.ops)}>"

    def __str__(self) -> str:
        """The file in canonical layout."""
        return format_program(self.programs[0])


@dataclass(frozen=True)
class Operator:
    """One operator of a program, its generics still open. It is called like a function of `compile`.

    Attributes
    ----------
    program, op
        Where it is from, and its syntax tree.
    absent
        The optional tensors that it lacks; None: each call decides.

    Examples
    --------
    >>> pf.stdlib.softmax
    <polyfuse operator softmax[F: float](x: F[B..., H]) -> (y: F[B..., H])>
    >>> pf.stdlib.softmax(np.zeros((1, 4), "f4"))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """

    program: Program
    op: ast.OpDef
    absent: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """What programs call it."""
        return self.op.name

    @cached_property
    def signature(self) -> Signature:
        """Its generics, sizes, parameters and results; `print` shows them as the language has them."""
        whole = signature(self.op)
        return whole if self.absent is None else whole.without(self.absent)

    def without(self, *names: str) -> Operator:
        """The operator where these optional tensors, by `names`, are absent, and the others are there.

        Raises ArgumentError PF408 for what is no optional tensor of it.
        """
        known = optionals(self.op)
        for name in names:
            if name not in known:
                hint = f"those are {', '.join(known)}" if known else "it has none"
                message = f"{self.name} has no optional tensor '{name}'"
                raise ArgumentError(message, code="PF408", hint=hint)
        return Operator(self.program, self.op, names)

    def __deepcopy__(self, memo: object) -> Operator:
        return self

    @cached_property
    def _compiled(self) -> Compiled:
        return compile(self)

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """The operator as a function, as `compile(operator)` gives it without options."""
        return self._compiled(*args, **kwargs)

    if not TYPE_CHECKING:  # types know what there is; at run time the message names the missing call
        __getattr__ = later_stage(
            {"schedule": "specialize()", **dict.fromkeys(("apply", "lower"), "specialize().schedule()")}
        )

    def __repr__(self) -> str:
        return f"<polyfuse operator {self.signature}>"

    def __str__(self) -> str:
        return str(self.signature)

    def graph(
        self, dtypes: Mapping[str, DType | str] | None = None, ranks: Mapping[str, int] | None = None
    ) -> TensorGraph:
        """The tensor graph at one choice of generics.

        Parameters
        ----------
        dtypes
            Of generic types, as ``{"F": "f16"}``; f32 or i32 for others.
        ranks
            Axes that rank variables stand for, as ``{"B": 2}``; one for others.
        """
        return open_graph(self.program.programs, self.op, dtypes, ranks, self.absent or ())

    def specialize(
        self,
        dtypes: Mapping[str, DType | str] | None = None,
        ranks: Mapping[str, int] | None = None,
        **sizes: int,
    ) -> Specialized:
        """The operator at some or all sizes. Others stay symbolic, but for size parameters that have
        defaults.

        Parameters
        ----------
        dtypes, ranks
            As for `graph`.
        **sizes
            By name. The axes of a rank variable ``B...`` are ``B_0``, ``B_1`` and so on.

        Raises
        ------
        ArgumentError
            PF412 for a size that it does not have, PF407 for sizes that a constraint forbids.
        DslError
            Where it then reads out of range.
        """
        graph = self.graph(dtypes, ranks)
        check_given(self.name, graph.sizes, sizes)
        known = with_defaults(graph, sizes)
        check_constraints(graph, known)
        origin = Origin(self.program.programs, self.signature, tuple(known.items()))
        return Specialized(graph, fixed_graph(graph, known), origin=origin)


def compile(
    program: Program | Operator | str | os.PathLike[str],
    op: str | None = None,
    *,
    target: TargetName = "auto",
    layers: tuple[str, ...] = LAYERS,
    fusion: LoopFusion | None = None,
    stitching: Stitching | None = None,
    packing: Packing | None = None,
    clustering: Clustering | None = None,
    partition: Partition | None = None,
    options: Options | None = None,
    sizes: Wish | Sizes | None = None,
    **switches: Any,
) -> Compiled:
    """A function for one operator of a program.

    Nothing is compiled before the first call; each combination of dtypes, shapes and layouts is compiled
    once.

    Parameters
    ----------
    program
        A `Program`, one of its operators, text, a ``.pf`` file, or an operator of the standard library by
        name: ``"stdlib:gelu"``.
    op
        The operator's name; the last one if it is not given.
    target
        "auto" (a GPU where one can be used, else the CPU; decided by the first call), "cpu", "cuda",
        "interpret" (no compiler needed; slow, checks every index) or "emulate" (CUDA on the CPU, looking for
        races).
    layers
        Those to apply, of "loop" (I: loop fusion), "stitch" (II: dependent kernels stitched) and "pack" (III:
        independent kernels side by side).
    fusion, stitching, packing
        Layers I, II and III with options of their own.
    clustering
        How graphs of many statements are cut before that.
    partition
        A name for a choice of layer I and the cut: "connect" (along large tensors, as if it is not given),
        "rules" (Apollo's micro-graphs in layer I), "search" (the patterns that the cost model likes best).
    options
        An Options object.
    sizes
        What kernels know of sizes: ``{"H": 768, "T": pf.open}`` fixes H, which calls must agree with, and
        makes T a parameter of the kernels; or the option of that name.
    **switches
        Fields of Options: ``checked=True``, ``tune="measure"``, ``plan="plan.json"``.

    Returns
    -------
    Compiled
        It takes arrays and numbers as the operator's signature has them.

    Raises
    ------
    ArgumentError
        PF411 for an operator that there is not; PF412 for such a size, PF413 for a layer, PF414 for a target,
        PF419 for a partition, PF490 for an option or its value.
    DslError
        What `parse` finds.

    Examples
    --------
    >>> f = pf.compile("op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }", target="cpu")
    >>> f(np.array([1, 2, 3], "f4"), 2.0)
    array([2., 4., 6.], dtype=float32)
    """
    _check_layers(layers)
    for name, given, kind in (
        ("fusion", fusion, LoopFusion),
        ("stitching", stitching, Stitching),
        ("packing", packing, Packing),
        ("clustering", clustering, Clustering),
        ("options", options, Options),
        ("op", op, str),
    ):
        if given is not None and not isinstance(given, kind):
            what = "the name of an operator" if kind is str else f"an object of the class {kind.__name__}"
            hint = f"{name}=None, the default, takes {'the last one' if kind is str else 'the usual one'}"
            raise ArgumentError(f"{name}= cannot be {given!r}: it is {what}", code="PF490", hint=hint)
    operator = operator_of(program, op)
    settings = _settings(options, switches, sizes)
    wish = {} if sizes is None or isinstance(sizes, str) else _wish(operator, sizes, settings)
    loops = (fusion or LoopFusion()) if "loop" in layers else None
    stitches = (stitching or Stitching()) if "stitch" in layers else None
    packs = (packing or Packing()) if "pack" in layers else None
    loops, clusters = passes_of(partition, loops, clustering)
    return Compiled(
        operator.program.programs,
        operator.signature,
        target=require_target(target),
        fusion=loops,
        stitching=stitches,
        packing=packs,
        clustering=clusters,
        options=settings,
        wish=wish,
    )


def grad(
    program: Program | Operator | str | os.PathLike[str],
    wrt: Sequence[str] | None = None,
    *,
    op: str | None = None,
    of: Sequence[str] | None = None,
    dtypes: Mapping[str, DType | str] | None = None,
    ranks: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    keep: Sequence[str] = (),
    recompute: Sequence[str] = (),
) -> Gradients:
    """The gradient of an operator, by reverse-mode differentiation of its graph.

    Parameters
    ----------
    program
        As for `compile`.
    wrt
        Inputs to differentiate by; all tensors of floats that have axes, if it is not given.
    op
        The operator's name; the last one if it is not given.
    of
        Results that have gradients of their own (cotangents); all of floats, if it is not given.
    dtypes, ranks
        As for `Operator.graph`: the pair is made for one choice.
    sizes
        Sizes that are known, for the choice of what is kept; others count as 256.
    keep
        Values of the operator (tensors of its graph) that the forward operator returns.
    recompute
        Values that the backward operator computes again, whatever that costs.

    Returns
    -------
    Gradients
        The pair of operators. A gradient has the shape and dtype of its input.

    Raises
    ------
    ArgumentError
        PF790 for names that the operator does not have, PF791 where no gradient flows.
    DslError
        PF792 and PF793 at what cannot be differentiated.

    Notes
    -----
    Equal elements share the gradient of a `max` or `min` reduction, as in `torch.amax`; of computed terms and
    of running extremes the first has it. Of `max(a, b)` and `min(a, b)` of equal numbers `b` has it, so that
    the gradient of `max(x, 0.0)` is 0 at 0.

    Examples
    --------
    >>> pair = pf.grad("stdlib:softmax")
    >>> pair.backward
    <polyfuse operator softmax_backward(dy: f32[B_0, H], y: f32[B_0, H]) -> (dx: f32[B_0, H])>
    >>> print(pair.explain())
    + keep y: a result, which is in memory anyway
    """
    operator = operator_of(program, op)
    graph = operator.graph(dtypes, ranks)
    wishes = Wishes(dict(sizes or {}), tuple(keep), tuple(recompute))
    found = derive(graph, wrt, of, wishes)
    forward = _from_graph(found.forward)
    backward = _from_graph(found.backward)
    names = {t.name: t.alias or t.name for t in graph.tensors}
    return Gradients(
        operator,
        forward,
        backward,
        found.wrt,
        tuple(names[r] for r in found.of),
        found.kept,
        sources_of(found, names),
        tuple(p.name for p in found.backward.size_parameters),
        found.decisions,
    )


def _from_graph(graph: TensorGraph) -> Operator:
    """A graph as an operator of the language."""
    return checked(load_text(operator_text(graph), f"<{graph.name}>").programs).op()


def _settings(options: Options | None, switches: Mapping[str, Any], sizes: object) -> Options:
    """All options. Raises ArgumentError PF490 for one that there is not."""
    names = [f.name for f in fields(Options)]
    if unknown := [n for n in switches if n not in names]:
        hint = did_you_mean(unknown[0], names) or f"options: {', '.join(names)}"
        raise ArgumentError(f"there is no option '{unknown[0]}'", code="PF490", hint=hint)
    found = options or Options(**switches)
    return replace(found, sizes=cast(Sizes, sizes)) if isinstance(sizes, str) else found


def _wish(operator: Operator, sizes: object, settings: Options) -> dict[str, int | Open]:
    """What `sizes=` says. Raises ArgumentError PF490 for what is no mapping, PF412 for what is no size of the
    operator, or no value of one, PF428 for open sizes with a plan."""
    if not isinstance(sizes, Mapping):
        message = f"sizes= cannot be {sizes!r}: it is a mapping, or an option"
        raise ArgumentError(message, code="PF490", hint='sizes={"H": 768, "T": pf.open}')
    of_axes = [n for n in sizes if axis_of(n, operator.signature.rank_variables)]
    known = dict.fromkeys((*size_names(operator.op), *of_axes))
    check_given(operator.name, (*known,), {n: 0 if isinstance(v, Open) else v for n, v in sizes.items()})
    if settings.plan_file is not None and any(isinstance(v, Open) for v in sizes.values()):
        message = f"{settings.plan_file} has plans at known sizes, and sizes= leaves some open"
        raise ArgumentError(message, code="PF428", hint="leave sizes= out, or plan=")
    return {n: v if isinstance(v, Open) else int(v) for n, v in sizes.items()}


def _check_layers(layers: object) -> None:
    """Raises ArgumentError PF413 for what is no tuple of names of layers."""
    if isinstance(layers, str):
        raise ArgumentError("layers= is a tuple", code="PF413", hint=f"write layers=({layers!r},)")
    if not isinstance(layers, Collection):
        hint = "layers=() applies none"
        raise ArgumentError(f"layers= is a tuple of names, not {layers!r}", code="PF413", hint=hint)
    for layer in layers:
        if layer not in LAYERS:
            raise ArgumentError(
                f"there is no layer '{layer}'", code="PF413", hint=f"one of {', '.join(LAYERS)}"
            )


def operator_of(program: Program | Operator | str | os.PathLike[str], op: str | None) -> Operator:
    """The operator that `compile` is asked for. Raises ArgumentError PF411 if there is none of that name."""
    if isinstance(program, str) and program.startswith(LIBRARY):
        name = program.removeprefix(LIBRARY).strip()
        if not name:
            raise ArgumentError("an operator's name is missing", code="PF411", hint='as in "stdlib:gelu"')
        program = stdlib().op(name)
    if isinstance(program, Operator):
        if op is not None and op != program.name:
            raise ArgumentError(f"'{program.name}' is the operator, not '{op}'", code="PF411")
        return program
    return (program if isinstance(program, Program) else parse(program)).op(op)
