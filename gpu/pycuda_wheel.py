"""Build PyCUDA's wheel for the GPU machine on a machine without a GPU.

Needed are a Python 3.12, CUDA's headers and a C++ compiler.  PyCUDA links libcuda, which comes with the
driver; an empty library of that name stands in for it, so that the real one is loaded over there.  Linkers
that drop libraries of which they see no use (`--as-needed`, the default of some) must be told not to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

BUILD_TIMEOUT_S = 900
DRIVER = "libcuda.so.1"
KEEP_LIBRARIES = "-Wl,--no-as-needed"
CHECK = "import sys, sysconfig, venv; print(*sys.version_info[:2], sysconfig.get_platform())"
WANTED = "3 12 linux-x86_64"


class WheelError(Exception):
    """The wheel cannot be built here; the message says why."""


def build_wheel(sources: Path, to: Path) -> None:
    """Build the sdist into the folder `to`. Raises WheelError."""
    python, cuda = find_python(), find_cuda()
    compiler = shutil.which(os.environ.get("CC", "")) or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise WheelError("there is no C compiler")
    with TemporaryDirectory() as scratch:
        work = Path(scratch)
        with tarfile.open(sources) as archive:
            archive.extractall(work, filter="data")
        tree = work / sources.name.removesuffix(".tar.gz")
        stub = _stub_driver(compiler, work / "stub")
        _run([str(python), "-m", "venv", str(work / "venv")], work)
        own = str(work / "venv" / "bin" / "python")
        places = [f"--cuda-root={cuda}", f"--cudadrv-lib-dir={stub}"]
        _run([own, "configure.py", *places, "--no-cuda-enable-curand"], tree)
        made = work / "wheel"
        command = [own, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
        _run([*command, "-w", str(made), "."], tree, CPATH=str(cuda / "include"), LDFLAGS=KEEP_LIBRARIES)
        (wheel,) = made.iterdir()
        if not loads_driver(wheel):
            raise WheelError(f"{wheel.name} was linked without {DRIVER}")
        shutil.copy2(wheel, to)


def loads_driver(wheel: Path) -> bool:
    """Does the wheel's extension name the driver's library, so that importing it loads that?"""
    with zipfile.ZipFile(wheel) as archive:
        extensions = [n for n in archive.namelist() if n.startswith("pycuda/_driver.")]
        return bool(extensions) and all(DRIVER.encode() in archive.read(n) for n in extensions)


def _stub_driver(compiler: str, folder: Path) -> Path:
    folder.mkdir()
    (folder / "empty.c").write_text("typedef int nothing;\n", encoding="utf-8")
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", "libcuda.so", "empty.c"]
    _run([compiler, *flags], folder)
    return folder


def _run(command: Sequence[str], where: Path, **environment: str) -> None:
    variables = {**os.environ, **environment}
    try:
        ended = subprocess.run(
            command, cwd=where, env=variables, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WheelError(f"{Path(command[0]).name}: {error}") from error
    if ended.returncode:
        lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        raise WheelError(f"{' '.join(command[:3])} failed: {' '.join(lines[-2:])}")


def find_python() -> Path:
    """A Python 3.12 that can make virtual environments: on the PATH, or one of pyenv's. Raises WheelError."""
    for candidate in _pythons():
        try:
            ended = subprocess.run([str(candidate), "-c", CHECK], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ended.stdout.strip() == WANTED:
            return candidate
    raise WheelError("there is no Python 3.12 for x86-64 Linux")


def _pythons() -> Iterator[Path]:
    for name in ("python3.12", "python3"):
        if found := shutil.which(name):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/3.12*/bin/python3.12"), reverse=True)


def find_cuda() -> Path:
    """The folder whose `include` has CUDA's headers. Raises WheelError."""
    places = [Path(p) for n in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT") if (p := os.environ.get(n))]
    if nvcc := shutil.which("nvcc"):
        places.append(Path(nvcc).resolve().parents[1])
    for place in (*places, Path("/usr/local/cuda"), Path("/usr/lib/cuda")):
        if (place / "include" / "cuda.h").is_file():
            return place
    raise WheelError("there are no CUDA headers (cuda.h)")
