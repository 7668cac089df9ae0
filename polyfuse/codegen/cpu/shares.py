"""Functions whose rows are shared out by what they have (`codegen.transforms.load_balance`), as C++.

`first_text` prints what finds the rows of a share, and `cut_text` what computes rows that may be cut, with
`join_text` for the totals of their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.codegen.c_printer import Printer
from polyfuse.codegen.function import Function, Shares
from polyfuse.ir.dtypes import F32, F64, I64, DType
from polyfuse.ir.index_expr import IConst, IVar, binary, evaluate, product
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.ir.loop_ir import Declare, Node
from polyfuse.ir.tensor_graph import Apply, IndexValue

# What a row, or a part of one, has lies between these as well.
LOW, HIGH = IVar("low"), IVar("high")

SHARES = """\
// Rows, and what they have: row r from low(r) to high(r). All of them are done for each of `outer` iterations
// outside, and have `inner` iterations each.
template <class Low, class High>
struct pf_rows_of_data {
  pf_i64 shares, outer, rows, inner;
  Low low;
  High high;
  pf_i64 amount() const {
    const pf_i64 has = high(rows - 1) - low(0);
    return rows + (has > 0 ? has : 0);
  }
  // How much comes before a share.
  pf_i64 place(pf_i64 share, pf_i64 all) const {
    return all / shares * share + all % shares * share / shares;
  }
  // The first iteration of a share. It never falls with shares, whatever the data.
  pf_i64 first(pf_i64 share) const {
    if (share <= 0 || outer <= 0 || rows <= 0 || inner <= 0) return 0;
    if (share >= shares) return outer * rows * inner;
    const pf_i64 start = low(0), each = amount(), at = place(share, outer * each), wanted = at % each;
    pf_i64 row = 0;
    for (pf_i64 left = rows; left > 0;) {
      const pf_i64 half = left / 2, middle = row + half, before = low(middle) - start;
      const bool behind = middle + (before > 0 ? before : 0) < wanted;
      row = behind ? middle + 1 : row;
      left = behind ? left - half - 1 : half;
    }
    return (at / each * rows + row) * inner;
  }
  // Where a share begins in what a row has.
  pf_i64 cut(pf_i64 share, pf_i64 row) const { return low(0) + place(share, amount()) - row; }
};
template <class Low, class High>
static inline pf_rows_of_data<Low, High> pf_rows_from(
    pf_i64 shares, pf_i64 outer, pf_i64 rows, pf_i64 inner, Low low, High high) {
  return {shares, outer, rows, inner, low, high};
}

"""
CUTS = """\
// The work of shares begin..end: whole(first row, end) for rows, part(row, low, high, slot) for what a share
// has of a row that fills whole shares. owners: the row of each slot, or -1.
template <class Rows, class Whole, class Part>
static inline void pf_run_shares(
    pf_i64 begin, pf_i64 end, pf_i64 shares, pf_i64* owners, Rows rows, Whole whole, Part part) {
  const pf_i64 least = -__INT64_MAX__, most = __INT64_MAX__;
  pf_i64 before = begin > 0 ? rows(begin - 1, -1) : -1, here = rows(begin, -1), next = rows(begin + 1, -1);
  pf_i64 from = here;
  for (pf_i64 k = begin; k < end; ++k) {
    const pf_i64 after = k + 2 <= shares ? rows(k + 2, -1) : -1;
    const bool goes_on = here == next && k + 1 < shares, old = here > 0 && (here == before || here == next);
    owners[2 * k] = old ? here - 1 : -1;
    if (old) part(here - 1, rows(k, here - 1), goes_on ? rows(k + 1, here - 1) : most, 2 * k);
    const bool fills = next > here && after == next;
    owners[2 * k + 1] = fills ? next - 1 : -1;
    if (fills) {
      whole(from, next - 1);
      part(next - 1, least, rows(k + 1, next - 1), 2 * k + 1);
      from = next;
    }
    before = here, here = next, next = after;
  }
  whole(from, here);
}
// to(row)[i] is all parts of a row in their order, one after the other.
template <class Sum, class T, class To, class Join>
static inline void pf_join_parts(
    pf_i64 slots, const pf_i64* owners, const T* parts, pf_i64 size, To to, Join join) {
  for (pf_i64 first = 0, end = 0; first < slots; first = end > first ? end : first + 1) {
    const pf_i64 row = owners[first];
    if (row < 0) continue;
    for (end = first + 1; end < slots && (owners[end] < 0 || owners[end] == row); ++end) {}
    for (pf_i64 i = 0; i < size; ++i) {
      Sum total = parts[first * size + i];
      for (pf_i64 k = first + 1; k < end; ++k)
        if (owners[k] == row) total = join(total, Sum(parts[k * size + i]));
      to[row * size + i] = total;
    }
  }
}

