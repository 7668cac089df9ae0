"""Chains of windows (`codegen.analysis.window_chains`) go through registers, a vector of terms at a time.

    for j in 0..447: terms[j] = x[j]
    for j in 0..446: of2[j] = max(terms[j], terms[j + 1])
    for j in 0..444: of4[j] = max(of2[j], of2[j + 2])
    for j in 0..440: y[j] = f(max(of4[j], of4[j + 4]))
becomes, with vectors of n lanes,
    for v by n, from a few vectors before 0 on:
      w0 = x[v + 7 .. v + 7 + n]                    where the windows of v end
      w1 = max(w0 one lane before, w0)              lanes before are those of this vector and the last one
      w2 = max(w1 two lanes before, w1)
      w3 = max(w2 four lanes before, w2)
      if v >= 0: y[v .. v + n] = f(w3)

What a vector takes from those before stays in registers; no array of a level is written.  Terms that take
more to make are in their array, and so are totals of which more is made.  An extreme is a plain comparison,
and where one of the terms was a NaN the loops run as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.codegen.analysis.window_chains import Chain, Part, is_simple
from polyfuse.codegen.c_printer import Printer
from polyfuse.codegen.cpu.vectorize.scans import ScanPrinter
from polyfuse.codegen.math.vector_reduce import COMBINED, delayed_name, fold_name, lanes_name
from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, For, If, Node, Store, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, reads

_Element: TypeAlias = Callable[[Printer, str, tuple[Index, ...]], str]


@dataclass(slots=True)
class WindowPrinter(ScanPrinter):
    """Prints `chains`."""

    chains: tuple[Chain, ...] = field(default=(), kw_only=True)

    def block(self, nodes: Block, indent: str) -> list[str]:
        for chain in self.chains:
            count = len(chain.nodes)
            at = next((k for k in range(len(nodes)) if nodes[k : k + count] == chain.nodes), None)
            if at is not None:
                after = self.block(nodes[at + count :], indent)
                return [*self.block(nodes[:at], indent), *self._chain(chain, indent), *after]
        return ScanPrinter.block(self, nodes, indent)

    def _chain(self, chain: Chain, indent: str) -> list[str]:
        text = _Text(self, chain, self._is_stored(chain))
        var, i1 = text.var, indent + "  "
        lines = [
            f"{indent}{{",
            f"{i1}enum {{ {var}_n = PF_VECTOR / {chain.dtype.bytes} }};",
            f"{i1}const pf_i64 {var}_e = {self.index(chain.loops[-1].upper)};",
            *text.vectors(i1),
        ]
        after = [] if text.stored else self.loop(chain.last, i1)
        if text.nan:
            plain = replace(self, chains=())
            lines += [
                f"{i1}if (__builtin_expect({text.is_nan()}, 0)) {{",
                *plain.block(chain.nodes, i1 + "  "),
            ]
            after = [f"{i1}}}{' else {' * bool(after)}", *after, *[f"{i1}}}"] * bool(after)]
        return [*lines, *after, f"{indent}}}"]

    def _is_stored(self, chain: Chain) -> bool:
        """Can the last loop go with the vectors?  With a NaN all runs again, on memory as it was."""
        last = chain.last
        if not is_simple(last):
            return False
        (store,) = last.body
        assert isinstance(store, Store)
        return store.buffer not in self.inout and all(
            r.tensor not in self.inout for v in values_of((*last.body, *chain.pieces)) for r in reads(v)
        )


@dataclass(slots=True)
class _Text:
    """Of a chain; the last loop goes with the vectors if it is `stored`."""

    printer: WindowPrinter
    chain: Chain
    stored: bool

    @property
    def var(self) -> str:
        return self.chain.loops[-1].var

    @property
    def kind(self) -> str:
        return lanes_name(self.chain.op, self.chain.dtype)

    @property
    def nan(self) -> bool:
        """Is a NaN looked for?"""
        return self.chain.op != "sum" and self.chain.dtype.is_float

    def is_nan(self) -> str:
        found = [f"(const {self.chain.dtype.c_name}*)&{self.var}_q", f"{self.var}_n"]
        total = self.printer.call(fold_name("sum", self.chain.dtype), found)
        return f"__builtin_isnan({total})"

    def vectors(self, indent: str) -> list[str]:
        """The loop over vectors of terms."""
        var, chain, kind, i1 = self.var, self.chain, self.kind, indent + "  "
        before = {k: d for k in range(len(chain.links)) if (d := chain.before(k))}
        sizes = {f"{var}_b{k}": f"({d} + {var}_n - 1) / {var}_n" for k, d in before.items()}
        lines = [f"{indent}{kind} {b}[{size}] = {{}};" for b, size in sizes.items()]
        lines += [f"{indent}{kind} {var}_q = {{}};"] if self.nan else []
        begin = f"{var}_e > 0 ? -({chain.lead} + {var}_n - 1) / {var}_n * {var}_n : 0"
        lines += [
            *self._range(indent),
            f"{indent}PF_ROLLED",
            f"{indent}for (pf_i64 {var}_v = {begin}; {var}_v < {var}_e; {var}_v += {var}_n) {{",
            f"{i1}const pf_i64 {var}_f = {var}_v + {chain.lead};",
            f"{i1}{kind} {var}_w0;",
            *(self._pieces(i1) if chain.most else self._terms(i1)),
            *([f"{i1}{var}_q = {var}_w0 != {var}_w0 ? {var}_w0 : {var}_q;"] if self.nan else []),
        ]
        for k, parts in enumerate(chain.links):
            lines += self._link(f"{var}_w{k + 1}", parts, i1)
        for k in before:
            b = f"{var}_b{k}"
            lines.append(f"{i1}PF_UNROLLED for (int k = {sizes[b]} - 1; k > 0; --k) {b}[k] = {b}[k - 1];")
            lines.append(f"{i1}{b}[0] = {var}_w{k};")
        lines.append(f"{i1}if ({var}_v < 0) continue;")
        return [*lines, *(self._stored(i1) if self.stored else self._kept(i1)), f"{indent}}}"]

    # --- terms ------------------------------------------------------------------------------------------

    def _range(self, indent: str) -> list[str]:
        """Of what most terms are made by."""
        if self.chain.most is None:
            return []
        low, high = map(self.printer.index, (self.chain.most.lower, self.chain.most.upper))
        return [f"{indent}const pf_i64 {self.var}_i = {low}, {self.var}_j = {high};"]

    def _pieces(self, indent: str) -> list[str]:
        """A vector of terms as they are made; of those that are not, zeros."""
        var, most, i1 = self.var, self.chain.most, indent + "  "
        assert most is not None
        (made,) = values_of(most.body)
        printer = replace(self.printer, chains=(), element=self._at_term(self.printer.element))
        clipped = tuple(map(self._clipped, self.chain.pieces))
        return [
            f"{indent}if ({var}_f >= {var}_i && {var}_f + {var}_n <= {var}_j) {{",
            f"{i1}{self._array('t')};",
            f"{i1}PF_IVDEP",
            f"{i1}for (int l = 0; l < {var}_n; ++l) {{",
            f"{i1}  const pf_i64 {most.var} = {var}_f + l;",
            f"{i1}  {var}_t[l] = {self.printer.expr(made)};",
            f"{i1}}}",
            f"{i1}{var}_w0 = *(const {self.kind}*){var}_t;",
            f"{indent}}} else {{",
            f"{i1}{self._array('t')} = {{}};",
            *printer.block(clipped, i1),
            f"{i1}{var}_w0 = *(const {self.kind}*){var}_t;",
            f"{indent}}}",
        ]

    def _clipped(self, n: Node) -> Node:
        """What a piece makes of a vector."""
        if isinstance(n, If):
            return replace(n, then=tuple(map(self._clipped, n.then)))
        assert isinstance(n, For)
        first = IVar(f"{self.var}_f")
        low, high = binary("max", first, n.lower), binary("min", first + IVar(f"{self.var}_n"), n.upper)
        return replace(n, lower=low, upper=high, coordinate=Coordinate.SEQ)

    def _at_term(self, element: _Element) -> _Element:
        terms, var = self.chain.terms.tensor, self.var

        def place(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
            if buffer != terms:
                return element(printer, buffer, indices)
            (*_, last) = indices
            assert isinstance(last, IVar)
            return f"{var}_t[{last.name} - {var}_f]"

        return place

    def _terms(self, indent: str) -> list[str]:
        """A vector of terms; of those that are not there, another one, which nothing is made of."""
        var, lead, i1, terms = self.var, self.chain.lead, indent + "  ", self.chain.terms
        place, at = self.printer.element(self.printer, terms.tensor, terms.indices), self.chain.loops[0].var
        return [
            f"{indent}if ({var}_f >= 0 && {var}_v + {var}_n <= {var}_e) {{",
            f"{i1}const pf_i64 {at} = {var}_f;",
            f"{i1}{var}_w0 = *(const {self.kind}*)&{place};",
            f"{indent}}} else {{",
            f"{i1}{self._array('t')};",
            f"{i1}for (int l = 0; l < {var}_n; ++l) {{",
            f"{i1}  pf_i64 {at} = {var}_f + l;",
            f"{i1}  {at} = {at} < 0 ? 0 : {at} < {var}_e + {lead} ? {at} : {var}_e + {lead} - 1;",
            f"{i1}  {var}_t[l] = {place};",
            f"{i1}}}",
            f"{i1}{var}_w0 = *(const {self.kind}*){var}_t;",
            f"{indent}}}",
        ]

    def _array(self, name: str) -> str:
        return f"__attribute__((aligned(64))) {self.chain.dtype.c_name} {self.var}_{name}[{self.var}_n]"

    # --- windows ----------------------------------------------------------------------------------------

    def _link(self, made: str, parts: tuple[Part, ...], indent: str) -> list[str]:
        first, *others = map(self._delayed, parts)
        lines = [f"{indent}{self.kind} {made} = {first};"]
        for b in others:
            joined = f"const {self.kind} a = {made}, b = {b}; {made} = {COMBINED[self.chain.op]};"
            lines.append(f"{indent}{{ {joined} }}")
        return lines

    def _delayed(self, part: Part) -> str:
        now, before = f"{self.var}_w{part.level}", f"{self.var}_b{part.level}"
        if not part.delay:
            return now
        return self.printer.call(
            delayed_name(self.chain.op, self.chain.dtype), [now, before, str(part.delay)]
        )

    # --- totals -----------------------------------------------------------------------------------------

    @property
    def total(self) -> str:
        return f"{self.var}_w{len(self.chain.links)}"

    def _kept(self, indent: str) -> list[str]:
        """Totals go to an array."""
        var, totals, i1 = self.var, self.chain.totals, indent + "  "
        place = self.printer.element(self.printer, totals.tensor, totals.indices)
        return [
            f"{indent}const pf_i64 {var} = {var}_v;",
            f"{indent}if ({var}_v + {var}_n <= {var}_e) {{",
            f"{i1}*({self.kind}*)&{place} = {self.total};",
            f"{indent}}} else {{",
            f"{i1}{self._array('t')};",
            f"{i1}*({self.kind}*){var}_t = {self.total};",
            f"{i1}for (int l = 0; {var}_v + l < {var}_e; ++l) (&{place})[l] = {var}_t[l];",
            f"{indent}}}",
        ]

    def _stored(self, indent: str) -> list[str]:
        """What the last loop makes of totals is stored."""
        var, last, i1 = self.var, self.chain.last, indent + "  "
        (store,) = last.body
        assert isinstance(store, Store)
        streamed = store.buffer in self.printer.streamed and _is_along(store, var)

        def lanes(end: str, *arrays: str) -> list[str]:
            element = self._at_lane(self.printer.element, arrays)
            printer = replace(self.printer, chains=(), element=element)
            return [
                f"{i1}{self._array('t')};",
                f"{i1}*({self.kind}*){var}_t = {self.total};",
                f"{i1}PF_IVDEP",
                f"{i1}for (int l = 0; {end}; ++l) {{",
                f"{i1}  const pf_i64 {var} = {var}_v + l;",
                *printer.block(last.body, i1 + "  "),
                f"{i1}}}",
            ]

        whole = lanes(f"l < {var}_n", *[store.buffer] * streamed)
        if streamed:
            self.printer.made.add(("stream", store.buffer))
            place = self.printer.element(self.printer, store.buffer, store.indices)
            t = store.value.dtype.c_name
            whole = [
                f"{i1}__attribute__((aligned(64))) {t} {store.buffer}_q[{var}_n];",
                *whole,
                f"{i1}const pf_i64 {var} = {var}_v;",
                f"{i1}pf_stream(&{place}, {store.buffer}_q, sizeof {store.buffer}_q);",
            ]
        rest = lanes(f"{var}_v + l < {var}_e")
        return [
            f"{indent}if ({var}_v + {var}_n <= {var}_e) {{",
            *whole,
            f"{indent}}} else {{",
            *rest,
            f"{indent}}}",
        ]

    def _at_lane(self, element: _Element, arrays: tuple[str, ...]) -> _Element:
        totals, var = self.chain.totals.tensor, self.var

        def place(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
            if buffer == totals:
                return f"{var}_t[l]"
            return f"{buffer}_q[l]" if buffer in arrays else element(printer, buffer, indices)

        return place


def _is_along(store: Store, var: str) -> bool:
    """Does a loop store one element after the other?"""
    *outer, last = store.indices
    if any(isinstance(i, EXPR_TYPES) or var in variables(i) for i in outer) or isinstance(last, EXPR_TYPES):
        return False
    return var not in variables(linear(last - IVar(var)).expr())
