"""Files of the cache, read so that nothing in their place can block or mislead: regular files only."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_file(path: Path) -> bytes:
    """The contents of a regular file. Raises OSError for anything else, without waiting for it."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _irregular(path)
    # Opening a FIFO that has come meanwhile must not wait either, nor a link lead elsewhere.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _irregular(path)
        return file.read()


def read_text(path: Path) -> str:
    """The same as text."""
    return read_file(path).decode("utf-8")


def _irregular(path: Path) -> OSError:
    return OSError(0, "not a regular file", str(path))
