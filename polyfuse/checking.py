"""Checks of programs, without arguments and without a compiler: what `pf.parse` and `polyfuse check` do.

    check_loaded      names and types of a program that was read with all that it imports
    check_programs    the same, indices for all sizes, and lints
    open_graph        an operator as a graph whose sizes are open, its indices proved

Nothing here needs NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from polyfuse.diagnostics import Diagnostics, DslError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.semantics.monomorphise import rank_variables
from polyfuse.frontend_dsl.semantics.optionals import choices
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import statement_exprs, walk
from polyfuse.frontend_dsl.syntax.imports import load_text
from polyfuse.frontend_dsl.syntax.names import is_builtin, representative
from polyfuse.ir.dtypes import BY_NAME, DType
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.library import standard_programs
from polyfuse.lints import audible, lints
from polyfuse.poly.legality.ranges import prove_ranges


@dataclass(frozen=True)
class Checked:
    """A program (`programs[0]`; the others are those it may call) and what was found in it."""

    programs: tuple[ast.Program, ...]
    found: Diagnostics
    graphs: Mapping[str, TensorGraph] = field(default_factory=dict)

    @property
    def program(self) -> ast.Program:
        """The program that was asked for."""
        return self.programs[0]


def library_for(main: ast.Program, imported: tuple[ast.Program, ...] = ()) -> tuple[ast.Program, ...]:
    """The standard library, for programs that call an operator or a function that they do not define."""
    if main.source.name.startswith("stdlib/"):
        return ()
    files = (main, *imported)
    own = {op.name for p in files for op in p.ops} | {f.name for p in files for f in p.functions}
    parts = [part for p in files for op in p.ops for stmt in op.body for part in statement_exprs(stmt)]
    parts += [f.body for p in files for f in p.functions]
    calls = {e.callee for part in parts for e in walk(part) if isinstance(e, ast.Call)}
    return standard_programs() if any(c not in own and not is_builtin(c) for c in calls) else ()


def check_loaded(programs: tuple[ast.Program, ...]) -> Checked:
    """Names and types of a program, the last of those loaded."""
    main, imported = programs[-1], programs[:-1]
    others = (*imported, *library_for(main, imported))
    found = check_program(main, others)
    found.found, _ = audible(main, found.found)
    return Checked((main, *others), found)


def check_programs(programs: tuple[ast.Program, ...]) -> Checked:
    """Names and types, then indices for all sizes, as far as that can be decided, and lints.

    Operators without errors have graphs; of one that calls another with errors, these say it already.
    """
    main, imported = programs[-1], programs[:-1]
    others = (*imported, *library_for(main, imported))
    found = check_program(main, others)
    known = len(found.errors)
    wrong = [d.span for d in found.errors if d.span is not None]
    graphs: dict[str, TensorGraph] = {}
    for op in main.ops:
        if any(op.span.start <= s.start < op.span.end for s in wrong if s.source is main.source):
            continue
        try:
            graphs[op.name] = open_graph((main, *others), op)
            # What is called from another file is told of when that file is checked.
            told = (d for d in lints(op, graphs[op.name]) if d.span and d.span.source is main.source)
            found.found.extend(told)
            for absent in choices(op):
                open_graph((main, *others), op, absent=absent) if absent else None
        except DslError as error:
            found.found.extend(error.diagnostics if not known else ())
    found.found, idle = audible(main, found.found)
    if not found.errors:
        found.found.extend(idle)
    return Checked((main, *others), found, graphs)


def check_text(text: str, name: str, folder: str | os.PathLike[str] | None = None) -> Checked:
    """Check a text. Raises DslError if its syntax is wrong."""
    return check_programs(load_text(text, name, folder).programs)


def open_graph(
    programs: tuple[ast.Program, ...],
    op: ast.OpDef,
    dtypes: Mapping[str, DType | str] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Collection[str] = (),
) -> TensorGraph:
    """The tensor graph at one choice of generics (default: f32 or i32, one axis per rank variable), with all
    optional tensors but those that are absent."""
    chosen = {x.name: BY_NAME[representative(x.kind)] for x in op.generics if x.kind != "size"}
    for n, t in (dtypes or {}).items():
        chosen[n] = BY_NAME[t] if isinstance(t, str) else t
    lengths = {**dict.fromkeys(rank_variables(op), 1), **(ranks or {})}
    graph = instantiate(programs, op.name, dtypes=chosen, ranks=lengths, absent=absent)
    found = Diagnostics()
    prove_ranges(graph, None, found)
    found.raise_if_errors()
    return graph
