"""# 7. The four schemes

[Tutorial 6](06_stitching_a_layer_norm.py) stitched the kernels of a layer normalisation into one. What goes
from one phase of such a kernel to the next stays in a register, goes through shared memory, or through
global memory. AStitch (ASPLOS'22) gives these cases names:

| scheme | between producer and consumer | goes through |
|---|---|---|
| *Independent* | nothing | - |
| *Local* | every thread uses what it made itself | a register |
| *Regional* | every block uses what it made itself | shared memory, and a barrier of the block |
| *Global* | the rest | global memory, and a barrier of the grid, or a new kernel |

AStitch tells them apart by the kinds of operators. Here they follow from *relations*: which instance of one
statement needs which of the other, and where each of them runs. No operator is looked at, so the
same test holds for operators that nobody has thought of. All of it is shown on kernels small enough to
draw: 6 rows of 16 elements, blocks of a few threads.
"""

# %%
from dataclasses import replace

import polyfuse as pf
from polyfuse.ir.kernel import Kernel, Scope, placement
from polyfuse.ir.schedule_tree import Coordinate, Member
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling.placement import Links
from polyfuse.visualize.threads import needed, placement_svg

tiny = GpuTarget(sms=2, threads=16, row_threads=4, vector=1, parallel=64, least=16, launch_s=0.0)


def stitched(text: str) -> Kernel:
    """The operator as one stitched kernel, on a GPU with two tiny multiprocessors on which launches cost
    nothing; without layer I, which would merge statements before there is anything to stitch."""
    scheduled = pf.parse(text).op().specialize(T=6, H=16).schedule()
    kernels, _ = form_kernels(scheduled.ir, tiny, Stitching(barriers=True))
    (kernel,) = kernels.kernels
    return kernel


chain = stitched("""
op chain(x: f32[T, H]) -> (y: f32[T, H]) {
  a[t, h] = exp(x[t, h])
  y[t, h] = a[t, h] + 1.0
}
""")
print(chain)

# %% [markdown]
# ## Two relations
#
# The first says what goes from where to where: pairs of an instance of the producer and an instance of the
# consumer that must come after it. It comes from the program alone.

# %%
links = Links(build_model(chain.graph))
flow = links.flow(["a"], ["y"])
print(flow)
assert str(flow).count("->") >= 1 and not flow.is_empty()

# %% [markdown]
# The second says where an instance runs. It comes from the mapping: each coordinate is an index expression.

# %%
for statement in ("a", "y"):
    places = {c.value: [str(e) for e in found] for c, found in placement(chain)[statement].items()}
    print(statement, places)
assert placement(chain)["a"] == placement(chain)["y"]

# %% [markdown]
# ## A subset test
#
# Let `F` be the flow and `P` the place. Producer and consumer *agree* on a coordinate if it has the same
# value at both ends of every pair: `F` is a subset of `{ i -> j : P(i) = P(j) }`. `Links.agree` asks isl
# just that. With it the four schemes are four lines.
#
# Two things are known of threads beyond their number. A statement that has no coordinate of threads runs in
# every thread of its row. And the threads that share a reduction combine what they have: afterwards *each* of
# them has the total.

# %%
BLOCK, ROW, THREAD = Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD


def scheme(kernel: Kernel, producer: str, consumer: str) -> str:
    """Independent, Local, Regional or Global."""
    links, where = Links(build_model(kernel.graph)), placement(kernel)
    pairs = links.flow([producer], [consumer])

    def agree(coordinate: Coordinate) -> bool:
        mine, theirs = (where[s].get(coordinate, ()) for s in (producer, consumer))
        return len(mine) == len(theirs) and all(
            links.agree(pairs, Member("", ((producer, a),)), Member("", ((consumer, b),)))
            for a, b in zip(mine, theirs, strict=True)
        )

    everywhere = THREAD not in where[producer] or (
        Coordinate.ROUND in where[producer] and kernel.graph.statement(producer).reduction is not None
    )
    if pairs.is_empty():
        return "Independent"
    if not agree(BLOCK):
        return "Global"
    return "Local" if agree(ROW) and (everywhere or agree(THREAD)) else "Regional"


def storage(kernel: Kernel, tensor: str) -> Scope:
    """Where a tensor lives, as the compiler chose."""
    return next(b.scope for b in kernel.buffers if b.tensor == tensor)


# %% [markdown]
# ## An elementwise chain: Local
#
# Statement `y` needs of `a` the element with the same index, and both run it in the same thread.

# %%
print(scheme(chain, "a", "y"), "->", storage(chain, "a").value)
assert scheme(chain, "a", "y") == "Local" and storage(chain, "a") is Scope.REGISTER
svg = placement_svg(chain, "a", "y", along="h", title="an elementwise chain: Local")
# Path("chain.svg").write_text(svg) saves it
assert svg.startswith("<svg") and svg.count("<rect") > 2 * 6 * 16

