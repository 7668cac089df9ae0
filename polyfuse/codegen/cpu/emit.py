"""C++ for the CPU: headerless source and the launch plan that runs it.

Every function has the pool's signature
    void f(char* const* buf, const pf_i64* num, char* scratch, pf_i64 begin, pf_i64 end)
`buf` is the plan's pointer table, its last entry a status cell (checked builds store the number of a
failed check there); `num` holds the sizes that are still open, then the strides of strided buffers.

`launch_of` says how a function is run.  `pack_text` makes one function of a pack of kernels.  `emit` and
`emit_together` print kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.codegen.addresses import Addresses, plan_buffers
from polyfuse.codegen.analysis.window_chains import chains_of
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.cpu.memory_ops import STREAM, strip_of
from polyfuse.codegen.cpu.open_packs import PACKS, open_pack
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.cpu.printer_loops import WorkerPrinter
from polyfuse.codegen.cpu.row_versions import Version, by_rows, least_row_text, where_far, where_near
from polyfuse.codegen.cpu.shares import (
    CUTS,
    HIGH,
    LOW,
    SHARES,
    Body,
    buffers_of_parts,
    cut_text,
    first_text,
    join_text,
    share_call,
    totals_of,
    within_ends,
)
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import MASKS, OPEN_MASKS, TWICE
from polyfuse.codegen.cpu.vectorize.reductions import adds_to_several, many_sums
from polyfuse.codegen.cpu.workarounds import (
    IN_ORDER,
    STEPS,
    WRITTEN,
    falls_in,
    in_two_orders,
    steps_text,
    stores_several,
    with_hidden_steps,
)
from polyfuse.codegen.decisions import HINTS, Made, in_names_of
from polyfuse.codegen.function import Function, Shares
from polyfuse.codegen.line_map import Marks
from polyfuse.codegen.math.headers import read
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.transforms.outline import Series, iteration_count, round_text, series_of, time_parts
from polyfuse.codegen.transforms.register_tiling import reads_windows
from polyfuse.codegen.transforms.strength_reduction import bounds_text
from polyfuse.codegen.transforms.transpose_loads import TURNS
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import LANE_VECTORS, Core, CpuKnobs, lane_room, near_room
from polyfuse.ir.index_expr import IndexExpr, IVar, as_index, evaluate, sizes, substitute
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope, instances, work
from polyfuse.ir.launch_plan import Launch, LaunchPlan, PlanBuffer
from polyfuse.ir.loop_ir import Declare, For, LocalRole, RegisterTile, nodes_of
from polyfuse.ir.rename import kernel_form
from polyfuse.ir.tensor_graph import Constraint, TensorGraph
from polyfuse.source import Span

# --- numbers, launches, a worker's memory -----------------------------------------------------------------


CACHE_LINE = Core().line


def number_table(kernels: KernelGraph, buffers: Iterable[PlanBuffer]) -> dict[str, int]:
    """Name of an integer argument -> its place in `num`."""
    names = [f"N_{n}" for n in kernels.graph.sizes]
    names += [f"st_{b.name}_{k}" for b in buffers if b.strided for k in range(len(b.shape))]
    return {n: k for k, n in enumerate(names)}


def launch_of(name: str, kernel: str, low: LoweredKernel, f: Function) -> Launch:
    """How the function `name`, one of a lowered kernel that is part of `kernel`, is run."""
    counts = [(s, instances(s)) for s in low.kernel.graph.statements]
    total = sum((n for _, n in counts), as_index(0))
    together = tuple(x.step for x in f.batches)
    # Arrays that a chunk fills for all of its iterations (`codegen.transforms.invariant_motion`).
    filled = any(isinstance(n, Declare) and n.role is LocalRole.SHARED for n in f.block)
    count, parallel, least = (
        as_index(f.shares.many) if f.shares else iteration_count(f),
        bool(f.loops),
        FITTED.hoist_conversions_fewest_rows if filled else 1,
    )
    return Launch(name, kernel, count, total, work(counts), parallel, together=together, least=least)


def scratch_bytes(kernel: Kernel) -> int:
    """Of a worker's own arrays, each from a cache line on."""
    return sum(whole_lines(local_bytes(b)) for b in kernel.buffers if b.scope is Scope.LOCAL)


