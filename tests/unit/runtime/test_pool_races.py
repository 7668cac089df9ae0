"""The thread pool under ThreadSanitizer: a C++ program that calls it in many ways."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polyfuse.runtime.cpu import pool
from polyfuse.runtime.toolchain.compiler import find_compiler

SOURCE = Path(pool.__file__).with_name("pool.cpp")
FLAGS = ["-std=c++17", "-g1", "-O1", "-fsanitize=thread", "-pthread"]
CLAIM = "count.compare_exchange_weak(seen, seen - 1)"
WEAK_CLAIM = "count.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)"


def reports(text: str, folder: Path) -> str:
    """What ThreadSanitizer says of calls of a pool of this text."""
    source, program = folder / "pool.cpp", folder / "races"
    source.write_text(text, encoding="utf-8")
    here = Path(__file__).parents[2] / "helpers" / "pool_races.cpp"
    command = [*find_compiler().command, *FLAGS, f'-DPOOL="{source}"', str(here), "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "tsan" in made.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert made.returncode == 0, made.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer does not know this system's places of memory")
    assert "wrong" in ran.stdout
    return ran.stderr if ran.returncode else ""


def test_the_pool_has_no_race(tmp_path: Path) -> None:
    assert reports(SOURCE.read_text(encoding="utf-8"), tmp_path) == ""


def test_a_claim_that_orders_nothing_is_found(tmp_path: Path) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    loads = text.replace("count.load(std::memory_order_acquire)", "count.load(std::memory_order_relaxed)")
    assert CLAIM in loads and loads != text
    found = reports(loads.replace(CLAIM, WEAK_CLAIM), tmp_path)
    assert "data race" in found
