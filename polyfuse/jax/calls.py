"""Kernels that programs of XLA call: compiled for shapes that are known, registered in C by a name.

A name says the operator, its settings and the shapes, so that it means the same in every process: a program
that JAX keeps on disk finds its kernels, which are registered whenever the program is traced, or an error.
"""

from __future__ import annotations

import ctypes
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.call import CallMemory
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.names import digest
from polyfuse.ir.tensor_graph import Role
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.fast_path import fits, launch_layout
from polyfuse.runtime.cpu.launcher import layout_structure
from polyfuse.runtime.toolchain.compiler import load_shared
from polyfuse.support.processes import ForkLock

TARGET = "polyfuse_call"

_lock = ForkLock()
_kept: dict[str, object] = {}
_library: list[Any] = []


@dataclass(frozen=True)
class Abstract:
    """A shape and a dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Kernels:
    """What XLA has to know: the name, results with what inout parameters become, which of these lie in the
    memory of which argument."""

    name: str
    results: tuple[Abstract, ...]
    aliases: Mapping[int, int]


def kernels(function: Compiled, given: Mapping[str, Abstract], sizes: Mapping[str, int]) -> Kernels:
    """The kernels for arguments of these shapes and types, registered under their name.

    Raises what a call raises for arguments that do not fit.
    """
    told = [f"{n}:{a.dtype}{list(a.shape)}" for n, a in given.items()]
    full = ";".join(
        [function.signature.name, digest(function), *told, *(f"{n}={v}" for n, v in sizes.items())]
    )
    # Their pages are never touched.
    arrays = {n: np.empty(a.shape, a.dtype) for n, a in given.items()}
    call = function.prepared(tuple(arrays.values()), sizes, None)
    instance = call.instance
    inout = [t.name for t in instance.inputs if t.role is Role.INOUT]
    results = [Abstract(shape, np.dtype(t.dtype.numpy)) for t, shape in instance.outputs]
    results += [given[n] for n in inout]
    names = [t.name for t in instance.inputs]
    aliases = {names.index(n): len(instance.outputs) + k for k, n in enumerate(inout)}
    with _lock:
        if full not in _kept:
            _kept[full] = _register(full, call)
    return Kernels(full, tuple(results), aliases)


def _register(name: str, call: CallMemory) -> object:
    instance = call.instance
    executable = instance.built.executable
    names = [t.name for t in instance.inputs]
    args = [call.given.values[n] for n in names]
    turned = [call.arrays[n] for n in names]
    if not isinstance(executable, CpuExecutable) or not fits(executable, names, turned):
        message = f"{instance.built.compilation.graph.name} cannot be called from XLA with these options"
        raise ArgumentError(message, code="PF807", hint='target="cpu", without checked=True')
    results = [(t.name, shape) for t, shape in instance.outputs]
    layout = launch_layout(executable, names, args, turned, results)
    structure, parts = layout_structure(layout)
    _handler().polyfuse_register(name.encode(), ctypes.byref(structure))
    return structure, parts, layout, executable


def _handler() -> Any:
    """The library with the function that XLA calls, compiled with the headers of the installed JAX."""
    if not _library:
        own = f"// jaxlib {jax.lib.__version__}\n"
        own += importlib.resources.files("polyfuse.jax").joinpath("handler.cpp").read_text("utf-8")
        folder = importlib.resources.files("polyfuse.runtime.cpu")
        for part in ("launcher.h", "first_fit.h", "cut_steps.h", "expressions.h"):
            text = folder.joinpath(part).read_text("utf-8").replace("#pragma once\n", "")
            own = own.replace(f'#include "{part}"\n', text)
        library = load_shared(own, extra_flags=(f"-I{jax.ffi.include_dir()}", "-std=c++17"))
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.polyfuse_call), platform="cpu")
        _library.append(library)
    return _library[0]
