"""Collecting samples: programs are made, timed, and put together into one file.

    make_programs(FOLDER)     compilers use cores: at low priority, in the background
    time_programs(FOLDER)     wants a quiet machine: in short bursts
    gather(FOLDER, FILE)

Each goes on where the last one stopped: what is made is not made again, nor timed again what is timed.
Programs come from the caller; those of this repository are in `benchmarks.learn`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from polyfuse.learn.making import MADE, Maker, Program, Wanted, file_name, made_files
from polyfuse.learn.samples import Samples
from polyfuse.learn.timing import TIMED, Timer, gathered, has_noise
from polyfuse.options import Options
from polyfuse.runtime.toolchain.compiler import cpu_identity, find_compiler

REFUSED = ".refused"
# Less time than this begins no program.
LEAST_S = 1.0
Tell = Callable[[str], None]
Source = Callable[[], Sequence[Program]]


def make_programs(
    folder: Path,
    source: Source,
    names: Sequence[str],
    wanted: Wanted,
    seconds: float,
    workers: int,
    tell: Tell,
) -> int:
    """Make the programs of these names, as far as the time goes; how many samples were made.

    `source` gives all programs in each worker's process, and must be a function of a module.
    """
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    until = time.time() + seconds
    todo = [n for n in names if not _is_done(folder, n)]
    shares = [todo[k::workers] for k in range(workers)]
    if workers == 1:
        return _made(folder, source, todo, wanted, until, tell)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(_made, folder, source, s, wanted, until, print) for s in shares]
        return sum(r.result() for r in running)


def _is_done(folder: Path, name: str) -> bool:
    base = folder / file_name(name)
    return any(base.with_name(base.name + end).exists() for end in (MADE, REFUSED))


def _made(
    folder: Path, source: Source, names: Sequence[str], wanted: Wanted, until: float, tell: Tell
) -> int:
    """In one process: one program after the other."""
    with _environment(POLYFUSE_CACHE_DIR=str(folder / "cache"), POLYFUSE_JOBS="1"):
        return _made_here(Maker(folder, wanted), source, names, until, tell)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Variables of the environment, meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _made_here(maker: Maker, source: Source, names: Sequence[str], until: float, tell: Tell) -> int:
    known = {p.name: p for p in source()}
    count = 0
    for k, name in enumerate(names):
        if time.time() > until:
            break
        start = time.monotonic()
        try:
            made = maker.make(known[name])
            count += made
            tell(f"{k + 1} of {len(names)}: {name}, {made} samples in {time.monotonic() - start:.1f} s")
        except Exception as error:  # one program that fails does not end the others
            base = maker.folder / file_name(name)
            text = f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            base.with_name(base.name + REFUSED).write_text(text, encoding="utf-8")
            tell(f"{k + 1} of {len(names)}: {text}")
    return count


def time_programs(folder: Path, seconds: float, core: int | None, tell: Tell, noisy: bool = False) -> int:
    """Time what is made and not timed yet, as far as the time goes; how many plans were timed.

    `noisy`: instead, programs of which some plan was left out for noise, once more.
    """
    until = time.monotonic() + seconds
    timer, count = Timer(folder, core), 0
    try:
        for made in made_files(folder):
            left = until - time.monotonic()
            if left < LEAST_S:
                break
            if made.with_suffix(TIMED).exists() != noisy or (noisy and not has_noise(made)):
                continue
            start = time.monotonic()
            found = timer.time(made, left)  # what was found before and is not now, stays
            if found is not None:
                count += len(found.seconds)
                spent = time.monotonic() - start
                tell(f"{made.stem}: {len(found.seconds)} timed, {len(found.notes)} not, in {spent:.1f} s")
    finally:
        timer.close()
    return count


def gather(folder: Path, file: Path, wanted: Wanted) -> Samples:
    """Put all that is timed in a folder into a file."""
    core = wanted.knobs(Options(threads=wanted.threads)).on
    about = {
        "machine": cpu_identity(),
        "core": asdict(core),
        "threads": wanted.threads,
        "date": datetime.now(UTC).date().isoformat(),
        "compiler": find_compiler().version,
    }
    found = gathered(folder, made_files(folder), about)
    found.save(file)
    return found


def refused(folder: Path) -> Iterable[str]:
    """What could not be made, and why."""
    for file in sorted(folder.glob(f"*{REFUSED}")):
        yield file.read_text(encoding="utf-8")
