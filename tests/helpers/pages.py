"""Pages of the documentation as tests: their blocks run in order, and give what the page shows.

    ```python     runs, all blocks of a page in one namespace
    ```console    commands after `$ `, each followed by what it prints
    ```pf, ```c   is written to a file, if its first line is a comment that names one: `// main.c`
    ```           without a language, behind Python: what that printed, or the error that it ended with
    ```sh         is shown alone (installing, long runs)

In what is shown `...` stands for any text, as in doctest; blanks at ends of lines do not count.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?:#|//) ([\w.-]+\.\w+)\n")
# Our command, after settings of the environment; not within a pipe or the like.
OURS = re.compile(r"((?:[A-Z_]+=\S+ )*)polyfuse ([^|&;<>]+)")
PEERS = re.compile(r"^\s*(?:import|from) (?:torch|jax)\b", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" for what a block before it prints), text, and line in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in FENCE.finditer(text)]


def without_peers(found: list[Block]) -> list[Block]:
    """The blocks before the first one that needs PyTorch or JAX."""
    first = next((k for k, b in enumerate(found) if needs_peers(b)), len(found))
    return found[:first]


def needs_peers(block: Block) -> bool:
    return block.language == "python" and PEERS.search(block.text) is not None


def run(page: Path, found: list[Block], folder: Path, *, outputs: bool = True) -> int:
    """Runs blocks of a page in a folder; returns how many outputs were compared, if any are to be."""
    names: dict[str, Any] = {"__name__": "__main__"}
    compared = 0
    with contextlib.chdir(folder):
        for block, after in zip(found, [*found[1:], Block("end", "", 0)], strict=True):
            where, shown = f"{page.name}:{block.line}", outputs and after.language == ""
            if block.language == "python":
                printed = _executed(block, names, page, shown=shown)
                if shown:
                    compared += _compare(where, after.text, printed)
            elif block.language == "console":
                compared += _console(where, block.text, folder)
            elif named := FILE.match(block.text):
                (folder / named[1]).write_text(block.text, encoding="utf-8")
    return compared


def _executed(block: Block, names: dict[str, Any], page: Path, *, shown: bool) -> str:
    """What a block prints; of an error that the page shows its last lines, as Python prints them."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        try:
            exec(code, names)
        except Exception as error:
            if not shown:
                raise
            out.write("".join(traceback.format_exception_only(error)))
    return out.getvalue()


def _console(where: str, text: str, folder: Path) -> int:
    """Runs each command, and compares what it prints with what follows it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    for command, expected in zip(parts[::2], parts[1::2], strict=True):
        ours = OURS.fullmatch(command)
        printed = _polyfuse(ours[1], ours[2]) if ours else _shell(command, folder)
        _compare(f"{where}, {command}", expected, printed)
    return len(parts) // 2


def _polyfuse(settings: str, arguments: str) -> str:
    """What our command prints, without a process of its own."""
    from typer.testing import CliRunner

    from polyfuse.cli import app

    env = dict(s.split("=", 1) for s in settings.split())
    return CliRunner().invoke(app, shlex.split(arguments), prog_name="polyfuse", env=env).output


def _shell(command: str, folder: Path) -> str:
    out = subprocess.PIPE
    return subprocess.run(
        command, shell=True, cwd=folder, stdout=out, stderr=subprocess.STDOUT, text=True, timeout=120
    ).stdout


def _compare(where: str, expected: str, got: str) -> int:
    want, have = (re.sub(r"[ \t]+$", "", t, flags=re.MULTILINE).strip() + "\n" for t in (expected, got))
    checker = doctest.OutputChecker()
    example = doctest.Example("", want)
    options = doctest.ELLIPSIS | doctest.REPORT_NDIFF
    if not checker.check_output(want, have, options):
        raise AssertionError(f"{where}\n{checker.output_difference(example, have, options)}")
    return 1
