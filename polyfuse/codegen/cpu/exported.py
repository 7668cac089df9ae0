"""C text of an exported library: its header, a unit for each variant's kernels, and the unit that calls them.

    header     int polyfuse_softmax(int64_t T, int64_t H, const float* x, const int64_t* x_strides, float* y);
    kernels    namespace pf_v0 { the source of variant 0 }
    calls      the first variant whose region has the sizes: chunks, temporaries and numbers, then its kernels

Only the header has names of the program; what is compiled has numbers in their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.interface import (
    Interface,
    SizeText,
    by_value,
    declared,
    in_comment,
    status_codes,
    status_meaning,
)
from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.gemm import Gemm, gemm_of
from polyfuse.ir.index_expr import ISize, evaluate, product
from polyfuse.ir.launch_plan import Kind, LaunchPlan, PlanBuffer
from polyfuse.ir.tensor_graph import Constraint, Role

_EXPORT = re.compile(r"^#define PF_EXPORT .*$", re.MULTILINE)
_BLAS = """
/* As cblas_sgemm and cblas_dgemm of any BLAS whose integers have 32 bits. */
#ifndef POLYFUSE_BLAS
#define POLYFUSE_BLAS
typedef void (*polyfuse_sgemm)(int order, int turn_a, int turn_b, int m, int n, int k, float alpha,
                               const float* a, int lda, const float* b, int ldb, float beta, float* c,
                               int ldc);
typedef void (*polyfuse_dgemm)(int order, int turn_a, int turn_b, int m, int n, int k, double alpha,
                               const double* a, int lda, const double* b, int ldb, double beta, double* c,
                               int ldc);
#endif

