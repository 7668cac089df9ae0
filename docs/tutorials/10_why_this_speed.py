"""# 10. Why this speed

A kernel runs. Is it fast? The question needs a second number: what could this machine do at best? This
tutorial takes one operator, a layer normalisation, and puts three answers side by side: the *roofline*,
which knows only bytes and operations; the *cost model*, which also knows caches and phases; and the clock.
Where they differ, there is something to learn, and where a variant of the code is faster, the model says
why.

All times below are of your machine, and of this minute: other programs change them. What is asserted does
not depend on them.
"""

# %%
import io
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

import polyfuse as pf
from polyfuse.cost.projection import project
from polyfuse.cost.speed_of_light import estimate
from polyfuse.driver.pipeline import Compilation, run
from polyfuse.driver.targets import projected_cpu, this_cpu
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.options import Options
from polyfuse.runtime.machine.op_rates import op_rates
from polyfuse.runtime.machine.probe import level_sets, measure

# %% [markdown]
# ## What the machine can do
#
# First the ceilings. `polyfuse doctor --measure` measures how many bytes a second each level of memory moves,
# and how many operations the vector units do; kept in the cache folder, it takes a second or two the first
# time. All threads work at once, because kernels will.

# %%
threads = this_cpu().threads
for size in level_sets(threads):
    measure(size)
functions = op_rates()
machine = this_cpu()
for level in machine.levels:
    fits = "anything" if level.capacity == float("inf") else f"{level.capacity / 1024:.0f} kB"
    print(f"{level.name:8s} {fits:>10s}  {level.bandwidth / 1e9:7.1f} GB/s")
print(f"{machine.operations / 1e9:.0f} G multiply-adds a second, in {machine.lanes} lanes")
assert machine.measured
assert machine.levels[0].capacity < machine.levels[-1].capacity

# %% [markdown]
# Not every operation is a multiply-add. A division has a unit of its own, and functions are polynomials:

# %%
for name in ("plain", "div", "exp", "tanh", "erf"):
    print(f"{name:6s} {functions[name] * 1e12:6.0f} ps an element in one thread")
assert functions["exp"] > functions["plain"] and functions["erf"] > functions["plain"]

# %% [markdown]
# ## The operator
#
# Each row is read three times, for its mean, its variance and its result. By layer II the three passes are
# phases of one kernel ([tutorial 6](06_stitching_a_layer_norm.py)).

# %%
program = pf.parse("""
op layer_norm(x: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  var[t] = mean[h]((x[t, h] - mu[t]) ** 2)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
}
""")
T, H = 8192, 768
scheduled = program.op().specialize(T=T, H=H).schedule().apply(pf.LoopFusion())
apart = scheduled.lower(target="cpu")
stitched = apart.apply(pf.Stitching())
print(pf.compare(apart, stitched))
assert (apart.launches, stitched.launches) == (3, 1)

# %% [markdown]
# ## The roofline
#
# The simplest model: a kernel does `W` operations and moves `B` bytes; it cannot take less than `W / rate`,
# nor less than `B / bandwidth`. Their ratio `W / B`, the *intensity*, decides which of the two counts.
# Plotted over the intensity, what is attainable is a slope, then a flat roof. There is one slope for each
# level of memory: a kernel sits below that of the level its bytes come from.

# %%
figures = {"three kernels": estimate(apart.ir, machine), "one kernel": estimate(stitched.ir, machine)}
for name, found in figures.items():
    nbytes, work = found.read + found.written, sum(k.work.weighted for k in found.kernels)
    print(
        f"{name}: {work / 1e6:.0f} M operations, {nbytes / 1e6:.0f} MB, {work / nbytes:.2f} operations a byte"
    )
x_bytes = 4 * T * H
one = figures["one kernel"]
assert one.read + one.written < 1.01 * (2 * x_bytes) + 2 * 4 * H
assert figures["three kernels"].read > 2.9 * x_bytes

# %% [markdown]
# The one kernel reads `x` once and writes `y` once: the *compulsory* traffic. Nothing that computes this can
# move less. The ridge, where the slope of the memory meets the roof, is far to the right of both:

