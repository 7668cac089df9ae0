"""Options: defaults from the environment, checked values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from polyfuse.diagnostics import ArgumentError, ToolchainError
from polyfuse.options import ENV_DUMP, ENV_VERIFY, Options


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_DUMP, raising=False)
    monkeypatch.delenv(ENV_VERIFY, raising=False)


def test_defaults() -> None:
    assert Options() == Options("flush", False, None, False, None)
    assert repr(Options(threads=2)) == (
        "Options(denormals='flush', checked=False, threads=2, verify=False, dump=None, device=None, "
        "seed=0, resident=None, tune='model', progress=None, library='auto', disable=())"
    )


def test_frozen_and_hashable() -> None:
    options = Options()
    with pytest.raises(FrozenInstanceError):
        options.checked = True  # type: ignore[misc]
    assert len({options, replace(options, checked=True), Options()}) == 2


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), (" ON ", True), ("0", False), ("no", False), ("", False)]
)
def test_verify_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv(ENV_VERIFY, text)
    assert Options().verify is value
    assert Options(verify=not value).verify is not value


def test_verify_must_be_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VERIFY, "maybe")
    with pytest.raises(ToolchainError, match="POLYFUSE_VERIFY is 'maybe'") as caught:
        Options()
    assert caught.value.code == "PF705"


def test_dump_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_DUMP, "~/steps")
    assert Options().dump == Path.home() / "steps"
    assert Options(dump=None).dump is None
    monkeypatch.setenv(ENV_DUMP, " ")
    assert Options().dump is None


def test_dump_may_be_text() -> None:
    assert Options(dump="steps").dump == Path("steps")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"denormals": "ignore"},
        {"library": "sometimes"},
        {"checked": 1},
        {"verify": "yes"},
        {"threads": 0},
        {"threads": -2},
        {"threads": 1.5},
        {"threads": True},
        {"dump": 3},
    ],
    ids=str,
)
def test_values_that_cannot_be(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ArgumentError, match=f"option {name} cannot be") as caught:
        Options(**wrong)
    assert caught.value.code == "PF490"
