"""Is the generated code what it was? `python -m benchmarks.golden [--write] [--only TEXT] [--show FOLDER]`.

Each program of `benchmarks.golden_programs` is compiled to the text of its source for two kinds of core and
for CUDA; no compiler runs.  `tests/golden/codegen.txt` holds a hash of each text with local names numbered
(`benchmarks.normal_text`): a refactoring changes none.  A program that is refused has its error's code there.

The machine at hand plays no part: cores are stated (`benchmarks.core_kinds`), the GPU is that of the tables,
and no compilation knows of another one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from benchmarks.core_kinds import THREADS, decided_for
from benchmarks.golden_programs import programs
from benchmarks.normal_text import normal
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import knobs_for
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "golden" / "codegen.txt"
CUDA = "cuda"
TARGETS = ("zen3", "zen5", CUDA)
DIGITS = 16
REPORTED = 32
SHARE, FIRST = 6, 2
Texts = Mapping[str, str]


def text_of(name: str, target: str) -> str:
    """The source of a program for a core or for CUDA, names numbered; or the code of its error."""
    graph, sizes = programs()[name]()
    options = Options(threads=THREADS, progress=False, verify=False, dump=None)
    # "emulate" gives CUDA's text for the GPU of the tables, and asks no driver.
    made_for = "emulate" if target == CUDA else "cpu"
    layers = {"stitching": Stitching(), "packing": Packing()}
    with _alone(), nullcontext() if target == CUDA else decided_for(target):
        knobs = knobs_for(made_for, options)
        wanted = Compilation(graph, sizes, LoopFusion(), options, target=made_for, knobs=knobs, **layers)
        try:
            return normal(emitted(Watch(options), wanted)[1].source)
        except PolyfuseError as error:
            return error.code


@contextmanager
def _alone() -> Iterator[None]:
    """Without settings of the user, and with a cache in which nothing was learnt."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for name in [n for n in os.environ if n.startswith("POLYFUSE_")]:
            del os.environ[name]
        os.environ |= {"POLYFUSE_CACHE_DIR": folder, "POLYFUSE_JOBS": "1"}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before


def digest(text: str) -> str:
    """What the file holds of a text: a hash, or the code of an error as it is."""
    if re.fullmatch(r"PF\d{3}", text):
        return text
    return sha256(text.encode()).hexdigest()[:DIGITS]


def cases(only: Sequence[str] = ()) -> list[str]:
    """`program|target` of all whose names have one of these texts in them."""
    every = (f"{name}|{target}" for name in programs() for target in TARGETS)
    return [c for c in every if not only or any(text in c for text in only)]


def some() -> list[str]:
    """Programs that stand for all in a usual run of the tests: every sixth of each group."""
    groups: dict[str, list[str]] = {}
    for name in programs():
        groups.setdefault(name.partition("/")[0], []).append(name)
    return [name for group in groups.values() for name in group[FIRST::SHARE]]


def recorded(file: Path = FILE) -> dict[str, str]:
    """What the file holds, by case."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line)


def texts_of(chosen: Iterable[str]) -> dict[str, str]:
    """The texts of some cases."""
    return {case: text_of(*case.rsplit("|", 1)) for case in chosen}


def _digests(chosen: Sequence[str]) -> dict[str, str]:
    return {case: digest(text) for case, text in texts_of(chosen).items()}


def all_digests(chosen: Sequence[str], jobs: int) -> dict[str, str]:
    """Hashes of many cases, by several processes; says on stderr how far it is."""
    groups: dict[str, list[str]] = {}
    for case in chosen:
        groups.setdefault(case.rsplit("|", 1)[0], []).append(case)
    found: dict[str, str] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(_digests, group) for group in groups.values()]
        try:
            for k, done in enumerate(as_completed(running), 1):
                found |= done.result()
                if k % REPORTED == 0 or k == len(running):
                    print(f"{k} of {len(running)} programs", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # one failed, or an interrupt: do not begin others
            raise
    return found


def differences(now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """What became of cases, in words."""
    found = {}
    for case in sorted({*now, *before}):
        old, new = before.get(case), now.get(case)
        if old != new:
            found[case] = "is new" if old is None else "is gone" if new is None else f"{old} is now {new}"
    return found


def write_texts(folder: Path, texts: Texts) -> None:
    """A file for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    for case, text in texts.items():
        (folder / (re.sub(r"[^\w.=]+", "_", case) + ".txt")).write_text(text + "\n", encoding="utf-8")


def show(folder: Path, chosen: Sequence[str], base: str) -> None:
    """The texts of some cases in `folder/now`, and what they were at a commit in `folder/before`."""
    write_texts(folder / "now", texts_of(chosen))
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        _git("worktree", "add", "--detach", str(tree), base)
        try:
            command = [sys.executable, "-m", "benchmarks.golden", "--texts", str(folder / "before")]
            subprocess.run([*command, "--only", *chosen], cwd=tree, check=True)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def last_written() -> str:
    """The commit that wrote the file last."""
    return _git("log", "-1", "--format=%H", "--", str(FILE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare with the file, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--check", action="store_true", help="compare with the file (the default)")
    way.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    way.add_argument("--texts", type=Path, metavar="FOLDER", help="only write the texts of all cases there")
    parser.add_argument(
        "--show",
        type=Path,
        metavar="FOLDER",
        help="write the texts of cases that differ there, as they are now and as they were",
    )
    parser.add_argument("--base", metavar="COMMIT", help="compare with this one (default: the last --write)")
    parser.add_argument("--only", nargs="+", default=(), metavar="TEXT", help="cases with one of these texts")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    options = parser.parse_args(arguments)
    chosen = cases(options.only)
    if not chosen:
        parser.error(f"no case has {' or '.join(options.only)} in its name")
    if options.texts:
        write_texts(options.texts, texts_of(chosen))
        return 0
    now = all_digests(chosen, options.jobs)
    before = recorded()
    if options.write:
        kept = {c: d for c, d in before.items() if options.only and c not in chosen}
        FILE.write_text("".join(f"{c} {d}\n" for c, d in sorted((kept | now).items())), encoding="utf-8")
    found = differences(now, {c: d for c, d in before.items() if not options.only or c in now})
    for case, what in found.items() if before else ():
        print(f"{case}: {what}")
    print(f"{len(now)} cases, {len(found)} differ")
    changed = [c for c in found if c in now and c in before]
    if options.show and changed:
        show(options.show, changed, options.base or last_written())
    return 1 if found and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
