"""Compilers for CUDA on this machine: NVRTC's library, from its wheel or the system, or else nvcc.

The wheel comes first: it is what the extra ``cuda-compile`` installs, in a version that is known to work.
Nothing is loaded to find it.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from polyfuse.diagnostics import ToolchainError

WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13")
TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
INSTALL = 'pip install "polyfuse[cuda-compile]"'


@dataclass(frozen=True, slots=True)
class CudaCompiler:
    """`path` of NVRTC's library or of nvcc; `origin` says where it comes from."""

    kind: Literal["nvrtc", "nvcc"]
    path: str
    origin: str

    @property
    def identity(self) -> str:
        """Changes when the file changes, for cache keys."""
        real = os.path.realpath(self.path)
        if not os.path.exists(real):
            return f"{self.kind} {self.path}"  # a name that the system's loader resolves
        info = os.stat(real)
        return f"{self.kind} {real} {info.st_size} {info.st_mtime_ns}"


def find_cuda_compiler() -> CudaCompiler:
    """NVRTC's wheel, else the system's NVRTC, else nvcc. Raises ToolchainError PF720 if there is none."""
    found = find_nvrtc() or find_nvcc()
    if found is None:
        raise ToolchainError(
            "no compiler for CUDA found: neither NVRTC (a wheel, or libnvrtc of the system) nor nvcc",
            code="PF720",
            hint=f"{INSTALL} installs NVRTC; no GPU, driver or toolkit is needed to compile",
        )
    return found


def find_nvrtc() -> CudaCompiler | None:
    """NVRTC's library, or None."""
    found = find_library("nvrtc", WHEELS)
    return CudaCompiler("nvrtc", *found) if found else None


def find_library(name: str, wheels: Sequence[str]) -> tuple[str, str] | None:
    """The path of one of NVIDIA's libraries, and where it comes from: a wheel, a toolkit, the system."""
    file_name = re.compile(rf"lib{name}\.so(\.\d+)*")
    for wheel in wheels:
        try:
            distribution = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        for file in sorted(distribution.files or (), key=str):
            path = Path(str(distribution.locate_file(file)))
            if file_name.fullmatch(file.name) and path.is_file():
                return str(path), f"{wheel} {distribution.version}"
    for folder in toolkits():
        for path in sorted((folder / "lib64").glob(f"lib{name}.so*")):
            return str(path), str(folder)
    found = ctypes.util.find_library(name)
    return (found, "the system") if found else None


def find_nvcc() -> CudaCompiler | None:
    """nvcc on the PATH or where toolkits are installed, or None."""
    places = [shutil.which("nvcc"), *(shutil.which(str(t / "bin" / "nvcc")) for t in TOOLKITS)]
    path = next((p for p in places if p), None)
    return CudaCompiler("nvcc", path, path) if path else None


def toolkits() -> list[Path]:
    """Folders of toolkits: that of nvcc on the PATH, and the usual ones."""
    nvcc = shutil.which("nvcc")
    own = [Path(os.path.realpath(nvcc)).parent.parent] if nvcc else []
    return [folder for folder in (*own, *TOOLKITS) if folder.is_dir()]
