"""# 15. Model against clock

Every choice so far was made by a model: nothing ran, and yet the compiler said what is faster. Is it right?
This chapter puts a model beside the clock, and lets a compiler learn from its mistakes.
"""

# %%
# ## What a model says
#
# The four statements of a softmax are four kernels here. The model counts bytes and operations of each, and
# divides them by what the machine can do at its best:

import json

import numpy as np

import polyfuse as pf
from polyfuse.learn import evaluate, model

program = pf.parse("""
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t]    = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t]    = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}
op gelu(x: f32[N]) -> (y: f32[N]) {
  y[i] = 0.5 * x[i] * (1.0 + erf(x[i] * 0.70710678))
}
""")
f = pf.compile(program, "softmax", target="cpu", layers=())
x = np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
f(x)
kernels = f.built(x).kernels
pf.visualize.timeline(kernels)

# %%
# ## What the clock says
#
# `timeline` of a function times each launch alone. The figures are of the machine that made this page:

launches = [e for e in json.loads(f.timeline(x))["traceEvents"] if e["ph"] == "X"]
for told, real in zip(kernels.estimate().kernels, launches, strict=True):
    print(f"{real['name']:8} model {1e6 * told.seconds:7.1f} us   clock {real['dur']:7.1f} us")
assert len(launches) == 4

# %%
# They differ, each by another factor. The model does not know this machine unless it was measured (`polyfuse
# doctor --measure`), nor what was left in the caches. And this is one call, where
# [chapter 1](01_a_first_operator.py) took the least of ten. For a choice the right order is enough.
#
# ## Three ways to be wrong
#
# One operator proves nothing. The repository has thousands of measured times, with what the *projected model*
# said: the model that knows bytes, operations and also the loops that are printed.

samples = evaluate.samples_of(pf.__path__[0] + "/../benchmarks/data")
print(len(samples), "samples of", len(samples.programs), "programs")
split = evaluate.held_out_programs(samples)
some = split.test[:600]
measured, projected = samples.seconds[some], samples.projected[some]
worst = some[np.argsort(-np.abs(np.log(projected / measured)))]
names = list(dict.fromkeys(samples.programs[samples.program[k]] for k in worst))
print("furthest off:", *names[:6], sep="\n  ")
pf.visualize.predictions(measured, projected, title="projected")

# %%
# A model is wrong in three ways. All dots may lie off the line by one factor: the machine is not the one of
# the table, and a better table mends that. Small kernels, to the left, may lie off: there the call itself
# counts. And single dots may be far away, as where data decide how much there is to do.
#
# ## Learn the error
#
# A network sees the kernel as the code generator prints it: a graph of loops, accesses and operations, with
# trip counts, strides and bytes. Each node looks at its neighbours, twice. The mean, maximum and sum of all
# nodes, with figures of the whole kernel, give one number: by which factor the projected time is wrong.
#
# It was trained on other programs than those in the picture, which is the test that counts. Variants of one
# program, or sizes of it, resemble each other: a model that has seen one only has to remember. The
# *error* of a time is |told - measured| / measured. Figures are means over networks from several random
# starts:

learned = model.shipped()
predicted = evaluate.predicted(learned, samples, some)
with open(pf.__path__[0] + "/../benchmarks/results/learned.json", encoding="utf-8") as file:
    laboratory = json.load(file)


def held_out(figure: str, kind: str = "graph network", split: str = "programs") -> float:
    """A figure of one kind of network on what it has never seen."""
    found = [e for e in laboratory["experiments"].values() if e["part"] == 1]
    tests = [e["test"]["all"] for e in found if (e["kind"], e["split"]) == (kind, split)]
    return float(np.mean([t["mape"] if figure == "error" else t["right"] / t["pairs"] for t in tests]))


for never_seen in ("kernels", "sizes", "programs"):
    print(f"never seen: {never_seen:9} mean error {held_out('error', split=never_seen):.0%}")
assert held_out("error", split="kernels") < held_out("error", split="programs")
shown = pf.visualize.predictions
shown(measured, projected, title="projected") | shown(measured, predicted, title="learned")

