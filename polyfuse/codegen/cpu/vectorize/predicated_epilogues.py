"""Predicated epilogue: the rest of a vector loop, fewer elements than lanes, is one more step of all lanes.

    for (l = 0; l < end - start; ++l)           pf_take(t0, &x[start], (end - start) * 4, 128)
      acc_v[l] += x[start + l] * w      ->      for (l = 0; l < 32; ++l) acc_o[l] = acc_v[l]
                                                for (l = 0; l < 32; ++l) acc_v[l] += t0[l] * w
                                                pf_keep(acc_v, acc_o, (end - start) * 4, 128)

What lanes read is loaded under a mask, with zeros where there is nothing; what they store, or add to, is
stored under a mask; and the accumulators of empty lanes get back what they had.  Element by element the
accumulators would go through memory in pieces, and whoever combines the lanes would wait until the pieces are
there: longer than several steps take.  Numbers of 16 bits would be converted one by one
(`codegen.cpu.vectorize.half_precision`).

Only elements that lie side by side, or that all lanes share, are read so.  AVX-512BW has masks for bytes,
AVX2 has masks for words that are loaded, and stores in pieces.  Other machines keep the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from polyfuse.codegen.c_printer import Printer, guarded_load
from polyfuse.codegen.math.headers import read
from polyfuse.ir.dtypes import BF16, F16, DType
from polyfuse.ir.index_expr import variables
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read, walk

Element = tuple[str, tuple[Index, ...]]
# Steps of fewer lanes gcc 12 takes apart before it looks for vectors, unless it is told not to (PF_ROLLED).
FEWEST_LANES = 32
_BYTES = 64

MASKS = read("vector_masks.h")
_BRANCHES = "bytes >= 64 ? ~0ull : bytes <= 0 ? 0ull : (1ull << bytes) - 1"
OPEN_MASKS = MASKS.replace(_BRANCHES, "bytes >= 64 ? ~0ull : ~(~0ull << (bytes < 0 ? 0 : bytes))")
"""For rows whose length is open: masks of them are not known when C++ is compiled, and need no branches."""
TWICE = """\
#if defined(__clang__)
#define PF_TWICE
#else
#define PF_TWICE _Pragma("GCC unroll 2")
#endif
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """The elements that the lanes of a loop read and store to, as arrays; what they add to is both."""

    read: tuple[tuple[str, tuple[Index, ...], DType], ...]
    stored: tuple[tuple[str, tuple[Index, ...], DType], ...]

    def places(self) -> dict[Element, str]:
        """The arrays of the elements."""
        stored = {(t, i): f"p{k}" for k, (t, i, _) in enumerate(self.stored)}
        return {(t, i): f"t{k}" for k, (t, i, _) in enumerate(self.read)} | stored

    def element(
        self, outer: Callable[[Printer, str, tuple[Index, ...]], str]
    ) -> Callable[[Printer, str, tuple[Index, ...]], str]:
        """How the loop's body addresses them."""
        places = self.places()

        def lane(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
            array = places.get((buffer, indices))
            return f"{array}[l]" if array else outer(printer, buffer, indices)

        return lane


def tail_of(loop: For, along: Callable[[Element, str], bool], roomy: Container[str] = ()) -> Tail | None:
    """The rest of a loop under masks, where that can be; `along` tells what lies side by side in memory.
    Arrays that are `roomy` have places for empty lanes, and need no masks."""
    if not all(isinstance(n, (Store, Update, Declare)) for n in loop.body) or guarded_load(loop.body):
        return None
    found = dict.fromkeys((r.tensor, r.indices, r.dtype) for r in _reads(loop.body) if _moves(r, loop.var))
    stored = [(n.buffer, n.indices, n.value.dtype) for n in loop.body if isinstance(n, Store) and n.indices]
    added = [
        (n.buffer, n.indices, n.value.dtype)
        for n in loop.body
        if isinstance(n, Update) and n.buffer not in loop.lanes
    ]
    written = (*stored, *added)
    names = [b for b, _, _ in written]
    if len(set(names)) < len(names) or {t for t, _, _ in found} & set(names):
        return None
    if not all(along((t, i), loop.var) and not _is_named(i, loop) for t, i, _ in (*found, *written)):
        return None
    if any(isinstance(n, Declare) and n.count for n in loop.body):
        return None
    read = tuple(x for x in (*found, *added) if x[0] not in roomy)
    return Tail(read, tuple(x for x in written if x[0] not in roomy))


def tail_lanes(rest: int | None, lanes: int, least: int, in_rows: bool = False) -> int | None:
    """How many lanes the rest is computed in, of accumulators of at least so many bytes; None where these are
    too few for a mask.  The rest is None where it is not known before.  In rows that are computed at once
    half as many will do."""
    fewest = max(FEWEST_LANES // 2 if in_rows else FEWEST_LANES, _BYTES // least)
    if lanes < fewest:
        return None
    whole = max(16, _BYTES // least)  # accumulators fill whole vectors
    return lanes if rest is None else min(lanes, max(fewest, -(-rest // whole) * whole))


def kept(arrays: Mapping[str, int], lanes: int, rest: str, indent: str) -> tuple[list[str], list[str]]:
    """Copies of the accumulators, {name: bytes of a lane}, and what gives empty lanes back what they had."""
    before = [
        line
        for name in arrays
        for line in (
            f"{indent}__typeof__({name}[0]) {name}_o[{lanes}];",
            f"{indent}for (int l = 0; l < {lanes}; ++l) {name}_o[l] = {name}[l];",
        )
    ]
    after = [
        f"{indent}pf_keep({name}, {name}_o, {rest} * {size}, {lanes * size});"
        for name, size in arrays.items()
    ]
    return before, after


def carried(tail: Tail, printer: Printer, lanes: int, rest: str, indent: str) -> tuple[list[str], list[str]]:
    """Arrays and what fills them; what stores them back."""
    before: list[str] = []
    after: list[str] = []
    places = tail.places()
    for tensor, indices, dtype in dict.fromkeys((*tail.read, *tail.stored)):
        array, place = places[tensor, indices], printer.element(printer, tensor, indices)
        count = -(-lanes * dtype.bytes // _BYTES) * _BYTES // dtype.bytes
        before.append(f"{indent}__attribute__((aligned(64))) {dtype.c_name} {array}[{count}];")
        size, kind = f"{rest} * {dtype.bytes}, {lanes * dtype.bytes}", "_f16" * _in_halves(dtype, lanes)
        if (tensor, indices, dtype) in tail.read:
            before.append(f"{indent}pf_take{kind}({array}, &{place}, {size});")
        if (tensor, indices, dtype) in tail.stored:
            after.append(f"{indent}pf_put{kind}(&{place}, {array}, {size});")
    return before, after


def _in_halves(dtype: DType, lanes: int) -> bool:
    """Are elements converted half a vector at a time, and so moved? Of bf16 those that fill no whole one."""
    return dtype == F16 or (dtype == BF16 and lanes % 32 != 0)


def _reads(body: Iterable[Node]) -> Iterator[Read]:
    for n in body:
        if isinstance(n, (Declare, Store, Update)) and n.value is not None:
            yield from (x for x in walk(n.value) if isinstance(x, Read))


def _is_named(indices: tuple[Index, ...], loop: For) -> bool:
    """Does a scalar that each lane has its own of say where an element is?"""
    own = {n.name for n in loop.body if isinstance(n, Declare)}
    named = (x for i in indices if isinstance(i, EXPR_TYPES) for x in walk(i))
    return any(isinstance(x, Read) and x.tensor in own for x in named)


def _moves(r: Read, var: str) -> bool:
    """Does a read depend on the loop, or may it for all that is known?"""
    return any(isinstance(i, EXPR_TYPES) or var in variables(i) for i in r.indices)
