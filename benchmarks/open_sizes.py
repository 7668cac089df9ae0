"""Calls at many shapes: `python -m benchmarks.open_sizes [--shapes N] [--seed S] [--only NAME] [--write]`.
`--workloads` compares kernels of the public workloads that have all sizes open with those that know them.
With `--json` what was measured before is kept in a file, so that `--only` may name some at a time.

Each operator is called once at each of N random shapes (B, T), in a process of its own for each contender:
ours with `sizes="auto"` and with sizes that are fixed, `torch.compile(dynamic=True)` and `jax.jit`, where
these libraries are there.  A call that takes much longer than a second one at the same shape has waited for a
compiler.  A row has compilations, seconds stalled, and the median time of calls at some of the shapes, each
after a first one, beside ours with fixed sizes: of `sizes="auto"` in its own process, in turns.

Each case of the workloads is measured in a process of its own: calls of both forms in turns, the median of
each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import write_measured
from benchmarks.workload import select

Array = np.ndarray[Any, Any]
Arguments = tuple[Array, ...]
CONTENDERS = {"auto": "polyfuse", "fixed": "polyfuse", "torch.compile": "torch", "jax.jit": "jax"}
"""The package of each."""
OPEN = "workload"
"""What compares the forms of a workload."""
CLEAR = 1e-3
"""Seconds that a first call takes longer than a second one before it counts as stalled."""
TIMED = MOST_FIXED = 20
SHAPE_TURNS = 15
LEAST_S, TURNS, WORKLOAD_S = 1e-4, (7, 200), 0.6
"""Seconds of a turn at least, turns at least and at most, and seconds of all turns of a workload, about."""
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "open_sizes.md"


@dataclass(frozen=True)
class Case:
    """An operator of the standard library at (B, T), and the same of PyTorch and JAX."""

    operator: str
    inputs: Callable[[np.random.Generator, int, int], Arguments]
    torch: Callable[..., Any]
    jax: Callable[..., Any]


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _norm_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    return _normal(rng, b, t), _normal(rng, t), _normal(rng, t)


def _norm_gradient_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    x = _normal(rng, b, t)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + np.float32(1e-5))
    return _normal(rng, b, t), x, _normal(rng, t), mean, rstd


def _torch_norm_gradient(torch: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any) -> Any:
    n = (x - mean[:, None]) * rstd[:, None]
    d = dy * g
    dx = rstd[:, None] * (d - d.mean(1, keepdim=True) - n * (d * n).mean(1, keepdim=True))
    return dx, (dy * n).sum(0), dy.sum(0)


def _jax_norm(jax: Any, jnp: Any, x: Any, g: Any, b: Any) -> Any:
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + 1e-5) * g + b


def _jax_norm_gradient(jax: Any, jnp: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any) -> Any:
    n = (x - mean[:, None]) * rstd[:, None]
    d = dy * g
    dx = rstd[:, None] * (d - d.mean(1, keepdims=True) - n * (d * n).mean(1, keepdims=True))
    return dx, (dy * n).sum(0), dy.sum(0)


def _masked_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    return _normal(rng, b, 4, t), np.where(rng.random((b, t)) < 0.2, -1e4, 0.0).astype(np.float32)


def _loss_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    return _normal(rng, b, t), rng.integers(0, t, b)


def _jax_loss(jax: Any, jnp: Any, x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), target[:, None], 1).mean()


def _cell_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    return _normal(rng, b, 4 * t), _normal(rng, b, 4 * t), _normal(rng, 4 * t), _normal(rng, b, t)


def _torch_cell(torch: Any, gx: Any, gh: Any, bias: Any, c: Any) -> Any:
    i, f, g, o = (gx + gh + bias).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _jax_cell(jax: Any, jnp: Any, gx: Any, gh: Any, bias: Any, c: Any) -> Any:
    i, f, g, o = jnp.split(gx + gh + bias, 4, 1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _attention_inputs(rng: np.random.Generator, b: int, t: int) -> Arguments:
    b, t = 1 + b % 8, 1 + t % 256
    return tuple(_normal(rng, b, t, 32) for _ in range(3))


def _jax_attention(jax: Any, jnp: Any, q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    return jax.nn.softmax(s, -1) @ v


CASES: Mapping[str, Case] = {
    "softmax": Case(
        "softmax",
        lambda rng, b, t: (_normal(rng, b, t),),
        lambda torch, x: torch.softmax(x, -1),
        lambda jax, jnp, x: jax.nn.softmax(x),
    ),
    "LayerNorm": Case(
        "layer_norm",
        _norm_inputs,
        lambda torch, x, g, b: torch.nn.functional.layer_norm(x, x.shape[-1:], g, b),
        _jax_norm,
    ),
    "LayerNorm, gradient": Case(
        "layer_norm_backward", _norm_gradient_inputs, _torch_norm_gradient, _jax_norm_gradient
    ),
    "masked softmax": Case(
        "masked_softmax",
        _masked_inputs,
        lambda torch, x, mask: torch.softmax(x + mask[:, None, :], -1),
        lambda jax, jnp, x, mask: jax.nn.softmax(x + mask[:, None, :]),
    ),
    "cross entropy": Case(
        "cross_entropy",
        _loss_inputs,
        lambda torch, x, target: torch.nn.functional.cross_entropy(x, target),
        _jax_loss,
    ),
    "LSTM cell": Case("lstm_cell", _cell_inputs, _torch_cell, _jax_cell),
    "attention": Case(
        "causal_attention",
        _attention_inputs,
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        _jax_attention,
    ),
}


def shapes_of(count: int, seed: int) -> list[tuple[int, int]]:
    """Random (B, T), each size on a logarithmic scale."""
    rng = random.Random(seed)
    return [(int(2 ** rng.uniform(0, 8)), int(2 ** rng.uniform(0, 11))) for _ in range(count)]


# --- one contender, in a process of its own ---------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """`call` returns when the results are there; `taken` makes its arrays of NumPy's."""

    call: Callable[..., Any]
    taken: Callable[[Arguments], tuple[Any, ...]]
    compilations: Callable[[], int]


