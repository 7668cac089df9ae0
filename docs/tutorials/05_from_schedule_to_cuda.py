"""# 5. From schedule to CUDA

A schedule says in which order statement instances run. A kernel for a GPU also says where: in which block
of threads, in which thread, in which element of a vector. Here we take the schedule of a softmax to CUDA,
read a kernel line by line, ask what it costs, and then break it on purpose.

Nothing here needs a GPU. An emulator runs the kernels on the CPU, thread by thread. Where a CUDA compiler
is installed (`pip install "polyfuse[cuda-compile]"`), it says what the kernels take; without one those
cells are skipped.
"""

# %%
from dataclasses import replace

import numpy as np

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda
from polyfuse.codegen.cuda.functions import lower_device
from polyfuse.cost.device import device, occupancy
from polyfuse.ir.index_expr import binary, product
from polyfuse.ir.kernel import placement
from polyfuse.ir.loop_ir import Barrier, format_block, map_nodes
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.mapping.gpu import row_shape
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.barriers.proof import check_barriers
from polyfuse.runtime.cuda.compiler import find_cuda_compiler
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.runtime.report import kernel_figures
from polyfuse.visualize.threads import thread_svg

try:
    find_cuda_compiler()
    have_compiler = True
except pf.ToolchainError as error:
    have_compiler = False
    print(f"{error}\nCells that compile are skipped.")

program = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")


def softmax(T: int, H: int) -> pf.Scheduled:
    """Layer I's schedule at one size."""
    return program.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion())


T, H = 65536, 1024
scheduled = softmax(T, H)
print(scheduled)

# %% [markdown]
# ## Coordinates
#
# `lower` makes a kernel of each of the three passes over a row. For a GPU every loop gets a *coordinate*:
#
# | coordinate | the iterations of a loop go to |
# |---|---|
# | `blk` | blocks of threads, which know nothing of each other |
# | `row` | rows of a block: threads with the same `ty` |
# | `rnd` | rounds: what a row of threads does again and again, one round after the other |
# | `thr` | threads of a row, `tx` |
# | `vec` | the elements of a vector, which a thread accesses at once |
# | `stp` | steps: a loop that the rows of a block share, each row taking every `TY`-th iteration |
# | `seq` | nowhere: a thread runs them in order |

# %%
kernels = scheduled.lower(target="cuda")
first = kernels.kernels[0]
print(first)
assert kernels.launches == 3
assert (first.threads, first.vector) == ((32, 4), 4)

# %% [markdown]
# The loop over rows `t` became `blk` and `row`: 4 rows a block. The loop over columns is a reduction, and
# 32 threads, one warp, share it: in a round they take 128 neighbouring elements, 4 each. Coordinates are
# plain index expressions of the loops they come from:

# %%
for coordinate, values in placement(first)["m"].items():
    print(f"{coordinate.value:4}", *values)
assert [str(v) for v in placement(first)["m"][Coordinate.THREAD]] == ["h//4%32"]

# %% [markdown]
# The mapping is a decision like any other, and it is explained. Neighbouring threads take neighbouring
# elements because the memory of a GPU is read in lines of 128 bytes: what a warp asks for in one
# instruction should lie together. A picture shows it; a line is one instruction of a warp, 512 bytes:

# %%
svg = thread_svg(first, "m")
assert svg.startswith("<svg") and svg.count("<rect") > 16 * 32
# Path("threads.svg").write_text(svg) saves it
print(kernels.explain())
assert "+ map m: 32 threads share a row, 4 rows a block, vectors of 4" in kernels.explain()

# %% [markdown]
# ## The loops of a thread
#
# CUDA has no parallel loops: the text of a kernel says what *one* thread does. So loops over blocks, rows
# and threads vanish, and `tx` and `ty` stand in their place. In the *loop IR* that comes out, `%acc` is a
# scalar of the thread:

# %%
(task,) = lower_device(first)
print(format_block(task.body))

# %% [markdown]
# Read it from the top. The thread starts with the identity of the maximum, takes 4 elements in each of 8
# rounds, combines its own maximum with those of the other lanes of the warp, and then the first thread of
# the row writes: all of them have the total, one store is enough.
#
# ## The CUDA source
#
# The same, printed. The prelude in front defines the words `pf_...`.

# %%
code = kernels.code()
assert isinstance(code, CudaCode)
source = code.source[code.source.index("// m__init") :]
print(source[: source.index("// e:")])

# %% [markdown]
# - `pf_load<4>` is one load of 16 bytes, the widest there is. It is used only where it is proved that the
#   address is a multiple of 16: `H` is a multiple of 4, so every row begins at one.
# - `m` starts at minus infinity, but nobody stores that: the initial store was merged into the final one.
# - Indices are `int`, because the ranges of all loops prove that 32 bits hold every index. They are 64 bits
#   wide where they must be.
# - The plan tells the runtime what to launch, and which arrays must be aligned.

