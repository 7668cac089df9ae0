"""What names mean before a program says anything: functions, reductions, dtypes; and fresh names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from polyfuse.diagnostics import nearest
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.ir.dtypes import ALL, BY_NAME, FLOATS
from polyfuse.ir.ops import ARG_REDUCTIONS, COMBINES, OPS, PLACED, Takes

# --- names of other libraries -----------------------------------------------------------------------------

# Names that people bring from NumPy, PyTorch and C, and the way to write them here.
#
# A name of this table is no slip of the pen: nothing that is spelled alike is suggested for it.


# Name -> parameters and what to write. Letters stand for the arguments.
_WRITTEN: dict[str, tuple[str, str]] = {
    "absolute": ("x", "abs(x)"),
    "add": ("a b", "a + b"),
    "arccos": ("x", "acos(x)"),
    "arccosh": ("x", "acosh(x)"),
    "arcsin": ("x", "asin(x)"),
    "arcsinh": ("x", "asinh(x)"),
    "arctan": ("x", "atan(x)"),
    "arctan2": ("a b", "atan2(a, b)"),
    "arctanh": ("x", "atanh(x)"),
    "clip": ("x a b", "min(max(x, a), b)"),
    "cot": ("x", "cos(x) / sin(x)"),
    "csc": ("x", "1.0 / sin(x)"),
    "divide": ("a b", "a / b"),
    "double": ("x", "f64(x)"),
    "fabs": ("x", "abs(x)"),
    "float": ("x", "f32(x)"),
    "float32": ("x", "f32(x)"),
    "fix": ("x", "trunc(x)"),
    "floor_divide": ("a b", "a // b"),
    "fma": ("a b c", "a * b + c"),
    "fmax": ("a b", "max(a, b)"),
    "fmin": ("a b", "min(a, b)"),
    "gammaln": ("x", "lgamma(x)"),
    "half": ("x", "f16(x)"),
    "heaviside": ("a b", "b if a == 0.0 else 1.0 if a > 0.0 else 0.0"),
    "ifelse": ("c a b", "a if c else b"),
    "int": ("x", "i32(x)"),
    "log10": ("x", "log(x) / 2.302585092994046"),
    "logical_and": ("a b", "a and b"),
    "logical_not": ("x", "not x"),
    "logical_or": ("a b", "a or b"),
    "long": ("x", "i64(x)"),
    "maximum": ("a b", "max(a, b)"),
    "minimum": ("a b", "min(a, b)"),
    "mod": ("a b", "a % b"),
    "mul": ("a b", "a * b"),
    "multiply": ("a b", "a * b"),
    "neg": ("x", "-x"),
    "negative": ("x", "-x"),
    "power": ("a b", "a ** b"),
    "reciprocal": ("x", "1.0 / x"),
    "remainder": ("a b", "a % b"),
    "rint": ("x", "round(x)"),
    "sec": ("x", "1.0 / cos(x)"),
    "sgn": ("x", "sign(x)"),
    "sinc": ("x", "1.0 if x == 0.0 else sin(pi * x) / (pi * x)"),
    "sqr": ("x", "x ** 2"),
    "sub": ("a b", "a - b"),
    "subtract": ("a b", "a - b"),
    "where": ("c a b", "a if c else b"),
}
# Sums and the like, which take lines: each is defined for rows of a matrix.
_LINES = {
    "amax": "m[t] = max[h](x[t, h])",
    "amin": "m[t] = min[h](x[t, h])",
    "average": "mu[t] = mean[h](x[t, h])",
    "count_nonzero": "n[t] = sum[h](i64(x[t, h] != 0.0))",
    "cumprod": "c[t, 0] = x[t, 0]; c[t, h] = c[t, h-1] * x[t, h] for t in 0..T, h in 1..H",
    "cumsum": "c[t, 0] = x[t, 0]; c[t, h] = c[t, h-1] + x[t, h] for t in 0..T, h in 1..H",
    "dot": "d[t] = sum[h](x[t, h] * w[h])",
    "einsum": "c[i, j] = sum[k](a[i, k] * b[k, j])",
    "logsumexp": "m[t] = max[h](x[t, h]); l[t] = m[t] + log(sum[h](exp(x[t, h] - m[t])))",
    "median": "i[t] = argsmallest[h](x[t, h], (H - 1) // 2); m[t] = x[t, i[t]]",
    "norm": "n[t] = sqrt(sum[h](x[t, h] ** 2))",
    "std": "mu[t] = mean[h](x[t, h]); s[t] = sqrt(mean[h]((x[t, h] - mu[t]) ** 2))",
    "var": "mu[t] = mean[h](x[t, h]); v[t] = mean[h]((x[t, h] - mu[t]) ** 2)",
}
# What no line can say.
_ABSENT = """
    copysign corrcoef cov erfcx erfinv frexp gamma i0 isin isnat isqrt ldexp logb mode
    nextafter polygamma rand randn zeta
