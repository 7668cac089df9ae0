"""CUDA's part of the prelude: what a GPU does otherwise than a CPU, and what only a GPU has.

`functions(shared)` takes the text of every function that means the same on both (``shared``, by name) and
gives CUDA's: device functions in the place of polynomials, single instructions in the place of bit tricks
where they are as exact.  Besides there are

* ``pf_warp_<op>_<dtype>(value, width)``: reduction over groups of neighbouring lanes of a warp,
* ``pf_atomic_<op>_<dtype>(address, value)``: update of an element by many threads,
* ``pf_<form>_<function>_f32``, by approximate instructions (`ir.ops.Form`); for the emulator these are off by
  as much as they may be,
* ``pf_pow_alike_<dtype>``, for an exponent that all threads share,
* ``pf_square_<dtype>``, ``pf_power_<dtype>(value, exponent)``, ``pf_power_half_<dtype>`` (likewise),
  ``pf_root_<dtype>``, ``pf_select_<dtype>``:
  NVRTC has no statement expressions.

The same text compiles for the emulator, which defines CUDA's words for g++ (PF_EMULATE).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Template

from polyfuse.codegen.math.headers import blocks, read
from polyfuse.ir.dtypes import (
    ALL,
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    QUARTERS,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from polyfuse.ir.functions import FORMS
from polyfuse.ir.ops import OPS

LANE_DTYPES: tuple[DType, ...] = (F32, F64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
_SQUARE_DTYPES: tuple[DType, ...] = (F32, F64, I64, I32, I16, I8, U64, U32, U16, U8)
_OPS = ("sum", "prod", "min", "max", "any", "all")
_LOGIC = ("any", "all")
_ONE_WAY = ("min", "max", *_LOGIC)
_FLOAT = {F32: {"F": "float", "N": "f32", "L": "f"}, F64: {"F": "double", "N": "f64", "L": ""}}

# CUDA's own, where it has one that means the same; the type that it takes.
_NATIVE: dict[tuple[str, DType], tuple[str, str]] = {
    ("sum", F32): ("atomicAdd", "float"),
    ("sum", F64): ("atomicAdd", "double"),
    ("sum", I32): ("atomicAdd", "int"),
    ("sum", I64): ("atomicAdd", "unsigned long long"),
    ("sum", U32): ("atomicAdd", "unsigned"),
    ("sum", U64): ("atomicAdd", "unsigned long long"),
    **{(op, U32): (f"atomic{op.title()}", "unsigned") for op in ("min", "max")},
    **{(op, U64): (f"atomic{op.title()}", "unsigned long long") for op in ("min", "max")},
    **{(op, I32): (f"atomic{op.title()}", "int") for op in ("min", "max")},
    **{(op, I64): (f"atomic{op.title()}", "long long") for op in ("min", "max")},
}
_NATIVE_TEXT = """\
PF_INLINE void pf_atomic_${O}_$N($T* address, $T value) { $NATIVE(($M*)address, ($M)value); }
"""
_POWERS = ("square", "power", "root", "power_half", "pow_alike")
# What CUDA has a device function for, in both types.
_OWN = "PF_INLINE $F pf_${OP}_$N($PARAMETERS) { return $FUNCTION$L($ARGUMENTS); }\n"
_SELECT = """\
// Both sides are there already; c chooses.
PF_INLINE $T pf_select_$N(bool c, $T a, $T b) { return c ? a : b; }
"""
_SQUARE = "PF_INLINE $T pf_square_$N($T x) { return pf_mul_$N(x, x); }\n"
_POWER = """\
PF_INLINE $T pf_power_$N($T x, int n) {
  $T product = 1;
  for (; n; n >>= 1) {
    if (n & 1) product = pf_mul_$N(product, x);
    x = pf_mul_$N(x, x);
  }
  return product;
}
"""


def head() -> str:
    """Types and words, the same in every source."""
    return read("vector_math_cuda_head.h")


def functions(shared: Mapping[str, str]) -> dict[str, str]:
    """CUDA's text of every function, by name."""
    table = {name: _device(text) for name, text in shared.items()}
    table.update(blocks(read("vector_math_cuda.h")))
    for parameters in _FLOAT.values():
        table.update(_own(parameters))
        table.update(blocks(Template(read("vector_math_cuda_float.h")).substitute(parameters)))
    table.update(_choices())
    table.update(_lanes())
    table.update(_atomics())
    worst = blocks(read("vector_math_cuda_worst.h"))
    table.update((name, f"#if !PF_PTX\n{text}#endif\n") for name, text in worst)
    table.update(blocks(read("vector_math_cuda_approximate.h")))
    for name, text in blocks(read("vector_math_cuda_ptx.h")):
        architecture, _, instruction = text.partition("\n")
        table[name] = f"#if PF_PTX >= {architecture[3:]}\n{instruction}#else\n{table[name]}#endif\n"
    return table