# %%
print(code.plan)
assert "pf_load<4>(b_x" in source and "pf_store<4>(b_y" in source
assert "int block = blockIdx.x" in source
assert dict(code.plan.alignment)["x"] == 16
huge = softmax(4_000_000, 1024).lower(target="cuda").code().source
assert "pf_i64 block = blockIdx.x" in huge
odd = softmax(T, 1023).lower(target="cuda").code().source
assert "pf_load<4>(b_x, (c0 * 1023) + " in odd and "- ((c0 * 3) % 4)" in odd

# %% [markdown]
# With 1023 columns rows begin anywhere. Threads then count from the last multiple of 16 bytes before the
# row, which is `t*3%4` elements away, and conditions leave out what belongs to the neighbouring rows.
#
# ## Registers and occupancy
#
# A multiprocessor hides the latency of memory by having many warps to choose from. How many it can hold
# depends on what a kernel takes: a register file of 65,536 registers is divided among the threads. The
# compiler's report has the registers, the table of devices has the rest:

# %%
if have_compiler:
    table = kernels.resources("H200")
    print(table)
    for k in table.kernels:
        assert k.taken.spill_stores == k.taken.spill_loads == 0
        assert k.occupancy.fraction >= 0.5
    assert table.kernels[0].loads.wide == table.kernels[0].loads.all == 8
    assert "ld.global.nc.v4" in kernels.ptx("H200")

# %% [markdown]
# No *spills*: values that do not fit the registers and go to memory. All 8 loads of the first kernel,
# unrolled, are accesses of 16 bytes. `polyfuse emit FILE --stage resources` prints the same table.
#
# The occupancy follows from rules that one can try out. What if each thread took 128 registers?

# %%
h200 = device("H200")
for registers in (32, 64, 128, 255):
    print(f"{registers:3} registers: {occupancy(h200, 256, registers, 0)}")
assert occupancy(h200, 256, 32, 0).fraction == 1.0
assert occupancy(h200, 256, 128, 0).limiter == "registers"

# %% [markdown]
# ## How fast can it be?
#
# A softmax does little arithmetic on each element, so memory decides. Each kernel must move each of its
# arrays once; divided by the bandwidth of the device this is the time that no kernel beats (with arrays
# larger than the L2 cache).

# %%
light = 0.0
for figures in kernel_figures(kernels.ir, None):
    seconds = figures.bytes / h200.memory_bandwidth
    light += seconds
    rate = h200.memory_bandwidth / 1e12
    print(f"{figures.name}: {figures.bytes / 1e6:6.0f} MB, {seconds * 1e6:5.0f} us at {rate} TB/s")
once = 2 * T * H * 4 / h200.memory_bandwidth
print(f"together {light * 1e6:.0f} us; reading x and writing y once would take {once * 1e6:.0f} us")
assert 2.4 < light / once < 2.6

# %% [markdown]
# Two and a half times too much: `x` is read twice, and `e` goes to memory and comes back. Layer I cannot
# mend that, because each pass needs the whole row before it. Layer II, *stitching*, makes phases of one
# kernel of the passes, and a row stays on the chip between them.

# %%
stitched = kernels.apply(pf.Stitching())
print(pf.compare(kernels, stitched))
assert stitched.launches == 1
assert stitched.global_bytes == 2 * T * H * 4

# %% [markdown]
# ## Running it without a GPU
#
# `target="emulate"` compiles the very same source with the C++ compiler and runs it thread by thread. It is
# slow, so we take fewer rows, and three kernels again. The emulator can count how often each element is
# loaded:

# %%
small = softmax(16, H).lower(target="emulate")
small_code = small.code()
assert isinstance(small_code, CudaCode)
x = np.random.default_rng(0).standard_normal((16, H), dtype=np.float32)
y = np.empty_like(x)
emulated = EmulatedKernels(small_code, count=True)
emulated.run({"x": x, "y": y})
verdict = agrees(y, evaluate(small.ir.graph, {}, {"x": x})["y"], small.ir.graph.tensor("y").dtype)
print(f"error at most {verdict.worst_ratio:.3f} of the bound; {emulated.report.blocks} blocks")
assert verdict
loads, stores = emulated.report.loads, emulated.report.stores
for name in ("x", "e"):
    print(f"{name}: loads of an element in each kernel", [int(counts.max()) for counts in loads[name]])
assert [set(counts.flat) for counts in loads["x"]] == [{1}, {1}, {0}]
assert [set(counts.flat) for counts in loads["e"]] == [{0}, {0}, {1}]
assert [set(counts.flat) for counts in stores["y"]] == [{0}, {0}, {1}]

# %% [markdown]
# Each element is loaded once in each phase that needs it, and stored once: the bytes above are what is
# moved.
#
# ## Barriers
#
# Sixteen rows are too few for one warp each: a device has room for thousands of warps. So a whole block of
# 256 threads, 8 warps, shares a row now. Shuffles connect the lanes of one warp; between warps, values go
# through shared memory, and that needs barriers:

# %%
(shared_row,) = lower_device(small.kernels[0])
print(format_block(shared_row.body))
assert small.kernels[0].threads == (256, 1)
assert small_code.source.count("__syncthreads();  // red") == 2

