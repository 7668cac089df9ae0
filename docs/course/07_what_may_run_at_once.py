"""# 7. What may run at once

A machine has vector lanes, cores, blocks of threads. All of them want points that do not wait for each
other. This chapter reads from distances which loops those are.
"""

# %%
# ## Zero is parallel
#
# Here is a softmax. `fuse` puts two statements into a common loop, here the one over rows:

import polyfuse as pf

softmax = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
rows = (
    pf.schedule(softmax, "softmax", T=3, H=4)
    .fuse("m", "e", at="t")
    .fuse("e", "s", at="t")
    .fuse("s", "y", at="t")
)
print(rows)

# %%
# The remark behind a loop is computed from the dependences. All of them stay in their row: the entry of `t`
# is zero in every distance. No iteration of the loop over `t` needs another one, so all may run at once.
# Such a loop is called *parallel*.
#
# Let parallel loops run at once, and give points of one moment one number:

picture = pf.visualize.schedule_order(rows, parallel=True)
assert "10 steps" in picture.svg
picture

# %%
# The rows have the same numbers. In `e` and `y` also the points of a row do, because `h` is parallel there.
# The whole takes 10 steps in place of 48.
#
# ## A reduction is not parallel
#
# The points of `m` in a row keep different numbers. They need nothing from each other, but each reads one
# element, changes it and writes it back. Of two at once one would be lost. What is free is their order.
# polyfuse writes *a reduction: any order*:

assert "for h in 0..4:  # a reduction: any order" in str(rows)

# %%
# So workers may have a partial result each, which are added up in the end. For the lanes of a vector this is
# cheap. Cores have to meet for it, which costs a barrier: each waits until all have come.
#
# ## In order
#
# The cooling rod needs the step before:

rod = pf.parse("""
op rod[T: size](x: f32[N]) -> (u: f32[T, N]) where N >= 3, T >= 1 {
  u[0, i] = x[i]
  u[t, i] = (0.25 * u[t-1, i-1] + 0.5 * u[t-1, i] + 0.25 * u[t-1, i+1]
      if 1 <= i < N - 1 else u[t-1, i]) for t in 1..T
}
""")
steps = pf.schedule(rod, "rod", T=5, N=8)
print(steps)
picture = pf.visualize.schedule_order(steps, names=("u__2",), parallel=True)
assert "4 steps" in picture.svg
picture

# %%
# In each distance `(1, -1)`, `(1, 0)`, `(1, 1)` the entry of `t` is 1: the loop over `t` *carries* the
# dependences, and runs in order. Two points of one step have no arrow between them: what `t` has carried is
# done, and `i` is parallel.
#
# So a loop is parallel if every distance is zero at this loop, or already positive at a loop around it:


def is_parallel(distances: list[tuple[int, ...]], loop: int) -> bool:
    """May the iterations of a loop run at once, loops around it in order?"""
    return all(d[loop] == 0 or any(x > 0 for x in d[:loop]) for d in distances)


of_the_rod = [(1, -1), (1, 0), (1, 1)]
assert [is_parallel(of_the_rod, k) for k in (0, 1)] == [False, True]

# %%
# ## Permutable is tileable
#
# Take a table where each point needs the one above and the one on the left. The distances are `(1, 0)` and
# `(0, 1)`. Neither loop is parallel:

table = [(1, 0), (0, 1)]
assert [is_parallel(table, k) for k in (0, 1)] == [False, False]

# %%
# But no entry is negative. Then the loops may change places, and tiles are legal, as [chapter
# 6](06_legal_or_not.py) says. Such loops are called *permutable*. A wave front is always possible: the sum of
# the entries of a distance is at least 1, so a loop over `i + j` carries all of them, and the rest is
# parallel:

waves = [(i + j, j) for i, j in table]
assert [is_parallel(waves, k) for k in (0, 1)] == [False, True]
pf.visualize.schedule_order("{ S[i, j] : 0 <= i < 4 and 0 <= j < 6 }", "{ S[i, j] -> [i + j] }")

# %%
# The same works for tiles in place of points. A tile needs the tile above and the one on the left; tiles of
# a diagonal run at once, on as many cores.
#
# ## From loops to the machine
#
# | a loop that is | may become |
# |---|---|
# | parallel, outside | cores of a CPU, blocks of a GPU |
# | parallel, inside | vector lanes, threads of a block |
# | a reduction | lanes with partial results, then a sum of them |
# | in order | a plain loop |
#
# On a GPU, threads stand in rows, and rows in blocks. A picture shows where points run: `31.2` is thread 2
# of row 31 in its block, and a colour is a block.

kernels = softmax.op().specialize(T=64, H=16).schedule().apply(pf.LoopFusion()).lower(target="cuda")
pf.visualize.placement(kernels.apply(pf.Stitching()), "s", "y")

# %%
# A block has 32 rows of the softmax, and each of them a row of threads, because `t` is parallel. In `y` a
# thread takes four neighbouring elements, a vector, because `h` is parallel. In `s` it adds up its four
# terms, and the threads of the row join their totals, because any order will do. Framed is an element of `y`
# with what it needs of `s`: all of it lies in one row of threads.
#
# ## Exercise
#
# Three loops `i`, `j`, `k` have the distances `(0, 1, 0)` and `(0, 0, 1)`.
#
# 1. Which loops are parallel?
# 2. Are `j` and `k` permutable?
# 3. Which loop would you give to cores? And where do you find work for vector lanes?
#
# <details><summary>Answer</summary>
#
# 1. `i` only. `j` has the entry 1 in `(0, 1, 0)`, and `k` in `(0, 0, 1)`, where no loop around is positive.
# 2. Yes, no entry is negative.
# 3. `i` to cores. For lanes: put `i`, or a part of it, inside; or take the wave front `j + k`, inside of
#    which `k` is parallel.
#
# </details>
#
# Next: [fusion](08_fusion.py).
