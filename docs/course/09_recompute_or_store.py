"""# 9. Recompute or store

A value that is needed again can be kept, or computed again. Memory that is kept can be shared by values
that do not live at the same time. This chapter does both by hand, and then lets polyfuse do it.
"""

# %%
# ## By hand: fuse
#
# A layer normalisation, one row at a time. Each call of `fuse` joins two neighbours:

import numpy as np

import polyfuse as pf

program = pf.parse("""
op layer_norm(x: f32[T, H], gamma: f32[H], beta: f32[H]) -> (y: f32[T, H]) {
  mu[t]   = sum[h](x[t, h]) / H
  c[t, h] = x[t, h] - mu[t]
  var[t]  = sum[h](c[t, h] ** 2) / H
  y[t, h] = c[t, h] * rsqrt(var[t] + 1e-5) * gamma[h] + beta[h]
}
op blur(x: f32[N]) -> (b: f32[N]) where N >= 4 {
  a[i] = exp(x[i])
  b[i] = a[i - 1] + a[i] + a[i + 1] for i in 1..N-1
  b[0] = x[0]
  b[N - 1] = x[N - 1]
}
op move(inout p: f32[N]) where N >= 2 {
  p[i] = old(p[i + 1]) for i in 0..N-1
  p[N - 1] = 0.0
}
""")
s = pf.schedule(program, "layer_norm", T=1024, H=256)
for first, second in (("mu__sum", "mu"), ("mu", "c"), ("c", "var__sum"), ("var__sum", "var"), ("var", "y")):
    s = s.fuse(first, second, at="t")
s = s.fuse("c", "var__sum")
print(s)

# %%
# The four lines are six statements: a total is one of its own, with the suffix `__sum`. The row is gone
# through three times, in three *phases*. `c` is made in the second and read in the third: 256 numbers lie
# between. (The remark of a loop is that of its strictest statement.)
#
# ## Recompute
#
# `c[t, h]` is only `x[t, h] - mu[t]`. The third phase can subtract again, which reads x in place of c.
# This is **rematerialisation**. The numbers `mu` and `var` can go the same way:

less = s.recompute("c").recompute("mu").recompute("var")
print(less)
assert less.history[-3:] == ("recompute('c')", "recompute('mu')", "recompute('var')")

# %%
# No temporary is left but two totals. Is it worth it? It saves 256 stores a row, and the memory for them.
# Loads stay, of x in place of c. It costs 256 subtractions, and a processor subtracts many times while it
# waits for one line of memory. An `exp` is another matter: to compute it again may cost more than to load it.
#
# ## What layer I says
#
# Layer I asks the same questions, and answers them by counting bytes and functions. Here these are the stores
# of 1024 rows, less 4 kB, since `mu` is read once more:

automatic = pf.schedule(program, "layer_norm", T=1024, H=256, fusion=pf.LoopFusion())
print(automatic)
print(next(line for line in automatic.explain().splitlines() if "rematerialise c" in line))
assert automatic.shape == less.shape
assert [str(x) for x in automatic.statements] == [str(x) for x in less.statements]

# %%
# The same loops over the same statements, found without help. Before and after:

pf.visualize.tree(less, before=s)

# %%
# ## Recompute a part: overlapped tiles
#
# Sometimes each element is needed by two neighbours. A tile then computes what it reads, with one more on
# each side. Neighbouring tiles both compute the elements at their border, and need nothing from each
# other. `max` and `min` in the bounds cut off what lies outside of the vector:

blur = pf.schedule(program, "blur", N=34).split("b.i", 8).recompute("a", at="i_tile")
print(blur)
assert "for i_tile in 0..5:  # parallel" in blur.loops

# %%
# The loop over tiles is parallel. Compare it with the shifted loop of the [last chapter](08_fusion.py),
# which recomputes nothing and runs in order. Here a tile computes ten elements of `a` for eight of `b`: a
# quarter more work. In the picture it is six for four, and fewer at both ends:

small = pf.schedule(program, "blur", N=14).split("b.i", 4).recompute("a", at="i_tile")
pf.visualize.schedule_order(
    small, names=("a__local", "b"), parallel=True, tiles=2, title="Tiles at once, each with its border"
)

# %%
# ## Store less: contraction
#
# Back to the layer normalisation before `recompute`. All of `c` has 1024 x 256 elements. But when row t
# is done, nobody asks for row t again. So the next row may take its place: `c` **contracts** to one row.

kept = s.contract("c")
print("\n".join(str(kept).splitlines()[:2]))
assert kept.kept[0].tensor == "c"

# %%
# ## What that costs: order
#
# In [chapter 4](04_dependences.py) only the arrows from producer to consumer were left, because nothing
# was ever overwritten. Now something is. Row t + 1 of `c` must not be written before row t has been read:
# an *anti dependence* is back. Give each phase a loop over rows of its own (`distribute`), and it bites:

try:
    kept.distribute("t")
except pf.ScheduleError as error:
    refused = error.diagnostics[0]
    print(refused.message)
assert refused.code == "PF542"
assert s.distribute("t").legality()

# %%
# Without the contraction the same step is legal. The loop over rows stays parallel: each worker has such a
# row of its own.
#
# `inout` parameters bring the same. `move` puts each element in its neighbour's place:

shift = pf.schedule(program, "move", N=6)
print(shift.loops)
in_place = shift.contract("p")
print(in_place)
assert "# parallel" in shift.loops and "# in order" in in_place.loops

# %%
# With a copy of p, the loop is parallel. In place, iteration i must read `p[i + 1]` before iteration i +
# 1 replaces it, so the loop runs in order, and it must not run backwards:

try:
    in_place.reverse("i")
except pf.ScheduleError as error:
    print(error.diagnostics[0].message)

# %%
# ## In the end, kernels
#
# Kernels contract what they can by themselves, after all decisions. `explain` says where each value lives.
# All six statements are one kernel, `k0`:

kernels = s.lower(target="cpu")
print(next(line for line in kernels.explain().splitlines() if line.startswith("+ contract c")))
x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
tiny = pf.schedule(program, "layer_norm", T=8, H=16, fusion=pf.LoopFusion())
y = tiny.compile(target="interpret")(x, ones, zeros)
assert np.allclose(y.mean(axis=1), 0, atol=1e-5) and np.allclose(y.std(axis=1), 1, atol=1e-3)
kernels.picture()

# %%
# ## Exercise
#
# `e[t, h] = exp(x[t, h] - m[t])` is read twice: by a sum over h, and by `y[t, h] = e[t, h] / s[t]`.
#
# 1. Would you recompute `e` or store it, if a row has 1024 elements? What does it cost either way?
# 2. The loop over t is shared by all. How many elements of `e` must be kept, by one worker?
# 3. A row has 100 million elements now. What changes?
#
# <details><summary>Answer</summary>
#
# 1. Stored, a row of 4 KB stays in the nearest cache: 1024 loads that hardly cost anything. Recomputed,
#    1024 more exponentials. Store it.
# 2. One row: 1024.
# 3. 400 MB fit into no cache. Stored, `e` goes to memory and back: 800 MB. Recomputed, x is read instead:
#    400 MB and an exponential each. Where memory is the limit, recompute.
#
# </details>
#
# Next: [what no schedule can do](10_what_no_schedule_can_do.py).