# %% [markdown]
# The picture has the instances of `a` on the left and those of `y` on the right. A colour is a block, a
# number `row.thread`; one element of `y` is framed, and so is what it needs. Same colour, same number: the
# value stays in the thread.
#
# ## A broadcast: Local as well
#
# Here `a` has one element for each row, and 16 elements of `y` need it.

# %%
broadcast = stitched("""
op broadcast(x: f32[T, H], r: f32[T]) -> (y: f32[T, H]) {
  a[t] = exp(r[t])
  y[t, h] = a[t] * x[t, h]
}
""")
print(scheme(broadcast, "a", "y"), "->", storage(broadcast, "a").value)
a, y = broadcast.graph.statement("a"), broadcast.graph.statement("y")
print("y[3, 5] needs", needed(a, y, {"t": 3, "h": 5}))
assert scheme(broadcast, "a", "y") == "Local" and storage(broadcast, "a") is Scope.REGISTER
assert needed(a, y, {"t": 3, "h": 5}) == [{"t": 3}]
assert THREAD not in placement(broadcast)["a"]
svg = placement_svg(broadcast, "a", "y", along="h", title="a broadcast: Local")
assert ".*" in svg

# %% [markdown]
# Every thread of the row computes `a` for itself: `row.*` in the picture. Four times the work for one
# element, but no thread waits for another. (Where `a` is expensive, or the row has more threads than a
# warp, that is a question of cost, not of correctness.)
#
# ## A row reduction: Local, after the threads have combined
#
# Each `y` needs a sum that four threads share.

# %%
row = stitched("""
op normalise(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t]
}
""")
print(scheme(row, "s", "y"), "->", storage(row, "s").value)
s, y = row.graph.statement("s"), row.graph.statement("y")
print("y[3, 5] needs", len(needed(s, y, {"t": 3, "h": 5})), "terms of the sum, all of row 3")
assert scheme(row, "s", "y") == "Local" and storage(row, "s") is Scope.REGISTER
assert [p["t"] for p in needed(s, y, {"t": 3, "h": 5})] == [3] * 16
svg = placement_svg(row, "s", "y", along="h", title="a row reduction: Local")
assert svg.count('stroke-width="2.5"') == 16 + 1

# %% [markdown]
# The framed terms have four different threads, but one block and one row. The lanes of a warp combine their
# parts by shuffles (several warps through shared memory), and then the total is in a register of each.
# AStitch calls this Regional; what matters for storage is that no thread reads what another stored.
#
# The row `x` itself is read by both phases: a thread reads its elements once and keeps them.

# %%
assert storage(row, "x__row") is Scope.LOCAL
assert scheme(row, "x__row", "y") == "Local"

# %% [markdown]
# ## A row read backwards: Regional
#
# Now the consumer needs element `H - 1 - h` of the row. That is another thread's, in the same block.

# %%
reverse = stitched("""
op reverse(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, H - 1 - h] / s[t]
}
""")
print(scheme(reverse, "e", "y"), "->", storage(reverse, "e").value)
assert scheme(reverse, "e", "y") == "Regional" and storage(reverse, "e") is Scope.SHARED
assert scheme(reverse, "e", "s") == "Local"
e, y = reverse.graph.statement("e"), reverse.graph.statement("y")
assert needed(e, y, {"t": 3, "h": 5}) == [{"t": 3, "h": 10}]
svg = placement_svg(reverse, "e", "y", along="h", title="a row read backwards: Regional")

# %% [markdown]
# Storage is chosen for a tensor, not for a pair: `s` could have kept `e` in registers, `y` cannot, so `e`
# is in shared memory. A barrier of the block comes between; it was not placed here but when the code was
# printed, where it was found to be needed, and proved to be enough.
#
# ## A column reduction: Global
#
# The sum runs down a column now, and columns are what neighbouring threads, and different blocks, have. The
# consumer has rows.

# %%
column = stitched("""
op columns(x: f32[T, H]) -> (y: f32[T, H]) {
  s[h] = sum[t](x[t, h])
  y[t, h] = x[t, h] / s[h]
}
""")
print(column)
print(scheme(column, "s", "y"), "->", storage(column, "s").value)
s, y = column.graph.statement("s"), column.graph.statement("y")
print("y[3, 5] needs", needed(s, y, {"t": 3, "h": 5}))
assert scheme(column, "s", "y") == "Global" and storage(column, "s") is Scope.GLOBAL
assert [p["t"] for p in needed(s, y, {"t": 3, "h": 5})] == [0, 1, 2, 3, 4, 5]
assert len(column.stages) == 2
svg = placement_svg(column, "s", "y", along="h", title="a column reduction: Global")

# %% [markdown]
# In the picture a column of `s` has one colour, and `y` has other colours in the same column: blocks that
# did not make the sum need it. It is still one kernel, of two *stages*: all blocks wait for each other at a
# barrier of the grid, and `s` goes through global memory. For that all blocks must be on the device at the
# same time; where they are not, or where launching again is quicker, the compiler makes two kernels.
#
# ## Schemes belong to a mapping
#
# Nothing about a column sum is Global by nature. If the consumer takes columns as well, it agrees with
# the producer on `h`, and everything is Local. AStitch calls this *proactive* adaptation. It costs
# parallelism, since only the columns are left to spread; the cost model weighs that against the launch
# and the traffic that are saved. On the device above launches cost nothing. Where they take a few
# microseconds, as they do, so few elements need not fill it. The test is the same; only `P` has changed.

