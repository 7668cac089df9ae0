"""Models by `torch.compile(backend="polyfuse")`, beside eager mode and Inductor, in one process.

    python -m benchmarks.torch_models                    all models, a table
    python -m benchmarks.torch_models bert llama         some
    python -m benchmarks.torch_models --without inductor
    python -m benchmarks.torch_models --forward          inference in place of a training step
    python -m benchmarks.torch_models --keep FILE        rows go into a file; those that it has are not run
    python -m benchmarks.torch_models --write            the table goes into the page, too

A model has a process of its own, and that has empty caches; a second process finds them full.  A row has,
of each contender: seconds of the first step in both (a compilation of forward and backward, in CPU time
with those of compilers), milliseconds of a step (the least of many, contenders taking turns), the memory
that a step needs at its peak besides what was there before, and the largest error of gradients against
float64, as a part of the largest gradient.  Beside them stand milliseconds of products, convolutions and
attention in eager mode's step (time that others take from the cores counts there), and of polyfuse its
kernels, and which share of the nodes that are no products, convolutions, attention, random numbers or views
runs in them.  `training` has the step of its optimizer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import write_measured
from benchmarks.surroundings import surroundings
from benchmarks.torch_zoo import MODELS, optimizer_of

CONTENDERS = ("eager", "inductor", "polyfuse")
ROUNDS = 12
PAGE = Path(__file__).parent.parent / "docs" / "lab" / "torch_models.md"
LEFT_TO_ATEN = (
    *("mm", "bmm", "addmm", "baddbmm", "convolution", "attention", "sort", "rand", "dropout", "bernoulli"),
)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mkldnn_convolution", "convolution_backward")
"""What calls of products and convolutions end in; attention besides."""

# --- measuring --------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What was measured of a model, by contender."""

    first: dict[str, float] = field(default_factory=dict)
    warm: dict[str, float] = field(default_factory=dict)
    step: dict[str, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    products: float = 0.0
    kernels: int = 0
    share: float = 0.0


class Trained:
    """A model with its arguments and what runs it: `step()` computes gradients, and updates parameters."""

    def __init__(self, name: str, backend: str, *, forward: bool = False, double: bool = False) -> None:
        torch.manual_seed(0)
        self.model, self.inputs = MODELS[name].usual()
        self.forward = forward
        if double:
            self.model, self.inputs = self.model.double(), [_doubled(x) for x in self.inputs]
        compiled: Callable[[Any], Any] = (
            (lambda f: f) if backend == "eager" else lambda f: torch.compile(f, backend=backend)
        )
        self.run = compiled(self.model)
        self.update: Callable[[], Any] | None = None
        if MODELS[name].has_optimizer and not forward:
            self.update = compiled(optimizer_of(self.model).step)

    @property
    def leaves(self) -> list[torch.Tensor]:
        """What has gradients."""
        return [x for x in (*self.model.parameters(), *self.inputs) if x.requires_grad]

    def step(self) -> Any:
        """One step of training, or of inference."""
        if self.forward:
            with torch.no_grad():
                return self.run(*self.inputs)
        for x in self.leaves:
            x.grad = None
        self.run(*self.inputs).square().mean().backward()
        if self.update is not None:
            self.update()
        return None

    def results(self, found: Any) -> list[torch.Tensor]:
        """What a step computed: gradients, or what `step` gave."""
        return [found] if self.forward else [x.grad for x in self.leaves if x.grad is not None]


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def cpu_seconds() -> float:
    """CPU time of the process and of its children that have ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def measured(name: str, contenders: Sequence[str], forward: bool, first_only: bool) -> Row:
    """A row of the table, in this process."""
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))  # torch's own imports are nobody's
    row, runs = Row(), {}
    judge = Trained(name, "eager", forward=forward, double=True)
    wanted = judge.results(judge.step())
    largest = max(float(g.abs().max()) for g in wanted)
    for c in contenders:
        runs[c] = own = Trained(name, c, forward=forward)
        start = cpu_seconds()
        found = own.results(own.step())
        row.first[c] = cpu_seconds() - start
        row.error[c] = max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / largest
    if first_only:
        return row
    row.step = dict.fromkeys(contenders, math.inf)
    for _ in range(ROUNDS):
        for c, own in runs.items():
            start = time.process_time()
            own.step()
            row.step[c] = min(row.step[c], time.process_time() - start)
    row.peak = {c: peak_of(own) for c, own in runs.items()}
    row.products = products_of(runs["eager"]) if "eager" in runs else 0.0
    if "polyfuse" in runs:
        row.kernels, row.share = _ours()
    return row


def _ours() -> tuple[int, float]:
    """Kernels, and the share of nodes in them, of all graphs."""
    from polyfuse.torch.dynamo import report

    graphs = report().graphs
    kernels = sum(r.kernels or 0 for g in graphs for r in g.regions)
    left = sum(n for g in graphs for names in g.aten.values() for op, n in names.items() if _counts(op))
    ours = sum(g.ours for g in graphs)
    return kernels, ours / max(1, ours + left)


def _counts(operator: str) -> bool:
    """Is it one that regions could have?"""
    return not any(word in operator for word in LEFT_TO_ATEN)


def peak_of(own: Trained) -> int:
    """The most bytes that a step has allocated at a time, besides what was there before it."""
    for x in own.leaves:
        x.grad = None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        own.step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        live += e.nbytes()
        most = max(most, live)
    return most


def products_of(own: Trained) -> float:
    """Seconds that products, convolutions and attention take in a step: the least of five."""
    found = math.inf
    for _ in range(5):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            own.step()
        times = {e.key.removeprefix("aten::"): e.cpu_time_total for e in profile.key_averages()}
        mine = [t for n, t in times.items() if n in PRODUCTS or n.startswith("_scaled_dot_product_flash")]
        found = min(found, sum(mine) / 1e6)
    return found


# --- processes and the table ------------------------------------------------------------------------------


def row_of(name: str, chosen: argparse.Namespace, contenders: Sequence[str]) -> Row:
    """A row, measured by two processes that share caches."""
    with tempfile.TemporaryDirectory() as caches:
        rows = [_child(name, chosen, contenders, caches, warm) for warm in (False, True)]
    rows[0].warm = rows[1].first
    return rows[0]


def _child(name: str, chosen: argparse.Namespace, contenders: Sequence[str], caches: str, warm: bool) -> Row:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # compilers are children of the process, and count
        "POLYFUSE_CACHE_DIR": f"{caches}/polyfuse",
        "POLYFUSE_NUM_THREADS": str(chosen.threads),
        "OMP_NUM_THREADS": str(chosen.threads),
    }
    os.makedirs(f"{caches}/polyfuse", mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.torch_models", name, "--child"]
    command += ["--first-only"] * warm + ["--forward"] * chosen.forward
    command += [f"--without={c}" for c in CONTENDERS if c not in contenders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def printed(name: str, row: Row, contenders: Sequence[str]) -> str:
    """A line of the table."""

    def of(values: dict[str, Any], each: Callable[[Any], str]) -> str:
        return ", ".join(each(values[c]) for c in contenders if c in values)

    cells = [
        name,
        of(row.first, "{:.1f}".format),
        of(row.warm, "{:.1f}".format),
        of(row.step, lambda s: f"{s * 1e3:.2f}"),
        f"{row.products * 1e3:.2f}",
        of(row.peak, lambda b: f"{b / 1e6:.2f}"),
        of(row.error, "{:.1e}".format),
        str(row.kernels),
        f"{row.share:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def header(contenders: Sequence[str]) -> str:
    """The first lines of the table."""
    names = ", ".join(contenders)
    titles = f"model | first step, s: {names} | warm | step, ms | products, ms | peak, MB | error"
    return f"| {titles} | kernels | share |\n|{'---|' * 9}"


def summary(rows: Sequence[Row]) -> str:
    """Geometric means of the peers' times by ours."""
    both = [r for r in rows if {"inductor", "polyfuse"} <= set(r.step)]
    if not both:
        return ""

    def ratio(times: Iterable[tuple[float, float]]) -> str:
        found = [math.log(a / b) for a, b in times]
        return f"{math.exp(sum(found) / len(found)):.2f}"

    steps = ratio((r.step["inductor"], r.step["polyfuse"]) for r in both)
    own = ratio(
        tuple(max(r.step[c] - r.products, 0.05 * r.step[c]) for c in ("inductor", "polyfuse"))  # type: ignore[misc]
        for r in both
    )
    cold = ratio((r.first["inductor"], r.first["polyfuse"]) for r in both)
    by_eager = [(r.step["eager"], r.step["polyfuse"]) for r in both if "eager" in r.step]
    least, most = (f(a / b for a, b in by_eager) for f in (min, max))
    memory = max(r.peak["polyfuse"] / r.peak["eager"] for r in both if "eager" in r.peak)
    return (
        f"Inductor's time by ours, in the geometric mean: steps {steps}, steps without products {own}, "
        f"first steps {cold}. "
        f"Eager mode's: steps {ratio(by_eager)}, from {least:.2f} to {most:.2f}. "
        f"Our peak of memory is at most {memory:.2f} of eager mode's."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="all, if none is named")
    parser.add_argument("--without", action="append", default=[], choices=CONTENDERS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first-only", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    contenders = [c for c in CONTENDERS if c not in chosen.without]
    names = chosen.models or list(MODELS)
    if chosen.child:
        torch.set_num_threads(chosen.threads)
        print(json.dumps(asdict(measured(names[0], contenders, chosen.forward, chosen.first_only))))
        return
    kept = json.loads(chosen.keep.read_text()) if chosen.keep and chosen.keep.exists() else {}
    lines = [header(contenders)]
    print(lines[0])
    for name in names:
        if name not in kept:
            kept[name] = asdict(row_of(name, chosen, contenders))
            if chosen.keep:
                chosen.keep.write_text(json.dumps(kept, indent=1))
        lines.append(printed(name, Row(**kept[name]), contenders))
        print(lines[-1], flush=True)
    lines.append(f"\n{summary([Row(**kept[n]) for n in names])}")
    print(lines[-1])
    if chosen.write:
        write_measured(PAGE, "\n".join([about(chosen), *lines]))


def about(chosen: argparse.Namespace) -> str:
    """Where and when the table was made."""
    where = surroundings()
    threads = f"{chosen.threads} thread{'s' * (chosen.threads > 1)}"
    return f"{where['cpu']}, {threads}, PyTorch {torch.__version__}, {where['date'][:10]}.\n"


if __name__ == "__main__":
    main()
