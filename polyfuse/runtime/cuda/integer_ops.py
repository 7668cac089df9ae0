"""What instructions on integers and predicates compute: the part of machine code that loops depend on.

A value is a 32-bit word without sign, or None where it is unknown; predicates are 0 and 1.  Instructions that
are not in the table give unknown results.  Names and forms are those that ``nvdisasm`` prints for sm_75 and
later; the uniform datapath's (``UIADD3``) are like the others without their U.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Protocol

import numpy as np

from polyfuse.runtime.cuda.sass import Instruction

Value = int | None
MASK, MASK_64 = (1 << 32) - 1, (1 << 64) - 1
SIGN = 1 << 31


class Values(Protocol):
    """Where operands have values."""

    def value(self, operand: str) -> Value: ...
    def special(self, name: str) -> Value: ...

    @property
    def values(self) -> Mapping[str, Value]: ...


def compute(i: Instruction, written: Sequence[str], where: Values, known: bool) -> dict[str, Value]:
    """The new values of what an instruction writes; `known`: it is certain that it is executed."""
    made: dict[str, Value] = dict.fromkeys(written)
    operation = _operation(i.name)
    if operation is not None:
        sources, order = _parts(i.operands, tuple(written))
        with suppress(ValueError, IndexError, StopIteration):  # a form of another architecture: unknown
            made |= zip(order, operation(i, sources, where), strict=False)
        if len(made) > len(written):
            made = {r: made[r] for r in written}
    if not known:
        return {r: v if v == where.values.get(r) else None for r, v in made.items()}
    return made


@cache
def _operation(name: str) -> Operation | None:
    return OPERATIONS.get(name) or (OPERATIONS.get(name[1:]) if name.startswith("U") else None)


@cache
def _parts(operands: tuple[str, ...], written: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sources of an instruction, and what it writes in the order of an operation's words."""
    plain = [o.replace(".reuse", "") for o in operands]
    results = _results(plain)
    return tuple(plain[results:]), tuple(_in_order(plain[:results], written))


def _results(operands: Sequence[str]) -> int:
    """How many operands are results: a register, and predicates beside it; or predicates alone."""
    first = operands[0] if operands else ""
    if first.startswith(("P", "UP")):
        more = operands[1] if len(operands) > 1 else ""
        return 2 if more.startswith(("P", "UP", "R", "UR")) else 1
    count = 1
    while count < len(operands) and operands[count].startswith(("P", "UP")) and len(operands) > count + 2:
        count += 1
    return count


def _in_order(results: Sequence[str], written: Sequence[str]) -> list[str]:
    """Registers first (a pair has two), then predicates, as operations give their words."""
    predicates = [o for o in results if o.startswith(("P", "UP"))]
    return [w for w in written if w not in predicates] + predicates


# --- operations: the words of the result, then those of predicates -----------------------------------------

Words = Sequence[Value]
Operation = Callable[[Instruction, Sequence[str], Values], Words]


def signed(word: int) -> int:
    return word - (1 << 32) if word & SIGN else word


def _known(where: Values, operands: Sequence[str]) -> list[int] | None:
    found = [where.value(o) for o in operands]
    return None if None in found else [v for v in found if v is not None]


def _move(i: Instruction, o: Sequence[str], where: Values) -> Words:
    if "64" in i.modifiers:
        whole = pair(where, o[0])
        return () if whole is None else halves_of(whole)
    return (where.value(o[0]),) if o else ()


