"""# 3. Who reads what

A point of an iteration domain reads elements of arrays and writes one. This chapter draws an arrow for each
of these accesses. Their pattern decides what can be kept near, and what has to wait.
"""

# %%
# ## Access relations
#
# Here are four statements that read `x`. `where` says which sizes are allowed; `... if ... else ...` is as in
# Python.

import polyfuse as pf

program = pf.parse("""
op patterns(x: f32[T, H], b: f32[H]) -> (y: f32[T, H], s: f32[T], z: f32[H, T], w: f32[T, H]) where H >= 3 {
  y[t, h] = x[t, h] + b[h]
  s[t]    = sum[h](x[t, h])
  z[h, t] = x[t, h]
  w[t, h] = (x[t, h-1] + x[t, h] + x[t, h+1] if 1 <= h < H - 1 else x[t, h])
}
""")

# %%
# The point `y[1, 2]` reads the element `x[1, 2]`. So does every point: `y[t, h]` reads `x[t, h]`. A rule
# that leads from points to elements is an *access relation*. isl writes it as a set of arrows:
#
# ```
# { y[t, h] -> x[t, h] : 0 <= t < 3 and 0 <= h < 4 }
# ```
#
# Read: *from each point `y` at t, h, an arrow to the element `x` at t, h, such that ...*. The rest is as in
# the [chapter before](02_loops_are_sets.py).

picture = pf.visualize.accesses(program, "y", T=3, H=4, at=(1, 2))
assert "y reads x: one to one" in picture.svg and "y reads b: a broadcast" in picture.svg
picture

# %%
# Points are in the middle. Here are the arrows of `y[1, 2]`: blue ones lead to what it reads, the orange one
# to what it writes.
#
# ## One to one
#
# Each point reads its own element of `x`: no two arrows end at one element. Such a relation is called
# *injective*. An element that one point reads is read once in all, so it need not be kept.
#
# ## Broadcast
#
# The points of a column read the same element of `b`. The loop variable `t` does not occur in `b[h]`, so the
# arrows of all `t` meet. This is a *broadcast*. With all arrows, three come to each element of `b`:

pf.visualize.accesses(program, "y", T=3, H=3)

# %%
# Count arrows and elements where `H` is 4:

T, H = 3, 4
arrows = [((t, h), (h,)) for t in range(T) for h in range(H)]
elements = {element for _, element in arrows}
print(len(arrows), "reads of", len(elements), "elements:", len(arrows) // len(elements), "reads each")
assert (len(arrows), len(elements)) == (12, 4)

# %%
# An element of `b` is needed `T` times. If it stays in a register or a cache between its uses, memory is
# read once for all of them. The quotient is called the *reuse* of `b`.
#
# ## Projection
#
# A sum is the opposite picture. Its points read elements one to one, and many of them write to the same
# place:

picture = pf.visualize.accesses(program, "s", T=3, H=4)
assert "s writes s: a projection: up to 4 points for an element" in picture.svg
picture

# %%
# The points of a row go to one element: `h` is dropped. Writes that meet are a *projection*. Only a
# *reduction* may have them: a sum, a maximum, or another operation that makes one value of many, in any
# order. Everywhere else each element is written exactly once. isl proves that of every program: the set of
# elements that two points write has to be empty.
#
# ## Transposed
#
# `z[h, t] = x[t, h]` reads one to one as well. But the two indices change places:

picture = pf.visualize.accesses(program, "z", T=3, H=4)
assert "transposed" in picture.svg
picture

# %%
# Memory holds the rows of `x` one after the other. Points that are neighbours in a row of `z` read elements
# that lie a whole row apart. In either order one of the arrays is walked through in long steps.
#
# ## Window
#
# The last statement adds three neighbours. Each point has three arrows, and the arrows of neighbouring
# points overlap:

picture = pf.visualize.accesses(program, "w", T=1, H=8)
assert "w reads x: a window of 3 elements for a point" in picture.svg
picture

# %%
# A *window* is in between. An element inside is used by three points that lie close together, so it has to be
# kept for a short while. The first and the last point read one element only: the condition in the program
# keeps the window inside.
#
# ## Where the data decide
#
# An index may come from an array. No formula says which element is read then:

gather = pf.parse("op gather(x: f32[N], k: i64[M]) -> (y: f32[M]) { y[i] = x[k[i]] }")
picture = pf.visualize.accesses(gather, N=4, M=3)
assert "the data say which of up to 4 elements" in picture.svg
picture

# %%
# The compiler is careful: each point *may* read every element of `x`, so all arrows are drawn. Whatever it
# decides later is right for all values of `k`.
#
# ## Summary
#
# | pattern | arrows | what it means |
# |---|---|---|
# | one to one | end apart | each element is touched once |
# | broadcast | meet, reading | reuse: keep the element near |
# | projection | meet, writing | a reduction: the order is free |
# | transposed | end apart, indices swapped | long steps through memory |
# | window | overlap | reuse between neighbours |
#
# ## Exercise
#
# `c[i, j] = sum[k](a[i, k] * b[k, j])` is a matrix product, with `M = 2`, `N = 3`, `K = 4`.
#
# 1. Which pattern has each of `a`, `b` and `c`?
# 2. How many points read one element of `a`? Of `b`? How many write to one of `c`?
# 3. Which loop variable is responsible for each of these numbers?
#
# <details><summary>Answer</summary>
#
# 1. `a` and `b` are broadcasts, `c` is a projection.
# 2. An element of `a` is read by 3 points, one of `b` by 2. Four points write to one of `c`.
# 3. The variable that the index leaves out: `j` for `a` (N = 3), `i` for `b` (M = 2), `k` for `c` (K = 4).
#
# Each array leaves out one variable of three. That is why products of matrices reuse so much.
#
# </details>
#
# Next: [dependences](04_dependences.py).
