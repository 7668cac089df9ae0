"""What each layer brings: `python -m benchmarks.ablate [--only CASE ...] [--rounds N] [--write]`.

Each case is compiled without layers, with layer I, and with layers I and II.  Traffic, launches and times
on GPUs are the cost model's; times on this CPU are measured, the three in turns, medians over the rounds.
Before that, what each of them computes is compared with the float64 reference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.quiet import Meter, quiet_rounds
from polyfuse.driver.stages import Specialized
from polyfuse.frontend_dsl.semantics.signature import Signature
from polyfuse.ir.index_expr import evaluate
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated
from polyfuse.runtime.reference.evaluate import evaluate as evaluate_graph

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "ablation.md"
FOLDER = Path(__file__).parent / "ablation"
WORKLOADS = Path(__file__).parent / "workloads"
LEVELS: tuple[tuple[str, ...], ...] = ((), ("loop",), ("loop", "stitch"))
GPUS = ("H200", "V100")
# For each case, to wait until other programs are quiet.
PATIENCE_S = 6.0

NOTES = """
## What the figures do not say by themselves

- One layer-I kernel is all there is to stitch: LSTM cell, QKV, gather, ocean. Layer II changes nothing
  there.
- Functions of what a loop does not change are computed before it, and a stitched kernel prefetches the next
  row before or during its last phase: what that brings is in [choices](choices.md).
- LayerNorm backward and cross entropy would gain nothing if nothing were prefetched: the first phase
  of a row, and with long rows both, would wait for memory as layer I's kernels do.
- Where tensors are not much larger than L3, what layer II saves is traffic of L3. LayerNorm backward,
  BatchNorm and GroupNorm + SiLU gain so little that runs of this table differ in the sign; the model
  expects more, as it has DRAM's bandwidth there.
- Bias-GELU backward is one nest with layer I: nothing goes from one kernel to another, and `explain()`
  says so. The code is the same with layer II, and so is the time; other figures are noise.
- LAMB's norms are sums over everything: nothing can be stitched to them, `explain()` says so for each.
- Loops of a perfect nest are ordered by contiguity on a CPU; without, layer I would lose where it joins
  nests that walk memory differently (FM gradient).
"""

# Title: operator (stdlib:, or a file), sizes, splats; where data are indices, the size that they stay below.
_TABLE = """\
bias + dropout mask + residual + LayerNorm | stdlib:bias_dropout_residual_layer_norm | B_0=8192 H=768
mask + softmax + dropout | masked_softmax_dropout | N=64 A=12 S=128 T=128
dropout-grad + softmax-grad | stdlib:softmax_dropout_backward | B_0=64 B_1=12 B_2=128 H=128
LayerNorm | stdlib:layer_norm | B_0=4096 H=768
LayerNorm backward | ln_bwd | T=4096 H=768
BatchNorm + ReLU, training | bn_train_relu | N=32 C=64 H=56 W=56
LSTM cell | lstm_cell | B=256 H=1024
AStitch, figure 7 | astitch_768 | T=4096 H=768
bias, scale, LogSoftmax | scaled_log_softmax | T=512 C=30522
cross entropy | xent_fwd | N=512 C=30522 | target<C
GroupNorm + SiLU | group_norm_silu | N=32 C=64 G=8 H=56 W=56
LAMB | lamb | N=2362368
bias-GELU backward + bias gradient | stdlib:bias_gelu_backward | B_0=2048 H=3072
QKV bias + reshape + transpose | stdlib:split_heads | N=32 S=128 H=12 D=64
FM gradient | fm_gradient | B=8000 F=39 K=80
gather x2 - sub - square - sum | pair_distance | V=103351 D=3 E=159173 | a<V b<V
ocean model, elementwise | ocean | X=65 Y=49 Z=21
"""


@dataclass(frozen=True)
class Case:
    """One operator at one size."""

    title: str
    operator: pf.Operator
    sizes: Mapping[str, int]
    ranks: Mapping[str, int]
    indices: Mapping[str, str]

    @property
    def specialized(self) -> Specialized:
        """The operator at its sizes."""
        return self.operator.specialize(None, self.ranks, **self.sizes)

    def kernels(self, layers: Sequence[str], target: str) -> pf.Kernels:
        """Compiled as far as kernels."""
        made = self.specialized.schedule()
        if "loop" in layers:
            made = made.apply(pf.LoopFusion())
        lowered = made.lower(target="cuda" if target == "cuda" else "cpu")
        return lowered.apply(pf.Stitching()) if "stitch" in layers else lowered

    def inputs(self) -> list[Any]:
        """Arguments: normal numbers, coins, and indices in range."""
        rng = np.random.default_rng(0)
        graph = self.specialized.graph
        given: list[Any] = []
        for name in graph.inputs:
            t = graph.tensor(name)
            if t.default is not None:
                continue
            shape = tuple(evaluate(e, {}) for e in t.shape)
            kind = str(t.dtype)
            if kind == "bool":
                given.append(rng.random(shape) < 0.9)
            elif kind.startswith("i"):
                top = self.sizes[self.indices[name]] if name in self.indices else 10
                given.append(rng.integers(1, top, shape).astype(kind.replace("i", "int")))
            else:
                given.append(abs(rng.standard_normal(shape, np.float32)) + np.float32(0.1))
        return [a if np.ndim(a) else a.item() for a in given]

    def reference(self) -> Mapping[str, Evaluated]:
        """What the operator means for its inputs."""
        graph = self.specialized.graph
        left = iter(self.inputs())
        arrays = {}
        for name in graph.inputs:
            t = graph.tensor(name)
            arrays[name] = np.asarray(next(left) if t.default is None else t.default, t.dtype.numpy)
        return evaluate_graph(graph, {}, arrays)

    def results(self, given: Sequence[Any], returned: Any) -> dict[str, Any]:
        """What a call returned, and what it wrote to its inout parameters, by the graph's names."""
        graph = self.specialized.graph
        outputs = returned if isinstance(returned, tuple) else (returned,)
        found = dict(zip(graph.outputs, outputs, strict=True)) if graph.outputs else {}
        passed = dict(zip((n for n in graph.inputs if graph.tensor(n).default is None), given, strict=True))
        return found | {t.name: passed[t.alias] for t in graph.tensors if t.alias in passed}


