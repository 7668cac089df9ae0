"""Who may import whom, read from the sources: imports inside functions count as well."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
from pace import pace
from package_sources import ROOT, Import, Module, imports, modules

LOW = {"source", "diagnostics", "options", "gpu_plan", "decisions", "support.processes"}
EVERYTHING = {"*"}
# What every pass of code generation may use.
OF_LOOPS = {
    "ir",
    "cost.cpu_tables",
    "codegen.analysis",
    "codegen.function",
    "codegen.c_printer",
    "codegen.math",
    "codegen.passes",
}

# Package or module -> what of polyfuse it may import, besides itself; the longest prefix counts.
MAY_IMPORT: dict[str, set[str]] = {
    "source": set(),
    "ir.dtypes": set(),
    "diagnostics": {"source"},
    "gpu_plan": {"diagnostics", "source"},
    "options": {"source", "diagnostics", "gpu_plan", "support.progress"},
    "decisions": {"source", "diagnostics"},
    "support": LOW,
    "support.progress": set(),
    "ir": LOW,
    "grammars": set(),
    "frontend_dsl": LOW | {"ir", "grammars"},
    "poly": LOW | {"ir"},
    "cost": LOW | {"ir", "poly"},
    "autodiff": LOW | {"ir", "frontend_dsl", "poly"},
    "layers": LOW | {"ir", "poly", "cost"},
    "codegen": LOW | OF_LOOPS | {"poly.ast_build"},
    "codegen.analysis": LOW | OF_LOOPS,
    "codegen.transforms": LOW | OF_LOOPS,
    "codegen.math": LOW | OF_LOOPS | {"codegen.transforms.strength_reduction"},
    "codegen.common_passes": LOW | OF_LOOPS | {"codegen.transforms", "poly.ast_build"},
    "codegen.cpu": LOW | OF_LOOPS | {"codegen", "poly.ast_build"},
    "codegen.cpu.loop_seconds": LOW | {"ir", "cost", "codegen"},
    "codegen.cuda": LOW
    | OF_LOOPS
    | {
        "codegen.addresses",
        "codegen.decisions",
        "codegen.transforms",
        "codegen.common_passes",
        "codegen.cpu",
        "codegen.interface",
        "codegen.line_map",
        "poly.ast_build",
        "poly.barriers",
    },
    "runtime": LOW | {"ir", "codegen", "support"},
    "runtime.interpreter.program": LOW | {"ir", "poly.ast_build"},
    "visualize": LOW | {"cost", "ir", "poly"},
    "torch": EVERYTHING,
    "driver": EVERYTHING,
    "driver.lowering": LOW | {"ir", "cost", "layers"},
    "driver.feedback": LOW
    | {"ir", "poly", "cost", "layers", "driver.lowering", "codegen.cpu.loop_seconds"}
    | {"runtime.machine.stopwatch", "runtime.cache.plans"},
    "driver.parallel": LOW | {"ir", "driver.lowering", "driver.feedback", "support", "runtime.cache.plans"},
    "driver.parallel_helper": LOW
    | {
        "ir",
        "poly",
        "driver.lowering",
        "driver.feedback",
        "driver.parallel",
        "support",
        "runtime.cache.plans",
    },
    "driver.machine_work": LOW | {"ir", "cost", "runtime"},
    "driver.resources": LOW | {"ir", "cost", "runtime", "driver.machine_work"},
    "tuning": EVERYTHING,
    "learn": EVERYTHING,
    "tuning.trial": LOW | {"ir", "codegen", "runtime", "support"},
    "api": EVERYTHING,
    "forms": EVERYTHING,
    "gradient_pairs": LOW | {"autodiff", "api"},
    "builder": LOW | {"api", "frontend_dsl"},
    "interop": LOW | {"ir", "api", "runtime.cuda.arguments"},
    "jax": EVERYTHING,
    "interop.by_hand": LOW | {"gradient_pairs", "frontend_dsl"},
    "interop.array_families": LOW | {"ir", "runtime.cpu", "runtime.cuda"},
    "explore": EVERYTHING,
    "cli": LOW
    | {
        "__init__",
        "api",
        "forms",
        "checking",
        "driver.targets",
        "fixes",
        "library",
        "lsp",
        "runtime",
        "support",
    }
    | {"explore.server"}
    | {"frontend_dsl"},
    "checking": LOW | {"ir", "frontend_dsl", "poly", "library", "lints"},
    "fixes": LOW | {"frontend_dsl"},
    "highlight": LOW | {"frontend_dsl"},
    "lsp": LOW | {"__init__", "ir", "frontend_dsl", "checking", "fixes", "library"},
    "lints": LOW | {"ir", "frontend_dsl", "poly"},
    "library": LOW | {"frontend_dsl"},
    "__init__": EVERYTHING,  # the index of what users import; loaded when used
    "__main__": {"cli"},
}

# Distribution -> the modules that may import it (prefixes).
ONLY_IN: dict[str, tuple[str, ...]] = {
    "lark": ("polyfuse.frontend_dsl",),
    "islpy": ("polyfuse.poly",),
    "pycuda": ("polyfuse.runtime.cuda",),
    "cuda": ("polyfuse.runtime.cuda",),
    "torch": ("polyfuse.interop", "polyfuse.torch", "polyfuse.learn.train", "benchmarks"),
    "onnx": ("polyfuse.interop", "benchmarks"),
    "jax": ("polyfuse.jax", "benchmarks"),
    "typer": ("polyfuse.cli",),
    "pygments": ("polyfuse.highlight",),
    "pygls": ("polyfuse.lsp",),
    "lsprotocol": ("polyfuse.lsp",),
    "starlette": ("polyfuse.explore.server",),
    "uvicorn": ("polyfuse.explore.server",),
    "pytest": (),
}

NOT_AT_IMPORT = (
    "islpy",
    "lark",
    "torch",
    "onnx",
    "jax",
    "pycuda",
    "cuda",
    "typer",
    "rich",
    "pygments",
    "pygls",
    "starlette",
    "uvicorn",
    "scipy",
    "matplotlib",
)
IMPORT_LIMIT_S = 0.150

OURS = {m.name: m for m in (*modules(), *modules(ROOT / "grammars", "polyfuse.grammars"))}


def _resolve(target: str) -> str | None:
    """The module of ours that an import asks for; None for other people's."""
    while target not in OURS:
        target, _, last = target.rpartition(".")
        if not last:
            return None
    return target


