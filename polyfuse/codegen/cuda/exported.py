"""An operator as machine code of a GPU with a description of its launches: the description, and a C header.

    softmax.json      variants: conditions on sizes, buffers, launches with grids as expressions of sizes
    softmax.0.cubin   the machine code of a variant
    softmax.h         functions of C that read the cubins and launch them by CUDA's driver

The header has all it needs but CUDA's driver: what the description says is C in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.interface import (
    Interface,
    SizeText,
    by_value,
    declared,
    in_comment,
    listed,
    listed_constraint,
    status_codes,
    status_meaning,
)
from polyfuse.ir.index_expr import ISize, product
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.ir.tensor_graph import Constraint, Role

ALIGNMENT = 256
"""Of the workspace, and of each temporary in it."""
BARRIER_BYTES = 8


@dataclass(frozen=True)
class GpuVariant:
    """Kernels for sizes of a region, as machine code in a file; `strided` inputs may have any strides."""

    fixed: Mapping[str, int]
    conditions: tuple[Constraint, ...]
    code: CudaCode
    cubin: bytes
    file: str
    strided: frozenset[str] = frozenset()

    @property
    def plan(self) -> GridPlan:
        return self.code.plan

    def __str__(self) -> str:
        told = [*map(str, self.conditions), *(f"{n} = {v}" for n, v in self.fixed.items())]
        text = ", ".join(told) or "any sizes"
        return f"{text}, any strides" if self.strided else text

    def described(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "about": str(self),
            "cubin": self.file,
            "sizes": dict(self.fixed),
            "conditions": [listed_constraint(c) for c in self.conditions],
            "strided": sorted(self.strided),
            "open": list(self.plan.sizes),
            "buffers": [_buffer(b) for b in self.plan.buffers],
            "alignment": list(self.plan.alignment),
            "copied": list(self.plan.copied),
            "launches": [_launch(g) for g in self.plan.launches],
        }


def _buffer(b: PlanBuffer) -> dict[str, object]:
    found: dict[str, object] = {"name": b.name, "dtype": b.dtype.name, "kind": b.kind.value}
    found |= {"shape": [listed(e) for e in b.shape], "strided": b.strided, "alias": b.alias, "live": b.live}
    return found


def _launch(g: GridLaunch) -> dict[str, object]:
    return {
        "function": g.function,
        "kernel": g.kernel,
        "blocks": listed(g.blocks),
        "threads": list(g.threads),
        "shared": g.shared_bytes,
        "dynamic": g.dynamic_bytes,
        "cooperative": g.cooperative,
        "arguments": [_argument(a) for a in g.arguments],
    }


def _argument(a: Argument) -> tuple[str, str, int]:
    return a.passing.value, a.name, a.dim


@dataclass(frozen=True)
class ExportedGrids(Interface):
    """An operator's kernels for GPUs of an architecture."""

    variants: tuple[GpuVariant, ...]
    arch: str

    reserved: ClassVar[frozenset[str]] = frozenset({"kernels", "workspace", "stream"})

    def description(self) -> str:
        """The JSON file."""
        variants = [v.described() for v in self.variants]
        about = {**self.described(), "target": "cuda", "arch": self.arch, "variants": variants}
        return json.dumps(about, indent=1) + "\n"

    # --- the header ---------------------------------------------------------------------------------------

    def header(self) -> str:
        """Declarations and definitions, all static."""
        name, guard = self.symbol, f"{self.symbol.upper()}_H"
        meaning = status_meaning("no memory", "index", "no blas")
        variants = "\n".join(f" *   {v}" for v in self.variants)
        functions = sum(len(_functions(v)) for v in self.variants)
        sizes, arguments = self.sizes_and_arguments()
        return f"""\
/* {in_comment(self.text)}
 *
 * Written by polyfuse {self.version} for {self.arch}. Kernels for:
{in_comment(variants)}
 *
 * Arrays lie on the device, dense, row by row, and apart from those that are written. Strides of an input may
 * be given, in elements; NULL means that it is dense. bool is uint8_t, f16 and bf16 are their bits.
 * Matrix products are computed by kernels of these files. A call returns:
{meaning}
 *   {"POLYFUSE_DRIVER + k":22} CUDA's driver failed with the CUresult k
 */
#ifndef {guard}
#define {guard}
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

{status_codes()}
#ifndef POLYFUSE_CUDA_HELPERS
#define POLYFUSE_CUDA_HELPERS
{_HELPERS}#endif

typedef struct {{
  CUmodule module[{len(self.variants)}];
  CUfunction function[{max(1, functions)}];
}} {name}_kernels;

{self._load()}
static inline int {name}_unload({name}_kernels* kernels) {{
  int failed = 0;
  for (int k = 0; k < {len(self.variants)}; ++k) {{
    if (!kernels->module[k]) continue;
    const CUresult r = cuModuleUnload(kernels->module[k]);
    if (r && !failed) failed = POLYFUSE_DRIVER + (int)r;
    kernels->module[k] = NULL;
  }}
  return failed;
}}

{self._variants()}
/* Bytes of workspace that a call at these sizes needs at most, aligned to {ALIGNMENT}; -1: no such sizes. */
{self._room(sizes)};

/* Queues the operator on a stream, in the current context. `workspace` is the call's until that is done. */
{self._head(sizes, arguments)};

{self._room(self._numbered()[0])} {{
{_indented(self._workspace())}
}}

{self._head(*self._numbered())} {{
{_indented(self._call())}
}}
#endif
"""

    def _load(self) -> str:
        """The function that reads the machine code."""
        numbers, body = count(), []
        for k, v in enumerate(self.variants):
            body.append(f'if ((r = polyfuse_module(kernels->module + {k}, folder, "{v.file}"))) return r;')
            for function, dynamic in _functions(v).items():
                found = f'kernels->function + {next(numbers)}, kernels->module[{k}], "{function}", {dynamic}'
                body.append(f"if ((r = polyfuse_function({found}))) return r;")
        return f"""\
/* Reads the cubins, which lie in a folder, into the context that is current. */
static inline int {self.symbol}_load({self.symbol}_kernels* kernels, const char* folder) {{
  int r = 0;
  for (int k = 0; k < {len(self.variants)}; ++k) kernels->module[k] = NULL;
{_indented(body)}
  return r;
}}
"""

    def _head(self, sizes: Sequence[str], arguments: Sequence[str]) -> str:
        """How the operator's function begins, with these names."""
        parts = [f"const {self.symbol}_kernels* kernels", *(f"int64_t {n}" for n in sizes)]
        for t, name in zip(self.arguments, arguments, strict=True):
            parts.append(declared(t, name) if by_value(t) else f"CUdeviceptr {name}")
            if t in self.turned:
                parts.append(f"const int64_t* {name}_strides")
        head = f"static inline int {self.symbol}("
        parts += ["CUdeviceptr workspace", "CUstream stream"]
        return head + (",\n" + " " * len(head)).join(parts) + ")"

    def _room(self, sizes: Sequence[str]) -> str:
        """The same of the function that tells how large the workspace is."""
        listed_sizes = ", ".join([f"int64_t {n}" for n in sizes] or ["void"])
        return f"static inline int64_t {self.symbol}_workspace({listed_sizes})"

    def _numbered(self) -> tuple[list[str], list[str]]:
        """Names that no local variable has, whatever the program's are."""
        return [f"s{k}" for k in range(len(self.graph.sizes))], [f"a{k}" for k in range(len(self.arguments))]

    def _checked(self, failed: str) -> Iterator[str]:
        """What an operator asks of sizes."""
        sizes, _ = self._numbered()
        text = SizeText(self.graph.sizes, prefix="polyfuse_")
        yield f"const int64_t s[] = {{{', '.join(sizes) or '0'}}};"
        yield "(void)s;"
        yield from (f"if (s[{k}] < 0) return {failed};" for k in range(len(sizes)))
        yield from (f"if (!({text.condition(c)})) return {failed};" for c in self.graph.constraints)
        for t in self.arguments:
            extents = [text.of(e) for e in t.shape if not isinstance(e, ISize)]
            yield from (f"if ({e} < 0) return {failed};" for e in extents)

    def _workspace(self) -> Iterator[str]:
        yield from self._checked("-1")
        yield "int64_t most = 0;"
        for v in self.variants:
            offset = _Places(v, SizeText(self.graph.sizes, v.fixed, "polyfuse_")).end
            if offset != "0":
                yield f"if ({self._has(v, dense=False)}) most = polyfuse_most_of(most, {offset});"
        yield "return most;"

    def _has(self, v: GpuVariant, *, dense: bool = True) -> str:
        """Does a variant have the sizes?"""
        text = SizeText(self.graph.sizes, prefix="polyfuse_")
        known = [f"s[{text.places[n]}] == {value}" for n, value in v.fixed.items()]
        known += [text.condition(c) for c in v.conditions]
        known += ["dense"] if dense and not v.strided else []
        return " && ".join(known) or "1"

    def _call(self) -> Iterator[str]:
        _, names = self._numbered()
        text = SizeText(self.graph.sizes, prefix="polyfuse_")
        yield from self._checked("POLYFUSE_SIZES")
        yield "int dense = 1;"
        strides = ["NULL"] * len(names)
        for k, (t, name) in enumerate(zip(self.arguments, names, strict=True)):
            if t in self.turned:
                yield f"const int64_t e{k}[] = {{{', '.join(map(text.of, t.shape))}}};"
                yield f"int64_t t{k}[{len(t.shape)}];"
                yield f"dense = polyfuse_strides({name}_strides, e{k}, {len(t.shape)}, t{k}) && dense;"
                strides[k] = f"t{k}"
        yield f"const int64_t* const st[] = {{{', '.join(strides) or 'NULL'}}};"
        numbers = ["0" if by_value(t) else n for t, n in zip(self.arguments, names, strict=True)]
        values = [f"&{n}" if by_value(t) else "NULL" for t, n in zip(self.arguments, names, strict=True)]
        yield f"const CUdeviceptr a[] = {{{', '.join(numbers) or '0'}}};"
        yield f"const void* const n[] = {{{', '.join(values) or 'NULL'}}};"
        written = [t for t in self.arguments if t.role is not Role.INPUT]
        empty = [" || ".join([f"{text.of(e)} == 0" for e in t.shape]) or "0" for t in written]
        yield f"if ({' && '.join(f'({e})' for e in empty) or '1'}) return POLYFUSE_DONE;"
        for k, v in enumerate(self.variants):
            has = " && ".join([self._has(v), *self._aligned(v)])
            call = f"{self.symbol}_run_{k}(kernels, s, a, n, st, workspace, stream)"
            yield f"if ({has}) return {call};"
        yield "(void)dense;"
        yield "return POLYFUSE_NO_KERNELS;"

    def _aligned(self, v: GpuVariant) -> Iterator[str]:
        """Addresses as vectors of kernels need them."""
        for name, nbytes in v.plan.alignment:
            place = self._place(next(b for b in v.plan.buffers if b.name == name))
            if place is not None:
                yield f"a[{place}] % {nbytes} == 0"

    def _place(self, b: PlanBuffer) -> int | None:
        """Which argument a buffer is, or lies in the place of."""
        names = [t.name for t in self.arguments]
        name = b.name if b.name in names else b.alias
        return names.index(name) if name in names else None

    # --- variants -----------------------------------------------------------------------------------------

    def _variants(self) -> str:
        first, found = 0, []
        for k, v in enumerate(self.variants):
            head = (
                f"static inline int {self.symbol}_run_{k}(const {self.symbol}_kernels* kernels, "
                "const int64_t* s,\n    const CUdeviceptr* a, const void* const* n, "
                "const int64_t* const* st, CUdeviceptr workspace, CUstream stream) {"
            )
            found.append("\n".join([head, _indented(self._run(v, first)), "}", ""]))
            first += len(_functions(v))
        return "\n".join(found)

    def _run(self, v: GpuVariant, first: int) -> Iterator[str]:
        """All launches of a variant, whose functions begin at `first`."""
        plan = v.plan
        text = SizeText(self.graph.sizes, v.fixed, "polyfuse_")
        places, numbers = _Places(v, text), _functions(v)
        yield "int r = 0;"
        yield "(void)kernels, (void)s, (void)a, (void)n, (void)st, (void)workspace, (void)stream;"
        yield from places.declared()
        if places.end != "0":
            yield "if (!workspace) return POLYFUSE_NO_WORKSPACE;"
        if places.header:
            zeros = f"workspace, 0, {places.header}, stream"
            yield f"if ((r = (int)cuMemsetD8Async({zeros}))) return POLYFUSE_DRIVER + r;"
        for name in plan.copied:
            b = next(b for b in plan.buffers if b.name == name)
            copy = f"{places.address(b)}, a[{self._place(b)}], (size_t)({places.nbytes(b)}), stream"
            yield f"if ((r = (int)cuMemcpyDtoDAsync({copy}))) return POLYFUSE_DRIVER + r;"
        for j, g in enumerate(plan.launches):
            yield "{"
            for k, a in enumerate(g.arguments):
                yield f"  {self._cell(plan, places, text, a, f'c{k}', j)}"
            cells = ", ".join(self._parameter(plan, a, f"c{k}") for k, a in enumerate(g.arguments))
            yield f"  void* const p[] = {{{cells}}};"
            what = (
                f"kernels->function[{first + [*numbers].index(g.function)}], {text.of(g.blocks)}, "
                f"{g.threads[0]}, {g.threads[1]}, {g.dynamic_bytes}, {int(g.cooperative)}, p, stream"
            )
            yield f"  if ((r = polyfuse_launch({what}))) return r;"
            yield "}"
        yield "return r;"

    def _cell(
        self, plan: GridPlan, places: _Places, text: SizeText, a: Argument, name: str, launch: int
    ) -> str:
        """The declaration of a launch's argument."""
        if a.passing is Passing.SIZE:
            return f"const int64_t {name} = s[{text.places[a.name]}];"
        if a.passing is Passing.BARRIER:
            return f"const CUdeviceptr {name} = workspace + {places.barriers[launch]};"
        b = next(b for b in plan.buffers if b.name == a.name)
        if a.passing is Passing.VALUE:
            return f"const void* const {name} = n[{self._place(b)}];"
        if a.passing is Passing.STRIDE:
            owner = next(x for x in plan.buffers if x.name == (b.alias or b.name))
            place = self._place(owner)
            if owner.strided and place is not None and self.arguments[place] in self.turned:
                return f"const int64_t {name} = st[{place}][{a.dim}];"
            return f"const int64_t {name} = {text.of(product(b.shape[a.dim + 1 :]))};"
        if places.has(b):
            return f"const CUdeviceptr {name} = {places.address(b)};"
        return f"const CUdeviceptr {name} = a[{self._place(b)}];"

    def _parameter(self, plan: GridPlan, a: Argument, name: str) -> str:
        return f"(void*){name}" if a.passing is Passing.VALUE else f"(void*)&{name}"


