"""Forms of an operator beside the function of `pf.compile`: a schedule to edit, a decorator, a library for
C."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyfuse.api import Operator, Program, checked, compile, operator_of
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.by_hand import Schedule, edited
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.export import file_in, request_of, write_grids, write_library
from polyfuse.driver.stages import Scheduled, Specialized
from polyfuse.frontend_dsl.syntax.imports import load_text
from polyfuse.ir.dtypes import DType
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.options import Blas, Search
from polyfuse.tuning.search import Tuned, Wanted, search_of

__all__ = ["Tuned", "export", "op", "schedule", "tune"]


def tune(
    program: Compiled | Program | Operator | str | os.PathLike[str],
    op: str | None = None,
    *,
    sizes: Mapping[str, int],
    dtypes: Mapping[str, DType | str] | None = None,
    ranks: Mapping[str, int] | None = None,
    budget: float | None = 60.0,
    search: Search = "anneal",
    seed: int = 0,
    steps: int | None = None,
    measure: bool = True,
    **settings: Any,
) -> Tuned:
    """A search for the fastest plan of one operator on this machine's CPU.

    A plan says how statements are fused, and which variant of the code is printed. A cost model ranks plans
    first, some hundred of them; then the likeliest are compiled and timed, in turns with what the compiler
    does on its own. An interrupt (Ctrl-C) ends the search; what was found is kept.

    Parameters
    ----------
    program, op
        What `compile` takes, or what it gave.
    sizes
        All sizes of the operator: a plan is of known sizes.
    dtypes, ranks
        As for `Operator.graph`.
    budget
        Seconds for all. With None the search is bounded by `steps`, and takes the same ones each time.
    search
        "anneal": from plan to plan beside it; "random": plans that have nothing to do with each other.
    seed
        Of the search.
    steps
        Plans that the model is asked about at most.
    measure
        False leaves the choice to the model, and runs nothing.
    **settings
        Arguments of `compile`, such as ``cost="learned"``, ``threads=1``, ``layers=("loop",)``.

    Returns
    -------
    Tuned
        Its `save` writes the plan into a file for ``compile(..., plan=file)``.

    Raises
    ------
    ArgumentError
        PF414 for other targets than the CPU, PF490 for a value that an argument cannot have.
    ScheduleError
        PF513 where a size is not given.

    Examples
    --------
    >>> found = pf.tune("stdlib:softmax", sizes={"B_0": 512, "H": 256}, budget=None, steps=20, measure=False)
    >>> found.plan.is_model or found.best.predicted < found.default.predicted
    True
    """
    wanted = Wanted(search, seed, budget, steps, measure)
    if not isinstance(program, Compiled):
        program = compile(program, op, **{"target": "cpu", **settings})
    return search_of(program, sizes, dtypes, ranks, wanted)


def schedule(
    program: Program | Operator | Specialized | Scheduled | str | os.PathLike[str],
    op: str | None = None,
    *,
    fusion: LoopFusion | None = None,
    dtypes: Mapping[str, DType | str] | None = None,
    ranks: Mapping[str, int] | None = None,
    **sizes: int,
) -> Schedule:
    """A schedule to be edited by hand, each step proved legal (`Schedule` has the primitives).

    It begins without fusion: every statement in loops of its own.

    Parameters
    ----------
    program
        What `compile` takes, or a stage: `Specialized`, or `Scheduled` to go on from its schedule.
    op
        The operator's name; the last one if it is not given.
    fusion
        ``pf.LoopFusion()`` begins with the schedule that layer I finds.
    dtypes, ranks
        As for `Operator.graph`.
    **sizes
        Those that are known, by name. Others stay open: steps are proved for all their values.

    Returns
    -------
    Schedule
        It is never changed: each step gives another one.

    Raises
    ------
    ScheduleError
        PF513 for sizes that must be known.
    ArgumentError
        PF411, PF412 for an operator or a size that there is not.

    Examples
    --------
    >>> s = pf.schedule("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[i] }", N=64).split("i", 16)
    >>> s.history
    ("split('i', 16)",)
    >>> print(s.loops)
    for i_tile in 0..4:  # parallel
      for i in 0..16:  # parallel
        y[16*i_tile + i] = x[16*i_tile + i] + x[16*i_tile + i]
    """
    if isinstance(program, Scheduled | Specialized):
        stage = program.schedule() if isinstance(program, Specialized) else program
    else:
        stage = operator_of(program, op).specialize(dtypes, ranks, **sizes).schedule()
    found = edited(stage)
    return found if fusion is None else found.apply(fusion)


def export(
    function: Compiled | Operator | Program | str,
    path: str | os.PathLike[str],
    *,
    dtypes: Mapping[str, DType | str] | None = None,
    ranks: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    strides: bool = True,
    blas: Blas = "never",
) -> Path:
    """Write an operator for C, with a header; `load` gives it back as a function.

    For the CPU `path` is a shared library, which needs no Python, and has a thread pool of its own or uses
    the caller's. Its function takes sizes, pointers and strides.

    What is compiled with ``target="cuda"`` becomes machine code of the GPU at hand, or of `Options.device`: a
    description of launches, `path` with the suffix .json, and cubins beside it; the header has a function
    that launches them by CUDA's driver.

    Parameters
    ----------
    function
        What `compile` returned, or what it takes; its layers and options count, but products of matrices are
        computed by kernels that are exported too, unless `blas` says otherwise.
    path
        The file. In a folder, or with a slash at its end, it is called as the operator is. The header is
        beside it, with the suffix .h.
    dtypes, ranks
        As for `Operator.graph`.
    sizes
        Those that kernels know, beside those of ``compile(..., sizes=...)``; all others are open.
    strides
        Also kernels for inputs that are not dense.
    blas
        "caller": large matrix products of known sizes are computed by functions that the caller passes (the
        header says how), on the CPU.

    Returns
    -------
    Path
        The header.

    Raises
    ------
    ArgumentError
        PF766 for what cannot be exported: sizes that must be known, optional tensors that may be there or
        not; PF780, PF782 for what only libraries of the CPU can do.
    ToolchainError
        PF769 where files cannot be written; PF701 and the like without a compiler.

    Examples
    --------
    >>> text = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[i] }"
    >>> header = pf.export(text, "out/", sizes={"N": 3}, strides=False)
    >>> str(header)
    'out/twice.h'
    >>> pf.load("out/twice.so")(np.ones(3, "f4"))
    array([2., 2., 2.], dtype=float32)
    """
    compiled = function if isinstance(function, Compiled) else compile(function, target="cpu")
    request = request_of(compiled, dtypes, ranks, sizes, strides, blas)
    write = write_grids if request.target == "cuda" else write_library
    return write(request, file_in(path, request.graph.name, request.target))[1]


def op(function: Callable[..., Any]) -> Compiled:
    """Decorator: the docstring of a Python function is an operator in the language.

    Parameters
    ----------
    function
        It takes what the operator takes, under the same names; its body is not run.

    Returns
    -------
    Compiled
        With the function's name and docstring; `inspect.signature` shows the operator's types.

    Raises
    ------
    ArgumentError
        PF415 without a docstring, or for other parameters.
    DslError
        What is wrong in the docstring.

    Examples
    --------
    >>> @pf.op
    ... def scale(x, a):
    ...     '''op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }'''
    >>> scale(np.ones(3, "f4"), 2.0)
    array([2., 2., 2.], dtype=float32)
    """
    text = inspect.getdoc(function)
    if not text:
        raise ArgumentError(f"{function.__name__} has no docstring with an operator in it", code="PF415")
    place = f"{inspect.getsourcefile(function) or function.__module__}:{function.__name__}"
    program = checked(load_text(text, place).programs)
    compiled = compile(program, function.__name__ if function.__name__ in program.ops else None)
    mine, theirs = list(inspect.signature(function).parameters), [p.name for p in compiled.signature.params]
    given = [p.name for p in compiled.signature.size_params]
    if mine not in (theirs, theirs + given):
        raise ArgumentError(
            f"{function.__name__} takes {', '.join(mine)}, its operator takes {', '.join(theirs)}",
            code="PF415",
        )
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(compiled, name, getattr(function, name))
    return compiled
