"""Loops over rows that are computed at once (`codegen.rows_jointly`), as C++: each combines its totals.

float acc_v_p[16 * 16];
for (pf_i64 row = 0; row < 16; ++row) {
  ... lanes of a row in acc_v ...
  pf_part_sum_f32(acc_v, 32, acc_v_p + row * 16);
}
float acc_v_t[16];
pf_join_sum_f32(acc_v_p, 16, acc_v_t);
for (int row = 0; row < 16; ++row) all_acc[row] = all_acc[row] + acc_v_t[row];
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfuse.codegen.c_family import Printer, bare, scalar_name
from polyfuse.codegen.rows_jointly import ROW, of_all
from polyfuse.codegen.trips import trip_of
from polyfuse.codegen.vector_joins import join_name, part_name
from polyfuse.ir.dtypes import DType
from polyfuse.ir.loop_ir import For, Update

Arrays = Mapping[str, str]
"""The arrays of one total, and how each is combined."""


def rows_text(
    printer: Printer, loop: For, body: list[str], totals: Sequence[tuple[Update, Arrays]], indent: str
) -> list[str]:
    """The loop with a body, and what combines the totals of its rows."""
    rows, i1 = trip_of(loop), indent + "  "
    lines = [f"{indent}{{"]
    for u, arrays in totals:
        size = f"{rows} * (PF_VECTOR / {u.value.dtype.bytes})"
        lines += [f"{i1}{_aligned(u.value.dtype)} {a}_p[{size}];" for a in arrays]
    lines += [
        f"{i1}for (pf_i64 {ROW} = 0; {ROW} < {rows}; ++{ROW}) {{",
        *body,
        f"{i1}}}",
    ]
    for u, arrays in totals:
        dtype = u.value.dtype
        for a, op in arrays.items():
            lines.append(f"{i1}{_aligned(dtype)} {a}_t[{rows}];")
            lines.append(f"{i1}{printer.call(join_name(op, dtype), [f'{a}_p', str(rows), f'{a}_t'])};")
        place = f"{scalar_name(of_all(u.buffer))}[{ROW}]"
        found = " + ".join(f"{a}_t[{ROW}]" for a in arrays)
        total = printer.combine(u.op, place, f"({found})" if len(arrays) > 1 else found, dtype)
        lines.append(f"{i1}PF_IVDEP PF_ROLLED")
        lines.append(f"{i1}for (int {ROW} = 0; {ROW} < {rows}; ++{ROW}) {place} = {bare(total)};")
    return [*lines, f"{indent}}}"]


def sums_text(
    printer: Printer, totals: Mapping[str, str], dtype: DType, lanes: int, indent: str
) -> list[str]:
    """Sums of one loop join their totals, from so many lanes each, all at once. `totals` has their arrays."""
    arrays, n = [*totals.values()], f"(PF_VECTOR / {dtype.bytes})"
    rows = f"({len(arrays)} + {n} - 1) / {n} * {n}"
    lines = [f"{_aligned(dtype)} sums_p[{rows} * {n}], sums_t[{rows}];"]
    # Vectors that are not used hold a number that adding does not slow down.
    lines.append(f"for (int k = {len(arrays)} * {n}; k < {rows} * {n}; ++k) sums_p[k] = 0;")
    for k, a in enumerate(arrays):
        lines.append(f"{printer.call(part_name('sum', dtype), [a, str(lanes), f'sums_p + {k} * {n}'])};")
    lines.append(f"{printer.call(join_name('sum', dtype), ['sums_p', rows, 'sums_t'])};")
    for k, total in enumerate(totals):
        lines.append(f"{total} = {bare(printer.combine('sum', total, f'sums_t[{k}]', dtype))};")
    return [indent + x for x in lines]


def part_text(printer: Printer, dtype: DType, arrays: Arrays, lanes: int) -> Iterable[str]:
    """The lanes of a row's total wait for those of other rows."""
    for a, op in arrays.items():
        place = f"{a}_p + {ROW} * (PF_VECTOR / {dtype.bytes})"
        yield f"{printer.call(part_name(op, dtype), [a, str(lanes), place])};"


def _aligned(dtype: DType) -> str:
    return f"__attribute__((aligned(64))) {dtype.c_name}"
