"""# 4. Dependences

A point that reads a value must run after the point that writes it. Such a pair is a *dependence*. This
chapter finds all of them, and says how far apart the two points are.
"""

# %%
# ## From accesses to dependences
#
# Take two statements, where the second reads what the first writes:

import polyfuse as pf

chain = pf.parse("""
op chain(x: f32[T, H]) -> (y: f32[T, H]) {
  a[t, h] = exp(x[t, h])
  y[t, h] = a[t, h] * a[t, h]
}
""")

# %%
# Follow the arrows of the [last chapter](03_who_reads_what.py): from a point of `a` to the element that it
# writes, and against the arrow to each point of `y` that reads this element. The way as a whole leads from
# the *producer* to the *consumer*:

writes = {("a", (t, h)): ("a", t, h) for t in range(2) for h in range(3)}
reads = {("y", (t, h)): ("a", t, h) for t in range(2) for h in range(3)}
pairs = [(p, c) for p, w in writes.items() for c, r in reads.items() if w == r]
print(len(pairs), "dependences, such as", *pairs[0])
assert len(pairs) == 6

# %%
# polyfuse does the same for all sizes at once, with relations of isl. An arrow leads from producer to
# consumer:

pf.visualize.dependences(chain, T=2, H=3)

# %%
# ## Distance
#
# Both points have the coordinates t and h. The difference, consumer minus producer, is the *distance
# vector*. Here it is `(0, 0)` for all arrows: `y[t, h]` needs something from the same t and h only. A loop
# over t and h could compute `a` and use it at once.
#
# A running sum needs the row before:

scan = pf.parse("""
op running_sum(x: f32[T, H]) -> (c: f32[T, H]) where T >= 1 {
  c[0, h] = x[0, h]
  c[t, h] = c[t-1, h] + x[t, h] for t in 1..T
}
""")
picture = pf.visualize.dependences(scan, T=4, H=3)
assert "distance (1, 0)" in picture.svg
picture

# %%
# The definition of `c` has two pieces: the first row, which has no `t` and so no distances, and the rest,
# which polyfuse calls `c__2`. There arrows have the distance `(1, 0)`: one step down, no step aside. The
# points of a row need nothing from each other and could be computed at the same time. Those of a column could
# not.
#
# ## Distances with signs
#
# In a rod that cools, each point moves towards its neighbours. Callers give the size `T`, which no argument
# has:

rod = pf.parse("""
op rod[T: size](x: f32[N]) -> (u: f32[T, N]) where N >= 3, T >= 1 {
  u[0, i] = x[i]
  u[t, i] = (0.25 * u[t-1, i-1] + 0.5 * u[t-1, i] + 0.25 * u[t-1, i+1]
      if 1 <= i < N - 1 else u[t-1, i]) for t in 1..T
}
""")
picture = pf.visualize.dependences(rod, names=("u__2",), T=4, N=6)
assert all(f"({1}, {d})" in picture.svg for d in (-1, 0, 1))
picture

# %%
# There are three distances: `(1, -1)`, `(1, 0)` and `(1, 1)`. The first number is always 1, since
# everything comes from the step before. The second may be negative: the neighbour on the right is needed
# too. [Chapter 6](06_legal_or_not.py) shows which orders a negative number forbids.
#
# ## A reduction is needed as a whole
#
# A maximum is known when all elements have been seen:

softmax = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
pf.visualize.dependences(softmax, names=("m", "e"), T=2, H=4, at=("e", 1, 2))

# %%
# `m[t]` has a point for each element that it looks at, so it is drawn as `m[t, h]`. The picture shows the
# arrows to `e[1, 2]` only (`at=`): it needs all four points of `m` in its row. So do its neighbours. Between
# rows there is no arrow.
#
# There are no arrows among the points of `m`. They update one element, so two must not run at the same
# moment. But any order will do, and an arrow would demand one. polyfuse keeps this apart, as a fact about
# reductions.
#
# ## Why these are all
#
# In C or in NumPy, memory is used again and again:
#
# ```python
# for t in range(1, T):
#     for i in range(1, N - 1):
#         u[i] = 0.25 * u[i - 1] + 0.5 * u[i] + 0.25 * u[i + 1]     # is u[i - 1] old or new?
# ```
#
# Here a write may destroy a value that another point still has to read. This gives two more kinds of pairs:
# a read before a later write (*anti dependence*), and a write before a later write (*output dependence*).
#
# In polyfuse each element is written once: `u[t, i]` and `u[t-1, i]` are different elements. This is
# *single assignment*. A value cannot be destroyed, so only the arrows from producer to consumer are left,
# the *flow dependences*. Memory is shared later, when the order is known, and that step is proved by
# itself.

graph = rod.op().specialize()
print(graph)  # `i64(i)` is `i` as an integer of 64 bits, so that no index can overflow
assert "u[t, i]" in str(graph) and "u[t - 1, i]" in str(graph)

# %%
# ## Exercise
#
# Pascal's triangle: `p[i, j] = p[i-1, j-1] + p[i-1, j]`, for `i` from 1.
#
# 1. Which distance vectors are there?
# 2. May all points of a row run at the same time? All points of a column?
# 3. Now think of `q[i, j] = q[i-1, j] + q[i, j-1]`. Which distances does it have? Which points may run at
#    the same time?
#
# <details><summary>Answer</summary>
#
# 1. `(1, 1)` and `(1, 0)`.
# 2. A row: yes, all its arrows come from the row before. A column: no, `(1, 0)` leads from a point to the
#    one below.
# 3. `(1, 0)` and `(0, 1)`. Neither a row nor a column, but a diagonal: points with equal `i + j` have no
#    arrow between them. [The next chapter](05_a_schedule_is_time.py) draws that order.
#
# </details>
#
# Next: [a schedule is time](05_a_schedule_is_time.py).
