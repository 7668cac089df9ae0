"""# 4. An illegal fusion

What happens if one fuses too much? In this tutorial the compiler says no, and we read its answer closely.
The second half is about a recurrence, where even the exchange of two loops can be wrong, and about the
change of coordinates that makes it right.
"""

# %%
import numpy as np

import polyfuse as pf
from polyfuse.ir.index_expr import ISize, IVar
from polyfuse.ir.loop_ir import format_block
from polyfuse.ir.schedule_tree import Tree, format_tree
from polyfuse.poly.ast_build import loops_of
from polyfuse.poly.legality.schedules import Illegal
from polyfuse.poly.scheduling import tree_edit
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

softmax = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
fused = softmax.op().specialize().schedule().apply(pf.LoopFusion())
print(fused)

# %% [markdown]
# Three passes over a row. Each of them is a loop over `h` from 0 to `H`, so why not make one of them?
#
# ## Fusing too much

# %%
one_pass = tree_edit.fuse(fused.tree, "m", "e")
print(format_tree(one_pass, graph=fused.graph))
print(format_block(loops_of(fused.graph, one_pass)))

# %% [markdown]
# The tree is well-formed, and loops can be made of it. They would compute nonsense: `e(t, 0)` would use a
# maximum that has seen one element of the row. The legality check is what stands between such a tree and a
# kernel.

# %%
verdict = fused.legality(one_pass)
assert isinstance(verdict, Illegal)
print(verdict.message)

# %% [markdown]
# The answer is a *witness*: one concrete pair of instances in the wrong order, at concrete sizes. `T` and `H`
# are open in this schedule; isl found that a row of two elements is enough. You can check it with a pencil:
# in the loop above, `e(t=0, h=0)` runs before `m(t=0, h=1)`, whose element may be the largest.

# %%
witness = verdict.witness
assert witness is not None
print(witness.source, "must come before", witness.sink, "at", dict(witness.sizes))
assert str(witness.source) == "m(t=0, h=1)"
assert str(witness.sink) == "e(t=0, h=0)"
assert dict(witness.sizes) == {"T": 1, "H": 2}

# %% [markdown]
# Who asks for a schedule with this tree gets the same as an error, with both places of the program: the read
# that comes too early, and the definition of what it reads.

# %%
try:
    fused.with_tree(one_pass)
except pf.ScheduleError as error:
    print(error)
    (found,) = error.diagnostics
else:
    raise AssertionError("an illegal tree was accepted")
assert found.code == "PF501"
assert found.span is not None and found.span.text == "m[t]"
assert found.related[0][0].text == "m[t]    = max[h](x[t, h])"

# %% [markdown]
# ## Asking why
#
# One does not have to try. `explain` with two statements says which loops they share, and what keeps them
# from sharing more: the chain of dependences, and a witness for it.

# %%
why = fused.explain("m", "y")
print(why)
assert "m and y share the loop over t" in why
assert "m -> e -> y crosses its iterations" in why

# %% [markdown]
# ## What is a legal alternative?
#
# *Share less.* `LoopFusion` had fused what can be fused: the loop over rows, and in it `e` with `s`.
#
# *Delay.* In a common loop, `y` could run later by some iterations. By how many? `y(t, 0)` needs the whole
# sum, so by `H`. That is legal, and it shows that legality is a matter of order, not of looks. It gains
# nothing: the loop has `2*H` iterations, and isl cuts it into two again.

# %%
too_early = tree_edit.fuse(fused.tree, "e", "y")
assert not fused.legality(too_early)
delayed = tree_edit.shift(too_early, "s.h", "y", ISize("H"))
assert fused.legality(delayed)
print(format_tree(delayed, graph=fused.graph))
print(format_block(loops_of(fused.graph, delayed)))

# %% [markdown]
# *Change the program.* The online softmax keeps a running maximum and corrects the sum when it grows: fewer
# passes, other operations, other rounding. It is a different program and not a different schedule, so no
# scheduler makes it. Layer II does, before scheduling, of rows that do not stay near between two passes: by
# default, where the cost model finds that it pays, and `explain()` says so in a line `+ online`. Who wants
# the passes as they are written says `Stitching(online=False)`, or leaves layer II out
# ([online forms](../explanation/online.md)). [The language](../language.md#meaning) says how much results may
# differ.
#
# ## A recurrence, and an interchange that is illegal
#
# Now heat in a rod: each point moves towards its neighbours, step by step in time.

