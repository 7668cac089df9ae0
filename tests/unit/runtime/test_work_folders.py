"""Folders of compilations: gone with the work, and swept by the next process where one was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.toolchain import work_folders
from polyfuse.runtime.toolchain.work_folders import lasting_folder, sweep, work_folder

COMPILE = """
import numpy as np, polyfuse as pf, sys
f = pf.compile(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] * {sys.argv[1]} }}", target="cpu")
f(np.ones(3, np.float32))
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folders, "_swept", set())


def test_a_folder_goes_with_its_work(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), work_folder(tmp_path, "work-") as folder:
        assert folder.name.startswith("work-") and folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_only_what_is_left_over_is_swept(tmp_path: Path) -> None:
    left, other, link = tmp_path / "work-left", tmp_path / "other", tmp_path / "work-link"
    for folder in (left, other):
        folder.mkdir()
        (folder / "file").write_text("")
    link.symlink_to(other)
    (tmp_path / "work-file").write_text("")
    os.mkfifo(tmp_path / "work-fifo")
    with work_folder(tmp_path, "work-") as mine:
        sweep(tmp_path, "work-")
        assert mine.is_dir() and not left.exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
            ["other", "work-link", "work-file", "work-fifo", mine.name]
        )
        assert (other / "file").exists()


def test_a_folder_that_is_swept_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = tempfile.mkdtemp, []

    def swept_at_once(*args: object, **options: object) -> str:
        made.append(real(*args, **options))  # type: ignore[call-overload]
        if len(made) < 3:
            sweep(tmp_path, "work-")
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_once)
    folder, held = lasting_folder(tmp_path, "work-")
    assert folder == Path(made[2]) and folder.is_dir()
    os.close(held)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_process_sweeps_what_a_killed_compilation_left(tmp_path: Path, kill: signal.Signals) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    slow = tmp_path / "c++"
    slow.write_text('#!/bin/sh\ncase "$*" in *kernel*) exec sleep 60;; *) exec c++ "$@";; esac\n')
    slow.chmod(0o755)
    env = {**os.environ, "TMPDIR": str(temporary), "POLYFUSE_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILE]
    killed = subprocess.Popen([*command, "2.0"], env={**env, "CXX": str(slow)}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(temporary.glob("polyfuse-work-*/kernel.cpp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(kill)
    killed.wait()
    assert list(temporary.glob("polyfuse-work-*"))
    subprocess.run([*command, "3.0"], env=env, check=True)
    assert not list(temporary.iterdir())


def test_what_is_being_compiled_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with work_folder(prefix="polyfuse-work-") as mine:
        (mine / "kernel.cpp").write_text("")
        (tmp_path / "polyfuse-work-left").mkdir()
        env = {**os.environ, "TMPDIR": str(tmp_path), "POLYFUSE_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([sys.executable, "-c", COMPILE, "4.0"], env=env, check=True)
        assert (mine / "kernel.cpp").exists() and not (tmp_path / "polyfuse-work-left").exists()


def test_sweeping_needs_no_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 17.0 }"
    pf.compile(text, target="cpu")(np.ones(3, np.float32))
    (tmp_path / "polyfuse-work-left").mkdir()
    work_folders._swept.clear()
    pf.compile(text, target="cpu")(np.ones(3, np.float32))
    assert not (tmp_path / "polyfuse-work-left").exists()