"""
_NONE = frozenset(_ABSENT.split())
_DTYPES = {
    "bfloat16": "bf16", "byte": "u8", "char": "i8", "double": "f64", "float": "f32", "float16": "f16",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "fp8": "f8e4m3fn or f8e5m2",
    "float32": "f32", "float64": "f64", "half": "f16", "int": "i32", "int16": "i16", "int32": "i32",
    "int64": "i64", "int8": "i8", "long": "i64", "short": "i16", "uint8": "u8",
    "uint": "u32", "uint16": "u16", "uint32": "u32", "uint64": "u64", "ulong": "u64", "ushort": "u16",
    "u1": "bool", "boolean": "bool",
}  # fmt: skip
_NUMBERS = {"huge_val": "inf", "inf": "inf", "infinity": "inf", "nan": "nan", "pi": "pi"}
_COMPLEX = re.compile(r"c(64|128)|complex(64|128)?")
# A dtype by its looks: of another width it is no slip.
_DTYPE_LIKE = re.compile(r"(f|bf|i|u|c|fp|float|int|uint|complex)\d+|e[45]m[23]")


def function_hint(name: str, arguments: Sequence[str]) -> str | None:
    """How a function of another library is written here, of these arguments; None for names unknown to us."""
    if name in _WRITTEN:
        parameters, text = _WRITTEN[name][0].split(), _WRITTEN[name][1]
        if len(parameters) != len(arguments):
            return f"{name}({', '.join(parameters)}) is written {text}"
        given = dict(zip(parameters, map(_operand, arguments), strict=True))
        filled = re.sub(r"(?<![a-z0-9.])[abcxt](?![a-z0-9.(])", lambda m: given[m[0]], text)
        return f"write ({filled})" if _is_open(text) else f"write {filled}"
    if name in _DTYPES and len(arguments) == 1:
        dtype, _, more = _DTYPES[name].partition(", which ")
        return f"the language has no '{name}': {dtype} {more}" if more else f"write {dtype}({arguments[0]})"
    return reduction_hint(name) or (f"the language has no '{name}'" if name in _NONE else None)


def reduction_hint(name: str) -> str | None:
    """The lines that stand for a reduction of another library."""
    return f"it is written in lines, for rows: {_LINES[name]}" if name in _LINES else None


def number_hint(name: str) -> str | None:
    """What to write for a number that C or Python has a name for: `M_PI`, `NaN`, `Infinity`."""
    known = _NUMBERS.get(name.lower().removeprefix("m_"))
    return f"write {known}" if known else None


def dtype_hint(name: str) -> str | None:
    """What to write for a dtype of another language."""
    if name in _DTYPES:
        return f"write {_DTYPES[name]}"
    if _COMPLEX.fullmatch(name):
        return "there are no complex numbers: two tensors hold the real and the imaginary parts"
    return None


def is_dtype_like(name: str) -> bool:
    """Does it look like a dtype, if of no width that there is?"""
    return _DTYPE_LIKE.fullmatch(name) is not None


def _operand(text: str) -> str:
    """An argument where an operand stands."""
    whole = re.fullmatch(r"[\w.]+(\[[^\[\]]*\])?|\w+\([^()]*\)", text)
    return text if whole else f"({text})"


def _is_open(text: str) -> bool:
    """Could operators around a text take a part of it?"""
    while "(" in text:
        text = re.sub(r"\([^()]*\)", "", text)
    return " " in text or text.startswith("-")


_CALLED = {o.name: o for o in OPS.values() if o.called}

FLOAT_FUNCTIONS = frozenset(name for name, o in _CALLED.items() if o.takes is Takes.FLOATS)
"""Functions of floating-point operands."""

_MANY = 1 << 30  # as many as an expression may be high

FUNCTIONS: dict[str, tuple[int, int]] = {
    **{name: (o.arity, _MANY if o.many else o.arity) for name, o in _CALLED.items()},
    "select": (3, 3),
}
"""Scalar functions: the least and the greatest number of arguments."""

OLD = "old"
"""`old(m[i])` reads an inout parameter as it is at entry, and says so."""

ROW = "row"
"""`row(ptr, e)` is the last `n` with `ptr[n] <= e`. A program may have an operator of that name."""

GIVEN = "given"
"""`given(bias)` says whether an optional tensor is there."""

NONE = "None"
"""What a call gives for an optional tensor that is absent."""

BITS, FROM_BITS, POSITION = "bits", "from_bits", "position"
"""`bits(x)` and `from_bits(f32, u)`, between a float and the unsigned integer of its width;
`position(b..., h)`, the row-major index of a place. A program may have operators of these names."""

WORDS = (*FUNCTIONS, OLD, ROW, GIVEN, BITS, FROM_BITS, POSITION)
"""What is written like a function."""

CONSTANTS = {"inf": math.inf, "nan": math.nan, "pi": math.pi}
"""Names of numbers, where nothing else in the operator is called so; floats of the type they stand beside."""

BITWISE = ("&", "|", "^", "<<", ">>")
"""Operators on bits of integers; of bools `BITS_OF_BOOLS` says what they are."""

BITS_OF_BOOLS = {"&": "and", "|": "or", "^": "ne"}

REDUCTIONS = (*COMBINES, "mean", *ARG_REDUCTIONS)

_KINDS = {
    "float": FLOATS,
    "int": tuple(t for t in ALL if t.is_integer),
}
GENERIC_KINDS = {**_KINDS, "number": (*_KINDS["float"], *_KINDS["int"])}
"""What `F: kind` may stand for."""

MAX_AXES = 64
"""Axes of a tensor and index variables of a statement: what arrays of NumPy have."""

MAX_CALL_DEPTH = 24
MAX_STATEMENTS = 10_000
"""Limits on inlining: operators inside operators, and statements of one graph."""


def is_builtin(name: str) -> bool:
    """Whether `name(...)` is a scalar function, a cast or the like, where no operator has the name."""
    return name in WORDS or name in BY_NAME


def is_reserved(name: str) -> bool:
    """Whether no operator can have the name. The functions that came later are not reserved."""
    yields = name in (ROW, GIVEN, BITS, FROM_BITS, POSITION) or (name in _CALLED and _CALLED[name].yields)
    return is_builtin(name) and not yields


def reduction_form(name: str) -> str:
    """How a reduction is written."""
    return f"{name}[i](x[i], k)" if name in PLACED else f"{name}[i](x[i])"


def representative(kind: str) -> str:
    """The dtype a generic stands for when an operator is checked without arguments."""
    return "i32" if kind == "int" else "f32"


def axes(count: int) -> str:
    """`1 axis`, `2 axes`."""
    return f"{count} {'axis' if count == 1 else 'axes'}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known name, or None."""
    near = nearest(name, known)
    return f"did you mean '{near}'?" if near else None


