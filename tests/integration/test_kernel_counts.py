"""Kernels of the models, library calls left out: they may become fewer, never more.

`MOST` is what is reached; who makes a count smaller writes it down here.  What other compilers make of the
same models is counted by `benchmarks.kernel_counts` (docs/lab/kernel_counts.md), whose counters are
tried on texts here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks import kernel_counts  # noqa: E402
from benchmarks.count_ours import count_ours  # noqa: E402
from benchmarks.count_peers import PEERS, largest_error, tolerance  # noqa: E402
from benchmarks.generated_kernels import InductorCount, XlaCount, count_inductor, count_xla  # noqa: E402
from benchmarks.model_cases import ModelCase, case, cases  # noqa: E402

# On a CPU, an H200, a V100.
MOST = {
    "encoder": (5, 2, 1),
    "encoder_train": (5, 2, 1),
    "encoder_backward": (6, 4, 1),
    "lstm": (1, 2, 2),
    "dien_attention": (1, 1, 1),
    "dien": (2, 4, 4),
    "yolo_loss": (1, 3, 1),
    "adamw_50": (1, 1, 1),
    "adamw_200": (1, 1, 1),
    "lamb_50": (1, 1, 1),
    "lamb_200": (1, 1, 1),
    "forty": (1, 1, 1),
    "branches": (1, 1, 1),
    "losses": (1, 1, 1),
    "added": (1, 1, 1),
    "casts": (1, 1, 1),
}
# Graphs of a thousand statements compile for seconds.
LARGE = ("adamw_200", "lamb_200")
MODELS = [pytest.param(c, marks=[pytest.mark.slow] * (c.name in LARGE), id=c.name) for c in cases()]
# Two GPUs differ in little else than how much they hold at once: one of each kind of model for the second.
BOTH_GPUS = ("encoder", "lstm")
# Compiled for a CPU alone, as others of their kind are for a GPU.
ON_CPU = ("encoder_train", "yolo_loss")


def usual(model: str, target: str) -> bool:
    on_gpu = model in BOTH_GPUS if target == "V100" else target == "cpu" or model not in ON_CPU
    return model not in LARGE and on_gpu


PAIRS = [
    pytest.param(c, t, marks=[pytest.mark.slow] * (not usual(c.name, t)))
    for c in cases()
    for t in kernel_counts.TARGETS
]


@pytest.mark.parametrize(("model", "target"), PAIRS, ids=str)
def test_kernels_are_not_more_than_before(model: ModelCase, target: str) -> None:
    found = count_ours(model.graph, model.sizes, *kernel_counts.TARGETS[target])
    assert found.kernels <= MOST[model.name][list(kernel_counts.TARGETS).index(target)]
    assert found.nests >= found.kernels


def test_every_model_has_a_count() -> None:
    assert list(MOST) == [c.name for c in cases()]


def test_no_peer_had_fewer() -> None:
    """In what was counted last, and there is a column for each."""
    rows = json.loads(kernel_counts.COUNTS.read_text(encoding="utf-8"))["models"]
    assert list(rows) == list(MOST)
    assert all(peer in row for row in rows.values() for peer in PEERS)
    assert not kernel_counts.complaints(rows)


def test_complaints() -> None:
    row = {
        "cpu": {"kernels": 3},
        "H200": {"kernels": 2},
        "V100": {"kernels": 2},
        "torch": {"functions": 1, "nests": 2, "error": 1e-9},
        "jax": {"fusions": 2, "loops": 1, "error": 0.5},
    }
    assert kernel_counts.smaller(row) == 2
    assert kernel_counts.complaints({"lstm": row}) == [
        "lstm, cpu: 3 kernels, a peer has 2",
        "lstm, cpu: 3 kernels, Inductor has 1 functions",
        "lstm: jax computes something else, error 0.5",
    ]


def test_matrix_products_are_no_kernels() -> None:
    """A library's on a CPU; what is fused with a generated one is a kernel."""
    model = case("lstm")
    on_cpu = count_ours(model.graph, model.sizes, "cpu")
    assert (on_cpu.kernels, on_cpu.products) == (1, 2)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("model", MODELS)
def test_peers_are_given_the_same_mathematics(peer: str, model: ModelCase) -> None:
    pytest.importorskip(peer)
    assert largest_error(peer, model) <= tolerance(model)


# --- the counters --------------------------------------------------------------------------------------

INDUCTOR = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)
{
    #pragma omp parallel num_threads(2)
    {
        {
            #pragma omp for
            for(int64_t x0=0; x0<8; x0+=1)
            {
                for(int64_t x1=0; x1<8; x1+=1)
                {
                    out_ptr0[x1] = in_ptr0[x1];
                }
            }
        }
        {
            for(int64_t x0=0; x0<8; x0+=1)
            {
                {
                    out_ptr0[x0] = 2;
                }
            }
        }
    }
}
''')

cpp_fused_one_1 = async_compile.cpp_pybinding(['float*'], r'''
extern "C"  void  kernel(float* out_ptr0)
{
    out_ptr0[0] = 1;
}
''')

def call(args):
    for k in range(2):
        extern_kernels.mm(a, b, out=c)
        cpp_fused_add_0(a, b)
    cpp_fused_one_1(b)
"""

HLO = """HloModule jit_f

%fused_computation (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} exponential(%p)
}

%fused_product (p: f32[8,8], q: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %q = f32[8,8]{1,0} parameter(1)
  ROOT %d = f32[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8]{0} get-tuple-element(%t), index=1
  %step = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused_computation
  ROOT %u = (s32[], f32[8]{0}) tuple(%i, %step)
}

%condition (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %less = pred[] compare(%i, %i), direction=LT
}

ENTRY %main (a: f32[8,8], x: f32[8]) -> f32[8] {
  %a = f32[8,8]{1,0} parameter(0)
  %x = f32[8]{0} parameter(1)
  %product = f32[8,8]{1,0} fusion(%a, %a), kind=kCustom, calls=%fused_product
  %r = f32[8]{0} reduce(%product, %x), dimensions={1}, to_apply=%add
  %start = (s32[], f32[8]{0}) tuple(%x, %r)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_functions_and_loop_nests_of_inductor() -> None:
    assert count_inductor(INDUCTOR) == InductorCount(functions=2, nests=3, calls=2)


def test_fusions_and_loops_of_xla() -> None:
    """The fusion in the body of the loop; the reduction and the comparison, which are not fused."""
    assert count_xla(HLO) == XlaCount(fusions=1, loops=2, library=1)
