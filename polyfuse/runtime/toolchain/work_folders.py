"""Folders for work in progress: gone when the work ends; what a killed process left the next one sweeps.

Whoever works in a folder holds a lock on it, which the system takes back with the process; a folder that
can be locked is therefore left over.  Unlike numbers of processes that holds across containers too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BUILDS = "polyfuse-work-"
"""How names of folders of compilers begin. Earlier versions hold no locks, and may run beside this one:
theirs have another name."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100
_swept: set[tuple[Path, str]] = set()


@contextmanager
def work_folder(parent: Path | None = None, prefix: str = "") -> Iterator[Path]:
    """A new private folder in `parent`, removed in the end whatever happens.

    Without `parent` it is among the temporary files. The first time in a process, folders with this prefix
    that killed processes left are removed.
    """
    where = Path(tempfile.gettempdir()) if parent is None else parent
    sweep_once(where, prefix)
    folder, held = lasting_folder(where, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            os.close(held)


def lasting_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """(A new private folder, the descriptor that holds its lock as long as it is open)."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=prefix or None, dir=parent))
        try:
            held = os.open(folder, _FOLDER)
        except FileNotFoundError:  # another process found it before it was locked, and swept it
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(folder, held):
            return folder, held
        os.close(held)
    raise FileExistsError(f"folders in {parent} are swept away as fast as they are made")


def _is_there(folder: Path, held: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(folder.lstat(), os.fstat(held))
    return False


def sweep_once(parent: Path, prefix: str) -> None:
    """`sweep`, the first time that a process asks for it."""
    if (parent, prefix) not in _swept:
        _swept.add((parent, prefix))
        sweep(parent, prefix)


def sweep(parent: Path, prefix: str) -> None:
    """Remove folders of this user with a prefix that no process works in any more."""
    with suppress(OSError), os.scandir(parent) as found:
        for entry in found:
            if entry.name.startswith(prefix):
                with suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        return
    held = os.open(folder, _FOLDER)
    try:
        fcntl.flock(
            held, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # OSError: somebody works there, or there are no locks
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
