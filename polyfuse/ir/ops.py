"""The table of operations: a row for each scalar operation, with every fact about it that other modules need.

    OPS["erf"].ulp             (7.5, 4.0)
    with_trait(Trait.SCALED)   ("tanh", "erf")

With a row the language has a function, and graphs, costs, cleanup, analyses and printers know it.  What a
table cannot hold are its kernels: text of C++ (`codegen/vector_math_*.h`), the reference with a bound of its
error (`runtime/reference/ops.py`) and, where NumPy has no such function, one for the interpreter.
docs/internals/adding_a_function.md goes through it; tests/unit/ir/test_ops.py asks each row for its kernels.

Code generation makes forms of operations, which are no rows: `short_exp` of `exp` (`Trait.SHORT`, `Form`),
`waiting_max` of `max`.  Nor are `quotient` and `choose`, which no graph has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Literal, TypeAlias

from polyfuse.ir.dtypes import BOOL, F32, F64, U32, U64, DType

Exactness = Literal["exact", "rounded", "approximate"]
Ulp: TypeAlias = tuple[float, float]


class Takes(Enum):
    """The dtypes of the operands, which have all the same one."""

    FLOATS = "floats"
    NUMBERS = "numbers"
    INTEGERS = "integers"
    BOOLS = "bools"
    ANY = "any"
    F32 = "f32"
    I32 = "i32"
    I64 = "i64"
    U32 = "u32"
    U64 = "u64"
    WORDS = "u32 or u64"

    def has(self, dtype: DType) -> bool:
        """Is it one of these dtypes?"""
        match self:
            case Takes.FLOATS:
                return dtype.is_float
            case Takes.NUMBERS:
                return not dtype.is_bool
            case Takes.INTEGERS:
                return dtype.is_integer
            case Takes.BOOLS:
                return dtype.is_bool
            case Takes.ANY:
                return True
            case Takes.WORDS:
                return dtype in (U32, U64)
            case _:
                return bool(dtype.name == self.value)


class Cost(Enum):
    """What kind of work an operation is on a CPU, with vectors of floats."""

    CHEAP = "cheap"  # one instruction or two: computed again rather than kept
    PLAIN = "plain"  # a few instructions
    DIVIDER = "divider"  # the unit that divides and takes roots
    FLOORED = "floored"  # a quotient rounded down; of integers no compiler makes vectors of it
    FUNCTION = "function"  # as long as ten additions and more


class Trait(Flag):
    """What else passes ask for: facts about the values, and which kernels there are besides."""

    NONE = 0
    COMMUTES = auto()  # operands may change places (of 0.0 and -0.0 min and max take either)
    STRICT = auto()  # NaN where an operand is NaN
    NORMAL = auto()  # arithmetic: where a core flushes denormals, no result is one
    POSITIVE = auto()  # never less than 0; but for NaN, and rsqrt(-0.0), which is -inf
    RELATIVE = auto()  # the relative error of a result is at most the sum of those of the operands
    FOLDED = auto()  # of floats, all targets compute the same bits: the compiler may do it
    WHOLE = auto()  # gives integers, as floats
    SHORT = auto()  # pf_short_<name>_f32, for results of 16 bits (`codegen.transforms.precision`)
    SCALED = auto()  # pf_scaled_<name>_f32, c f(k x) for constants (`codegen.transforms.strength_reduction`)
    ROWS = auto()  # pf_row_<name>_<dtype>, of many elements in place (`codegen.cpu.vectorize.math_calls`)


@dataclass(frozen=True, slots=True)
class Form:
    """A shorter text of an operation of f32 for GPUs, pf_<prefix>_<name>_f32, by approximate instructions.

    A result is within `relative * |f| + absolute` of the value f (and the smallest normal number, as
    denormals are 0), whatever the instructions `by` make of it within their errors in the PTX ISA, where the
    operand is at most `most`.

    short   where values are rounded to 16 bits, or one of many terms (`codegen.transforms.precision`)
    fast    wherever f32 may be off by `ROOM`
    near    where a constant is added, as in 1 + erf(x) (`codegen.transforms.approximate_functions`)
    joint   there as well, of k x: x, the constant k and the value of the function `beside` at -(k x)^2
    """

    prefix: Literal["short", "fast", "near", "joint"]
    by: str
    relative: float = 0.0
    absolute: float = 0.0
    most: float = math.inf
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the table.

    name        in graphs, where the language calls it, and in functions of the prelude: pf_<name>_<dtype>
    arity       how many operands
    takes       their dtypes
    ulp         largest errors of f32 and f64 in units of the last place; None where there is no such bound
    cost        the class of work
    cpu, gpu    weights, in additions of f32, where nobody has measured it
    traits      see `Trait`
    gives_bool  the result is a bool
    gives       the dtypes of operands and, beside each, that of the result, where it is another
    called      the language calls it by its name: exp(x)
    many        and takes more operands: max(a, b, c)
    sign        how the language and texts of graphs write it: a + b, -x
    c           C's operator, of floats (of any dtype if the result is a bool); without one, functions of the
                prelude are called
    c_bool      C's operator, of bools
    negated     the comparison that holds where this one does not
    numpy       NumPy's function that computes it as kernels do; the interpreter has its own for some dtypes
    baseline    how the NumPy baseline writes it, if neither by its sign nor by NumPy's function
    scipy       the function of scipy.special that the baseline takes where NumPy has none
    cuda        CUDA's device function, without the f of floats; else the prelude has a text for it
    forms       shorter texts for GPUs, those that take least first
    carries     an error of the operand, as a part of it, is at least so much of one in the result, absolute
    gradient    the derivative by each operand, in the language's words: x and y are the operands, f is the
                result; () where there is none, or the language has no function for it
    yields      an operator of a program may be called so, and its calls are of that operator then
    """

    name: str
    arity: int
    takes: Takes
    ulp: Ulp | None
    cost: Cost
    cpu: float = 1
    gpu: float = 1
    traits: Trait = Trait.NONE
    gives_bool: bool = False
    gives: tuple[tuple[DType, DType], ...] = ()
    called: bool = False
    many: bool = False
    sign: str = ""
    c: str = ""
    c_bool: str = ""
    negated: str = ""
    numpy: str = ""
    baseline: str = ""
    scipy: str = ""
    cuda: str = ""
    forms: tuple[Form, ...] = ()
    carries: float = 0.0
    gradient: tuple[str, ...] = ()
    yields: bool = False

    def has(self, trait: Trait) -> bool:
        """Has it a trait?"""
        return trait in self.traits

    def result(self, operand: DType) -> DType:
        """The dtype of the result."""
        return BOOL if self.gives_bool else dict(self.gives).get(operand, operand)

    def c_sign(self, dtype: DType) -> str:
        """C's operator for operands of a dtype; "" where a function of the prelude is called."""
        if dtype.is_bool and self.c_bool:
            return self.c_bool
        return self.c if self.gives_bool or dtype.is_float else ""

    @property
    def exactness(self) -> Exactness:
        """Of floats: nothing is rounded, once to the nearest, or there is a larger bound of the error."""
        return "exact" if self.ulp == _EXACT else "rounded" if self.ulp == _ROUNDED else "approximate"

    @property
    def is_special(self) -> bool:
        """Does it take longer than an addition?"""
        return self.cpu > 1

    def form(self, prefix: str) -> Form | None:
        """The form of a prefix, if there is one."""
        return next((f for f in self.forms if f.prefix == prefix), None)


