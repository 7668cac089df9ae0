"""The benchmark of single choices: each of them changes the code of a workload that it is measured with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import this_core
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.toolchain import compiler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.choices import CHOICES, PAGE, Case, Choice  # noqa: E402
from benchmarks.pages import BEGIN, END, write_measured  # noqa: E402
from benchmarks.workload import load  # noqa: E402

# What a choice changes, it need not change on every core.
pytestmark = pytest.mark.machine("zen5")


def code(case: Case, knobs: CpuKnobs) -> tuple[str, tuple[str, ...]]:
    """The source, and the flags of its compiler."""
    workload = load(case.workload)
    layers = {"fusion": LoopFusion(), "stitching": Stitching(), "packing": Packing()}
    options = Options(threads=2, verify=True, progress=False)
    graph = instantiate(case.program(workload).programs, workload.name)
    compilation = Compilation(
        graph, case.of(workload), options=options, knobs=CpuKnobs(core=this_core()), **layers
    )
    chosen = Compilation(**{**vars(compilation), "knobs": knobs})
    source = emitted(Watch(options), chosen)[1].source
    return source, compiler.flags_for(source, compiler.find_compiler())


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_leaving_it_out_changes_the_code(choice: Choice) -> None:
    def differs(case: Case) -> bool:
        usual = code(case, CpuKnobs())
        with choice.left_out():
            return code(case, choice.knobs) != usual

    assert any(map(differs, choice.cases))


def test_all_of_them_are_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {c.name} | {case} |" in text for c in CHOICES for case in c.cases)


@pytest.mark.parametrize("tail", ["", f"\n{END}\nwhat follows\n"])
def test_only_the_measured_part_of_a_page_is_written(tail: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\n\nold\nrows\n{tail}", encoding="utf-8")
    write_measured(page, "new\n")
    assert page.read_text(encoding="utf-8") == f"# Title\n\n{BEGIN}\n\nnew\n{tail}"