# %%
memory = machine.levels[-1]
ridge = machine.operations / memory.bandwidth
intensity = sum(k.work.weighted for k in one.kernels) / (one.read + one.written)
floor_s = (one.read + one.written) / memory.bandwidth
print(f"the ridge is at {ridge:.1f} operations a byte, the kernel at {intensity:.2f}")
print(f"memory alone: {floor_s * 1e3:.2f} ms")
assert intensity > 0 and floor_s > 0

# %% [markdown]
# ## The cost model
#
# The roofline takes each byte once and from one place. The real kernel reads each row three times; the second
# and third time it comes from the nearest cache. `estimate` counts bytes by the level that they come from:

# %%
(kernel,) = one.kernels
for name, nbytes in kernel.levels:
    print(f"{name:8s} {nbytes / 1e6:8.1f} MB")
print(f"{kernel.terms.memory * 1e3:.2f} ms of memory, {kernel.terms.operations * 1e3:.2f} ms of operations")
levels = dict(kernel.levels)
assert levels["memory"] + levels["L3"] > 0.9 * 2 * x_bytes
assert levels["L1"] + levels["L2"] > 1.5 * x_bytes, "a row is read again, from a cache"

# %% [markdown]
# It takes the longest of all terms, as if memory and arithmetic were busy all the time. They are not. The
# first phase of a row waits for memory, while in the others memory is idle; unless the *next* row is fetched
# while this one is computed. That is what code generation decides, and the *projected* model
# ([its page](../lab/projection.md)) sees it:

# %%
raw, rates = projected_cpu()


def compiled(knobs: CpuKnobs = CpuKnobs(), stitching: pf.Stitching | None = pf.Stitching()):  # noqa: B008
    """The operator in a variant of its code."""
    base = Compilation(
        program.op().graph(),
        {"T": T, "H": H},
        pf.LoopFusion(),
        Options(verify=False, dump=None),
        stitching=stitching,
        clustering=Clustering(),
        knobs=knobs,
    )
    return run(base)


variants = {
    "as the model has it": compiled(),
    "no prefetch of rows": compiled(CpuKnobs(ahead=0)),
    "prefetch two rows ahead": compiled(CpuKnobs(ahead=2)),
    "plain stores": compiled(CpuKnobs(stream=False)),
    "three kernels": compiled(stitching=None),
}
projected = {}
for name, built in variants.items():
    found = project(built.kernels, raw, built.compilation.knobs, rates)
    parts = ", ".join(f"{k.memory * 1e3:.2f} + {k.core * 1e3:.2f}" for k in found.kernels)
    print(f"{name:24s} {found.seconds * 1e3:5.2f} ms    memory + core of each kernel: {parts}")
    projected[name] = found.seconds
assert projected["no prefetch of rows"] > 0.95 * projected["as the model has it"]
assert "prefetch" in variants["prefetch two rows ahead"].code.source.lower()

# %% [markdown]
# Two numbers a kernel: what memory takes, and what the core takes. Without prefetched rows they partly add
# up, phase by phase; with them the longer one hides the other. Where the core is much slower than memory, as
# with short vectors, both are the same.
#
# A plain store is dearer than it looks: the line that is written is read first. A *non-temporal* store writes
# whole lines around the caches and moves a third less in all, which pays where results do not fit a cache and
# costs where they would have. Here 50 MB are touched, more than usual caches hold, so it is done.

# %%
source = variants["as the model has it"].code.source
print("\n".join(line for line in source.splitlines() if "pf_stream(&" in line or "PF_STREAM_END;" in line))
assert "pf_stream(&" in source and "pf_stream(&" not in variants["plain stores"].code.source

# %% [markdown]
# ## The clock
#
# Now all of them run, in turns, so that a slow moment hits all alike; the shortest time of each counts,
# because everything that disturbs only slows down. All compute the same.

# %%
normal = np.random.default_rng(0).standard_normal
given = {
    "x": normal((T, H), np.float32),
    "gamma": normal(H, np.float32),
    "beta": normal(H, np.float32),
    "eps": np.float32(1e-5).reshape(()),
}
calls, results = {}, {}
for name, built in variants.items():
    arrays = {b.name: given.get(b.name) for b in built.executable.plan.buffers}
    out = next(b for b in built.executable.plan.buffers if b.name == "y")
    arrays["y"] = results[name] = built.executable.output(out)
    calls[name] = built.executable.bind({n: a for n, a in arrays.items() if a is not None})
measured = dict.fromkeys(calls, float("inf"))
for _ in range(25):
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        measured[name] = min(measured[name], time.perf_counter() - start)

