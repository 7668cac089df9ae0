"""Functions of the prelude in plain loops: `python -m benchmarks.vector_functions [--seconds S] [--write]`.

For each function nanoseconds for an element, of the fastest of many short runs of all functions in turns,
with arrays in L1 and with arrays in L2; and for f32 what a vector takes of the processor: instructions of
the loop by kind, cycles (the time of two fused multiply-adds that depend on nothing), and the least there can
be, which is half of what runs on the two multipliers (a division or a square root of a vector twice).
"""

from __future__ import annotations

import argparse
import ctypes
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hot_loops import Instruction, disassembled, hot_loops
from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from polyfuse.codegen.math.conversions import ROWS, row_name
from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.runtime.machine.probe import cache_sizes
from polyfuse.runtime.toolchain.compiler import load_shared

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "vector_math.md"
# A function of one argument, or C with x for it.
GELU = "x * (0.5f + pf_scaled_erf_f32(x, 0.70710678, 0.5))"
FUNCTIONS = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "sigmoid": "sigmoid",
    "erf": "erf", "sin": "sin", "cos": "cos", "pow, x^1.3": "pow", "GELU": GELU, "1 / x": "1 / x",
    "floor": "floor", "round": "round",
}  # fmt: skip
LANES = 64
# Elements of one measurement, and rounds of five cycles of the one of multiplications.
SHORTEST, CYCLES = 1 << 16, 20_000
Array = np.ndarray[Any, Any]
Times = dict[str, float]
MULTIPLIED = re.compile(r"^vf?n?m(?:ul|add|sub)\w*[sp][sd]$")
DIVIDED = re.compile(r"^v(?:div|sqrt)[sp][sd]$")
FLOATING = re.compile(
    r"^v(?:add|sub|min|max|cmp\w*|range|scalef|rndscale|getexp|getmant|cvt\w*)[sp][sdqh]\w*$"
)
FMA = """
extern "C" void pf_multiply(const float*, float* o, long n, long) {
  typedef float V __attribute__((vector_size(PF_VECTOR)));
  V a[10] = {}, x = {}, y = {};
  __asm__ volatile("" : "+m"(x), "+m"(y));
  for (long r = 0; r < n; ++r)
    for (int k = 0; k < 10; ++k) a[k] = a[k] * x + y;
  for (int k = 0; k < 10; ++k) *o += a[k][0];
}
"""


@dataclass(frozen=True)
class Loop:
    """A function in a loop: its name in the library, the type of its elements."""

    title: str
    symbol: str
    dtype: DType
    text: str
    called: tuple[str, ...]


def loop_of(title: str, body: str, t: DType) -> Loop | None:
    """C++ of a function over an array, in rows where kernels have it so; None without one for the type."""
    symbol = f"pf_loop_{re.sub('[^a-z0-9]', '', title.lower())}_{t.name}"
    if "scaled" in body and t is F64:
        return None
    call = re.findall(r"pf_\w+", body)[:1] or ([] if " " in body else [f"pf_{body}_{t.name}"])
    if body in ROWS:
        call = [row_name(body, t)]
        inner = f"for (int l = 0; l < {LANES}; ++l) v[l] = x[c + l];\n      {call[0]}(v, {LANES});\n"
        inner += f"      for (int l = 0; l < {LANES}; ++l) y[c + l] = v[l];"
    else:
        value = body if " " in body else f"{call[0]}(x{', 1.3f' if body == 'pow' else ''})"
        value = re.sub(r"\bx\b", "x[c + l]", value.replace("1 /", f"({t.c_name})1 /"))
        inner = f"for (int l = 0; l < {LANES}; ++l) y[c + l] = {value};"
    text = (
        f'extern "C" void {symbol}(const {t.c_name}* __restrict x, {t.c_name}* __restrict y,\n'
        "    long n, long times) {\n"
        f"  for (; times > 0; --times)\n    for (long c = 0; c < n; c += {LANES}) {{\n"
        f"      {t.c_name} v[{LANES}];\n      (void)v;\n      {inner}\n    }}\n}}\n"
    )
    return Loop(title, symbol, t, text, tuple(call))


