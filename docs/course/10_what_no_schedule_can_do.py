"""# 10. What no schedule can do

A schedule moves instances in time. It never changes what they compute. Some programs get fast only if the
arithmetic itself changes. This chapter shows four such changes, and what each does to the bits of the result.
"""

# %%
# ## Another order of a sum
#
# A sum of floating-point numbers depends on its order, because each addition rounds:

import numpy as np

import polyfuse as pf

big, one = np.float32(1e8), np.float32(1)
print((big + one) - big, (big - big) + one)
assert (big + one) - big == 0 and (big - big) + one == 1

# %%
# If a sum had an order, each addition would need the one before. Here are these dependences for a row of six
# elements: a chain, and a chain is sequential whatever the schedule.

pf.visualize.dependences("{ S[j] : 0 <= j < 6 }", "{ S[j] -> S[j + 1] : 0 <= j < 5 }")

# %%
# The language says that `sum` has no order. So polyfuse may add eight partial sums side by side in the lanes
# of a vector, and add these at the end. That is *reassociation*. A schedule shows where it applies:

program = pf.parse("""
op row_sums(x: f32[T, H]) -> (y: f32[T]) {
  y[t] = sum[h](x[t, h])
}
op log_sum_exp(x: f32[T, H]) -> (y: f32[T]) {
  m[t] = max[h](x[t, h])
  s[t] = sum[h](exp(x[t, h] - m[t]))
  y[t] = m[t] + log(s[t])
}
op running_sum(x: f32[T, H]) -> (y: f32[T, H]) {
  y[t, h] = sum[k in 0..h+1](x[t, k])
}
op rows_of_a_sparse_matrix(ptr: i32[N + 1], col: i32[E], w: f32[E], x: f32[M]) -> (y: f32[N]) {
  y[n] = sum[e in ptr[n]..ptr[n+1]](w[e] * x[col[e]])
}
""")
sums = pf.schedule(program, "row_sums", T=4, H=6)
print(sums)
assert "a reduction: any order" in str(sums)

# %%
# A product, a maximum and a minimum have no order either. A maximum gives the same bits in any order. A sum
# may differ by rounding errors, which are as large as its terms are. `polyfuse run` checks that they stay
# within their bound.
#
# ## Two reductions in one pass
#
# The logarithm of a sum of exponentials needs the maximum of the row first. May both reductions share the
# loop over the row?

apart = pf.schedule(program, "log_sum_exp", T=4, H=6)
try:
    apart.fuse("m", "s")
except pf.ScheduleError as error:
    print(error)
    assert error.code == "PF537" and "it needs m(t=0, h=1)" in str(error)

# %%
# No: the first exponential needs the maximum, which needs every element. The picture shows what `s` at `h =
# 0` reads, the value that `m` has after its last instance. No shift and no skew helps, at any size.

pf.visualize.dependences(program.op("log_sum_exp"), names=("m", "s"), T=1, H=6, at=("s", 0, 0))

# %%
# Algebra helps. Cut the row into chunks. Each has a maximum `m` and a sum `s` relative to it, and two chunks
# are joined by
#
#     m = max(m1, m2)        s = s1 * exp(m1 - m) + s2 * exp(m2 - m)
#
# Both sums are scaled to the common maximum. Now one pass is enough. This is the **online** form. What it
# writes more, on an H100 GPU, are the figures of the chunks:

unfused = program.op("log_sum_exp").specialize(T=16, H=1_000_000).schedule()
two = unfused.apply(pf.LoopFusion()).lower(target="cuda").apply(pf.Stitching())
one = unfused.online(target="cuda").apply(pf.LoopFusion()).lower(target="cuda").apply(pf.Stitching())
before, after = two.estimate("H100"), one.estimate("H100")
assert before.read > 1.9 * after.read
pf.visualize.traffic(two, one, names=("two passes", "online"), device="H100")

# %%
# The new expressions round at other places, so the last digits may differ. polyfuse rewrites only forms for
# which the error has a bound, and it does so before it schedules. After that isl proves a schedule as ever.
#
# ## A running sum
#
# In a running sum each result needs all elements up to its own. As written that is a triangle of instances,
# and H results take H (H + 1) / 2 additions:

pf.visualize.domain(program.op("running_sum"), T=1, H=6)

# %%
# A result is the one before plus one element: H additions, but a chain. This is a **scan**. Reassociation
# again makes it parallel: add up each chunk of a row, then let each chunk run from the sum of all before it.

chunks = np.arange(1, 9).reshape(2, 4)
before = np.array([0, chunks[0].sum()])
assert (np.cumsum(chunks, axis=1) + before[:, None]).ravel().tolist() == [1, 3, 6, 10, 15, 21, 28, 36]

# %%
# That is nearly twice the additions. polyfuse does it where rows are too few for the workers. Rows that are
# many stay chains, side by side:

for shape in ((64, 500), (1, 10_000)):
    f = pf.compile(program, "running_sum", threads=4)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    print(shape, next(line for line in f.explain(x).splitlines() if "scan" in line))
    assert ("a step for each of 500" in f.explain(x)) == (shape == (64, 500))
    assert np.abs(f(x) - np.cumsum(x.astype(np.float64), axis=1)).max() < 1e-3

# %%
# ## Bounds from data
#
# A row of a sparse matrix begins and ends where an array says. isl's sets know sizes, not the contents of
# arrays. The iteration domain is the whole box, and a condition that isl cannot see picks the instances
# (`within(a, low, high)` is `a`, clamped between two bounds):

print(program.op("rows_of_a_sparse_matrix").specialize())

# %%
# What isl proves for the box holds for every part of it. So fusion stays legal whatever the array holds. The
# code runs only from bound to bound, and clamps both, so wrong bounds cannot read outside of an array:

ptr = np.array([0, 2, 2, 5], np.int32)
col = np.array([0, 3, 1, 2, 3], np.int32)
w, v = np.ones(5, np.float32), np.arange(4, dtype=np.float32)
g = pf.compile(program, "rows_of_a_sparse_matrix")
assert g(ptr, col, w, v).tolist() == [3.0, 0.0, 6.0]
wild = np.array([-7, 2, 2, 99], np.int32)
assert g(wild, col, w, v).tolist() == [3.0, 0.0, 6.0]

# %%
# ## Exercise
#
# 1. May `max[h](x[t, h])` and `min[h](x[t, h])` of one row share a loop? Is algebra needed?
# 2. The variance `sum((x - mean) ** 2) / H` needs the mean first. Which sums of one pass give it, and what
#    goes wrong if the mean is 1e6 and the differences are about 1?
# 3. Is `y[t] = 0.5 * y[t - 1] + x[t]` a scan that can be made parallel?
#
# <details><summary>Answer</summary>
#
# 1. Yes, without algebra: neither needs the other.
# 2. `sum(x)` and `sum(x ** 2)`, as mean(x**2) - mean(x)**2. With a mean of 1e6 both terms are about 1e12,
#    where neighbouring f32 numbers are 65536 apart: nothing is left of a variance of 1. Joining chunks that
#    have a mean of their own keeps the digits.
# 3. Yes. Two steps joined are again of the form `y' = a * y + b`, and joining is associative. Each step
#    carries the pair `(a, b)`.
#
# </details>
#
# Next: [stitching](11_stitching.py).