first = results["as the model has it"]
exact = (given["x"] - given["x"].mean(1, keepdims=True)) / np.sqrt(given["x"].var(1, keepdims=True) + 1e-5)
assert np.allclose(first, exact * given["gamma"] + given["beta"], atol=1e-4)
assert all(np.allclose(first, other, atol=1e-5) for other in results.values())
print(f"{'':24s} roofline  projected  measured")
for name in variants:
    print(f"{name:24s} {floor_s * 1e3:8.2f} {projected[name] * 1e3:10.2f} {measured[name] * 1e3:9.2f} ms")
assert all(0 < seconds < 60 for seconds in measured.values())

# %% [markdown]
# Read the table by rows. *Measured* above *roofline* is what the kernel loses against compulsory traffic at
# full bandwidth of the memory; *projected* says how much of that is explained by phases that do not overlap,
# by stores that read first, by traffic that need not be. *Measured* below *roofline* means that the bytes did
# not come from the memory at all: a large last cache had kept them since the call before. What is left
# between *projected* and *measured* is what nobody has modelled: the clock, sets of caches, and the other
# programs on your machine.
#
# ## The plot
#
# The roofs of this machine, one slope for each level, and the variants below them: dots are measured, crosses
# projected. Variants of one kernel have the same intensity, so they differ only in height; three kernels move
# more bytes for the same work, and lie further to the left.

# %%
points = {}
for name in variants:
    found = figures["three kernels" if name == "three kernels" else "one kernel"]
    work = sum(kernel.work.weighted for kernel in found.kernels)
    points[name] = work / (found.read + found.written), work / measured[name], work / projected[name]
assert points["three kernels"][0] < points["as the model has it"][0]


def plot() -> str:
    """The figure as SVG; needs matplotlib (`pip install polyfuse[docs]`)."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.5))
    reach = np.logspace(-2, 2.5, 200)
    for level in machine.levels:
        attainable = np.minimum(reach * level.bandwidth, machine.operations) / 1e9
        axes.plot(reach, attainable, linewidth=1, label=f"{level.name}, {level.bandwidth / 1e9:.0f} GB/s")
    for k, (name, (at, real, model)) in enumerate(points.items()):
        axes.plot([at], [real / 1e9], "o", color=f"C{k + 4}", label=name)
        axes.plot([at], [model / 1e9], "x", color=f"C{k + 4}")
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="G operations a second")
    axes.set_title(f"layer_norm {T} x {H}: dots measured, crosses projected")
    axes.legend(fontsize=8)
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    return picture.getvalue()


if find_spec("matplotlib"):
    svg = plot()
    print(f"an SVG of {len(svg) / 1000:.0f} kB: write it to a file, or show it in a notebook")
    assert "<svg" in svg

# %% [markdown]
# ## Another roof
#
# Not every kernel is bound by memory. The same model of an operator that computes an error function for each
# element, once with few elements and once with many:

# %%
gelu = pf.parse(
    "op gelu(x: f32[N]) -> (y: f32[N]) { y[i] = 0.5 * x[i] * (1.0 + erf(x[i] * 0.70710678)) }"
).op()
for n in (1 << 14, 1 << 24):
    kernels = gelu.specialize(N=n).schedule().apply(pf.LoopFusion()).lower(target="cpu")
    (found,) = project(kernels.ir, raw, CpuKnobs(), rates).kernels
    where = kernels.estimate().kernels[0].levels
    level = max(where, key=lambda pair: pair[1])[0]
    print(
        f"{n:9d} elements from {level}: {found.memory * 1e6:8.1f} us memory, {found.core * 1e6:8.1f} us core"
    )
faster = replace(raw, levels=tuple(replace(x, bandwidth=100 * x.bandwidth) for x in raw.levels))
(unbound,) = project(kernels.ir, faster, CpuKnobs(), rates).kernels
assert unbound.bound == "core", "with memory a hundred times as fast, arithmetic is what counts"
assert unbound.memory < found.memory / 50

# %% [markdown]
# A model answers such questions before anybody builds the machine. For the one in front of you a measurement
# is better, if it is cheap: `pf.compile(source, tune="measure")` projects the variants of an operator,
# compiles the likely ones, runs them in a process of their own, and keeps the fastest
# ([tuning](../reference/tuning.md)).