ROOM = 2.0**-20
"""By how much of it a result of f32 may differ from the value: that much the reference allows each operation
(`runtime.reference.values`)."""

_EXACT, _ROUNDED = (0.0, 0.0), (0.5, 0.5)
FLOATS, NUMBERS, INTEGERS, BOOLS, ANY = Takes.FLOATS, Takes.NUMBERS, Takes.INTEGERS, Takes.BOOLS, Takes.ANY
CHEAP, PLAIN, DIVIDER, FLOORED, FUNCTION = Cost
COMMUTES, STRICT, NORMAL, POSITIVE, RELATIVE, FOLDED, WHOLE, SHORT, SCALED, ROWS = Trait


def _function(
    name: str, ulp: Ulp, cost: Cost, cpu: float, gpu: float, numpy: str, cuda: str,
    traits: Trait = Trait.NONE, baseline: str = "", scipy: str = "", forms: tuple[Form, ...] = (),
    carries: float = 0.0, gradient: str = "", yields: bool = False,
) -> Op:  # fmt: skip
    """A function of one float."""
    return Op(
        name, 1, FLOATS, ulp, cost, cpu, gpu, STRICT | traits, called=True, numpy=numpy, cuda=cuda,
        baseline=baseline, scipy=scipy, forms=forms, carries=carries,
        gradient=(gradient,) if gradient else (), yields=yields,
    )  # fmt: skip


