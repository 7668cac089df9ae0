"""# 12. Packing

Fusion puts together what depends on each other. What is left are kernels that have nothing to do with each
other, each too small to fill a GPU. Layer III runs them side by side in one launch.
"""

# %%
# ## Four small kernels
#
# Here are four results from four arguments. Loop fusion and stitching leave a kernel for each:

import polyfuse as pf

branches = pf.parse("""
op branches(a: f32[N, M], b: f32[N, M], c: f32[K, M], d: f32[K, M])
    -> (u: f32[N, M], v: f32[N], w: f32[K, M], z: f32[K]) {
  u[n, m] = max(a[n, m] * 1.5 + 0.1, 0.0)
  v[n] = sum[m](exp(0.1 * b[n, m]))
  w[k, m] = c[k, m] * c[k, m]
  s[k] = sum[m](d[k, m])
  z[k] = sum[m]((d[k, m] - s[k] / M) ** 2)
}
""").op()


def kernels_at(**sizes: int) -> pf.Kernels:
    """Kernels for a GPU, after layers I and II."""
    fused = branches.specialize(**sizes).schedule().apply(pf.LoopFusion())
    return fused.lower(target="cuda").apply(pf.Stitching())


apart = kernels_at(N=128, M=128, K=96)
assert apart.launches == 4
pf.visualize.timeline(apart, device="H100", title="Four launches on an H100")

# %%
# A *launch* costs time without any work, the pale part: the driver hands the kernel over, blocks start, and
# the last one drains before the next kernel begins. Behind each bar stands what takes longest, here this
# *overhead*. An H100 has 132 multiprocessors, and these kernels have 24 to 32 blocks each.
#
# ## What may be in one launch
#
# Kernels of one launch run in no order. So two of them may be packed if neither writes what the other reads
# or writes. This is a question about memory: an `inout` parameter and its new value are one array. On the
# right its name means the old value (`old` says it for readers). A kernel that reads the old value is not
# packed with the one that writes the new value.

packed = apart.apply(pf.Packing())
assert packed.launches == 1
pf.visualize.plan(apart, packed, names=("apart", "packed"))

# %%
# A frame is a launch. The kernels in it are its *parts*, and each has a range of block numbers: blocks 0 to
# 31 run the first part, the next ones the second. A block runs one part only, so barriers and shared memory
# are those of that part. On one scale:

pf.visualize.timeline(apart, packed, names=("apart", "packed"), device="H100", title="Four launches, or one")

# %%
# ## Whether it pays
#
# Apart, kernels take the sum of their times, each with its launch. In a pack they take
#
#     one launch + max(all work spread over the machine, the longest part) x crowding
#
# The first term of the maximum is for a machine that is full. The second one is for a part that takes long
# alone: the pack waits for it. All blocks of a launch get the room of the largest, in registers and shared
# memory, so fewer run at a time. That is the *crowding*. Here the launch takes 2.5 us and the longest part
# 1.5 us. Crowding makes 1.8 of it, which is now mostly *latency*: threads wait for memory, and few others can
# work meanwhile. The decision says what the model found:

print(next(line for line in packed.explain().splitlines() if " pack " in line))
before, after = apart.estimate("H100").seconds, packed.estimate("H100").seconds
assert before > 2.5 * after

# %%
# With 1024 times as many rows, and longer ones, each kernel fills the GPU by itself. A pack then saves one
# launch at most, and `k3`, which needs more registers, would crowd `k1`. The model refuses:

large = kernels_at(N=131072, M=1024, K=98304).apply(pf.Packing())
print("\n".join(line for line in large.explain().splitlines() if " pack " in line))
assert large.launches == 4 and "would cost" in large.explain()

# %%
# ## An optimizer over many tensors
#
# This is what packing is for: a model has hundreds of parameters, each of which the optimizer updates.


def optimizer(count: int) -> str:
    """A step of gradient descent over so many tensors."""
    tensors = ", ".join(f"inout p{k}: f32[S{k}], g{k}: f32[S{k}]" for k in range(count))
    steps = "\n".join(f"  p{k}[i] = p{k}[i] - lr * g{k}[i]" for k in range(count))
    return f"op step({tensors}, lr: f32 = 0.01) {{\n{steps}\n}}"


lengths = {f"S{k}": (64, 256, 4096)[k % 3] for k in range(24)}
each = pf.parse(optimizer(24)).op().specialize(**lengths).schedule().lower(target="cuda")
together = each.apply(pf.Packing())
times = [1e6 * kernels.estimate("H100").seconds for kernels in (each, together)]
print(f"{each.launches} launches: {times[0]:.0f} us; {together.launches} launch: {times[1]:.1f} us")
assert (each.launches, together.launches) == (24, 1) and times[0] > 10 * times[1]

# %%
# The tensors depend on nothing but their own gradient, so all of them are independent. Times are those of the
# cost model.
#
# ## Exercise
#
# Which of these pairs may be packed, and which pays? The GPU is large, tensors have 1,000 elements.
#
# 1. `a[i] = x[i] + 1.0` and `b[i] = x[i] * 2.0`.
# 2. `a[i] = x[i] + 1.0` and `b[i] = a[i] * 2.0`.
# 3. `p[i] = p[i] - g[i]` (p is `inout`) and `n = sum[i](old(p[i]) ** 2)`, a norm of the old p.
#
# <details><summary>Answer</summary>
#
# 1. It may: both only read `x`. But layer I is better: the two share a loop, which reads `x` once.
# 2. It may not: the second reads what the first writes. Layer I fuses them instead.
# 3. It may not: one writes the array that the other reads. The norm has to be done first.
#
# </details>
#
# Next: [a transformer layer in eight ways](13_a_transformer_layer.py).