# %%
# ## Is it better?
#
# A compiler needs choices. So there are four figures: the mean error; pairs of ways to compute the same that
# are put in the right order; what the first choice loses against the best way; and what the best of the first
# five loses. The shipped model asks several networks together. Another measurement is the ceiling:

ways = {
    "projected": projected,
    "learned": predicted,
    "measured again": evaluate.repeated(samples, some),
}
errors = {}
for name, seconds in ways.items():
    found = evaluate.figures(samples, some, seconds)
    errors[name] = found.mape
    print(f"{name:14} error {found.mape:6.1%}  pairs in order {found.right / found.pairs:4.0%}", end="  ")
    print(f"first loses {found.first:5.1%}, of five {found.five:4.1%}")
assert errors["measured again"] < min(errors["learned"], errors["projected"])

# %%
# A first choice alone is not safe; the best of five, measured, nearly is.
#
# `cost="auto"` takes the learned model only where it *surely* chooses better: no figure may be worse, and
# when the operators are drawn again at random, its first choices must be faster in 95 % of the draws. A lead
# from a few operators fails that. It is asked of variants of the code; the table has fusion plans as well:

print("chooses surely better:", learned.about["wins"])

# %%
# ## What each part brings
#
# Two experiments ask that. The first gives a group of features the values of other kernels. If the error of
# the logarithm grows (0.01 is about 1 %), the model has read them:

GROUPS = {
    "launch": "loops, iterations, chunks",
    "bytes": "read, written, by level of memory",
    "operations": "counts by kind",
    "analytic": "terms of the projected time",
    "choices": "what code generation chose",
    "core": "registers, caches, width of vectors",
}
for group, grows in sorted(laboratory["shipped"]["importance"].items(), key=lambda pair: -pair[1]):
    print(f"{grows:+.3f}  {group:11} {GROUPS[group]}")

# %%
# Bytes are in the projected time as well: what a group brings depends on what others tell already.
#
# The second experiment trains again, with a part left out:

KINDS = {
    "graph network": "as above",
    "no messages between nodes": "no node looks at its neighbours",
    "features of kernels only": "no graph at all",
    "time told from nothing": "the projected time is not corrected",
}
for kind, words in KINDS.items():
    error, pairs = held_out("error", kind), held_out("pairs", kind)
    print(f"error {error:4.0%}  pairs in order {pairs:4.0%}  {kind}: {words}")

# %%
# The best by error need not be the best by pairs, and one operator that is wrong by ten times moves a mean.
# The shipped network follows a paper, not this table: whoever picks by the test has learned from it. [The
# laboratory](../lab/learned_cost.md) has more kinds, and the commands.
#
# ## Ask it
#
# `cost="learned"` lets the network choose among variants of the code. Nothing is measured:

g = pf.compile(program, "gelu", target="cpu", cost="learned")
flat = x.reshape(-1)[: 1 << 20]
y = g(flat)
told = g.explain(flat)
print(told[told.index("tuning of gelu") :])
assert np.abs(y[flat > 4] - flat[flat > 4]).max() < 1e-3, "far from 0, GELU(x) = x"

# %%
# The star is the choice. *Non-temporal stores* do not go through the caches; a *chunk* is what a thread gets
# at a time ([variants](../reference/tuning.md#what-is-varied)). With `tune="measure"` the clock has the last
# word.
#
# ## Exercise
#
# A model says 1.0 ms for one way and 1.2 ms for another. The clock says 3.0 ms and 3.3 ms.
#
# 1. What is the mean error? Is the model useless?
# 2. Another model says 3.2 ms and 3.1 ms. What is its error, and which would you choose with?
# 3. A model was tested on samples drawn at random from all. Its error is 20 %. Why is that not the error on
#    your operator?
#
# <details><summary>Answer</summary>
#
# 1. 67 % and 64 %: 65 % in the mean. For a choice it is perfect: the order is right.
# 2. 6 %. It would choose the slower way, and lose 10 %.
# 3. Other variants of the same programs were in its training. Your operator is one that it has never seen:
#    hold out whole programs.
#
# </details>
#
# That was the course. [How-to pages](../howto/index.md) do one task each,
# [explanations](../explanation/index.md) say why.
