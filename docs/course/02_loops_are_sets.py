"""# 2. Loops are sets

A loop runs its body many times. This chapter looks at all those runs at once, as points of a set.
Everything later, dependences, schedules and fusion, is said about these points.
"""

# %%
# ## From a loop to points
#
# Here are two loops around one statement. It adds the first elements of `x`.

N = 5
x = [3, 1, 4, 1, 5]
total = [0] * N
runs = []
for i in range(N):
    for j in range(i + 1):
        total[i] += x[j]  # the statement S
        runs.append((i, j))

print(total)
print(len(runs), "runs:", runs[:6], "...")
assert total == [3, 4, 8, 9, 14] and len(runs) == 15

# %%
# One run of a statement is called an *instance*. We name it by the values of the loop variables: `S[3, 1]`
# is the run with `i = 3` and `j = 1`. The set of all instances is the *iteration domain* of the statement.
#
# A set of pairs of integers can be drawn. The first variable runs down, the second to the right:

import polyfuse as pf

triangle = "[N] -> { S[i, j] : 0 <= i < N and 0 <= j <= i }"
pf.visualize.domain(triangle, N=5)

# %%
# The loops became a triangle. Point at a dot to see which instance it is.
#
# ## Reading the notation aloud
#
# The text is in the notation of isl, the library that polyfuse computes with. Read it from left to right:
#
# | text | read |
# |---|---|
# | `[N] ->` | for every size N: |
# | `{` ... `}` | the set of |
# | `S[i, j]` | all instances S at i, j |
# | `:` | such that |
# | `0 <= i < N` | i is at least 0 and less than N |
# | `and` | and also |
# | `0 <= j <= i` | j is at least 0 and at most i |
#
# The conditions are the bounds of the two loops. `range(i + 1)` has the values `0 <= j <= i`. Two short forms
# come later: `0 <= i, j < 9` is said of both variables, and `4b` is 4 times b.
#
# ## Sizes are parameters
#
# `N` has no value in the text. It is a *parameter*: the text describes one triangle for each `N`. A
# compiler that reasons about this text has reasoned about all sizes. Only a picture, or a count, needs a
# number. `islpy` is isl for Python; it puts N to a value and counts:

import islpy as isl


def count(text: str, n: int) -> int:
    """How many points a set has where N is n."""
    at_n = isl.Set(text).intersect_params(isl.Set(f"[N] -> {{ : N = {n} }}"))
    return at_n.project_out(isl.dim_type.param, 0, 1).count_val().to_python()


print([count(triangle, n) for n in range(1, 8)])
assert all(count(triangle, n) == n * (n + 1) // 2 for n in range(1, 8))
assert count(triangle, N) == len(runs)

# %%
# ## Sets with holes
#
# `range(0, 16, 3)` makes steps of 3. The set says so with `mod`, the remainder:

pf.visualize.domain("{ S[i] : 0 <= i < 16 and i mod 3 = 0 }")

# %%
# The pale area is the *convex hull*, the smallest area without dents around all points. The small dots are
# integers in it that the set leaves out.
#
# A loop can also be cut into blocks. `b` numbers blocks of four, `i` runs inside of a block:

blocks = [(b, i) for b in range(3) for i in range(4 * b, min(4 * b + 4, 10))]
print(blocks)
assert [i for _, i in blocks] == list(range(10))
pf.visualize.domain("{ S[b, i] : 0 <= i < 10 and 4b <= i < 4b + 4 }")

# %%
# Each `i` from 0 to 9 occurs once: `S[i]` became `S[b, i]`, and there are as many. The last block is shorter,
# and the set knows.
#
# ## What isl can say
#
# Conditions compare sums of variables, each times a constant number. They may use `and`, `or`, `not`,
# `mod`, `floor` of a division by a constant, and `exists`. Such sets are called *Presburger sets*, after the
# man who proved that every statement about them can be decided. Is a set empty, is it in another set, which
# points are in both? isl answers. A product of two variables is too much, and isl refuses it:

try:
    pf.visualize.domain("{ S[i, j] : i * j < 10 and 0 <= i, j < 9 }")
except pf.ArgumentError as error:
    print(error)
    assert error.code == "PF910"

# %%
# ## The domains of an operator
#
# In polyfuse you write no loops. You write what each element is, and the loops follow:

program = pf.parse("""
op sums(x: f32[N]) -> (y: f32[N]) {
  y[i] = sum[j in 0..i+1](x[j])
}
""")
print(program.op().specialize())

# %%
# The last line is the statement: its name, the formula, the ranges. `i` ranges over the elements of `y`, and
# `j` over what is summed: `0..i+1` means 0 up to, but without, `i + 1`. At `N = 5` it is the triangle again:

picture = pf.visualize.domain(program, N=5)
assert picture.svg.count('class="point"') == len(runs)
picture

# %%
# A matrix product has three loop variables. Its domain is a box of points, drawn in slices:

product = pf.parse(
    "op product(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
)
pf.visualize.domain(product, M=2, N=3, K=4)

# %%
# ## Exercise
#
# Look at the set `{ S[i, j] : 0 <= i < 6 and i <= j < i + 3 and j < 6 }`.
#
# 1. What does it look like?
# 2. How many points does it have?
# 3. Which two Python loops run through it?
#
# <details><summary>Answer</summary>
#
# 1. A band along the diagonal, three points wide. The last two rows are shorter.
# 2. Four rows have 3 points, one has 2, one has 1: 15 points.
# 3. `for i in range(6):` around `for j in range(i, min(i + 3, 6)):`.
#
# `pf.visualize.domain` draws it.
#
# </details>
#
# Next: [who reads what](03_who_reads_what.py).
