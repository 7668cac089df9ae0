"""Options: defaults from the environment, checked values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError, ToolchainError
from polyfuse.driver.pipeline import Compilation
from polyfuse.driver.targets import disabled_passes, knobs_for, passes
from polyfuse.options import ENV_DISABLE, ENV_DUMP, ENV_MATH, ENV_VERIFY, Options


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_DUMP, raising=False)
    monkeypatch.delenv(ENV_VERIFY, raising=False)
    monkeypatch.delenv(ENV_DISABLE, raising=False)


def test_defaults() -> None:
    assert Options() == Options("flush", False, None, False, None)
    assert repr(Options(threads=2)) == (
        "Options(denormals='flush', checked=False, threads=2, verify=False, dump=None, device=None, "
        "seed=0, resident=None, tune='model', tune_budget=None, tuned=None, "
        "progress=None, library='auto', disable=(), math='auto', scan='ordered', plan=None, "
        "sizes='auto', compile='now', specialise='model', cost='auto')"
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
        {"disable": "unswitch"},
        {"disable": (3,)},
        {"disable": None},
    ],
    ids=str,
)
def test_values_that_cannot_be(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ArgumentError, match=f"option {name} cannot be") as caught:
        Options(**wrong)
    assert caught.value.code == "PF490"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"tune": "mesure"}, "did you mean 'measure'?"),
        ({"denormals": " Keep"}, "did you mean 'keep'?"),
        ({"library": "openblas"}, "library='auto' is the default"),
        ({"math": "sloppy"}, "math='auto' is the default"),
        ({"threads": "4"}, "write threads=4"),
        ({"threads": 0}, "threads=None is the default"),
        ({"checked": "4"}, "checked=False is the default"),
        ({"disable": "unswitch"}, "write disable=('unswitch',)"),
        ({"disable": "unswitch, clean-up"}, "write disable=('unswitch', 'clean-up')"),
    ],
    ids=str,
)
def test_the_hint_for_a_wrong_value_can_be_written(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Options(**wrong)
    assert caught.value.diagnostics[0].hint == hint


def test_a_wrong_value_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MATH, "Sloppy")
    with pytest.raises(ArgumentError) as caught:
        Options()
    assert caught.value.diagnostics[0].hint == f"unset {ENV_MATH}, where it is from"


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(ArgumentError, match="PF490: there is no option 'checkd'") as caught:
        pf.compile("stdlib:relu", checkd=True)
    assert caught.value.diagnostics[0].hint == "did you mean 'checked'?"


# --- passes that are switched off --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("unswitch", ("unswitch",)),
        (" unswitch , unroll-and-jam:stencils,", ("unswitch", "unroll-and-jam:stencils")),
        ("", ()),
        (" , ", ()),
    ],
)
def test_passes_off_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setenv(ENV_DISABLE, text)
    assert Options().disable == names
    assert Options(disable=("fuse-loops",)).disable == ("fuse-loops",)


def test_names_may_be_a_list() -> None:
    assert Options(disable=["unswitch"]).disable == ("unswitch",)  # type: ignore[arg-type]


def test_names_are_sorted_and_once() -> None:
    names = ("unswitch", "fuse-loops", "unswitch", "unroll-and-jam", "unroll-dims", "clean-up")
    assert disabled_passes(Options(disable=names)) == (
        "clean-up",
        "fuse-loops",
        "unroll-and-jam",
        "unroll-dims",
        "unswitch",
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("unroll-and-jam:stencil", "did you mean 'unroll-and-jam:stencils'?"),
        ("nothing", "`polyfuse passes` lists them"),
    ],
)
def test_names_of_no_optional_pass_are_refused(name: str, hint: str) -> None:
    with pytest.raises(ArgumentError, match=f"no optional pass is called '{name}'") as caught:
        disabled_passes(Options(disable=(name,)))
    assert caught.value.code == "PF490"
    assert caught.value.diagnostics[0].hint == hint


def test_a_pass_that_others_need() -> None:
    with pytest.raises(ArgumentError, match="PF490: pass 'lower-statements' cannot be switched off"):
        disabled_passes(Options(disable=("lower-statements",)))


def test_they_are_refused_before_the_first_call() -> None:
    with pytest.raises(ArgumentError, match="PF490: no optional pass is called 'unswich'"):
        pf.compile("stdlib:relu", disable=("unswich",))


def test_every_optional_pass_can_be_switched_off() -> None:
    names = {p.name for found in passes().values() for p in found if p.optional}
    assert len(names) > 50
    assert set(disabled_passes(Options(disable=tuple(names)))) == names


DOUBLE = "op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = 2.0 * x[i]\n}"


def test_plans_without_a_pass_are_kept_apart() -> None:
    def key(*names: str) -> str:
        options = Options(disable=names)
        graph = pf.parse(DOUBLE).op().graph()
        return Compilation(graph, {"N": 8}, None, options, knobs=knobs_for("cpu", options)).key

    keys = [key(), key("unswitch"), key("unswitch", "fuse-loops"), key("clean-up")]
    assert len(set(keys)) == len(keys)
    assert key("fuse-loops", "unswitch") == key("unswitch", "fuse-loops")


def test_compiled_without_a_pass_gives_the_same() -> None:
    x = np.arange(100, dtype=np.float32)
    for names in ((), ("unswitch",), ("unroll-and-jam", "clean-up")):
        assert (pf.compile(DOUBLE, target="cpu", disable=names)(x) == 2 * x).all()
    with pytest.raises(ArgumentError, match="no optional pass"):
        pf.compile(DOUBLE, target="cpu", disable=("nothing",))(x)
