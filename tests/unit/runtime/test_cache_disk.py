"""The on-disk cache: one rename publishes, every load verifies, nothing untrusted is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from polyfuse.diagnostics import CacheError
from polyfuse.runtime.cache import disk
from polyfuse.runtime.cache import disk as cache_module
from polyfuse.runtime.cache.disk import Built, Cache, CacheWarning, cache_key

KEY = cache_key([("what", "test")])
FILES = {"kernel.so": b"\x7fELF" + bytes(range(256)) * 8, "kernel.cpp": b"int x;"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(root))
    monkeypatch.setattr(disk, "_SPARES", {})
    return root


def open_quietly() -> Cache:
    """The default cache; any warning is an error."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Cache.open_default()


def test_put_get(root: Path) -> None:
    cache = open_quietly()
    assert cache.root == root
    assert root.stat().st_mode & 0o777 == 0o700
    assert cache.get(KEY) is None
    entry = cache.put(KEY, FILES, {"what": "test"})
    assert cache.get(KEY) == entry
    assert entry.name == KEY
    assert {n: (entry / n).read_bytes() for n in FILES} == FILES
    [listed] = cache.ls()
    assert (listed.key, listed.size, listed.meta) == (KEY, sum(map(len, FILES.values())), {"what": "test"})
    assert not list((root / "staging").iterdir())


def test_key_separates_names_values_and_order() -> None:
    keys = [
        cache_key([("a", "b")]),
        cache_key([("b", "a")]),
        cache_key([("ab", "")]),
        cache_key([("a", "b"), ("c", "d")]),
        cache_key([("c", "d"), ("a", "b")]),
        cache_key([("a", 'b"],["c","d')]),
        cache_key([("a", "\udc80")]),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key([("a", "b")]) == keys[0]


def test_names_and_keys_cannot_leave_the_folder(root: Path) -> None:
    cache = open_quietly()
    for key in ("../x", "", "A" * 64, "0" * 63):
        with pytest.raises(ValueError, match="hex digits"):
            cache.get(key)
    for name in ("../x", "a/b", ".hidden", "", "manifest.json"):
        with pytest.raises(ValueError, match="file name"):
            cache.put(KEY, {name: b""}, {})
    assert not list((root / "staging").iterdir())


def test_existing_entry_is_success_and_kept(root: Path) -> None:
    cache = open_quietly()
    first = cache.put(KEY, {"a": b"first"}, {})
    assert cache.put(KEY, {"a": b"second"}, {}) == first
    assert (first / "a").read_bytes() == b"first"


def test_get_or_build_builds_once_and_failure_leaves_nothing(root: Path) -> None:
    cache = open_quietly()
    calls: list[int] = []

    def fails() -> Built:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.get_or_build(KEY, fails)
    assert cache.get(KEY) is None

    def build() -> Built:
        calls.append(1)
        return Built(FILES, {})

    paths = {cache.get_or_build(KEY, build) for _ in range(3)}
    assert len(paths) == 1 and calls == [1]


def truncate(entry: Path) -> None:
    with open(entry / "kernel.so", "r+b") as f:
        f.truncate(100)


def flip(entry: Path) -> None:
    data = bytearray((entry / "kernel.so").read_bytes())
    data[50] ^= 1
    (entry / "kernel.so").write_bytes(data)


def link(entry: Path) -> None:
    (entry / "kernel.so").rename(entry.parent / "elsewhere")
    (entry / "kernel.so").symlink_to(entry.parent / "elsewhere")


def garbage(entry: Path) -> None:
    (entry / "manifest.json").write_bytes(b"\xff\x00{{{")


def wrong_types(entry: Path) -> None:
    (entry / "manifest.json").write_text('{"format": 1, "files": [1, 2], "key": 3}')


def deep(entry: Path) -> None:
    (entry / "manifest.json").write_text("[" * 100_000)


def climbing(entry: Path) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    manifest["files"]["../../../secret"] = {"sha256": "0", "bytes": 1}
    (entry / "manifest.json").write_text(json.dumps(manifest))


def of_another(entry: Path) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps({**manifest, "key": "0" * 64}))


def no_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def no_file(entry: Path) -> None:
    (entry / "kernel.so").unlink()


def a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("not a folder")


def fifo_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()
    os.mkfifo(entry / "manifest.json")


