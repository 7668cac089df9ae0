"""Install from the pack what this Python lacks, into a folder of its own; nothing is fetched.

The folder goes on PYTHONPATH.  A virtual environment would not do: where `python3` is itself one, a second
one on top of it does not see its packages, and PyTorch is among them.  Packages that are there stay in use,
unless polyfuse needs a newer one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from gpu.pack import MANIFEST, PACK, ROOT, TOOLS, dependencies, digest

SITE = ROOT / "build" / "gpu-site"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:>=([\d.]+))?")
_NAME = re.compile(r"([A-Za-z0-9_.]+?)-(\d[^-]*)-")


class InstallError(Exception):
    """Something that is needed is neither installed nor in the pack."""


def normal(name: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_version(name: str) -> str | None:
    """The version that this Python has, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing(
    requirements: Sequence[str], version: Callable[[str], str | None] = installed_version
) -> list[str]:
    """Names of the requirements (`name>=1.2`) that are not met."""
    found = []
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        assert match, requirement
        have = version(match[1])
        if have is None or _numbers(have) < _numbers(match[2] or "0"):
            found.append(normal(match[1]))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])


def chosen(
    wheels: Sequence[Path], needed: Sequence[str], version: Callable[[str], str | None] = installed_version
) -> list[Path]:
    """Wheels to install: of what is needed, and of all else that is not installed."""
    names = {w: normal(match[1]) for w in wheels if (match := _NAME.match(w.name))}
    return [w for w, n in names.items() if n in needed or version(n) is None]


def verify(pack: Path) -> None:
    """Compare the pack with its manifest. Raises InstallError."""
    files = json.loads((pack / MANIFEST).read_text(encoding="utf-8"))["files"]
    for name, about in files.items():
        if not (pack / name).is_file() or digest(pack / name) != about["sha256"]:
            raise InstallError(f"{name} in {pack} is missing or damaged: make the pack again")


def environment(search: Sequence[Path]) -> dict[str, str]:
    """Variables of a process that can import what was installed, and what this one can."""
    known = [*map(str, search), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known)}


def install(pack: Path = PACK, site: Path = SITE) -> list[Path]:
    """Folders for PYTHONPATH, so that polyfuse and the tests can be imported. Raises InstallError."""
    needed = missing([*dependencies(), *TOOLS])
    if not (pack / MANIFEST).is_file():
        if needed:
            raise InstallError(
                f"{', '.join(needed)} are not installed for {sys.executable}, and {pack} has no pack: "
                "run `make gpu-pack` where there is a network, and bring build/gpu-pack along"
            )
        return [ROOT]
    if sys.version_info[:2] != (3, 12):
        if needed:
            raise InstallError(
                f"the pack is for Python 3.12; this is {sys.version.split()[0]}, and lacks "
                f"{', '.join(needed)}: name another one with `make gpu GPU_PYTHON=...`"
            )
        return [ROOT]
    verify(pack)
    wheels = chosen(sorted((pack / "wheels").glob("*.whl")), needed)
    key = hashlib.sha256(f"{sys.executable} {[w.name for w in wheels]}".encode()).hexdigest()[:16]
    folder = site / key
    if not folder.is_dir():
        _fill(folder, wheels, pack)
    return [folder, ROOT]


def _fill(folder: Path, wheels: Sequence[Path], pack: Path) -> None:
    """The folder appears once it is complete."""
    making = folder.with_name(folder.name + ".new")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    if wheels:
        _pip(making, *map(str, wheels))
    sources = sorted((pack / "sdist").glob("pycuda-*.tar.gz")) if installed_version("pycuda") is None else []
    for source in sources:
        try:
            _pip(making, "--no-build-isolation", str(source))
        except InstallError as error:
            print(f"PyCUDA could not be built here, the other way to the driver is taken: {error}")
    making.rename(folder)


def _pip(folder: Path, *what: str) -> None:
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), *what]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise InstallError("pip failed: " + "\n".join(ended.stderr.strip().splitlines()[-8:]))
