"""# 3. Layer I by hand and automatically

Layer I of polyfuse is loop fusion. Here we do its work by hand: change a schedule tree step by step, ask
after each step whether the result is legal, rewrite the program where that saves memory traffic, and arrive
at the very schedule that `pf.LoopFusion()` finds. Each schedule is also run, and compared with a float64
reference.
"""

# %%
from dataclasses import replace

import numpy as np

import polyfuse as pf
from polyfuse.ir.schedule_tree import ScheduledGraph, format_tree, restrict, shape
from polyfuse.layers.graph.inline import cache_read, inline
from polyfuse.poly.legality.schedules import mark_coincident, races
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling import tree_edit
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

T, H = 1024, 256
program = pf.parse("""
op layer_norm(x: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  mu[t]   = sum[h](x[t, h]) / H
  c[t, h] = x[t, h] - mu[t]
  var[t]  = sum[h](c[t, h] ** 2) / H
  y[t, h] = c[t, h] * rsqrt(var[t] + eps) * gamma[h] + beta[h]
}
""")
identity = program.op("layer_norm").specialize(T=T, H=H).schedule()
print(identity)

# %% [markdown]
# ## How to check a result
#
# The reference evaluator knows nothing of schedules. For each element it gives a float64 value and a bound on
# what rounding in float32 may add up to. A result *agrees* if it is within the bound everywhere.

# %%
rng = np.random.default_rng(0)
inputs = {
    "x": rng.standard_normal((T, H), dtype=np.float32),
    "gamma": rng.standard_normal(H, dtype=np.float32),
    "beta": rng.standard_normal(H, dtype=np.float32),
    "eps": np.array(1e-5, np.float32),
}
expected = evaluate(identity.graph, {}, inputs)["y"]


def run(scheduled: pf.Scheduled) -> pf.Kernels:
    """Build the kernels of a schedule, run them, and compare with the reference."""
    kernels = scheduled.lower()
    y = np.empty((T, H), np.float32)
    kernels.build().run({**inputs, "y": y})
    verdict = agrees(y, expected, identity.graph.tensor("y").dtype)
    print(f"{kernels.launches} kernels; error at most {verdict.worst_ratio:.3f} of the bound")
    assert verdict
    return kernels


unfused = run(identity)

# %% [markdown]
# ## Step 1: one loop over the rows
#
# Every statement has a loop over `t`, and each row needs nothing from other rows. `tree_edit.fuse` puts two
# neighbours of a sequence under common loops: those at their head that have the same names. `mu__sum` has the
# loops `t` and `h`, `mu` only `t`, so they can share `t`.

# %%
tree = tree_edit.fuse(identity.tree, "mu__sum", "mu")
print(format_tree(tree, graph=identity.graph))

# %% [markdown]
# The functions of `tree_edit` change trees and ask no questions. Whether a tree is legal is asked separately,
# of isl, by a path that shares no code with the schedulers. It answers for every instance, not for a sample.

# %%
verdict = identity.legality(tree)
print(verdict)
assert verdict

# %% [markdown]
# The new loop says `ordered`. `fuse` does not claim what it has not proved; `mark_coincident` proves it, and
# sets the flag again.

# %%
model = build_model(identity.graph)
print(format_tree(mark_coincident(model, tree), graph=identity.graph).splitlines()[0])
assert mark_coincident(model, tree).children[0].members[0].coincident

# %% [markdown]
# The others follow, one after the other, each with the question asked anew.

# %%
for before, after in (("mu", "c"), ("c", "var__sum"), ("var__sum", "var"), ("var", "y")):
    tree = tree_edit.fuse(tree, before, after)
    assert identity.legality(tree), f"fusing {after}"
tree = mark_coincident(model, tree)
print(format_tree(tree, graph=identity.graph))
assert shape(tree) == "B1([B1(mu__sum); mu; B1(c); B1(var__sum); var; B1(y)])"

# %% [markdown]
# ## Step 2: share the loop over the columns where that is possible
#
# `c` and `var__sum` are neighbours now, both with a loop over `h`. The sum needs `c[t, h]` in the iteration
# in which it is computed:

# %%
tree = mark_coincident(model, tree_edit.fuse(tree, "c", "var__sum"))
assert identity.legality(tree)
print(shape(tree))
assert shape(tree) == "B1([B1(mu__sum); mu; B1(c+var__sum); var; B1(y)])"
by_hand = identity.with_tree(tree)
run(by_hand)

# %% [markdown]
# (`with_tree` checks legality as well, and raises `pf.ScheduleError` for an illegal tree. The next tutorial
# is about that.)
#
# Could `y` join them? No: it needs `var[t]`, which needs the whole row. Three passes over a row it is: one
# for the mean, one for the variance, one for the result.
#
# ## Step 3: recompute instead of store
#
# A kernel is made of each pass, and `c` crosses from the second to the third: a tensor as large as `x`,
# written to memory and read again. But `c[t, h]` is only `x[t, h] - mu[t]`. To compute it a second time costs
# one subtraction and reads `x` instead of `c`. This is *rematerialisation*, a change of the program that
# leaves every element as it is. `inline` replaces each read of `c` by its definition:

