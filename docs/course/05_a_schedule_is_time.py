"""# 5. A schedule is time

A set of points says what runs. It does not say when. A *schedule* gives each point a time. This chapter
draws the same points under six schedules.
"""

# %%
# ## A schedule is a sort key
#
# Python sorts tuples like words in a dictionary: by the first entry, on a tie by the second, and so on.
# This order is called *lexicographic*.

points = [(i, j) for i in range(3) for j in range(4)]
rows = sorted(points, key=lambda p: (p[0], p[1]))
columns = sorted(points, key=lambda p: (p[1], p[0]))
print("rows:   ", rows[:5])
print("columns:", columns[:5])
assert rows == points and columns[:3] == [(0, 0), (1, 0), (2, 0)]

# %%
# A schedule is such a key. It maps a point to its time, a tuple of numbers, and points run in lexicographic
# order of their times. isl writes it with an arrow, `{ S[i, j] -> [i, j] }`. Time `[1, 0]` comes after `[0,
# 3]`.

import polyfuse as pf

S = "{ S[i, j] : 0 <= i < 4 and 0 <= j < 6 }"
pf.visualize.schedule_order(S, "{ S[i, j] -> [i, j] }", title="identity: row by row")

# %%
# Numbers and colours say when a point runs. The picture moves, unless your system asks for less motion.
# This is the order of two plain loops, `for i` around `for j`.
#
# ## Interchange
#
# Swap the entries, and columns run one after the other. In loops: `for j` around `for i`.

pf.visualize.schedule_order(S, "{ S[i, j] -> [j, i] }", title="interchange: column by column")

# %%
# ## Reversal
#
# A minus sign turns a loop round. Rows run from the last to the first:

pf.visualize.schedule_order(S, "{ S[i, j] -> [-i, j] }", title="reversal of i", frame=8)

# %%
# This one is a still picture, at step 8 (`frame=8`): the coloured points have run, the one with a ring runs
# now, and the pale ones wait.
#
# ## Tiling
#
# `floor(i/2)` is the number of a block of two rows, `floor(j/3)` that of a block of three columns. Blocks
# come first in the time, so a block is finished before the next one begins:

tiles = "{ S[i, j] -> [floor(i/2), floor(j/3), i, j] }"
pf.visualize.schedule_order(S, tiles, title="tiles of 2 x 3")

# %%
# The six points of a *tile* run closely together. What they share stays in the cache. The time has four
# entries now: four loops, two over tiles and two inside.
#
# ## Skewing
#
# Add `i` to `j`, and time runs along diagonals:

pf.visualize.schedule_order(S, "{ S[i, j] -> [i + j, i] }", title="skewing: diagonals")

# %%
# If the second entry is dropped, the points of a diagonal have the same time. They run at once, as a *wave
# front*:

waves = "{ S[i, j] -> [i + j] }"
picture = pf.visualize.schedule_order(S, waves, title="wave fronts")
assert "9 steps" in picture.svg
picture

# %%
# 24 points take 9 steps. Whether that is allowed is a question for the dependences: no arrow may lead
# backwards in time, or from a point to one of the same time. Here each point needs the one above and the
# one on the left. This is a relation between points; a semicolon joins two:

needs = "{ S[i, j] -> S[i + 1, j]; S[i, j] -> S[i, j + 1] }"
assert "No arrow goes back in time" in pf.visualize.dependences(S, needs, schedule=waves).svg
broken = pf.visualize.dependences(S, needs, schedule="{ S[i, j] -> [-i, j] }")
assert "Illegal" in broken.svg
broken

# %%
# The waves are legal. Under the reversal, which is drawn, the arrows that lead down are red. The [next
# chapter](06_legal_or_not.py) is about them.
#
# ## Schedules of programs
#
# `pf.schedule` gives an operator a schedule that you change step by step. `print` shows it as loops
# ([chapter 7](07_what_may_run_at_once.py) tells which are *parallel*):

program = pf.parse("op scale(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] }")
plain = pf.schedule(program, "scale", T=4, H=6)
print(plain)

# %%
# `tile` makes the same order as the formula with `floor`. It counts inside of a tile from 0, so the third
# entry is `t mod 2` in place of `t`:

tiled = plain.tile(("t", "h"), (2, 3))
print(tiled)

# %%
# polyfuse keeps a schedule as a *tree*. A box is a *band*: one or more loops, outermost first, around what
# they run. In one line the tree is `B1111(y)`: a band of four loops around `y`, with 1 for a loop that has no
# arrows between its iterations, 0 for another.

pf.visualize.schedule_order(tiled) | pf.visualize.tree(tiled)

# %%
# ## Exercise
#
# The points are `{ S[i, j] : 0 <= i < 3 and 0 <= j < 4 }`.
#
# 1. Which schedule runs the columns from right to left, and each column from the bottom up? Which point
#    runs first?
# 2. What does `{ S[i, j] -> [floor(j/2), i, j] }` do?
# 3. Under `{ S[i, j] -> [2i + j] }`, which points share a time with `S[1, 0]`?
#
# <details><summary>Answer</summary>
#
# 1. `{ S[i, j] -> [-j, -i] }`. `S[2, 3]` runs first, at time `[-3, -2]`.
# 2. It cuts the columns into strips of two. In a strip it runs row by row.
# 3. `S[0, 2]`: both have the time 2.
#
# </details>
#
# Next: [legal or not](06_legal_or_not.py).
