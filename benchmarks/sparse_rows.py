"""Reductions over bounds from data beside PyTorch, SciPy and NumPy: `python -m benchmarks.sparse_rows`.

CSR times dense, bags of embeddings with offsets, softmax of ragged rows; f32, i32 indices (PyTorch's with i32
and with i64, and the better one counts).  Each library has a process of its own and they take turns.  A turn
is the median of its calls, a time the median of turns.  All have glibc's allocator that uses huge pages, and
arrays that begin at cache lines: else luck with pages makes a quarter of a bag's time.  Results are
overwritten before the calls of a turn and compared with NumPy's in f64 after them.

Processor time stands beside it.  On a busy machine neither is fair with several threads: those that wait for
one that does not run spin.  There `--threads 1` and processor time say more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.pages import write_measured
from benchmarks.quiet import Meter
from benchmarks.surroundings import load_average, surroundings
from benchmarks.turns import TUNABLES, TURN_S, Child, ContenderError, environment, limit_cores, serve
from benchmarks.workload import at_line

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
LIBRARIES = ("polyfuse", "PyTorch", "SciPy")
CASES = (
    "csr cora 64",
    "csr cora 256",
    "csr power 64",
    "csr power 256",
    "csr sorted 64",
    "csr one 64",
    "bags 64",
    "softmax even",
    "softmax power",
)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "sparse_rows.md"
MOST_PADDED = 1 << 25
BAR = 1.1


# --- cases ------------------------------------------------------------------------------------------------


def lengths(kind: str, rng: np.random.Generator) -> Array:
    """Elements of each row: of Cora's size, of a power law, in any order or falling, all in one, or nearly
    even."""
    if kind == "cora":
        return rng.multinomial(10556, rng.dirichlet(np.full(2708, 2.0)))
    if kind == "one":
        return np.where(np.arange(20_000) == 7_000, 400_000, 0)
    if kind in ("power", "sorted"):
        weights = np.arange(1, 20001) ** -0.9
        if kind == "power":
            rng.shuffle(weights)
        return rng.multinomial(400_000, weights / weights.sum())
    return rng.integers(4, 13, 4096 if kind == "bags" else 20_000)


def arguments(case: str) -> dict[str, Array]:
    """Those of the standard library's operator, the same in every process."""
    rng = np.random.default_rng(7)
    what, *more = case.split()
    sizes = lengths("bags" if what == "bags" else more[0], rng)
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    count = int(start[-1])
    if what == "softmax":
        return {"x": rng.standard_normal(count, np.float32), "start": start}
    columns = int(more[-1])
    rows = 30522 if what == "bags" else len(sizes)
    table = rng.standard_normal((rows, columns), np.float32)
    index = rng.integers(0, rows, count).astype(np.int32)
    if what == "bags":
        return {"table": table, "index": index, "start": start}
    value = rng.standard_normal(count, np.float32)
    return {"value": value, "column": index, "start": start, "x": table}


def expected(case: str, given: Mapping[str, Array]) -> Array:
    """What it computes, by NumPy in f64."""
    start = given["start"].astype(np.int64)
    full = np.flatnonzero(np.diff(start))
    if case.startswith("softmax"):
        x, at = given["x"].astype(np.float64), np.repeat(np.arange(len(start) - 1), np.diff(start))
        most = np.full(len(start) - 1, -np.inf)
        most[full] = np.maximum.reduceat(x, start[full])
        e = np.exp(x - most[at])
        return e / np.bincount(at, e, len(start) - 1)[at]
    if case.startswith("bags"):
        terms = given["table"][given["index"]].astype(np.float64)
    else:
        terms = given["value"].astype(np.float64)[:, None] * given["x"][given["column"]]
    y = np.zeros((len(start) - 1, terms.shape[1]))
    y[full] = np.add.reduceat(terms, start[full])
    return y


# --- libraries --------------------------------------------------------------------------------------------


def with_polyfuse(case: str, given: Mapping[str, Array]) -> dict[str, Call]:
    import polyfuse as pf

    name = {"csr": "csr_matmul", "bags": "embedding_bag_offsets", "softmax": "segment_softmax"}
    f = pf.compile(pf.stdlib, op=name[case.split()[0]], target="cpu")
    out = at_line(f(**given))
    bound = f.bind(**given, out=out)

    def call() -> Array:
        bound()
        return out

    return {"": call}


