"""# 6. Legal or not

A schedule may order points as it likes, as long as no dependence goes back in time. This chapter breaks the
rule, reads the answer of the compiler, and finds an order that looks impossible at first.
"""

# %%
# ## An arrow that goes back
#
# The rod of [chapter 4](04_dependences.py) cools step by step. Each point needs three points of the step
# before:

import numpy as np

import polyfuse as pf

rod = pf.parse("""
op rod[T: size](x: f32[N]) -> (u: f32[T, N]) where N >= 3, T >= 1 {
  u[0, i] = x[i]
  u[t, i] = (0.25 * u[t-1, i-1] + 0.5 * u[t-1, i] + 0.25 * u[t-1, i+1]
      if 1 <= i < N - 1 else u[t-1, i]) for t in 1..T
}
""")
columns = "{ u__2[t, i] -> [i, t] }"
picture = pf.visualize.dependences(rod, names=("u__2",), schedule=columns, T=4, N=6)
assert "Illegal" in picture.svg
picture

# %%
# The schedule is an interchange: columns first. Under it the arrows to the lower left are red. Their
# consumer stands in an earlier column, so it runs before its producer. One red arrow is enough: the
# schedule is *illegal*.
#
# ## The witness
#
# `pf.schedule` makes such changes step by step, and checks each. Two loops are called `i`; `u__2.i` is the
# one around `u__2`. An illegal step is refused:

s = pf.schedule(rod, "rod", T=7, N=9)
print(s)
try:
    s.interchange("u__2.i", "t")
except pf.ScheduleError as error:
    refused = error
    print(error)
assert refused.code == "PF537"

# %%
# The answer names two instances. `u__2(t=2, i=1)` would run too early: it needs the value of `u__2(t=1,
# i=2)`. Such a pair is called a *witness*. The caret shows the read that causes it. The schedule `s` is what
# it was.
#
# isl finds the witness without running anything. It asks whether a set is empty: the set of all dependences
# whose consumer is not later. So the answer is the same, and takes as long, at large sizes:

large = pf.schedule(rod, "rod", T=1_000, N=1_000_000)
try:
    large.interchange("u__2.i", "t")
except pf.ScheduleError as error:
    assert error.code == "PF537"
    print(str(error).splitlines()[0])
else:
    raise AssertionError("an illegal step was accepted")

# %%
# ## The rule, with distances
#
# A distance vector is consumer minus producer. A schedule that swaps the loops swaps its entries. The
# consumer is later if the first entry that is not zero is positive. Python compares tuples in just this
# way:

distances = [(1, -1), (1, 0), (1, 1)]
for name, change in [
    ("as it is", lambda t, i: (t, i)),
    ("interchange", lambda t, i: (i, t)),
    ("reverse i", lambda t, i: (t, -i)),
    ("reverse t", lambda t, i: (-t, i)),
]:
    after = [change(*d) for d in distances]
    print(f"{name:12s}", after, "legal" if all(d > (0, 0) for d in after) else "illegal")

assert (-1, 1) < (0, 0) < (0, 1) < (1, -1)
assert s.reverse("u__2.i").legality()

# %%
# Reversing `i` is legal: at one `t`, the order of the points does not matter. Reversing `t` is nonsense.
#
# ## The stencil that needs skewing
#
# A long rod does not fit in the cache. Each step reads all of it from memory again. It would be better to
# take a few points and advance them several steps at once: tiles over `t` and `i`.

try:
    s.tile(("t", "u__2.i"), (2, 3))
except pf.ScheduleError as error:
    assert error.code == "PF537"
    print(error)

# %%
# With `tiles=2`, points that agree in the first two entries of their time have a line around them. The first
# tiles are cut, since `t` starts at 1:

plain = "{ u__2[t, i] -> [floor(t/2), floor(i/3), t, i] }"
picture = pf.visualize.dependences(rod, names=("u__2",), schedule=plain, tiles=2, T=7, N=9)
assert "Illegal" in picture.svg
picture

# %%
# A red arrow leads to a tile from the next one, which runs later. Where no distance has a negative entry,
# tiles of every shape are legal: arrows lead into tiles below and on the right. Otherwise few shapes are
# left, such as tiles of one row, which save nothing here:

assert s.tile(("t", "u__2.i"), (1, 3)).legality()

# %%
# The hint names a way out. *Skewing* lets `i` start one point later in each step (the 1 in the hint): the
# time of a point is `(t, i + t)`. Its distances are `(1, 0)`, `(1, 1)` and `(1, 2)`, with no negative entry
# left:

skewed = [(t, i + t) for t, i in distances]
print(skewed)
assert all(min(d) >= 0 for d in skewed)

tiled = s.skew("u__2.i", "t").tile(("t", "u__2.i"), (2, 3))
assert tiled.legality()
pf.visualize.schedule_order(tiled, names=("u__2",), tiles=2, title="skewed tiles of 2 x 3")

# %%
# The tiles lean to the left: the second row of a tile stands one point further left, so the neighbours on the
# right are ready. No arrow is red (distances are those of `t` and `i`):

picture = pf.visualize.dependences(tiled, names=("u__2",), schedule=tiled, tiles=2)
assert "No arrow goes back in time" in picture.svg
picture

# %%
# The schedule is legal, so the result is the same:

x = np.array([0, 0, 8, 0, 0, 4, 0, 0, 1], np.float32)
want = [x]
for _ in range(6):
    old = want[-1]
    inner = 0.25 * old[:-2] + 0.5 * old[1:-1] + 0.25 * old[2:]
    want.append(np.concatenate([old[:1], inner, old[-1:]]))
np.testing.assert_allclose(tiled.compile(target="interpret")(x, T=7), want, rtol=1e-6)
print(want[-1])

# %%
# ## Exercise
#
# A table is filled by `q[i, j] = q[i-1, j] + q[i, j-1] + q[i-1, j+1]`.
#
# 1. What are the distance vectors?
# 2. Which of these are legal: interchange, reversal of `j`, tiles of 2 x 2?
# 3. Is tiling legal after skewing `j` by `i`?
#
# <details><summary>Answer</summary>
#
# 1. `(1, 0)`, `(0, 1)` and `(1, -1)`.
# 2. None. Interchange makes `(-1, 1)` of `(1, -1)`. Reversal of `j` makes `(0, -1)` of `(0, 1)`. Under tiles,
#    the arrow `(1, -1)` leads from the upper row of a tile to the lower row of the tile before.
# 3. Yes: the distances become `(1, 1)`, `(0, 1)` and `(1, 0)`.
#
# </details>
#
# Next: [what may run at once](07_what_may_run_at_once.py).