def kinds(body: tuple[Instruction, ...]) -> list[float]:
    """Of a loop over f32, for a vector that it stores: multiplications, divisions, other arithmetic of floats
    and conversions, all instructions."""
    vectors = sum(i.counts().stores for i in body)
    counts = [sum(bool(p.match(i.name)) for i in body) for p in (MULTIPLIED, DIVIDED, FLOATING)]
    return [k / vectors for k in (*counts, len(body))]


def measured(calls: dict[str, Callable[[], None]], seconds: float) -> Times:
    """The fastest of many calls of each, in turns."""
    best = dict.fromkeys(calls, np.inf)
    end = time.perf_counter() + seconds
    while np.inf in best.values() or time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(5):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def sources(loops: list[Loop]) -> list[str]:
    """C++ of those that ask for the flags of long functions, and of the others."""
    groups: dict[bool, list[Loop]] = {}
    for x in loops:
        groups.setdefault("// needs" in prelude(x.called), []).append(x)
    return [
        prelude({c for x in group for c in x.called}) + FMA + "".join(x.text for x in group)
        for group in groups.values()
    ]


def table(seconds: float) -> list[str]:
    loops = [x for t in (F32, F64) for k, body in FUNCTIONS.items() if (x := loop_of(k, body, t))]
    texts = sources(loops)
    libraries = [load_shared(text) for text in texts]
    caches = cache_sizes()
    found = [_times(libraries, loops, nbytes, seconds / 2) for nbytes in (caches.l1 // 2, caches.l2 // 2)]
    every = [x for text in texts for x in hot_loops(disassembled(text, "native"))]
    bodies = {x.function: x.body for x in every if not x.around}
    lines = [
        "| function | multiplications | divisions | other floats | all instructions | cycles, least | "
        "f32: cycles, L1 | L2 | ns per element, L1 | L2 | f64: ns, L1 | L2 |",
        "|---|" + "---:|" * 11,
    ]
    for title in FUNCTIONS:
        single, double = (
            next((x for x in loops if x.title == title and x.dtype is t), None) for t in (F32, F64)
        )
        assert single is not None
        *parts, whole = kinds(bodies[single.symbol])
        cells = [*(f"{p:.3g}" for p in (*parts, whole)), f"{(parts[0] + 2 * parts[1]) / 2:.1f}"]
        cells += [f"{times[single.symbol] * 16 / cycle:.1f}" for times, cycle in found]
        cells += [f"{times[x.symbol]:.3f}" if x else "" for x in (single, double) for times, _ in found]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def _times(
    libraries: list[ctypes.CDLL], loops: list[Loop], nbytes: int, seconds: float
) -> tuple[Times, float]:
    """Nanoseconds for an element of each, and for a cycle."""
    rng = np.random.default_rng(1)
    calls: dict[str, Callable[[], None]] = {}
    per = {"pf_multiply": 5 * CYCLES}
    one = np.zeros(1, "f4")
    calls["pf_multiply"] = _call(libraries, "pf_multiply", one, np.zeros_like(one), CYCLES, 1)
    for x in loops:
        n = nbytes // 2 // x.dtype.bytes // LANES * LANES
        given = np.abs(rng.standard_normal(n) * 2).astype(x.dtype.numpy) + x.dtype.numpy.type(0.01)
        times = max(1, SHORTEST // n)
        calls[x.symbol] = _call(libraries, x.symbol, given, np.empty_like(given), n, times)
        per[x.symbol] = n * times
    best = {name: s * 1e9 / per[name] for name, s in measured(calls, seconds).items()}
    return best, best["pf_multiply"]


def _call(
    libraries: list[ctypes.CDLL], name: str, x: Array, y: Array, n: int, times: int
) -> Callable[[], None]:
    function = next(getattr(found, name) for found in libraries if hasattr(found, name))
    arguments = [*(ctypes.c_void_p(a.ctypes.data) for a in (x, y)), ctypes.c_long(n), ctypes.c_long(times)]
    arrays = (x, y)

    def call() -> None:
        assert arrays  # they live as long as the call
        function(*arguments)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    rows = table(given.seconds)
    print(*rows, sep="\n")
    if given.write:
        where = surroundings()
        about = f"{where['cpu']}, {where['date'][:10]}, load average {load_average():.1f}; one thread."
        write_measured(PAGE, "\n".join([about, "", *rows]))


if __name__ == "__main__":
    main()