/* Matrix products are computed by these functions from the next call on. Not while a call runs. */
void {name}_use_blas(polyfuse_sgemm single, polyfuse_dgemm wide);
"""
_PARAMETERS = "(char* const*, const int64_t*, char*, int64_t, int64_t)"


@dataclass(frozen=True)
class ExportedVariant:
    """Kernels for sizes of a region: some `fixed`, the others within `conditions`; `threads` that take part
    at most (None: all)."""

    fixed: Mapping[str, int]
    conditions: tuple[Constraint, ...]
    code: CpuCode
    flush: bool
    strided: frozenset[str] = frozenset()
    threads: int | None = None

    def __str__(self) -> str:
        told = [*map(str, self.conditions), *(f"{n} = {v}" for n, v in self.fixed.items())]
        text = ", ".join(told) or "any sizes"
        return f"{text}, any strides" if self.strided else text


@dataclass(frozen=True)
class Exported(Interface):
    """An operator's library. constants: of the run time, in the order of `pf_figures` from `chunks` on."""

    variants: tuple[ExportedVariant, ...]
    most_chunks: int
    fewest_chunks: int
    fewest_in_series: int
    chunk_instances: int
    parallel_work: int

    # --- the header ---------------------------------------------------------------------------------------

    def header(self) -> str:
        """The C header of the library."""
        name, guard = self.symbol, f"{self.symbol.upper()}_H"
        meaning = status_meaning("no workspace", *(() if self.blas else ("no blas",)))
        variants = "\n".join(f" *   {v}" for v in self.variants)
        return f"""\
/* {in_comment(self.text)}
 *
 * Written by polyfuse {self.version}. Kernels for:
{in_comment(variants)}
 *
 * Arrays are dense, row by row, and apart from those that are written. Strides of an input may be given, in
 * elements; NULL means that it is dense. bool is uint8_t, f16 and bf16 are their bits.
 * {self._of_products()} A call returns:
{meaning}
 */
#ifndef {guard}
#define {guard}
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{status_codes()}
#ifndef POLYFUSE_POOL
#define POLYFUSE_POOL
/* Runs task(data, k) for each k from 0 to count - 1, on any threads, and returns when all are done. */
typedef void (*polyfuse_pool)(void* pool, int64_t count, void (*task)(void* data, int64_t k), void* data);
#endif

{self._declaration()};

/* How many threads of its own the library uses, the caller included; without it POLYFUSE_NUM_THREADS, or one
 * for each core. Returns how many there will be. */
int {name}_set_threads(int threads);

/* Use the caller's pool of so many threads from the next call on, not threads of the library; NULL: its own.
 * Not while a call runs. */
void {name}_use_pool(polyfuse_pool run, void* pool, int threads);
{_BLAS.format(name=name) if self.blas else ""}
#ifdef __cplusplus
}}
#endif
#endif
"""

    def _of_products(self) -> str:
        own = "Matrix products are computed by kernels of the library itself."
        if not self.blas:
            return own
        given = f"Large matrix products of known sizes are computed by what {self.symbol}_use_blas was given,"
        return f"{given}\n * others by kernels of the library itself."

    @property
    def blas(self) -> bool:
        """Do some kernels need the caller's matrix products?"""
        return any(x.library is not None for v in self.variants for x in v.code.plan.launches)

    def _declaration(self) -> str:
        parts = [f"int64_t {n}" for n in self.names(self.graph.sizes)]
        for t, name in zip(self.arguments, self.names()[len(self.graph.sizes) :], strict=True):
            parts.append(declared(t, name))
            if t in self.turned:
                parts.append(f"const int64_t* {name}_strides")
        head = f"int {self.symbol}("
        return head + (",\n" + " " * len(head)).join(parts or ["void"]) + ")"

    # --- what a library says of itself ---------------------------------------------------------------------

    def about(self) -> str:
        """JSON for those who load the library."""
        return json.dumps(
            {**self.described(), "blas": self.blas, "variants": [str(v) for v in self.variants]}
        )

    # --- sources --------------------------------------------------------------------------------------------

    def kernels(self) -> list[str]:
        """The sources of the variants' kernels, a unit each."""
        return [_enclosed(k, v.code.source) for k, v in enumerate(self.variants)]

    def calls(self, pool: str, parts: Sequence[str]) -> str:
        """The unit that has the functions of the header; `parts` are headers of the run time."""
        about = json.dumps(self.about())  # JSON's escapes are C's
        name = self.symbol
        api = 'extern "C" __attribute__((visibility("default")))'
        return "\n".join(
            [
                "#include <algorithm>",
                pool,
                *parts,
                *(self._variant(k, v) for k, v in enumerate(self.variants)),
                f"{api} const char polyfuse_library[] = {about};",
                f"{api} int {name}_set_threads(int n) {{",
                "  threads_chosen.store(true);",
                "  choose_threads(n);",
                "  return pf_threads();",
                "}",
                f"{api} void {name}_use_pool(pf_caller_pool run, void* pool, int threads) {{",
                "  caller_data = pool;",
                "  caller_threads.store(threads < 1 ? 1 : threads);",
                "  caller_run.store(run);",
                "}",
                *(self._use_blas(api) if self.blas else ()),
                self._call(api),
                "",
            ]
        )

    def _use_blas(self, api: str) -> list[str]:
        return [
            f"{api} void {self.symbol}_use_blas(pf_sgemm single, pf_dgemm wide) {{",
            "  caller_sgemm.store(single);",
            "  caller_dgemm.store(wide);",
            "}",
        ]

    def _call(self, api: str) -> str:
        """The operator's function: sizes are checked, and the first variant that has them runs."""
        text, n = SizeText(self.graph.sizes), len(self.graph.sizes)
        parameters = [f"int64_t s{k}" for k in range(n)]
        body = [_array("int64_t", "s", [f"s{k}" for k in range(n)])]
        # A size below 0, then what the operator says, then extents.
        body += [f"if (s{k} < 0) return kSizes;" for k in range(n)]
        body += [f"if (!({text.condition(c)})) return kSizes;" for c in self.graph.constraints]
        for t in self.arguments:
            body += [f"if ({text.of(e)} < 0) return kSizes;" for e in t.shape if not isinstance(e, ISize)]
        pointers: list[str] = []
        for k, t in enumerate(self.arguments):
            is_number = by_value(t)
            parameters.append(declared(t, f"a{k}"))
            if t in self.turned:
                parameters.append(f"const int64_t* g{k}")
            pointers.append(f"(char*)&a{k}" if is_number else f"(char*)a{k}")
        body.append(_array("char*", "a", pointers))
        body.append("bool dense = true;")
        strides = ["nullptr"] * len(self.arguments)
        for k, t in enumerate(self.arguments):
            if t in self.turned:
                extents = ", ".join(map(text.of, t.shape))
                body.append(f"const int64_t e{k}[] = {{{extents}}};")
                body.append(f"int64_t t{k}[{len(t.shape)}];")
                body.append(f"dense = strides_of(g{k}, e{k}, {len(t.shape)}, t{k}) && dense;")
                strides[k] = f"t{k}"
        body.append(_array("const int64_t*", "st", strides))
        written = [t for t in self.arguments if t.role is not Role.INPUT]
        empty = [" || ".join([f"{text.of(e)} == 0" for e in t.shape]) or "false" for t in written]
        body.append(f"if ({' && '.join(f'({e})' for e in empty) or 'true'}) return kDone;")
        for k, v in enumerate(self.variants):
            known = [f"s[{text.places[n]}] == {value}" for n, value in v.fixed.items()]
            known += [text.condition(c) for c in v.conditions]
            known += [] if v.strided else ["dense"]
            body.append(f"if ({' && '.join(known) or 'true'}) return run_{k}(s, a, st);")
        head = f"{api} int {self.symbol}({', '.join(parameters) or 'void'}) {{"
        return "\n".join([head, *(f"  {line}" for line in body), "  return kNoKernels;", "}"])

    def _variant(self, k: int, v: ExportedVariant) -> str:
        """How a variant is run at sizes `s`, pointers `a` and strides `st`."""
        plan, text = v.code.plan, SizeText(self.graph.sizes, v.fixed)
        names = dict.fromkeys(x.function for x in plan.launches if x.library is None)
        declared = " ".join(f"void {n}{_PARAMETERS};" for n in names)
        own = [b for b in plan.buffers if b.kind is Kind.WORKSPACE or b.name in plan.copied]
        body = [
            "(void)s; (void)a; (void)st;",
            *(self._temporaries(plan, own, text) if own else ()),
            "int64_t status = 0;",
            _array("char*", "buf", [*self._buffers(plan, own), "(char*)&status"]),
            _array("int64_t", "num", self._numbers(plan, text)),
            *self._steps(k, v, text),
            f"const int failed = run_all(steps, {len(plan.launches)}, buf, num, {plan.scratch_bytes}, "
            f"{int(v.flush)});",
            "return failed ? kNoMemory : status ? kIndex : kDone;",
        ]
        products = [_product(plan, k, j) for j, x in enumerate(plan.launches) if x.library is not None]
        body[:0] = ["if (!caller_sgemm.load() || !caller_dgemm.load()) return kNoBlas;"] * bool(products)
        head = f"static int run_{k}(const int64_t* s, char* const* a, const int64_t* const* st) {{"
        lines = [f"namespace pf_v{k} {{ {declared} }}", *products, head, *(f"  {line}" for line in body), "}"]
        return "\n".join(lines)

    def _temporaries(self, plan: LaunchPlan, own: Sequence[PlanBuffer], text: SizeText) -> list[str]:
        """Memory of the call's own, with what inout parameters have at entry where that is overwritten."""
        spaces, copies = [], []
        for j, b in enumerate(own):
            first, last = b.live or (0, len(plan.launches))
            nbytes = f"most_of(0, {text.of(product(b.shape))}) * {b.dtype.bytes}"
            spaces.append(f"{{{nbytes}, {first}, {last}, 0}}")
            if b.kind is not Kind.WORKSPACE:
                copies.append(
                    f"std::memcpy(block.data + own[{j}].offset, a[{self._place(b)}], size_t({nbytes}));"
                )
        return [
            f"pf_temporary own[] = {{{', '.join(spaces)}}};",
            f"const Block block(first_fit(own, {len(own)}));",
            "if (!block.data) return kNoMemory;",
            *copies,
        ]

    def _steps(self, k: int, v: ExportedVariant, text: SizeText) -> list[str]:
        """What the pool runs, cut into chunks."""
        plan = v.code.plan
        run_time = (plan.chunks or 0, self.most_chunks, self.fewest_chunks, self.fewest_in_series)
        figures = ", ".join(map(str, (*run_time, self.chunk_instances, self.parallel_work)))
        names = [f"pf_v{k}::{x.function or f'product_{j}'}" for j, x in enumerate(plan.launches)]
        steps = [
            f"{{{n}, 0, 1, 0, {x.series}, {x.rounds}}}" for n, x in zip(names, plan.launches, strict=True)
        ]
        lines = [
            f"pf_figures figures = {{0, pool_threads(), {figures}}};",
            "figures.threads = figures.pool_threads;",
            *(f"figures.threads = least_of(figures.threads, {n});" for n in (v.threads, plan.threads) if n),
            f"pf_step steps[] = {{{', '.join(steps) or '{}'}}};",
        ]
        for j, x in enumerate(plan.launches):
            extent = ", ".join(map(text.of, (x.count, x.instances, x.work)))
            lines += [
                _array("int64_t", f"together_{j}", [str(n) for n in x.together]),
                f"cut(figures, pf_extent{{{extent}}}, {int(x.parallel)}, together_{j}, {len(x.together)}, "
                f"{x.least}, steps + {j});",
            ]
        return lines

    def _place(self, b: PlanBuffer) -> int:
        """Which argument a buffer is, or lies in the place of."""
        names = [t.name for t in self.arguments]
        return names.index(b.name if b.name in names else b.alias or "")

    def _buffers(self, plan: LaunchPlan, own: Sequence[PlanBuffer]) -> list[str]:
        places = {b.name: j for j, b in enumerate(own)}
        return [
            f"block.data + own[{places[b.name]}].offset" if b.name in places else f"a[{self._place(b)}]"
            for b in plan.buffers
        ]

    def _numbers(self, plan: LaunchPlan, text: SizeText) -> list[str]:
        """Open sizes, then strides."""
        found = [f"s[{text.places[n]}]" for n in plan.sizes]
        for b in plan.buffers:
            if b.strided:
                found += [f"st[{self._place(b)}][{d}]" for d in range(len(b.shape))]
        return found


