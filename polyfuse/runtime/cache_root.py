"""The folder of the cache: where it is meant to be, whether it can be trusted, and what takes its place."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

from polyfuse.diagnostics import CacheError
from polyfuse.runtime.work_folders import lasting_folder, sweep_once

ENV_DIR = "POLYFUSE_CACHE_DIR"
FOLDERS = ("entries", "staging", "locks")
"""Of a cache, trusted as the folder itself is."""
_SPARE = "polyfuse-spare-"


class CacheWarning(RuntimeWarning):
    """The cache works, but not the way it should: see the code in the message."""


def default_root() -> Path:
    """Where the cache is meant to be; nothing is made or checked."""
    override = os.environ.get(ENV_DIR)
    if override:
        return Path(override).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("polyfuse"))


def prepare_root(root: Path) -> str | None:
    """Make the folder if need be; why it cannot be trusted or used, or None."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        info = root.lstat()
        parent = root.parent.stat()
    except OSError as e:
        return f"cannot make it ({e.strerror or e})"
    if reason := mistrust(info):
        return reason
    if parent.st_mode & 0o002 and not parent.st_mode & stat.S_ISVTX:
        return "others can replace it (the folder above is writable by all)"
    for name in FOLDERS:
        with suppress(FileNotFoundError):
            if reason := mistrust((root / name).lstat(), f"its folder {name}"):
                return reason
    return None


def mistrust(info: os.stat_result, what: str = "it") -> str | None:
    """Why what `lstat` says is no folder that only this user can change, or None."""
    if stat.S_ISLNK(info.st_mode):
        return f"{what} is a symbolic link"
    if not stat.S_ISDIR(info.st_mode):
        return f"{what} is not a folder"
    if info.st_uid != os.geteuid():
        return f"{what} belongs to another user"
    return f"others can write to {what}" if info.st_mode & 0o022 else None


_SPARES: dict[Path, tuple[Path, int]] = {}
"""By folder: the temporary one in its place, and the process that made it (a fork inherits both)."""


def spare_of(root: Path) -> Path | None:
    """The temporary folder that has taken the place of one."""
    return _SPARES[root][0] if root in _SPARES else None


def spare_root(root: Path, reason: str) -> Path:
    """The temporary folder that takes the place of one; the first time with a warning, PF801.

    Raises CacheError PF802 if there can be none.
    """
    known = _SPARES.get(root)
    if known and prepare_root(known[0]) is None:
        return known[0]
    try:
        place = Path(tempfile.gettempdir())
        sweep_once(place, _SPARE)
        folder, _ = lasting_folder(place, _SPARE)  # locked as long as this process lives
    except OSError as e:
        raise CacheError(
            f"the cache folder {root} cannot be used: {reason}; and no temporary folder can be made ({e})",
            code="PF802",
            hint=f"set {ENV_DIR} to a private folder you can write to",
        ) from e
    _SPARES[root] = (folder, os.getpid())
    warnings.warn(
        f"PF801: the cache folder {root} is not used: {reason}; "
        f"this process keeps its kernels in a temporary folder (set {ENV_DIR} to a private folder)",
        CacheWarning,
        stacklevel=4,
    )
    return folder


@atexit.register
def _remove_spares() -> None:
    for folder, pid in _SPARES.values():
        if pid == os.getpid():  # a forked child must not pull it away from its parent
            shutil.rmtree(folder, ignore_errors=True)