def contender(name: str, case: Case, threads: int) -> Contender:
    """A contender that has compiled nothing."""
    if name in ("auto", "fixed"):
        import polyfuse as pf

        f = pf.compile(
            pf.stdlib, case.operator, sizes=name, options=pf.Options(threads=threads, progress=False)
        )
        return Contender(f, lambda arrays: arrays, lambda: len(f.variants))
    if name == "jax.jit":
        import jax

        g = jax.jit(lambda *args: case.jax(jax, jax.numpy, *args))
        return Contender(
            lambda *args: jax.block_until_ready(g(*args)),
            lambda arrays: tuple(map(jax.numpy.array, arrays)),
            lambda: g._cache_size(),
        )
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    counters = torch._dynamo.utils.counters
    h = torch.compile(lambda *args: case.torch(torch, *args), dynamic=True)
    return Contender(
        h,
        lambda arrays: tuple(map(torch.from_numpy, arrays)),
        lambda: int(counters["stats"]["unique_graphs"]),
    )


def measured(name: str, case: Case, shapes: list[tuple[int, int]], threads: int) -> dict[str, Any]:
    """What calls at these shapes took: compilations, seconds stalled, and median seconds of later calls."""
    one, rng = contender(name, case, threads), np.random.default_rng(0)
    stalled = 0.0
    for b, t in shapes if name != "fixed" else shapes[:MOST_FIXED]:
        given = one.taken(case.inputs(rng, b, t))
        first, second = _seconds(one, given), _seconds(one, given)
        stalled += first - second if first - second > CLEAR else 0.0
    found = {"compilations": one.compilations(), "stalled": stalled}
    both = [one] if name != "auto" else [one, contender("fixed", case, threads)]
    times = []
    for b, t in shapes[:TIMED]:
        arrays = case.inputs(rng, b, t)
        times.append(in_turns([partial(x.call, *x.taken(arrays)) for x in both]))
    return {**found, "times": [t[0] for t in times], "beside": [t[-1] for t in times]}