def function_meant(name: str, arguments: Sequence[str], others: Iterable[str] = ()) -> str | None:
    """A hint for a function that there is not: what a known one of another library is here, or the
    one that takes as many arguments and is spelled alike but for a letter or two. `others` are such names."""
    known = function_hint(name, arguments)
    if known is not None:
        return known
    count = len(arguments)
    if name.lower() != name:  # capitals are no other letters
        return function_meant(name.lower(), arguments, others) or _same(name, (*FUNCTIONS, *BY_NAME))
    fitting = {f for f, (low, high) in FUNCTIONS.items() if low <= count <= high}
    fitting |= set(BY_NAME) if count == 1 and not is_dtype_like(name) else set()
    return did_you_mean(name, [f for f in (*fitting, *others) if slips(name, f) <= 1 + (len(name) > 5)])


def dtype_meant(name: str, generics: Iterable[str] = ()) -> str:
    """A hint for a dtype that there is not: u32 and c64 are known elsewhere, f23 is a slip."""
    known = dtype_hint(name)
    if known is not None:
        return known
    if name == "size":
        return "sizes that callers give stand in brackets behind the name: op f[K: size = 2](...)"
    if name.lower() != name and (meant := dtype_hint(name.lower()) or _same(name, BY_NAME)):
        return meant
    near = [t for t in (*BY_NAME, *generics) if not is_dtype_like(name) or sorted(t) == sorted(name)]
    return did_you_mean(name, near) or f"dtypes are {', '.join(BY_NAME)}"


