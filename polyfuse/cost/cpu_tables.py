"""Numbers that were fitted to machines: thresholds of layers and code generation for a CPU.

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
# Days on which numbers were set, with the machine of their runs.
_DAY_21, _DAY_22 = (AVX512, "2026-11-21"), (UNKNOWN, "2026-11-22")
_DAY_23, _DAY_24 = (AVX2, "2026-11-23"), (UNKNOWN, "2026-11-24")
_DAY_25, _DAY_26 = (ZEN4, "2026-11-25"), (ZEN4, "2026-11-26")
_DAY_27 = (UNKNOWN, "2026-11-27")
_DAY_28 = (UNKNOWN, "2026-11-28")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a number weighs, in which unit, and where and when it was set."""

    unit: str
    weighs: str
    machine: str
    date: str


def _fitted(value: T, unit: str, weighs: str, day: tuple[str, str]) -> T:
    """A field of a table, with its origin."""
    made: Any = field(default=value, metadata={"origin": Origin(unit, weighs, *day)})
    return made  # type: ignore[no-any-return]


@dataclass(slots=True)
class CpuTable:
    """The numbers by name; the first word is that of the pass."""

    complete_windows_most_conditions: int = _fitted(
        8, "conditions", "a chain on what is around a window, at most", _DAY_25
    )
    loop_carried_farthest: int = _fitted(
        4, "steps", "how far back values of a recurrence stay in registers", _DAY_22
    )
    hoist_columns_fewest: int = _fitted(
        4, "rows", "fewer do not make up for what is stored before them", _DAY_22
    )
    hoist_columns_fewest_shared: int = _fitted(
        256, "rows", "the same of rows that workers share in many chunks", _DAY_22
    )
    clamped_indices_most_pieces: int = _fitted(5, "loops", "what one loop is cut into, at most", _DAY_22)
    clamped_indices_fewest_trips: int = _fitted(16, "iterations", "shorter loops are not cut", _DAY_22)
    div_mod_least_window: int = _fitted(
        8, "iterations", "a window is a loop from here on, shorter ones are copies", _DAY_22
    )
    div_mod_least_sum: int = _fitted(
        32, "iterations", "lanes of a sum are joined in each window from here on", _DAY_22
    )
    div_mod_most_statements: int = _fitted(32, "statements", "all copies of a loop together", _DAY_22)
    half_precision_lanes: int = _fitted(
        64, "lanes", "rows of 16 bits that are converted together, where a loop does not say", _DAY_21
    )
    half_precision_fewest: int = _fitted(
        8, "iterations", "shorter loops are not worth a step of lanes", _DAY_21
    )
    register_rows_least_guessed: int = _fitted(
        5, "iterations", "for each change of the key: with fewer, short rows are not held", _DAY_26
    )
    register_rows_most_guessed: int = _fitted(
        24, "iterations", "for each change of the key: below it, rows are held in quarters", _DAY_26
    )
    strip_accumulators_registers: int = _fitted(
        12, "vectors", "totals of a row; with more, gcc leaves their loop rolled", _DAY_23
    )
    jam_reductions_together: int = _fitted(4, "terms", "what a row of totals takes at a time", _DAY_21)
    jam_reductions_longest: int = _fitted(
        128, "elements", "totals of longer rows have been stored when their turn comes again", _DAY_22
    )
    jam_reductions_longest_extremes: int = _fitted(
        24, "elements", "the same of extremes, which care for NaN", _DAY_22
    )
    jam_reductions_far_row: int = _fitted(
        8 << 10, "bytes", "rows of memory that are read several at a time, at least", _DAY_22
    )
    jam_reductions_far_bytes: int = _fitted(6 << 20, "bytes", "the tensor of such rows, at least", _DAY_22)
    jam_reductions_far_together: int = _fitted(
        8, "terms", "such rows at a time: up to twice as fast as one by one", _DAY_22
    )
    jam_stencils_most_terms: int = _fitted(
        32,
        "terms",
        "a window that is added at once; more are more streams than the hardware follows",
        _DAY_22,
    )
    jam_stencils_most_rows: int = _fitted(8, "rows", "the same, by its rows", _DAY_22)
    jam_stencils_most_extremes: int = _fitted(
        8, "terms", "extremes at once: up to twice as fast where registers do not hold the totals", _DAY_22
    )
    jam_stencils_held: int = _fitted(12, "vectors", "totals of a row that registers hold", _DAY_25)
    batched_loops_most_sums: int = _fitted(
        8 << 10, "bytes", "sums that all rows add to, on the stack", _DAY_22
    )
    common_subexpressions_fewest: int = _fitted(
        2, "conversions", "what a kept value saves each loop, at least", _DAY_21
    )
    vector_reductions_least_bytes: int = _fitted(64, "bytes", "an array of lanes, at least", _DAY_22)
    vector_reductions_fewest_rounds: int = _fitted(
        4, "iterations", "a vector loop; shorter ones have fewer lanes", _DAY_21
    )
    open_rows_longest: int = _fitted(
        4096, "elements", "rows of open length with code for what is left of vectors", _DAY_28
    )
    open_rows_borders: tuple[int, ...] = _fitted(
        (16, 64, 256, 512, 1280), "elements", "rows of open length that have code of their own", _DAY_28
    )
    open_rows_short: int = _fitted(
        256, "elements", "rows of open length for which one vector of lanes is enough", _DAY_28
    )
    vector_reductions_many_sums: int = _fitted(
        6, "sums", "from here on their lanes are combined at once", _DAY_22
    )
    overlapping_windows_most_rows: int = _fitted(
        4, "rows", "rows with windows that overlap, at a time", _DAY_25
    )
    overlapping_windows_most_far: int = _fitted(
        2, "rows", "the same where strips shall be long: memory brings rows, or sets of L1 are few", _DAY_25
    )
    prefetch_next_row_least_of_l1: float = _fitted(
        1 / 2, "part of L1", "shorter rows are asked for by layers.prefetch", _DAY_23
    )
    prefetch_next_row_most_of_l2: float = _fitted(
        0.8, "part of L2", "longer rows leave no room for the next one", _DAY_23
    )
    prefetch_next_row_least_rows: int = _fitted(
        8, "rows", "shorter chunks would ask for rows of other workers", _DAY_23
    )
    overlapping_tails_fewest_steps: int = _fitted(
        4, "steps", "from here on a rest of sums is a vector", _DAY_25
    )
    overlapping_tails_longest_past: int = _fitted(
        512, "elements", "longer rows with non-temporal stores keep their first whole line", _DAY_25
    )
    overlapping_tails_most_kept: int = _fitted(
        16 << 10, "bytes", "arrays of such rests: on the stack, and in L1", _DAY_26
    )
    owner_computes_least_ahead_bytes: int = _fitted(
        256 * 1024, "bytes", "smaller tensors are in L2 whatever is asked for", _DAY_21
    )
    packs_tasks: int = _fitted(64, "tasks", "a pool has about so many: balance against claims", _DAY_21)
    packs_least_instances: int = _fitted(8 * 1024, "instances", "a task of a pool, at least", _DAY_21)
    packs_fewest_groups: int = _fitted(
        8, "groups", "of rows computed together: with fewer, a kernel of open size is cut anywhere", _DAY_28
    )
    distribute_scatters_strip: int = _fitted(
        64, "iterations", "places that are computed together: two arrays of so many stay in L1", _DAY_24
    )
    prefetch_as_one_bytes: int = _fitted(
        1024, "bytes", "what is asked for at once of short and of long rows", _DAY_21
    )
    prefetch_piece_bytes: int = _fitted(2048, "bytes", "pieces of long rows that are asked for", _DAY_21)
    quotients_fewest: int = _fitted(2, "divisions", "of one number, that make its reciprocal pay", _DAY_25)
    short_sums_rows: int = _fitted(4, "rows", "short rows that are added up at a time", _DAY_25)
    short_sums_longest: int = _fitted(
        256, "elements", "in longer rows it does not matter how often lanes are added up", _DAY_25
    )
    vectorize_recurrences_fewest_steps: int = _fitted(8, "steps", "fewer are no squares", _DAY_23)
    jam_recurrences_rows: int = _fitted(4, "rows", "recurrences at a time", _DAY_22)
    jam_recurrences_most_columns: int = _fitted(
        6, "columns", "sums of a step at a time: each is a stream from memory", _DAY_22
    )
    jam_recurrences_short_bytes: int = _fitted(
        128, "bytes", "vector loops of a step that take longer hide what they wait for", _DAY_22
    )
    shared_sums_most_rows: int = _fitted(
        4, "rows", "rows of a loop that add to the same sums, at a time", _DAY_21
    )
    shared_sums_most_bytes: int = _fitted(
        16, "bytes", "one element in all of them: with more, registers are spilled", _DAY_21
    )
    shared_sums_share_of_l1: int = _fitted(
        2, "one in so many of L1", "sums that are larger come from L2 again for each row", _DAY_21
    )
    batched_rows_most_stack: int = _fitted(64 << 10, "bytes", "arrays of all rows, on the stack", _DAY_22)
    batched_rows_longest: tuple[int, int] = _fitted(
        (256, 192), "bytes", "rows that go at once, where a kernel fits L2, and else", _DAY_22
    )
    batched_rows_longest_that_wait: tuple[int, int] = _fitted(
        (1024, 192), "bytes", "the same where one reduction waits for another", _DAY_22
    )
    batched_rows_longest_of_functions: tuple[tuple[int, int], tuple[int, int]] = _fitted(
        ((256, 256), (128, 128)),
        "bytes",
        "the same with functions of elements, of rows that wait once, and more often",
        _DAY_26,
    )
    batched_rows_longest_without_turns: tuple[int, int] = _fitted(
        (3072, 1024), "bytes", "the same of rows that cannot take turns", _DAY_26
    )
    batched_rows_longest_of_totals: tuple[int, int] = _fitted(
        (2048, 1024), "bytes", "the same with functions of totals", _DAY_26
    )
    batched_rows_longest_of_halves: tuple[int, int] = _fitted(
        (1024, 1024), "bytes", "the same of rows of 16 bits, counted as f32", _DAY_26
    )
    interleaved_rows_most_bytes: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 512}, {4: 1536, 2: 1664}),
        "bytes by rows",
        "rows that take turns, where loops wait for nothing, once, and more often; far rows of 2 kB lose",
        _DAY_21,
    )
    interleaved_rows_most_bytes_in_l2: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 1024}, {4: 2048, 2: 1664}), "bytes by rows", "the same where all is in L2", _DAY_21
    )
    interleaved_rows_most_bytes_of_functions: tuple[tuple[dict[int, int], ...], ...] = _fitted(
        (
            ({}, {4: 4096, 2: 4800}, {4: 1664, 2: 4096}),
            ({}, {4: 4096}, {4: 1536, 2: 1664}),
        ),
        "bytes by rows",
        "the same with functions of elements, in L2 and else",
        _DAY_26,
    )
    interleaved_rows_most_bytes_of_halves: tuple[dict[int, int], ...] = _fitted(
        ({}, {4: 1024}, {4: 2048, 2: 6144}),
        "bytes by rows",
        "the same of rows of 16 bits where lines are asked for",
        _DAY_26,
    )
    scatter_runs_stretch: int = _fitted(1024, "indices", "those that are passed by at a time", _DAY_21)
    scatter_runs_held_bytes: int = _fitted(
        256, "bytes", "rows that registers hold from one iteration to the next", _DAY_26
    )
    scatter_runs_lane_bytes: int = _fitted(256, "bytes", "lanes of a run in registers", _DAY_21)
    scatter_runs_ahead: int = _fitted(12, "iterations", "how far ahead rows are asked for", _DAY_21)
    scatter_runs_ahead_bytes: int = _fitted(
        8 * 1024, "bytes", "how far ahead rows are asked for, if that is less", _DAY_21
    )
    scatter_runs_row_lines: int = _fitted(
        16, "lines", "what is asked for of a long row, whose end the hardware finds", _DAY_21
    )
    vectorize_short_rows_shortest: int = _fitted(
        5, "elements", "shorter rows are statements of their own", _DAY_25
    )
    vectorize_short_rows_longest: int = _fitted(
        8, "elements", "longer rows fill a vector well enough", _DAY_25
    )
    vectorize_short_rows_longest_of_functions: int = _fitted(
        12, "elements", "the same where functions of them take long", _DAY_25
    )
    vectorize_short_rows_few: int = _fitted(
        6, "elements", "to transpose more takes as long as to add them as they lie", _DAY_25
    )
    vectorize_short_rows_fewest_halves: int = _fitted(
        8, "elements", "so many of 16 bits go under masks", _DAY_26
    )
    vectorize_short_rows_shortest_f16: int = _fitted(
        2, "elements", "shorter rows of f16 go one by one", _DAY_26
    )
    vectorize_short_rows_shortest_bf16: int = _fitted(
        4, "elements", "shorter rows of bf16 go one by one", _DAY_26
    )
    vectorize_short_rows_quarter: int = _fitted(
        4, "parts", "the shortest vectors that the rest of a row goes in", _DAY_25
    )
    vectorize_short_rows_most_operations: int = _fitted(
        400, "operations", "all elements together: with more, compilers take long", _DAY_25
    )
    software_pipelining_most_row: int = _fitted(
        8 << 10, "bytes", "what is read of a row: more comes from too many places", _DAY_25
    )
    prefetch_lines_ahead: int = _fitted(
        128,
        "bytes",
        "how long before its use a line is asked for: 64 to 256 are alike, 384 were slower",
        _DAY_21,
    )
    prefetch_rows_of_data_ahead: int = _fitted(
        16, "iterations", "how long before its use a row that data names is asked for", _DAY_27
    )
    prefetch_rows_of_data_longest: int = _fitted(
        1024, "bytes", "longer rows are streams that the hardware follows", _DAY_27
    )
    prefetch_lines_streams: int = _fitted(
        8, "streams", "rows of a tensor in one loop that the hardware follows", _DAY_22
    )
    load_balance_fewest: int = _fitted(
        1 << 17, "instances", "of rows shared out by what they have: two searches take 0.03 us", _DAY_28
    )
    load_balance_fewest_of_cut_rows: int = _fitted(
        1 << 20, "instances", "the same where rows are cut: 64 more searches take 1 us", _DAY_28
    )
    load_balance_longest_part: int = _fitted(
        16 << 10, "bytes", "there is room for two parts in each share", _DAY_28
    )
    store_order_large: int = _fitted(
        64 << 10, "bytes", "arrays for which the order of stores counts", _DAY_26
    )
    store_order_streams: int = _fitted(
        4, "streams", "with so many, some with non-temporal stores, order is better in any case", _DAY_26
    )
    non_temporal_together: int = _fitted(
        256, "bytes", "non-temporal stores in a row: single lines lose", _DAY_21
    )
    non_temporal_least_bytes: int = _fitted(
        1024, "bytes", "shorter loops would mostly be beginnings and rests", _DAY_21
    )
    window_chains_other_registers: int = _fitted(
        6, "registers", "of vectors, for something else than windows that go on", _DAY_28
    )
    strip_tiles_steps: int = _fitted(32, "steps", "a strip of tiles that are transposed", _DAY_23)
    collapse_reductions_most_terms: int = _fitted(256, "terms", "what a lane adds up, at most", _DAY_24)
    collapse_reductions_most_steps: int = _fitted(
        16, "steps", "of lanes, after which to add them up is no matter", _DAY_24
    )
    collapse_reductions_fewest_lanes: int = _fitted(16, "lanes", "a step, at least", _DAY_24)
    distribute_recurrences_fewest: int = _fitted(16, "steps", "fewer are no vector", _DAY_27)
    register_tiling_most_steps: int = _fitted(16, "steps", "what is written out of a tile, at most", _DAY_23)
    transpose_loads_most_bytes: int = _fitted(
        80 * 1024, "bytes", "arrays of a loop together: on the stack, and in L2", _DAY_21
    )
    transpose_loads_crowded: int = _fitted(
        2048, "bytes", "rows so far apart are in few sets of a cache", _DAY_21
    )
    transpose_loads_short: int = _fitted(7, "elements", "rows that are transposed without squares", _DAY_25)
    transpose_stores_least: int = _fitted(4, "iterations", "shorter loops have no lines to keep", _DAY_27)
    transpose_stores_most_bytes: int = _fitted(
        16 << 20, "bytes", "arrays together: those of longer rows are in the last cache", _DAY_27
    )
    hidden_steps_furthest: int = _fitted(
        4096, "elements", "lanes further apart are strided ones for gcc by itself", _DAY_27
    )
    written_out_shortest: int = _fitted(
        2, "iterations", "short loops that compilers shall write out, at least", _DAY_27
    )
    written_out_longest: int = _fitted(4, "iterations", "longer ones fill vectors well enough", _DAY_27)
    short_reductions_shortest: int = _fitted(
        2, "elements", "rows whose folds are apart from what they fold, at least", _DAY_27
    )
    short_reductions_longest: int = _fitted(8, "elements", "longer rows fill vectors of their own", _DAY_27)
    short_reductions_rows: int = _fitted(32, "rows", "a strip of such rows", _DAY_27)
    short_reductions_fewest: int = _fitted(
        128, "rows", "a loop of them: lanes are set up before and folded after it", _DAY_27
    )
    unswitch_most_conditions: int = _fitted(2, "conditions", "each doubles the code of its loop", _DAY_21)
    hoist_conversions_fewest_rows: int = _fitted(
        16, "iterations", "fewer do not make up for the conversions before them", _DAY_21
    )
    split_stencils_fewest_inside: int = _fitted(
        2, "elements", "smaller inner parts are not worth it", _DAY_25
    )
    split_stencils_most_beside: int = _fitted(
        8, "places", "what is written out beside an inner part", _DAY_25
    )
    # of layers
    cpu_storage_largest_local_bytes: int = _fitted(
        256 * 1024, "bytes", "an array of a worker: a larger one would not stay in L2, and is global", _DAY_21
    )
    prefetch_least_row_bytes: int = _fitted(
        1024, "bytes", "shorter rows arrive without it: the hardware runs ahead by about so much", _DAY_21
    )
    prefetch_share_of_l2: float = _fitted(
        1 / 4, "part of L2", "what a row and the next one may take each", _DAY_21
    )
    prefetch_share_of_l1: float = _fitted(
        1 / 2,
        "part of L1",
        "rows whose last phase computes little: longer ones come as fast by themselves",
        _DAY_22,
    )
    prefetch_share_in_l3: float = _fitted(
        0.8, "part of L3", "rows that come from there in order; results need the rest", _DAY_22
    )
    prefetch_shares_of_l3: tuple[float, float] = _fitted(
        (1 / 2, 2),
        "parts of L3",
        "all rows, at least and at most, where they overlap and lines are asked for",
        _DAY_22,
    )
    scatter_copies_fewest_updates: int = _fitted(
        4, "updates", "for each element of the copies, at least", _DAY_22
    )
    scatter_copies_turns: int = _fitted(4, "copies", "of a part, which its updates take in turn", _DAY_22)
    scatter_copies_most_bytes: int = _fitted(64 * 1024, "bytes", "such a copy, at most", _DAY_22)
    scatters_fewest_together: int = _fitted(
        16, "elements", "shorter rows have copies where the result is small, rather than owners", _DAY_21
    )
    scatters_fewest_owned: int = _fitted(
        2, "elements", "fewer do not pay for the indices that owners look through", _DAY_26
    )
    scatters_long_row: int = _fitted(
        1024,
        "bytes",
        "rows with several parts for each worker; shorter ones share what the hardware fetches",
        _DAY_22,
    )
    scatters_parts_per_thread: int = _fitted(
        2, "parts", "so that the slowest worker has not twice the work", _DAY_21
    )
    scatters_most_parts: int = _fitted(16, "parts", "every part looks through all indices", _DAY_21)
    sinking_sunk_strip: int = _fitted(
        256, "iterations", "a strip: totals of its elements stay in L1", _DAY_25
    )
    prefetch_lines_share_of_l3: float = _fitted(
        1 / 2, "part of L3", "other data and other programs have the rest", _DAY_21
    )
    non_temporal_results_least_bytes: int = _fitted(
        1 << 20, "bytes", "smaller results are worth no second thought", _DAY_21
    )
    non_temporal_results_beyond: float = _fitted(
        1.0, "times L3", "results with non-temporal stores; others use the cache as well", _DAY_21
    )
    mapping_smallest_parallel: int = _fitted(
        32 * 1024, "work", "less is faster on one core than spread over several", _DAY_21
    )
    mapping_smallest_rows: int = _fitted(
        8 * 1024, "work", "from here on rows in which loops follow one another take turns", _DAY_26
    )
    mapping_fewest_factored: int = _fitted(
        16,
        "iterations",
        "shorter reductions are not worth partial results, unless each is worth a worker",
        _DAY_21,
    )
    mapping_strip: int = _fitted(
        2048,
        "iterations",
        "a strip-mined loop: long enough for vectors, short enough for balance and L1",
        _DAY_21,
    )
    mapping_small_matrix: int = _fitted(
        64, "elements", "what an iteration of a worker computes whole", _DAY_24
    )
    open_parts_rows: int = _fitted(
        64, "rows", "a part of a sum over an open number of rows, at least", _DAY_28
    )
    open_parts_elements: int = _fitted(
        16 << 10, "elements", "the same where rows are short, at least", _DAY_28
    )
    mapping_longest_sunk: int = _fitted(
        2048,
        "iterations",
        "longer loops inside of a row that runs across a reduction are cut into strips",
        _DAY_21,
    )
    mapping_chunks_per_thread: int = _fitted(
        4, "chunks", "parts of a long reduction for each thread", _DAY_21
    )
    mapping_fewest_parts: int = _fitted(
        32, "parts", "a sum in fewer is as inexact as many numbers one by one", _DAY_21
    )
    mapping_fewest_rows: int = _fitted(
        32,
        "rows",
        "what a part sums, whose partial result is a whole row; 8, 16, 32 and 64 were tried",
        _DAY_21,
    )
    fission_totals_most_totals: int = _fitted(
        2048, "elements", "totals that lie in L1 beside what they are computed from", _DAY_23
    )
    row_pairs_rows_of_a_worker: int = _fitted(
        16, "rows", "for each worker at least, so that all have about as much to do", _DAY_23
    )
    row_pairs_fewest_others: int = _fitted(64, "rows", "others for each row, at least", _DAY_23)
    outer_order_longest: int = _fitted(1024, "bytes", "a piece, at most", _DAY_24)


FITTED = CpuTable()


def origins() -> dict[str, Origin]:
    """Where each number is from."""
    return {f.name: f.metadata["origin"] for f in fields(CpuTable)}