# %%
tiny = replace(tiny, launch_s=2.5e-6)  # launches that cost something: so few elements need not fill it
agreed = stitched("""
op columns(x: f32[T, H]) -> (y: f32[T, H]) {
  s[h] = sum[t](x[t, h])
  y[t, h] = x[t, h] / s[h]
}
""")
print(scheme(agreed, "s", "y"), "->", storage(agreed, "s").value)
assert scheme(agreed, "s", "y") == "Local" and storage(agreed, "s") is Scope.REGISTER
assert len(agreed.stages) == 1
svg = placement_svg(agreed, "s", "y", along="h", title="a column reduction, columns kept: Local")

# %% [markdown]
# ## Nothing goes between: Independent
#
# Two reductions of one input have no element to hand on. Their flow is empty. They are stitched all the
# same, by a relation of another kind: pairs of instances that *read* one element of an input. Where those
# agree, the input is read once.

# %%
pair = stitched("""
op extremes(x: f32[T, H]) -> (low: f32[T], high: f32[T]) {
  low[t] = min[h](x[t, h])
  high[t] = max[h](x[t, h])
}
""")
links = Links(build_model(pair.graph))
print(scheme(pair, "low", "high"), "- they share", links.sharing(["low"], ["high"]))
assert scheme(pair, "low", "high") == "Independent"
assert "x__row" in pair.statements or not links.sharing(["low"], ["high"]).is_empty()

# %% [markdown]
# ## All of them together
#
# In AStitch's own example (its Figure 7) a row reduction, a power of one element a row, a broadcast and a
# second reduction follow each other. Every pair is Local: the whole graph is one kernel without shared
# memory between its phases.

# %%
astitch = stitched("""
op astitch(x: f32[T, H], y: f32[T, H]) -> (z: f32[T, H]) {
  r1[t] = sum[h](x[t, h] * x[t, h])
  p[t] = (0.01 * r1[t] + 1.0) ** 1.3
  c[t, h] = p[t] + y[t, h]
  r2[t] = sum[h](c[t, h] * c[t, h])
  z[t, h] = c[t, h] * (r2[t] + 1e-6) ** -0.5
}
""")
for producer, consumer in (("r1", "p"), ("p", "c"), ("c", "r2"), ("c", "z"), ("r2", "z"), ("r1", "r2")):
    print(f"{producer:2} to {consumer:2}: {scheme(astitch, producer, consumer)}")
assert scheme(astitch, "r1", "p") == scheme(astitch, "p", "c") == scheme(astitch, "r2", "z") == "Local"
assert scheme(astitch, "c", "r2") == scheme(astitch, "c", "z") == "Local"
assert scheme(astitch, "r1", "r2") == "Independent"  # what it needs of r1 comes by way of c
assert storage(astitch, "p") is Scope.REGISTER and storage(astitch, "c") is Scope.LOCAL

# %% [markdown]
# ## What the compiler says itself
#
# `Kernels.schemes()` asks these questions of finished kernels, for every pair that something goes
# between, on any target; `explain()` has the same lines. On a CPU a worker takes the place of a block,
# and its array in cache that of shared memory.

# %%
figure_7 = """
op astitch(x: f32[T, H], y: f32[T, H]) -> (z: f32[T, H]) {
  r1[t] = sum[h](x[t, h] * x[t, h])
  p[t] = (0.01 * r1[t] + 1.0) ** 1.3
  c[t, h] = p[t] + y[t, h]
  r2[t] = sum[h](c[t, h] * c[t, h])
  z[t, h] = c[t, h] * (r2[t] + 1e-6) ** -0.5
}
"""
unfused = pf.parse(figure_7).op().specialize(T=4096, H=768).schedule()
on_gpu = unfused.lower(target="cuda").apply(pf.Stitching())
on_cpu = unfused.lower(target="cpu").apply(pf.Stitching())
print(on_gpu.schemes())
print(on_cpu.schemes())
assert on_gpu.schemes().of("c", "z") == "Local" and on_cpu.schemes().of("c", "z") == "Regional"

# %% [markdown]
# Two statements of this graph *dominate*: the others follow their loops. Candidates are the reductions,
# `p`, which is expensive and read many times, and the output `z`. Between `r1` and `p` every element is
# read once, so the two are merged, and the reduction leads; so are `r2` and `z`, by way of `c`. From `p`
# to `c` an element goes to a whole row: there the two groups end.

# %%
for dominant in on_gpu.dominants():
    print(dominant)
assert [(d.name, d.sub_dominants) for d in on_gpu.dominants()] == [("r1", ("p",)), ("r2", ("z",))]
assert on_cpu.dominants() == on_gpu.dominants()

# %% [markdown]
# [Stitching](../explanation/stitching.md) has the rules in one place: how nests join, what refuses, and how
# storage is chosen.