def cases(wanted: Sequence[str] = ()) -> list[Case]:
    """Those whose title holds one of the words, or all."""
    found = []
    for line in _TABLE.splitlines():
        title, where, sizes, *rest = (x.strip() for x in line.split("|"))
        if wanted and not any(w.lower() in title.lower() for w in wanted):
            continue
        known = {n: int(v) for n, v in (x.split("=") for x in sizes.split())}
        below = dict(x.split("<") for x in rest[0].split()) if rest else {}
        operator = _operator(where)
        found.append(Case(title, operator, known, _ranks(operator.signature, known), below))
    return found


def _operator(where: str) -> pf.Operator:
    if where.startswith("stdlib:"):
        return pf.stdlib.op(where.removeprefix("stdlib:"))
    path = FOLDER / f"{where}.pf"
    return pf.parse(path if path.is_file() else WORKLOADS / f"{where}.pf").op(where)


def _ranks(sig: Signature, sizes: Mapping[str, int]) -> dict[str, int]:
    return {v: sum(n.startswith(f"{v}_") for n in sizes) for v in sig.rank_variables}


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """One case with some layers. Bytes and launches on a GPU; microseconds, estimated and measured."""

    launches: int
    nbytes: float
    estimated: Mapping[str, float]
    cpu_launches: int
    cpu_estimated: float
    cpu_us: float
    cpu_low: float
    cpu_high: float


def figures(case: Case, rounds: int) -> list[Figures]:
    """Of each of LEVELS."""
    known = case.reference()
    functions = [_function(case, layers, known) for layers in LEVELS]
    times = timed(functions, rounds)
    found = []
    for layers, seconds in zip(LEVELS, times, strict=True):
        gpu, cpu = case.kernels(layers, "cuda"), case.kernels(layers, "cpu")
        on = {name: gpu.estimate(name) for name in GPUS}
        one = next(iter(on.values()))
        low, _, high = statistics.quantiles(seconds, n=4)
        found.append(
            Figures(
                gpu.launches,
                one.read + one.written,
                {name: 1e6 * e.seconds for name, e in on.items()},
                cpu.launches,
                1e6 * cpu.estimate().seconds,
                1e6 * statistics.median(seconds),
                1e6 * low,
                1e6 * high,
            )
        )
    return found