def _own(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """CUDA's own functions of a float type, as the table of operations names them."""
    for o in OPS.values():
        if o.cuda:
            names = "xy"[: o.arity]
            each = ", ".join(f"{parameters['F']} {n}" for n in names)
            text = Template(_OWN).substitute(
                parameters, OP=o.name, PARAMETERS=each, FUNCTION=o.cuda, ARGUMENTS=", ".join(names)
            )
            yield f"pf_{o.name}_{parameters['N']}", text


def names() -> list[str]:
    """The functions that only CUDA has and that a kernel may ask for."""
    return (
        [name for table in (_choices(), _lanes(), _atomics()) for name, _ in table]
        + [
            f"pf_{name}_{t.name}"
            for t in _FLOAT
            for name in ("square", "power", "root", "power_half", "pow_alike")
        ]
        + [f"pf_{op}_f32" for op in (*FORMS, "bf16_rounded")]
    )


def _device(text: str) -> str:
    """NVRTC has no built-ins of gcc: the device function of the same name, which is inlined."""
    return re.sub(r"__builtin_(fabs|sqrt|copysign)(f?)\(", r"\1\2(", text)


def _choices() -> Iterator[tuple[str, str]]:
    for t in ALL:
        yield f"pf_select_{t.name}", Template(_SELECT).substitute(T=t.c_name, N=t.name)
    for t in _SQUARE_DTYPES:
        if t.is_integer:
            yield f"pf_square_{t.name}", Template(_SQUARE).substitute(T=t.c_name, N=t.name)
            yield f"pf_power_{t.name}", Template(_POWER).substitute(T=t.c_name, N=t.name)


def _ops(t: DType) -> tuple[str, ...]:
    return tuple(op for op in _OPS if not (t.is_float and op in _LOGIC))


def _combined(op: str, t: DType) -> str:
    """The reduction of a and b, as the printer writes an update."""
    if t in (F16, BF16):
        wide = _combined(op, F32)
        for name in "ab":
            wide = re.sub(rf"\b{name}\b", f"pf_f32_from_{t.name}({name})", wide)
        return f"pf_{t.name}_from_f32({wide})"
    if op in _LOGIC or t.is_bool:
        return f"({t.c_name})(a {'|' if op in ('any', 'sum', 'max') else '&'} b)"
    if op in ("min", "max"):
        return f"pf_{op}_{t.name}(a, b)"
    if t.is_float:
        return f"a {'+' if op == 'sum' else '*'} b"
    return f"pf_{'add' if op == 'sum' else 'mul'}_{t.name}(a, b)"


def _lanes() -> Iterator[tuple[str, str]]:
    text = Template(read("vector_math_cuda_lanes.h").strip("\n") + "\n")
    for t in LANE_DTYPES:
        shuffled = t.c_name if t.bits >= 32 else "int"
        for op in _ops(t):
            yield (
                f"pf_warp_{op}_{t.name}",
                text.substitute(T=t.c_name, N=t.name, O=op, C=_combined(op, t), S=shuffled),
            )


def _atomics() -> Iterator[tuple[str, str]]:
    """Of what sums are kept in: those of floats of 8 bits are f32."""
    for t in (t for t in ALL if t not in QUARTERS):
        for op in _ops(t):
            yield f"pf_atomic_{op}_{t.name}", _atomic(op, t)


def _atomic(op: str, t: DType) -> str:
    fields = {"T": t.c_name, "N": t.name, "O": op, "C": _combined(op, t)}
    native = _NATIVE.get((op, t))
    if native is not None:
        return Template(_NATIVE_TEXT).substitute(fields, NATIVE=native[0], M=native[1])
    if t.bits < 32:
        early = "if (a == c) return;" if op in _ONE_WAY else ""
        text, more = "vector_math_cuda_atomic_small.h", {"MASK": "0xffu" if t.bits == 8 else "0xffffu"}
    else:
        early = "if ($BITS == seen) return;" if op in _ONE_WAY else ""
        text, more = "vector_math_cuda_atomic.h", _word(t)
    more["EARLY"] = Template(early).substitute(more)
    lines = Template(read(text).strip("\n")).substitute(fields, **more).splitlines()
    return "\n".join(line for line in lines if line.strip()) + "\n"


def _word(t: DType) -> dict[str, str]:
    """How an element of a whole word becomes bits and comes back."""
    word = "pf_u32" if t.bits == 32 else "unsigned long long"
    if t.is_float:
        return {"W": word, "BITS": f"pf_bits_{t.name}(c)", "BACK": f"pf_from_bits_{t.name}(seen)"}
    return {"W": word, "BITS": f"({word})c", "BACK": f"({t.c_name})seen"}
