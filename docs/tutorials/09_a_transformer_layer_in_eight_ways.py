"""# 9. A transformer layer in eight ways

Three layers, each on or off: eight ways to compile one program. Here it is the encoder layer of BERT
(`examples/models/transformer_encoder.pf`): projections to heads, masked softmax, two residual layer
normalisations, a GELU. All eight give the same numbers; they differ in how often memory is touched and how
much is launched.
"""

# %%
import json
from itertools import product
from pathlib import Path

import numpy as np

import polyfuse as pf

folder = Path(pf.__file__).parents[1]
model = pf.parse(folder / "examples" / "models" / "transformer_encoder.pf")
op = model.op("encoder_layer")
print(op.signature)

# %% [markdown]
# ## The program
#
# Operators call operators; the compiler sees one graph of statements. Matrix products are statements like all
# others: a sum over a product of two reads.

# %%
sizes = {"N": 2, "S": 32, "E": 64, "A": 4, "D": 16, "M": 256}
graph = op.specialize(**sizes).graph
print(len(graph.statements), "statements")
for s in graph.statements[:6]:
    print(" ", s)
assert len(graph.statements) > 25

# %% [markdown]
# ## Clusters
#
# A graph is cut before it is scheduled, once what it need not compute is gone: each matrix product has a
# cluster, with what follows each of its elements, or is left to a library where that is faster; the rest
# comes together along the tensors that connect it, as far as no path leads out of a cluster and back in.

# %%
clusters = op.specialize(**sizes).clusters(target="cpu")
for c in clusters:
    print([s.name for s in c.graph.statements])
assert 20 < sum(len(c.graph.statements) for c in clusters) < len(graph.statements)
assert sum("bias_gelu_1__g" in {s.name for s in c.graph.statements} for c in clusters) == 1
assert {"up", "act"} <= {s.name for c in clusters for s in c.graph.statements if len(c.graph.statements) == 4}

# %% [markdown]
# ## Eight ways
#
# `layers=` says which layers take part. Without any, each statement has loops of its own, and each temporary
# goes through memory.

# %%
rng = np.random.default_rng(0)
arguments = {}
for p in op.signature.params:
    tensor = graph.tensor(p.name)
    shape = tuple(e.value for e in tensor.shape)
    if shape:
        arguments[p.name] = (rng.normal(size=shape) * 0.2).astype("f4")

rows = []
results = []
for chosen in product((False, True), repeat=3):
    layers = tuple(n for n, on in zip(("loop", "stitch", "pack"), chosen, strict=True) if on)
    f = pf.compile(model, "encoder_layer", target="cpu", layers=layers)
    results.append(f(**arguments))
    built = f.built(**arguments)
    launches = len(built.kernels.kernels)
    steps = len(built.code.plan.launches)
    temporaries = built.executable.layout
    rows.append((" + ".join(layers) or "none", launches, steps, temporaries.nbytes, temporaries.apart))
print(f"{'layers':>20}  launches  steps  workspace, kB  without reuse, kB")
for name, launches, steps, nbytes, apart in rows:
    print(f"{name:>20}  {launches:8d}  {steps:5d}  {nbytes / 1e3:13.0f}  {apart / 1e3:17.0f}")
for y in results[1:]:
    np.testing.assert_allclose(y, results[0], rtol=2e-3, atol=2e-4)

# %% [markdown]
# Layer I merges what runs over the same loops, layer II what is left between products: a residual layer
# normalisation is one kernel, and so is the masked softmax. Layer III finds little to do in one layer of a
# transformer, which is a chain; in its gradient, or in an optimizer, it does.
#
# Temporaries share memory where they are never alive together: the difference of the last two columns.

# %%
by_name = {name: (launches, steps) for name, launches, steps, _, _ in rows}
assert by_name["loop + stitch"][0] < by_name["loop"][0] < by_name["none"][0]
assert all(nbytes <= apart for *_, nbytes, apart in rows)

# %% [markdown]
# The same on a GPU, in the emulator: the kernels are CUDA, run thread by thread on this machine.

# %%
tiny = {"N": 1, "S": 5, "E": 6, "A": 2, "D": 3, "M": 8}
small = {n: np.ascontiguousarray(a[tuple(slice(0, e.value) for e in t.shape)])
         for n, a in arguments.items()
         for t in [op.specialize(**tiny).graph.tensor(n)]}  # fmt: skip
want = pf.compile(model, "encoder_layer", target="interpret", layers=())(**small)
for layers in ((), ("loop", "stitch", "pack")):
    f = pf.compile(model, "encoder_layer", target="emulate", layers=layers)
    np.testing.assert_allclose(f(**small), want, rtol=2e-3, atol=2e-4)
    print(layers or "none", len(f.built(**small).kernels.kernels), "launches")

# %% [markdown]
# ## A picture of the plan
#
# Boxes are kernels; what is in one frame is one launch; lines lead to what reads a result.

# %%
best = pf.compile(model, "encoder_layer", target="cpu")
svg = best.picture(**arguments).svg
assert svg.startswith("<svg") and "library call" not in svg
with_library = pf.compile(model, "encoder_layer", library="always").picture(**arguments)
assert with_library.svg.count("library call") >= 5
# best.picture(**arguments).save("plan.svg") saves it

# %% [markdown]
# ## A timeline
#
# Each launch is timed alone, and written in the format of Perfetto (ui.perfetto.dev) and chrome://tracing.

# %%
trace = json.loads(best.timeline(**arguments))
for event in sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: -e["dur"])[:4]:
    print(f"{event['dur']:8.1f} us  {event['name']}")
assert len([e for e in trace["traceEvents"] if e["ph"] == "X"]) == len(
    best.built(**arguments).code.plan.launches
)
# Path("layer.json").write_text(best.timeline(**arguments)) saves it

# %% [markdown]
# ## Why it is as it is
#
# Every decision has a reason. What was left apart says why as well.

# %%
why = best.built(**arguments).decisions
for kind in ("clusters", "library", "stitch", "region"):
    found = [str(d) for d in why if d.kind == kind]
    print(f"{len(found)} x {kind}:", found[0] if found else "none")
assert any(d.kind == "library" for d in why)