class _Places:
    """Where barriers, temporaries and entry values lie in the workspace, one behind the other."""

    def __init__(self, v: GpuVariant, text: SizeText) -> None:
        self._text, plan = text, v.plan
        states = [j for j, g in enumerate(plan.launches) if _has_barrier(g)]
        self.barriers = {j: BARRIER_BYTES * k for k, j in enumerate(states)}
        self.header = BARRIER_BYTES * len(states)
        self._own = [b for b in plan.buffers if b.kind is Kind.WORKSPACE or b.name in plan.copied]

    @property
    def _start(self) -> int:
        return -(-self.header // ALIGNMENT) * ALIGNMENT

    def has(self, b: PlanBuffer) -> bool:
        """Is it in the workspace?"""
        return b in self._own

    def nbytes(self, b: PlanBuffer) -> str:
        """Of a buffer."""
        return f"polyfuse_most_of(0, {self._text.of(product(b.shape))}) * {b.dtype.bytes}"

    def _room(self, b: PlanBuffer) -> str:
        return f"({self.nbytes(b)} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"

    @property
    def end(self) -> str:
        """Bytes of the workspace."""
        first = [str(self._start)] if self._start or not self._own else []
        return " + ".join([*first, *map(self._room, self._own)])

    def declared(self) -> Iterator[str]:
        """Offsets of all buffers."""
        before = str(self._start)
        for k, b in enumerate(self._own):
            yield f"const int64_t w{k} = {before};"
            before = f"w{k} + {self._room(b)}"

    def address(self, b: PlanBuffer) -> str:
        """Of a buffer."""
        return f"workspace + (CUdeviceptr)w{self._own.index(b)}"


def _has_barrier(g: GridLaunch) -> bool:
    return any(a.passing is Passing.BARRIER for a in g.arguments)


def _functions(v: GpuVariant) -> dict[str, int]:
    """Names of functions in order, with the shared memory that launches ask for."""
    return {g.function: g.dynamic_bytes for g in v.plan.launches}


def _indented(lines: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


_HELPERS = """\
static inline int64_t polyfuse_floor_div(int64_t a, int64_t b) {
  return b ? a / b - ((a % b != 0) && ((a < 0) != (b < 0))) : -1;
}
static inline int64_t polyfuse_floor_mod(int64_t a, int64_t b) {
  return b ? a - b * polyfuse_floor_div(a, b) : -1;
}
static inline int64_t polyfuse_least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t polyfuse_most_of(int64_t a, int64_t b) { return a < b ? b : a; }

/* The strides of an array: those that were given, or dense ones; is it dense? */
static inline int polyfuse_strides(const int64_t* given, const int64_t* extents, int rank, int64_t* strides) {
  int dense = 1, empty = 0;
  int64_t step = 1;
  for (int d = rank; d-- > 0; step *= extents[d]) {
    strides[d] = given ? given[d] : step;
    dense = dense && (strides[d] == step || extents[d] == 1);
    empty = empty || extents[d] == 0;
  }
  return dense || empty;
}

static inline int polyfuse_module(CUmodule* module, const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file) return POLYFUSE_DRIVER + (int)CUDA_ERROR_FILE_NOT_FOUND;
  char* data = NULL;
  size_t size = 0, got = 0;
  do {
    char* more = (char*)realloc(data, size += 65536);
    if (!more) break;
    data = more;
    got += fread(data + got, 1, size - 1 - got, file);
  } while (got == size - 1);
  fclose(file);
  if (data) data[got] = 0;
  const CUresult r = data ? cuModuleLoadData(module, data) : CUDA_ERROR_OUT_OF_MEMORY;
  free(data);
  return r ? POLYFUSE_DRIVER + (int)r : 0;
}

static inline int polyfuse_function(CUfunction* function, CUmodule module, const char* name, int dynamic) {
  CUresult r = cuModuleGetFunction(function, module, name);
  if (!r && dynamic)
    r = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic);
  return r ? POLYFUSE_DRIVER + (int)r : 0;
}

static inline int polyfuse_launch(CUfunction f, int64_t blocks, unsigned x, unsigned y, unsigned shared,
                                  int together, void* const* parameters, CUstream stream) {
  if (blocks <= 0) return 0;
  if (blocks > 2147483647) return POLYFUSE_NO_KERNELS;
  void** p = (void**)parameters;
  const unsigned n = (unsigned)blocks;
  const CUresult r = together ? cuLaunchCooperativeKernel(f, n, 1, 1, x, y, 1, shared, stream, p)
                              : cuLaunchKernel(f, n, 1, 1, x, y, 1, shared, stream, p, NULL);
  return r ? POLYFUSE_DRIVER + (int)r : 0;
}
"""
