"""Gather what a GPU machine without a network needs: `python -m gpu.pack` (`make gpu-pack`).

    build/gpu-pack/wheels/*.whl      what polyfuse and the tests need, for Python 3.12 on x86-64 Linux, and
                                     kernels of others to be timed beside
    build/gpu-pack/sdist/*.tar.gz    PyCUDA's sources, where its wheel could not be built
    build/gpu-pack/manifest.json     size and SHA-256 of each file

The folder stays below LIMIT_MIB.  PyTorch, JAX, SciPy and CUDA are expected on the GPU machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu.pycuda_wheel import WheelError, build_wheel, loads_driver

ROOT = Path(__file__).resolve().parents[1]
PACK = ROOT / "build" / "gpu-pack"
MANIFEST = "manifest.json"
LIMIT_MIB = 50
PYTHON = "3.12"
PYCUDA = "pycuda>=2025.1"
PEERS = ("liger-kernel>=0.5",)
"""Timed beside polyfuse. Pure Python; what they need themselves, PyTorch and Triton, is there."""
TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6.100")
PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in range(28, 4, -1)),
    *(f"manylinux{n}_x86_64" for n in ("2014", "2010", "1")),
    "linux_x86_64",
)
"""pip takes a tag only if it is named; newer than glibc 2.28 is left out, so that the pack runs widely."""


class PackError(Exception):
    """The pack cannot be made; the message says why."""


def dependencies(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """What polyfuse itself needs."""
    found: list[str] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    return found


def pip(*arguments: str) -> None:
    """Run pip. Raises PackError with its last lines."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise PackError("pip failed:\n" + "\n".join(ended.stderr.strip().splitlines()[-8:]))


def for_target() -> list[str]:
    """pip's options that mean the GPU machine instead of this one."""
    platforms = [a for p in PLATFORMS for a in ("--platform", p)]
    return ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]


def gather(folder: Path, earlier: Path | None) -> str:
    """Fill a folder; returns what became of PyCUDA. `earlier`: a pack whose PyCUDA wheel is used again."""
    wheels = folder / "wheels"
    pip("download", *for_target(), "--dest", str(wheels), *dependencies(), *TOOLS)
    pip("download", "--no-deps", *for_target(), "--dest", str(wheels), *PEERS)
    with TemporaryDirectory() as scratch:
        pip("download", "--no-deps", "--no-binary=pycuda", "--dest", scratch, PYCUDA)
        (sources,) = Path(scratch).iterdir()
        version = sources.name.removeprefix("pycuda-").removesuffix(".tar.gz")
        kept = sorted(earlier.glob(f"wheels/pycuda-{version}-cp312-*.whl")) if earlier else []
        kept = [w for w in kept if loads_driver(w)]
        if kept:
            shutil.copy2(kept[0], wheels)
            found = "wheel, of the earlier pack"
        else:
            found = _wheel_or_sources(sources, folder)
    if "wheel" in found:
        pip("download", *for_target(), "--dest", str(wheels), "--find-links", str(wheels), PYCUDA)
    else:  # its sources declare these, and a build of them needs the rest
        needs = ["pytools>=2011.2", "platformdirs>=2.2.0", "mako", "setuptools", "wheel"]
        pip("download", *for_target(), "--dest", str(wheels), *needs)
    return found


def _wheel_or_sources(sources: Path, folder: Path) -> str:
    try:
        build_wheel(sources, folder / "wheels")
        return "wheel, built here"
    except WheelError as error:
        (folder / "sdist").mkdir()
        shutil.copy2(sources, folder / "sdist")
        return f"sdist, to be built on the GPU machine ({error})"


def check_complete(folder: Path) -> None:
    """Let pip resolve everything from the pack alone. Raises PackError for what is missing."""
    wanted = [*dependencies(), *TOOLS]
    wanted += [PYCUDA] if any(folder.glob("wheels/pycuda-*.whl")) else []
    with TemporaryDirectory() as scratch:
        links = ["--no-index", "--find-links", str(folder / "wheels")]
        pip("download", *for_target(), *links, "--dest", scratch, *wanted)


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_manifest(folder: Path, pycuda: str) -> dict[str, Any]:
    """Describe a filled folder. Raises PackError if it is too large."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)
    total = sum(f.stat().st_size for f in files)
    if total >= LIMIT_MIB * 2**20:
        largest = ", ".join(f.name for f in sorted(files, key=lambda f: -f.stat().st_size)[:3])
        raise PackError(f"the pack has {total / 2**20:.1f} MiB, not below {LIMIT_MIB}; largest: {largest}")
    manifest = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": PYTHON,
        "pycuda": pycuda,
        "bytes": total,
        "files": {
            str(f.relative_to(folder)): {"sha256": digest(f), "bytes": f.stat().st_size} for f in files
        },
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def make_pack(pack: Path, *, fresh: bool = False) -> dict[str, Any]:
    """Gather into `pack`; an earlier pack is replaced only once the new one is complete."""
    pack.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=pack.parent, prefix="gpu-pack-") as scratch:
        folder = Path(scratch) / "pack"
        (folder / "wheels").mkdir(parents=True)
        pycuda = gather(folder, None if fresh else pack)
        check_complete(folder)
        manifest = write_manifest(folder, pycuda)
        shutil.rmtree(pack, ignore_errors=True)
        folder.rename(pack)
    return manifest


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pack and say what to do with it."""
    parser = argparse.ArgumentParser(prog="python -m gpu.pack", description=__doc__)
    parser.add_argument("--out", type=Path, default=PACK, metavar="DIR", help="default: build/gpu-pack")
    parser.add_argument("--fresh", action="store_true", help="build PyCUDA again")
    chosen = parser.parse_args(arguments)
    try:
        manifest = make_pack(chosen.out.resolve(), fresh=chosen.fresh)
    except PackError as error:
        print(error, file=sys.stderr)
        return 1
    for name, about in manifest["files"].items():
        print(f"{about['bytes'] / 2**20:7.2f} MiB  {name}")
    print(f"{manifest['bytes'] / 2**20:7.2f} MiB  in all, below {LIMIT_MIB}; PyCUDA: {manifest['pycuda']}")
    print(f"\nCarry this checkout with {chosen.out} to the GPU machine and run there: make gpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