def _special(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.special(o[0])
    return found, (0 if found == 0 else None)


def _load_constant(i: Instruction, o: Sequence[str], where: Values) -> Words:
    if not set(i.modifiers) <= {"64", "32"}:
        return ()
    whole = pair(where, o[0]) if "64" in i.modifiers else None
    return (where.value(o[0]),) if whole is None else halves_of(whole)


def pair(where: Values, operand: str) -> Value:
    """The 64 bits of an operand: two registers, two words of the constant bank, a number."""
    if operand in ("RZ", "URZ"):
        return 0
    if operand.startswith(("0x", "-0x")):
        return int(operand, 16) & MASK_64
    head, _, offset = operand.rpartition("[")
    if head:
        second = f"{head}[{offset.rstrip(']')}+0x4]"
    else:
        name = operand.partition(".")[0]
        letters = name.rstrip("0123456789")
        second = f"{letters}{int(name[len(letters) :]) + 1}" if letters != name else ""
    low, high = where.value(operand), where.value(second) if second else None
    return None if low is None or high is None else high << 32 | low


def halves_of(whole: int) -> Words:
    return whole & MASK, whole >> 32 & MASK


def _multiply_add(i: Instruction, o: Sequence[str], where: Values) -> Words:
    predicates = [p for p in o if p.lstrip("!").startswith(("P", "UP"))]
    a, b, c = [x for x in o if x not in predicates][:3]
    found = _known(where, (a, b))
    if found is None:
        return ()
    x, y = found if "U32" in i.modifiers or "MOV" in i.modifiers else map(signed, found)
    if "WIDE" in i.modifiers or "HI" in i.modifiers:
        added = pair(where, c)
        if added is None:
            return ()
        words = halves_of(x * y + added)
        return words if "WIDE" in i.modifiers else words[1:]
    low, carry = where.value(c), _carry(i, predicates, where)
    return () if low is None or carry is None else (x * y + low + carry & MASK,)


def _carry(i: Instruction, predicates: Sequence[str], where: Values) -> Value:
    """What is added to a sum of high halves."""
    if "X" not in i.modifiers:
        return 0
    found = _known(where, predicates)
    return None if found is None else sum(found)


def _add(i: Instruction, o: Sequence[str], where: Values) -> Words:
    if "64" in i.modifiers:
        wide = [pair(where, x) for x in o if not x.lstrip("!").startswith(("P", "UP"))]
        return () if None in wide else halves_of(sum(v for v in wide if v is not None))
    predicates = [p for p in o if p.lstrip("!").startswith(("P", "UP"))]
    terms = [x for x in o if x not in predicates]
    found, carry = _known(where, [x.lstrip("-") for x in terms]), _carry(i, predicates, where)
    if found is None or carry is None:
        return ()
    whole = sum((~v & MASK) + 1 if x.startswith("-") else v for x, v in zip(terms, found, strict=True))
    whole += carry
    return whole & MASK, int(whole >> 32 > 0), int(whole >> 32 > 1)


def _shifted_add(i: Instruction, o: Sequence[str], where: Values) -> Words:
    predicates = [p for p in o if p.lstrip("!").startswith(("P", "UP"))]
    found = _known(where, [x for x in o if x not in predicates])
    carry = _carry(i, predicates, where)
    if found is None or carry is None:
        return ()
    if "HI" not in i.modifiers:
        a, b, shift = found[:3]
        whole = (a << shift & MASK) + b
        return whole & MASK, int(whole > MASK)
    if "SX32" in i.modifiers:
        a, b, shift = found[:3]
        return ((signed(a) >> 32 - shift) + b + carry & MASK,)
    a, b, c, shift = found[:4]
    return (((c << 32 | a) >> 32 - shift) + b + carry & MASK,)


def _logic(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = _known(where, o[:4])
    if found is None:
        zero = [where.value(x) for x in o[:3]]
        table = where.value(o[3])
        if table == 0xC0 and 0 in zero[:2]:  # x & 0
            return 0, 0
        return ()
    a, b, c, table = found
    word = 0
    for k in range(8):
        if table >> k & 1:
            word |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    word &= MASK
    return word, int(word != 0)


def _shift(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = _known(where, o[:3])
    if found is None:
        return ()
    low, shift, high = found
    wide = 64 if "U64" in i.modifiers or "S64" in i.modifiers else 32
    shift = min(shift, wide) if "W" not in i.modifiers else shift % wide
    whole = high << 32 | low
    if "R" in i.modifiers:
        if {"S32", "S64"} & set(i.modifiers):
            whole = signed(high) << 32 | low
        whole >>= shift
        return ((whole >> 32 if "HI" in i.modifiers else whole) & MASK,)
    whole <<= shift
    return ((whole >> 32 if "HI" in i.modifiers else whole) & MASK,)


def _select(i: Instruction, o: Sequence[str], where: Values) -> Words:
    chosen = where.value(o[2])
    return () if chosen is None else (where.value(o[0] if chosen else o[1]),)


COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


def _compare(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found, other = _known(where, o[:2]), where.value(o[2])
    if found is None:
        certain = other == 0 and "AND" in i.modifiers
        return (0, 0) if certain else ()
    a, b = found if "U32" in i.modifiers else map(signed, found)
    by = next(m for m in i.modifiers if m in COMPARE)
    result: Value = int(COMPARE[by](a, b))
    if "EX" in i.modifiers and a == b:  # the halves below decide
        result = where.value(o[3])
    if result is None:
        return ()
    return _joined(i, result, other), _joined(i, 1 - result, other)


def _joined(i: Instruction, result: int, other: Value) -> Value:
    """A comparison with the predicate that it is joined to."""
    if "AND" in i.modifiers:
        return 0 if not result else other
    if "OR" in i.modifiers:
        return 1 if result else other
    return None if other is None else result ^ other


def _predicate_logic(i: Instruction, o: Sequence[str], where: Values) -> Words:
    inputs = [where.value(x) for x in o[:3]]
    tables = [where.value(x) for x in o[3:5]]

    def looked_up(table: Value) -> Value:
        if table is None:
            return None
        fits = [
            k for k in range(8)
            if all(v is None or v == (k >> 2 - n & 1) for n, v in enumerate(inputs))
        ]  # fmt: skip
        outcomes = {table >> k & 1 for k in fits}
        return outcomes.pop() if len(outcomes) == 1 else None

    return tuple(map(looked_up, tables))


def _extreme(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = _known(where, o)
    if found is None:
        return ()
    *words, least = found
    if i.name.endswith("ADDMNMX"):
        words = [words[0] + words[1] & MASK, words[2]]
    plain = words if "U32" in i.modifiers else [signed(w) for w in words]
    return ((min(plain) if least else max(plain)) & MASK,)


def _absolute(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.value(o[0])
    return () if found is None else (abs(signed(found)) & MASK,)


def _halves(i: Instruction, o: Sequence[str], where: Values) -> Words:
    """A product of zeros plus two constants: how a constant is moved on the pipe of floats."""
    if len(o) != 4 or {o[0].lstrip("-"), o[1].lstrip("-")} != {"RZ"}:
        return ()
    try:
        high, low = (int(np.float16(float(x)).view(np.uint16)) for x in o[2:])
    except ValueError:
        return ()
    return (high << 16 | low,)


def _permute(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = _known(where, o[:3])
    if found is None or i.modifiers:
        return ()
    a, selector, b = found
    source = (b << 32 | a).to_bytes(8, "little")
    word = 0
    for k in range(4):
        pick = selector >> 4 * k & 15
        byte = source[pick & 7]
        word |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * k
    return (word,)


def _population(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.value(o[0])
    return () if found is None else (found.bit_count(),)


# Floats as far as divisions of integers by variables need them: a reciprocal, and the way there and back.


def _to_float(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.value(o[0])
    if found is None or not set(i.modifiers) <= {"U32", "S32", "RP", "F32"}:
        return ()
    exact = found if "U32" in i.modifiers else signed(found)
    rounded = np.float32(exact)
    if "RP" in i.modifiers and int(rounded) < exact:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return (_bits(rounded),)


def _reciprocal(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.value(o[0])
    if found is None or i.modifiers != ("RCP",):
        return ()
    value = np.uint32(found).view(np.float32)
    return (_bits(np.float32(1) / value),) if np.isfinite(value) and value else ()


def _to_integer(i: Instruction, o: Sequence[str], where: Values) -> Words:
    found = where.value(o[0])
    if found is None or "TRUNC" not in i.modifiers or {"S64", "U64", "F64", "F16"} & set(i.modifiers):
        return ()
    value = float(np.uint32(found).view(np.float32))
    least, most = (0, MASK) if "U32" in i.modifiers else (-SIGN, SIGN - 1)
    return (int(min(max(value, least), most)) & MASK,) if np.isfinite(value) else ()


def _bits(value: np.float32) -> int:
    return int(value.view(np.uint32))


OPERATIONS: Mapping[str, Operation] = {
    **dict.fromkeys(("MOV", "MOV32I", "UMOV", "R2UR"), _move),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), _special),
    **dict.fromkeys(("LDC", "LDCU", "ULDC"), _load_constant),
    "IMAD": _multiply_add,
    **dict.fromkeys(("IADD3", "VIADD", "IADD"), _add),
    "LEA": _shifted_add,
    "LOP3": _logic,
    "SHF": _shift,
    "SEL": _select,
    "ISETP": _compare,
    "PLOP3": _predicate_logic,
    **dict.fromkeys(("IMNMX", "VIMNMX", "VIADDMNMX"), _extreme),
    "IABS": _absolute,
    **dict.fromkeys(("HFMA2", "HADD2"), _halves),
    "PRMT": _permute,
    "POPC": _population,
    "I2F": _to_float,
    "MUFU": _reciprocal,
    "F2I": _to_integer,
}
