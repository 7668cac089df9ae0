"""# 11. Gradients

To train a model, each operator needs a second one: how its inputs have to change so that a loss falls. This
tutorial differentiates operators, reads what comes out, and lets a small model learn.
"""

# %%
import numpy as np

import polyfuse as pf

# %% [markdown]
# ## Forward and backward
#
# A dense layer with an activation. `pf.grad` gives a *pair* of operators: `forward`, which may return more
# than the operator does, and `backward`, which takes the gradient of a result (its *cotangent*, `dy`) and
# returns the gradients of the inputs.

# %%
text = """
op layer(x: f32[N, K], w: f32[M, K], b: f32[M]) -> (y: f32[N, M]) {
  y[n, m] = tanh(sum[k](x[n, k] * w[m, k]) + b[m])
}
"""
layer = pf.grad(text)
print(layer.backward.program)

# %% [markdown]
# Three things are worth a look. The derivative of `tanh` is `1 - tanh²`, and since `y` is a result, it is
# read:
# nothing has to be kept. What was a broadcast of `b` is a sum over `n`. And both products of matrices are
# products again, with other loops summed.

# %%
assert layer.kept == ()
assert "1.0 - y[n, m] * y[n, m]" in str(layer.backward.program)
assert [s.name for s in layer.sources] == ["y", "x", "w", "y"]

# %% [markdown]
# ## Is it right?
#
# Differences tell: the slope of a result along a direction, beside the sum of gradient times direction.

# %%
rng = np.random.default_rng(0)
x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (4, 3), (4,)))
y = layer.forward(x, w, b)
dy = rng.standard_normal(y.shape).astype(np.float32)
dx, dw, db = layer.backward(dy, x, w, y)

along, step = rng.standard_normal(w.shape).astype(np.float32), 1e-2
ends = [(layer.forward(x, w + sign * step * along, b) * dy).sum() for sign in (1, -1)]
slope = (ends[0] - ends[1]) / (2 * step)
assert abs(slope - (dw * along).sum()) < 1e-2 * max(1.0, abs(slope))

# %% [markdown]
# ## What is kept
#
# A layer normalisation needs the mean and the variance of each row. These are sums over the row and have
# few bytes:
# they are kept. What follows element by element is computed again. `explain` says so, and `recompute`
# changes it.

# %%
norm = pf.grad("stdlib:layer_norm")
print(norm.explain())
assert norm.kept == ("mu", "var")
assert pf.grad("stdlib:layer_norm", recompute=["mu", "mu__sum"]).kept == ("var",)

# %% [markdown]
# The gradient through the mean has two parts. One is the sum of all deviations from the mean, which is 0
# whatever the
# data. It is not there: the row is read once for two sums, and once more for the result.

# %%
print(norm.backward.program)
assert str(norm.backward.program).count("sum[h") == 2

# %% [markdown]
# ## Time runs backward
#
# A recurrence goes from the first step to the last, its gradient from the last to the first.

# %%
average = pf.grad("""
op average(x: f32[T], rate: f32) -> (h: f32[T]) {
  h[t] = (1.0 - rate) * h[t-1 else 0.0] + rate * x[t]
}
""")
print(average.backward.program)
assert "t+1" in str(average.backward.program)

# %% [markdown]
# ## Learning
#
# All of it together: two layers and a loss, in one operator. Its gradient is one operator as well, which
# the compiler
# fuses as it fuses every other.

# %%
model = """
op loss(x: f32[N, K], t: f32[N], w1: f32[H, K], b1: f32[H], w2: f32[H]) -> (loss: f32) where N >= 1 {
  h[n, j] = tanh(sum[k](x[n, k] * w1[j, k]) + b1[j])
  p[n] = sum[j](h[n, j] * w2[j])
  loss = mean[n]((p[n] - t[n]) ** 2)
}
"""
pair = pf.grad(model, wrt=["w1", "b1", "w2"])
forward, backward = pf.compile(pair.forward), pf.compile(pair.backward)
x = rng.uniform(-2, 2, (64, 1)).astype(np.float32)
target = np.sin(x[:, 0] * 2)
shapes = {"w1": (16, 1), "b1": (16,), "w2": (16,)}
params = {n: 0.5 * rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
losses = []
for _ in range(300):
    loss, *kept = forward(x, target, **params)
    losses.append(float(loss))
    known = {"x": x, "t": target, **params, **dict(zip(pair.kept, kept, strict=True))}
    arguments = [np.float32(1.0) if s.kind == "cotangent" else known[s.name] for s in pair.sources]
    for name, d in zip(pair.wrt, backward(*arguments), strict=True):
        params[name] -= np.float32(0.05) * d
print(f"loss {losses[0]:.3f} -> {losses[-1]:.4f}")
assert losses[-1] < 0.3 * losses[0]
