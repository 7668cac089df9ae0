"""# 6. Stitching a layer normalisation

Layer I fuses loops. It cannot merge the passes over a row of a normalisation, because each needs the
*whole* row before it: the variance needs the mean, the result needs the variance. Layer II, *stitching*,
leaves the passes as they are and puts them into one kernel, as *phases* of a row. What they hand on then
never leaves the chip.

Here we do it step by step, forward and then backward. Nothing needs a GPU: kernels are made for one, and
run in the emulator.
"""

# %%
import statistics
import time

import numpy as np

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.kernel import Scope
from polyfuse.ir.schedule_tree import Member
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling.placement import Links
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

program = pf.parse("""
op layer_norm(x: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  var[t] = mean[h]((x[t, h] - mu[t]) ** 2)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
}
""")
T, H = 4096, 768
scheduled = program.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion())
print(scheduled.tree)

# %% [markdown]
# ## Three kernels
#
# `lower` cuts the tree between the passes: a kernel each.

# %%
before = scheduled.lower(target="cuda")
for kernel in before.kernels:
    print(kernel.name, "runs", ", ".join(kernel.statements))
assert before.launches == 3

# %% [markdown]
# ## What goes between them
#
# A kernel ends when all its blocks have ended, and what it made for the next must be in global memory: here
# one number a row, twice. That is little. The larger cost is what the kernels read again:

# %%
readers = {
    name: sum(b.tensor == name for k in before.kernels for b in k.buffers)
    for name in ("x", "mu__sum", "var__sum")
}
print("kernels that use it:", readers)
assert readers["x"] == 3
between = {b.tensor for k in before.kernels for b in k.buffers if b.scope is Scope.GLOBAL}
print("through global memory:", sorted(between))
assert between == {"mu__sum", "var__sum"}
print(
    f"{before.global_bytes / 1e6:.1f} MB move; reading x and writing y once is {2 * T * H * 4 / 1e6:.1f} MB"
)
assert before.global_bytes > 1.9 * 2 * T * H * 4

# %% [markdown]
# ## The question
#
# May the three share a loop over rows? Look at everything that goes from one to another. As a relation, from
# instances of the first pass to instances of the second:

# %%
links = Links(build_model(scheduled.graph))
flow = links.flow(["mu__sum"], ["var__sum"])
print(flow)

# %% [markdown]
# If both ends of every pair have the same `t`, then iteration `t` of the second needs iteration `t` of the
# first and no other, and the two may run one after the other in *one* iteration. That is a subset test, and
# isl answers it. The same question for `h` has another answer: all elements of a row go into its mean.

# %%


def agree(dim: str, first: str, second: str) -> bool:
    """Has the dim the same value at both ends of everything that goes from one statement to the other?"""
    mine, theirs = (Member(dim, ((name, IVar(dim)),)) for name in (first, second))
    return links.agree(links.flow([first], [second]), mine, theirs)


print("t:", agree("t", "mu__sum", "var__sum"), " h:", agree("h", "mu__sum", "var__sum"))
assert agree("t", "mu__sum", "var__sum") and agree("t", "var__sum", "y")
assert not agree("h", "mu__sum", "var__sum")

# %% [markdown]
# ## One kernel
#
# `apply(Stitching())` asks that question for every two nests that anything ties, and joins those that
# agree. Its decisions are explained, with what each saves:

# %%
after = before.apply(pf.Stitching())
print("\n".join(line for line in after.explain().splitlines() if "stitch" in line or "row" in line))
assert "+ stitch var__sum to mu__sum: they agree on t" in after.explain()
print(pf.compare(before, after))
assert after.launches == 1
assert after.global_bytes < 1.01 * 2 * T * H * 4

# %% [markdown]
# Half the bytes, and a third of the launches. The kernel is one loop over rows with three phases in it.
# `mu__sum` and `var__sum` became registers, and a tensor is new: `x__row`, the row as its threads keep it.

# %%
(kernel,) = after.kernels
print(kernel)
scopes = {b.tensor: b.scope for b in kernel.buffers}
assert scopes["mu__sum"] is scopes["var__sum"] is Scope.REGISTER
assert scopes["x__row"] is Scope.LOCAL

