"""An operator as a shared library with a C header: `write_library`; as machine code of a GPU: `write_grids`.

A library has variants, as a function has (`driver.open_sizes`): kernels with open sizes, or with known ones.

    softmax, T and H open     rows of up to 128, up to 4096, longer ones; any strides
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import combinations, pairwise
from pathlib import Path
from typing import TypeVar

from polyfuse.checking import open_graph
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cpu.exported import Exported, ExportedVariant, gemm_in
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.cuda.exported import ExportedGrids, GpuVariant
from polyfuse.diagnostics import ArgumentError, DslError, ScheduleError, ToolchainError
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.open_sizes import ROWS, NotOpen, Region, affine, not_open, region, row_sizes, within
from polyfuse.driver.pipeline import Compilation, Watch, clustering_of, planned
from polyfuse.driver.targets import chip, knobs_for
from polyfuse.frontend_dsl.semantics.bind_sizes import check_constraints, check_given
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import ISize
from polyfuse.ir.kernel import PARALLEL_WORK
from polyfuse.ir.layouts import DENSE, Layouts
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.blas_products import Wanted
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import BLAS, Blas, Open, Options
from polyfuse.runtime.cache.disk import package_version
from polyfuse.runtime.cpu.executable import (
    CHUNK_INSTANCES,
    CHUNKS_PER_THREAD,
    FEWEST_CHUNKS,
    FEWEST_IN_SERIES,
)
from polyfuse.runtime.cuda.compiler import compile_cuda
from polyfuse.runtime.toolchain.compiler import build_library

# Hidden names do not meet those of other libraries; a library with threads of its own is never unloaded.
_FLAGS = ("-pthread", "-fvisibility=hidden", "-Wl,-z,nodelete")


@dataclass(frozen=True)
class Request:
    """What a library is made of: a graph, sizes that its kernels know, passes and options."""

    graph: TensorGraph
    text: str
    fixed: Mapping[str, int]
    fusion: LoopFusion | None
    stitching: Stitching | None
    packing: Packing | None
    clustering: Clustering | None
    options: Options
    strides: bool = True
    target: str = "cpu"


def request_of(
    function: Compiled,
    dtypes: Mapping[str, DType | str] | None,
    ranks: Mapping[str, int] | None,
    sizes: Mapping[str, int] | None,
    strides: bool,
    blas: Blas = "never",
) -> Request:
    """What `polyfuse.export` is asked for. Raises ArgumentError PF766 for what cannot be exported."""
    name, signature, (made_for, passes, options, wish) = (
        function.__name__,
        function.signature,
        function.settings,
    )
    if made_for not in ("auto", "cpu", "cuda"):
        message = f"{name} is compiled for {made_for}; what is exported is for the CPU or a GPU"
        raise ArgumentError(message, code="PF766", hint='compile(..., target="cpu") or target="cuda"')
    if signature.is_open:
        hint = "program.op(name).without(...) says it: without() has all of them"
        message = f"{signature.name} has optional tensors, and it is not said which are there"
        raise ArgumentError(message, code="PF766", hint=hint)
    graph = open_graph(function.programs, signature.op, dtypes, ranks, signature.absent or ())
    given = {**wish, **(sizes or {})}
    check_given(graph.name, graph.sizes, {n: 0 if isinstance(v, Open) else v for n, v in given.items()})
    fixed = {n: int(v) for n, v in given.items() if not isinstance(v, Open)}
    target = "cuda" if made_for == "cuda" else "cpu"
    if options.plan_file is not None:
        message = f"{options.plan_file} is for calls; what is exported has sizes that it does not know"
        raise ArgumentError(message, code="PF428", hint="export what is compiled without plan=")
    if blas not in BLAS or (blas == "caller" and target == "cuda"):
        message = f"matrix products of {name} cannot be computed by {blas!r} for {target}"
        hint = 'blas="never": by kernels of ours; blas="caller": by a function of the caller, on the CPU'
        raise ArgumentError(message, code="PF782", hint=hint)
    library: Wanted = "always" if blas == "caller" else "never"
    options = replace(options, library=library, tune="model", tuned=None, compile="now")
    return Request(graph, str(signature), fixed, **passes, options=options, strides=strides, target=target)


def file_in(path: str | os.PathLike[str], name: str, target: str) -> Path:
    """The file of a path: in a folder, or what ends in a slash, one that is called as the operator is.

    Raises ToolchainError PF769 for no path, and for the name of the header that goes beside the file.
    """
    text, ending = os.fspath(path), ".json" if target == "cuda" else ".so"
    found = Path(text)
    if text and (not os.path.basename(text) or found.is_dir()):
        return found / f"{name}{ending}"
    if not text or found.suffix == ".h":
        message = f"the library cannot be written to {text!r}: that is " + (
            "the header beside it" if text else "no path"
        )
        hint = f'as in "{found.with_suffix(ending) if text else name + ending}"'
        raise ToolchainError(message, code="PF769", hint=hint)
    return found


def write_library(request: Request, path: Path) -> tuple[Exported, Path]:
    """Write a library, and its header beside it; the header's path comes back.

    Raises ArgumentError PF766 where sizes have to be known, ToolchainError PF769 where it cannot be written.
    """
    found = exported(request)
    folder = files("polyfuse.runtime.cpu")
    pool = folder.joinpath("pool.cpp").read_text("utf-8")
    parts = [folder.joinpath(n).read_text("utf-8") for n in ("first_fit.h", "cut_steps.h", "exported.h")]
    parts = ["#include <cstring>", *(p.replace("#pragma once\n", "") for p in parts)]
    data = build_library([*found.kernels(), found.calls(pool, parts)], extra_flags=_FLAGS)
    header = path.with_suffix(".h")
    write_files({path: data, header: found.header().encode()})
    return found, header


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write each file whole. Raises ToolchainError PF769."""
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, data)
    except OSError as e:
        message = f"the library cannot be written: {e}"
        raise ToolchainError(
            message, code="PF769", hint="give the path of a file in a folder of yours"
        ) from None