def with_scipy(case: str, given: Mapping[str, Array]) -> dict[str, Call]:
    from scipy import sparse

    start = given["start"]
    if case.startswith("softmax"):
        x, sizes = given["x"], np.diff(start)
        full = start[:-1][sizes > 0]

        def softmax() -> Array:
            e = np.exp(x - np.repeat(np.maximum.reduceat(x, full), sizes[sizes > 0]))
            return np.asarray(e / np.repeat(np.add.reduceat(e, full), sizes[sizes > 0]))

        return {"reduceat": softmax}
    bags = case.startswith("bags")
    dense, index = (given["table"], given["index"]) if bags else (given["x"], given["column"])
    value = np.ones(len(index), np.float32) if bags else given["value"]
    matrix = sparse.csr_matrix((value, index, start), shape=(len(start) - 1, len(dense)))
    return {"csr": lambda: matrix @ dense}


def with_torch(case: str, given: Mapping[str, Array]) -> dict[str, Call]:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    g = {n: torch.from_numpy(a) for n, a in given.items()}
    start = g["start"].long()
    if case.startswith("softmax"):
        return _torch_softmax(torch, g["x"], start)
    return {str(t): _torch_rows(torch, case, g, start, t) for t in (torch.int32, torch.int64)}


def _torch_rows(torch: Any, case: str, g: Mapping[str, Any], start: Any, kind: Any) -> Call:
    """Bags, or CSR, with indices of a type."""
    start = start.to(kind)
    if case.startswith("bags"):
        index, bag = g["index"].to(kind), torch.nn.functional.embedding_bag
        return lambda: bag(index, g["table"], start, mode="sum", include_last_offset=True).numpy()
    size = (len(start) - 1, len(g["x"]))
    matrix = torch.sparse_csr_tensor(start, g["column"].to(kind), g["value"], size=size)
    return lambda: torch.mm(matrix, g["x"]).numpy()


def _torch_softmax(torch: Any, x: Any, start: Any) -> dict[str, Call]:
    """By segments, and of rows that are padded already, where that is no waste of memory."""
    sizes = start.diff()

    def segments() -> Array:
        most = torch.segment_reduce(x, "max", lengths=sizes, unsafe=True)
        e = torch.exp(x - torch.repeat_interleave(most, sizes))
        total = torch.segment_reduce(e, "sum", lengths=sizes, unsafe=True)
        return np.asarray((e / torch.repeat_interleave(total, sizes)).numpy())

    ways: dict[str, Call] = {"segments": segments}
    longest = int(sizes.max())
    if longest * len(sizes) <= MOST_PADDED:
        held = torch.arange(longest)[None, :] < sizes[:, None]
        padded = torch.full((len(sizes), longest), -torch.inf)
        padded[held] = x
        ways["padded"] = lambda: (torch.softmax(padded, 1), held)
    return ways


# --- a library's process ----------------------------------------------------------------------------------

_MAKERS = {"polyfuse": with_polyfuse, "PyTorch": with_torch, "SciPy": with_scipy}


def _flat(found: Any) -> Array:
    """A result; of padded rows the elements that there are."""
    if isinstance(found, tuple):
        return np.asarray(found[0][found[1]].numpy())
    return np.asarray(found)


class _Answers:
    def __init__(self, library: str) -> None:
        self.make = _MAKERS[library]
        self.calls: dict[str, Call] = {}
        self.want = np.zeros(0)

    def to(self, command: dict[str, Any]) -> Any:
        if command["do"] == "prepare":
            given = {n: at_line(a) for n, a in arguments(command["case"]).items()}
            self.want = expected(command["case"], given)
            self.calls = self.make(command["case"], given)
            return list(self.calls)
        return self.turn(self.calls[command["way"]])

    def turn(self, call: Call) -> dict[str, float]:
        found = _flat(call())
        if found.flags.writeable:
            found[...] = np.nan  # what a call leaves out is seen
        walls, cpus, begin = list[float](), list[float](), time.perf_counter()
        while len(walls) < 5 or time.perf_counter() - begin < TURN_S:
            wall, cpu = time.perf_counter(), time.process_time()
            result = call()
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        error = np.abs(_flat(result).reshape(self.want.shape) - self.want).max()
        if not error <= 1e-4 * np.abs(self.want).max():
            raise ContenderError(f"a wrong result: off by {error}")
        return {"wall": median(walls), "cpu": median(cpus)}


