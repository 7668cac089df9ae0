"""# 13. A transformer layer in eight ways

Three layers, each on or off: that makes eight ways to compile one program. Here the program is a layer of a
transformer, as in BERT. This chapter counts what each layer brings, and says where none of them matters.
"""

# %%
# ## The program
#
# Six matrix products, and between them a change of layout, a masked softmax, a GELU and two normalisations:
# operators of the [standard library](../reference/stdlib.md), called by name. First the part between the
# products, with their results as arguments, then the whole layer:

import time

import numpy as np

import polyfuse as pf
from polyfuse.driver.partitions import kernels_by

program = pf.parse("""
op between(packed: f32[N, S, 3, A, D], score: f32[N, A, S, S], attended: f32[N, S, E], up: f32[N, S, M],
        down: f32[N, S, E], x: f32[N, S, E], mask: f32[N, S], b_qkv: f32[3, A, D], b_out: f32[E],
        b_up: f32[M], b_down: f32[E], gamma1: f32[E], beta1: f32[E], gamma2: f32[E], beta2: f32[E])
    -> (q: f32[N, A, S, D], k: f32[N, A, S, D], v: f32[N, A, S, D], p: f32[N, A, S, S],
        act: f32[N, S, M], h: f32[N, S, E], y: f32[N, S, E]) {
  (q, k, v) = split_heads(packed, b_qkv)
  p = masked_softmax(score, mask, rsqrt(D))
  h = bias_residual_layer_norm(attended, b_out, x, gamma1, beta1, 1e-5)
  act = bias_gelu(up, b_up)
  y = bias_residual_layer_norm(down, b_down, h, gamma2, beta2, 1e-5)
}
op layer(x: f32[N, S, E], mask: f32[N, S], w_qkv: f32[3, A, D, E], b_qkv: f32[3, A, D],
        w_out: f32[E, A, D], b_out: f32[E], gamma1: f32[E], beta1: f32[E], w_up: f32[M, E], b_up: f32[M],
        w_down: f32[E, M], b_down: f32[E], gamma2: f32[E], beta2: f32[E])
    -> (y: f32[N, S, E]) {
  packed[n, s, c, a, d] = sum[e](x[n, s, e] * w_qkv[c, a, d, e])
  (q, k, v) = split_heads(packed, b_qkv)
  score[n, a, s, t] = sum[d](q[n, a, s, d] * k[n, a, t, d])
  p = masked_softmax(score, mask, rsqrt(D))
  context[n, s, a, d] = sum[t](p[n, a, s, t] * v[n, a, t, d])
  attended[n, s, e] = sum[a, d](context[n, s, a, d] * w_out[e, a, d])
  h = bias_residual_layer_norm(attended, b_out, x, gamma1, beta1, 1e-5)
  up[n, s, f] = sum[e](h[n, s, e] * w_up[f, e])
  act = bias_gelu(up, b_up)
  down[n, s, e] = sum[f](act[n, s, f] * w_down[e, f])
  y = bias_residual_layer_norm(down, b_down, h, gamma2, beta2, 1e-5)
}
""")
bert = {"N": 8, "S": 512, "E": 768, "A": 12, "D": 64, "M": 3072}
layer, between = (program.op(name).specialize(**bert) for name in ("layer", "between"))
print(len(layer.graph.statements), "statements, of these", len(between.graph.statements), "between products")

# %%
# ## Eight ways
#
# `layers=` of `pf.compile` says which layers take part. `kernels_by` stops where the code begins, so it needs
# no GPU; `"connect"` is the usual way to cut a graph. The times are those of the cost model for an H200:

WAYS = [
    tuple(layer for layer in (loop, stitch, pack) if layer)
    for loop in ("", "loop")
    for stitch in ("", "stitch")
    for pack in ("", "pack")
]
h200 = pf.Options(device="H200")


def in_eight_ways(op: pf.Specialized) -> tuple[dict[str, pf.Kernels], dict[str, object]]:
    """Kernels and figures of each way, with a line of a table."""
    made, figures = {}, {}
    for way in WAYS:
        name = " + ".join(way) or "none"
        made[name] = kernels_by(op, "connect", way, h200, target="cuda")
        found = figures[name] = made[name].estimate("H200")
        launches, moved = made[name].launches, (found.read + found.written) / 1e6
        print(f"{name:20} {launches:3} launches {moved:6.0f} MB {1e3 * found.seconds:7.2f} ms")
    return made, figures


whole, figures = in_eight_ways(layer)
assert whole["none"].launches > whole["loop"].launches > whole["loop + stitch"].launches
pf.visualize.plan(whole["loop + stitch"], title="The layer, loops fused and kernels stitched")