# %%
heat = pf.parse("""
op heat(start: f32[N], dt: f32[K]) -> (u: f32[K+1, N]) where N >= 2 {
  u[0, i] = start[i]
  u[t, i] = u[t-1, i] + dt[t-1] * (
    (u[t-1, i-1] if i >= 1 else u[t-1, i+1]) - 2.0 * u[t-1, i] + (u[t-1, i+1] if i < N-1 else u[t-1, i-1])
  ) for t in 1..K+1, i in 0..N
}
""")
steps = heat.op().specialize(N=100, K=40).schedule()
print(steps)

# %% [markdown]
# The two definitions of `u` are the statements `u` and `u__2`. The loop over time is ordered, the loop over
# points is parallel. For a long rod that is sad: every step moves the whole rod through the caches. If the
# loop over points were outermost, one could stay with a few points for many steps. So exchange the loops:

# %%
exchanged = tree_edit.interchange(steps.tree, "u__2.t", ("i", "t"))
verdict = steps.legality(exchanged)
print(format_tree(exchanged))
print(verdict.diagnostic.render())
assert isinstance(verdict, Illegal)

# %% [markdown]
# The witness explains it. A point needs its *right* neighbour one step earlier, and with the points outside,
# the right neighbour has not been touched yet.
#
# The textbook argument: `u(t, i)` needs `u(t-1, i-1)`, `u(t-1, i)` and `u(t-1, i+1)`. The differences in `(t,
# i)`, from what is needed to who needs it, are the *distance vectors* `(1, 1)`, `(1, 0)` and `(1, -1)`. An
# order of the loops is legal if each vector is lexicographically positive: its first entry that is not zero
# is positive. Exchanged, the last one is `(-1, 1)`. Negative, therefore illegal.

# %%
distances = {(1, 1), (1, 0), (1, -1)}


def legal(vectors: set[tuple[int, int]]) -> bool:
    """Is each vector lexicographically positive? (Tuples in Python compare in this order.)"""
    return all(v > (0, 0) for v in vectors)


assert legal(distances)
assert not legal({(i, t) for t, i in distances})

# %% [markdown]
# ## Skewing
#
# The remedy is to lean the nest: let `u(t, i)` run in iteration `i + t` of the inner loop. The order does not
# change yet, because for each `t` the points still run from left to right.

# %%
skewed = tree_edit.shift(steps.tree, "u__2.i", "u__2", IVar("t"))
print(format_tree(skewed))
assert steps.legality(skewed)
leaned = {(t, i + t) for t, i in distances}
print(sorted(leaned))
assert leaned == {(1, 2), (1, 1), (1, 0)}

# %% [markdown]
# But now no distance has a negative entry, and so they can be read in any order of the loops:

# %%
wavefront = tree_edit.interchange(skewed, "u__2.t", ("i", "t"))
assert steps.legality(wavefront)
assert legal({(i, t) for t, i in leaned})
print(format_tree(wavefront))
print(format_block(loops_of(steps.graph, wavefront)))

# %% [markdown]
# For the same reason the nest can be cut into *tiles*: blocks of 16 skewed points by 8 steps, each finished
# before the next begins. Leaning a nest is *loop skewing* (Wolfe, 1986), with tiles over time it is *time
# skewing* (Wonnacott, 2000), and it is how a stencil uses a cache line many times before it is gone.
# Rectangular tiles of the nest that is not skewed are illegal: two neighbouring tiles would need each other.

# %%
tiled = tree_edit.tile(wavefront, ("u__2.i", "u__2.t"), (16, 8))
assert steps.legality(tiled)
upright = tree_edit.interchange(steps.tree, "u__2.t", ("t", "i"))  # the same order, both loops in one band
verdict = steps.legality(tree_edit.tile(upright, ("u__2.t", "u__2.i"), (8, 16)))
assert isinstance(verdict, Illegal)
print(verdict.message)

# %% [markdown]
# ## Legal means the same result
#
# Each legal schedule computes each element from the same operands. So all of them agree with the reference,
# and with each other but for the last bit, which depends on where the C++ compiler fuses a multiplication
# with an addition.

# %%
rng = np.random.default_rng(0)
inputs = {"start": rng.random(100, dtype=np.float32), "dt": 0.4 * rng.random(40, dtype=np.float32)}
expected = evaluate(steps.graph, {}, inputs)["u"]


def run(tree: Tree) -> np.ndarray:
    """The result of the recurrence under a tree."""
    u = np.empty((41, 100), np.float32)
    steps.with_tree(tree).lower().build().run({**inputs, "u": u})
    assert agrees(u, expected, steps.graph.tensor("u").dtype)
    return u


results = [run(tree) for tree in (steps.tree, skewed, wavefront, tiled)]
for other in results[1:]:
    np.testing.assert_allclose(other, results[0], rtol=1e-6)

# %% [markdown]
# Next: [from schedule to CUDA](05_from_schedule_to_cuda.py), what becomes of a schedule on a GPU.
