"""Numbers that were fitted to machines: thresholds of code generation for a CPU, in one table.

Each has its unit, what it weighs, and where and when it was last set: `machine` is that of the benchmark runs
of that day (`benchmarks/results`), unknown where there are none or several.  One table serves all kinds of
core: none of these numbers was found to differ between them.  Structural numbers (widths of vectors, what
compilers unroll, precision of sums) stay where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")
# Machines of the runs: two threads each.
AVX512 = "AMD EPYC, AVX-512"
AVX2 = "AMD EPYC, AVX2 alone"
ZEN4 = "AMD EPYC, Zen 4"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a number weighs, in which unit, and where and when it was set."""

    unit: str
    weighs: str
    machine: str
    date: str


def _fitted(value: T, unit: str, weighs: str, machine: str, date: str) -> T:
    """A field of a table, with its origin."""
    made: Any = field(default=value, metadata={"origin": Origin(unit, weighs, machine, date)})
    return made  # type: ignore[no-any-return]


@dataclass(slots=True)
class CpuTable:
    """The numbers by name; the first word is that of the pass."""

    bordered_most_conditions: int = _fitted(
        8, "conditions", "a chain on what is around a window, at most", ZEN4, "2026-11-25"
    )
    carried_farthest: int = _fitted(
        4, "steps", "how far back values of a recurrence stay in registers", UNKNOWN, "2026-11-22"
    )
    column_values_fewest: int = _fitted(
        4, "rows", "fewer do not make up for what is stored before them", UNKNOWN, "2026-11-22"
    )
    column_values_fewest_shared: int = _fitted(
        256, "rows", "the same of rows that workers share in many chunks", UNKNOWN, "2026-11-22"
    )
    cut_loops_most_pieces: int = _fitted(
        5, "loops", "what one loop is cut into, at most", UNKNOWN, "2026-11-22"
    )
    cut_loops_fewest_trips: int = _fitted(
        16, "iterations", "shorter loops are not cut", UNKNOWN, "2026-11-22"
    )
    digits_least_window: int = _fitted(
        8, "iterations", "a window is a loop from here on, shorter ones are copies", UNKNOWN, "2026-11-22"
    )
    digits_least_sum: int = _fitted(
        32, "iterations", "lanes of a sum are joined in each window from here on", UNKNOWN, "2026-11-22"
    )
    digits_most_statements: int = _fitted(
        32, "statements", "all copies of a loop together", UNKNOWN, "2026-11-22"
    )
    halves_lanes: int = _fitted(
        64,
        "lanes",
        "rows of 16 bits that are converted together, where a loop does not say",
        AVX512,
        "2026-11-21",
    )
    halves_fewest: int = _fitted(
        8, "iterations", "shorter loops are not worth a step of lanes", AVX512, "2026-11-21"
    )
    held_rows_least_guessed: int = _fitted(
        5, "iterations", "for each change of the key: with fewer, short rows are not held", ZEN4, "2026-11-26"
    )
    held_rows_most_guessed: int = _fitted(
        24,
        "iterations",
        "for each change of the key: below it, rows are held in quarters",
        ZEN4,
        "2026-11-26",
    )
    held_totals_registers: int = _fitted(
        12, "vectors", "totals of a row; with more, gcc leaves their loop rolled", AVX2, "2026-11-23"
    )
    jam_together: int = _fitted(4, "terms", "what a row of totals takes at a time", AVX512, "2026-11-21")
    jam_longest: int = _fitted(
        128,
        "elements",
        "totals of longer rows have been stored when their turn comes again",
        UNKNOWN,
        "2026-11-22",
    )
    jam_longest_extremes: int = _fitted(
        24, "elements", "the same of extremes, which care for NaN", UNKNOWN, "2026-11-22"
    )
    jam_far_row: int = _fitted(
        8 << 10, "bytes", "rows of memory that are read several at a time, at least", UNKNOWN, "2026-11-22"
    )
    jam_far_bytes: int = _fitted(6 << 20, "bytes", "the tensor of such rows, at least", UNKNOWN, "2026-11-22")
    jam_far_together: int = _fitted(
        8, "terms", "such rows at a time: up to twice as fast as one by one", UNKNOWN, "2026-11-22"
    )
    jammed_windows_most_terms: int = _fitted(
        32,
        "terms",
        "a window that is added at once; more are more streams than the hardware follows",
        UNKNOWN,
        "2026-11-22",
    )
    jammed_windows_most_rows: int = _fitted(8, "rows", "the same, by its rows", UNKNOWN, "2026-11-22")
    jammed_windows_most_extremes: int = _fitted(
        8,
        "terms",
        "extremes at once: up to twice as fast where registers do not hold the totals",
        UNKNOWN,
        "2026-11-22",
    )
    jammed_windows_held: int = _fitted(
        12, "vectors", "totals of a row that registers hold", ZEN4, "2026-11-25"
    )
    joint_loops_most_sums: int = _fitted(
        8 << 10, "bytes", "sums that all rows add to, on the stack", UNKNOWN, "2026-11-22"
    )
    kept_rows_fewest: int = _fitted(
        2, "conversions", "what a kept value saves each loop, at least", AVX512, "2026-11-21"
    )
    lanes_least_bytes: int = _fitted(64, "bytes", "an array of lanes, at least", UNKNOWN, "2026-11-22")
    lanes_fewest_rounds: int = _fitted(
        4, "iterations", "a vector loop; shorter ones have fewer lanes", AVX512, "2026-11-21"
    )
    lanes_many_sums: int = _fitted(
        6, "sums", "from here on their lanes are combined at once", UNKNOWN, "2026-11-22"
    )
    neighbours_most_rows: int = _fitted(
        4, "rows", "rows with windows that overlap, at a time", ZEN4, "2026-11-25"
    )
    neighbours_most_far: int = _fitted(
        2,
        "rows",
        "the same where strips shall be long: memory brings rows, or sets of L1 are few",
        ZEN4,
        "2026-11-25",
    )
    next_rows_least_of_l1: float = _fitted(
        1 / 2, "part of L1", "shorter rows are asked for by layers.prefetch", AVX2, "2026-11-23"
    )
    next_rows_most_of_l2: float = _fitted(
        0.8, "part of L2", "longer rows leave no room for the next one", AVX2, "2026-11-23"
    )
    next_rows_least_rows: int = _fitted(
        8, "rows", "shorter chunks would ask for rows of other workers", AVX2, "2026-11-23"
    )
    overlapping_ends_fewest_steps: int = _fitted(
        4, "steps", "from here on a rest of sums is a vector", ZEN4, "2026-11-25"
    )
    overlapping_ends_longest_past: int = _fitted(
        512, "elements", "longer rows that pass the caches keep their first whole line", ZEN4, "2026-11-25"
    )
    overlapping_ends_most_kept: int = _fitted(
        16 << 10, "bytes", "arrays of such rests: on the stack, and in L1", ZEN4, "2026-11-26"
    )
    owners_least_ahead_bytes: int = _fitted(
        256 * 1024, "bytes", "smaller tensors are in L2 whatever is asked for", AVX512, "2026-11-21"
    )
    packs_tasks: int = _fitted(
        64, "tasks", "a pool has about so many: balance against claims", AVX512, "2026-11-21"
    )
    packs_least_instances: int = _fitted(
        8 * 1024, "instances", "a task of a pool, at least", AVX512, "2026-11-21"
    )
    places_strip: int = _fitted(
        64,
        "iterations",
        "places that are computed together: two arrays of so many stay in L1",
        UNKNOWN,
        "2026-11-24",
    )
    prefetch_as_one_bytes: int = _fitted(
        1024, "bytes", "what is asked for at once of short and of long rows", AVX512, "2026-11-21"
    )
    prefetch_piece_bytes: int = _fitted(
        2048, "bytes", "pieces of long rows that are asked for", AVX512, "2026-11-21"
    )
    quotients_fewest: int = _fitted(
        2, "divisions", "of one number, that make its reciprocal pay", ZEN4, "2026-11-25"
    )
    rows_added_up_rows: int = _fitted(4, "rows", "short rows that are added up at a time", ZEN4, "2026-11-25")
    rows_added_up_longest: int = _fitted(
        256, "elements", "in longer rows it does not matter how often lanes are added up", ZEN4, "2026-11-25"
    )
    rows_in_lanes_fewest_steps: int = _fitted(8, "steps", "fewer are no squares", AVX2, "2026-11-23")
    rows_in_step_rows: int = _fitted(4, "rows", "recurrences at a time", UNKNOWN, "2026-11-22")
    rows_in_step_most_columns: int = _fitted(
        6, "columns", "sums of a step at a time: each is a stream from memory", UNKNOWN, "2026-11-22"
    )
    rows_in_step_short_bytes: int = _fitted(
        128, "bytes", "vector loops of a step that take longer hide what they wait for", UNKNOWN, "2026-11-22"
    )
    rows_jammed_most_rows: int = _fitted(
        4, "rows", "rows of a loop that add to the same sums, at a time", AVX512, "2026-11-21"
    )
    rows_jammed_most_bytes: int = _fitted(
        16, "bytes", "one element in all of them: with more, registers are spilled", AVX512, "2026-11-21"
    )
    rows_jammed_share_of_l1: int = _fitted(
        2,
        "one in so many of L1",
        "sums that are larger come from L2 again for each row",
        AVX512,
        "2026-11-21",
    )
    rows_jointly_most_stack: int = _fitted(
        64 << 10, "bytes", "arrays of all rows, on the stack", UNKNOWN, "2026-11-22"
    )
    rows_jointly_longest: tuple[int, int] = _fitted(
        (256, 192), "bytes", "rows that go at once, where a kernel fits L2, and else", UNKNOWN, "2026-11-22"
    )
    rows_jointly_longest_that_wait: tuple[int, int] = _fitted(
        (1024, 192), "bytes", "the same where one reduction waits for another", UNKNOWN, "2026-11-22"
    )
    rows_jointly_longest_of_functions: tuple[tuple[int, int], tuple[int, int]] = _fitted(
        ((256, 256), (128, 128)),
        "bytes",
        "the same with functions of elements, of rows that wait once, and more often",
        ZEN4,
        "2026-11-26",
    )
    rows_jointly_longest_without_turns: tuple[int, int] = _fitted(
        (3072, 1024), "bytes", "the same of rows that cannot take turns", ZEN4, "2026-11-26"
    )
    rows_jointly_longest_of_totals: tuple[int, int] = _fitted(
        (2048, 1024), "bytes", "the same with functions of totals", ZEN4, "2026-11-26"
    )
    rows_jointly_longest_of_halves: tuple[int, int] = _fitted(
        (1024, 1024), "bytes", "the same of rows of 16 bits, counted as f32", ZEN4, "2026-11-26"
    )
    rows_together_most_bytes: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 512}, {4: 1536, 2: 1664}),
        "bytes by rows",
        "rows that take turns, where loops wait for nothing, once, and more often; far rows of 2 kB lose",
        AVX512,
        "2026-11-21",
    )
    rows_together_most_bytes_in_l2: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 1024}, {4: 2048, 2: 1664}),
        "bytes by rows",
        "the same where all is in L2",
        AVX512,
        "2026-11-21",
    )
    rows_together_most_bytes_of_functions: tuple[tuple[dict[int, int], ...], ...] = _fitted(
        (
            ({}, {4: 4096, 2: 4800}, {4: 1664, 2: 4096}),
            ({}, {4: 4096}, {4: 1536, 2: 1664}),
        ),
        "bytes by rows",
        "the same with functions of elements, in L2 and else",
        ZEN4,
        "2026-11-26",
    )
    rows_together_most_bytes_of_halves: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 1024}, {4: 2048, 2: 6144}),
        "bytes by rows",
        "the same of rows of 16 bits where lines are asked for",
        ZEN4,
        "2026-11-26",
    )
    runs_stretch: int = _fitted(1024, "indices", "those that are passed by at a time", AVX512, "2026-11-21")
    runs_held_bytes: int = _fitted(
        256, "bytes", "rows that registers hold from one iteration to the next", ZEN4, "2026-11-26"
    )
    runs_lane_bytes: int = _fitted(256, "bytes", "lanes of a run in registers", AVX512, "2026-11-21")
    runs_ahead: int = _fitted(12, "iterations", "how far ahead rows are asked for", AVX512, "2026-11-21")
    runs_ahead_bytes: int = _fitted(
        8 * 1024, "bytes", "how far ahead rows are asked for, if that is less", AVX512, "2026-11-21"
    )
    runs_row_lines: int = _fitted(
        16, "lines", "what is asked for of a long row, whose end the hardware finds", AVX512, "2026-11-21"
    )
    short_rows_in_lanes_shortest: int = _fitted(
        5, "elements", "shorter rows are statements of their own", ZEN4, "2026-11-25"
    )
    short_rows_in_lanes_longest: int = _fitted(
        8, "elements", "longer rows fill a vector well enough", ZEN4, "2026-11-25"
    )
    short_rows_in_lanes_longest_of_functions: int = _fitted(
        12, "elements", "the same where functions of them take long", ZEN4, "2026-11-25"
    )
    short_rows_in_lanes_few: int = _fitted(
        6, "elements", "to turn around more takes as long as to add them as they lie", ZEN4, "2026-11-25"
    )
    short_rows_in_lanes_fewest_halves: int = _fitted(
        8, "elements", "so many of 16 bits go under masks", ZEN4, "2026-11-26"
    )
    short_rows_in_lanes_shortest_f16: int = _fitted(
        2, "elements", "shorter rows of f16 go one by one", ZEN4, "2026-11-26"
    )
    short_rows_in_lanes_shortest_bf16: int = _fitted(
        4, "elements", "shorter rows of bf16 go one by one", ZEN4, "2026-11-26"
    )
    short_rows_in_lanes_quarter: int = _fitted(
        4, "parts", "the shortest vectors that the rest of a row goes in", ZEN4, "2026-11-25"
    )
    short_rows_in_lanes_most_operations: int = _fitted(
        400, "operations", "all elements together: with more, compilers take long", ZEN4, "2026-11-25"
    )
    skewed_most_row: int = _fitted(
        8 << 10, "bytes", "what is read of a row: more comes from too many places", ZEN4, "2026-11-25"
    )
    soon_ahead: int = _fitted(
        128,
        "bytes",
        "how long before its use a line is asked for: 64 to 256 are alike, 384 were slower",
        AVX512,
        "2026-11-21",
    )
    soon_streams: int = _fitted(
        8, "streams", "rows of a tensor in one loop that the hardware follows", UNKNOWN, "2026-11-22"
    )
    store_order_large: int = _fitted(
        64 << 10, "bytes", "arrays for which the order of stores counts", ZEN4, "2026-11-26"
    )
    store_order_streams: int = _fitted(
        4, "streams", "with so many, some past the caches, order is better in any case", ZEN4, "2026-11-26"
    )
    streaming_together: int = _fitted(
        256, "bytes", "what is stored together past the caches: single lines lose", AVX512, "2026-11-21"
    )
    streaming_least_bytes: int = _fitted(
        1024, "bytes", "shorter loops would mostly be beginnings and rests", AVX512, "2026-11-21"
    )
    strip_tiles_steps: int = _fitted(
        32, "steps", "a strip of tiles that are turned around", AVX2, "2026-11-23"
    )
    sums_in_one_most_terms: int = _fitted(256, "terms", "what a lane adds up, at most", UNKNOWN, "2026-11-24")
    sums_in_one_most_steps: int = _fitted(
        16, "steps", "of lanes, after which to add them up is no matter", UNKNOWN, "2026-11-24"
    )
    sums_in_one_fewest_lanes: int = _fitted(16, "lanes", "a step, at least", UNKNOWN, "2026-11-24")
    terms_first_fewest: int = _fitted(16, "steps", "fewer are no vector", UNKNOWN, "2026-11-27")
    tile_text_most_steps: int = _fitted(
        16, "steps", "what is written out of a tile, at most", AVX2, "2026-11-23"
    )
    transposed_most_bytes: int = _fitted(
        80 * 1024, "bytes", "arrays of a loop together: on the stack, and in L2", AVX512, "2026-11-21"
    )
    transposed_crowded: int = _fitted(
        2048, "bytes", "rows so far apart are in few sets of a cache", AVX512, "2026-11-21"
    )
    transposed_short: int = _fitted(
        7, "elements", "rows that are turned around without squares", ZEN4, "2026-11-25"
    )
    turned_stores_least: int = _fitted(
        4, "iterations", "shorter loops have no lines to keep", UNKNOWN, "2026-11-27"
    )
    turned_stores_most_bytes: int = _fitted(
        16 << 20,
        "bytes",
        "arrays together: those of longer rows are in the last cache",
        UNKNOWN,
        "2026-11-27",
    )
    unswitch_most_conditions: int = _fitted(
        2, "conditions", "each doubles the code of its loop", AVX512, "2026-11-21"
    )
    widened_fewest_rows: int = _fitted(
        16, "iterations", "fewer do not make up for the conversions before them", AVX512, "2026-11-21"
    )
    window_borders_fewest_inside: int = _fitted(
        2, "elements", "smaller inner parts are not worth it", ZEN4, "2026-11-25"
    )
    window_borders_most_beside: int = _fitted(
        8, "places", "what is written out beside an inner part", ZEN4, "2026-11-25"
    )


FITTED = CpuTable()


def origins() -> dict[str, Origin]:
    """Where each number is from."""
    return {f.name: f.metadata["origin"] for f in fields(CpuTable)}