# %%
# Launches fall from one for each statement (one is a constant) to three. `k2` has nine *stages*: kernels that
# share no loop, with barriers of all blocks between them. Bytes fall to less than half. The time hardly
# changes, and the timeline says why:

assert figures["none"].read > 2 * figures["stitch"].read
assert max(f.seconds for f in figures.values()) < 1.1 * min(f.seconds for f in figures.values())
pf.visualize.timeline(whole["loop"], device="H200", title="With layer I, on an H200")

# %%
# The long bars are the products, and no layer takes an operation away from them. *Operations* include loads,
# and loads far apart count most: neighbouring threads of `score` read neighbouring rows of `k`. In `context`
# they read neighbouring elements of `v`. It multiplies as often in less time, and its limit is *latency*, as
# each addition waits for the one before.
#
# These products are in f32, without tensor cores. With faster ones the rest counts more, as in the exercise.
#
# ## Without the products
#
# Now only what lies between:

parts, figures = in_eight_ways(between)
assert figures["none"].seconds > 2.5 * figures["loop + stitch + pack"].seconds
names = ("none", "loop", "stitch", "loop + stitch")
pf.visualize.traffic(*(parts[name] for name in names), names=names, device="H200")

# %%
# Here the time falls as the bytes do. Read the table layer by layer:
#
# - **loop** joins statements that run over the same loops: a bias and the GELU after it, an exponential and
#   the sum of it. Passes over a row share [the loop over rows](08_fusion.py), but alone layer I still makes
#   each a kernel.
# - **stitch** makes them phases of one kernel. It moves as few bytes without layer I, because a thread keeps
#   in registers what goes from phase to phase. With layer I there are fewer phases.
# - **pack** moves no byte less. It saves launches of some microseconds: little beside hundreds of megabytes,
#   and much for [small tensors](12_packing.py).
#
# The layer is a chain, where only `q`, `k` and `v` can be packed. Without products its five parts hardly
# depend on each other. Still `k1` and `k2` stay alone: each fills the machine, and in a pack all kernels get
# as many registers as the largest.

assert figures["loop"].read < figures["none"].read
assert figures["stitch"].read == figures["loop + stitch"].read
assert parts["pack"].launches < parts["none"].launches and figures["pack"].read == figures["none"].read
pf.visualize.plan(parts["loop + stitch + pack"], title="Between the products, with all three layers")

# %%
# ## By the clock
#
# A CPU is at hand. Here is one sentence of 512 words: the layer without any of the three layers, then what
# lies between the products, without and with them:


def milliseconds(name: str, way: tuple[str, ...]) -> tuple[float, np.ndarray]:
    """The least of some calls, and the last result."""
    op = program.op(name).specialize(**bert | {"N": 1})
    shapes = {n: [e.value for e in op.graph.tensor(n).shape] for n in op.graph.inputs}
    random = np.random.default_rng(0)
    arguments = {n: (0.2 * random.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    f = pf.compile(program, name, target="cpu", layers=way)
    y = f(**arguments)
    call, times = f.bind(**arguments), []  # the arguments are checked once
    for _ in range(4):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times), y[-1] if len(op.graph.outputs) > 1 else y


all_of_it, _ = milliseconds("layer", ())
apart, before = milliseconds("between", ())
fused, after = milliseconds("between", WAYS[-1])
np.testing.assert_allclose(before, after, rtol=2e-3, atol=2e-4)
print(f"the layer {all_of_it:.1f} ms; between products {apart:.1f} ms, and fused {fused:.1f} ms")

# %%
# The clock agrees with the model of the GPU: what lies between gets faster, and the layer hardly. Fusion
# takes the difference of the last two figures off the first.
#
# ## Exercise
#
# Say that the products take 17 ms, and what is between takes 0.32 ms apart and 0.10 ms fused.
#
# 1. How much faster does fusion make the layer?
# 2. In half precision, on tensor cores, products are twenty times as fast. How much is it then, if the rest
#    stays as it is?
# 3. How many kernels does layer I leave of the masked softmax, and why not one?
#
# <details><summary>Answer</summary>
#
# 1. 17.32 / 17.10: 1.01x.
# 2. Products take 0.85 ms. 1.17 / 0.95: 1.23x.
# 3. Three: the maximum, the exponentials with their sum, the quotients. Each needs the whole row of the one
#    before, so they share the loop over rows, not that over columns. One kernel for them is layer II's work.
#
# </details>
#
# Next: [from schedule to code](14_from_schedule_to_code.py).
