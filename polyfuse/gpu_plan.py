"""What a person would decide by hand of a kernel on a GPU, as one value.

A `GpuPlan` with some fields set is a wish (`Options.plan`): mapping takes it where relations allow, and
decides the other fields itself.  What a kernel has in the end is read off it (`layers.mapping.gpu_plan`);
`explain()` and `polyfuse emit --stage plan` show it.

Sources: CodeGenPlan of Alibaba PAI's V2 compiler, plan enumeration of FusionStitching.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from polyfuse.diagnostics import ArgumentError, nearest

Keep = Literal["registers", "shared", "again"]
Columns = Literal["warps", "blocks"]
Stores = Literal["plain", "streaming"]
_WORDS = {"keep": get_args(Keep), "columns": get_args(Columns), "stores": get_args(Stores)}
_SWITCHES = ("resident", "barriers")


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Fields of the plan of a GPU's kernel that are decided by hand; None leaves one to the mapping.

    Parameters
    ----------
    threads
        Threads of a block at most, for nests without rows.
    row_threads
        Threads along a row.
    block_rows
        Rows of a block, where several fit one.
    vector
        Elements of an access.
    unroll
        Vectors that a thread has on their way.
    keep
        Where rows live that several loops read: in "registers", in "shared" memory, or read "again".
    columns
        Who adds up columns in a loop over rows: "warps" that own rows, or all threads of "blocks".
    chunks
        Blocks of a split reduction for each multiprocessor.
    resident
        Do resident blocks take short rows in turn, or has each group a block?
    barriers
        Do dependent kernels share a launch, with barriers of the grid?
    stores
        Cache hint of results that nothing reads again: "plain" or "streaming".

    Raises
    ------
    ArgumentError
        PF490 for a value that a field cannot have.

    Examples
    --------
    >>> pf.GpuPlan(row_threads=32, keep="registers")
    GpuPlan(row_threads=32, keep='registers')
    """

    threads: int | None = None
    row_threads: int | None = None
    block_rows: int | None = None
    vector: int | None = None
    unroll: int | None = None
    keep: Keep | None = None
    columns: Columns | None = None
    chunks: int | None = None
    resident: bool | None = None
    barriers: bool | None = None
    stores: Stores | None = None

    def __post_init__(self) -> None:
        for name, value in self.asked():
            if name in _WORDS:
                near = nearest(value, _WORDS[name])
                good = value in _WORDS[name]
                hint = f"did you mean {near!r}?" if near else "one of " + ", ".join(map(repr, _WORDS[name]))
            elif name in _SWITCHES:
                good, hint = isinstance(value, bool), "True, False or None"
            else:
                good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20
                hint = "a number of at least 1"
            if not good:
                raise ArgumentError(f"a plan's {name} cannot be {value!r}", code="PF490", hint=hint)

    def asked(self) -> tuple[tuple[str, object], ...]:
        """The fields that are set."""
        found = ((f.name, getattr(self, f.name)) for f in fields(self))
        return tuple((name, value) for name, value in found if value is not None)

    def mapped(self) -> tuple[tuple[str, object], ...]:
        """The fields that are of `ir.target.GpuTarget`; barriers are of layer II."""
        return tuple((name, value) for name, value in self.asked() if name != "barriers")

    def __repr__(self) -> str:
        return f"GpuPlan({', '.join(f'{name}={value!r}' for name, value in self.asked())})"

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.asked())
