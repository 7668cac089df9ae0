"""Docstrings of the public API have numpydoc's form, and say the truth of names and codes."""

from __future__ import annotations

import builtins
from dataclasses import replace

import pytest
from docstrings import SECTIONS, Documented, public
from package_sources import ROOT

import polyfuse as pf
from polyfuse import diagnostics

PUBLIC = public()
CODES = {p.stem for p in (ROOT / "docs" / "errors.d").glob("PF*.md")}
# A method of so many parameters may name them in its text.
FEW = 3
# What a method of a function takes as a call does.
OF_A_CALL = ("*args", "**kwargs")
# Classes whose objects other calls give: nobody passes what their constructors take.
GIVEN = {
    "pf.Compiled": "pf.compile",
    "pf.builder.OpBuilder": "ProgramBuilder.op",
    "pf.builder.Expression": "operators",
    "pf.builder.Value": "operators",
    "pf.builder.Index": "OpBuilder.index",
    "pf.builder.Tensor": "OpBuilder.param",
}
# Why a public class or function has no example of its own.
NO_EXAMPLE = {
    "pf.torch.TorchOperator": "what pf.torch.op gives, whose example has it",
    "pf.jax.JaxOperator": "what pf.jax.op gives, whose example has it",
}


def _is_error(d: Documented) -> bool:
    found = getattr(pf, d.name.split(".")[-1], None)
    return isinstance(found, type) and issubclass(found, BaseException | Warning)


def test_what_is_public_is_found() -> None:
    names = {d.name for d in PUBLIC}
    assert {"pf.compile", "pf.Options", "pf.Schedule.fuse", "pf.visualize.domain", "pf.torch.op"} <= names
    assert {f"pf.{n}" for n in pf.__all__} - names == {"pf.__version__", "pf.stdlib", "pf.open"}


@pytest.mark.parametrize("d", PUBLIC, ids=lambda d: d.name)
def test_form(d: Documented) -> None:
    assert d.summary and d.summary.rstrip().endswith((".", ":", "?")), "a summary that ends with a full stop"
    found = list(d.sections)
    assert set(found) <= set(SECTIONS), f"a section is called otherwise, or underlined: {found}"
    assert found == sorted(found, key=SECTIONS.index), "the order of numpydoc"
    assert d.codes <= CODES, d.codes - CODES
    for name in d.entries("Raises"):
        assert hasattr(diagnostics, name) or hasattr(builtins, name), name


@pytest.mark.parametrize("d", [d for d in PUBLIC if d.kind != "property"], ids=lambda d: d.name)
def test_parameters_are_documented_under_their_names(d: Documented) -> None:
    if d.name in GIVEN or _is_error(d):
        return
    if d.name.startswith("pf.Compiled.") and "Parameters" not in d.sections:
        d = replace(d, parameters=tuple(p for p in d.parameters if p not in OF_A_CALL))
    if d.kind == "class":
        told = (*d.entries("Parameters"), *d.entries("Attributes"))
        assert set(d.fields or d.parameters) <= set(told)
    elif d.kind == "method" and len(d.parameters) <= FEW and "Parameters" not in d.sections:
        words = set("".join(c if c.isalnum() or c == "_" else " " for c in d.doc).split())
        assert {p.strip("*") for p in d.parameters} <= words, "name them"
    else:
        assert sorted(d.entries("Parameters")) == sorted(d.parameters)


@pytest.mark.parametrize("d", [d for d in PUBLIC if d.kind in ("class", "function")], ids=lambda d: d.name)
def test_there_is_an_example(d: Documented) -> None:
    needs_none = d.name in NO_EXAMPLE or (_is_error(d) and d.name != "pf.PolyfuseError")
    assert (">>> " in d.doc) != needs_none
