"""A function as C++ for a CPU, with its loops over a worker's share of a parallel nest.

    for it in begin..end @wrk:                      for (pf_i64 it = begin; it < end; ++it) {
      i, j = iteration it of i in 0..I, ...   ->      pf_i64 rest = it;  j = rest % J;  rest /= J;  i = rest;
      body                                            body

Loops that follow one another over one share have one variable, which goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.cpu.vectorize.windows import WindowPrinter
from polyfuse.codegen.function import END, Function, head, inside, is_iteration, whole_steps
from polyfuse.ir.index_expr import IBin, IConst, binary
from polyfuse.ir.loop_ir import Block, Delinearize, For, If, Node, Prefetch, begin_of, end_of, nodes_of
from polyfuse.ir.tensor_graph import Apply, IndexValue


@dataclass(slots=True)
class WorkerPrinter(WindowPrinter):
    """Prints whole functions."""

    def function(self, f: Function) -> list[str]:
        """What is between its braces."""
        if not f.loops:
            return self.block(f.block, "  ")
        first, *others = f.worker
        lines = self._parts(f.before, "  ")
        for n in f.before:
            self.has_read(n.then if isinstance(n, If) and is_iteration(n) else ())
        if not others:
            return [*lines, *self._loop(first, f"pf_i64 {first.var} = {self.index(first.lower)}")]
        lines.append(f"  pf_i64 {first.var} = {self.index(first.lower)};")
        return [*lines, *(line for x in f.worker for line in self._loop(x, ""))]

    def _loop(self, loop: For, start: str) -> list[str]:
        """One of the loops over a worker's share."""
        places = head(loop)
        assert loop.upper == whole_steps(loop.lower, loop.step)
        it, end = loop.var, self.index(END)
        if any(n.until is not None for n in places):
            step = f"{it} < {end};"
        elif loop.step == 1:
            step = f"{it} < {end}; ++{it}"
        else:
            step = f"{it} + {loop.step} <= {end}; {it} += {loop.step}"
        rows = {n.over.var: _of_row(self, n) for n in places if n.over is not None}
        printer = replace(self, begin=rows) if rows else self
        printer.has_read(_asked_ahead(inside(loop)))
        return [
            f"  for ({start}; {step}) {{",
            *(line for n in places for line in self.delinearized(n, "    ")),
            *printer._parts(inside(loop), "    "),
            "  }",
        ]

    def _parts(self, block: Block, indent: str) -> list[str]:
        """Blocks, and iterations under a condition between them."""
        lines: list[str] = []
        for part in _parts(block):
            if not is_iteration(part[0]):
                lines += self.block(part, indent)
                continue
            (n,) = part
            assert isinstance(n, If)
            lines += [f"{indent}if ({self._is_one(n)}) {{", *self.block(n.then, indent + "  "), f"{indent}}}"]
        return lines

    def _is_one(self, n: If) -> str:
        """Whether there is such an iteration."""
        assert isinstance(n.cond, Apply)
        left, right = (bare(self.index(x.index)) for x in n.cond.args if isinstance(x, IndexValue))
        return f"{left} < {right}"

    def delinearized(self, node: Delinearize, indent: str) -> list[str]:
        if node.until is not None:
            return _run(self, node, indent)
        if node.over is None:
            return _decoded(self, node, indent)
        if len(node.loops) == 1:
            return []
        return _table(self, node, node.over, indent)


def _parts(block: Block) -> Iterator[Block]:
    """A block cut where iterations under conditions begin and end."""
    part: list[Node] = []
    for n in block:
        if is_iteration(n):
            yield from ([tuple(part)] if part else [])
            yield (n,)
            part = []
        else:
            part.append(n)
    if part:
        yield tuple(part)


def _asked_ahead(body: Block) -> Block:
    """What an iteration reads of the next one, if it prefetches as well: whole rows, earlier."""
    ahead = tuple(x for n in body if is_iteration(n) and isinstance(n, If) for x in n.then)
    others = tuple(n for n in body if not is_iteration(n))
    return ahead if any(isinstance(n, Prefetch) for n in nodes_of(others)) else ()


# --- variables of iterations ------------------------------------------------------------------------------


def _decoded(printer: Printer, node: Delinearize, indent: str) -> list[str]:
    """The variables from the number of the iteration; the innermost runs fastest."""
    first, *others = node.loops
    low, number = printer.index(first.lower), bare(printer.index(node.number))
    if not others:
        added = "" if node.number == IConst(0) else f" + {number}"
        return [f"{indent}const pf_i64 {first.var} = {low}{added};"]
    rest = "rest"
    if isinstance(node.number, IBin) and isinstance(node.number.right, IConst):
        rest = f"rest{node.number.right.value}"  # of one of several iterations
    lines = [f"{indent}pf_i64 {rest} = {number};"]
    for x in reversed(others):
        extent = printer.index(binary("-", x.upper, x.lower))
        lines.append(f"{indent}const pf_i64 {x.var} = {printer.index(x.lower)} + {rest} % {extent};")
        lines.append(f"{indent}{rest} /= {extent};")
    return [*lines, f"{indent}const pf_i64 {first.var} = {low} + {rest};"]


def _run(printer: Printer, node: Delinearize, indent: str) -> list[str]:
    """Iterations in which only the innermost variable differs: the others, and what follows from them, are
    found once for all of these."""
    *outer, inner = node.loops
    begin, end, it = begin_of(inner), end_of(inner), printer.index(node.number)
    assert node.until is not None
    left, upper = f"({printer.index(node.until)} - {it})", printer.index(inner.upper)
    places = Delinearize((*outer, replace(inner, var=begin)), node.number)
    return [
        *_decoded(printer, places, indent),
        f"{indent}const pf_i64 {end} = {begin} + {left} < {upper} ? {begin} + {left} : {upper};",
        f"{indent}{it} += {end} - {begin};",
    ]


def _table(printer: Printer, node: Delinearize, rows: For, indent: str) -> list[str]:
    """The variables of all rows, found once."""
    count, row = printer.index(rows.upper), rows.var
    return [
        f"{indent}pf_i64 {', '.join(f'{x.var}_r[{count}]' for x in node.loops)};",
        f"{indent}for (pf_i64 {row} = 0; {row} < {count}; ++{row}) {{",
        *_decoded(printer, node, indent + "  "),
        *(f"{indent}  {x.var}_r[{row}] = {x.var};" for x in node.loops),
        f"{indent}}}",
    ]


def _of_row(printer: Printer, node: Delinearize) -> tuple[str, ...]:
    """What a row begins with: its variables."""
    assert node.over is not None
    if len(node.loops) == 1:
        return tuple(_decoded(printer, replace(node, over=None), ""))
    return tuple(f"const pf_i64 {x.var} = {x.var}_r[{node.over.var}];" for x in node.loops)
