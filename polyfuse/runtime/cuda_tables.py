"""Tables of arguments: what a launch has too many of to pass, in the memory of the device.

A table has a cell of 8 bytes for each argument.  It is uploaded when a call is prepared, and again only when
what is in it has changed: a prepared call on fixed memory uploads it once, calls with the same arrays after
each other as well.  Every new content gets new memory, for launches that are queued may still read the old
one; that goes back to its pool, where work on the same stream comes after them.
"""

from __future__ import annotations

import numpy as np

from polyfuse.runtime.cuda_driver import Cells
from polyfuse.runtime.cuda_grids import Grid
from polyfuse.runtime.cuda_memory import Block, DeviceMemory


class Table:
    """The table of one launch, for one set of cells."""

    __slots__ = ("_block", "_cell", "_cells", "_content", "_places", "_view", "changes")

    def __init__(self, grid: Grid, cells: Cells) -> None:
        self._cells, self._cell = cells, grid.table_cell
        self._view = np.ctypeslib.as_array(cells.memory)
        self._places = np.array(grid.table, np.intp)
        self._content = b""
        self._block: Block | None = None
        self.changes = grid.values_in_table
        """May what is in it change from run to run of a prepared call?"""

    def bring(self, memory: DeviceMemory, stream: int) -> None:
        """Let the table on the device have what the cells have, for launches on a stream."""
        now = self._view[self._places].tobytes()
        if self._block is not None and self._block.stream == stream and now == self._content:
            return
        block = memory.pool.take(len(now), stream)
        memory.staging.upload(np.frombuffer(now, np.uint8), block.address, stream)
        self._block, self._content = block, now
        self._cells.put(self._cell, block.address)