def local_bytes(b: Buffer) -> int:
    assert not sizes_of(b.elements)
    return evaluate(b.elements, {}) * b.dtype.bytes


def whole_lines(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE


# --- packs ------------------------------------------------------------------------------------------------

# A pack of kernels as one step of the CPU's parallel region.
#
# A pack's function runs tasks: parts of the iterations of one kernel each.  A kernel with much work has many,
# a small one has one, so that workers are busy alike.
#
#     void pack(buf, num, scratch, begin, end):
#       for task in begin..end:
#         kernel k has the tasks first[k]..first[k + 1], each an equal share of its iterations
#         run[k](buf, num, scratch, count[k] * i / n, count[k] * (i + 1) / n)


@dataclass(frozen=True, slots=True)
class PackedTask:
    """A function of a kernel with what the plan knows of it; it runs as one, or in shares if `parallel`."""

    launches: tuple[Launch, ...]

    @property
    def instances(self) -> int:
        return sum(evaluate(x.instances, {}) for x in self.launches)

    @property
    def count(self) -> int:
        """Iterations that may be shared out: those of the only function, if it has such."""
        only = self.launches[0]
        return evaluate(only.count, {}) if len(self.launches) == 1 and only.parallel else 1


def pack_text(name: str, kernel: str, tasks: Sequence[PackedTask]) -> tuple[str, Launch]:
    """The function of a pack, and the step that runs it. The sizes of its kernels are known."""
    assert not any(sizes(x.count) or sizes(x.instances) for t in tasks for x in t.launches)
    total = sum(t.instances for t in tasks)
    ranked = sorted(tasks, key=lambda t: -t.instances)  # the longest are claimed first
    shares = [_shares(t, total) for t in ranked]
    first = [sum(shares[:k]) for k in range(len(shares) + 1)]
    names = ", ".join(x.function for t in ranked for x in t.launches)
    lines = [
        f"PF_EXPORT void {name}(char* const* buf, const pf_i64* num, char* scratch,",
        "    pf_i64 begin, pf_i64 end) {",
        f"  // {len(tasks)} kernels side by side: {names}",
        f"  static const pf_i64 first[] = {{{', '.join(map(str, first))}}};",
        "  pf_i64 k = 0;",
        "  for (pf_i64 task = begin; task < end; ++task) {",
        "    while (first[k + 1] <= task) ++k;",
        "    const pf_i64 part = task - first[k], parts = first[k + 1] - first[k];",
        "    switch (k) {",
    ]
    for k, t in enumerate(ranked):
        lines.append(f"      case {k}:")
        for x in t.launches:
            lines.append(f"        {_call(x, t.count)}")
        lines.append("        break;")
    lines += ["    }", "  }", "}", ""]
    count: IndexExpr = as_index(first[-1])
    every = [x for t in tasks for x in t.launches]
    instances = sum((x.instances for x in every), as_index(0))
    work = sum((x.work for x in every), as_index(0))
    return "\n".join(lines), Launch(name, kernel, count, instances, work, True)


def _shares(task: PackedTask, total: int) -> int:
    """Into how many tasks a kernel is cut: by its share of all work."""
    wanted = min(
        task.count,
        FITTED.packs_tasks * task.instances // max(1, total),
        task.instances // FITTED.packs_least_instances,
    )
    return max(1, wanted)


def _call(x: Launch, count: int) -> str:
    whole = evaluate(x.count, {})
    if count == 1:
        return f"{x.function}(buf, num, scratch, 0, {whole});"
    return f"{x.function}(buf, num, scratch, {whole} * part / parts, {whole} * (part + 1) / parts);"


# --- printing ---------------------------------------------------------------------------------------------

# gcc 12 counts iterations by a falling address, wrongly: such a loop stores nothing (docs/lab/targets.md).
BACKWARDS = "// needs -fno-ivopts"
# It carries elements of a window from one step of a tile to the next, in registers that sums need then.
WINDOWS = "// needs -fno-predictive-commoning"
SANITIZED = read("vector_sanitized.h")
_HEAD = """\
#if defined(__clang__)
#define PF_IVDEP _Pragma("clang loop vectorize(enable)")
#define PF_ROLLED
#define PF_UNROLLED
#define PF_HELD(v)
#else
#define PF_IVDEP _Pragma("GCC ivdep")
#define PF_ROLLED _Pragma("GCC unroll 1")
#if defined(__x86_64__)
#define PF_UNROLLED _Pragma("GCC unroll 16")
#define PF_HELD(v) \\
  if constexpr (sizeof(v) <= __BIGGEST_ALIGNMENT__) __asm__ volatile("" : "+v"(v) : : "memory")
#else
#define PF_UNROLLED PF_ROLLED
#define PF_HELD(v)
#endif
#endif
#if defined(__x86_64__) && !defined(__clang__)
#define PF_SUMS __attribute__((optimize("no-schedule-insns"), target("tune=skylake")))
#else
#define PF_SUMS
#endif
#define PF_EXPORT extern "C" __attribute__((visibility("default")))
"""


@dataclass(frozen=True, slots=True)
class CpuCode:
    """Source text, plan, for checked builds the place of each check (its number is 1 + index), and what of
    certain decisions the text has (`codegen.decisions`)."""

    source: str
    plan: LaunchPlan
    checks: tuple[tuple[Span, str], ...]
    made: Made = frozenset()


@dataclass(frozen=True, slots=True)
class _Version:
    """A kernel's code, in these functions, for sizes with these conditions."""

    name: str
    names: tuple[str, ...]
    low: LoweredKernel
    places: Addresses
    where: tuple[Constraint, ...] = ()


# The form of a kernel -> the code of the first of this form, for the shortest rows first, and what it has of
# decisions.
_Printed: TypeAlias = dict[object, tuple[tuple[_Version, ...], Made]]


@dataclass(frozen=True, slots=True)
class Request:
    """Kernels to print. `strided` names inputs whose strides come at run time, `copied` inout parameters
    that have no in-place order; with `checked`, indices that are data are checked; `knobs` vary the code;
    `marks`: lines end in marks that say where they came from (`codegen.line_map`)."""

    kernels: KernelGraph
    strided: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    checked: bool = False
    knobs: CpuKnobs = field(default_factory=CpuKnobs)
    marks: Marks | None = field(default=None, compare=False)


def emit(
    kernels: KernelGraph,
    *,
    strided: frozenset[str] = frozenset(),
    copied: frozenset[str] = frozenset(),
    checked: bool = False,
) -> CpuCode:
    """C++ for all kernels of an operator (see `Request`)."""
    return emit_together([Request(kernels, strided, copied, checked)])[0]


def emit_together(requests: Sequence[Request]) -> tuple[CpuCode, ...]:
    """C++ for several operators in one translation unit: each result has the whole source."""
    used: set[str] = set()
    printed: dict[CpuKnobs, _Printed] = {}
    parts = [
        _print(r, f"pf_{k}_" if k else "pf_", used, printed.setdefault(r.knobs, {}))
        for k, r in enumerate(requests)
    ]
    functions = [text for p in parts for text in p[0]]
    streams = STREAM if any("pf_stream(" in text for text in functions) else ""
    twice = TWICE if any("PF_TWICE" in text for text in functions) else ""
    masks = (OPEN_MASKS if twice else MASKS) if any("PF_MASKS" in text for text in functions) else ""
    turns = TURNS if any("pf_turn" in text for text in functions) else ""
    bounds = bounds_text(functions)
    order = IN_ORDER if any("PF_IN_ORDER" in text for text in functions) else ""
    written = WRITTEN if any("PF_WRITTEN" in text for text in functions) else ""
    shares = SHARES if any("pf_rows_from(" in text for text in functions) else ""
    shares += CUTS if any("pf_run_shares(" in text for text in functions) else ""
    shares += PACKS if any("pf_run_pack(" in text for text in functions) else ""
    steps = STEPS if any("PF_STEP(" in text for text in functions) else ""
    own = SANITIZED if streams or masks or any("PF_OWN(" in text for text in functions) else ""
    before = prelude(used) + "\n" + bounds + own + streams + masks + turns
    before += order + shares + steps + written + twice
    source = before + _HEAD + "\n" + "\n".join(functions)
    return tuple(CpuCode(source, plan, checks, made) for _, plan, checks, made in parts)


def _print(
    request: Request, prefix: str, used: set[str], printed: _Printed
) -> tuple[list[str], LaunchPlan, tuple[tuple[Span, str], ...], Made]:
    """(functions, plan, checks, made); adds to `used` the prelude's functions that are called, and to
    `printed` the kernels that others may call."""
    kernels = request.kernels
    steps = [p for k in kernels.kernels for p in k.parts or (k,)]
    buffers = plan_buffers(kernels, request.strided, request.copied, steps)
    emitter = _Emitter(
        kernels.graph,
        {b.name: b for b in buffers},
        number_table(kernels, buffers),
        request.checked,
        request.copied,
        request.knobs,
        {} if request.checked else printed,
        request.marks,
    )
    functions: list[str] = []
    launches: list[Launch] = []
    parts = [(k, p) for k in kernels.kernels for p in k.parts or (k,)]
    for whole, part in parts:
        alone = not part.packed
        made = [_functions(emitter, prefix, whole.name, p, functions, alone) for p in part.packed or (part,)]
        if part.packed and any(made):
            shared = [m for m in made if m]  # a kernel without instances has no function
            text, launch = emitter.pack(f"{prefix}{part.name}_pack", whole.name, shared)
            functions.append(text)
            made = [(launch,)]
        launches += [x for each in made for x in each]
    used.update(emitter.functions)
    copied = tuple(sorted(request.copied))
    own, scratch = request.knobs, emitter.scratch
    buffers = (*buffers, *emitter.parts)
    plan = LaunchPlan(buffers, tuple(launches), scratch, kernels.graph.sizes, copied, own.chunks, own.threads)
    return functions, plan, tuple(emitter.checks), frozenset(emitter.made)


def _functions(
    emitter: _Emitter, prefix: str, whole: str, kernel: Kernel, functions: list[str], alone: bool
) -> tuple[Launch, ...]:
    """Print the functions of a kernel that is part of `whole`; how each is launched, `alone` or in a pack.

    What differs from an earlier kernel in names only calls that one's code with its own memory.
    """
    if kernel.library is not None:
        total = sum((instances(s) for s in kernel.graph.statements), as_index(0))
        return (Launch("", whole, as_index(1), total, total, False, kernel.library),)
    parts = [(p, _bodies(emitter, prefix, p, functions, alone)) for p in time_parts(kernel)]
    series = series_of([t for _, versions in parts for t in versions[-1].low.functions])
    made: list[Launch] = []
    for part, versions in parts:
        for k, task in enumerate(versions[-1].low.functions):
            name = f"{prefix}{part.name}_{k}"
            functions.append(emitter.entry(name, versions, k, series))
            launches = [launch_of(name, whole, v.low, v.low.functions[k]) for v in versions]
            together = {n for x in launches for n in x.together}
            steps = launches[-1].together if len(launches) == 1 else tuple(sorted(together, reverse=True))
            made.append(replace(launches[-1], rounds=series.rounds, together=steps))
            if task.shares and task.shares.cut:
                functions.append(emitter.join(name, versions[-1].places, task.shares))
                once = as_index(1)
                made.append(Launch(f"{name}_join", whole, once, once, once, False))
    return (replace(made[0], series=series.length), *made[1:]) if made else ()


def _bodies(
    emitter: _Emitter, prefix: str, kernel: Kernel, functions: list[str], alone: bool
) -> tuple[_Version, ...]:
    """A kernel's code with where its own tensors are, printed unless that of an earlier one will do.  Only a
    kernel that is launched alone cuts rows, and only into dense memory."""
    alone = alone and not any(emitter.buffers[b.tensor].strided for b in kernel.arguments)
    form = emitter.form(emitter.places(kernel)), alone
    if form in emitter.printed:
        versions, made = emitter.printed[form]
        made = in_names_of(kernel, versions[-1].low.kernel, made)
        places = [emitter.places(_with_arrays_of(kernel, v.low.kernel)) for v in versions]
        versions = tuple(replace(v, places=p) for v, p in zip(versions, places, strict=True))
    else:
        versions, made = _versions(emitter, f"{prefix}{kernel.name}", kernel, functions, alone)
        emitter.printed[form] = versions, made
    emitter.made |= made
    emitter.scratch = max(emitter.scratch, *(scratch_bytes(v.low.kernel) for v in versions))
    return versions


def _versions(
    emitter: _Emitter, name: str, kernel: Kernel, functions: list[str], alone: bool
) -> tuple[tuple[_Version, ...], Made]:
    """Print a kernel, or the versions of it for short and for long rows and for far memory, where these
    differ."""
    near = where_near(kernel)
    known = () if emitter.checked else by_rows(near)
    parts = [_printed(emitter, name, v, alone) for v in known]
    if not parts or not all(_is_run_alike(v.low, parts[-1][0].low) for v, *_ in parts):
        parts = [_printed(emitter, name, Version(near), alone)]
    found: list[_Version] = []
    longer, made = None, Made()
    for v, texts, more in reversed(parts):
        mine = [x.replace(v.name, "") for x in texts]
        if mine != longer:  # else that of longer rows is for these, too
            functions += texts
            found.insert(0, v)
            longer, made = mine, made | more
    hinted = None if emitter.checked else where_far(kernel)
    if hinted is not None:
        v, texts, more = _printed(emitter, name, hinted, alone)
        if _is_run_alike(v.low, found[-1].low) and any(kind in HINTS for kind, _ in more):
            functions += texts
            found.insert(0, v)
            made |= more
    return tuple(found), made


def _printed(emitter: _Emitter, name: str, version: Version, alone: bool) -> tuple[_Version, list[str], Made]:
    """A version of a kernel's code, and its text."""
    checked, kernel, name = emitter.checked, version.kernel, name + version.name
    knobs = replace(emitter.knobs, rows=1, jointly=False) if checked else emitter.knobs
    if not alone:
        knobs = replace(knobs, disabled=(*knobs.disabled, "load-balance:long-rows"))
    low = lower(kernel, knobs, checked)
    places = emitter.places(low.kernel)
    names = tuple(f"{name}_{k}" for k in range(len(low.functions)))
    found = {("tile", s.name) for s in kernel.graph.statements if has_tiles(low)}
    texts = [emitter.body(n, places, task, found) for n, task in zip(names, low.functions, strict=True)]
    for n, task in zip(names, low.functions, strict=True):
        if task.shares:
            code = emitter.code(n, places, task)
            texts.append(first_text(code, task.shares, emitter.printer(places)))
    return _Version(name, names, low, places, version.where), texts, low.noted | found


def _is_run_alike(one: LoweredKernel, other: LoweredKernel) -> bool:
    """Have the functions of both the same iterations to hand out, and no tiles or shares of their own?"""
    both = ([(bool(f.loops), f.time, iteration_count(f)) for f in x.functions] for x in (one, other))
    own = _has_register_tiles(one) or any(f.shares for f in one.functions)
    return next(both) == next(both) and not own


def _head(name: str) -> list[str]:
    """Of a function of the pool's signature."""
    return [
        f"PF_EXPORT void {name}(char* const* buf, const pf_i64* num, char* scratch,",
        "    pf_i64 begin, pf_i64 end) {",
        "  (void)buf; (void)num; (void)scratch; (void)begin; (void)end;",
    ]


def has_tiles(low: LoweredKernel) -> bool:
    """Are sums of products computed in tiles, of registers or along memory?"""
    return any(t.jammed > 1 for t in low.functions) or _has_register_tiles(low)


def _has_register_tiles(low: LoweredKernel) -> bool:
    return any(isinstance(n, RegisterTile) for t in low.functions for n in nodes_of(t.block))


def _with_arrays_of(kernel: Kernel, lowered: Kernel) -> Kernel:
    """A kernel that differs from a lowered one in names only, with a worker's arrays as that one has them."""
    count = len(kernel.buffers)
    alike = zip(kernel.buffers, lowered.buffers[:count], strict=True)
    own = (replace(b, extents=x.extents, shape=x.shape) if b.scope is Scope.LOCAL else b for b, x in alike)
    return replace(kernel, buffers=(*own, *lowered.buffers[count:]))


class _Emitter:
    """Prints functions; collects the prelude functions used and the checks made."""

    def __init__(
        self,
        graph: TensorGraph,
        buffers: dict[str, PlanBuffer],
        numbers: dict[str, int],
        checked: bool,
        copied: frozenset[str],
        knobs: CpuKnobs,
        printed: _Printed,
        marks: Marks | None = None,
    ) -> None:
        self.graph = graph
        self.knobs = knobs
        self.buffers = buffers
        self.slots = {name: k for k, name in enumerate(buffers)}
        self.numbers = numbers
        self.checked = checked
        self.copied = copied
        self.functions: set[str] = set()
        self.printed = printed
        self.marks = marks
        self.scratch = 0
        self.checks: list[tuple[Span, str]] = []
        self.made: set[tuple[str, str]] = set()
        self.parts: list[PlanBuffer] = []

    def places(self, kernel: Kernel) -> Addresses:
        """Where the elements of a kernel's tensors are."""
        return Addresses(kernel, self.buffers, self.checked, self.copied, self.checks)

    def form(self, places: Addresses) -> object:
        """Equal for kernels that differ in names only. Checks say where they are, so they are never alike."""
        if self.checked:
            return places.kernel.name
        arguments = places.kernel.arguments
        streamed = self._streamed(places)
        passed = [
            (
                self.buffers[b.tensor].strided,
                b.tensor in places.shared,
                places.by_value(b),
                b.tensor in streamed,
                b.soon,
            )
            for b in arguments
        ]
        aliases = [self.buffers[b.tensor].alias for b in arguments]
        pairs = [(k, n) for k, b in enumerate(arguments) for n, a in enumerate(aliases) if a == b.tensor]
        return kernel_form(places.kernel), tuple(passed), tuple(pairs)

    def body(self, name: str, places: Addresses, f: Function, made: set[tuple[str, str]]) -> str:
        """The kernel's code, in a function of its own: gcc trusts `restrict` on parameters only. What of
        decisions it has goes into `made`."""
        strided = frozenset(n for n, b in self.buffers.items() if b.strided)
        f = within_ends(f) if f.shares and f.shares.cut else f
        f = with_hidden_steps(places.kernel, f, self.knobs.on, strided, made)
        printer = WorkerPrinter(
            places.element,
            self.functions,
            kernel=places.kernel,
            lazy=self.checked,
            lane_bytes=self.knobs.lane_bytes or LANE_VECTORS * self.knobs.on.vector_bytes,
            lane_room=lane_room(self.knobs.on),
            streamed=self._streamed(places),
            soon=self._prefetched_lines(places, f),
            ahead=frozenset(b.tensor for b in places.kernel.arguments if b.ahead),
            near_room=near_room(self.knobs.on),
            strided=strided,
            flushes=self.knobs.on.flushes,
            strip=strip_of(places.kernel, f),
            chains=() if self.checked else chains_of(places.kernel, f.block, self.knobs.on),
            inout=frozenset(n for n, b in self.buffers.items() if b.alias is not None) - strided,
            within=places.within if self.checked else None,
            origins=self.marks.of(places.kernel, f.block) if self.marks else None,
        )
        parameters = [*self.code(name, places, f).parameters]
        parameters += [f"const pf_i64 {x}" for x in (LOW, HIGH)] if f.shares and f.shares.cut else []
        parameters += ["const pf_i64 begin", "const pf_i64 end"] if f.loops else []
        body = printer.function(f)
        body = [*least_row_text(places.kernel, f), *steps_text(body, "  "), *body]
        streams = any(kind == "stream" for kind, _ in printer.made)
        made |= printer.made
        if streams:
            body.append("  PF_STREAM_END;")
        declared = ",\n    ".join(parameters)
        # gcc 12 loads factors of many sums early where it may choose when, which spills registers, and
        # tuned for most processors it loads them again for each sum.
        every = list(nodes_of(f.worker[0].body if f.loops else f.block))
        held = {n.name for n in every if isinstance(n, Declare) and n.role is LocalRole.HELD}
        many = any(isinstance(n, For) and (many_sums(n) or adds_to_several(n, held)) for n in every)
        large = self._large(places)
        order = (
            "PF_SUMS "
            if many
            else "PF_IN_ORDER "
            if streams and len(large) >= FITTED.store_order_streams
            else ""
        )
        head = f"static __attribute__((noinline)) {order}void {name}_body(\n    {declared}) {{"
        several = any(stores_several(n, large.keys()) for n in every)
        backwards = falls_in(f)
        windows = any(isinstance(n, RegisterTile) and reads_windows(n) for n in every)
        needs = [*[BACKWARDS] * backwards, *[WINDOWS] * windows]
        text = "\n".join([*needs, head, *body, "}"])
        if order or not several:
            return text
        return in_two_orders(f"{name}_body", text, parameters, [*dict.fromkeys(large.values())])

    def _large(self, places: Addresses) -> dict[str, str]:
        """Large arrays outside, and the parameters that point to them."""
        arguments = [b for b in places.kernel.arguments if not sizes_of(b.elements)]
        large = [
            b.tensor
            for b in arguments
            if evaluate(b.elements, {}) * b.dtype.bytes >= FITTED.store_order_large
        ]
        return {name: places.pointer(name) for name in large}

    def _prefetched_lines(self, places: Addresses, f: Function) -> frozenset[str]:
        """Inputs whose lines are prefetched in vector loops: those of rows that are computed one by one."""
        alone = f.jammed == 1 and (f.pipelined or f.row is not None or not f.loops)
        return frozenset(b.tensor for b in places.kernel.arguments if b.soon and alone)

    def _streamed(self, places: Addresses) -> frozenset[str]:
        """Results whose stores pass the caches by."""
        found = frozenset(b.tensor for b in places.kernel.arguments if b.past)
        return frozenset() if self.checked else found - {n for n, b in self.buffers.items() if b.strided}

    def entry(self, name: str, versions: Sequence[_Version], k: int, series: Series) -> str:
        """The function of the pool's signature: it calls a version's code with the kernel's own memory."""
        *short, usual = versions
        body, places, f = usual.names[k], usual.places, usual.low.functions[k]
        code = self.code(body, places, f)
        lines = [f"  {line}" for line in round_text(f, series)]
        if f.shares and f.shares.cut:
            parts, at = self._of_parts(name, places.kernel, f.shares)
            lines += cut_text(code, f.shares, parts, at, self._out(places, f.shares))
        else:
            ends = ["begin", "end"] if f.loops else []
            for v in short:
                values = [*self.code(v.names[k], v.places, v.low.functions[k]).values, *ends]
                where = " && ".join(map(self._holds, v.where))
                lines.append(f"  if ({where}) return {v.names[k]}_body({', '.join(values)});")
            ends = [share_call(code, x) for x in ends] if f.shares else ends
            lines.append(f"  {body}_body({', '.join([*code.values, *ends])});")
        return "\n".join([*_head(name), *lines, "}", ""])

    def pack(self, name: str, kernel: str, tasks: Sequence[tuple[Launch, ...]]) -> tuple[str, Launch]:
        """The function of a pack of functions, and the step that runs it."""
        if any(sizes(x.count) or sizes(x.work) for task in tasks for x in task):
            return open_pack(name, kernel, tasks, self._number)
        return pack_text(name, kernel, [PackedTask(task) for task in tasks])

    def _holds(self, c: Constraint) -> str:
        """A condition on sizes, as numbers that are given."""
        return f"{self._number(c.left)} {c.op} {self._number(c.right)}"

    def _number(self, e: IndexExpr) -> str:
        """An expression of sizes, as numbers that are given."""
        given = {n: IVar(f"num[{self.numbers[f'N_{n}']}]") for n in sizes(e)}
        return bare(Printer(lambda *_: "", self.functions).index(substitute(e, sizes=given)))

    def join(self, name: str, places: Addresses, shares: Shares) -> str:
        """The function that joins the parts of rows that were cut."""
        parts, at = self._of_parts(name, places.kernel, shares)
        lines = join_text(parts, at, self._out(places, shares), self.printer(places), shares)
        return "\n".join([*_head(f"{name}_join"), *lines, "}", ""])

    def _of_parts(self, name: str, kernel: Kernel, shares: Shares) -> tuple[PlanBuffer, tuple[int, int]]:
        """The buffer of a function's parts, and where it and their rows are in the table of pointers."""
        found = buffers_of_parts(name, kernel, shares)
        if found[0] not in self.parts:
            self.parts += found
        at = len(self.slots) + self.parts.index(found[0])
        return found[0], (at, at + 1)

    def _out(self, places: Addresses, shares: Shares) -> str:
        """The value of the parameter that is the tensor of a function's totals."""
        name = totals_of(places.kernel, shares).tensor
        return f"({self.buffers[name].dtype.c_name}*)buf[{self.slots[name]}]"

    def printer(self, places: Addresses) -> Printer:
        return Printer(places.element, self.functions)

    def code(self, name: str, places: Addresses, f: Function) -> Body:
        """A kernel's code without what says which iterations are done."""
        found = self._parameters(places)
        found += [(f"const pf_i64 {f.time.var}", f.time.var)] if f.time else []
        return Body(name, [p for p, _ in found], [value for _, value in found])

    def _parameters(self, places: Addresses) -> list[tuple[str, str]]:
        """(declaration, value) of each parameter of a kernel's function."""
        kernel = places.kernel
        found = [(f"const pf_i64 N_{n}", f"num[{self.numbers[f'N_{n}']}]") for n in kernel.graph.sizes]
        for b in kernel.arguments:
            plan = self.buffers[b.tensor]
            if plan.name in places.shared:
                continue  # printed through the output that takes its place
            kind = b.dtype.c_name if b.tensor in places.written else f"const {b.dtype.c_name}"
            value = f"({kind}*)buf[{self.slots[b.tensor]}]"
            if places.by_value(b):
                found.append((f"{kind} v_{b.tensor}", f"*{value}"))
                continue
            found.append((f"{kind}* __restrict const b_{b.tensor}", value))
            if plan.strided:
                keys = [f"st_{b.tensor}_{k}" for k in range(len(plan.shape))]
                found += [(f"const pf_i64 {key}", f"num[{self.numbers[key]}]") for key in keys]
        offset = 0
        for b in kernel.buffers:
            if b.scope is Scope.LOCAL:
                kind = b.dtype.c_name
                nbytes = local_bytes(b)
                value = f"({kind}*)PF_OWN({offset}, {nbytes})"
                found.append((f"{kind}* __restrict const b_{b.tensor}", value))
                offset += whole_lines(nbytes)
        if self.checked:
            found.append(("pf_i64* const status", f"(pf_i64*)buf[{len(self.slots)}]"))
        return found
