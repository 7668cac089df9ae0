"""The loop over those iterations of a parallel nest that a worker was given, as C++ for a CPU.

One by one, rows of them in loops, several at once (`codegen.transforms.unroll_and_jam.batched_rows`) or in
turns (`codegen.transforms.unroll_and_jam.interleaved_rows`), or each with a part of the next one in it
(`codegen.transforms.software_pipelining`).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.analysis.row_batch import ROW, first_row
from polyfuse.codegen.c_printer import Printer
from polyfuse.codegen.cpu.memory_ops import PrefetchPrinter
from polyfuse.codegen.function import Skew, Task, Together, begin_of, end_of
from polyfuse.ir.index_expr import binary
from polyfuse.ir.loop_ir import Block, Declare, For, Prefetch, Store, nodes_of


def iterations(task: Task, printer: PrefetchPrinter) -> list[str]:
    """Those from `begin` to `end`."""
    if task.skew is not None:
        return _skewed(task, task.skew, printer)
    if task.together is not None:
        return ["  pf_i64 it = begin;", *_together(task.together, _each(task, "", printer), printer)]
    if task.along or (len(task.loops) > 1 and _only_stores(task.body)):
        return _in_rows(task, printer)
    return _each(task, "pf_i64 it = begin", printer)


def _each(task: Task, first: str, printer: PrefetchPrinter) -> list[str]:
    """One by one, each found by its number."""
    head, decoded = f"  for ({first}; it < end; ++it) {{", _decode(task.loops, printer)
    return [head, *decoded, *printer.block(task.body, "    "), "  }"]


def _in_rows(task: Task, printer: PrefetchPrinter) -> list[str]:
    """One by one; those in which only the innermost variable differs are a loop, so that the others, and what
    follows from them, are found once for all of these.

    for (it...) { i = it / J; j = it % J; ... }     becomes     for (it...) { i = it / J; for (j...) ... }
    """
    *outer, inner = task.loops
    var, begin, end = inner.var, begin_of(inner), end_of(inner)
    upper = printer.index(inner.upper)
    each = [
        f"    for (pf_i64 {var} = {begin}; {var} < {end}; ++{var}) {{",
        *printer.block(task.body, "      "),
        "    }",
    ]
    return [
        "  for (pf_i64 it = begin; it < end;) {",
        *_decode((*outer, replace(inner, var=begin)), printer),
        f"    const pf_i64 {end} = {begin} + (end - it) < {upper} ? {begin} + (end - it) : {upper};",
        f"    it += {end} - {begin};",
        *(printer.block(task.along, "    ") if task.along else each),
        "  }",
    ]


def _only_stores(body: Block) -> bool:
    """Are there only loops of stores? Their rows may be short, beside which finding an iteration takes long.
    Where there are loops in loops gcc 12 finds worse addresses in deeper nests."""
    return all(isinstance(n, For) and all(isinstance(x, (Declare, Store)) for x in n.body) for n in body)


def _together(together: Together, one: list[str], printer: PrefetchPrinter) -> list[str]:
    """Several at a time, then fewer, or one by one."""
    rest = _together(together.rest, one, printer) if together.rest else one
    if len(together.loops) == 1:
        each, begin = _places(together, printer)
        printer = replace(printer, begin={ROW: begin})
    else:
        each = [line for k, loops in enumerate(together.loops) for line in _decode(loops, printer, k)]
    return [
        f"  for (; it + {together.rows} <= end; it += {together.rows}) {{",
        *each,
        *printer.block(together.body, "    "),
        "  }",
        *rest,
    ]


def _places(together: Together, printer: PrefetchPrinter) -> tuple[list[str], tuple[str, ...]]:
    """What finds the variables of all rows, and what each of the rows begins with."""
    (loops,) = together.loops
    if len(loops) == 1:
        var, first = loops[0].var, first_row(loops[0].var)
        declared = f"    const pf_i64 {first} = {printer.index(loops[0].lower)} + it;"
        return [declared], (f"const pf_i64 {var} = {first} + {ROW};",)
    found = [
        f"    pf_i64 {', '.join(f'{x.var}_r[{together.rows}]' for x in loops)};",
        f"    for (pf_i64 {ROW} = 0; {ROW} < {together.rows}; ++{ROW}) {{",
        *(f"  {line}" for line in _decode(loops, printer, f"it + {ROW}")),
        *(f"      {x.var}_r[{ROW}] = {x.var};" for x in loops),
        "    }",
    ]
    return found, tuple(f"const pf_i64 {x.var} = {x.var}_r[{ROW}];" for x in loops)


def _skewed(task: Task, skew: Skew, printer: PrefetchPrinter) -> list[str]:
    """Each with a part of the next one in it. Its lines are not asked for where whole rows are, earlier."""
    decoded = _decode(task.loops, printer)
    lines = [
        *printer.block(skew.carried, "  "),
        "  if (begin < end) {",
        "    const pf_i64 it = begin;",
        *decoded,
        *printer.block(skew.first, "    "),
        "  }",
        "  for (pf_i64 it = begin; it < end; ++it) {",
        *decoded,
    ]
    printer.has_read(skew.first)
    if any(isinstance(n, Prefetch) for n in nodes_of((*skew.start, *skew.last))):
        printer.has_read(skew.ahead)
    return [
        *lines,
        *printer.block(skew.start, "    "),
        "    if (it + 1 < end) {",
        *_decode(skew.loops, printer, 1),
        *printer.block(skew.ahead, "      "),
        "    }",
        *printer.block(skew.last, "    "),
        "  }",
    ]


def _decode(loops: tuple[For, ...], printer: Printer, later: int | str = 0) -> list[str]:
    """The variables of a parallel nest from the number of the iteration, of one some iterations later, or of
    one with another number; the innermost runs fastest."""
    number = later if isinstance(later, str) else f"it + {later}" if later else "it"
    if len(loops) == 1:
        return [f"    const pf_i64 {loops[0].var} = {printer.index(loops[0].lower)} + {number};"]
    rest = f"rest{later}" if later and isinstance(later, int) else "rest"
    lines = [f"    pf_i64 {rest} = {number};"]
    for k in range(len(loops) - 1, -1, -1):
        x = loops[k]
        low = printer.index(x.lower)
        extent = printer.index(binary("-", x.upper, x.lower))
        if k == 0:
            lines.append(f"    const pf_i64 {x.var} = {low} + {rest};")
        else:
            lines.append(f"    const pf_i64 {x.var} = {low} + {rest} % {extent};")
            lines.append(f"    {rest} /= {extent};")
    return lines
