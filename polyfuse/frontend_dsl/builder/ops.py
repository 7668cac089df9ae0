"""One operator written in Python: `OpBuilder` collects its signature and statements, `build` gives the tree.

    f = b.op("scale")
    x = f.param("x", "f32", "N")
    y = f.result("y", "f32", "N")
    i = f.index("i")
    y[i] = 2.0 * x[i]

Assigning to an element of a `Tensor` is a definition.  Names of local tensors are made distinct, so that
a Python function may be called for each layer; all else that a program can get wrong is found by the
checks of the language, at the Python line that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from polyfuse.frontend_dsl.builder.values import (
    Expression,
    Index,
    Operand,
    Value,
    checked_name,
    here,
    literal,
    node_of,
    padded,
    refuse,
    subscript,
    subscripts,
)
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import NONE, Namer

Extent: TypeAlias = "Operand | str"
Extents: TypeAlias = "Extent | Sequence[Extent]"
Results: TypeAlias = Callable[[str], tuple[str, ...]]
"""The names of the results of an operator that can be called; refuses one that is not known."""


class Tensor(Expression):
    """A tensor: `t[i, j]` is an element, assigning to it a definition; a scalar is used as it is.

    Examples
    --------
    >>> f = pf.ProgramBuilder().op("shift")
    >>> x, y, i = f.param("x", "f32", "N"), f.result("y", "f32", "N"), f.index("i")
    >>> y[i] = x.get(i - 1, outside=0.0)
    """

    __slots__ = ("_add", "name")

    def __init__(self, name: str, add: Callable[[ast.Stmt], None]) -> None:
        super().__init__(ast.Name(name, here()))
        self.name = name
        self._add = add

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Value:
        return subscript(self.name, indices)

    def get(self, indices: Operand | tuple[Operand, ...], outside: Operand) -> Value:
        """``t[indices else outside]``: the value where an index leaves its axis."""
        return padded(self.name, indices, outside)

    def __setitem__(self, indices: Operand | tuple[Operand, ...], value: Operand) -> None:
        self._define(indices, "=", value, ())

    def define(
        self, indices: Operand | tuple[Operand, ...], value: Operand, ranges: Sequence[Index] = ()
    ) -> None:
        """``t[indices] = value``, as an assignment.

        Parameters
        ----------
        indices, value
            The left side and the right one.
        ranges
            Of variables that stand in sums: ``y.define(2 * d + 1, x[d], ranges=[d.range(0, D)])``.
        """
        self._define(indices, "=", value, ranges)

    def scatter(
        self,
        indices: Operand | tuple[Operand, ...],
        value: Operand,
        op: str = "+=",
        ranges: Sequence[Index] = (),
    ) -> None:
        """``t[indices] += value``.

        Parameters
        ----------
        indices, value
            The left side, with indices from data, and the right one.
        op
            Or ``max=`` or ``min=``.
        ranges
            As for `define`.
        """
        if op not in ("+=", "max=", "min="):
            refuse(f"there is no scatter '{op}'", "scatters are '+=', 'max=' and 'min='")
        self._define(indices, op, value, ranges)

    def _define(
        self, indices: Operand | tuple[Operand, ...], op: str, value: Operand, ranges: Sequence[Index]
    ) -> None:
        every = indices if isinstance(indices, tuple) else (indices,)
        written = [i for i in (*every, *ranges) if isinstance(i, Index) and i.has_range]
        left = tuple(node_of(v) for v in subscripts(indices)) or None
        fors = tuple(i.var_range() for i in written)
        place = here()
        self._add(ast.Define(self.name, left, op, node_of(value), fors, place, place))


class OpBuilder:
    """An operator of a `ProgramBuilder`, in the order in which its parts are made: what `ProgramBuilder.op`
    gives.

    Examples
    --------
    >>> b = pf.ProgramBuilder()
    >>> f = b.op("norm")
    >>> f.call("softmax", f.param("x", "f32", ("T", "H")), into=f.result("y", "f32", ("T", "H")))
    <tensor y>
    >>> b.program().norm
    <polyfuse operator norm(x: f32[T, H]) -> (y: f32[T, H])>
    """

    def __init__(self, name: str, results_of: Results) -> None:
        self.name = checked_name(name, "an operator")
        self._place = here()
        self._results_of = results_of
        self._names = Namer()
        self._owned: set[str] = set()
        self._generics: list[ast.Generic] = []
        self._params: list[ast.Param] = []
        self._results: list[ast.Param] = []
        self._where: list[ast.Expr] = []
        self._body: list[ast.Stmt] = []

    # --- signature -------------------------------------------------------------------------------------

    def generic(self, name: str, kind: str = "float") -> str:
        """A generic dtype ``[name: kind]``; its name stands for a dtype in types, and in `fn` for a cast."""
        kind_name = checked_name(kind, "a kind")
        self._generics.append(ast.Generic(self._own(name, "a generic"), kind_name, None, here(), here()))
        return name

    def size(self, name: str) -> Value:
        """A size, by the name that it has in extents."""
        return Value(ast.Name(self._own(name, "a size"), here()))

    def sizes(self, names: str) -> tuple[Value, ...]:
        """Several sizes, names separated by blanks."""
        return tuple(self.size(n) for n in names.split())

    def size_parameter(self, name: str, default: Operand | None = None) -> Value:
        """A size that callers give by its name; the default is a number, or made of earlier sizes."""
        written = None if default is None else node_of(default)
        own = self._own(name, "a size parameter")
        self._generics.append(ast.Generic(own, ast.SIZE, written, here(), here()))
        return Value(ast.Name(own, here()))

    def param(
        self,
        name: str,
        dtype: object,
        extents: Extents = (),
        default: float | bool | None = None,
        optional: bool = False,
    ) -> Tensor:
        """A parameter: a tensor, or without extents a scalar.

        Parameters
        ----------
        name
            What the program calls it.
        dtype
            Its name, or that of a generic.
        extents
            One or several: names of sizes, rank variables (``"B..."``), numbers, expressions of sizes.
        default
            Of a scalar.
        optional
            May calls leave the tensor out?
        """
        value = None if default is None else node_of(literal(default))
        self._params.append(self._param(name, dtype, extents, False, value, optional))
        return self._tensor(name)

    def inout(self, name: str, dtype: object, extents: Extents = ()) -> Tensor:
        """A parameter that is read and written; read, it has its value at entry.

        Parameters
        ----------
        name, dtype, extents
            As for `param`.
        """
        self._params.append(self._param(name, dtype, extents, True, None))
        return self._tensor(name)

    def result(self, name: str, dtype: object, extents: Extents = ()) -> Tensor:
        """A result; it is defined by assignments or by a call.

        Parameters
        ----------
        name, dtype, extents
            As for `param`.
        """
        self._results.append(self._param(name, dtype, extents, False, None))
        return self._tensor(name)

    def where(self, *conditions: Operand) -> None:
        """Add conditions on sizes."""
        self._where += [node_of(c) for c in conditions]

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results so far."""
        return tuple(r.name for r in self._results)

    # --- statements ------------------------------------------------------------------------------------

    def index(self, name: str) -> Index:
        """An index variable of a `name`; ``"b..."`` stands for as many as a rank variable."""
        return Index(name)

    def indices(self, names: str) -> tuple[Index, ...]:
        """Several index variables, names separated by blanks."""
        return tuple(map(Index, names.split()))

    def tensor(self, name: str) -> Tensor:
        """A local tensor, defined by assignments; a name that is taken gets a number: mu, mu_2, mu_3."""
        return self._tensor(self._names.fresh(checked_name(name, "a tensor")))

    def let(self, name: str, dtype: object, extents: Extents = (), value: Operand | None = None) -> Tensor:
        """A local tensor of declared dtype and extents.

        Parameters
        ----------
        name, dtype, extents
            As for `param`.
        value
            What scatters start from.
        """
        own = self._names.fresh(checked_name(name, "a tensor"))
        start = None if value is None else node_of(value)
        place = here()
        self._body.append(ast.Let(own, self._type(dtype, extents), start, place, place))
        return self._tensor(own)

    def scalar(self, name: str, value: Operand) -> Tensor:
        """A local scalar, ``name = value``."""
        made = self.tensor(name)
        made[()] = value
        return made

    def call(
        self,
        callee: str,
        /,
        *args: Operand | None,
        into: str | Tensor | Sequence[str | Tensor] | None = None,
        **keywords: Operand | None,
    ) -> Any:
        """A call of an operator: of this program, of what it includes, or of the standard library.

        Parameters
        ----------
        callee
            Its name.
        *args, **keywords
            What it takes; None stands for an optional tensor that is absent.
        into
            Names of results: local names, or tensors that were declared. Without it the results are local
            tensors called as in the operator.

        Returns
        -------
        Tensor
            A tuple of several, or None for an operator that only changes its inout parameters.

        Raises
        ------
        DslError
            PF202 for an operator that there is not, PF230 for another number of results.
        """
        place = here()
        names = self._results_of(checked_name(callee, "an operator"))
        targets = self._targets(callee, names, into)
        nodes = tuple(ast.Name(NONE, place) if a is None else node_of(a) for a in args)
        pairs = tuple((k, ast.Name(NONE, place) if v is None else node_of(v)) for k, v in keywords.items())
        call = ast.Call(callee, nodes, pairs, place, place)
        if len(targets) == 1:
            self._body.append(ast.Define(targets[0].name, None, "=", call, (), place, place))
            return targets[0]
        spans = (place,) * len(targets)
        self._body.append(ast.CallStmt(tuple(t.name for t in targets), call, spans, place))
        return targets or None

    def _targets(
        self, callee: str, names: tuple[str, ...], into: str | Tensor | Sequence[str | Tensor] | None
    ) -> tuple[Tensor, ...]:
        if into is None:
            return tuple(self.tensor(n) for n in names)
        given = (into,) if isinstance(into, str | Tensor) else tuple(into)
        if len(given) != len(names):
            listed = f" ({', '.join(names)})" if names else ""
            count = f"{len(names)} result{'s' * (len(names) != 1)}{listed}"
            refuse(
                f"'{callee}' has {count}, into= names {len(given)}",
                "a name, or a tuple of as many names as results",
                "PF230",
            )
        return tuple(t if isinstance(t, Tensor) else self.tensor(t) for t in given)

    # --- parts -----------------------------------------------------------------------------------------

    def build(self) -> ast.OpDef:
        """The operator as a syntax tree."""
        return ast.OpDef(
            self.name,
            tuple(self._generics),
            tuple(self._params),
            tuple(self._results),
            tuple(self._where),
            tuple(self._body),
            self._place,
            self._place,
        )

    def _own(self, name: str, what: str) -> str:
        """A name that is the user's choice; local tensors made later stay clear of it."""
        if checked_name(name, what) not in self._owned:
            self._owned.add(name)
            self._names.fresh(name)
        return name

    def _tensor(self, name: str) -> Tensor:
        return Tensor(name, self._body.append)

    def _param(
        self,
        name: str,
        dtype: object,
        extents: Extents,
        inout: bool,
        default: ast.Expr | None,
        optional: bool = False,
    ) -> ast.Param:
        place = here()
        kind = self._type(dtype, extents)
        return ast.Param(self._own(name, "a tensor"), kind, inout, default, place, place, optional)

    def _type(self, dtype: object, extents: Extents) -> ast.TensorType:
        place = here()
        every = extents if isinstance(extents, Sequence) and not isinstance(extents, str) else (extents,)
        return ast.TensorType(
            checked_name(str(dtype), "a dtype"), tuple(map(self._extent, every)), place, place
        )

    def _extent(self, extent: Extent) -> ast.Expr:
        """A size by its name, a rank variable (``"B..."``), a number or an expression of sizes."""
        if not isinstance(extent, str):
            return node_of(extent)
        if extent.endswith("..."):
            return ast.Splat(checked_name(extent.removesuffix("..."), "a rank variable"), here())
        if not extent.isidentifier():
            hint = "an extent that is computed is made of sizes and numbers: 3 * f.size('H')"
            refuse(f"{extent!r} cannot be the name of a size", hint)
        return ast.Name(self._own(extent, "a size"), here())