def _write_whole(path: Path, data: bytes) -> None:
    """A process that has the old file loaded keeps it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644 if path.suffix in (".h", ".json", ".cubin") else 0o755)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def exported(request: Request) -> Exported:
    """The variants of a library, and all that its text depends on. Raises ArgumentError PF766."""
    return Exported(
        request.graph,
        request.text,
        package_version(),
        tuple(variants_of(request, _variant)),
        CHUNKS_PER_THREAD,
        FEWEST_CHUNKS,
        FEWEST_IN_SERIES,
        CHUNK_INSTANCES,
        PARALLEL_WORK,
    )


Made = TypeVar("Made")
Maker = Callable[[Request, Region, frozenset[str]], Made]
"""What makes the variant of a region, for inputs that may have any strides."""


def variants_of(request: Request, make: Maker[Made]) -> list[Made]:
    """What is made for each region, in the order in which calls look for theirs.

    Raises ArgumentError PF766."""
    graph = request.graph
    check_constraints(graph, request.fixed)
    names = tuple(n for n in graph.sizes if n not in request.fixed)
    # Whether an index is affine does not depend on the value of a size, but for 0 and 1.
    wanted = affine(graph, names, {**dict.fromkeys(names, 2), **request.fixed})[1]
    if wanted:
        why = not_open(graph, wanted)
        message = f"a library of {graph.name} with any {', '.join(wanted)} cannot be written: {why}"
        given = ", ".join(f"'{n}': 64" for n in wanted)
        raise ArgumentError(message, code="PF766", hint=f"give values, as in sizes={{{given}}}")
    try:
        made = [make(request, r, frozenset()) for r in _regions(request)]
        if turned := _turned(request):
            made.append(make(request, _general(request), turned))
    except NotOpen as error:
        message = f"a library of {graph.name} with open sizes cannot be written: {error}"
        raise ArgumentError(message, code="PF766", hint="give values by sizes=") from None
    return [*made, *_empty(request, make)]


def _turned(request: Request) -> frozenset[str]:
    """Inputs whose strides may be given."""
    tensors = map(request.graph.tensor, request.graph.inputs if request.strides else ())
    return frozenset(t.name for t in tensors if t.role is Role.INPUT and t.shape)


def _general(request: Request) -> Region:
    """All sizes that are not known, rows of any length."""
    if all(n in request.fixed for n in request.graph.sizes):
        return Region(dict(request.fixed))
    return region(request.graph, request.fixed)


def _regions(request: Request) -> Iterator[Region]:
    """Where rows have open lengths, those of short, of longer and of long ones come first."""
    graph, fixed = request.graph, request.fixed
    names = [n for n in graph.sizes if n not in fixed]
    rows = row_sizes(graph) & set(names)
    if rows:
        for low, high in pairwise((0, *ROWS, 2 * ROWS[-1])):
            yield region(graph, fixed, dict.fromkeys(names, high if low else 1))
    if len(rows) != 1:
        yield _general(request)


MOST_EMPTY = 2
"""Sizes of 0 at the same time for which there are kernels."""


def _empty(request: Request, make: Maker[Made]) -> Iterator[Made]:
    """Kernels for sizes of 0, alone and together, where there are results without them."""
    graph = request.graph
    written = [t for t in graph.tensors if t.role in (Role.OUTPUT, Role.INOUT)]
    names = [n for n in graph.sizes if n not in request.fixed]
    for zeros in (z for count in range(1, MOST_EMPTY + 1) for z in combinations(names, count)):
        if all(any(ISize(n) in t.shape for n in zeros) for t in written):
            continue  # no result has an element
        at = replace(request, fixed={**request.fixed, **dict.fromkeys(zeros, 0)})
        with suppress(NotOpen, DslError, ScheduleError, ArgumentError):
            check_constraints(graph, at.fixed)
            yield make(at, _general(at), _turned(request))


def _variant(request: Request, where: Region, strided: frozenset[str]) -> ExportedVariant:
    """The kernels of a region."""
    code = code_of(request, where, strided)
    assert isinstance(code, CpuCode)
    if any(x.library is not None and gemm_in(code.plan, x.library) is None for x in code.plan.launches):
        own = replace(request, options=replace(request.options, library="never"))
        return _variant(own, where, strided)  # BLAS would need a copy
    options = request.options
    flush = options.denormals == "flush"
    return ExportedVariant(where.fixed, where.conditions, code, flush, strided, options.threads)


def code_of(request: Request, where: Region, strided: frozenset[str]) -> CpuCode | CudaCode:
    """The source and the plan of the kernels of a region."""
    graph = within(request.graph, where) if where.open else request.graph
    fusion = request.fusion
    if fusion is not None and strided:
        fusion = replace(fusion, strided=tuple(sorted(strided)))
    made = Compilation(
        graph,
        where.fixed,
        fusion,
        request.options,
        Layouts(strided, {}) if strided else DENSE,
        request.target,
        request.stitching,
        request.packing,
        clustering_of(request.clustering, request.options),
        knobs_for(request.target, request.options),
    )
    return planned(Watch(request.options), made)[1]


# --- machine code of a GPU -------------------------------------------------------------------------------


def write_grids(request: Request, path: Path) -> tuple[ExportedGrids, Path]:
    """Write the description of an operator, `path` with the suffix .json, with header and cubins beside it;
    the header's path comes back.

    The GPU is the one at hand, or the one that options name (`Options.device`).  Raises ArgumentError PF766
    where sizes have to be known, PF780 for what no description can say, ToolchainError PF72x without a
    compiler, PF769 where files cannot be written.
    """
    arch, stem = chip(request.options, "cuda").arch, path.with_suffix("")
    files: dict[bytes, str] = {}

    def variant(at: Request, where: Region, strided: frozenset[str]) -> GpuVariant:
        code = code_of(at, where, strided)
        assert isinstance(code, CudaCode)
        _require_plain(at, code)
        cubin = compile_cuda(code.source, arch, options=at.options).cubin
        name = files.setdefault(cubin, f"{stem.name}.{len(files)}.cubin")
        return GpuVariant(where.fixed, where.conditions, code, cubin, name, strided)

    found = ExportedGrids(
        request.graph, request.text, package_version(), tuple(variants_of(request, variant)), arch
    )
    header = stem.with_suffix(".h")
    contents = {stem.with_name(name): data for data, name in files.items()}
    contents |= {header: found.header().encode(), stem.with_suffix(".json"): found.description().encode()}
    write_files(contents)
    return found, header


def _require_plain(request: Request, code: CudaCode) -> None:
    """Raises ArgumentError PF780 where a call does more than copies on the device and launches."""
    name = request.graph.name
    if any(g.table for g in code.plan.launches):
        message = f"{name} has more arguments than a launch passes, and cannot be exported for a GPU"
        raise ArgumentError(message, code="PF780", hint="export operators that take fewer arrays each")
    if code.checks:
        message = f"{name} is compiled with checked=True, and its checks cannot be exported for a GPU"
        raise ArgumentError(message, code="PF780", hint="compile(..., checked=False)")