def fifo_file(entry: Path) -> None:
    (entry / "kernel.so").unlink()
    os.mkfifo(entry / "kernel.so")


def linked_manifest(entry: Path) -> None:
    real = entry.parent.parent.parent / "elsewhere.json"
    shutil.copy(entry / "manifest.json", real)
    (entry / "manifest.json").unlink()
    (entry / "manifest.json").symlink_to(real)


def folder_for_a_file(entry: Path) -> None:
    (entry / "kernel.cpp").unlink()
    (entry / "kernel.cpp").mkdir()


def writable_by_others(entry: Path) -> None:
    entry.chmod(0o777)


def group_writable_by_others(entry: Path) -> None:
    entry.parent.chmod(0o722)


def group_is_a_link(entry: Path) -> None:
    there = entry.parent.parent.parent / "there"
    shutil.rmtree(there, ignore_errors=True)
    entry.parent.rename(there)
    entry.parent.symlink_to(there)


DAMAGE = [
    fifo_manifest,
    fifo_file,
    linked_manifest,
    folder_for_a_file,
    writable_by_others,
    group_writable_by_others,
    group_is_a_link,
    truncate,
    flip,
    link,
    garbage,
    wrong_types,
    deep,
    climbing,
    of_another,
    no_manifest,
    no_file,
    a_file,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_damaged_entry_is_removed_and_rebuilt(root: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = open_quietly()
    entry = cache.put(KEY, FILES, {})
    damage(entry)
    with pytest.warns(CacheWarning, match="PF803"):
        assert cache.get_or_build(KEY, lambda: Built(FILES, {})) == entry
    assert (entry / "kernel.so").read_bytes() == FILES["kernel.so"]
    damage(entry)  # a put over a damaged entry replaces it too
    assert cache.put(KEY, FILES, {}) == entry
    assert cache.get(KEY) == entry


def test_verify_and_clear(root: Path) -> None:
    cache = open_quietly()
    keys = [cache_key([("n", str(i))]) for i in range(4)]
    for key in keys:
        cache.put(key, FILES, {})
    truncate(cache.put(keys[2], FILES, {}))
    report = cache.verify()
    assert report.checked == 4
    assert [key for key, _ in report.corrupt] == [keys[2]]
    assert "100 of" in report.corrupt[0][1]
    assert cache.verify().corrupt == ()
    cache.remove(keys[0])
    assert cache.clear() == 2
    assert cache.ls() == [] and cache.get(keys[1]) is None
    cache.put(KEY, FILES, {})
    assert len(cache.ls()) == 1


def refused(root: Path, why: str) -> Cache:
    with pytest.warns(CacheWarning, match="PF801") as seen:
        cache = Cache.open_default()
    assert why in str(seen[0].message)
    assert cache.root != root
    assert cache.root.stat().st_mode & 0o777 == 0o700
    entry = cache.put(KEY, FILES, {})
    assert open_quietly().get(KEY) == entry  # the same stand-in again, and no second warning
    return cache


def test_symlink_is_refused(root: Path) -> None:
    (root.parent / "target").mkdir(mode=0o700)
    root.symlink_to(root.parent / "target")
    refused(root, "symbolic link")
    assert not list((root.parent / "target").iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_writable_by_others_is_refused(root: Path, mode: int) -> None:
    root.mkdir()
    root.chmod(mode)
    refused(root, "others can write")


@pytest.mark.parametrize("name", ["entries", "staging", "locks"])
@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_folders_that_others_may_write_are_refused_as_the_root_is(root: Path, name: str, mode: int) -> None:
    open_quietly().put(KEY, FILES, {})
    (root / name).mkdir(exist_ok=True)
    (root / name).chmod(mode)
    refused(root, f"others can write to its folder {name}")


@pytest.mark.parametrize("name", ["entries", "staging", "locks"])
def test_folders_that_are_links_are_refused_as_the_root_is(root: Path, name: str) -> None:
    open_quietly().put(KEY, FILES, {})
    shutil.rmtree(root / name, ignore_errors=True)
    (root.parent / "elsewhere").mkdir(mode=0o700)
    (root / name).symlink_to(root.parent / "elsewhere")
    refused(root, f"its folder {name} is a symbolic link")
    assert not list((root.parent / "elsewhere").iterdir())


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077])
def test_folders_are_private_whatever_the_umask(root: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        cache = open_quietly()
        cache.get_or_build(KEY, lambda: Built(FILES, {}))
    finally:
        os.umask(before)
    assert open_quietly().get(KEY) is not None
    folders = [root, *(p for p in root.rglob("*") if p.is_dir())]
    assert {p.stat().st_mode & 0o777 for p in folders} == {0o700}


def test_a_fifo_for_a_lock_does_not_block(root: Path) -> None:
    cache = open_quietly()
    (root / "locks").mkdir(mode=0o700)
    os.mkfifo(root / "locks" / f"{KEY}.lock")
    assert cache.get_or_build(KEY, lambda: Built(FILES, {})) == cache.get(KEY)


def test_what_killed_processes_staged_is_swept(root: Path) -> None:
    cache = open_quietly()
    (root / "staging").mkdir(mode=0o700)
    for name in ("tmp1", "rubbish-2"):
        (root / "staging" / name).mkdir()
    cache.put(KEY, FILES, {})
    assert not list((root / "staging").iterdir())


def test_replaceable_by_others_is_refused(root: Path) -> None:
    root.parent.chmod(0o777)
    refused(root, "others can replace")


def test_file_in_the_place_is_refused(root: Path) -> None:
    root.write_text("")
    refused(root, "not a folder")


def test_owned_by_another_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    me = os.geteuid()
    monkeypatch.setattr(cache_module.os, "geteuid", lambda: me + (1 if root.exists() else 0))
    with pytest.warns(CacheWarning, match="another user"):
        Cache.open_default()


def test_place_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", "/proc/polyfuse/cache")
    refused(Path("/proc/polyfuse/cache"), "cannot make it")


def test_read_only_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_quietly()
    old = cache.put(KEY, FILES, {})
    real_mkdtemp = tempfile.mkdtemp

    def read_only(*args, dir=None, **kwargs):  # type: ignore[no-untyped-def]
        if dir is not None and Path(dir).is_relative_to(root):
            raise OSError(30, "Read-only file system", str(dir))
        return real_mkdtemp(*args, dir=dir, **kwargs)

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    assert cache.get(KEY) == old  # reading still works
    other = cache_key([("other", "")])
    with pytest.warns(CacheWarning, match="PF801.*cannot write"):
        entry = cache.get_or_build(other, lambda: Built(FILES, {}))
    assert not entry.is_relative_to(root)
    assert cache.get(other) == entry


def test_nowhere_to_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_quietly()

    def full(*args: object, **kwargs: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(CacheError) as e:
        cache.put(KEY, FILES, {})
    assert e.value.code == "PF802"


def test_spare_folder_goes_away_with_its_process_only(tmp_path: Path) -> None:
    script = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "from polyfuse.runtime.cache.disk import Cache\n"
        "c = Cache.open_default(); c.put('0' * 64, {'a': b'x'}, {})\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0 if Cache.open_default().get('0' * 64) else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert c.get('0' * 64)\n"
        "print(c.root)\n"
    )
    env = {**os.environ, "POLYFUSE_CACHE_DIR": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_32_processes_build_one_entry(root: Path, tmp_path: Path) -> None:
    """Forked, started together by a barrier; all succeed, and the lock lets one build."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(32)
    built = context.Value("i", 0)

    def work() -> None:
        barrier.wait()

        def build() -> Built:
            with built.get_lock():
                built.value += 1
            return Built(FILES, {})

        entry = Cache.open_default().get_or_build(KEY, build)
        assert (entry / "kernel.so").read_bytes() == FILES["kernel.so"]

    processes = [context.Process(target=work) for _ in range(32)]
    for p in processes:
        p.start()
    for p in processes:
        p.join(60)
    assert [p.exitcode for p in processes] == [0] * 32
    assert built.value == 1
    assert not list((root / "staging").iterdir())


def test_many_builders_without_working_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems that cannot lock everybody builds and everybody succeeds, damaged entry or not."""
    import filelock

    def no_locks(self: object, *args: object, **kwargs: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(filelock.FileLock, "acquire", no_locks)
    cache = open_quietly()
    results: list[Path] = []
    barrier = threading.Barrier(16)

    def work() -> None:
        barrier.wait()
        results.append(cache.get_or_build(KEY, lambda: Built(FILES, {})))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 16 and len(set(results)) == 1
    assert cache.verify().corrupt == ()
