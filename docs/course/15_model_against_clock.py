"""# 15. Model against clock

Every choice so far was made by a model: nothing ran, and yet the compiler said what is faster. Is it right?
This chapter puts a model beside the clock, looks at where it is wrong, and then lets a compiler learn from
its mistakes.
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
# They differ. The model does not know this machine unless it was measured (`polyfuse doctor --measure`), nor
# what was left in the caches, nor how fast the clock of the core runs today. For a choice that matters little
# as long as it is wrong in the same way about both sides.
#
# ## Three ways to be wrong
#
# One operator proves nothing. The repository has times of thousands of kernels of one machine, with what the
# *projected model* said: the model that knows bytes, operations and also the loops that are printed.

samples = evaluate.samples_of(pf.__path__[0] + "/../benchmarks/data")
print(len(samples), "samples of", len(samples.programs), "programs")
split = evaluate.held_out_programs(samples)
some = split.test[:600]
measured, projected = samples.seconds[some], samples.projected[some]
worst = some[np.argsort(-np.abs(np.log(projected / measured)))]
names = list(dict.fromkeys(samples.programs[samples.program[k]] for k in worst))
print("furthest off:", *names[:6], sep="\n  ")


def dots(predicted: np.ndarray, title: str) -> pf.visualize.Picture:
    """The clock to the right, a model upwards, in powers of ten of a microsecond. The line is agreement."""
    x, y = (30 + 60 * np.clip(np.log10(1e6 * s), 0, 5) for s in (measured, predicted))
    points = "\n".join(f'<circle cx="{a:.1f}" cy="{350 - b:.1f}" r="2"/>' for a, b in zip(x, y, strict=True))
    marks = "".join(
        f'<text x="{30 + 60 * k}" y="344">{10**k}</text><text x="6" y="{320 - 60 * k}">{10**k}</text>'
        for k in range(6)
    )
    return pf.visualize.Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="380" height="360" font-size="11" '
        f'fill="currentColor"><text x="60" y="14" font-size="14">{title}</text>{marks}'
        f'<path d="M30 320L330 20" stroke="gray"/>'
        f'<g fill="#3b82c4" fill-opacity=".5">{points}</g></svg>'
    )


dots(projected, "projected (up), measured (right), us")

# %%
# A model is wrong in three ways. All dots may lie off the line by one factor: the machine is not the one of
# the table. Small kernels may lie off: what a call costs counts there, and it is hard to tell. And single
# dots may be far away, as where data decide how much there is to do. No table of machines mends these.
#
# ## Learn the error
#
# A network sees the kernel as the code generator prints it: a graph of loops, accesses and operations, with
# trip counts, strides and bytes. Each node looks at its neighbours, twice; their mean, maximum and sum, with
# figures of the whole kernel, give one number: by which factor the projected time is wrong.
#
# It was trained on other programs than those in the picture. That is the test that counts. Variants of one
# program resemble each other, and so do two sizes of it: a model that has seen one only has to remember.

learned = model.shipped()
predicted = evaluate.predicted(learned, samples, some)
with open(pf.__path__[0] + "/../benchmarks/results/learned.json", encoding="utf-8") as file:
    laboratory = json.load(file)


def held_out(figure: str, kind: str = "graph network", split: str = "programs") -> float:
    """A figure of one kind of network on samples that were held out: the mean over its seeds."""
    found = [e for e in laboratory["experiments"].values() if e["part"] == 1]
    tests = [e["test"]["all"] for e in found if (e["kind"], e["split"]) == (kind, split)]
    return float(np.mean([t["mape"] if figure == "error" else t["right"] / t["pairs"] for t in tests]))


for never_seen in ("kernels", "sizes", "programs"):
    print(f"never seen: {never_seen:9} mean error {held_out('error', split=never_seen):.0%}")
assert held_out("error", split="kernels") < held_out("error", split="programs")
dots(projected, "projected (up), measured (right), us") | dots(
    predicted, "learned (up), measured (right), us"
)

# %%
# ## Is it better?
#
# A compiler does not need times, it needs choices. So there are four figures: the mean error; pairs of ways
# to compute the same that are put in the right order; what the first choice loses against the best way; and
# what the best of the first five loses. Another measurement of the same shows what can be reached:

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
assert errors["measured again"] < errors["learned"] < errors["projected"]

# %%
# The error falls, and is still large for programs that are unlike all others. Read the last two columns: to
# take the first choice blindly is not safe, and to measure five of some twenty ways is. So `cost="auto"`
# takes the learned model only where it surely chooses better than the projected one. The shipped one:

print("chooses surely better:", learned.about["wins"])

# %%
# ## What each part brings
#
# Two experiments ask that. The first gives a group of features the values of other kernels. If the error
# grows, the model has read them:

brings = laboratory["shipped"]["importance"]


def bars(values: dict[str, float], title: str) -> pf.visualize.Picture:
    """A bar for each value, the longest first; negative ones have none."""
    ranked, most = sorted(values.items(), key=lambda pair: -pair[1]), max(values.values())
    rows = "".join(
        f'<text x="10" y="{46 + 22 * k}">{name}</text><text x="320" y="{46 + 22 * k}">{v:+.3f}</text>'
        f'<rect fill="#3b82c4" x="110" y="{34 + 22 * k}" height="15" width="{max(0, 200 * v / most):.0f}"/>'
        for k, (name, v) in enumerate(ranked)
    )
    return pf.visualize.Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="380" height="{45 + 22 * len(ranked)}" '
        f'font-size="12" fill="currentColor"><text x="10" y="18" font-size="14">{title}</text>{rows}</svg>'
    )


bars(brings, "error of log time, more by")

# %%
# Read this with care: bytes are in the projected time as well. A group that brings little may be one whose
# content another group has too.
#
# The second experiment trains again with a part left out or another one in its place:

kinds = sorted({e["kind"] for e in laboratory["experiments"].values()})
for kind in sorted(kinds, key=lambda kind: held_out("error", kind)):
    print(f"error {held_out('error', kind):6.1%}   pairs in order {held_out('pairs', kind):4.0%}   {kind}")
assert max(kinds, key=lambda kind: held_out("pairs", kind)) != max(
    kinds, key=lambda kind: -held_out("error", kind)
)

# %%
# The two columns do not agree on which is best, and both move with the data: one operator that is wrong by
# ten times moves a mean. [The laboratory](../lab/learned_cost.md) has all figures, and the commands that make
# them.
#
# ## Ask it
#
# `cost="learned"` lets the network choose among variants of the code. Nothing is measured:

g = pf.compile(program, "gelu", target="cpu", cost="learned")
flat = x.reshape(-1)[: 1 << 20]
y = g(flat)
told = g.explain(flat)
print(told[told.index("tuning of gelu") :])
assert np.abs(y - flat * (flat > 0)).max() < 0.2

# %%
# With `tune="measure"` it names the variants that are worth measuring, and the clock has the last word.
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
# 2. 6 %. It would choose the slower way, and lose 10 %. Small errors of times do not make choices right.
# 3. Other variants of the same programs were in its training. Your operator is one that it has never seen:
#    hold out whole programs.
#
# </details>
#
# That was the course. [How-to pages](../howto/index.md) do one task each, the
# [explanations](../explanation/index.md) say why things are as they are.
