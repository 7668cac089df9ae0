"""# 8. Fusion

Fusion puts the points of two statements into one time. It saves memory traffic, and it can cost
parallelism. This chapter does it by hand, counts bytes, and meets a pair of which only outer loops fuse.
"""

# %%
# ## Two domains, one time
#
# GELU of a sum, as two statements with the same loops:

import numpy as np

import polyfuse as pf

program = pf.parse("""
op bias_gelu(x: f32[T, H], bias: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + bias[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.7071067811865476))
}
op slope(x: f32[N + 1]) -> (d: f32[N]) {
  a[i] = exp(x[i])
  d[i] = a[i + 1] - a[i] for i in 0..N
}
op centre(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  y[t, h] = x[t, h] - m[t]
}
""")
apart = pf.schedule(program, "bias_gelu", T=2, H=5)
print(apart)

# %%
# First all of `s`, then all of `y`. Between the two, `s` lies in memory:

pf.visualize.schedule_order(apart, title="Apart: s, then y")

# %%
# All arrows have distance zero, so both loops may be shared:

fused = apart.fuse("s", "y")
print(fused)
pf.visualize.schedule_order(fused, title="Fused: s and y take turns")

# %%
# Each element of `s` is used right after it is made. It never has to leave a register.
#
# ## What it saves
#
# Kernels are made of schedules: one for each outermost nest. `pf.compare` shows what they move, at a real
# size:

large = pf.schedule(program, "bias_gelu", T=4096, H=3072)
two = large.lower(target="cpu")
one = large.fuse("s", "y").lower(target="cpu")
print(pf.compare(two, one))
assert (two.launches, one.launches) == (2, 1)
assert one.global_bytes < 0.51 * two.global_bytes

# %%
# Apart, the two kernels move x, s, s again, and y. Fused, x and y are left: half the bytes. Where memory
# alone is the limit, this is half the time. Here it is a little more, because of the arithmetic of `erf`. The
# compiler says where `s` went:

print(next(line for line in one.explain().splitlines() if "contract s" in line))

# %%
# ## When a shift helps
#
# `slope` has arrows of distance 0 and -1:

gap = pf.schedule(program, "slope", N=6)
print(gap.why("a", "d"))
pf.visualize.dependences(gap)

# %%
# In one loop, iteration i would run `d[i]` before iteration i + 1 makes `a[i + 1]`. If `d` runs one iteration
# later, the pair can share a loop:

joined = gap.shift("d", "i", 1).fuse("a", "d")
print(joined)

# %%

pf.visualize.schedule_order(joined, title="d runs one step behind a")

# %%
# Look at the remark behind the loop. Apart, both loops were parallel. Now the loop runs in order:
# iteration i needs `a[i - 1]` from the iteration before. Fusion has saved traffic and has cost
# parallelism.

assert gap.loops.count("# parallel") == 2 and "# in order" in joined.loops

# %%
# Which of the two is better depends on sizes and on the machine. For a long vector on eight cores it is
# better to leave the loops apart, and to read `a` from memory again. For many short rows, with a parallel
# loop over rows outside, it is better to fuse. So layer I keeps outer parallel loops first, and fuses what
# fits under them.
#
# ## When only outer loops fuse
#
# `centre` needs the maximum of a row before the first element of the result:

row = pf.schedule(program, "centre", T=3, H=5)
pf.visualize.dependences(row, at=("y", 1, 2))

# %%
# Like `y[1, 2]`, every point of `y` has an arrow from every point of `m` in its row. The distances along h go
# from -4 to 4. A shift by 4 would run all of `m` first, which is two loops again. But along t the distance is
# zero. So the loop over rows can be shared, and the loop over columns cannot:

try:
    row.fuse("m", "y")
except pf.ScheduleError as error:
    print(error.diagnostics[0].message)
    print("hint:", error.diagnostics[0].hint)
rows = row.fuse("m", "y", at="t")
print(rows)
assert rows.loops.count("for t") == 1 and rows.loops.count("for h") == 2

# %%
# The row is read twice, but the second time it comes from the cache, because only one row lies between.
# That is a gain too: time between two uses is what caches care for.

pf.visualize.schedule_order(rows, title="Row by row: two passes over each")

# %%
# ## The same result
#
# A legal schedule computes the same, and tests can see it:

x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
for schedule in (row, rows):
    assert np.array_equal(schedule.compile(target="interpret")(x), x - x.max(axis=1, keepdims=True))

# %%
# ## Exercise
#
# `a[i] = exp(x[i])`, `b[i] = a[i] + a[i + 2]`, `c[i] = b[i] * b[i + 1]`.
#
# 1. By how much must `b` and `c` be shifted for one loop over all three?
# 2. How many elements of `a` must be kept at a time in that loop? How many of `b`?
# 3. `x` has 1,000,000 elements of 4 bytes. How many bytes move if the three run apart? And fused?
#
# <details><summary>Answer</summary>
#
# 1. `b` by 2. `c` needs `b[i + 1]`, which runs at i + 3: so `c` by 3.
# 2. Three of `a` (i, i + 1, i + 2) and two of `b`.
# 3. Apart: x, a written, a read, b written, b read, c: 24 MB. Fused: x and c, 8 MB.
#
# </details>
#
# Next: [recompute or store](09_recompute_or_store.py).
