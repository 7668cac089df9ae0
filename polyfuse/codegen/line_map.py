"""Which places of a program each line of emitted code came from.

    marks = Marks()
    code = emit(replace(request, marks=marks))      lines end in marks
    marks.lines(code.source, plain.source)          a tuple of places for each line of the plain source

Expressions of the loop IR keep the places of what they were in the text through all passes.  A printer that
has marks ends each line of a node with a number for the places of what the node computes; a line of a loop
has those of all that is in it.  What has no place of its own, such as the first value of a total, has that of
the statement whose tensor it writes, else of what writes the same variable, of what it reads, of what reads
it.

Nothing else may depend on the marks: without them the lines are those of the source, or there is no map.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Combine,
    Declare,
    For,
    If,
    Node,
    OwnedLoop,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    VectorLoad,
    VectorStore,
    nodes_of,
)
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Read, Statement, walk
from polyfuse.source import Span

Places = tuple[Span, ...]
_MARK = re.compile("\x02([0-9]+)\x03")


@dataclass
class Marks:
    """Numbers for sets of places, and lines that end in them."""

    numbers: dict[Places, int] = field(default_factory=dict)

    def marked(self, lines: Sequence[str], places: Places) -> list[str]:
        """Lines with a mark, but for those that have one from a node inside."""
        if not places:
            return list(lines)
        mark = f"\x02{self.numbers.setdefault(places, len(self.numbers))}\x03"
        return [line if line.endswith("\x03") else line + mark for line in lines]

    def lines(self, marked: str, plain: str) -> tuple[Places, ...] | None:
        """The places of each line of the plain source; None where marks changed more than ends of lines."""
        if _MARK.sub("", marked) != plain:
            return None
        table = list(self.numbers)
        return tuple(
            _outermost(s for m in _MARK.findall(x) for s in table[int(m)]) for x in marked.split("\n")
        )

    def of(self, kernel: Kernel, block: Block) -> Origins:
        """Marks for a function of a kernel."""
        return Origins(self, kernel, block)


class Origins:
    """The places that the nodes of one function came from."""

    def __init__(self, marks: Marks, kernel: Kernel, block: Block) -> None:
        self.marks, self.kernel = marks, kernel
        self._writers: dict[str, list[Node]] = {}
        self._readers: dict[str, list[Node]] = {}
        self._known: dict[int, Places] = {}
        self._kept: list[Node] = []  # as long as their ids are keys
        for n in _every(block):
            if (name := _written(n)) is not None:
                self._writers.setdefault(name, []).append(n)
            for tensor in _reads(n):
                self._readers.setdefault(tensor, []).append(n)

    def marked(self, node: Node, lines: Sequence[str]) -> list[str]:
        """The lines of a node, with marks."""
        return self.marks.marked(lines, self.places(node))

    def places(self, node: Node) -> Places:
        """Where a node came from."""
        if id(node) not in self._known:
            self._kept.append(node)
            self._known[id(node)] = _outermost(self._found(node))
        return self._known[id(node)]

    def _found(self, node: Node) -> Iterator[Span]:
        if isinstance(node, For | If | OwnedLoop):
            yield from _own(node)
            for n in _inside(node):
                yield from self.places(n)
        else:
            yield from self._of_one(node, {id(node)})

    def _of_one(self, node: Node, seen: set[int]) -> list[Span]:
        """Of a node without others in it. Those that were asked for it already are in `seen`."""
        name, own = _written(node), _own(node)
        if own or name is None:
            return own
        if stated := [s.span for s in self._statements(name) if s.span.source.text]:
            return stated
        sources = [n for r in _reads(node) for n in self._writers.get(r, ())]
        for nodes in (self._writers[name], sources, self._readers.get(name, ())):
            found: list[Span] = []
            for n in nodes:
                if id(n) not in seen:
                    seen.add(id(n))
                    found += self._of_one(n, seen)
            if found:
                return found
        return []

    def _statements(self, name: str) -> Iterable[Statement]:
        return self.kernel.graph.writers(name)


def _every(block: Block) -> Iterator[Node]:
    for n in nodes_of(block):
        yield n
        if isinstance(n, OwnedLoop):
            yield from _every((n.loop,))


def _inside(node: For | If | OwnedLoop) -> Block:
    match node:
        case For():
            return node.body
        case If():
            return (*node.then, *node.other)
        case OwnedLoop():
            return node.loop.body


def _written(node: Node) -> str | None:
    """The tensor or variable that a node writes."""
    match node:
        case Store() | Update() | VectorStore():
            return node.buffer
        case Declare() | Combine() | VectorLoad() | RegisterTile():
            return node.name
        case TransposedTile():
            return node.to[0] if node.to else node.name
        case _:
            return None


def _expressions(node: Node) -> Iterator[Expr]:
    """What a node computes itself, without what is in it."""
    match node:
        case Declare():
            yield from () if node.value is None else (node.value,)
        case Store() | Update():
            yield node.value
            yield from (i for i in node.indices if isinstance(i, EXPR_TYPES))
        case If():
            yield node.cond
        case RegisterTile():
            yield from (node.left, node.right)
        case OwnedLoop():
            yield node.key
        case VectorLoad(cond=cond):
            yield from () if cond is None else (cond,)
        case _:
            pass


def _reads(node: Node) -> list[str]:
    """The tensors and variables that a node reads itself."""
    more = [node.name] if isinstance(node, VectorStore) else []
    return [*more, *(x.tensor for e in _expressions(node) for x in walk(e) if isinstance(x, Read))]


def _own(node: Node) -> list[Span]:
    return [e.span for x in _expressions(node) for e in walk(x) if e.span.source.text]


def _outermost(found: Iterable[Span]) -> Places:
    """Places that are in no other one, in the order of the text; calls are told apart."""
    order = sorted(dict.fromkeys(found), key=lambda s: (s.source.name, s.start, -s.end))
    kept: list[Span] = []
    for s in order:
        if not (kept and kept[-1].source == s.source and kept[-1].end >= s.end):
            kept.append(s)
    return tuple(kept)
