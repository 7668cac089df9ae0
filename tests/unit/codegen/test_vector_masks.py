"""The first bytes of an array, and no others, on machines with masks of any kind."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest
from avx512 import AVX512
from forked import right_in_child

from polyfuse.codegen.cpu.emit import SANITIZED
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import MASKS
from polyfuse.codegen.math.prelude import prelude
from polyfuse.runtime.toolchain.compiler import load_shared

ROOMS = (64, 128, 192)
# Processors of AVX-512 run the code for AVX2 as well, and others that for AVX-512 emulated.
MACHINES = (("-march=native",), ("-march=x86-64-v3",), *AVX512)
BEHIND = 0xAB


def library(flags: tuple[str, ...]) -> ctypes.CDLL:
    """Functions take_64(to, from, bytes) and so on; `masks` is whether the machine has any."""
    text = [prelude(()), SANITIZED, MASKS, "#ifdef PF_MASKS", 'extern "C" int masks() { return 1; }']
    for room in ROOMS:
        for name in ("take", "take_f16", "put", "put_f16"):
            text.append(
                f'extern "C" void {name}_{room}(char* to, const char* from, int bytes) {{\n'
                f"  __attribute__((aligned(64))) char own[{room}];\n"
                + (
                    f"  pf_{name}(own, from, bytes, {room});\n  __builtin_memcpy(to, own, {room});\n}}"
                    if "take" in name
                    else f"  __builtin_memcpy(own, from, {room});\n  pf_{name}(to, own, bytes, {room});\n}}"
                )
            )
        text.append(
            f'extern "C" void keep_{room}(char* to, const char* from, int bytes) {{\n'
            f"  __attribute__((aligned(64))) char own[{room}], old[{room}];\n"
            f"  __builtin_memcpy(own, to, {room});\n  __builtin_memcpy(old, from, {room});\n"
            f"  pf_keep(own, old, bytes, {room});\n  __builtin_memcpy(to, own, {room});\n}}"
        )
    text.append(
        'extern "C" void all(char* own, char* memory, int bytes) {\n'
        "  pf_take(own, memory, bytes, 64);\n  pf_take_f16(own + 64, memory, bytes, 64);\n"
        "  pf_put(memory, own, bytes, 64);\n  pf_put_f16(memory, own + 64, bytes, 64);\n"
        "  pf_keep(own, own + 64, bytes, 64);\n}"
    )
    text += ["#else", 'extern "C" int masks() { return 0; }', "#endif\n"]
    return load_shared("\n".join(text), extra_flags=flags)


@pytest.fixture(scope="module", params=MACHINES, ids=lambda f: f[-1])
def functions(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Of a machine that has masks."""
    found = library(request.param)
    if not found.masks():
        pytest.skip("no masks: loops go on element by element")
    return found


def address(a: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(a.ctypes.data)


@pytest.mark.parametrize("room", ROOMS)
def test_all_counts_of_bytes(functions: ctypes.CDLL, room: int) -> None:
    rng = np.random.default_rng(room)
    for count in range(1, room + 1):
        given = rng.integers(0, 256, room, np.uint8)
        first = np.arange(room) < count
        for name in ("take", "take_f16"):
            found = np.full(room, BEHIND, np.uint8)
            getattr(functions, f"{name}_{room}")(address(found), address(given), count)
            np.testing.assert_array_equal(found, np.where(first, given, 0), err_msg=f"{name} {count}")
        for name in ("put", "put_f16"):
            found = np.full(room, BEHIND, np.uint8)
            getattr(functions, f"{name}_{room}")(address(found), address(given), count)
            np.testing.assert_array_equal(found, np.where(first, given, BEHIND), err_msg=f"{name} {count}")
        total = rng.integers(0, 256, room, np.uint8)
        found = total.copy()
        getattr(functions, f"keep_{room}")(address(found), address(given), count)
        np.testing.assert_array_equal(found, np.where(first, total, given), err_msg=f"keep {count}")


def test_arrays_may_begin_anywhere(functions: ctypes.CDLL) -> None:
    """Of a total nothing says where it is."""
    room = np.zeros(512, np.uint8)
    places = [room[at : at + 128] for at in (1 + -room.ctypes.data % 64, 257 + -room.ctypes.data % 64)]

    def works() -> bool:
        places[1][:] = 7
        functions.all(address(places[0]), address(places[1]), 40)
        return bool((places[0][:40] == 7).all() and not places[0][40:64].any())

    assert right_in_child(works)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are forbidden by a call of Linux's C library")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 31, 32, 33, 62, 63, 64])
def test_pages_behind_are_not_touched(functions: ctypes.CDLL, count: int) -> None:
    page, room = mmap.PAGESIZE, 64
    memory = mmap.mmap(-1, 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page), ctypes.c_size_t(page), 0) == 0
    end, mine = whole[page - count : page], np.arange(room, dtype=np.uint8)
    for name in ("take", "take_f16"):
        end[:] = 7
        getattr(functions, f"{name}_{room}")(address(mine), address(end), count)
        np.testing.assert_array_equal(mine, 7 * (np.arange(room) < count))
    for name in ("put", "put_f16"):
        mine[:] = 1 + np.arange(room)
        getattr(functions, f"{name}_{room}")(address(end), address(mine), count)
        np.testing.assert_array_equal(end, mine[:count])
