"""A pack of kernels as one step of the CPU's parallel region.

A pack's function runs tasks: parts of the iterations of one kernel each.  A kernel with much work has many,
a small one has one, so that workers are busy alike.

    void pack(buf, num, scratch, begin, end):
      for task in begin..end:
        kernel k has the tasks first[k]..first[k + 1], each an equal share of its iterations
        run[k](buf, num, scratch, count[k] * i / n, count[k] * (i + 1) / n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IndexExpr, as_index, evaluate, sizes
from polyfuse.ir.launch_plan import Launch


@dataclass(frozen=True, slots=True)
class PackedTask:
    """A function of a kernel with what the plan knows of it; it runs as one, or in shares if `parallel`."""

    launches: tuple[Launch, ...]

    @property
    def instances(self) -> int:
        return sum(evaluate(x.instances, {}) for x in self.launches)

    @property
    def count(self) -> int:
        """Iterations that may be shared out: those of the only function, if it has such."""
        only = self.launches[0]
        return evaluate(only.count, {}) if len(self.launches) == 1 and only.parallel else 1


def pack_text(name: str, kernel: str, tasks: Sequence[PackedTask]) -> tuple[str, Launch]:
    """The function of a pack, and the step that runs it. The sizes of its kernels are known."""
    assert not any(sizes(x.count) or sizes(x.instances) for t in tasks for x in t.launches)
    total = sum(t.instances for t in tasks)
    ranked = sorted(tasks, key=lambda t: -t.instances)  # the longest are claimed first
    shares = [_shares(t, total) for t in ranked]
    first = [sum(shares[:k]) for k in range(len(shares) + 1)]
    names = ", ".join(x.function for t in ranked for x in t.launches)
    lines = [
        f"PF_EXPORT void {name}(char* const* buf, const pf_i64* num, char* scratch,",
        "    pf_i64 begin, pf_i64 end) {",
        f"  // {len(tasks)} kernels side by side: {names}",
        f"  static const pf_i64 first[] = {{{', '.join(map(str, first))}}};",
        "  pf_i64 k = 0;",
        "  for (pf_i64 task = begin; task < end; ++task) {",
        "    while (first[k + 1] <= task) ++k;",
        "    const pf_i64 part = task - first[k], parts = first[k + 1] - first[k];",
        "    switch (k) {",
    ]
    for k, t in enumerate(ranked):
        lines.append(f"      case {k}:")
        for x in t.launches:
            lines.append(f"        {_call(x, t.count)}")
        lines.append("        break;")
    lines += ["    }", "  }", "}", ""]
    count: IndexExpr = as_index(first[-1])
    every = [x for t in tasks for x in t.launches]
    instances = sum((x.instances for x in every), as_index(0))
    work = sum((x.work for x in every), as_index(0))
    return "\n".join(lines), Launch(name, kernel, count, instances, work, True)


def _shares(task: PackedTask, total: int) -> int:
    """Into how many tasks a kernel is cut: by its share of all work."""
    wanted = min(
        task.count,
        FITTED.packs_tasks * task.instances // max(1, total),
        task.instances // FITTED.packs_least_instances,
    )
    return max(1, wanted)


def _call(x: Launch, count: int) -> str:
    whole = evaluate(x.count, {})
    if count == 1:
        return f"{x.function}(buf, num, scratch, 0, {whole});"
    return f"{x.function}(buf, num, scratch, {whole} * part / parts, {whole} * (part + 1) / parts);"