def in_turns(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Median seconds of each of some calls, which were made before, in turns of some calls each."""
    least = min(_turn(f, 1) and _turn(f, 3) for f in calls)
    count = max(1, round(LEAST_S / least))
    turns = [[_turn(f, count) for f in calls] for _ in range(SHAPE_TURNS)]
    return [statistics.median(t) for t in zip(*turns, strict=True)]


def _seconds(one: Contender, given: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    one.call(*given)
    return time.perf_counter() - start


# --- a workload, in a process of its own ------------------------------------------------------------------


def compared(case: str, threads: int) -> dict[str, Any]:
    """Seconds of calls of a case of the workloads, with all sizes open and with fixed ones, by turns."""
    import polyfuse as pf

    ((w, _),) = select([case])
    given, options = w.inputs(w.sizes(case)), pf.Options(threads=threads, progress=False)
    usual = pf.compile(w.parse(), w.name, sizes="fixed", options=options)
    any_sizes = pf.compile(w.parse(), w.name, sizes="open", options=options)
    forms = {"open": partial(any_sizes, **given), "fixed": partial(usual, **given)}
    seconds = {s: _turn(f, 1) and _turn(f, 1) for s, f in forms.items()}
    count = max(1, round(LEAST_S / seconds["fixed"]))
    fewest, most = TURNS
    turns = round(WORKLOAD_S / (count * sum(seconds.values())))
    times: dict[str, list[float]] = {s: [] for s in forms}
    for _ in range(min(most, max(fewest, turns))):
        for s, f in forms.items():
            times[s].append(_turn(f, count))
    variant = str(any_sizes.variants[0])
    return {"variant": variant, **{s: statistics.median(t) for s, t in times.items()}}


def _turn(f: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        f()
    return (time.perf_counter() - start) / count


def workload_cases() -> list[str]:
    """All public cases, by name."""
    return [case for _, case in select([])]


def workload_table(found: Mapping[str, dict[str, Any] | None], threads: int) -> str:
    """A table in Markdown, the slowest first, with the geometric mean."""
    rows = sorted((x["open"] / x["fixed"], n, x) for n, x in found.items() if x is not None)[::-1]
    mean = statistics.geometric_mean(r for r, *_ in rows)
    within = sum(r <= 1.15 for r, *_ in rows)
    lines = [
        f"{len(rows)} workloads, {counted(threads)}, medians of calls in turns; geometric mean {mean:.2f}, "
        f"{within} within 1.15.",
        "",
        "| workload | fixed, us | open, us | open / fixed |",
        "|---|---|---|---|",
    ]
    lines += [f"| {n} | {x['fixed'] * 1e6:.1f} | {x['open'] * 1e6:.1f} | {r:.2f} |" for r, n, x in rows]
    return "\n".join(lines)


def counted(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


# --- all of them ------------------------------------------------------------------------------------------


def in_process(name: str, case: str, args: argparse.Namespace) -> dict[str, Any] | None:
    """What a contender took, None where its library is not there or it fails."""
    if importlib.util.find_spec(CONTENDERS[name]) is None:
        return None
    return _alone(["--contender", name, "--only", case, *_settings(args)])


def _settings(args: argparse.Namespace) -> list[str]:
    return ["--shapes", str(args.shapes), "--seed", str(args.seed), "--threads", str(args.threads)]


def _alone(options: list[str]) -> dict[str, Any] | None:
    """What this program prints with such options, in a process of its own; None if it fails."""
    command = [sys.executable, "-m", "benchmarks.open_sizes", *options]
    with tempfile.TemporaryDirectory() as empty:  # contenders have compiled nothing before
        folders = dict.fromkeys(("POLYFUSE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), empty)
        env = {**os.environ, **({} if OPEN in options else folders)}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        print(f"{' '.join(options)} failed", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.open_sizes", description="Calls at many shapes."
    )
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", choices=[*CASES, *workload_cases()], metavar="NAME")
    parser.add_argument("--workloads", action="store_true", help="the public workloads, open beside fixed")
    parser.add_argument("--json", type=Path, help="results of earlier runs in it are kept")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--contender", choices=[*CONTENDERS, OPEN], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.contender:
        print(json.dumps(_as_contender(args)))
        return 0
    found = kept(args.json)
    asked = args.only if args.only is not None else workload_cases() if args.workloads else CASES
    for n in asked:
        if args.workloads:
            found[n] = _alone(["--contender", OPEN, "--only", n, *_settings(args)])
        else:
            found[n] = {c: in_process(c, n, args) for c in CONTENDERS}
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    text = workload_table(found, args.threads) if args.workloads else table(found, args)
    print(text)
    if args.write:
        write_measured(PAGE, text, "workloads" if args.workloads else "")
    return 0


def kept(file: Path | None) -> dict[str, Any]:
    """What earlier runs have found."""
    return json.loads(file.read_text()) if file and file.exists() else {}


def _as_contender(args: argparse.Namespace) -> dict[str, Any]:
    """What this process is for, where another one has begun it."""
    (name,) = args.only
    if args.contender == OPEN:
        return compared(name, args.threads)
    return measured(args.contender, CASES[name], shapes_of(args.shapes, args.seed), args.threads)


def table(found: Mapping[str, Mapping[str, dict[str, Any] | None]], args: argparse.Namespace) -> str:
    """A table in Markdown."""
    lines = [
        f"{args.shapes} shapes of seed {args.seed}, {counted(args.threads)}; `fixed`, and times of calls, "
        f"at {MOST_FIXED} of them; `of fixed` is the median of ratios. `auto` and `fixed` are ours, for this "
        "in one process and in turns.",
        "",
        "| operator | contender | compilations | seconds stalled | microseconds a call | of fixed |",
        "|---|---|---|---|---|---|",
    ]
    for case, by_name in found.items():
        fixed = by_name.get("fixed")
        for n, x in by_name.items():
            if x is not None:
                others = x["beside"] if n == "auto" else fixed["times"] if fixed else None
                of_fixed = f"{_ratio(x['times'], others):.2f}" if others else ""
                figures = (
                    f"{x['compilations']} | {x['stalled']:.2f} | {statistics.median(x['times']) * 1e6:.1f}"
                )
                lines.append(f"| {case} | {n} | {figures} | {of_fixed} |")
    return "\n".join(lines)


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
