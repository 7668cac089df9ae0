"""Regions of a GPU kernel's loops, as isl sees them: conditions, and who takes the same way through.

    Region   a loop body, a branch of a condition, or a loop of one iteration; regions nest
    Place    the regions around an event, outermost first, and its position in each of them
    Nest     what outermost loops over blocks enclose

Canonical variables are ``tx``, ``ty``, ``lane`` (the element of a vector access) and ``k<n>`` for the loop
of region n: the loop's variable, or the number of the iteration where lower bound or step differ between
threads.  So the time of an event, ``[position, k0, position, k1, ..., position]``, never holds the thread
itself, and threads that come to the same barrier agree on it.

Block b of a launch runs the iterations b, b + blocks, b + 2 blocks ... of a nest.  Where there are enough
blocks each runs one iteration at most, and the loops are coordinates of a thread like tx and ty; else they
are time as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, product, substitute, variables
from polyfuse.ir.linear import Range, index_operand, interval, linear
from polyfuse.ir.loop_ir import For
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, walk
from polyfuse.poly.model.isl_bridge import NotAffine, condition_text, index_text

THREAD, BLOCK, DATA = "thread", "block", "data"

# Between the positions of neighbouring nodes: node k of a block is at STRIDE k + 2, what is in its other
# branch at STRIDE k + 3, a barrier that is put before it at STRIDE k.
STRIDE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Loops over blocks. `once`: no block runs two iterations; `whole`: and each block runs one.

    `count` is an iteration's number in the nest, if its extents are known; `blocks` how many are launched.
    """

    names: tuple[str, ...]
    once: bool
    whole: bool
    count: IndexExpr | None
    blocks: int | None

    @property
    def number(self) -> str | None:
        """isl text of `count`."""
        return None if self.count is None else index_text(self.count)

    @property
    def block(self) -> str | None:
        """isl text of the block that runs an iteration."""
        if self.once or self.count is None:
            return self.number
        return None if self.blocks is None else index_text(binary("%", self.count, self.blocks))


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """`conditions` are isl texts that hold inside (`exact`: and nothing else must); `varies` says what can
    make a difference to them: thread, block, data.  `var`, `value`: the loop variable as it is printed."""

    number: int
    conditions: tuple[str, ...] = ()
    exact: bool = True
    varies: frozenset[str] = frozenset()
    always: bool = True
    loop: bool = False
    nest: bool = False
    var: str | None = None
    value: IndexExpr | None = None
    test: tuple[Expr, bool] | None = None

    @property
    def name(self) -> str:
        return f"k{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """`positions` has one more element than `regions`: the last is that of the event itself."""

    regions: tuple[Region, ...]
    positions: tuple[int, ...]
    nest: Nest | None

    def common(self, other: Place) -> int:
        """The number of regions that two places share."""
        count = 0
        for a, b in zip(self.regions, other.regions, strict=False):
            if a.number != b.number:
                break
            count += 1
        return count

    def inside(self, other: Place, depth: int) -> bool:
        """Is it inside the `depth` outer regions of another place?"""
        return depth == 0 or (
            len(self.regions) >= depth and self.regions[depth - 1].number == other.regions[depth - 1].number
        )

    def __lt__(self, other: Place) -> bool:
        return self.positions < other.positions


@dataclass(slots=True)
class Regions:
    """Makes the regions of one kernel; `ranges` are those of its canonical variables, where known."""

    threads: tuple[int, int]
    blocks: IndexExpr
    ranges: dict[str, Range] = field(default_factory=dict)
    nests: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)  # scalars that are bounds of loops: data
    count: int = 0

    def __post_init__(self) -> None:
        self.ranges |= {"tx": (0, self.threads[0] - 1), "ty": (0, self.threads[1] - 1)}

    def branch(self, test: Expr, positive: bool) -> Region:
        text = self.condition(test, positive)
        used = [v for e in walk(test) if isinstance(e, IndexValue) for v in variables(e.index)]
        varies = self.varies(tuple(used))
        if any(isinstance(e, Read) for e in walk(test)):
            varies |= {DATA}
        number = self.number()
        conditions = () if text is None else (text,)
        exact = _exact(test) and DATA not in varies
        return Region(number, conditions, exact, varies, always=False, test=(test, positive))

    def condition(self, test: Expr, positive: bool) -> str | None:
        """What isl may know of a condition: nothing of data."""
        return condition_text(test, positive, self.numbers)

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    def varies(self, names: tuple[str, ...]) -> frozenset[str]:
        found = {THREAD} if "tx" in names or "ty" in names else set()
        if self.nests & set(names):
            found.add(BLOCK)
        if self.numbers & set(names):
            found.add(DATA)
        return frozenset(found)

    def _known(self, left: IndexExpr, op: str, right: IndexExpr) -> str | None:
        """A comparison as isl text, if it is affine and of no data."""
        data = self.numbers & {*variables(left), *variables(right)}
        return None if data else _compared(left, op, right)

    def loop(self, node: For, env: Mapping[str, IndexExpr]) -> tuple[Region, IndexExpr]:
        """The region of a loop and the value of its variable."""
        lower, upper = substitute(node.lower, env), substitute(node.upper, env)
        length = linear(binary("-", upper, lower)).expr()
        trips = _trips(interval(length, self.ranges), node.step)
        number = self.number()
        if trips is not None and trips == (1, 1) and node.coordinate is not Coordinate.BLK:
            return Region(number, var=node.var, value=lower), lower
        k = IVar(f"k{number}")
        counted = node.coordinate is Coordinate.BLK or node.step != 1 or self.varies(variables(lower))
        value: IndexExpr = lower + node.step * k if counted else k
        fixed = trips is not None and trips[0] == trips[1]
        if counted:
            texts = [f"0 <= {index_text(k)}", *(self._known(value, "<", e) for e in _arms("min", upper))]
            if fixed and trips is not None:
                texts[1:] = [f"{index_text(k)} < {trips[0]}"]
        else:
            texts = [self._known(e, "<=", k) for e in _arms("max", lower)]
            texts += [self._known(k, "<", e) for e in _arms("min", upper)]
        self.learn(k.name, lower, upper, trips, bool(counted))
        varies = self.varies(() if fixed else variables(length))
        known = tuple(t for t in texts if t is not None)
        always = trips is not None and trips[0] > 0
        exact = len(known) == len(texts)
        return Region(number, known, exact, varies, always, loop=True, var=node.var, value=value), value

    def learn(
        self, name: str, lower: IndexExpr, upper: IndexExpr, trips: Range | None, counted: bool
    ) -> None:
        low, high = interval(lower, self.ranges), interval(upper, self.ranges)
        if counted:
            if trips is not None:
                self.ranges[name] = 0, max(0, trips[1] - 1)
        elif low is not None and high is not None:
            self.ranges[name] = low[0], max(low[0], high[1] - 1)

    def described(self, regions: tuple[Region, ...], extents: tuple[IndexExpr, ...]) -> Nest:
        count = product(extents)
        sizes = [e.value for e in extents if isinstance(e, IConst)]
        blocks = self.blocks.value if isinstance(self.blocks, IConst) else None
        whole = count == self.blocks
        fits = isinstance(count, IConst) and blocks is not None and count.value <= blocks
        number: IndexExpr | None = None
        if len(sizes) == len(extents):
            total: IndexExpr = as_index(0)
            for r, size in zip(regions, sizes, strict=True):
                total = total * size + IVar(r.name)
            number = total
        return Nest(tuple(r.name for r in regions), whole or fits, whole, number, blocks)


def _trips(length: Range | None, step: int) -> Range | None:
    """The least and the most iterations of a loop whose length lies in a range."""
    return None if length is None else (max(0, -(-length[0] // step)), max(0, -(-length[1] // step)))


def _arms(op: str, e: IndexExpr) -> list[IndexExpr]:
    """The operands of nested minima (or maxima)."""
    left, right = getattr(e, "left", None), getattr(e, "right", None)
    if getattr(e, "op", None) != op or left is None or right is None:
        return [e]
    return [*_arms(op, left), *_arms(op, right)]


def _compared(left: IndexExpr, op: str, right: IndexExpr) -> str | None:
    try:
        return f"{index_text(left)} {op} {index_text(right)}"
    except NotAffine:
        return None


def _exact(cond: Expr) -> bool:
    """Does isl see all of a condition?"""
    match cond:
        case Const():
            return True
        case Apply("and" | "or" | "not", args):
            return all(map(_exact, args))
        case Apply("lt" | "le" | "gt" | "ge" | "eq" | "ne", (left, right)):
            a, b = index_operand(left), index_operand(right)
            return a is not None and b is not None and _compared(a, "=", b) is not None
        case _:
            return False
