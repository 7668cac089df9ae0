"""An operator as machine code of a GPU, with a description of its launches and a C header: `write_grids`."""

from __future__ import annotations

from pathlib import Path

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.cuda.exported import ExportedGrids, GpuVariant
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.export import Request, code_of, variants_of, write_files
from polyfuse.driver.open_sizes import Region
from polyfuse.driver.targets import chip
from polyfuse.runtime.cache.disk import package_version
from polyfuse.runtime.cuda.compiler import compile_cuda


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