# --- the table --------------------------------------------------------------------------------------------


def measured(
    case: str, children: Mapping[str, Child], turns: int
) -> tuple[dict[str, tuple[float, float]], float]:
    """Wall and processor seconds of each library's best way, and how busy others kept the machine."""
    ways = [(n, w) for n, c in children.items() for w in c.ask(do="prepare", case=case)]
    seen: dict[tuple[str, str], list[dict[str, float]]] = {w: [] for w in ways}
    meter = Meter([c.pid for c in children.values()])
    for turn in range(turns):
        for name, way in ways if turn % 2 == 0 else ways[::-1]:
            seen[name, way].append(children[name].ask(do="turn", way=way))
    best: dict[str, tuple[float, float]] = {}
    for (name, _), times in seen.items():
        found = median(t["wall"] for t in times), median(t["cpu"] for t in times)
        best[name] = min(best.get(name, found), found)
    return best, meter.others()


def row(case: str, best: Mapping[str, tuple[float, float]], busy: float) -> str:
    """A line of the table."""
    cells = [f"{1e3 * best[n][0]:.3f} ({1e3 * best[n][1]:.3f})" if n in best else "-" for n in LIBRARIES]
    peers = [best[n] for n in LIBRARIES[1:] if n in best]
    wall, cpu = (best["polyfuse"][k] / min(p[k] for p in peers) if peers else np.nan for k in (0, 1))
    return f"| {case} | {' | '.join(cells)} | {wall:.2f} ({cpu:.2f}) | {100 * busy:.0f} % |"


def table(threads: int, turns: int, only: Sequence[str]) -> tuple[str, bool]:
    """The table of so many threads, and whether a case is above the bar."""
    lines = [
        f"{threads} thread{'s' * (threads > 1)}, {turns} turns; f32, ms of a call, wall (processor):",
        "",
    ]
    lines += [f"| case | {' | '.join(LIBRARIES)} | to the best | others use |", f"|{'---|' * 6}"]
    children: dict[str, Child] = {}
    above = False
    try:
        for name in LIBRARIES:
            command = ["benchmarks.sparse_rows", "--library", name, str(threads)]
            try:
                children[name] = Child(name, command, environment(threads, GLIBC_TUNABLES=TUNABLES))
            except ContenderError as error:
                print(f"without {error}", file=sys.stderr)
        for case in CASES:
            if not only or any(o in case for o in only):
                best, busy = measured(case, children, turns)
                others = [best[n][0] for n in LIBRARIES[1:] if n in best]
                above |= bool(others) and best["polyfuse"][0] > BAR * min(others)
                lines.append(row(case, best, busy))
    finally:
        for child in children.values():
            child.close()
    return "\n".join(lines), above


def main(given: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if a case is above the bar. With --write also into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of cases")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    chosen = parser.parse_args(given)
    where, load = surroundings(), load_average()
    about = f"{where['cpu']}, {where['date'][:10]}, load average {load:.1f}."
    made = [table(threads, chosen.turns, chosen.only) for threads in chosen.threads]
    found = "\n\n".join([about, *(text for text, _ in made)])
    print(found)
    if chosen.write:
        write_measured(PAGE, found)
    return int(any(above for _, above in made))


def _child(library: str, threads: int, inbox: int, outbox: int) -> None:
    def begin() -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
        limit_cores(threads)
        __import__({"polyfuse": "polyfuse", "PyTorch": "torch", "SciPy": "scipy"}[library])
        return {}, _Answers(library).to

    serve(inbox, outbox, begin)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--library"]:
        _child(sys.argv[2], *map(int, sys.argv[3:6]))
    else:
        sys.exit(main())
