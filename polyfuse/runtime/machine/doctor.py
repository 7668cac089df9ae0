"""What polyfuse finds on this machine: libraries, compiler, processor, cache; what is missing and its remedy.

Nothing is imported to find out whether it is installed, and nothing raises: whatever is wrong is a finding.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from polyfuse.decisions import format_bytes
from polyfuse.diagnostics import PolyfuseError, install
from polyfuse.ir.ops import OPS
from polyfuse.options import ENVIRONMENT

State = Literal["ok", "missing", "note", "info"]

NEEDED = ("numpy", "islpy", "lark", "ml_dtypes", "platformdirs", "filelock", "typer", "rich", "psutil")
OPTIONAL = (
    ("torch", "tensors of PyTorch, pf.torch, torch.compile"),
    ("jax", "arrays of JAX, pf.jax"),
    ("scipy", f"{', '.join(o.name for o in OPS.values() if o.scipy)} of the NumPy baseline"),
)
CUDA_PACKAGES = (
    ("pycuda", "one way to the driver; its library alone does as well", install("cuda")),
    ("cuda-bindings", "another way to the driver", "pip install cuda-bindings"),
)
FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_tile", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `state` is ok, missing (polyfuse cannot compile without it), note, or info."""

    group: str
    name: str
    state: State
    detail: str
    remedy: str | None = None


