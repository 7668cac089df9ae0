"""Host time of a call on a GPU: `python -m benchmarks.calls [--calls N] [--rounds N] [--only TEXT ...]
[--json FILE]`.

Small operators are called again and again, each time as users do; nothing waits for the device within a
round. A row has microseconds of a plain call, of a call with `out=` and of a bound call, for the arrays of
each library that is there (torch, CuPy, JAX, our own), beside eager PyTorch and torch.compile. Without a GPU
a driver that does nothing stands in, and tensors that only have a shape: then the times are our own part of a
call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal
from unittest import mock

import numpy as np

import polyfuse as pf
from polyfuse.driver import spills, targets
from polyfuse.runtime.cuda import compiler, executable, open
from polyfuse.runtime.cuda.compiler import Cubin, CudaCompiler
from polyfuse.runtime.cuda.driver import Entries
from polyfuse.runtime.cuda.driver_recording import RecordingDriver
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.open import cuda_available, open_driver
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.runtime.toolchain.compiler import load_kernels

Call = Callable[[], object]
BARS = {"plain": 8.0, "bound": 3.0}
"""Microseconds of host time for the three arguments of a LayerNorm with torch tensors."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its arrays, and what PyTorch calls the same."""

    text: str
    shapes: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, float]
    eager: Callable[..., Any] | None = None
    sizes: Literal["fixed", "open"] = "fixed"


def _layer_norm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def _adam(torch: Any, p: Any, m: Any, v: Any, g: Any) -> None:
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


_LAYER_NORM = """op layer_norm(x: f32[T, H], g: f32[H], b: f32[H]) -> (y: f32[T, H]) {
  m[t] = sum[h](x[t, h]) / H
  v[t] = sum[h]((x[t, h] - m[t]) ** 2) / H
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h] + b[h]
}"""
CASES: Mapping[str, Case] = {
    "add, 2 arguments": Case(
        "op add(x: f32[N], y: f32[N]) -> (z: f32[N]) { z[i] = x[i] + y[i] }",
        {"x": (4096,), "y": (4096,)},
        {},
        lambda torch, x, y: x + y,
    ),
    "LayerNorm, 3 arguments": Case(
        _LAYER_NORM,
        {"x": (16, 768), "g": (768,), "b": (768,)},
        {},
        _layer_norm,
    ),
    "LayerNorm, 3 arguments, open sizes": Case(
        _LAYER_NORM, {"x": (16, 768), "g": (768,), "b": (768,)}, {}, _layer_norm, "open"
    ),
    "Adam, 4 arguments in place": Case(
        """op adam(inout p: f32[N], inout m: f32[N], inout v: f32[N], g: f32[N], lr: f32 = 0.001) {
          m_new[i] = 0.9 * m[i] + 0.1 * g[i]
          v_new[i] = 0.999 * v[i] + 0.001 * g[i] * g[i]
          p[i] = p[i] - lr * m_new[i] / (sqrt(v_new[i]) + 1e-8)
          m[i] = m_new[i]
          v[i] = v_new[i]
        }""",
        dict.fromkeys("pmvg", (4096,)),
        {"lr": 0.001},
        _adam,
    ),
    "sum of everything, with workspace": Case(
        "op total(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }",
        {"x": (1 << 20,)},
        {},
        lambda torch, x: x.sum(),
    ),
}

# --- without a GPU ------------------------------------------------------------------------------------------

_NOTHING = """extern "C" {
static void* context;
int get_current(void** found) { *found = context; return 0; }
int push(void* one) { context = one; return 0; }
int pop(void** found) { *found = context; context = nullptr; return 0; }
typedef unsigned u;
int launch(void*, u, u, u, u, u, u, u, void*, void**, void**) { return 0; }
int launch_cooperative(void*, u, u, u, u, u, u, u, void*, void**) { return 0; }
int fill(unsigned long, unsigned char, unsigned long, void*) { return 0; }
int copy(unsigned long, unsigned long, unsigned long, void*) { return 0; }
}"""
_NAMES = ("get_current", "push", "pop", "launch", "launch_cooperative", "fill", "copy")


class NullDriver(RecordingDriver):
    """Memory is the host's; launches do nothing, and nobody takes notes."""

    def __init__(self) -> None:
        super().__init__(resident=1024)
        self._library = load_kernels(_NOTHING)

    def _note(self, method: str, *arguments: Any) -> None:
        pass

    def entries(self) -> Entries | None:
        """Functions in C that do nothing."""
        return Entries(tuple(self._library.address(n) for n in _NAMES), 0, _refuse)