# %% [markdown]
# ## Its source
#
# A warp has a row: 32 threads, 24 elements each. Read how `x` is loaded once, in the first phase, and how
# the other two use `b_x__row`, an array that the compiler of CUDA keeps in registers, because all its
# indices are known when loops are unrolled. Between phases there is nothing, not even a barrier: after
# `pf_warp_sum_f32` every lane has the sum.

# %%
code = after.code()
assert isinstance(code, CudaCode)
source = code.source[code.source.index('extern "C"') :]
print(source)
assert source.count("pf_load<4>(b_x,") == 1 and source.count("__global__") == 1
assert "__syncthreads" not in source

# %% [markdown]
# ## Counting loads
#
# The emulator counts accesses. It is slow, so this is done with 16 rows. There are fewer rows than a GPU
# has room for warps; a row gets a whole block then, and sums go through shared memory. But the row is still
# read once:

# %%
rng = np.random.default_rng(0)


def emulated(kernels: pf.Kernels, arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """Loads of each element of the inputs; checks the results against the reference."""
    code = kernels.code()
    assert isinstance(code, CudaCode)
    machine = EmulatedKernels(code, count=True)
    machine.run(arrays)
    graph = kernels.scheduled.specialized.graph
    want = evaluate(graph, {}, {n: arrays[n] for n in graph.inputs})
    assert all(agrees(arrays[n], want[n], graph.tensor(n).dtype) for n in graph.outputs)
    return {n: int(counts.sum(axis=0).max()) for n, counts in machine.report.loads.items()}


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


few = program.op().specialize(T=16, H=H).schedule().apply(pf.LoopFusion()).lower(target="emulate")
arrays = {"x": normal(16, H), "gamma": normal(H), "beta": normal(H), "eps": np.float32(1e-5)}
apart = emulated(few, {**arrays, "y": np.empty((16, H), np.float32)})
together = emulated(few.apply(pf.Stitching()), {**arrays, "y": np.empty((16, H), np.float32)})
print("loads of an element of x:", apart["x"], "before,", together["x"], "after")
assert (apart["x"], together["x"]) == (3, 1)

# %% [markdown]
# ## On a CPU
#
# The same pass works for a CPU, where a row stays in the cache of the worker that has it. This machine's
# times, the median of some runs:

# %%


def milliseconds(kernels: list[pf.Kernels], arrays: dict[str, np.ndarray]) -> list[float]:
    """Of each, run in turn, so that a busy moment meets them all."""
    machines = [k.build() for k in kernels]
    times: list[list[float]] = [[] for _ in machines]
    for _ in range(15):
        for mine, machine in zip(times, machines, strict=True):
            start = time.perf_counter()
            machine.run(arrays)
            mine.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(mine) for mine in times]


arrays = {"x": normal(T, H), "gamma": normal(H), "beta": normal(H), "eps": np.float32(1e-5)}
arrays["y"] = np.empty((T, H), np.float32)
plain = scheduled.lower(target="cpu")
times = milliseconds([plain, plain.apply(pf.Stitching())], arrays)
print(f"{times[0]:.2f} ms before, {times[1]:.2f} ms after")
want = evaluate(plain.ir.graph, {}, {n: arrays[n] for n in plain.ir.graph.inputs})["y"]
assert agrees(arrays["y"], want, plain.ir.graph.tensor("y").dtype)
assert plain.launches == 3 and plain.apply(pf.Stitching()).launches == 1

# %% [markdown]
# ## Backward: rows and columns at once
#
# The gradient is harder. `dx` needs two sums of each row. But `dgamma` and `dbeta` are sums of each
# *column*, of the same two inputs.

# %%
gradient = pf.parse("""
op layer_norm_backward(dy: f32[T, H], x: f32[T, H], gamma: f32[H], mu: f32[T], rstd: f32[T])
    -> (dx: f32[T, H], dgamma: f32[H], dbeta: f32[H]) {
  xhat[t, h] = (x[t, h] - mu[t]) * rstd[t]
  g[t, h] = dy[t, h] * gamma[h]
  c1[t] = mean[h](g[t, h])
  c2[t] = mean[h](g[t, h] * xhat[t, h])
  dx[t, h] = rstd[t] * (g[t, h] - c1[t] - xhat[t, h] * c2[t])
  dgamma[h] = sum[t](dy[t, h] * xhat[t, h])
  dbeta[h] = sum[t](dy[t, h])
}
""")
back = gradient.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion()).lower(target="cuda")
joined = back.apply(pf.Stitching())
print("\n".join(x for x in joined.explain().splitlines() if x[2:].startswith(("stitch", "rfactor", "grid"))))
print(pf.compare(back, joined))
assert back.launches == 3 and joined.launches <= 2
assert joined.global_bytes < 0.65 * back.global_bytes
assert "+ rfactor dgamma, dbeta" in joined.explain()

