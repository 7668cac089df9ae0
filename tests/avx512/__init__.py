"""A processor with AVX-512 for machines without: code for it is compiled with its instructions emulated.

    load_shared(source, extra_flags=avx512_flags())       one source
    with avx512_machine(): pf.compile(...)                all that is compiled meanwhile, for such a core
    pytest --avx512 bf16 tests/unit/codegen/test_vectorize_half_precision.py        any tests

`emulated.h` has the macros and the instructions.  What gcc makes of them is code for AVX2, so this finds what
sources under `#if defined(__AVX512F__)` do wrong, and vectors of 64 bytes, not what compilers do with them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyfuse.driver import targets
from polyfuse.runtime.toolchain import compiler

FOLDER = Path(__file__).parent
# What the header is compiled for: on machines with AVX-512 as well.
BASE = "-march=x86-64-v3"


def can_emulate() -> bool:
    """Is there gcc, and a processor with AVX2?"""
    here = sys.platform == "linux" and shutil.which("g++") is not None
    return here and {"avx2", "f16c", "fma"} <= compiler.cpu_features()


def avx512_flags(bf16: bool = True) -> tuple[str, ...]:
    """Flags for gcc; the last one tells which machine it is. `bf16`: with instructions for bf16."""
    text = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.h")))
    digest = hashlib.sha256(text).hexdigest()[:16]  # part of the key of what is cached
    own = "-DAVX512_BF16" if bf16 else "-DAVX512_NO_BF16"
    return (
        BASE,
        "-Wno-psabi",
        f"-I{FOLDER}",
        "-include",
        str(FOLDER / "emulated.h"),
        f"-DAVX512_TEXT=0x{digest}",
        own,
    )


# Both machines, for lists of those whose flags a test compiles with; none where there is no such compiler.
AVX512 = (avx512_flags(False), avx512_flags()) if can_emulate() else ()


@contextmanager
def avx512_machine(bf16: bool = True) -> Iterator[None]:
    """What is compiled meanwhile is for a core of such a machine; the g++ on the PATH makes its code."""
    real = shutil.which("g++")
    assert real is not None
    _, *flags = avx512_flags(bf16)
    features = compiler.cpu_features() | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        program = Path(folder) / "g++"
        program.write_text(f'#!/bin/sh\nexec {shlex.join([real, *flags])} "$@"\n')
        program.chmod(0o755)
        patch.setenv("PATH", folder, prepend=os.pathsep)
        patch.delenv("CXX", raising=False)
        patch.setattr(targets, "cpu_features", lambda: features)
        yield
