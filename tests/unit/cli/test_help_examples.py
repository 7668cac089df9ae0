"""The examples that `polyfuse COMMAND --help` shows: each has the options that there are, and runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from polyfuse.cli.app import app

# What compiles for a CPU, or measures, takes seconds.
_LONG = ("polyfuse run", "polyfuse compare", "polyfuse build", "--tune", "--partition search", "--measure")
_EXAMPLE = re.compile(r"(POLYFUSE_\w+=\S+ )*polyfuse \w")
# They serve, or search for a minute; their own tests run them.
_APART = ("explore", "lsp", "tune")


def _examples(command: Any) -> Iterator[str]:
    for word, sub in getattr(command, "commands", {}).items():
        if word not in _APART:
            yield from _examples(sub)
    lines = [line.strip().replace("\\[", "[") for line in (command.help or "").splitlines()]
    yield from (line for line in lines if _EXAMPLE.match(line))


COMMAND = typer.main.get_command(app)
EXAMPLES = [*_examples(COMMAND)]
QUICK = [e for e in EXAMPLES if not any(part in e for part in _LONG)]


def _words(example: str) -> tuple[dict[str, str], list[str]]:
    """Settings of the environment, and the words behind `polyfuse`."""
    before, _, rest = example.partition("polyfuse ")
    words = shlex.split(rest)
    return dict(s.split("=", 1) for s in before.split()), words


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that examples name."""
    norm = """op rms_norm[F: float](x: F[T, H]) -> (y: F[T, H]) {
  s[t] = mean[h](f32(x[t, h]) ** 2)
  y[t, h] = F(f32(x[t, h]) * rsqrt(s[t] + 1e-6))
}

op layer_norm(x: f32[T, H], gamma: f32[H]) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  y[t, h] = (x[t, h] - mu[t]) * gamma[h]
}
"""
    loss = "op loss(x: f32[N], tau: f32) -> (l: f32[N]) {\n  l[n] = x[n] / tau\n}\n"
    monkeypatch.chdir(tmp_path)
    Path("operators").mkdir()
    for name, text in (("norms", norm), ("losses", loss), ("draft", loss), ("operators/norms", norm)):
        Path(f"{name}.pf").write_text(text)
    np.savez("batch.npz", x=np.ones(4, "f4"))


def _run(example: str) -> None:
    env, words = _words(example)
    if "<" in words:
        given, words = Path(words[-1]).read_text(), words[: words.index("<")]
    else:
        given = ""
    done = CliRunner().invoke(app, words, prog_name="polyfuse", env=env, input=given)
    assert done.exit_code == 0, done.output


def test_each_command_has_some() -> None:
    names = {_words(e)[1][0] for e in EXAMPLES}
    assert names >= {"run", "compare", "build", "emit", "explain", "grad", "check", "fmt", "stdlib", "errors"}
    assert len(QUICK) > len(EXAMPLES) / 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_options_of_examples_are_there(example: str) -> None:
    words = _words(example)[1]
    command = COMMAND.commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], [w for w in words[1:] if w != "<"])


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("example", QUICK)
def test_examples_run(example: str) -> None:
    _run(example)


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("example", [e for e in EXAMPLES if e not in QUICK and "cuda" not in e])
def test_examples_that_take_long_run(example: str) -> None:
    _run(example)