# --- text -------------------------------------------------------------------------------------------------


def gemm_in(plan: LaunchPlan, product: MatrixProduct) -> Gemm | None:
    """How BLAS computes a product of a plan whose sizes are known."""
    return gemm_of(product, {b.name: tuple(evaluate(e, {}) for e in b.shape) for b in plan.buffers})


def _product(plan: LaunchPlan, k: int, j: int) -> str:
    """The function of a step that is a matrix product, by the caller's function."""
    product = plan.launches[j].library
    assert product is not None
    gemm, places = gemm_in(plan, product), {b.name: n for n, b in enumerate(plan.buffers)}
    assert gemm is not None
    tensors = [x.tensor for x in (product.left, product.right, product.out)]
    buffers = [plan.buffers[places[n]] for n in tensors]
    kind = buffers[0].dtype.c_name
    operands = (gemm.first, gemm.second, gemm.result)
    lines, at = [], ["", "", ""]
    extents = [*gemm.loops, gemm.batch]
    for depth, extent in enumerate(extents):
        lines.append(f"for (int64_t i{depth} = 0; i{depth} < {extent}; ++i{depth})")
        steps = [x.step if depth == len(gemm.loops) else x.steps[depth] for x in operands]
        at = [f"{before} + i{depth} * {step}" for before, step in zip(at, steps, strict=True)]
    a, b, c = (
        f"({'' if x is gemm.result else 'const '}{kind}*)buf[{places[tensors[x.place]]}]{offset}"
        for x, offset in zip(operands, at, strict=True)
    )
    turned = [112 if x.transposed else 111 for x in operands]  # as in cblas.h, as is 102: column by column
    one, none = (f"{n}{'f' if kind == 'float' else ''}" for n in ("1.0", "0.0"))
    call = (
        f"multiply(102, {turned[0]}, {turned[1]}, {gemm.rows}, {gemm.columns}, {gemm.over}, {one}, {a}, "
        f"{gemm.first.leading}, {b}, {gemm.second.leading}, {none}, {c}, {gemm.result.leading});"
    )
    head = f"static void product_{j}(char* const* buf, const int64_t*, char*, int64_t, int64_t) {{"
    pick = f"const auto multiply = caller_{'s' if kind == 'float' else 'd'}gemm.load();"
    body = [pick, *lines, f"  {call}"]
    return "\n".join([f"namespace pf_v{k} {{", head, *(f"  {line}" for line in body), "}", "}"])


def _array(kind: str, name: str, items: Sequence[str]) -> str:
    """A local array, which has an element at least."""
    return f"{kind} const {name}[] = {{{', '.join(items) or '0'}}};"


def _enclosed(k: int, source: str) -> str:
    """A kernel's source in a namespace of its own."""
    hidden = '#define PF_EXPORT __attribute__((visibility("hidden")))'
    found, count = _EXPORT.subn(hidden, source)
    assert count == 1
    return f"namespace pf_v{k} {{\n{found}\n}}\n"
