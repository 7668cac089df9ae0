"""# 8. Packing

Layers I and II fuse what *depends* on each other. Layer III is for the rest: kernels that have nothing to
do with each other, each too small to fill the machine. They run side by side in one launch.

Apollo (MLSys'22) calls this parallel fusion. There the kernels of a pack may not be stitched ones, and
packs are small; here a pack takes what layer II made, and as many parts as pay.
"""

# %%
import numpy as np

import polyfuse as pf
from polyfuse.ir.kernel import touched_memory
from polyfuse.layers.packing.packing import levels

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
kernels = branches.specialize(N=128, M=128, K=96).schedule().apply(pf.LoopFusion()).lower(target="cpu")
stitched = kernels.apply(pf.Stitching())
print(kernels.launches, stitched.launches)
assert kernels.launches == 5 and stitched.launches == 4  # the two sums over d became one kernel

# %% [markdown]
# ## Which kernels may run side by side
#
# Two kernels may be in one pack if neither writes what the other touches. That is a statement about memory,
# not about operators, and an `inout` parameter and what it becomes count as one memory: a kernel that reads
# the old value must be done before another one writes the new one.

# %%
memory = {t.name: t for t in stitched.ir.graph.tensors}
for kernel in stitched.kernels:
    touched = touched_memory(kernel, memory)
    print(kernel.name, "reads", sorted(touched.read), "writes", sorted(touched.written))
first, second = (touched_memory(k, memory) for k in stitched.kernels[:2])
assert not first.meets(second)

# %% [markdown]
# Kernels are put into *levels*: the first needs nothing, the next needs only what the first makes, and so on.
# Kernels of one level are independent. Here all four are in the first.

# %%
print(levels(stitched.ir))
assert levels(stitched.ir) == [[0, 1, 2, 3]]

# %% [markdown]
# ## Does it pay?
#
# Apart, the kernels take the sum of their times and of what launching each costs. In a pack they take
#
#     one launch + max(all work spread over the machine, the longest part)
#
# (Apollo's gain is sum - max; the first term is what keeps a machine that is full already from being packed.)
# The decision says what the model found.

# %%
packed = stitched.apply(pf.Packing())
print(packed.launches)
print([str(d) for d in packed.decisions if d.kind == "pack"])
(pack,) = packed.kernels
assert packed.launches == 1 and len(pack.packed) == 4

# %% [markdown]
# Large kernels stay alone: each fills the machine, and one launch of two would only make the caches busy with
# both at once.

# %%
large = branches.specialize(N=8192, M=4096, K=8192).schedule().apply(pf.LoopFusion()).lower(target="cpu")
apart = large.apply(pf.Stitching()).apply(pf.Packing())
print(apart.launches, [str(d) for d in apart.decisions if d.kind == "pack"][:1])
assert apart.launches > 1

# %% [markdown]
# ## How a pack runs
#
# On a CPU a pack is one step of the parallel region: a list of tasks, several for a kernel with much work,
# one for a small one, so that all workers end at about the same time.

# %%
code = packed.code().source
print(code[code.index("PF_EXPORT void pf_k0_pack") :])
assert "switch (k)" in code

# %% [markdown]
# On a GPU each part has a range of blocks. Barriers and shared memory are those of each part alone, as a
# block runs only one of them. Parts that differ in names only share a function.

# %%
gpu = branches.specialize(N=128, M=128, K=96).schedule().apply(pf.LoopFusion()).lower(target="emulate")
on_gpu = gpu.apply(pf.Stitching()).apply(pf.Packing())
source = on_gpu.code().source
print(source[source.index("kernels side by side") - 5 :][:900])
assert "block <" in source and on_gpu.launches < stitched.launches

# %% [markdown]
# ## Whole optimizers
#
# What this is for: an optimizer steps over hundreds of small tensors. Written for each tensor, compiled at
# once; kernels of tensors of one shape are scheduled once and printed once.

# %%
count = 30
lines, parameters = [], []
for k in range(count):
    size = ("A", "B", "C")[k % 3]
    parameters.append(f"inout p{k}: f32[{size}], g{k}: f32[{size}], inout m{k}: f32[{size}]")
    lines.append(f"  n{k}[i] = 0.9 * m{k}[i] + g{k}[i]")
    lines.append(f"  m{k}[i] = n{k}[i]")
    lines.append(f"  p{k}[i] = p{k}[i] - lr * n{k}[i]")
text = f"op momentum({', '.join(parameters)}, lr: f32 = 0.01) {{\n" + "\n".join(lines) + "\n}"
step = pf.compile(text, target="cpu")
rng = np.random.default_rng(0)
arrays = [rng.normal(size=(64, 256, 4096)[k % 3]).astype("f4") for k in range(count) for _ in range(3)]
before = [a.copy() for a in arrays]
step(*arrays)
for k in range(count):
    p, g, m = before[3 * k : 3 * k + 3]
    np.testing.assert_allclose(arrays[3 * k + 2], 0.9 * m + g, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(arrays[3 * k], p - 0.01 * (0.9 * m + g), rtol=1e-4, atol=1e-5)
built = step.built(*arrays)
print(len(built.kernels.kernels), "launch,", built.code.source.count("_body(\n"), "functions")
assert len(built.kernels.kernels) == 1
assert built.code.source.count("_body(\n") == 3  # one for each shape
assert sum(d.kind == "same" for d in built.decisions) == count - 3

# %% [markdown]
# `step.picture(*arrays)` draws the launch, `step.timeline(*arrays)` measures it.
# [The next tutorial](09_a_transformer_layer_in_eight_ways.py) puts all layers to work on a model.