def _refuse(status: int, function: str) -> None:
    raise AssertionError(f"{function} returned {status}")


class StandInTensor:
    """What is asked of a tensor of torch, and nothing behind it."""

    is_cuda = requires_grad = False
    layout = "strided"
    device = SimpleNamespace(type="cuda", index=0)

    def __init__(self, memory: Any, shape: tuple[int, ...]) -> None:
        self.memory, self.shape, self.dtype = memory, shape, "torch.float32"
        self._strides = tuple(int(np.prod(shape[k + 1 :])) for k in range(len(shape)))

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return self.memory

    def is_neg(self) -> bool:
        return False

    def is_inference(self) -> bool:
        return False


class StandInTorch(ModuleType):
    """As much of torch as calls with tensors on a device use."""

    def __init__(self, driver: NullDriver) -> None:
        super().__init__("torch")
        self.Tensor, self.strided, self.float32, self.uint8 = StandInTensor, "strided", "f32", "u8"
        self.nn = SimpleNamespace(Parameter=type("Parameter", (StandInTensor,), {}))
        self.is_grad_enabled = self.is_inference_mode_enabled = bool
        self._C = SimpleNamespace(
            _functorch=SimpleNamespace(is_functorch_wrapped_tensor=_no),
            _cuda_getCurrentRawStream=_no,
        )
        self.cuda = SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=0))
        self.autograd = SimpleNamespace(
            forward_ad=SimpleNamespace(
                unpack_dual=lambda t: SimpleNamespace(tangent=None), _current_level=-1
            ),
            graph=SimpleNamespace(increment_version=_no),
        )
        self._driver = driver
        self._made: dict[tuple[int, ...], deque[StandInTensor]] = {}

    def device(self, kind: str, index: int) -> str:
        """What names a device."""
        return f"{kind}:{index}"

    def empty(self, shape: tuple[int, ...], **_: object) -> StandInTensor:
        return self.empty_strided(shape, ())

    def empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...], **_: object) -> StandInTensor:
        """One of a few tensors, which were made before: as an allocator that has kept blocks."""
        kept = self._made.get(shape)
        if kept is None:
            kept = self._made[shape] = deque(self.fresh(shape) for _ in range(8))
        kept.rotate()
        return kept[0]

    def fresh(self, shape: tuple[int, ...]) -> StandInTensor:
        """A tensor in memory of its own."""
        with self._driver.current():
            return StandInTensor(self._driver.allocate(4 * int(np.prod(shape))), shape)


def _no(*_: object) -> int:
    return 0


@contextmanager
def no_gpu() -> Iterator[NullDriver]:
    """A driver that does nothing, for what is compiled for "cuda" in this block; and a stand-in for torch."""
    driver = NullDriver()

    def opened(index: int = 0) -> NullDriver:
        return driver

    def compiled(source: str, arch: str, **_: Any) -> Cubin:
        return Cubin(b"", "", {}, "", "none")

    patches = [mock.patch.object(m, "open_driver", opened) for m in (executable, open)]
    patches += [
        mock.patch.object(executable, "compile_cuda", compiled),
        mock.patch.object(open, "cuda_available", lambda: True),
        mock.patch.object(compiler, "find_cuda_compiler", lambda: CudaCompiler("nvcc", "none", "a stand-in")),
        mock.patch.object(spills, "spilled", lambda *_: {}),
        mock.patch.object(targets, "_usable", {}),
        mock.patch.dict(sys.modules, {"torch": StandInTorch(driver)}),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield driver


# --- arrays -------------------------------------------------------------------------------------------------


def _own(driver: Any) -> Callable[[Any], Any]:
    def make(a: Any) -> DeviceArray:
        return DeviceArray.empty(DeviceMemory.get(driver), a.shape, a.dtype).set(a)

    return make


def libraries(there: bool) -> dict[str, Callable[[Any], Any]]:
    """Library -> what makes an array of it on the device of a NumPy array."""
    driver = open.open_driver()
    found: dict[str, Callable[[Any], Any]] = {}
    if there:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else jax takes the others' memory
        for name, make in _OTHERS.items():
            try:
                found[name] = partial(make, importlib.import_module(name))
            except ImportError:
                continue
    else:
        torch = sys.modules["torch"]
        found["torch"] = lambda a: torch.fresh(a.shape)
    return {**found, "our own": _own(driver)}


_OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "torch": lambda torch, a: torch.from_numpy(a).cuda(),
    "cupy": lambda cupy, a: cupy.asarray(a),
    "jax": lambda jax, a: jax.device_put(a, jax.devices("gpu")[0]),
}

