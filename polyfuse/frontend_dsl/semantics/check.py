"""All semantic errors and warnings of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.build_graph import build
from polyfuse.frontend_dsl.semantics.functions import check_functions
from polyfuse.frontend_dsl.semantics.groups import Group
from polyfuse.frontend_dsl.semantics.inout_reads import warn_entry_reads
from polyfuse.frontend_dsl.semantics.monomorphise import rank_variables
from polyfuse.frontend_dsl.semantics.optionals import choices
from polyfuse.frontend_dsl.semantics.scope import Reports
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import Library, representative
from polyfuse.ir.dtypes import BY_NAME, DType

CHECKED_RANK = 2
"""The number of axes a rank variable stands for when an operator is checked without arguments."""


def check_program(program: ast.Program, others: Sequence[ast.Program] = ()) -> Diagnostics:
    """Check every operator of a file at a representative instance.

    `others` are the programs whose operators it may call. Errors and warnings are collected.
    """
    diags = Reports()
    library = Library((program, *others))
    check_functions(program, library, diags)
    for op in program.ops:
        dtypes = {x.name: BY_NAME[representative(x.kind)] for x in op.dtype_generics}
        ranks = dict.fromkeys(rank_variables(op), CHECKED_RANK)
        before = diags.errors_seen
        _, groups = build(op, program, library, diags, dtypes, ranks)
        if diags.errors_seen == before:
            used = _check_absent(op, program, library, diags, dtypes, ranks)
            warn_unused(op, groups, diags, used)
            warn_entry_reads(op, library, program, diags)
    return diags


def _check_absent(
    op: ast.OpDef,
    home: ast.Program,
    library: Library,
    diags: Reports,
    dtypes: Mapping[str, DType],
    ranks: Mapping[str, int],
) -> set[str]:
    """Errors of each choice of optional tensors that are absent; the names that definitions read then."""
    used: set[str] = set()
    for absent in choices(op):
        if not absent:
            continue
        here = Reports()
        _, groups = build(op, home, library, here, dtypes, ranks, absent)
        used |= {name for grp in groups for name in grp.reads}
        names = " and ".join(f"'{n}'" for n in absent)
        for d in here.errors:
            own = d.code in ("PF247", "PF251")
            message = (
                d.message
                if own
                else f"{d.message}; where {names} {'is' if len(absent) == 1 else 'are'} absent"
            )
            if not any((d.code, d.span) == (e.code, e.span) for e in diags.errors):
                diags.error(d.code, message, d.span, d.hint, d.related)
    return used


def warn_unused(op: ast.OpDef, groups: list[Group], diags: Reports, used: Collection[str] = ()) -> None:
    """PF290 for definitions that nothing reads. Names that begin with '_' are exempt, and those `used` where
    an optional tensor is absent."""
    needed = {p.name for p in op.results} | {p.name for p in op.params if p.inout}
    readers = Counter(name for grp in groups for name in grp.reads)
    for grp in groups:
        if not grp.targets or any(t in needed or t.startswith("_") for t in grp.targets):
            continue
        if any(readers[t] > (t in grp.reads) or t in used for t in grp.targets):
            continue
        names = ", ".join(f"'{t}'" for t in grp.targets)
        hint = "remove it, or begin its name with '_'"
        if not needed:
            hint = f"results stand behind the parameters: -> ({grp.targets[0]}: f32[...])"
        diags.warning("PF290", f"{names} is never used", grp.span, hint)
