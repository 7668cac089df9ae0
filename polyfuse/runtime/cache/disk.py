"""The on-disk cache of everything that took a compiler or a measurement to make.

    <root>/entries/ab/<sha-256 key>/manifest.json + files     one published entry, never changed again
    <root>/staging/<random>/                                  entries being written, rubbish being deleted;
                                                              the next process sweeps what is left over
    <root>/locks/<key>.lock                                   so that one of many processes builds

An entry is staged in its own folder and published by one rename, so a reader sees all of it
or nothing; an entry that is there already counts as success.  The manifest holds the SHA-256 of
every file and every load verifies it.  Locks only save work: without them results are the same.
Shared objects from here are loaded into the process, so the root must be a real folder of
this user that nobody else can write to; else a private temporary folder takes its place.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache as memoised
from pathlib import Path
from typing import Any

from polyfuse.diagnostics import CacheError
from polyfuse.runtime.toolchain.work_folders import lasting_folder, sweep, sweep_once, work_folder

# --- regular files ----------------------------------------------------------------------------------------


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


# --- the folder -------------------------------------------------------------------------------------------


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


# --- entries ----------------------------------------------------------------------------------------------

FORMAT = 1
LOCK_TIMEOUT_S = 120.0
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")


MOST_BRACKETS = 500
"""Brackets in a manifest; those we write have a few for each file."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One published entry: its size in bytes, time of creation (seconds since 1970) and notes."""

    key: str
    path: Path
    size: int
    created: float
    meta: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `Cache.verify` found: entries looked at, and (key, reason) of the damaged ones."""

    checked: int
    corrupt: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Built:
    """What a build function returns: the files of an entry and notes for `ls`."""

    files: Mapping[str, bytes]
    meta: Mapping[str, str]


class _Corrupt(Exception):
    """An entry is there and is not what was written."""


@memoised
def package_version() -> str:
    """The version of polyfuse, part of every key."""
    try:
        return importlib.metadata.version("polyfuse")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def cache_key(parts: Sequence[tuple[str, str]]) -> str:
    """SHA-256 (hex) of named strings; names, order and borders between strings all count."""
    text = json.dumps([[name, value] for name, value in parts], ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class Cache:
    """A cache folder. Use `Cache.open_default()` or `Cache.open(folder)`, which check it first."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open_default(cls) -> Cache:
        """The user's cache: ``$POLYFUSE_CACHE_DIR``, else the platform's cache folder."""
        return cls.open(default_root())

    @classmethod
    def open(cls, root: Path) -> Cache:
        """The cache at `root` (made if missing), or a private temporary one, with a warning."""
        reason = prepare_root(root)
        return cls(root) if reason is None else cls(spare_root(root, reason))

    def get(self, key: str) -> Path | None:
        """The folder of a verified entry, or None. A damaged entry is removed."""
        return self._get(key, locked=False)

    def put(self, key: str, files: Mapping[str, bytes], meta: Mapping[str, str]) -> Path:
        """Publish an entry and return its folder; if a good one is there already, that one.

        Raises CacheError PF802 if neither this folder nor a temporary one can be written.
        """
        return self._put(key, Built(files, meta), locked=False)

    def get_or_build(self, key: str, build: Callable[[], Built]) -> Path:
        """The entry's folder; `build()` runs if it is missing, in one process of many if locks work.

        Whatever `build` raises passes through, and leaves nothing behind.
        """
        found = self.get(key)
        if found is not None:
            return found
        with self._lock(key):
            return self._get(key, locked=True) or self._put(key, build(), locked=True)

    def remove(self, key: str) -> None:
        """Forget an entry; missing ones are fine."""
        self._throw_away(self._entry(key))

    def ls(self) -> list[CacheEntry]:
        """All readable entries, oldest first. Contents are not verified: see `verify`."""
        found: list[CacheEntry] = []
        for path in self._entries():
            with suppress(_Corrupt, OSError):
                manifest = _read_manifest(path)
                size = sum(int(f["bytes"]) for f in manifest["files"].values())
                found.append(CacheEntry(path.name, path, size, manifest["created"], manifest["meta"]))
        return sorted(found, key=lambda e: (e.created, e.key))

    def clear(self) -> int:
        """Remove every entry, lock and old left-over; the number of entries removed."""
        entries = list(self._entries())
        self._throw_away(self.root / "entries")
        shutil.rmtree(self.root / "locks", ignore_errors=True)
        sweep(self.root / "staging", "")
        return len(entries)

    def verify(self) -> VerifyReport:
        """Check every entry against its manifest and remove the damaged ones."""
        bad: list[tuple[str, str]] = []
        entries = list(self._entries())
        for path in entries:
            try:
                _check(path)
            except _Corrupt as e:
                bad.append((path.name, str(e)))
                self._throw_away(path)
        return VerifyReport(len(entries), tuple(bad))

    def _entry(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"cache keys are 64 hex digits, not {key!r}")
        return self.root / "entries" / key[:2] / key

    def _entries(self) -> Iterator[Path]:
        for group in _children(self.root / "entries"):
            yield from _children(group)

    def _get(self, key: str, *, locked: bool) -> Path | None:
        for entry in self._places(key):
            try:
                if _check(entry):
                    return entry
            except _Corrupt as e:
                warnings.warn(f"PF803: damaged cache entry {entry} removed: {e}", CacheWarning, stacklevel=4)
                self._discard(entry, locked=locked)
        return None

    def _places(self, key: str) -> list[Path]:
        """Where an entry can be: here, and where it went if this folder could not be written."""
        spare = spare_of(self.root)
        return [self._entry(key)] + ([Cache(spare)._entry(key)] if spare else [])

    def _put(self, key: str, built: Built, *, locked: bool) -> Path:
        try:
            return self._publish(key, built, locked=locked)
        except OSError as e:
            spare = Cache(spare_root(self.root, f"cannot write to it ({e.strerror or e})"))
            try:
                return spare._publish(key, built, locked=False)
            except OSError as e2:
                raise CacheError(
                    f"cannot write a cache entry to {self.root} ({e}) nor to {spare.root} ({e2})",
                    code="PF802",
                    hint=f"free some space, or set {ENV_DIR} to a folder you can write to",
                ) from e2

    def _publish(self, key: str, built: Built, *, locked: bool) -> Path:
        entry, staging = self._entry(key), self.root / "staging"
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        with work_folder(staging) as staged:
            _write(staged, key, built)
            for _ in range(4):
                self._make_group(entry.parent)
                try:
                    os.rename(staged, entry)
                    return entry
                except OSError as e:
                    if e.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                        raise
                with suppress(_Corrupt):
                    if _check(entry):
                        return entry
                self._discard(entry, locked=locked)
            raise OSError(errno.EEXIST, "a damaged entry cannot be replaced", str(entry))

    def _make_group(self, group: Path) -> None:
        """The folder of an entry, another one in place of what cannot be trusted."""
        group.parent.mkdir(mode=0o700, exist_ok=True)  # one by one: with `parents` it would have another mode
        with suppress(FileNotFoundError):
            if mistrust(group.lstat()):
                self._throw_away(group)
        group.mkdir(mode=0o700, exist_ok=True)

    def _discard(self, entry: Path, *, locked: bool) -> None:
        """Remove a damaged entry, unless another process has replaced it meanwhile."""
        with nullcontext() if locked else self._lock(entry.name):
            with suppress(_Corrupt):
                if _check(entry):
                    return
            self._throw_away(entry)

    def _throw_away(self, path: Path) -> None:
        """Out of sight by one rename, then deleted; does nothing on a read-only disk."""
        with suppress(OSError):
            staging = self.root / "staging"
            staging.mkdir(mode=0o700, parents=True, exist_ok=True)
            rubbish = staging / f"rubbish-{secrets.token_hex(8)}"
            os.rename(path, rubbish)
            if stat.S_ISDIR(rubbish.lstat().st_mode):
                shutil.rmtree(rubbish, ignore_errors=True)
            else:
                rubbish.unlink()

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """One process at a time, if the file system can lock; else (and after a time-out) nobody waits."""
        import filelock

        lock: filelock.BaseFileLock | None = None
        try:
            (self.root / "locks").mkdir(mode=0o700, exist_ok=True)
            lock = filelock.FileLock(self.root / "locks" / f"{key}.lock", timeout=LOCK_TIMEOUT_S, mode=0o600)
            lock.acquire()
        except (OSError, NotImplementedError, filelock.Timeout):
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