def _newer(
    name: str, ulp: Ulp, cost: Cost, cpu: float, gpu: float, numpy: str, cuda: str, gradient: str,
    traits: Trait = Trait.NONE, scipy: str = "",
) -> Op:  # fmt: skip
    """A function of one float, of a name that programs may have for an operator of their own."""
    return _function(
        name, ulp, cost, cpu, gpu, numpy, cuda, traits, scipy=scipy, gradient=gradient, yields=True
    )


def _binary(
    name: str, sign: str, c: str, c_bool: str, numpy: str, ulp: Ulp,
    traits: Trait = Trait.NONE, *, takes: Takes = NUMBERS, cost: Cost = CHEAP, cpu: float = 1,
    gpu: float = 1, cuda: str = "", called: bool = False, many: bool = False, forms: tuple[Form, ...] = (),
    gradient: tuple[str, ...] = (), yields: bool = False,
) -> Op:  # fmt: skip
    """An operation on two numbers."""
    return Op(
        name, 2, takes, ulp, cost, cpu, gpu, traits, called=called, many=many, sign=sign, c=c, c_bool=c_bool,
        numpy=numpy, cuda=cuda, forms=forms, gradient=gradient, yields=yields,
    )  # fmt: skip


def _tested(
    name: str, takes: Takes, sign: str, c: str, negated: str, numpy: str, traits: Trait = FOLDED, *,
    arity: int = 2, yields: bool = False,
) -> Op:  # fmt: skip
    """What gives a bool."""
    return Op(
        name, arity, takes, _EXACT, CHEAP, traits=traits, gives_bool=True, called=not sign, sign=sign, c=c,
        negated=negated, numpy=numpy, yields=yields,
    )  # fmt: skip