def examine() -> list[Finding]:
    """Everything, in order of groups."""
    compiler, cuda = _compiler(), _cuda()
    targets = _targets(compiler[0].state == "ok", cuda)
    return [*_software(), *compiler, *cuda, *_machine(), *_cache(), *targets, *_environment()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _software() -> list[Finding]:
    group = "Software"
    found = [
        Finding(group, "polyfuse", "ok", _version("polyfuse") or "not installed (run from its folder)"),
        Finding(group, "python", "ok", f"{platform.python_version()} on {platform.platform()}"),
    ]
    for name in NEEDED:
        version = _version(name)
        remedy = None if version else f"pip install {name.replace('_', '-')}"
        found.append(Finding(group, name, "ok" if version else "missing", version or "not installed", remedy))
    for name, use in OPTIONAL:
        version = _version(name)
        detail = version or f"not installed; only for {use}"
        found.append(Finding(group, name, "ok" if version else "info", detail))
    return found


def _compiler() -> list[Finding]:
    from polyfuse.runtime.toolchain.compiler import find_compiler

    group = "Compiler"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cache has findings of its own
            compiler = find_compiler()
    except PolyfuseError as error:
        d = error.diagnostics[0]
        return [Finding(group, "C++", "missing", f"{d.message} ({d.code})", d.hint)]
    return [
        Finding(group, "C++", "ok", f"{' '.join(compiler.command)}: {compiler.version}"),
        Finding(group, "vectors", "info", f"{compiler.vector_bits} bits, for {compiler.machine}"),
    ]


def _cuda() -> list[Finding]:
    """What compiling for GPUs and running there needs. Nothing of it is missed on a machine without a GPU."""
    from polyfuse.runtime.cuda.compiler import INSTALL, find_nvcc, find_nvrtc

    group = "CUDA"
    nvrtc, nvcc = find_nvrtc(), find_nvcc()
    found = [_driver()]
    if nvrtc:
        found.append(Finding(group, "NVRTC", "ok", f"{nvrtc.origin}: {nvrtc.path}"))
    else:
        instead = "nvcc compiles kernels instead" if nvcc else "nothing can compile kernels for GPUs"
        remedy = f"{INSTALL} (needs no GPU)"
        found.append(Finding(group, "NVRTC", "info", f"not found; {instead}", remedy))
    detail = nvcc.path if nvcc else "not found; only used where NVRTC is not"
    found.append(Finding(group, "nvcc", "ok" if nvcc else "info", detail))
    for name, use, remedy in CUDA_PACKAGES:
        version = _version(name)
        state: State = "ok" if version else "info"
        found.append(
            Finding(group, name, state, version or f"not installed; {use}", None if version else remedy)
        )
    return found


def _driver() -> Finding:
    from polyfuse.runtime.cuda.driver_api import CtypesApi

    try:
        api = CtypesApi()
        api.function("cuInit")(0)
        version, count = api.function("cuDriverGetVersion")(), api.function("cuDeviceGetCount")()
        names = [api.device_name(api.function("cuDeviceGet")(k)) for k in range(count)]
    except PolyfuseError as error:
        d = error.diagnostics[0]
        return Finding("CUDA", "driver", "info", f"{d.message} ({d.code})", d.hint)
    detail = f"for CUDA {version // 1000}.{version % 1000 // 10}: {', '.join(names)}"
    return Finding("CUDA", "driver", "ok", detail)


def _machine() -> list[Finding]:
    from polyfuse.runtime.cpu.memory import usable_memory
    from polyfuse.runtime.cpu.pool import available_cores, default_threads
    from polyfuse.runtime.machine.probe import cache_sizes
    from polyfuse.runtime.toolchain.compiler import cpu_features, cpu_name

    group = "Machine"
    features = [f for f in FEATURES if f in cpu_features()]
    sizes = cache_sizes()
    found = [
        Finding(group, "processor", "info", cpu_name()),
        Finding(group, "features", "info", " ".join(features) or "none that matter"),
        Finding(group, "caches", "info", f"{_kib(sizes.l1)} L1, {_kib(sizes.l2)} L2, {_kib(sizes.l3)} L3"),
        Finding(group, "memory", "info", format_bytes(usable_memory())),
    ]
    try:
        detail = f"{default_threads()} of {available_cores()} cores that this process may use"
        found.append(Finding(group, "threads", "ok", detail))
    except PolyfuseError as error:
        d = error.diagnostics[0]
        found.append(Finding(group, "threads", "missing", f"{d.message} ({d.code})", d.hint))
    return found


def _kib(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _cache() -> list[Finding]:
    from polyfuse.runtime.cache.disk import Cache, default_root

    group = "Cache"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            opened = Cache.open_default()
        except PolyfuseError as error:
            d = error.diagnostics[0]
            return [Finding(group, "folder", "missing", f"{d.message} ({d.code})", d.hint)]
    if opened.root != default_root():
        reason = str(said[0].message) if said else f"PF801: {default_root()} is not used"
        remedy = "chmod go-w the folder, or set POLYFUSE_CACHE_DIR to a private one"
        return [Finding(group, "folder", "note", reason, remedy)]
    entries = opened.ls()
    total = format_bytes(sum(e.size for e in entries))
    return [
        Finding(group, "folder", "ok", str(opened.root)),
        Finding(group, "entries", "info", f"{len(entries)}, {total}"),
    ]


def _targets(ready: bool, cuda: Sequence[Finding]) -> list[Finding]:
    group = "Targets"
    cpu = "C++ for this processor" if ready else "needs a C++ compiler"
    return [
        Finding(group, "cpu", "ok" if ready else "note", cpu),
        Finding(group, "interpret", "ok", "always there; slow"),
        _cuda_target({f.name for f in cuda if f.state == "ok"}),
    ]


def _cuda_target(there: set[str]) -> Finding:
    """One line from the findings about CUDA."""
    compiles, runs = bool(there & {"NVRTC", "nvcc"}), "driver" in there
    if compiles and runs:
        return Finding("Targets", "cuda", "ok", "compiles and runs on this machine's GPU")
    if compiles:
        return Finding(
            "Targets", "cuda", "info", "compiles for any GPU; to run there, a GPU and its driver are needed"
        )
    missing = "a compiler" if runs else "a compiler and a GPU with its driver"
    return Finding("Targets", "cuda", "note" if runs else "info", f"needs {missing} (see CUDA)")


def _environment() -> list[Finding]:
    names = [v.name for v in ENVIRONMENT if v.name in os.environ]
    return [Finding("Environment", n, "info", os.environ[n]) for n in names]


def can_measure(findings: Sequence[Finding]) -> bool:
    """Whether there is a compiler, which measuring needs."""
    return not any(f.state == "missing" for f in findings)


def measurements() -> list[dict[str, float]]:
    """Rates for working sets in each cache and in memory (see `machine.BandwidthReport`)."""
    from polyfuse.runtime.cpu.pool import Pool
    from polyfuse.runtime.machine.probe import level_sets, measure

    reports = {r.working_set_bytes: r for r in map(measure, level_sets(Pool.get().threads))}
    return [asdict(reports[size]) for size in sorted(reports)]


def as_dict(findings: Sequence[Finding], rates: Sequence[dict[str, float]]) -> dict[str, Any]:
    """For JSON: groups of findings, and measurements where they were made."""
    groups: dict[str, Any] = {}
    for f in findings:
        entry = {"state": f.state, "detail": f.detail, **({"remedy": f.remedy} if f.remedy else {})}
        groups.setdefault(f.group.lower(), {})[f.name] = entry
    return {**groups, **({"measured": list(rates)} if rates else {})}
