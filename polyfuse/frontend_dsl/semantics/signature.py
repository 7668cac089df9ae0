"""An operator's signature: parameters, results, generics, sizes; generics from actual arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from inspect import Signature as PythonSignature
from keyword import iskeyword
from typing import NamedTuple

from polyfuse.diagnostics import ArgumentError, Diagnostics
from polyfuse.frontend_dsl.semantics.monomorphise import rank_variables
from polyfuse.frontend_dsl.semantics.optionals import chosen, optionals
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.frontend_dsl.syntax.expr_text import Style, expr_text
from polyfuse.frontend_dsl.syntax.names import GENERIC_KINDS, axes
from polyfuse.ir.dtypes import BY_NAME, DType
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class ParamSig:
    """A parameter or result. `dtype` is a dtype name or a generic; `extents` are text.

    `axes` is the least number of axes; `rank_variables` are those of its splats.
    """

    name: str
    dtype: str
    extents: tuple[str, ...]
    axes: int
    rank_variables: tuple[str, ...]
    inout: bool
    has_default: bool
    default: float | int | bool | None
    span: Span
    optional: bool = False

    @property
    def is_scalar(self) -> bool:
        return not self.extents

    def __str__(self) -> str:
        shape = f"[{', '.join(self.extents)}]" if self.extents else ""
        default = f" = {str(self.default).lower()}" if self.has_default else "?" if self.optional else ""
        return f"{'inout ' if self.inout else ''}{self.name}: {self.dtype}{shape}{default}"


@dataclass(frozen=True, slots=True)
class SizeParam:
    """A size that a caller gives by its name; `default` is as written, "" without one."""

    name: str
    default: str

    def __str__(self) -> str:
        return f"{self.name}: size = {self.default}" if self.default else f"{self.name}: size"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a caller sees of an operator. `generics` are those that stand for dtypes; `absent` are optional
    tensors that were left out: it has none of them then."""

    name: str
    generics: tuple[tuple[str, str], ...]
    size_params: tuple[SizeParam, ...]
    rank_variables: tuple[str, ...]
    sizes: tuple[str, ...]
    params: tuple[ParamSig, ...]
    results: tuple[ParamSig, ...]
    op: ast.OpDef
    absent: tuple[str, ...] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is yet to be said which optional tensors are there."""
        return any(p.optional for p in self.params)

    def without(self, absent: Collection[str]) -> Signature:
        """The signature where some optional tensors are absent and the others are there."""
        names = tuple(n for n in optionals(self.op) if n in absent)
        return replace(signature(chosen(self.op, names, Diagnostics())), absent=names)

    def param(self, name: str) -> ParamSig:
        return next(p for p in self.params if p.name == name)

    def __str__(self) -> str:
        listed = ", ".join((*(f"{n}: {k}" for n, k in self.generics), *map(str, self.size_params)))
        generics = f"[{listed}]" if listed else ""
        ins, outs = ", ".join(map(str, self.params)), ", ".join(map(str, self.results))
        return f"{self.name}{generics}({ins})" + (f" -> ({outs})" if outs else "")


class Generics(NamedTuple):
    """What an instance is made of: dtypes of the generics, lengths of the rank variables."""

    dtypes: dict[str, DType]
    ranks: dict[str, int]


def size_names(op: ast.OpDef) -> tuple[str, ...]:
    """Sizes in order of first occurrence in the extents of parameters and results, then the others given."""
    every = (e for p in op.params + op.results for extent in p.type.extents for e in walk(extent))
    written = (e.id for e in every if isinstance(e, ast.Name))
    return tuple(dict.fromkeys((*written, *(x.name for x in op.size_parameters))))


def axis_of(name: object, variables: Iterable[str]) -> bool:
    """Is that what the size of an axis is called that one of these rank variables stands for, as `B_0`?"""
    splat, _, number = str(name).rpartition("_")
    return splat in variables and number.isdecimal()


def _default_text(x: ast.Generic) -> str:
    return "" if x.default is None else expr_text(x.default, Style.INDEX)


def literal_value(e: ast.Expr | None) -> float | int | bool | None:
    """The value of a possibly negated literal."""
    match e:
        case ast.Number(value) | ast.BoolLit(value):
            return value
        case ast.Unary("-", ast.Number(value)):
            return -value
        case _:
            return None


def signature(op: ast.OpDef) -> Signature:
    """The signature of an operator definition."""

    def param(p: ast.Param) -> ParamSig:
        splats = tuple(e.id for e in p.type.extents if isinstance(e, ast.Splat))
        extents = tuple(expr_text(e, Style.INDEX) for e in p.type.extents)  # a builder's have no text
        default = literal_value(p.default)
        if default is not None and not isinstance(default, bool) and p.type.dtype in _FLOATING:
            default = float(default)
        axes = len(extents) - len(splats)
        return ParamSig(
            p.name,
            p.type.dtype,
            extents,
            axes,
            splats,
            p.inout,
            p.default is not None,
            default,
            p.name_span,
            p.optional,
        )

    return Signature(
        op.name,
        tuple((x.name, x.kind) for x in op.dtype_generics),
        tuple(SizeParam(x.name, _default_text(x)) for x in op.size_parameters),
        rank_variables(op),
        size_names(op),
        tuple(map(param, op.params)),
        tuple(map(param, op.results)),
        op,
    )


_FLOATING = frozenset(n for n, t in BY_NAME.items() if t.is_float)


# --- generics from arguments -------------------------------------------------------------------------


def infer_generics(sig: Signature, arg_dtypes: Mapping[str, DType], arg_ranks: Mapping[str, int]) -> Generics:
    """What the arguments say the generics and rank variables are.

    Arguments without a dtype (Python numbers) are left out of `arg_dtypes`; a generic that no
    argument fixes is its kind's representative. Raises ArgumentError with every conflict.
    """
    diags = Diagnostics()
    dtypes = _infer_dtypes(sig, arg_dtypes, diags)
    ranks = _infer_ranks(sig, arg_ranks, diags)
    diags.raise_if_errors(ArgumentError)
    return Generics(dtypes, ranks)


def conversion(p: ParamSig) -> str | None:
    """How an array gets the dtype of its parameter; None for a generic, which has several."""
    known = BY_NAME.get(p.dtype)
    return f'convert it first (NumPy: np.asarray({p.name}, "{known.numpy.name}"))' if known else None


def _infer_dtypes(sig: Signature, given: Mapping[str, DType], diags: Diagnostics) -> dict[str, DType]:
    kinds, found, because = dict(sig.generics), dict[str, DType](), dict[str, str]()
    for p in sig.params:
        actual = given.get(p.name)
        if actual is None:
            continue
        if p.dtype not in kinds:
            if p.dtype != actual.name:
                diags.error(
                    "PF402",
                    f"argument '{p.name}' of {sig.name} has dtype {actual}, expected {p.dtype}",
                    p.span,
                    conversion(p),
                )
        elif actual not in GENERIC_KINDS.get(kinds[p.dtype], ()):
            allowed = ", ".join(map(str, GENERIC_KINDS.get(kinds[p.dtype], ())))
            diags.error(
                "PF402",
                f"argument '{p.name}' of {sig.name} has dtype {actual}; {p.dtype} is one of {allowed}",
                p.span,
            )
        elif found.setdefault(p.dtype, actual) != actual:
            one, first = because[p.dtype], found[p.dtype]
            diags.error(
                "PF403",
                f"{sig.name} needs arguments '{one}' and '{p.name}' of one dtype ({p.dtype}),"
                f" got {first} and {actual}",
                p.span,
                f"cast one of them before the call, or declare '{p.name}' with a generic of its own",
            )
        because.setdefault(p.dtype, p.name)
    for name, kind in sig.generics:
        found.setdefault(name, BY_NAME["i32" if kind == "int" else "f32"])
    return {name: found[name] for name, _ in sig.generics}


def _infer_ranks(sig: Signature, given: Mapping[str, int], diags: Diagnostics) -> dict[str, int]:
    found: dict[str, int] = {}
    because: dict[str, str] = {}
    # Types with one open rank variable fix it; those with several wait until the others are known.
    for p in sorted((p for p in sig.params if p.name in given), key=lambda p: len(set(p.rank_variables))):
        rank = given[p.name]
        open_ = [v for v in dict.fromkeys(p.rank_variables) if v not in found]
        rest = rank - p.axes - sum(found.get(v, 0) for v in p.rank_variables)
        if len(open_) == 1 and rest >= 0 and rest % p.rank_variables.count(open_[0]) == 0:
            found[open_[0]] = rest // p.rank_variables.count(open_[0])
            because[open_[0]] = p.name
        elif len(open_) > 1:
            names = " and ".join(f"{v}..." for v in open_)
            message = f"of the axes of {names} only the sum follows from the arguments of {sig.name}"
            diags.error("PF401", message, p.span, "give each a parameter of its own")
        elif open_:
            _rank_problem(sig, p, rank, diags)
        elif rest != 0:
            known = [v for v in p.rank_variables if v in because]
            if not known:
                _rank_problem(sig, p, rank, diags)
                continue
            other, length = because[known[0]], found[known[0]]
            diags.error(
                "PF404",
                f"in {sig.name}, {known[0]}... is {axes(length)} because '{other}' has {axes(given[other])};"
                f" then '{p.name}': {_type_text(p)} has {rank - rest}, not {rank}",
                p.span,
            )
    return {v: found.get(v, 0) for v in sig.rank_variables}


def _type_text(p: ParamSig) -> str:
    return f"{p.dtype}[{', '.join(p.extents)}]"


def _rank_problem(sig: Signature, p: ParamSig, rank: int, diags: Diagnostics) -> None:
    least = "at least " if p.rank_variables else ""
    text = f"{least}{axes(p.axes)}: {_type_text(p)}"
    message = f"argument '{p.name}' of {sig.name} has {axes(rank)}, expected {text}"
    diags.error("PF401", message, p.span)


# --- as Python has it -------------------------------------------------------------------------------------


def python_signature(signature: Signature) -> PythonSignature:
    """Parameters with their types as written, ``x: f32[N]``, and the results.

    Those with names that Python reserves, and all before them, can be given by position only.
    """
    params = signature.params
    reserved = max((k for k, p in enumerate(params) if iskeyword(p.name)), default=-1)
    made = [
        Parameter(
            p.name,
            Parameter.POSITIONAL_ONLY if k <= reserved else Parameter.POSITIONAL_OR_KEYWORD,
            default=p.default if p.has_default else None if p.optional else Parameter.empty,
            annotation=_type(p),
        )
        for k, p in enumerate(params)
    ]
    results = ", ".join(f"{r.name}: {_type(r)}" for r in signature.results)
    made += [
        Parameter(p.name, Parameter.KEYWORD_ONLY, default=_Default(p.default), annotation="size")
        if p.default
        else Parameter(p.name, Parameter.KEYWORD_ONLY, annotation="size")
        for p in signature.size_params
    ]
    several = f"({results})" if len(signature.results) != 1 else _type(signature.results[0])
    # An operator may have parameters without a default behind others with one.
    return PythonSignature(
        made,
        return_annotation=several if signature.results else None,
        __validate_parameters__=False,
    )


class _Default(str):
    """The default of a size parameter as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _type(p: ParamSig) -> str:
    shape = f"[{', '.join(p.extents)}]" if p.extents else ""
    return f"{'inout ' if p.inout else ''}{p.dtype}{shape}{'?' if p.optional else ''}"