_ROWS = (
    # Functions of one float.
    #          name      ulp f32, f64  cost, cpu, gpu    NumPy    CUDA     traits, besides STRICT
    _function("exp",     (1.25, 1.25), FUNCTION, 12, 10, "exp",   "exp",   NORMAL | POSITIVE | SHORT | ROWS,
              forms=(Form("short", "ex2.approx", 4.2e-6),
                     Form("fast", "ex2.approx", 6.0e-7, most=88.0)), gradient="f"),
    _function("log",     (1.0, 1.0),   FUNCTION, 16, 10, "log",   "log",   NORMAL | ROWS,
              forms=(Form("near", "lg2.approx", 3.1e-7, 2.1e-7),), carries=1.0, gradient="1.0 / x"),
    _function("sqrt",    (0.5, 0.5),   DIVIDER,  10, 10, "sqrt",  "",      NORMAL | POSITIVE | RELATIVE,
              forms=(Form("fast", "sqrt.approx", 2.0**-23),), gradient="0.5 / f"),
    _function("rsqrt",   (1.5, 1.5),   DIVIDER,  8,  8,  "",      "rsqrt", NORMAL | POSITIVE | RELATIVE,
              baseline="(1 / np.sqrt({}))", forms=(Form("fast", "rsqrt.approx", 2.0**-22.9),),
              gradient="-0.5 * f / x"),
    _function("tanh",    (6.5, 3.0),   FUNCTION, 20, 20, "tanh",  "tanh",  NORMAL | SCALED,
              forms=(Form("near", "ex2.approx and rcp.approx", absolute=4.0e-7),),
              gradient="1.0 - f * f"),
    _function("sigmoid", (3.0, 3.0),   FUNCTION, 22, 20, "",      "",      NORMAL | POSITIVE | SHORT | ROWS,
              forms=(Form("short", "ex2.approx and rcp.approx", 4.4e-6),
                     Form("near", "ex2.approx and rcp.approx", absolute=2.5e-7),
                     Form("fast", "rcp.approx", 2.0**-20.5)), gradient="f * (1.0 - f)"),
    _function("erf",     (7.5, 4.0),   FUNCTION, 28, 25, "",      "erf",   NORMAL | SCALED, scipy="erf",
              forms=(Form("joint", "rcp.approx and a power that is there", absolute=8.3e-7, beside="exp"),
                     Form("near", "ex2.approx", absolute=3.0e-7)),
              gradient="1.1283791670955126 * exp(-x * x)"),
    _function("sin",     (2.0, 1.0),   FUNCTION, 20, 20, "sin",   "sin",   gradient="cos(x)"),
    _function("cos",     (2.0, 1.0),   FUNCTION, 20, 20, "cos",   "cos",   gradient="-sin(x)"),
    _function("floor",   _EXACT,       PLAIN,    1,  1,  "floor", "floor", FOLDED | WHOLE, gradient="0.0"),
    _function("ceil",    _EXACT,       PLAIN,    1,  1,  "ceil",  "ceil",  FOLDED | WHOLE, gradient="0.0"),
    _function("round",   _EXACT,       PLAIN,    1,  1,  "rint",  "rint",  FOLDED | WHOLE,
              baseline="np.round({})", gradient="0.0"),
    # Functions that came later: a program may have an operator of that name.
    #      name       ulp f32, f64  cost, cpu, gpu    NumPy      CUDA     derivative; traits, besides STRICT
    _newer("trunc",   _EXACT,       PLAIN,    1,  1,  "trunc",   "trunc", "0.0", FOLDED | WHOLE),
    _newer("exp2",    (1.25, 1.25), FUNCTION, 12, 10, "exp2",    "exp2",  "f * 0.6931471805599453",
           NORMAL | POSITIVE),
    _newer("expm1",   (2.0, 2.5),   FUNCTION, 14, 12, "expm1",   "expm1", "f + 1.0", NORMAL),
    _newer("log1p",   (2.0, 1.5),   FUNCTION, 26, 14, "log1p",   "log1p", "1.0 / (1.0 + x)", NORMAL),
    _newer("log2",    (0.75, 1.75), FUNCTION, 24, 12, "log2",    "log2",  "1.4426950408889634 / x", NORMAL),
    _newer("tan",     (4.0, 2.5),   FUNCTION, 40, 30, "tan",     "tan",   "1.0 + f * f"),
    _newer("atan",    (1.75, 1.75), FUNCTION, 24, 20, "arctan",  "atan",  "1.0 / (1.0 + x * x)"),
    _newer("asin",    (2.5, 2.5),   FUNCTION, 24, 20, "arcsin",  "asin",  "rsqrt(1.0 - x * x)"),
    _newer("acos",    (1.5, 1.5),   FUNCTION, 24, 20, "arccos",  "acos",  "-rsqrt(1.0 - x * x)", POSITIVE),
    _newer("sinh",    (2.0, 2.5),   FUNCTION, 22, 20, "sinh",    "sinh",  "cosh(x)"),
    _newer("cosh",    (2.25, 2.0),  FUNCTION, 22, 20, "cosh",    "cosh",  "sinh(x)", NORMAL | POSITIVE),
    _newer("asinh",   (2.25, 2.25), FUNCTION, 42, 30, "arcsinh", "asinh", "rsqrt(1.0 + x * x)"),
    _newer("acosh",   (2.5, 2.5),   FUNCTION, 42, 30, "arccosh", "acosh", "rsqrt(x * x - 1.0)", POSITIVE),
    _newer("atanh",   (2.5, 2.5),   FUNCTION, 36, 30, "arctanh", "atanh", "1.0 / (1.0 - x * x)"),
    _newer("cbrt",    (1.0, 1.0),   FUNCTION, 24, 20, "cbrt",    "cbrt",  "f / (3.0 * x)", NORMAL | RELATIVE),
    _newer("erfc",    (2.25, 4.0),  FUNCTION, 40, 30, "",        "erfc",
           "-1.1283791670955126 * exp(-x * x)", POSITIVE, scipy="erfc"),
    _newer("lgamma",  (0.75, 8.0),  FUNCTION, 160, 80, "",       "lgamma", "digamma(x)", scipy="gammaln"),
    _newer("digamma", (0.75, 5.0),  FUNCTION, 160, 80, "",       "",      "", scipy="digamma"),
    # Arithmetic.
    #        name       sign  C         NumPy           ulp          traits
    _binary("add",      "+",  "+", "|", "add",          _ROUNDED,    COMMUTES | STRICT | NORMAL | FOLDED,
            gradient=("1.0", "1.0")),
    _binary("sub",      "-",  "-", "",  "subtract",     _ROUNDED,    STRICT | NORMAL | FOLDED,
            gradient=("1.0", "-1.0")),
    _binary("mul",      "*",  "*", "&", "multiply",     _ROUNDED,
            COMMUTES | STRICT | NORMAL | RELATIVE | FOLDED, gradient=("y", "x")),
    _binary("div",      "/",  "/", "",  "divide",       _ROUNDED,    STRICT | NORMAL | RELATIVE | FOLDED,
            takes=FLOATS, cost=DIVIDER, cpu=8, gpu=10,
            forms=(Form("fast", "div.full or rcp.approx", 2.0**-21),), gradient=("1.0 / y", "-f / y")),
    _binary("floordiv", "//", "",  "",  "floor_divide", _ROUNDED,    cost=FLOORED, cpu=20, gpu=20,
            gradient=("0.0", "0.0")),
    _binary("mod",      "%",  "",  "",  "mod",          _ROUNDED,    cost=FLOORED, cpu=20, gpu=20,
            gradient=("1.0", "-floor(x / y)")),
    _binary("pow",      "**", "",  "",  "power",        (0.75, 1.5), cost=FUNCTION, cpu=32, gpu=30,
            cuda="pow", called=True, gradient=("y * x ** (y - 1.0)", "f * log(x)")),
    _binary("atan2",    "",   "",  "",  "arctan2",      (1.75, 1.75), STRICT,
            takes=FLOATS, cost=FUNCTION, cpu=30, gpu=25, cuda="atan2", called=True,
            gradient=("y / (x * x + y * y)", "-x / (x * x + y * y)"), yields=True),
    _binary("hypot",    "",   "",  "",  "hypot",        (0.75, 1.25), COMMUTES | NORMAL | POSITIVE | RELATIVE,
            takes=FLOATS, cost=FUNCTION, cpu=14, gpu=20, cuda="hypot", called=True,
            gradient=("x / f", "y / f"), yields=True),
    _binary("fmod",     "",   "",  "",  "fmod",         _ROUNDED,    STRICT,
            takes=FLOATS, cost=FLOORED, cpu=20, gpu=20, called=True,
            gradient=("1.0", "-trunc(x / y)"), yields=True),
    _binary("min",      "",   "",  "&", "minimum",      _EXACT,      COMMUTES | STRICT | RELATIVE | FOLDED,
            called=True, many=True, gradient=("1.0 if x < y else 0.0", "0.0 if x < y else 1.0")),
    _binary("max",      "",   "",  "|", "maximum",      _EXACT,      COMMUTES | STRICT | RELATIVE | FOLDED,
            called=True, many=True, gradient=("1.0 if x > y else 0.0", "0.0 if x > y else 1.0")),
    Op("neg", 1, NUMBERS, _EXACT, CHEAP, traits=STRICT | RELATIVE | FOLDED,
       sign="-", c="-", numpy="negative", baseline="(-{})", gradient=("-1.0",)),
    Op("abs", 1, NUMBERS, _EXACT, CHEAP, traits=STRICT | POSITIVE | RELATIVE | FOLDED,
       called=True, numpy="abs", gradient=("sign(x)",)),
    Op("sign", 1, NUMBERS, _EXACT, CHEAP, traits=STRICT | FOLDED,
       called=True, numpy="sign", gradient=("0.0",), yields=True),
    # Bits of integers.  The number of places is read as unsigned; the width or more leaves 0, or the sign.
    _binary("bitand",   "&",  "",  "",  "bitwise_and",  _EXACT, COMMUTES, takes=INTEGERS),
    _binary("bitor",    "|",  "",  "",  "bitwise_or",   _EXACT, COMMUTES, takes=INTEGERS),
    _binary("bitxor",   "^",  "",  "",  "bitwise_xor",  _EXACT, COMMUTES, takes=INTEGERS),
    _binary("shl",      "<<", "",  "",  "left_shift",   _EXACT, takes=INTEGERS),
    _binary("shr",      ">>", "",  "",  "right_shift",  _EXACT, takes=INTEGERS),
    Op("bitnot", 1, INTEGERS, _EXACT, CHEAP, sign="~", numpy="invert"),
    # The bits of a float, and back; those of shorter ones in the lowest bits of a word.
    Op("bits",               1, FLOATS,      _EXACT, CHEAP, gives=((F32, U32), (F64, U64))),
    Op("bits_f16",           1, Takes.F32,   _EXACT, PLAIN, gives=((F32, U32),)),
    Op("bits_f8e4m3fn",      1, Takes.F32,   _EXACT, PLAIN, gives=((F32, U32),)),
    Op("bits_f8e5m2",        1, Takes.F32,   _EXACT, PLAIN, gives=((F32, U32),)),
    Op("from_bits",          1, Takes.WORDS, _EXACT, CHEAP, gives=((U32, F32), (U64, F64))),
    Op("from_bits_f16",      1, Takes.U32,   _EXACT, PLAIN, gives=((U32, F32),)),
    Op("from_bits_f8e4m3fn", 1, Takes.U32,   _EXACT, PLAIN, gives=((U32, F32),)),
    Op("from_bits_f8e5m2",   1, Takes.U32,   _EXACT, PLAIN, gives=((U32, F32),)),
    # Random123's Philox: key, upper and lower half of the counter, which of its four words.
    Op("philox4x32",    4, Takes.U64,   _EXACT, FUNCTION, 40, 40, gives=((U64, U32),), called=True,
       yields=True),
    # What gives bools.
    #        name    takes    sign   C     negated  NumPy          traits
    _tested("lt",    NUMBERS, "<",   "<",  "ge",    "less"),
    _tested("le",    NUMBERS, "<=",  "<=", "gt",    "less_equal"),
    _tested("gt",    NUMBERS, ">",   ">",  "le",    "greater"),
    _tested("ge",    NUMBERS, ">=",  ">=", "lt",    "greater_equal"),
    _tested("eq",    ANY,     "==",  "==", "ne",    "equal",       FOLDED | COMMUTES),
    _tested("ne",    ANY,     "!=",  "!=", "eq",    "not_equal",   FOLDED | COMMUTES),
    _tested("isnan", FLOATS,  "",    "",   "",      "isnan",       arity=1),
    _tested("isinf", FLOATS,  "",    "",   "",      "isinf",       arity=1, yields=True),
    _tested("isfinite", FLOATS, "",  "",   "",      "isfinite",    arity=1, yields=True),
    _tested("and",   BOOLS,   "and", "&",  "",      "logical_and", COMMUTES),
    _tested("or",    BOOLS,   "or",  "|",  "",      "logical_or",  COMMUTES),
    _tested("not",   BOOLS,   "not", "!",  "",      "logical_not", arity=1),
    # In no language.  Of i32: word has the low 16 bits of two numbers, the first in its lower half; dot_words
    # adds the products of two words' halves, which have signs; half has the low 8 bits of two numbers, and
    # dot_bytes adds the products of bytes of two words, those of the first with signs and those of the second
    # without.  Of f32: pair has the upper 16 bits of two numbers that are bf16, the first in its lower half,
    # and is none; dot_pairs adds the products of two.
    Op("word",      2, Takes.I32, _EXACT, PLAIN),
    Op("dot_words", 2, Takes.I32, _EXACT, PLAIN),
    Op("half",      2, Takes.I32, _EXACT, PLAIN),
    Op("dot_bytes", 2, Takes.I32, _EXACT, PLAIN),
    Op("pair",      2, Takes.F32, _EXACT, PLAIN),
    Op("dot_pairs", 2, Takes.F32, None,   PLAIN),
    # Nor this: the first of three numbers, which checked builds refuse where it is less than the second or
    # more than the third.
    Op("within",    3, Takes.I64, _EXACT, CHEAP, baseline="{0}"),
)  # fmt: skip