# %% [markdown]
# `t` reduces for the column sums, and blocks have different rows, so no block can finish a column alone.
# The reduction is *factored*: each block adds up the columns of the rows it has, in registers, next to the
# work on those rows; then the parts of all blocks are added up, in a launch of its own or after a barrier
# of the whole grid. `x` and `dy` are read for all of it together:

# %%
tensors = [b.tensor for k in joined.kernels for b in k.buffers]
assert tensors.count("x") == tensors.count("dy") == 1
parts = next(b for k in joined.kernels for b in k.buffers if b.tensor == "dgamma__part")
print("partial sums:", parts.extents[0], "rows instead of", T)
assert "dgamma__acc" in tensors

# %% [markdown]
# The numbers are right as well:

# %%
small = gradient.op().specialize(T=24, H=40).schedule().apply(pf.LoopFusion()).lower(target="emulate")
arrays = {
    "dy": normal(24, 40),
    "x": normal(24, 40),
    "gamma": normal(40),
    "mu": normal(24),
    "rstd": normal(24),
}
results = {"dx": np.empty((24, 40), np.float32), "dgamma": np.empty(40, np.float32)}
loads = emulated(small.apply(pf.Stitching()), {**arrays, **results, "dbeta": np.empty(40, np.float32)})
print("agrees with the reference;", small.apply(pf.Stitching()).launches, "of", small.launches, "kernels")

# %% [markdown]
# ## Steps that take turns
#
# What goes from one step of a recurrence to the next is kept as long as somebody asks for it. On a CPU, a
# plate of 100 steps is two plates in memory, since only the last step is a result; isl is asked how many
# steps live at a time, and dataflow analysis whether every read then finds its own element.

# %%
plate = pf.parse("""
op plate(x: f32[H, W]) -> (y: f32[H, W]) where H >= 3, W >= 3 {
  u[0, i, k] = x[i, k]
  u[t, i, k] = (0.25 * (u[t-1, i-1, k] + u[t-1, i+1, k] + u[t-1, i, k-1] + u[t-1, i, k+1])
      if 1 <= i < H - 1 and 1 <= k < W - 1 else u[t-1, i, k]) for t in 1..101, i in 0..H, k in 0..W
  y[i, k] = u[100, i, k]
}
""")
steps = plate.op().specialize(H=200, W=300).schedule().apply(pf.LoopFusion()).lower(target="cpu")
turns = [x for x in steps.explain().splitlines() if x.startswith("+ fold")]
print("\n".join(turns))
assert turns == ["+ fold u: 2 steps of it live at a time, and take turns in their memory"]

# %% [markdown]
# ## What it refuses
#
# Stitching costs parallelism: only the rows are left to spread over the device. With four long rows that is
# too little, and the three passes are spread over the elements of a row instead:

# %%
long = program.op().specialize(T=4, H=1_000_000).schedule().apply(pf.LoopFusion()).lower(target="cuda")
refused = [x for x in long.apply(pf.Stitching()).explain().splitlines() if x.startswith("- stitch")]
print("\n".join(refused))
assert any("only 4 iterations of t would run in parallel" in x for x in refused)

# %% [markdown]
# And some loops do not agree: after the sum of a column, rows that were finished have to be visited again.

# %%
both = pf.parse("""
op both(x: f32[T, H]) -> (z: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t]
  c[h] = sum[t](y[t, h])
  z[t, h] = y[t, h] - c[h]
}
""")
kernels = both.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion()).lower(target="cuda")
refused = [x for x in kernels.apply(pf.Stitching()).explain().splitlines() if x.startswith("- stitch")]
print("\n".join(refused))
assert any("no loop of the two agrees on what goes from one to the other" in x for x in refused)

# %% [markdown]
# [Tutorial 7](07_four_schemes.py) asks the same question of threads and blocks, and draws the answers;
# [Stitching](../explanation/stitching.md) has all rules.
