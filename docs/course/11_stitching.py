"""# 11. Stitching

Loop fusion puts statements into common loops. A normalisation resists: each of its passes over a row needs
the whole row before. Layer II leaves the passes as they are and makes them phases of one kernel. This
chapter shows when that is legal, and where values go from phase to phase.
"""

# %%
# ## Three passes, three kernels
#
# The variance needs the mean, and the result needs both. Each is a pass over the row:

import polyfuse as pf

program = pf.parse("""
op layer_norm(x: f32[T, H]) -> (y: f32[T, H]) {
  mu[t]   = sum[h](x[t, h]) / H
  var[t]  = sum[h]((x[t, h] - mu[t]) ** 2) / H
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + 1e-5)
}
op backwards(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, H - 1 - h] / s[t]
}
op columns(x: f32[T, H]) -> (y: f32[T, H]) {
  s[h]    = sum[t](x[t, h])
  y[t, h] = x[t, h] - s[h] / T
}
""")


def kernels_of(name: str, **sizes: int) -> pf.Kernels:
    """Kernels for a GPU, after layer I."""
    return program.op(name).specialize(**sizes).schedule().apply(pf.LoopFusion()).lower(target="cuda")


apart = kernels_of("layer_norm", T=4096, H=768)
stitched = apart.apply(pf.Stitching())
assert (apart.launches, stitched.launches) == (3, 1)
pf.visualize.plan(apart, stitched, names=("three kernels", "stitched"))

# %%
# Each of the three kernels reads `x` from memory again. In one kernel a thread reads its part of the row
# once, and keeps it:

before, after = apart.estimate("H100"), stitched.estimate("H100")
assert before.read > 2.9 * after.read
pf.visualize.traffic(apart, stitched, names=("three kernels", "stitched"), device="H100")

# %%
# ## Phases of a row
#
# May the three passes share the loop over rows? Row `t` of the second pass needs row `t` of the first, and no
# other. isl is asked exactly that: of every pair of a producer's instance and a consumer's, do both have the
# same `t`? They *agree* on `t`.

print("\n".join(line for line in stitched.explain().splitlines() if "stitch" in line))
assert "they agree on t" in stitched.explain()

# %%
# Inside of the row the passes stay as they were, one after the other. A reduction over the row is finished
# when the next phase begins.
#
# ## Who runs what
#
# A GPU runs blocks of threads. A block has *shared memory*, and at a *barrier* its threads wait for each
# other. Here are two phases of a small layer normalisation. A colour is a block, the numbers are row and
# thread. The frames show one element of `y` and what it needs:

small = kernels_of("layer_norm", T=64, H=16).apply(pf.Stitching())
pf.visualize.placement(small, "var__sum", "y")

# %%
# The element needs the whole row of terms, and other threads of its block have most of them. These threads
# add up what they have and combine it by *shuffles*, which exchange registers. Then each has the total in a
# register.
#
# ## Four ways from phase to phase
#
# AStitch (ASPLOS'22) names four schemes. Here each is a subset test on relations: take all pairs of producer
# and consumer, and ask whether both run at the same place.
#
# | scheme | pairs of producer and consumer | the value goes through |
# |---|---|---|
# | Independent | there are none | nothing |
# | Local | run in the same block and thread, or each thread has the total | a register |
# | Regional | run in the same block | shared memory, and a barrier of the block |
# | Global | the rest | global memory, and a barrier of all blocks or a new kernel |

print(stitched.schemes())
assert "Regional" not in str(stitched.schemes())

# %%
# All of it is Local here: no thread waits for memory. (`x__row` is what threads keep of the row.) Now a row
# that is read from its other end. The consumer needs an element that another thread of its block has made:

turned = kernels_of("backwards", T=64, H=16).apply(pf.Stitching())
print(turned.schemes())
assert "Regional" in str(turned.schemes())
pf.visualize.placement(turned, "e", "y")

# %%
# An array is stored once. `e` lies in shared memory for `y`, so `s` finds it there as well, though Local
# alone would do with a register.
#
# ## What refuses
#
# Sums of columns need all rows, and the result needs all sums. The passes do not agree on `t`, so what goes
# between them is Global:

columns = kernels_of("columns", T=4096, H=768).apply(pf.Stitching())
print(columns.schemes())
print("\n".join(line for line in columns.explain().splitlines() if "stitch" in line))
assert columns.launches > 1 and "Global" in str(columns.schemes())

# %%
# The sum has two stages, of which `s__part` holds partial sums; `k0` runs both in one launch. The passes do
# agree on `h`. One kernel with a loop over columns would be legal, but a GPU would have work for only 768
# threads in its first phase. The cost model compares what is saved with what idle threads lose, and says no.
#
# ## Exercise
#
# What is the scheme from `a` to `y`, if each thread has one `h` and a block has one row `t`?
#
# 1. `y[t, h] = a[t, h] * 2.0`
# 2. `y[t, h] = a[t, h - 1] * 2.0`
# 3. `y[t, h] = a[t - 1, h] * 2.0`
#
# <details><summary>Answer</summary>
#
# 1. Local: the same row, the same thread.
# 2. Regional: the same row, so the same block, but the thread before.
# 3. Global: another row is another block.
#
# </details>
#
# Next: [packing](12_packing.py).