OPS: dict[str, Op] = {o.name: o for o in _ROWS}
"""The operations by name, in the order of the table."""

INFIX: dict[str, str] = {o.name: o.sign for o in OPS.values() if o.sign and o.arity == 2}
"""The operations whose sign in the language stands between operands."""

BY_SIGN: dict[str, str] = {sign: name for name, sign in INFIX.items()}
"""The same by their signs."""

INDEX: dict[str, str] = {
    name: INFIX.get(name, name) for name in ("add", "sub", "mul", "floordiv", "mod", "min", "max")
}
"""The operations of integers that index expressions have, and what those call them (`ir.index_expr`)."""

NEGATED: dict[str, str] = {o.name: o.negated for o in OPS.values() if o.negated}
"""The comparisons, each with the one that holds where it does not (of numbers that are no NaN)."""

COMBINES: dict[str, str] = {
    "sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and",
}  # fmt: skip
"""The reductions that join two values by an operation; argmax and argmin do not."""

PLACED = ("arglargest", "argsmallest")
"""The reductions that give what stands at a place when the elements are in order."""
ARG_REDUCTIONS = ("argmax", "argmin", *PLACED)
"""The reductions that give a value of their one variable."""


def with_trait(trait: Trait) -> tuple[str, ...]:
    """The operations that have a trait, in the order of the table."""
    return tuple(o.name for o in OPS.values() if o.has(trait))


def of_cost(cost: Cost) -> frozenset[str]:
    """The operations of a class of work."""
    return frozenset(o.name for o in OPS.values() if o.cost is cost)