def _same(name: str, known: Iterable[str]) -> str | None:
    """What is spelled so but for capitals."""
    return f"did you mean '{name.lower()}'?" if name.lower() in known else None


def slips(a: str, b: str) -> int:
    """How many letters are wrong, missing, too many or in the place of their neighbour."""
    before, row = list[int](), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


class Namer:
    """Hands out names that are not taken; the first request for a free name gets it as it is."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, base: str, first: int = 2, joint: str = "_") -> str:
        """`base`, or else the first free one of base_2, base_3, ..."""
        name = base
        number = self._next.get(base, first)
        while name in self._taken:
            name = f"{base}{joint}{number}"
            number += 1
        self._next[base] = number
        self._taken.add(name)
        return name


class Library:
    """The operators that calls can reach: those of the calling file first, then the others in order."""

    def __init__(self, programs: Iterable[ast.Program]) -> None:
        self.programs = tuple(programs)
        self._tables: dict[int, dict[str, ast.OpDef]] = {}
        self._functions: dict[int, dict[str, ast.FnDef]] = {}
        self.too_large: set[int] = set()  # ids of operators that are beyond MAX_STATEMENTS
        for p in self.programs:
            self._tables[id(p)] = {}
            self._functions[id(p)] = {f.name: f for f in p.functions}
            for op in p.ops:
                self._tables[id(p)].setdefault(op.name, op)

    def find(self, name: str, home: ast.Program) -> tuple[ast.OpDef, ast.Program] | None:
        for p in (home, *self.programs):
            op = self._tables[id(p)].get(name)
            if op is not None:
                return op, p
        return None

    def is_operator(self, name: str, home: ast.Program) -> bool:
        """Is `name(...)` the call of an operator (of one that there is, if the name is a function's)?"""
        return not is_builtin(name) or (not is_reserved(name) and self.find(name, home) is not None)

    @property
    def has_functions(self) -> bool:
        return any(self._functions.values())

    def find_function(self, name: str, home: ast.Program) -> tuple[ast.FnDef, ast.Program] | None:
        """The function of a name, and the file that has it."""
        if is_reserved(name):
            return None
        for p in (home, *self.programs):
            found = self._functions[id(p)].get(name)
            if found is not None:
                return found, p
        return None

    def functions_of(self, count: int) -> list[str]:
        """The names of functions that take so many arguments."""
        return [f.name for p in self.programs for f in p.functions if len(f.params) == count]

    def operator_first(self, name: str, home: ast.Program) -> bool:
        """Is there an operator of this name, in no later file than a function of it?"""
        for p in (home, *self.programs):
            if name in self._tables[id(p)] or name in self._functions[id(p)]:
                return name in self._tables[id(p)]
        return False

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.name for p in self.programs for op in p.ops))