def _write(folder: Path, key: str, built: Built) -> None:
    """The files of an entry and its manifest."""
    files: dict[str, dict[str, str | int]] = {}
    for name, data in built.files.items():
        if not _NAME.fullmatch(name) or name == _MANIFEST:
            raise ValueError(f"not a file name for a cache entry: {name!r}")
        (folder / name).write_bytes(data)
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest = {
        "format": FORMAT,
        "key": key,
        "created": time.time(),
        "meta": dict(built.meta),
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read_manifest(entry: Path) -> dict[str, Any]:
    try:
        data = read_file(entry / _MANIFEST)
        if data.count(b"[") + data.count(b"{") > MOST_BRACKETS:
            raise _Corrupt("the manifest is nested too deep")  # a process may have no recursion limit
        manifest = json.loads(data)
        for name, info in manifest["files"].items():
            if not _NAME.fullmatch(name) or not isinstance(info["bytes"], int):
                raise _Corrupt(f"the manifest lists {name!r}")
        if manifest["format"] != FORMAT or manifest["key"] != entry.name:
            raise _Corrupt("the manifest is of another entry")
        if not isinstance(manifest["meta"], dict) or not isinstance(manifest["created"], (int, float)):
            raise _Corrupt("the manifest is incomplete")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _Corrupt(f"the manifest is not readable ({type(e).__name__})") from e
    return dict(manifest)


def _check(entry: Path) -> bool:
    """True if the entry is whole, False if there is none; raises _Corrupt."""
    try:
        before = entry.lstat()
        group = entry.parent.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        if reason := mistrust(group, f"its folder {entry.parent.name}") or mistrust(before):
            raise _Corrupt(reason)
        for name, info in _read_manifest(entry)["files"].items():
            data = read_file(entry / name)
            if hashlib.sha256(data).hexdigest() != info["sha256"]:
                raise _Corrupt(f"{name} has {len(data)} of {info['bytes']} bytes or other contents")
    except OSError as e:
        with suppress(OSError):
            if entry.lstat().st_ino == before.st_ino:
                raise _Corrupt(f"{e.filename} cannot be read ({e.strerror})") from e
        return False  # somebody cleared or replaced it while we read
    return True
