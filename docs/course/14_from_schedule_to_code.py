"""# 14. From schedule to code

A schedule says when each instance runs. Code also says where: on which core and lane, in which block and
thread. This chapter takes one operator to C++ and to CUDA, reads both, and breaks one on purpose. It needs no
GPU.
"""

# %%
# ## The schedule
#
# Each row is divided by its sum. There are two passes over the row, in one loop over rows:

from dataclasses import replace

import numpy as np

import polyfuse as pf
from polyfuse.runtime.emulator.emulator import EmulatedKernels

program = pf.parse("""
op normalise(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t]    = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t]
}
op backwards(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, H - 1 - h] / s[t]
}
""")


def fused(name: str, **sizes: int) -> pf.Scheduled:
    """The schedule of layer I."""
    return program.op(name).specialize(**sizes).schedule().apply(pf.LoopFusion())


rows = fused("normalise", T=4096, H=1024)
assert rows.shape == "B1([B1(s); B1(y)])"
pf.visualize.tree(rows)

# %%
# ## C++
#
# Two passes that fetch and begin the next row early are switched off. The function is what one worker does,
# for the rows from `begin` to `end`:

plain = pf.Options(disable=("software-pipelining", "prefetch:rows"))
on_cpu = fused("normalise", T=64, H=1024).lower(plain, target="cpu").apply(pf.Stitching())
source = on_cpu.code().source
function = source[source.index("static __attribute__((noinline))") : source.index("PF_EXPORT void pf_k0_0")]
print(function)

# %%
# Read it with the tree beside it:
#
# - The loop over `it` is the parallel loop over `t`. A pool of threads calls the function with other ranges.
# - `r_s` is `s[t]`. Nobody outside of the iteration needs it, so it becomes a register. `0x0.0p+0f` is 0.
# - `acc0_v` has partial sums, one for each lane of some vectors: the
#   [reassociation](10_what_no_schedule_can_do.py) that a reduction allows. `pf_fold_sum_f32` adds them up.
# - `PF_IVDEP` tells the C++ compiler that iterations are independent, so it may use vectors.
# - The last loop is the second pass, over a row in the nearest cache.

assert "r_s" in function and "PF_IVDEP" in function and "begin" in function

# %%
# ## Places on a GPU
#
# A GPU runs blocks of threads. So loops get *coordinates*:

on_gpu = rows.lower(target="cuda").apply(pf.Stitching())
(kernel,) = on_gpu.kernels
print(kernel)
assert kernel.threads == (32, 4) and kernel.vector == 4
tiny = fused("normalise", T=4, H=16).lower(target="cuda").apply(pf.Stitching())
pf.visualize.placement(tiny, "x__row", "y", title="One block, and which row.thread has an element")

# %%
# A line in words: `h (parallel @thr: y->h//4%32)` means that thread `h//4%32` runs the instance of `y` at
# column `h`. The 1024 columns are split three times: `@vec` is a vector of 4 elements, `@thr` are 32 threads,
# `@rnd` are 8 rounds. `@blk` are blocks, `@row` the four rows of a block. In a round, neighbouring threads
# take neighbouring vectors, because a GPU reads memory in whole lines. The picture has a smaller block, with
# four threads a row.
#
# ## CUDA
#
# CUDA text says what *one* thread does. Loops over blocks, rows and threads became `block`, `ty` and `tx`:

cuda = on_gpu.code().source
cuda = cuda[cuda.index('extern "C"') :]
print(cuda)
assert cuda.count("pf_load<4>(b_x") == 1 and "__syncthreads" not in cuda

# %%
# - `__launch_bounds__(128)`: a block has 128 threads.
# - `b_x__row` has the 32 elements of a row that a thread keeps. When loops are unrolled all its indices are
#   known, so it becomes 32 registers.
# - `pf_load<4>` reads 16 bytes at once. A proof says that the address is a multiple of 16: `H` is one of 4.
# - `pf_warp_sum_f32` adds the parts of 32 threads. These are a *warp*: they run together and can pass
#   registers to each other. Then each has the sum.
# - The second pass reads registers: memory is read once and written once. `pf_alike_div_f32` divides by a
#   number that all threads share.
#
# ## Registers and occupancy
#
# A multiprocessor waits for memory by running other warps. It has 65,536 registers and room for 64 warps. The
# more registers a thread takes, the fewer warps fit. The share that fits is the *occupancy*:


