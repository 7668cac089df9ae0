"""# 1. A first operator

You write what each element of a result is, and polyfuse makes one kernel of it. This chapter takes softmax
from text to a result, and asks why one pass over memory is faster than four.
"""

# %%
# ## Four lines
#
# Softmax turns each row of a matrix into weights that add up to 1. Its definition, line by line:

import numpy as np

import polyfuse as pf

program = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")

# %%
# `T` and `H` are sizes; arguments bring their values. `t` and `h` are indices. You write no loop: `m[t]` is
# defined for every `t`, and `max[h]` runs over every `h`.
#
# ## Run it, check it
#
# `pf.compile` gives a function of arrays. NumPy has no softmax, so we write it, to compare with:

f = pf.compile(program)
x = np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
y = f(x)


def with_numpy(x: np.ndarray) -> np.ndarray:
    """The same four lines, an array at a time."""
    m = x.max(axis=1, keepdims=True)
    e = np.exp(x - m)
    s = e.sum(axis=1, keepdims=True)
    return e / s


error = np.abs(y - with_numpy(x.astype(np.float64))).max()
print(f"largest difference: {error:.1e}; a row adds up to {y[0].sum():.6f}")
assert error < 1e-6

# %%
# ## Time it
#
# polyfuse can also keep the lines apart, each in loops of its own. Of ten calls the fastest counts, on the
# machine that made this page:

import time


def milliseconds(call) -> float:
    """The least of ten calls."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


line_by_line = pf.schedule(program, "softmax", T=4096, H=1024).compile()
for name, call in (("fused", f), ("line by line", line_by_line), ("NumPy", with_numpy)):
    print(f"{name:12s} {milliseconds(call):6.2f} ms")

# %%
# The first two differ by fusion. NumPy loses more for other reasons, such as one core and a new array for
# each line.
#
# ## Why one kernel
#
# Line by line, or *unfused*, each line reads whole arrays from memory and writes whole arrays back. `e` is as
# large as `x`: it goes to memory and comes back twice. In the compiler `specialize` gives sizes,
# `schedule` gives each line loops, and `lower` makes kernels of loops:

unfused = program.op().specialize(T=4096, H=1024).schedule()
fused = unfused.apply(pf.LoopFusion())
apart = unfused.lower(target="cpu")
together = fused.lower(target="cpu").apply(pf.Stitching())
pf.visualize.plan(apart, together, names=("unfused", "fused"))

# %%
# A box is a *kernel*: a function that runs over all of its data before the next one starts. Fusion has three
# *layers*: I (`LoopFusion`) puts lines into common loops, II (`Stitching`) puts loops that stay apart into
# one kernel, III is [packing](12_packing.py).
#
# In the fused form one kernel does all lines for one row, then for the next row. A row has 4 kB, so it stays
# in the cache of the processor from line to line. Only `x` comes from memory, and only `y` goes there. The
# *cost model* of the compiler counts the bytes:

picture = pf.visualize.traffic(apart, together, names=("unfused", "fused"))
before, after = apart.estimate(), together.estimate()
assert apart.launches == 4 and together.launches == 1
assert before.read + before.written > 2.5 * (after.read + after.written)
picture

# %%
# ## What limits a kernel
#
# A kernel can wait for bytes from memory, or for arithmetic. Divide its operations by the bytes that it
# moves, and you know which. The *roofline* is the picture of that: to the right are more operations a byte,
# upwards more operations a second. The flat roof is the arithmetic. Each slope is a memory; L1, L2 and L3 are
# caches, L1 the nearest and fastest. A kernel stays below the roof, and below the slope of the memory that
# its bytes come from. (The rates are assumed.)

pf.visualize.roofline(apart, together, names=("unfused", "fused"))

# %%
# The unfused kernels, one point, stand on the slope of memory: faster arithmetic would not help them. Fusion
# moves the point up the slope: the same operations need a third of the bytes.
#
# The rest of this course is about two questions: **may** lines run together, and **should** they? The first
# one has an exact answer, by sets and relations of integers. The second one needs a model of the machine.
#
# ## Exercise
#
# `x` has 4096 rows of 1024 numbers, of 4 bytes each: 16.8 MB.
#
# 1. Which arrays does the unfused form read and write, line by line? Count those that are as large as `x`.
# 2. How many bytes is that? Compare with the bars above.
# 3. Now cut the same 16.8 MB into rows of 3 numbers. Does fusion help as much? And with rows of a million?
#
# <details><summary>Answer</summary>
#
# 1. `m` reads `x`. `e` reads `x` and writes `e`. `s` reads `e`. `y` reads `e` and writes `y`. Four large
#    reads and two large writes; `m` and `s` are 1024 times smaller.
# 2. Six times 16.8 MB: 101 MB. The fused form has one read and one write: 34 MB.
# 3. With 3 numbers a row it helps more: `m` and `s` are now a third of `x` each. For a row the unfused form
#    moves 22 numbers, the fused one 6. (Just 4096 rows of 3 would fit into a cache anyway.) A row of a
#    million has 4 MB and leaves the near caches from line to line, so fusion helps little.
#
# </details>
#
# Next: [loops are sets](02_loops_are_sets.py).
