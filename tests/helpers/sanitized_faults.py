"""A script for a process with sanitizers: functions that go one element too far, each in its own way.

python -m polyfuse.runtime.toolchain.run_sanitized tests/helpers/sanitized_faults.py NAME...

All names run in one call of the pool; `right` is the function that does nothing wrong.
"""

from __future__ import annotations

import sys

import numpy as np

from polyfuse.codegen.cpu.emit import SANITIZED, CpuCode
from polyfuse.codegen.cpu.memory_ops import STREAM
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import MASKS
from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import as_index
from polyfuse.ir.launch_plan import Kind, Launch, LaunchPlan, PlanBuffer
from polyfuse.runtime.cpu.executable import CpuExecutable

ELEMENTS = 7
KINDS = {"x": Kind.INPUT, "y": Kind.OUTPUT, "t": Kind.WORKSPACE, "u": Kind.WORKSPACE}
# Sevens that the compiler does not see: `n` is as many as there are.
TEXTS = {
    "argument": "y[0] = x[n];",
    "before_it": "y[0] = x[n - 8];",
    "result": "y[n] = 1;",
    "temporary": "t[n] = 1;",
    "other_temporary": "u[n] = 1;",
    "own_array": "own_array(n + 1, (float*)PF_OWN(0, 28), (float*)PF_OWN(64, 28));",
    "local_array": "float a[7]; a[n] = 1; y[0] = a[n];",
    "overflow": "y[0] = (float)(n * ((pf_i64)1 << 62));",
    "whole_vector": "typedef float v __attribute__((vector_size(32), aligned(4))); *(v*)y += 1;",
    "unaligned": "y[0] = *(const float*)((const char*)x + n % 4);",
    "streamed": "__attribute__((aligned(64))) float a[16] = {}; pf_stream(y, a, sizeof a);",
    "masked": """
#ifdef PF_MASKS
  __attribute__((aligned(64))) float a[16];
  pf_take(a, x, 4 * (n + 1), sizeof a);
  y[0] = a[0];
#else
  y[0] = x[n];
#endif
""",
    "right": "right(n, (float*)PF_OWN(0, 28), (float*)PF_OWN(64, 28)); y[n - 1] = x[n - 1] + t[n - 1];",
}
FUNCTION = """
__attribute__((noinline)) static void {name}(pf_i64 n, float* one, float* other) {{
  one[n - 1] = other[0] = 1;
}}
extern "C" __attribute__((visibility("default"))) void fault_{name}(
    char* const* buf, const pf_i64* num, char* scratch, pf_i64 begin, pf_i64 end) {{
  float *x = (float*)buf[0], *y = (float*)buf[1], *t = (float*)buf[2], *u = (float*)buf[3];
  const pf_i64 n = num[0];
  (void)x; (void)y; (void)t; (void)u; (void)scratch; (void)begin; (void)end;
  {text}
}}
"""


def run(names: list[str]) -> None:
    before = prelude(()) + SANITIZED + STREAM + MASKS
    source = before + "".join(FUNCTION.format(name=n, text=TEXTS[n]) for n in names)
    size = as_index(ELEMENTS)
    buffers = tuple(PlanBuffer(name, F32, (size,), kind) for name, kind in KINDS.items())
    once = as_index(1)
    launches = tuple(Launch(f"fault_{n}", n, once, once, once, False) for n in names)
    plan = LaunchPlan(buffers, launches, 128, sizes=("N",))
    executable = CpuExecutable(CpuCode(source, plan, ()), {"N": ELEMENTS})
    x = np.zeros(ELEMENTS, np.float32)
    executable.run({"x": x, "y": executable.output(buffers[1])})
    print("ended")


if __name__ == "__main__":
    run(sys.argv[1:])