def occupancy(registers: int, warps: int = 4) -> float:
    """Of the 64 warps of a multiprocessor, how many there are, in blocks of so many warps."""
    blocks = 65536 // (registers * 32 * warps)
    return min(64, blocks * warps) / 64


for registers in (32, 40, 64, 128):
    print(f"{registers:3} registers a thread: {occupancy(registers):.0%} of the warps")
assert occupancy(32) == 1 and occupancy(40) == 0.75

# %%
# A CUDA compiler knows how many registers a kernel takes (`pip install '.[cuda-compile]'` in a clone):

try:
    (found,) = on_gpu.resources("H200").kernels
    print(f"{found.taken.registers} registers: {found.occupancy.blocks_per_sm} blocks of 4 warps fit")
except pf.ToolchainError as error:
    print(error)

# %%
# Beside the 32 of `b_x__row`, some hold addresses and the sum.
#
# ## A barrier
#
# Sixteen rows are too few for a warp each, so a block of four warps shares a row. And `backwards` reads the
# row from its other end: what another thread has made goes through shared memory:

few = fused("backwards", T=16, H=1024).lower(target="emulate").apply(pf.Stitching())
code = few.code()
body = code.source[code.source.index('extern "C"') :]
print(body[body.index("pf_store<4>(b_e") : body.index("float r_s")])
assert body.count("__syncthreads();") == 1

# %%
# `__syncthreads` is the barrier. Two arrays in shared memory need it: `b_e`, the row, and `b_red0`, the sums
# of four warps. Both are written before it and read after it, so one barrier serves both, as its comment
# says.
#
# What is a barrier? Threads run at their own pace. Say that thread 0 runs to its end, then thread 1, and so
# on: a [schedule](06_legal_or_not.py). Here are four threads; `E` writes the row and `Y` reads it:

points = "{ E[i] : 0 <= i < 4; Y[i] : 0 <= i < 4 }"
needs = "{ E[i] -> Y[3 - i] : 0 <= i < 4 }"
alone = "{ E[i] -> [i, 0]; Y[i] -> [i, 1] }"
pf.visualize.dependences(points, needs, schedule=alone, title="Thread by thread, without a barrier")

# %%
# Two arrows go back in time. A barrier is one point in time for all threads: every write comes before it,
# every read after it. Then threads may take any order, even one that writes backwards:

barrier = "{ E[i] -> [0, 3 - i]; Y[i] -> [1, i] }"
pf.visualize.dependences(points, needs, schedule=barrier, title="With a barrier")

# %%
# ## Take it out
#
# polyfuse proves for every kernel that its barriers are enough. The *emulator* knows nothing of the proof. It
# runs the CUDA text on the CPU, thread by thread in a random order, and watches each access to memory:

x = np.random.default_rng(0).standard_normal((16, 1024)).astype(np.float32)
y = np.empty_like(x)
emulated = EmulatedKernels(code, count=True)
emulated.run({"x": x, "y": y})
e = np.exp(x)
assert np.allclose(y, e[:, ::-1] / e.sum(axis=1, keepdims=True), rtol=1e-5)
assert [set(n.flat) for n in emulated.report.loads["x"]] == [{1}], "each element is loaded once"

broken = replace(code, source=code.source.replace("__syncthreads();", ""))
try:
    EmulatedKernels(broken).run({"x": x, "y": y})
except pf.PolyfuseError as error:
    found = {d.code: d.message for d in error.diagnostics}
print(*found.values(), sep="\n")
assert "race" in found["PF730"]

# %%
# Both are reads that came before the write: the first is seen at the read, the second at the write. A GPU
# might have given right results for months. [The emulator's page](../internals/emulator.md) says what it
# sees.
#
# ## Exercise
#
# 1. A thread takes 128 registers. How many warps fit, in blocks of 4?
# 2. A warp has a row of 8192 elements. How many would a thread keep? A thread has 255 registers at most. What
#    should the compiler do?
# 3. Replace `e[t, H - 1 - h]` by `e[t, h]`, with 4096 rows of 1024. Does the kernel need a barrier?
#
# <details><summary>Answer</summary>
#
# 1. 65,536 / (128 x 32) = 16 warps: an occupancy of 25 %.
# 2. 256 elements, which do not fit. With 4 warps a row a thread keeps 64. Then their sums go through shared
#    memory, and that needs a barrier.
# 3. No. Each thread reads what it has made, and the warp adds up by itself: everything is Local.
#
# </details>
#
# Next: [model against clock](15_model_against_clock.py).