def _key(name: str) -> str:
    """The row of the table for a module: itself, or the nearest package around it that has one."""
    local = name.partition(".")[2] or "__init__"
    while local not in MAY_IMPORT and "." in local:
        local = local.rpartition(".")[0]
    return local


def _is_allowed(importer: str, imported: str) -> bool:
    local = imported.partition(".")[2] or "__init__"
    allowed = MAY_IMPORT.get(_key(importer), set())
    if imported == "polyfuse.ir.dtypes":
        return True
    if imported.rpartition(".")[0] == importer.rpartition(".")[0] or _key(imported) == _key(importer):
        return True
    prefixes = {local.rsplit(".", k)[0] for k in range(local.count(".") + 1)}
    return "*" in allowed or not allowed.isdisjoint(prefixes)


@cache
def _edges(module: Module) -> list[tuple[Import, str]]:
    found = [(i, _resolve(i.target)) for i in imports(module)]
    return [(i, name) for i, name in found if name is not None and name != module.name]


def test_every_module_has_a_row() -> None:
    unknown = sorted({m.name for m in modules() if _key(m.name) not in MAY_IMPORT})
    assert not unknown, f"not in the table of docs/architecture.md: {unknown}"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_imports_follow_the_table(module: Module) -> None:
    edges = dict.fromkeys((i.line, name) for i, name in _edges(module))
    wrong = [f"{module.where}:{k} imports {n}" for k, n in edges if not _is_allowed(module.name, n)]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_their_packages() -> None:
    wrong = []
    others = [m for f in ("benchmarks", "examples") for m in modules(ROOT / f, f)]
    for module in (*modules(), *others):
        for i in imports(module):
            allowed = ONLY_IN.get(i.target.partition(".")[0])
            if allowed is not None and not module.name.startswith(allowed or ("nowhere",)):
                wrong.append(f"{module.where}:{i.line} imports {i.target}")
    assert not wrong, "\n".join(wrong)


def test_no_pass_imports_another() -> None:
    """A transformation is a module or a package of `codegen/transforms`."""

    def of(name: str) -> str | None:
        parts = name.split(".")
        return parts[3] if parts[1:3] == ["codegen", "transforms"] and len(parts) > 3 else None

    found = [
        f"{m.where}:{i.line} imports {name}"
        for m in modules()
        for i, name in _edges(m)
        if of(m.name) and of(name) and of(m.name) != of(name)
    ]
    assert not found, "\n".join(found)


def test_no_import_cycles() -> None:
    """Imports inside functions count: they hide a cycle, they do not remove it."""
    needs = {name: sorted({n for i, n in _edges(m) if not i.typing_only}) for name, m in OURS.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in needs[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in needs:
        visit(name, ())


def _python(code: str, **env: str) -> str:
    """What a fresh interpreter prints."""
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_needs_no_libraries() -> None:
    loaded = _python("import sys, polyfuse; print(*{m.partition('.')[0] for m in sys.modules})").split()
    assert "polyfuse" in loaded
    assert not set(loaded) & set(NOT_AT_IMPORT)


def test_import_needs_no_compiler() -> None:
    code = (
        "import os, subprocess\n"
        "def refuse(*a, **k): raise AssertionError('a process was started')\n"
        "subprocess.Popen.__init__ = os.system = os.posix_spawn = refuse\n"
        "import polyfuse"
    )
    _python(code, PATH="/nonexistent", CXX="/nonexistent/compiler", CUDA_HOME="/nonexistent")


def test_import_time() -> None:
    """Processor time, the best of five: what the machine does besides must not count."""
    code = "import time, numpy; t = time.process_time(); import polyfuse; print(time.process_time() - t)"
    best = min(float(_python(code)) for _ in range(5))
    assert best < IMPORT_LIMIT_S * pace(), f"import polyfuse takes {best * 1e3:.0f} ms beyond numpy"
