"""How many threads share a row, and how many rows a block of a GPU has.

Source: AStitch (ASPLOS'22) section 4.3, adaptive thread mapping.  Numbers were measured on an H200,
2026-11-27 (`docs/lab/gpu_plans.md`).
"""

from __future__ import annotations

from polyfuse.ir.target import GpuTarget

WARP = 32
# Rounds that one warp takes over a row before the row gets a block of its own.
ROUNDS_OF_A_WARP = 8
# Registers of an access of 16 bytes.
WORDS_OF_VECTOR = 4
# Elements of a row that a thread keeps in registers; with fewer of them a row has threads enough.
MOST_OF_ROW, FEW_OF_ROW = 64, 16
# Threads of a multiprocessor whose loads keep memory busy: 16 bytes each are 12 kB, and most threads have two
# vectors (bandwidth times latency is 25 kB on an H200).
ENOUGH_THREADS = 768
# Rows that a block has at least, where there are enough of them for two such blocks on each multiprocessor.
ROWS_OF_MANY = 32


def row_shape(lanes: int, width: int, rows: int, gpu: GpuTarget, phases: bool = True) -> tuple[int, int]:
    """(threads along a row, rows of a block) for rows of `lanes` vectors of `width` elements.

    Several short rows share a warp or a block (horizontal packing); a long row has a block of its own.
    `phases`: do several loops of a row read it?
    """
    if gpu.row_threads is not None:
        fits = gpu.row_threads <= WARP and gpu.row_threads & (gpu.row_threads - 1) == 0
        return gpu.row_threads, max(1, gpu.threads // gpu.row_threads) if fits else 1
    if lanes <= WARP:
        tx = 1 << max(0, lanes - 1).bit_length()
        return tx, gpu.block_rows or max(1, gpu.threads // 2 // tx, _of_many(tx, width, rows, gpu))
    if lanes <= WARP * ROUNDS_OF_A_WARP and rows >= gpu.sms * (gpu.threads // WARP) * 2:
        return WARP, gpu.block_rows or max(1, gpu.threads // 2 // WARP)
    most = _threads_of_row(lanes, width, rows, gpu, phases)
    rounds = ceil(lanes, most)
    return min(gpu.longest, ceil(ceil(lanes, rounds), WARP) * WARP), 1


def _threads_of_row(lanes: int, width: int, rows: int, gpu: GpuTarget, phases: bool) -> int:
    """Threads of a block that has one row: few, so that blocks wait for each other's barriers seldom.

    More where a row that is read again would not stay in registers, or rows are too few for all
    multiprocessors to have loads on their way.
    """
    fewest = min(gpu.longest, gpu.threads // 2)
    wanted = ceil(gpu.sms * ENOUGH_THREADS, max(1, rows))
    found = fewest if phases else min(gpu.longest, gpu.threads)
    while found < gpu.longest and found < wanted and lanes * width > FEW_OF_ROW * found:
        found *= 2
    kept = found
    while kept < gpu.longest and ceil(lanes, kept) * width > MOST_OF_ROW:
        kept *= 2
    if not phases or ceil(lanes, kept) * width > MOST_OF_ROW:
        return min(gpu.longest, max(found, gpu.threads))
    # A block that takes most of the registers is alone on its multiprocessor, and has all of its threads.
    alone = WORDS_OF_VECTOR * ceil(lanes, kept) * kept > gpu.registers * 2 // 5
    return gpu.longest if alone else min(gpu.longest, kept)


def _of_many(tx: int, width: int, rows: int, gpu: GpuTarget) -> int:
    """Rows of a block at least, where there are very many short ones.

    Vectors take registers, of which the largest blocks would get either too few or more than they need.
    """
    together = min(ROWS_OF_MANY, (gpu.longest if width == 1 else gpu.longest // 2) // tx)
    return together if rows >= 2 * gpu.sms * together else 1


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
