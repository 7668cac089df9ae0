"""Packs of kernels whose sizes are parameters, as one step of the CPU's parallel region.

A pack of known sizes has a list of tasks (`codegen.cpu.emit`).  Here a call knows how much each kernel has to
do, and its tasks are equal parts of the work of all kernels, one after the other.

    void pack(buf, num, scratch, begin, end):
      rows = {kernels, iterations of each, how many go together, work of each} for kernels of one shape
      run what lies between begin / tasks and end / tasks of all work

Each iteration begins at one place of the work, and belongs to the task that has this place: no iteration is
left out and none is done twice, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IndexExpr, as_index, binary
from polyfuse.ir.launch_plan import Launch

PACKS = """\
// Kernels of one shape: how many, the iterations of each, of which `unit` are done together, and what each
// kernel is worth, no less than 1 for a unit.
struct pf_alike { pf_i64 kernels, count, unit, work; };
// Tasks begin..end of equal parts of all work: run(number of a kernel, first iteration, end).
template <pf_i64 many, class Run>
static inline void pf_run_pack(
    const pf_alike (&rows)[many], pf_i64 tasks, pf_i64 begin, pf_i64 end, Run run) {
  pf_i64 total = 0, before = 0, number = 0;
  for (const pf_alike& r : rows) total += r.kernels * r.work;
  const auto place = [&](pf_i64 task) { return total / tasks * task + total % tasks * task / tasks; };
  const pf_i64 low = place(begin), high = place(end);
  for (const pf_alike& r : rows) {
    const pf_i64 units = (r.count + r.unit - 1) / r.unit, each = units > 0 ? r.work / units : 1;
    const auto first = [&](pf_i64 at) {
      const pf_i64 left = at - before, all = r.kernels * units, found = (left + each - 1) / each;
      return left <= 0 ? 0 : found < all ? found : all;
    };
    for (pf_i64 i = first(low), last = first(high); i < last;) {
      const pf_i64 from = i % units, to = from + last - i < units ? from + last - i : units;
      run(number + i / units, from * r.unit, to * r.unit < r.count ? to * r.unit : r.count);
      i += to - from;
    }
    before += r.kernels * r.work;
    number += r.kernels;
  }
}

"""


def open_pack(
    name: str, kernel: str, tasks: Sequence[tuple[Launch, ...]], index: Callable[[IndexExpr], str]
) -> tuple[str, Launch]:
    """The function of a pack, and the step that runs it; `index` prints an expression of sizes."""
    rows = _alike(tasks)
    total = _sum([binary("*", len(found), _worth(row)) for row, found in rows])
    cut = binary("//", total, FITTED.packs_least_instances)
    many = binary("max", 1, binary("min", FITTED.packs_tasks, cut))
    ranked = [launches for _, found in rows for launches in found]
    lines = [
        f"PF_EXPORT void {name}(char* const* buf, const pf_i64* num, char* scratch,",
        "    pf_i64 begin, pf_i64 end) {",
        f"  // {len(tasks)} kernels side by side",
        "  const pf_alike rows[] = {",
        *(f"      {{{', '.join((str(len(found)), *map(index, _row(row))))}}}," for row, found in rows),
        "  };",
        f"  pf_run_pack(rows, {index(many)}, begin, end, [&](pf_i64 k, pf_i64 from, pf_i64 to) {{",
        "    switch (k) {",
    ]
    for k, launches in enumerate(ranked):
        ends = "from, to" if _is_shared(launches) else None
        calls = (f"{x.function}(buf, num, scratch, {ends or f'0, {index(x.count)}'});" for x in launches)
        lines.append(f"      case {k}: {' '.join(calls)} break;")
    lines += ["    }", "  });", "}", ""]
    instances = _sum([x.instances for launches in ranked for x in launches])
    return "\n".join(lines), Launch(name, kernel, many, instances, total, True)


_Row = tuple[IndexExpr, int, IndexExpr]
"""Iterations of a kernel, those that are computed together, and its work."""


def _alike(tasks: Sequence[tuple[Launch, ...]]) -> list[tuple[_Row, list[tuple[Launch, ...]]]]:
    """Kernels with the same work; first those that are not shared out, as they may be the longest."""
    found: dict[_Row, list[tuple[Launch, ...]]] = {}
    for launches in sorted(tasks, key=_is_shared):
        count, together = as_index(1), 1
        if _is_shared(launches):
            count, together = binary("max", 0, launches[0].count), max((1, *launches[0].together))
        found.setdefault((count, together, _sum([x.work for x in launches])), []).append(launches)
    return list(found.items())


def _is_shared(launches: tuple[Launch, ...]) -> bool:
    return len(launches) == 1 and launches[0].parallel


def _row(row: _Row) -> tuple[IndexExpr, IndexExpr, IndexExpr]:
    """Iterations, how many are handed out together, and what all of them are worth."""
    return row[0], _unit(row), _worth(row)


def _unit(row: _Row) -> IndexExpr:
    """Iterations that are computed together are handed out together, where there are enough of them."""
    count, together, _ = row
    if together == 1:
        return as_index(1)
    enough = binary("min", 1, binary("//", count, FITTED.packs_fewest_groups * together))
    return binary("+", 1, binary("*", together - 1, enough))


def _worth(row: _Row) -> IndexExpr:
    return binary("max", row[0], row[2])


def _sum(terms: Sequence[IndexExpr]) -> IndexExpr:
    """Of terms, equal ones as one."""
    counts = {e: terms.count(e) for e in dict.fromkeys(terms)}
    return reduce(lambda a, b: binary("+", a, b), (binary("*", n, e) for e, n in counts.items()), as_index(0))