def _function(case: Case, layers: tuple[str, ...], known: Mapping[str, Evaluated]) -> Callable[[], object]:
    """A call of the case, compiled with some layers; its first results agree with the reference."""
    compiled = pf.compile(case.operator.program, case.operator.name, target="cpu", layers=layers)
    given = case.inputs()
    for name, got in case.results(given, compiled(*given)).items():
        outcome = agrees(got, known[name], case.specialized.graph.tensor(name).dtype)
        if not outcome:
            raise AssertionError(f"{case.title}, layers {layers}: {name}: {outcome.message}")
    return lambda: compiled(*given)


def timed(functions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each function in each round; they take turns, in an order that rotates."""
    for f in functions:
        f(), f()
    result: list[list[float]] = [[] for _ in functions]

    def one(k: int) -> None:
        for j in range(len(functions)):
            which = (j + k) % len(functions)
            functions[which]()  # what the others left in the caches is not ours
            start = time.perf_counter()
            functions[which]()
            result[which].append(time.perf_counter() - start)

    def undo() -> None:
        for r in result:
            r.pop()

    quiet_rounds(one, undo, rounds, Meter([]), time.monotonic() + PATIENCE_S)
    return result


# --- the page -----------------------------------------------------------------------------------------------


def page(found: Mapping[str, Sequence[Figures]], about: Mapping[str, Any]) -> str:
    """docs/lab/ablation.md."""
    load = "{:.1f} to {:.1f}".format(*about["load"])
    lines = [
        "<!-- Made by benchmarks/ablate.py. -->",
        "# What each layer brings",
        "",
        f"Made by `python -m benchmarks.ablate --write` on {about['cpu']}, 2 threads, {about['date'][:10]};",
        f"medians of {about['rounds']} rounds in turns, load average {load}"
        + (
            ": other programs ran too, so small differences mean nothing."
            if max(about["load"]) > 1.5
            else "."
        ),
        "",
        "Three figures each: without layers, with layer I, with layers I and II. Launches and bytes are",
        "those of kernels made for an H200; times there and on a V100 are the cost model's",
        "(`Kernels.estimate`), for the same kernels. CPU times are measured, with the cost model's in",
        "parentheses. All times in microseconds. Operators are in `benchmarks/ablation`,",
        "`benchmarks/workloads` and the standard library.",
        "",
        "| case | launches | traffic, MB | H200 | V100 | CPU kernels | CPU | I+II over I |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, levels in found.items():
        cells = [
            _row(levels, lambda f: str(f.launches)),
            _row(levels, lambda f: _short(f.nbytes / 1e6)),
            *(_row(levels, lambda f, n=name: _short(f.estimated[n])) for name in GPUS),  # type: ignore[misc]
            _row(levels, lambda f: str(f.cpu_launches)),
            _row(levels, lambda f: f"{_short(f.cpu_us)} ({_short(f.cpu_estimated)})"),
            f"{levels[1].cpu_us / levels[2].cpu_us:.2f}",
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    means = [_mean(f[k].cpu_us / f[k + 1].cpu_us for f in found.values()) for k in (0, 1)]
    guesses = [
        [_mean(f[k].estimated[n] / f[k + 1].estimated[n] for f in found.values()) for k in (0, 1)]
        for n in GPUS
    ]
    by_model = [f"Estimated on {n}: {g[0]:.2f} and {g[1]:.2f}." for n, g in zip(GPUS, guesses, strict=True)]
    measured = f"measured on the CPU: layer I {means[0]:.2f}, layer II on top of it {means[1]:.2f}."
    lines += ["", "Geometric means of the gain, " + " ".join([measured, *by_model]), "", NOTES.strip()]
    return "\n".join(lines) + "\n"


def _mean(values: Any) -> float:
    return statistics.geometric_mean(list(values))


def _row(levels: Sequence[Figures], text: Callable[[Figures], str]) -> str:
    return " / ".join(map(text, levels))


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; with --write also the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablate", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases with these words")
    parser.add_argument("--rounds", type=int, default=31, metavar="N", help="rounds (31)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    from benchmarks.surroundings import load_average, surroundings

    before = load_average()
    found: dict[str, list[Figures]] = {}
    for case in cases(chosen.only):
        found[case.title] = figures(case, chosen.rounds)
        print(f"{case.title}: {_row(found[case.title], lambda f: _short(f.cpu_us))} us", flush=True)
    about = {**surroundings(), "rounds": chosen.rounds, "load": (before, load_average())}
    text = page(found, about)
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps({n: [asdict(f) for f in fs] for n, fs in found.items()}, indent=1))
    if chosen.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
