"""The state of building one graph: tensors, scopes (one per operator instance) and what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from polyfuse.diagnostics import Diagnostic, Diagnostics, Severity
from polyfuse.frontend_dsl.semantics.signature import size_names
from polyfuse.frontend_dsl.semantics.size_algebra import Facts
from polyfuse.frontend_dsl.semantics.weak_types import BOTTOM, ERROR, Ty, hard
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import CONSTANTS, Library, Namer, did_you_mean
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize
from polyfuse.source import NO_SPAN, Span

# --- diagnostics that are counted -------------------------------------------------------------------------


MOST_COMPARED = 20_000
"""Names that are compared with unknown ones before hints of further errors are given up: about a second."""


@dataclass(slots=True)
class Reports(Diagnostics):
    """`errors_seen` counts every error, also one that is found already.

    An operator that is inlined twice reports its errors once, whatever each hint says; that there were some
    must show each time.
    """

    errors_seen: int = 0
    failed_names: set[tuple[str, str]] = field(default_factory=set)
    compared: int = 0

    def is_first(self, name: str, owner: str) -> bool:
        """A name that failed once is silent after that, but each use of it is an error that shows."""
        if (name, owner) in self.failed_names:
            self.errors_seen += 1
            return False
        self.failed_names.add((name, owner))
        return True

    def looked_up(self, names: int, hint: Callable[[], str | None]) -> str | None:
        """None where many were compared before: hints of hundreds of errors take longer than all else."""
        if self.compared > MOST_COMPARED:
            return None
        self.compared += names
        return hint()

    def _add(self, finding: Diagnostic) -> None:
        if finding.severity is Severity.ERROR:
            self.errors_seen += 1
        self._add_once(replace(finding, hint=None), finding)


@dataclass(eq=False)
class TensorInfo:
    """A tensor while its graph is being built; `ty`, `rank` and `shape` fill in as they are inferred.

    `constant` replaces reads of a scalar parameter whose argument is a literal or a size.
    `total` says that every element is surely defined; `failed` that an error about it was reported.
    """

    name: str
    role: g.Role
    ty: Ty = BOTTOM
    rank: int | None = None
    shape: tuple[IndexExpr, ...] | None = None
    span: Span = NO_SPAN
    default: float | int | bool | None = None
    alias: str | None = None
    constant: g.Expr | None = None
    declared: bool = False
    inlined: bool = False
    total: bool = False
    failed: bool = False

    @property
    def dtype(self) -> DType:
        """The element type; soft f32 is f32, weak types are their defaults."""
        return self.ty.dtype if self.ty.dtype is not None else self.ty.compute

    def declare(self, dtype: DType | None, shape: tuple[IndexExpr, ...] | None, rank: int) -> None:
        self.ty = ERROR if dtype is None else hard(dtype)
        self.shape, self.rank, self.declared = shape, rank, True
        self.failed = dtype is None or shape is None

    def settle(self) -> None:
        """End of inference: a tensor of weak type gets the default dtype, one without any has failed."""
        if self.ty.is_weak:
            self.ty = hard(self.ty.compute)
        elif self.ty.is_unknown:
            self.ty, self.failed = ERROR, True

    def to_tensor(self) -> g.Tensor:
        assert self.shape is not None
        return g.Tensor(self.name, self.dtype, self.shape, self.role, self.span, self.default, self.alias)


@dataclass(eq=False)
class Context:
    """What all scopes of a graph share."""

    library: Library
    diags: Reports
    tensor_names: Namer
    statement_names: Namer = field(default_factory=Namer)
    facts: Facts = field(default_factory=Facts)
    constraints: list[g.Constraint] = field(default_factory=list)
    assumed: set[g.Constraint] = field(default_factory=set)
    infos: list[TensorInfo] = field(default_factory=list)
    statements: list[g.Statement] = field(default_factory=list)
    size_names: dict[str, Span] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    instances: dict[object, ast.OpDef] = field(default_factory=dict)

    def new_info(self, info: TensorInfo) -> TensorInfo:
        self.infos.append(info)
        return info

    def assume(self, c: g.Constraint) -> bool:
        """Add a constraint that the call must check, unless it is known; False if it can never hold."""
        match self.facts.difference(c.left, c.right):
            case None:
                pass
            case d:
                return {"==": d == 0, "!=": d != 0, "<": d < 0, "<=": d <= 0, ">": d > 0, ">=": d >= 0}[c.op]
        if c.op == ">=" and self.facts.at_least(c.left, c.right):
            return True
        if c not in self.assumed:
            self.assumed.add(c)
            self.constraints.append(c)
            self.facts.learn(c)
        return True


@dataclass(eq=False)
class Scope:
    """One instance of an operator: what its names mean in the graph.

    `sizes` maps its size names to expressions over the graph's sizes. An inout parameter reads
    the entry value and writes another tensor, so reads and writes have tables of their own;
    `updated` holds those that a definition or a call in this scope writes.
    """

    op: ast.OpDef
    home: ast.Program
    sizes: dict[str, IndexExpr]
    reads: dict[str, TensorInfo] = field(default_factory=dict)
    writes: dict[str, TensorInfo] = field(default_factory=dict)
    chain: tuple[ast.OpDef, ...] = ()
    prefix: str = ""
    inouts: frozenset[str] = frozenset()
    updated: set[str] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def inlined(self) -> bool:
        return bool(self.prefix)

    @property
    def owner(self) -> str:
        """Whose names these are, for errors about them."""
        return f"{self.home.source.name}: {self.op.name}"

    def variable(self, name: str, ctx: Context) -> str:
        """The graph's name of an index variable: its own unless a size of the graph is called so."""
        if name not in ctx.size_names:
            return name
        if name not in self.variables:
            taken = Namer((*ctx.size_names, *self.variables.values(), *self.reads))
            self.variables[name] = taken.fresh(name)
        return self.variables[name]

    def in_own_sizes(self, extent: IndexExpr) -> IndexExpr | None:
        """An extent of the graph as this operator's text may write it, None where that is not certain."""
        if not self.inlined:
            return extent
        names = [n for n, e in self.sizes.items() if e == extent]
        if len(names) == 1:
            return ISize(names[0])
        return extent if isinstance(extent, IConst) and not names else None

    def scalar(self, name: str) -> TensorInfo | None:
        """The rank-0 tensor of that name, if there is one."""
        info = self.reads.get(name)
        return info if info is not None and info.rank == 0 else None

    def names_constant(self, name: str) -> bool:
        """Whether the name is that of a number (`inf`, `nan`, `pi`): tensors and sizes come first."""
        return name in CONSTANTS and name not in self.reads and name not in self.sizes

    def unknown_hint(
        self, name: str, diags: Diagnostics, rank: int | None = 0, extra: tuple[str, ...] = ()
    ) -> str | None:
        """The name of a similar spelling that can stand there: a tensor of the rank, for 0 a number."""
        names = len(self.reads) + len(self.sizes) + len(extra)
        return diags.looked_up(names, lambda: self._similar(name, rank, extra))

    def _similar(self, name: str, rank: int | None, extra: tuple[str, ...]) -> str | None:
        fitting = [n for n, info in self.reads.items() if rank is None or info.rank in (rank, None)]
        return did_you_mean(name, (*fitting, *extra, *(() if rank else self.sizes)))


def top_scope(op: ast.OpDef, written: ast.OpDef, home: ast.Program) -> Scope:
    """The scope of the operator that is compiled (`written` with its generics): its sizes are the graph's."""
    return Scope(op, home, {n: ISize(n) for n in size_names(op)}, chain=(written,))