# --- times --------------------------------------------------------------------------------------------------


def host_us(call: Call, wait: Call, calls: int, rounds: int) -> float:
    """Microseconds of host time of a call: of the fastest round. `wait`: for the device, between rounds."""
    best = float("inf")
    for _ in range(3):
        call()
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    wait()
    return best * 1e6


def ways(case: Case, make: Callable[[Any], Any], *, in_place: bool) -> dict[str, Call]:
    """plain, out, bound -> a call of the operator."""
    rng = np.random.default_rng(0)
    arrays = [make(rng.standard_normal(s, np.float32) ** 2) for s in case.shapes.values()]
    f = pf.compile(pf.parse(case.text), target="cuda", sizes=case.sizes)
    numbers = tuple(case.numbers.values())
    result = f(*arrays, *numbers)
    plain = partial(f, *arrays, *numbers)
    if result is None:
        return {"plain": plain, "bound": f.bind(*arrays, *numbers)}
    bound = f.bind(*arrays, *numbers, out=result) if in_place else f.bind(*arrays, *numbers)
    return {
        "plain": plain,
        **({"out": partial(f, *arrays, *numbers, out=result)} if in_place else {}),
        "bound": bound,
    }


def torch_ways(case: Case) -> dict[str, Call]:
    """eager, compiled -> a call of PyTorch's own."""
    import torch

    if case.eager is None:
        return {}
    arrays = [torch.rand(s, device="cuda") for s in case.shapes.values()]
    eager = partial(case.eager, torch)
    compiled = torch.compile(eager)
    with torch.no_grad():
        compiled(*arrays)
    return {"eager": partial(eager, *arrays), "torch.compile": partial(compiled, *arrays)}


def measure(
    calls: int = 200, rounds: int = 25, only: Sequence[str] = (), compare: bool = True
) -> dict[str, dict[str, dict[str, float]]]:
    """Case -> library -> way -> microseconds of host time of a call.

    `calls`: of a round, without waiting for the device. `compare`: with eager PyTorch and torch.compile.
    Without a GPU a driver that does nothing stands in.
    """
    there = cuda_available()
    with nullcontext() if there else no_gpu():
        found = {}
        for name, case in CASES.items():
            if not only or any(text in name for text in only):
                found[name] = _measure(case, there, calls, rounds, compare)
    return found


def _measure(case: Case, there: bool, calls: int, rounds: int, compare: bool) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    wait = _synchronize if there else _no
    for library, make in libraries(there).items():
        if library == "jax" and "inout" in case.text:
            continue  # its arrays do not change
        made = ways(case, make, in_place=library != "jax")
        if there and library == "torch" and compare:
            made |= torch_ways(case)
        found[library] = {way: round(host_us(call, wait, calls, rounds), 2) for way, call in made.items()}
    return found


def _synchronize() -> None:
    driver = open_driver()
    with driver.current():
        driver.synchronize(0)


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The measured times as Markdown."""
    columns = ("plain", "out", "bound", "eager", "torch.compile")
    lines = [f"| case | arrays | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for case, libraries in found.items():
        for library, times in libraries.items():
            cells = " | ".join(f"{times[c]:.1f}" if c in times else "" for c in columns)
            lines.append(f"| {case} | {library} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=200, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=25, help="rounds; the fastest counts")
    parser.add_argument(
        "--only", nargs="*", default=(), help="only cases with one of these texts in their names"
    )
    parser.add_argument("--no-compare", action="store_true", help="without eager PyTorch and torch.compile")
    parser.add_argument("--json", type=Path, help="a file for the times")
    given = parser.parse_args(arguments)
    found = measure(given.calls, given.rounds, given.only, not given.no_compare)
    if not cuda_available():
        print(
            "no GPU: a driver that does nothing stands in, and tensors without memory; our part of a call\n"
        )
    print("microseconds of host time of a call\n")
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
