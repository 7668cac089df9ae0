"""What users install: the grammar, the standard library and the sources of the run time are in the wheel."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (
    "*.py",
    "*.pf",
    "*.lark",
    "*.h",
    "*.cpp",
    "*.md",
    "*.npz",
    "py.typed",
    "explore/static/*",
    "explore/bundle/*",
)

# Runs in isolated mode, far from the checkout; the wheel's folder is the first argument.
PROBE = """
import importlib.resources, json, pathlib, sys
target = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(target))
import polyfuse
from polyfuse.cli import pages
from polyfuse.frontend_dsl.syntax import grammar_file
from polyfuse.frontend_dsl.syntax.parse import parse_file, parse_text
program = parse_text("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }")
library = importlib.resources.files("polyfuse") / "stdlib"
names = sorted(p.name for p in library.iterdir() if p.name.endswith(".pf"))
for name in names:
    parse_file(str(library / name))
own = [m.__file__ for n, m in sys.modules.items() if n.partition(".")[0] == "polyfuse"]
print(json.dumps({
    "grammar": grammar_file.grammar_text(),
    "ops": [op.name for op in program.ops],
    "page": pages.page("PF402"),
    "errors": list(pages.titles()),
    "stdlib": names,
    "strangers": [f for f in own if not pathlib.Path(f).is_relative_to(target)],
    "version": polyfuse.__version__,
}))
"""


def _copy_of_the_sources(folder: Path) -> Path:
    """The package's sources alone: building in the checkout would leave files there."""
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("polyfuse", "grammars", "docs/errors.d"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _isolation() -> list[str]:
    """No download of setuptools where a new enough one is installed (the build backend of pyproject.toml)."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return ["--no-build-isolation"] if int(version.partition(".")[0]) >= 77 else []


def _wheel(source: Path, folder: Path) -> Path:
    options = ["--quiet", "--no-deps", *_isolation(), "--wheel-dir", folder]
    _run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=folder)
    (wheel,) = folder.glob("polyfuse-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    return _wheel(_copy_of_the_sources(folder), folder)


def _package_files(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as z:
        return {n for n in z.namelist() if ".dist-info/" not in n}


def test_wheel_holds_every_source(wheel: Path) -> None:
    """A package that pyproject.toml does not list, or a kind of file it does not, would be missing."""
    folders = {
        "polyfuse": "polyfuse",
        "grammars": "polyfuse/grammars",
        "docs/errors.d": "polyfuse/error_pages",
    }
    expected = {
        str(Path(inside) / p.relative_to(ROOT / folder))
        for folder, inside in folders.items()
        for pattern in SHIPPED
        for p in (ROOT / folder).rglob(pattern)
    }
    assert _package_files(wheel) == expected


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as z:
        z.extractall(target)
    found = json.loads(_run(sys.executable, "-I", "-c", PROBE, target, cwd=tmp_path))
    assert found["strangers"] == [], "modules of the checkout were imported"
    assert found["ops"] == ["twice"]
    assert found["page"] == (ROOT / "docs/errors.d/PF402.md").read_text(encoding="utf-8").removeprefix("# ")
    assert found["errors"] == sorted(p.stem for p in (ROOT / "docs/errors.d").glob("*.md"))
    assert found["grammar"] == (ROOT / "grammars" / "polyfuse.lark").read_text(encoding="utf-8")
    assert found["stdlib"] == sorted(p.name for p in (ROOT / "polyfuse" / "stdlib").glob("*.pf"))
    assert found["stdlib"], "the standard library is empty"
    assert found["version"] in wheel.name


@pytest.mark.slow
def test_source_distribution_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = _copy_of_the_sources(tmp_path)
    isolation = ["--no-isolation"] if _isolation() else []
    _run(sys.executable, "-m", "build", "--sdist", *isolation, "--outdir", tmp_path, source, cwd=tmp_path)
    (archive,) = tmp_path.glob("polyfuse-*.tar.gz")
    with tarfile.open(archive) as t:
        t.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert _package_files(_wheel(unpacked, tmp_path)) == _package_files(wheel)


@pytest.mark.slow
def test_installs_into_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """With its dependencies, as `pip install polyfuse` would."""
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    (package,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    found = json.loads(_run(python, "-I", "-c", PROBE, package, cwd=tmp_path))
    assert found["strangers"] == []
    assert found["ops"] == ["twice"]
