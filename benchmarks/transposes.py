"""Accesses along different loops: `python -m benchmarks.transposes [--only WORD] [--seconds S] [--write]`.

Each operator with tiles that are transposed and without them, and the same by PyTorch, eager and compiled,
on the same arrays, in one process and in turns; a table of microseconds, of the fastest of many calls.
Beside them is a copy of as many bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import polyfuse as pf
import polyfuse.driver.compiled as compiled_functions
from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.workload import at_line
from polyfuse.layers.mapping import cpu

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "transposes.md"
Call = Callable[[], Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """An operator, the same for PyTorch, and shapes of its arguments; with `turned` the first of them is an
    array of that shape transposed."""

    name: str
    text: str
    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[Shape, ...], ...]
    turned: bool = False


def _softmax(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + b.T, -1)


_TURNED: tuple[tuple[Shape, ...], ...] = (((64, 64),), ((200, 300),), ((1000, 1000),), ((768, 4096),))

CASES = (
    Case(
        "transpose",
        "op f(x: f32[B, I, J]) -> (y: f32[B, J, I]) { y[b, j, i] = x[b, i, j] }",
        lambda x: x.transpose(1, 2).contiguous(),
        (
            ((64, 64, 64),),
            ((512, 16, 60),),
            ((1, 512, 512),),
            ((16, 256, 256),),
            ((1, 509, 511),),
            ((8, 512, 768),),
            ((1, 2048, 2048),),
            ((3, 1001, 1003),),
            ((1, 4096, 4096),),
            ((1, 4001, 4099),),
        ),
    ),
    Case(
        "transpose f16",
        "op f(x: f16[B, I, J]) -> (y: f16[B, J, I]) { y[b, j, i] = x[b, i, j] }",
        lambda x: x.transpose(1, 2).contiguous(),
        (((8, 512, 768),), ((1, 4096, 4096),)),
    ),
    Case(
        "relu, scale, transpose",
        "op f(x: f32[B, I, J], s: f32[J]) -> (y: f32[B, J, I]) { y[b, j, i] = max(x[b, i, j], 0) * s[j] }",
        lambda x, s: (torch.relu(x) * s).transpose(1, 2).contiguous(),
        (((8, 512, 768), (768,)), ((5, 333, 777), (777,)), ((1, 4096, 4096), (4096,))),
    ),
    Case(
        "add a transpose",
        "op f(a: f32[N, M], x: f32[M, N]) -> (y: f32[N, M]) { y[n, m] = a[n, m] + x[m, n] }",
        lambda a, x: a + x.T,
        (((512, 768), (768, 512)), ((1999, 2001), (2001, 1999)), ((4096, 4096), (4096, 4096))),
    ),
    Case(
        "heads first",
        "op f(x: f32[B, S, H, D]) -> (y: f32[B, H, S, D]) { y[b, h, s, d] = x[b, s, h, d] }",
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
        (((8, 512, 12, 64),), ((8, 512, 64, 8),), ((8, 512, 250, 3),)),
    ),
    Case(
        "channels last",
        "op f(x: f32[N, C, H, W]) -> (y: f32[N, H, W, C]) { y[n, h, w, c] = x[n, c, h, w] }",
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        (((8, 64, 56, 56),), ((16, 3, 224, 224),), ((8, 512, 14, 14),), ((64, 8, 60, 60),)),
    ),
    Case(
        "channels first",
        "op f(x: f32[N, H, W, C]) -> (y: f32[N, C, H, W]) { y[n, c, h, w] = x[n, h, w, c] }",
        lambda x: x.permute(0, 3, 1, 2).contiguous(),
        (((8, 56, 56, 64),), ((16, 224, 224, 3),), ((8, 14, 14, 512),)),
    ),
    Case(
        "softmax with a transposed bias",
        """op f(x: f32[N, M], b: f32[M, N]) -> (y: f32[N, M]) {
  t[n, m] = x[n, m] + b[m, n]
  c[n] = max[m](t[n, m])
  e[n, m] = exp(t[n, m] - c[n])
  d[n] = sum[m](e[n, m])
  y[n, m] = e[n, m] / d[n]
}""",
        _softmax,
        (((512, 768), (768, 512)), ((2048, 1000), (1000, 2048)), ((2048, 2048), (2048, 2048))),
    ),
    Case(
        "row sums of x times b transposed",
        "op f(x: f32[N, M], b: f32[M, N]) -> (y: f32[N]) { y[n] = sum[m](x[n, m] * b[m, n]) }",
        lambda x, b: (x * b.T).sum(1),
        (((512, 768), (768, 512)), ((2048, 1000), (1000, 2048))),
    ),
    Case(
        "x + 1 of x.T",
        "op f(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] + 1.0 }",
        lambda x: (x + 1.0).contiguous(),
        _TURNED,
        turned=True,
    ),
    Case(
        "softmax of x.T",
        """op f(x: f32[N, M]) -> (y: f32[N, M]) {
  c[n] = max[m](x[n, m])
  e[n, m] = exp(x[n, m] - c[n])
  d[n] = sum[m](e[n, m])
  y[n, m] = e[n, m] / d[n]
}""",
        lambda x: torch.softmax(x, -1).contiguous(),
        _TURNED,
        turned=True,
    ),
    Case(
        "LayerNorm of x.T",
        """op f(x: f32[N, M]) -> (y: f32[N, M]) {
  c[n] = sum[m](x[n, m]) / M
  v[n] = sum[m]((x[n, m] - c[n]) ** 2) / M
  y[n, m] = (x[n, m] - c[n]) * rsqrt(v[n] + 1e-5)
}""",
        lambda x: torch.layer_norm(x, x.shape[-1:]).contiguous(),
        _TURNED,
        turned=True,
    ),
    Case(
        "row sums of x.T",
        "op f(x: f32[N, M]) -> (y: f32[N]) { y[n] = sum[m](x[n, m]) }",
        lambda x: x.sum(1),
        _TURNED,
        turned=True,
    ),
)


def ours(text: str, arguments: list[np.ndarray[Any, Any]], threads: int) -> Call:
    """A call of an operator that is compiled for the arguments here: checked, so from no cache of plans."""
    options = pf.Options(verify=True, progress=False, threads=threads)
    f = pf.compile(pf.parse(text), "f", options=options)
    out = at_line(f(*arguments))
    f(*arguments, out=out)  # from here on the way is known
    return lambda: f(*arguments, out=out)


def calls_of(case: Case, shapes: tuple[Shape, ...], threads: int, compiled: bool) -> dict[str, Call]:
    """All contenders, by column."""
    rng = np.random.default_rng(0)
    dtype = np.float16 if "f16" in case.text else np.float32
    arguments = [at_line(rng.standard_normal(s).astype(dtype)) for s in shapes]
    arguments = [arguments[0].T, *arguments[1:]] if case.turned else arguments
    tensors = [torch.from_numpy(a) for a in arguments]
    found = {"tiles": ours(case.text, arguments, threads)}
    with (
        mock.patch.object(cpu, "transposed_tiles", lambda *_: None),
        mock.patch.object(cpu, "rows_of_results", lambda *_: None),
        mock.patch.object(compiled_functions, "memory_order", lambda *_: None),
    ):
        found["without"] = ours(case.text, arguments, threads)
    found["torch"] = lambda: case.function(*tensors)
    if compiled:
        fast = torch.compile(case.function)
        found["torch.compile"] = lambda: fast(*tensors)
    source = tensors[0].T.contiguous() if case.turned else tensors[0]
    target = torch.empty_like(source)
    found["copy"] = lambda: target.copy_(source)
    return found


def measured(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Seconds of the fastest call of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(4):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def table(only: str, seconds: float, threads: int, compiled: bool) -> str:
    """All operators at all shapes, as Markdown."""
    where = surroundings()
    names = ["tiles", "without", "torch", *(["torch.compile"] if compiled else []), "copy"]
    lines = [
        f"{where['cpu']}, {threads} threads, {where['date'][:10]}, load average {load_average():.1f}; "
        f"PyTorch {torch.__version__}; microseconds.",
        "",
        f"| operator | first argument | {' | '.join(names)} |",
        f"|---|---|{'---:|' * len(names)}",
    ]
    for case in CASES:
        for shapes in case.shapes if only in case.name else ():
            best = measured(calls_of(case, shapes, threads, compiled), seconds)
            cells = " | ".join(f"{best[n] * 1e6:.4g}" for n in names)
            lines.append(f"| {case.name} | {' x '.join(map(str, shapes[0]))} | {cells} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="WORD", help="operators whose name has the word")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line of the table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch._dynamo.config.cache_size_limit = 64
    found = table(chosen.only, chosen.seconds, chosen.threads, not chosen.eager)
    print(found)
    if chosen.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