# %%
graph = inline(identity.graph, "c")
print(graph.statement("y"))
assert "c" not in [s.name for s in graph.statements]

# %% [markdown]
# For the tree this means a leaf less: `restrict` keeps the given statements. The same argument holds for `mu`
# and `var`, one division each.

# %%
graph = inline(inline(graph, "mu"), "var")
kept = frozenset(s.name for s in graph.statements)
tree = restrict(tree, kept)
assert tree is not None
by_hand = replace(identity, ir=ScheduledGraph(graph, mark_coincident(build_model(graph), tree)))
assert by_hand.legality()
print(by_hand)
final = run(by_hand)

# %% [markdown]
# ## The same, automatically

# %%
automatic = identity.apply(pf.LoopFusion())
print(automatic)
print(automatic.explain())
assert automatic.shape == by_hand.shape == "B1([B1(mu__sum); B1(var__sum); B1(y)])"
assert [str(s) for s in automatic.graph.statements] == [str(s) for s in by_hand.graph.statements]
found = run(automatic)

# %% [markdown]
# The same loops over the same statements. (The bands made by hand lack the star for *permutable*: nobody
# asked.) `explain` lists the decisions with their reasons; those with `+` were taken, those with `-` were
# not. The figures of the three, where "global" is the number of bytes that kernels move to and from memory:

# %%
print(pf.compare(unfused, final, found))
assert (unfused.launches, final.launches, found.launches) == (6, 3, 3)
assert final.global_bytes == found.global_bytes < 0.7 * unfused.global_bytes

# %% [markdown]
# Rematerialisation is a trade, and it is weighed each time. `exp` is expensive: in a softmax, `e` is
# stored.

# %%
softmax = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
reasons = softmax.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion()).explain()
print(reasons)
assert "- rematerialise e: it would compute exp again" in reasons

# %% [markdown]
# ## Contraction
#
# A tensor that is written and read in one nest only does not need to exist as a whole. How much of it is
# alive at a time? isl counts that for each temporary: in the nest below, one element. So it becomes a
# *register*.

# %%
gelu = pf.parse("""
op bias_gelu(x: f32[T, H], bias: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + bias[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.7071067811865476))
}
""")
kernels = gelu.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion()).lower()
print(kernels)
assert [str(b.scope.value) for b in kernels.kernels[0].buffers if b.tensor == "s"] == ["register"]

# %% [markdown]
# ## cache_read
#
# `cache_read` is the opposite of inlining: an input is read into a temporary once, and its readers share
# that. Inside one nest contraction puts the temporary into a register.

# %%
swish = pf.parse("op swish(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * sigmoid(x[t, h]) }")
sized = swish.op().specialize(T=T, H=H).schedule()
print(cache_read(sized.graph, "x").statement("y"))
cached = sized.apply(pf.LoopFusion(cache_reads=("x",))).lower()
assert "contract x__cache: to a register" in cached.explain()
assert cached.launches == 1

# %% [markdown]
# Where the readers are in several kernels, it makes things worse: the temporary is a copy of `x` in memory.
# That is why layer I does it only when asked.

# %%
worse = identity.apply(pf.LoopFusion(cache_reads=("x",))).lower()
print(pf.compare(found, worse))
assert worse.global_bytes > found.global_bytes

# %% [markdown]
# ## rfactor: parallel work for a sum
#
# The gradient of a bias is a sum over rows. The loop over `t` updates each `db[h]` again and again, so its
# iterations must not be spread over cores:

# %%
bias_gradient = pf.parse("op bias_gradient(dy: f32[T, H]) -> (db: f32[H]) { db[h] = sum[t](dy[t, h]) }")
sums = bias_gradient.op().specialize(T=8192, H=64).schedule()
print(sums)
over_t = next(m for m in sums.tree.members if m.name == "t")
refused = races(build_model(sums.graph), sums.tree, over_t)
print(refused.message)
assert not refused

# %% [markdown]
# But a sum may be reassociated. *rfactor* cuts the rows into chunks, gives each chunk a row of partial sums,
# and adds those up in a small second kernel. The loop over chunks updates different elements in each
# iteration.

# %%
factored = sums.lower(pf.Options(threads=2))
print(factored)
print(factored.explain())
assert factored.launches == 2
assert "+ rfactor db: partial results over 32 chunks of 256 iterations of t" in factored.explain()

# %% [markdown]
# The order of the additions is another one now, and rounding with it. The bound of the reference covers any
# order:

# %%
dy = rng.standard_normal((8192, 64), dtype=np.float32)
db = np.empty(64, np.float32)
factored.build().run({"dy": dy, "db": db})
assert agrees(db, evaluate(sums.graph, {}, {"dy": dy})["db"], sums.graph.tensor("db").dtype)

# %% [markdown]
# Next: [an illegal fusion](../course/06_legal_or_not.py), what the compiler says to it, and what to do
# instead.