# %% [markdown]
# The compiler put the barrier there because it was needed, and proved that it is enough: `check_barriers`
# asks for every two accesses of different threads to one element, one of them a write, whether a barrier
# lies between. Without it there is a witness:

# %%


def checked(body: tuple[object, ...]) -> object:
    """The verdict on a kernel's body."""
    blocks = product(tuple(binary("-", x.upper, x.lower) for x in shared_row.loops))
    for loop in reversed(shared_row.loops):
        body = (replace(loop, body=body),)
    return check_barriers(shared_row.kernel, body, blocks)


assert checked(shared_row.body)
refused = checked(map_nodes(shared_row.body, lambda node: () if isinstance(node, Barrier) else node))
print(refused.message)
assert not refused and refused.code == "PF530"

# %% [markdown]
# The emulator sees the same mistake from the other side. It knows nothing of the proof; it watches every
# access. We delete the barrier from the text, and run it:

# %%
without = small_code.source.replace("__syncthreads();  // red0", "// red0")
broken = replace(small_code, source=without)
try:
    EmulatedKernels(broken).run({"x": x, "y": np.empty_like(x)})
except pf.PolyfuseError as error:
    found = {d.code: d.message for d in error.diagnostics}
else:
    raise AssertionError("a missing barrier was not seen")
print(*found.values(), sep="\n")
assert "race" in found["PF730"] and "b_red0" in found["PF730"]

# %% [markdown]
# Some threads were late (a race), others so early that nothing had been written yet. On a GPU this kernel
# might have given right results for months.
#
# ## The shape of blocks
#
# How many threads share a row, and how many rows share a block? Short rows are packed, several to a warp;
# long ones get a block. What fills the device counts as well:

# %%
gpu = GpuTarget()
for lanes, rows in ((4, 65536), (32, 65536), (256, 65536), (256, 16), (4096, 65536)):
    tx, ty = row_shape(lanes, 4, rows, gpu)
    print(f"{rows:6} rows of {4 * lanes:6} elements: {tx:4} threads x {ty} rows")
assert row_shape(4, 4, 65536, gpu) == (4, 32)
assert row_shape(256, 4, 65536, gpu) == (32, 4) and row_shape(256, 4, 16, gpu) == (128, 1)

# %% [markdown]
# A `GpuTarget` can also be told what to do. All shapes are legal, and all give the same softmax:

# %%
for threads in (8, 32, 96, 256):
    shaped, _ = form_kernels(small.scheduled.ir, GpuTarget(row_threads=threads))
    out = np.empty_like(x)
    EmulatedKernels(emit_cuda(Request(shaped))).run({"x": x, "y": out})
    print(f"{threads:3} threads a row: blocks of {shaped.kernels[0].threads}")
    assert np.allclose(out, y, rtol=1e-5)

# %% [markdown]
# ## Atomics, and why their order is not fixed
#
# A scatter adds to elements that data name, and two threads may name the same one. Then the update must be
# *atomic*: read, add and write as one.

# %%
histogram = pf.parse("""
op weigh(bin: i32[N], w: f32[N], inout total: f32[K]) {
  total[bin[i]] += w[i]
}
""")
weigh = histogram.op().specialize(N=2048, K=4).schedule().lower(target="emulate")
weigh_code = weigh.code()
assert isinstance(weigh_code, CudaCode)
assert "pf_atomic_sum_f32(&b_total" in weigh_code.source
rng = np.random.default_rng(1)
bins, w = rng.integers(0, 4, 2048).astype(np.int32), rng.standard_normal(2048, dtype=np.float32)


def weighed(seed: int, weights: np.ndarray) -> np.ndarray:
    """The totals when threads run in the order of a seed."""
    total = np.zeros(4, np.float32)
    arrays = {"bin": bins, "w": weights, "total": total, "total__out": total}
    EmulatedKernels(weigh_code, seed=seed).run(arrays)
    return total


sums = [weighed(seed, w) for seed in range(4)]
print(*(f"{total[0]!r}" for total in sums))
assert len({total.tobytes() for total in sums}) > 1
assert all(np.allclose(total, sums[0], rtol=1e-4) for total in sums)

# %% [markdown]
# Which thread comes first is chance, and floating-point addition is not associative: another order, other
# last bits. That is no bug, and the bound of the reference covers every order. Where no rounding happens,
# every order gives the same:

# %%
whole = np.round(w)
assert len({weighed(seed, whole).tobytes() for seed in range(4)}) == 1

# %% [markdown]
# Reductions do *not* use atomics: they are combined in a fixed order, and give the same bits in every run.

# %%
assert "pf_atomic" not in source
results = []
for seed in range(3):
    out = np.empty_like(x)
    EmulatedKernels(small_code, seed=seed).run({"x": x, "y": out})
    results.append(out.tobytes())
assert len(set(results)) == 1

# %% [markdown]
# On a GPU, `pf.compile(program, target="cuda")` is all that is left to do; [targets](../lab/targets.md) says
# what was measured, and [the emulator's page](../internals/emulator.md) what it cannot see.
