"""The machine of a run: `python -m gpu.machine` prints what it finds as JSON, in a process of its own."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

PACKAGES = ("torch", "triton", "jax", "jaxlib", "numpy", "scipy", "islpy", "pycuda", "cuda-bindings")


def facts() -> dict[str, Any]:
    """Device, driver, versions; `device` is None where there is none, and then `why` says so."""
    name, why = _device()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": name,
        "why": why,
        "properties": _guarded(_properties) if name else None,
        "driver": _driver_version(),
        "pycuda": _guarded(_pycuda),
        "way_to_driver": _guarded(_way) if name else None,
        "compiler": _guarded(_compiler),
        "python": platform.python_version(),
        "versions": {p: v for p in PACKAGES if (v := _version(p))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _guarded(find: Callable[[], Any]) -> Any:
    """What it finds, or why not: none of it may stop a run."""
    try:
        return find()
    except Exception as error:  # drivers and extension modules fail in many ways
        return f"not usable: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _device() -> tuple[str | None, str]:
    try:
        import torch
    except ImportError as error:
        return None, f"PyTorch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no CUDA device"
    return str(torch.cuda.get_device_name(0)), ""


def _properties() -> dict[str, Any]:
    import torch

    p = torch.cuda.get_device_properties(0)
    return {
        "capability": f"{p.major}.{p.minor}",
        "multiprocessors": p.multi_processor_count,
        "memory_bytes": p.total_memory,
        "l2_bytes": p.L2_cache_size,
        "cuda_of_torch": torch.version.cuda,
    }


def _driver_version() -> str | None:
    if not (tool := shutil.which("nvidia-smi")):
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    return ended.stdout.strip().splitlines()[0] if ended.returncode == 0 and ended.stdout.strip() else None


def _pycuda() -> str:
    import pycuda
    import pycuda.driver

    pycuda.driver.init()
    return str(pycuda.VERSION_TEXT)


def _way() -> str:
    from polyfuse.runtime.cuda.open import open_driver

    return str(open_driver().describe())


def _compiler() -> str:
    from polyfuse.runtime.cuda.compiler import find_cuda_compiler

    found = find_cuda_compiler()
    return f"{found.kind} of {found.origin}"


if __name__ == "__main__":
    print(json.dumps(facts()))
