"""What a command loads: that it answers at once is counted in modules, not in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }\n"
CALLING = "op g(x: f32[T, H]) -> (y: f32[T, H]) { y = softmax(x) }\n"
# A command, what it prints, and the most modules of polyfuse that it may load (now 22, 88, 88 and 39).
COMMANDS = {
    ("--version",): ("polyfuse ", 28),
    ("check", "one.pf"): ("1 operator: no errors", 100),
    ("check", "calling.pf"): ("1 operator: no errors", 100),
    ("fmt", "--check", "one.pf"): ("", 50),
    ("stdlib", "softmax"): ("#", 50),
    ("stdlib",): ("activation\n", 50),
    ("explain", "PF402"): ("PF402", 28),
}
SLOW = ("numpy", "ml_dtypes", "scipy", "torch", "psutil")
COMPILER = ("api", "codegen", "cost", "driver", "layers", "runtime", "tuning")
LOADED = """
import sys
from polyfuse.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _run(folder: Path, *args: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it has loaded at its end."""
    (folder / "one.pf").write_text(PROGRAM, encoding="utf-8")
    (folder / "calling.pf").write_text(CALLING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_command_loads_only_what_it_uses(args: tuple[str, ...], tmp_path: Path) -> None:
    (printed, most) = COMMANDS[args]
    shown, loaded = _run(tmp_path, *args)
    assert shown.startswith(printed)
    assert not loaded & set(SLOW)
    ours = {m for m in loaded if m.partition(".")[0] == "polyfuse"}
    assert not {m for m in ours if m.split(".")[1:2] and m.split(".")[1] in COMPILER}
    assert len(ours) <= most, sorted(ours)


def test_the_version_loads_no_parser(tmp_path: Path) -> None:
    shown, loaded = _run(tmp_path, "--version")
    assert shown.startswith("polyfuse ") and not loaded & {"lark", "islpy", "rich"}


def test_the_version_is_that_of_the_package() -> None:
    import importlib.metadata

    import polyfuse

    assert polyfuse.__version__ == importlib.metadata.version("polyfuse")
