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
from polyfuse.codegen.interface import Interface, SizeText, by_value, declared, in_comment, status
from polyfuse.ir.index_expr import ISize, product
from polyfuse.ir.launch_plan import Kind, LaunchPlan, PlanBuffer
from polyfuse.ir.tensor_graph import Constraint, Role

STATUS = (
    ("done", "all is well"),
    ("sizes", "sizes that the operator does not take"),
    ("no kernels", "sizes or strides that this library has no kernels for"),
    ("no memory", "no memory for temporaries"),
    ("index", "an index from data is out of range (libraries made with checked=True)"),
)
"""What a call returns, by number."""
_EXPORT = re.compile(r"^#define PF_EXPORT .*$", re.MULTILINE)
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
        codes = ",\n".join(f"  {status(w)} = {k}" for k, (w, _) in enumerate(STATUS))
        meaning = "\n".join(f" *   {status(w):20} {why}" for w, why in STATUS)
        variants = "\n".join(f" *   {v}" for v in self.variants)
        return f"""\
/* {in_comment(self.text)}
 *
 * Written by polyfuse {self.version}. Kernels for:
{in_comment(variants)}
 *
 * Arrays are dense, row by row, and apart from those that are written. Strides of an input may be given, in
 * elements; NULL means that it is dense. bool is uint8_t, f16 and bf16 are their bits.
 * Matrix products are computed by kernels of the library itself. A call returns:
{meaning}
 */
#ifndef {guard}
#define {guard}
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#ifndef POLYFUSE_STATUS
#define POLYFUSE_STATUS
enum {{
{codes}
}};
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

#ifdef __cplusplus
}}
#endif
#endif
"""

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
        return json.dumps({**self.described(), "variants": [str(v) for v in self.variants]})

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
                self._call(api),
                "",
            ]
        )

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
        declared = " ".join(
            f"void {n}{_PARAMETERS};" for n in dict.fromkeys(x.function for x in plan.launches)
        )
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
        head = f"static int run_{k}(const int64_t* s, char* const* a, const int64_t* const* st) {{"
        return "\n".join([f"namespace pf_v{k} {{ {declared} }}", head, *(f"  {line}" for line in body), "}"])

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
        steps = [f"{{pf_v{k}::{x.function}, 0, 1, 0, {x.series}, {x.rounds}}}" for x in plan.launches]
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


def _array(kind: str, name: str, items: Sequence[str]) -> str:
    """A local array, which has an element at least."""
    return f"{kind} const {name}[] = {{{', '.join(items) or '0'}}};"


def _enclosed(k: int, source: str) -> str:
    """A kernel's source in a namespace of its own."""
    hidden = '#define PF_EXPORT __attribute__((visibility("hidden")))'
    found, count = _EXPORT.subn(hidden, source)
    assert count == 1
    return f"namespace pf_v{k} {{\n{found}\n}}\n"
