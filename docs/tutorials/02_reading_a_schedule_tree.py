"""# 2. Reading a schedule tree

A program of this language says *what* each element is. A *schedule* says *when* each is computed. polyfuse
writes schedules as trees. This tutorial reads two trees of the same operator, one without fusion and one
with, and explains each word in them.
"""

# %%
import islpy as isl

import polyfuse as pf
from polyfuse.ir.loop_ir import format_block
from polyfuse.ir.schedule_tree import Band, Leaf, Sequence, path
from polyfuse.poly.ast_build import loops_of
from polyfuse.poly.legality.schedules import races
from polyfuse.poly.model.dependences import flow
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling.tree_convert import schedule_map, to_isl
from polyfuse.visualize.schedule import before_after_svg, count_nests

program = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
""")
unfused = program.op("softmax").specialize().schedule()

# %% [markdown]
# ## Instances
#
# The unit that is scheduled is not the statement but the statement *instance*: `e` at `t=3, h=5`. All
# instances of a statement together are its *iteration domain*, a set of integer points. isl writes it with
# prefixes, so that no name of yours can mean anything to it: `S_` for statements, `i_` for index variables,
# `N_` for sizes.

# %%
model = build_model(unfused.graph)
print(model.domains["e"])
assert "S_e[i_t, i_h]" in str(model.domains["e"])

# %% [markdown]
# ## The identity schedule
#
# Without fusion each statement runs in loops of its own, one statement after the other:

# %%
print(unfused)

# %% [markdown]
# The tree has three kinds of nodes.
#
# * A **leaf** is a statement.
# * A **band** is a nest of loops around what is below it. Each of its loops is called a *member*. A member is
#   not a range but a *value for each instance*: `e->t` says that the instance `e(t, h)` runs in the iteration
#   whose number is `t`. Where the loop starts and ends follows from the domains.
# * A **sequence** runs its children one after the other. It is printed as a list with `-`.

# %%
assert isinstance(unfused.tree, Sequence)
assert len(unfused.tree.children) == 4
first = unfused.tree.children[0]
assert isinstance(first, Band)
assert [m.name for m in first.members] == ["t", "h"]
assert first.child == Leaf("m")

# %% [markdown]
# The first line of the print is the tree's **shape**: `B11(m)` is a band of two members over `m`, and
# `[...; ...]` is a sequence. Shapes are good for comparing trees at a glance.

# %%
assert unfused.shape == "[B11(m); B11(e); B11(s); B11(y)]"

# %% [markdown]
# ## From a tree to loops
#
# isl can turn a tree into loops. `c0` and `c1` are the loop variables, a call is an instance:

# %%
print(format_block(loops_of(unfused.graph, unfused.tree)))

# %% [markdown]
# ## The fused schedule

# %%
fused = unfused.apply(pf.LoopFusion())
print(fused)
print(format_block(loops_of(fused.graph, fused.tree)))
assert fused.shape == "B1([B1(m); B1(e+s); B1(y)])"

# %% [markdown]
# All four statements now share one loop over `t`. Inside it there are three passes over a row, and in the
# second pass `e` and `s` share the loop over `h` as well: `e+s` in the shape. Whoever computes `e[t, h]` adds
# it to `s[t]` at once, while it is in a register. Four nests have become three.

# %%
assert (count_nests(unfused.tree), count_nests(fused.tree)) == (4, 3)

# %% [markdown]
# The picture shows the same, with time running downwards and loops as boxes. It is plain SVG text, which you
# can write to a file and open in a browser.

# %%
svg = before_after_svg(unfused.ir, fused.ir)
assert svg.startswith("<svg")

# %% [markdown]
# ## Time as a vector
#
# A tree gives every instance a vector: on the way from the root to its leaf, append the value of each
# member and the position in each sequence. Instances run in *lexicographic* order of their vectors: compare
# the first entries, on a tie the second, and so on, like words in a dictionary.

# %%
times = schedule_map(build_model(fused.graph), fused.tree)
print(times)
text = str(times)
assert "S_m[i_t, i_h] -> [i_t, 0, i_h, 0]" in text
assert "S_e[i_t, i_h] -> [i_t, 1, i_h, 0]" in text
assert "S_s[i_t, i_h] -> [i_t, 1, i_h, 1]" in text

# %% [markdown]
# `e(3, 5)` has the time `[3, 1, 5, 0]` and `s(3, 5)` has `[3, 1, 5, 1]`: right after it. `m(3, 700)` has
# `[3, 0, 700, 0]`, and comes before both, because the entries differ first in the second place. In the tree
# this is the way from the root to a leaf:

# %%
steps = [p if isinstance(p, int) else p.name for p in path(fused.tree, "s")]
print(steps)
assert steps == ["t", 1, "h", 1]

# %% [markdown]
# ## Dependences, and the word *parallel*
#
# A schedule may order instances as it likes as long as each element is written before it is read. Who reads
# what from whom is again an exact relation between instances:

# %%
print(flow(model))

# %% [markdown]
# Read `S_m[i_t, i_h] -> S_e[i_t' = i_t, i_h']`: the update of the maximum with any `x[t, h]` must come before
# `e(t, h')` for *every* `h'`, since a maximum is known when all of its row has been seen.
#
# Now to the flag in the trees. A member is **coincident** (printed as `parallel` or `reduction (any order)`,
# and as `1` in the shape) if no dependence goes from one of its iterations to another, among instances that
# agree on all loops outside it. Rows of a softmax need nothing from each other, so `t` is coincident. The
# whole point of choosing fused loops well is to keep such loops outermost: their iterations can be spread
# over cores without a single word between them.
#
# A loop that carries a dependence is `ordered`, `0` in the shape. A running sum has one:

# %%
scan = pf.parse("""
op running_sum(x: f32[T, H]) -> (c: f32[T, H]) where T >= 1 {
  c[0, h] = x[0, h]
  c[t, h] = c[t - 1, h] + x[t, h] for t in 1..T
}
""")
ordered = scan.op().specialize().schedule().apply(pf.LoopFusion())
print(ordered)
step = next(m for m in path(ordered.tree, "c__2") if not isinstance(m, int) and m.name == "t")
assert not step.coincident

# %% [markdown]
# ## A reduction loop is coincident, but not free
#
# Look at the loop over `h` around `m` again: it is coincident although all its iterations update one
# element, `m[t]`. The flag leaves the order *among the updates* of an element open: a maximum or a sum
# may be taken in any order, and the tree says `reduction (any order)`. That permits vector lanes with partial
# results. It does not permit two cores to update `m[t]` at once: that is a second question, asked before a
# loop is spread over workers.

# %%
over_h = first.members[1]
assert over_h.coincident
verdict = races(model, unfused.tree, over_h)
print(verdict.message)
assert not verdict
assert races(model, unfused.tree, first.members[0])

# %% [markdown]
# A star after `band` means *permutable*: the members of the band may be interchanged, and so also tiled. Any
# band whose members are all coincident is.
#
# ## isl's own view
#
# Internally the tree becomes an isl schedule tree, which has a domain node on top and a filter on each child
# of a sequence. Here it is in isl's notation. The literature calls this
# *schedule trees* (Verdoolaege, Guelton, Grosser, Cohen, 2014).

# %%
schedule = to_isl(build_model(fused.graph), fused.tree)
print(schedule)
assert schedule.get_root().get_type() == isl.schedule_node_type.domain
assert "coincident: [ 1 ]" in str(schedule)

# %% [markdown]
# ## What it is good for
#
# The nests become kernels. A kernel reads its inputs from memory and writes its results there; what is used
# inside one nest only stays in registers. The fewer nests, the less traffic, if the right statements meet:

# %%
gelu = pf.parse("""
op bias_gelu(x: f32[T, H], bias: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + bias[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.7071067811865476))
}
""")
sized = gelu.op().specialize(T=4096, H=3072).schedule()
before, after = sized.lower(), sized.apply(pf.LoopFusion()).lower()
print(pf.compare(before, after))
print(after.explain())
assert (before.launches, after.launches) == (2, 1)
assert after.global_bytes < 0.51 * before.global_bytes
assert "contract s: to a register" in after.explain()

# %% [markdown]
# Next: [layer I by hand and automatically](03_layer_one_by_hand_and_automatic.py) leads from an unfused tree
# to a fused one step by step.