"""


@dataclass(frozen=True, slots=True)
class Body:
    """A kernel's code: what it is called, and its parameters with their values, but for shares and ends."""

    name: str
    parameters: Sequence[str]
    values: Sequence[str]


def within_ends(f: Function) -> Function:
    """The function of rows whose ends lie between LOW and HIGH as well."""
    assert f.shares is not None
    limits = dict(zip(f.shares.ends, (("max", LOW), ("min", HIGH)), strict=True))

    def kept(n: Node) -> Node:
        if not isinstance(n, Declare) or n.value is None or n.name not in limits:
            return n
        op, limit = limits[n.name]
        return replace(n, value=Apply(op, (n.value, IndexValue(limit, I64)), I64))

    return f.with_body(tuple(map(kept, f.body)))


def first_text(body: Body, shares: Shares, printer: Printer) -> str:
    """The function that finds the first iteration of a share; where rows may be cut, also where a share is in
    what a row has."""
    var, start = shares.rows.var, printer.index(shares.rows.lower)
    rows = printer.index(binary("-", shares.rows.upper, shares.rows.lower))
    outer, inner = printer.index(shares.outer), printer.index(shares.inner)
    ends = [
        f"[&](pf_i64 row) {{ const pf_i64 {var} = {start} + row; return {printer.expr(e)}; }}"
        for e in (shares.low, shares.high)
    ]
    cut = "row < 0 ? rows.first(share) : rows.cut(share, row)" if shares.cut else "rows.first(share)"
    own = ["const pf_i64 share", *["const pf_i64 row"] * bool(shares.cut)]
    parameters = ",\n    ".join([*body.parameters, *own])
    return "\n".join(
        [
            f"static __attribute__((noinline)) pf_i64 {body.name}_first(\n    {parameters}) {{",
            f"  const auto rows = pf_rows_from({shares.many}, {outer}, {rows}, {inner},",
            *(f"      {e}{end}" for e, end in zip(ends, (",", ");"), strict=True)),
            f"  return {cut};",
            "}",
        ]
    )


def share_call(body: Body, end: str) -> str:
    """The first iteration of a share."""
    return f"{body.name}_first({', '.join([*body.values, end])})"


# --- rows that are cut ------------------------------------------------------------------------------------


def totals_of(kernel: Kernel, shares: Shares) -> Buffer:
    """What the totals of rows that are cut are stored to."""
    assert shares.cut is not None
    return kernel.buffers[shares.cut[1]]


def buffers_of_parts(name: str, kernel: Kernel, shares: Shares) -> tuple[PlanBuffer, PlanBuffer]:
    """The parts of rows, and the row of each."""
    out, count = totals_of(kernel, shares), IConst(2 * shares.many)
    size = IConst(evaluate(product(out.shape[1:]), {}))
    return (
        PlanBuffer(f"{name}.parts", out.dtype, (count, size), Kind.WORKSPACE),
        PlanBuffer(f"{name}.owners", I64, (count,), Kind.WORKSPACE),
    )


def cut_text(body: Body, shares: Shares, parts: PlanBuffer, places: tuple[int, int], out: str) -> list[str]:
    """What computes shares begin..end; `places` of parts and owners in the table of pointers, `out` the value
    of the result's parameter."""
    c, size = parts.dtype.c_name, evaluate(parts.shape[1], {})
    instead = f"parts + (slot - row) * {size}"
    of_part = [instead if v == out else v for v in body.values]
    limits = "-__INT64_MAX__, __INT64_MAX__"
    return [
        f"  {c}* const parts = ({c}*)buf[{places[0]}];",
        f"  pf_run_shares(begin, end, {shares.many}, (pf_i64*)buf[{places[1]}],",
        f"      [&](pf_i64 share, pf_i64 row) {{ return {share_call(body, 'share, row')}; }},",
        "      [&](pf_i64 row, pf_i64 last) {",
        f"        {body.name}_body({', '.join(body.values)}, {limits}, row, last);",
        "      },",
        "      [&](pf_i64 row, pf_i64 low, pf_i64 high, pf_i64 slot) {",
        f"        {body.name}_body({', '.join(of_part)}, low, high, row, row + 1);",
        "      });",
    ]


def join_text(
    parts: PlanBuffer, places: tuple[int, int], out: str, printer: Printer, shares: Shares
) -> list[str]:
    """What joins parts, those of sums in f32 in f64."""
    assert shares.cut is not None
    op, c = shares.cut[0], parts.dtype.c_name
    wide: DType = F64 if op == "sum" and parts.dtype == F32 else parts.dtype
    joined = printer.combine(op, "a", "b", wide)
    return [
        f"  pf_join_parts<{wide.c_name}>({2 * shares.many}, (const pf_i64*)buf[{places[1]}],",
        f"      (const {c}*)buf[{places[0]}], {evaluate(parts.shape[1], {})}, {out},",
        f"      [&]({wide.c_name} a, {wide.c_name} b) {{ return {joined}; }});",
    ]
