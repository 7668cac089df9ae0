"""Matrix products beside PyTorch and JAX: a table of `python -m benchmarks.contractions --peers`.

Products of few and many rows, turned, batched and with what follows, by us as we come (`library="auto"`), by
PyTorch eager and compiled and by `jax.jit`.  Each is a process of its own with all cores, which computes on
request, so that they take turns; those that wait are stopped.  The fastest of many short turns counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.turns import PEERS, Child, environment, fastest, serve


@dataclass(frozen=True, slots=True)
class Case:
    """[rows, steps] x [steps, columns], for each of a batch; `turned`: the right factor lies along the steps;
    `gelu`: bias and GELU follow."""

    rows: int
    steps: int
    columns: int
    batch: int = 0
    turned: bool = False
    gelu: bool = False
    dtype: str = "f32"

    @property
    def text(self) -> str:
        """The operator in the tensor language."""
        outer, o, t = ("P, ", "p, ", self.dtype) if self.batch else ("", "", self.dtype)
        shape, read = ("N, K", "n, k") if self.turned else ("K, N", "k, n")
        value = f"sum[k](x[{o}m, k] * w[{o}{read}])"
        body = f"y[{o}m, n] = {value}"
        if self.gelu:
            body = f"z[{o}m, n] = {value} + s[n]\n"
            body += f"y[{o}m, n] = 0.5 * z[{o}m, n] * (1.0 + erf(z[{o}m, n] * 0.70710678))"
        sums = f", s: {t}[N]" if self.gelu else ""
        head = f"op f(x: {t}[{outer}M, K], w: {t}[{outer}{shape}]{sums}) -> (y: {t}[{outer}M, N])"
        return f"{head} {{\n{body}\n}}"

    @property
    def label(self) -> str:
        """For a row of the table."""
        marks = ["transposed"] * self.turned + ["GELU"] * self.gelu + [self.dtype] * (self.dtype != "f32")
        many = f"{self.batch} of " if self.batch else ""
        return many + ", ".join([f"{self.rows} x {self.steps} x {self.columns}", *marks])

    def factors(self) -> list[Any]:
        """Random factors and a bias, as NumPy arrays of f32."""
        import numpy as np

        from benchmarks.workload import at_line

        outer, rng = (self.batch,) * bool(self.batch), np.random.default_rng(0)
        right = (self.columns, self.steps) if self.turned else (self.steps, self.columns)
        shapes = ((*outer, self.rows, self.steps), (*outer, *right), (self.columns,))
        return [at_line(rng.standard_normal(s, "f4")) for s in shapes]


CASES = (
    *(Case(*x) for x in ((1, 512, 512), (1, 1024, 4096), (2, 512, 512), (512, 512, 1), (512, 512, 3))),
    *(Case(*x) for x in ((3, 4096, 1024), (4, 4096, 4096), (8, 4096, 4096))),
    *(Case(*x) for x in ((8, 1024, 1024), (32, 256, 1024), (64, 64, 64), (100, 300, 77), (128, 512, 512))),
    *(Case(*x) for x in ((128, 768, 3072), (197, 768, 768), (256, 256, 256), (512, 64, 512), (512, 512, 64))),
    *(Case(*x) for x in ((1024, 128, 1024), (1000, 300, 77), (4096, 64, 4096), (2048, 1024, 1024))),
    *(Case(*x, turned=True) for x in ((1, 512, 512), (8, 1024, 1024), (128, 512, 512), (197, 768, 768))),
    *(Case(*x, turned=True) for x in ((3, 4096, 1024), (4, 4096, 4096), (8, 4096, 4096))),
    *(Case(*x, gelu=True) for x in ((100, 300, 77), (128, 512, 512), (1000, 300, 77))),
    *(Case(s, 64, s, b, turned=True) for s, b in ((64, 12), (128, 64), (512, 12))),
    *(Case(s, s, 64, b) for s, b in ((64, 12), (128, 64), (512, 12))),
    *(Case(128, 768, n, b) for n, b in ((768, 0), (768, 8), (128, 8))),
    *(Case(128, 512, 512, dtype=t) for t in ("f16", "bf16")),
)


def call_of(peer: str, case: Case, threads: int) -> Callable[[], Any]:
    """A call of a case."""
    arrays = case.factors() if case.gelu else case.factors()[:2]
    if peer == "polyfuse":
        import ml_dtypes
        import numpy as np

        import polyfuse as pf

        dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[case.dtype]
        options = pf.Options(threads=threads, progress=False)
        f = pf.compile(pf.parse(case.text), "f", options=options)
        return f.bind(*(a.astype(dtype) if case.dtype != "f32" else a for a in arrays))
    return _jax_call(case, arrays) if peer == "jax.jit" else _torch_call(case, arrays, peer, threads)


def _torch_call(case: Case, arrays: list[Any], peer: str, threads: int) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    given = [torch.from_numpy(a).to(dtype) for a in arrays]

    def product(x: Any, w: Any, s: Any = None) -> Any:
        z = x @ (w.transpose(-1, -2) if case.turned else w)
        return z if s is None else torch.nn.functional.gelu(z + s)

    torch._dynamo.config.recompile_limit = len(CASES)  # else the last ones are eager
    f = torch.compile(product, dynamic=False) if peer == "compiled" else product
    return lambda: f(*given)


def _jax_call(case: Case, arrays: list[Any]) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    dtype = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}[case.dtype]
    given = [jnp.asarray(a).astype(dtype) for a in arrays]

    def product(x: Any, w: Any, s: Any = None) -> Any:
        z = x @ (jnp.swapaxes(w, -1, -2) if case.turned else w)
        return z if s is None else jax.nn.gelu(z + s, approximate=False)

    f = jax.jit(product)
    return lambda: f(*given).block_until_ready()


def table(threads: int, seconds: float) -> str:
    """Microseconds of all cases, as Markdown; the turns of a case are spread over the whole time."""
    best = [[float("inf")] * len(PEERS) for _ in CASES]
    with ExitStack() as stack:
        children = [stack.enter_context(_started(peer, threads)) for peer in PEERS]
        end = time.monotonic() + seconds * len(CASES)
        while time.monotonic() < end or float("inf") in best[-1]:
            for k, row in enumerate(best):
                row[:] = [min(b, child.ask(case=k)) for b, child in zip(row, children, strict=True)]
    lines = [
        f"{threads} threads, microseconds; *gain*: the fastest of the others by ours.",
        "",
        f"| rows x steps x columns | {' | '.join(PEERS)} | gain |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, (ours, *others) in zip(CASES, best, strict=True):
        cells = " | ".join(f"{t * 1e6:.4g}" for t in (ours, *others))
        lines.append(f"| {case.label} | {cells} | {min(others) / ours:.2f} |")
    return "\n".join(lines)


def _started(peer: str, threads: int) -> Child:
    return Child(peer, ["benchmarks.product_peers", peer, str(threads)], environment(threads))


def main(peer: str, threads: int, inbox: int, outbox: int) -> None:
    """Seconds of the fastest call in a turn, for each number of a case that comes in."""

    @cache
    def ready(k: int) -> Callable[[], Any]:
        call = call_of(peer, CASES[k], threads)
        call()
        return call

    serve(inbox, outbox, lambda: ({}, lambda command: fastest(ready(command["case"]))))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
