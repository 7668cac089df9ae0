"""Features of a GPU's kernels, and samples of what was timed on one."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from polyfuse.cost.device import device
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.learn.features import KernelGraph
from polyfuse.learn.gpu_features import GPU_FEATURES_VERSION, GPU_KERNEL_FEATURES, gpu_graphs
from polyfuse.learn.nodes import NODE_FEATURES, OPCODES
from polyfuse.learn.samples import collected, load, merge
from polyfuse.options import Options

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.gpu_cases import cases
from benchmarks.learn_gpu import samples_of

H200 = device("H200")
NORM = """op norm(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = mean[h](x[t, h])
  y[t, h] = x[t, h] - m[t]
}"""


def graphs(text: str, **sizes: int) -> tuple[KernelGraph, ...]:
    programs = parse_text(text)
    graph = instantiate(programs, programs.ops[0].name)
    options = Options(device="H200", progress=False, verify=False, dump=None)
    made = Compilation(
        graph, sizes, LoopFusion(), options, target="emulate", stitching=Stitching(), packing=Packing()
    )
    return gpu_graphs(made.lowered(Watch(options)).kernels, H200)


def test_equal_kernels_have_equal_features_whatever_their_names() -> None:
    other = NORM.replace("x", "given").replace("m[", "total[").replace("T", "ROWS").replace("norm", "f")
    first, second = graphs(NORM, T=512, H=256), graphs(other, ROWS=512, H=256)
    assert [g.key for g in first] == [g.key for g in second]
    assert [g.key for g in graphs(NORM, T=512, H=512)] != [g.key for g in first]


def test_launches_have_loops_over_blocks_and_threads() -> None:
    (g,) = graphs(NORM, T=4096, H=256)
    opcodes = {OPCODES[k] for k in g.opcodes}
    assert {"loop.blk", "loop.thr", "load", "store", "combine"} <= opcodes
    figures = dict(zip(GPU_KERNEL_FEATURES, (2.0 ** g.kernel.astype(np.float64) - 1).tolist(), strict=True))
    assert figures["multiprocessors"] == pytest.approx(H200.sms, rel=1e-4)
    assert figures["read bytes"] == pytest.approx(4096 * 256 * 4, rel=1e-4)
    assert figures["projected ns"] > 0 and np.isfinite(g.nodes).all()


def test_other_features_have_another_version() -> None:
    names = "\n".join((*OPCODES, *NODE_FEATURES, *GPU_KERNEL_FEATURES))
    digest = hashlib.sha256(names.encode()).hexdigest()[:12]
    assert (GPU_FEATURES_VERSION, digest) == (1, "08a67aebf943")


def test_a_record_becomes_samples(tmp_path: Path) -> None:
    label = next(c.label for c in cases() if c.name == "softmax")
    turns = [0.10, 0.11, 0.10, 0.12, 0.10]
    rows = [
        {"plan": "as the model has it", "changes": [], "turns": turns},
        {"plan": "8 rows a block", "changes": ["8 rows a block"], "turns": turns},
        {"plan": "2 rows a block", "changes": ["2 rows a block"], "turns": turns[:2]},
        {"plan": "4 rows a block", "changes": ["4 rows a block"], "note": "it crashed the compiler"},
    ]
    found = collected(samples_of(label, rows, H200), kind="gpu")
    assert len(found) == 2 and found.default.tolist() == [True, False]
    assert found.seconds.tolist() == pytest.approx([1e-4, 1e-4]) and (found.projected > 0).all()
    found.save(tmp_path / "g.xz")
    again = load(tmp_path / "g.xz")
    assert again.kind == "gpu" and [g.key for g in again.graphs] == [g.key for g in found.graphs]
    assert not list(samples_of("no such case", rows, H200))
    with pytest.raises(ValueError, match="belong together"):
        merge([again, collected([])])
