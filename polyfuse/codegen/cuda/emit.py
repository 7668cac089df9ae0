"""CUDA C++: headerless source and the launch plan that runs it.

One function for each nest of a kernel.  Buffers come as pointers, scalars that the host knows by value.
Indices are 32 bits where the ranges of all loops prove that this is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from polyfuse.codegen.addresses import Addresses, plan_buffers
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.c_printer import Printer, bare, literal
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.functions import PartTask, lower_device, lower_parts, lower_stages
from polyfuse.codegen.cuda.index_width import fits_32
from polyfuse.codegen.cuda.multi_kernel import (
    INOUT,
    INPUT,
    MOST_PASSED,
    NUMBER,
    OUTPUT,
    STAGE_INPUT,
    STATE,
    Parameter,
    Together,
    exchanged,
    staged,
    together,
    words,
    written_memory,
)
from polyfuse.codegen.cuda.spmd import DeviceTask
from polyfuse.codegen.decisions import Made, noted
from polyfuse.codegen.line_map import Marks
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.passes import PassContext
from polyfuse.ir import kernel as shared_memory
from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.dtypes import BF16, F32, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, as_index, binary, evaluate, product
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.ir.linear import Range, interval
from polyfuse.ir.loop_ir import (
    Barrier,
    BarrierScope,
    Block,
    Combine,
    Declare,
    For,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    block_nest,
    nodes_of,
)
from polyfuse.ir.powers import ROOTS, has_root
from polyfuse.ir.rename import kernel_form
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, depends_on, reads
from polyfuse.source import Span

# --- addresses, and functions that differ in names only ---------------------------------------------------


NONE: frozenset[str] = frozenset()


class DeviceAddresses(Addresses):
    """On a GPU only scalars that the host knows come by value; `late` is the memory that other stages of the
    launch write."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, PlanBuffer],
        checked: bool,
        copied: frozenset[str],
        checks: list[tuple[Span, str]],
        late: frozenset[str] = NONE,
    ) -> None:
        super().__init__(kernel, buffers, checked, copied, checks)
        self._late = late

    def is_late(self, name: str) -> bool:
        plan = self.buffers[name]
        return (plan.alias or plan.name) in self._late

    def by_value(self, b: Buffer) -> bool:
        return super().by_value(b) and self.buffers[b.tensor].kind is Kind.INPUT

    def form(self) -> object:
        """Equal for kernels that differ in names only. Checks say where they are: none are alike."""
        if self.checked:
            return self.kernel.name
        arguments = self.kernel.arguments
        plans = [self.buffers[b.tensor] for b in arguments]
        shared = tuple(b.tensor in self.shared for b in arguments)
        pairs = [(k, n) for k, b in enumerate(arguments) for n, p in enumerate(plans) if p.alias == b.tensor]
        passed = tuple(
            (p.strided, self.by_value(b), self.is_late(p.name)) for p, b in zip(plans, arguments, strict=True)
        )
        return kernel_form(self.kernel), shared, tuple(pairs), passed

    def reported(self, printer: Printer, value: str, bound: str, number: int) -> str:
        return f"pf_checked({bare(value)}, {bare(bound)}, {number}, status)"

    def kept_within(self, value: str, least: str, most: str, number: int) -> str:
        return f"pf_within({value}, {least}, {most}, {number}, status)"


# --- printing ---------------------------------------------------------------------------------------------

# Loops with so many iterations or fewer are unrolled, so that arrays stay in registers.
MOST_UNROLLED = 16
# Parameters of a function that is called; one with more is printed where it is called.
MOST_CALLED = 48
# Shared memory that functions may declare; where they need more, the launch asks for all of it.
MOST_DECLARED = 48 * 1024


_CHECKED = """\
// The index within its bounds; the number of the check goes to the status cell if it was not.
PF_INLINE pf_i64 pf_checked(pf_i64 index, pf_i64 bound, pf_i64 number, pf_i64* status) {
  if (index < 0 || index >= bound) *status = number;
  return index < 0 ? 0 : index >= bound ? bound - 1 : index;
}

// A number; that of the check goes to the status cell if it does not lie between the others.
PF_INLINE pf_i64 pf_within(pf_i64 value, pf_i64 least, pf_i64 most, pf_i64 number, pf_i64* status) {
  if (value < least || value > most) *status = number;
  return value;
}
"""


@dataclass(frozen=True, slots=True)
class CudaCode:
    """Source text, plan, and for checked builds the place of each check (its number is 1 + index)."""

    source: str
    plan: GridPlan
    checks: tuple[tuple[Span, str], ...]
    made: Made = frozenset()


def emit_cuda(request: Request) -> CudaCode:
    """CUDA C++ for all kernels of an operator."""
    return emit_cuda_together([request])[0]


def emit_cuda_together(requests: Sequence[Request]) -> tuple[CudaCode, ...]:
    """CUDA C++ for several operators in one translation unit: each result has the whole source."""
    used: set[str] = set()
    parts = [_print(r, f"pf_{k}_" if k else "pf_", used) for k, r in enumerate(requests)]
    functions = [text for texts, *_ in parts for text in texts]
    head = [prelude(used, target="cuda"), *words(functions)]
    head += [_CHECKED] if any(r.checked for r in requests) else []
    source = "\n".join([*head, *functions])
    return tuple(CudaCode(source, plan, checks, made) for _, plan, checks, made in parts)


def _print(
    request: Request, prefix: str, used: set[str]
) -> tuple[list[str], GridPlan, tuple[tuple[Span, str], ...], Made]:
    """(functions, plan, checks, made); adds to `used` the prelude's functions that are called."""
    kernels = request.kernels
    buffers = plan_buffers(kernels, request.strided, request.copied, kernels.kernels)
    strided = frozenset(b.name for b in buffers if b.strided)
    table = {b.name: b for b in buffers}
    checks: list[tuple[Span, str]] = []
    functions: list[str] = []
    launches: list[GridLaunch] = []
    aligned: dict[str, int] = {}
    cx = PassContext(request.knobs, strided=strided)

    def places(k: Kernel, late: frozenset[str] = NONE) -> DeviceAddresses:
        return DeviceAddresses(k, table, request.checked, request.copied, checks, late)

    def form(late: frozenset[str], k: Kernel) -> object:
        return places(k, late).form()

    def of(name: str, task: DeviceTask, alike: object = None, late: frozenset[str] = NONE) -> _Function:
        for buffer, nbytes in task.aligned.items():
            aligned[buffer] = max(aligned.get(buffer, 0), nbytes)
        own = places(task.kernel, late)
        return _Function(name, task, own, used, kernels.graph.sizes, alike, marks=request.marks)

    def part(t: PartTask, late: frozenset[str] = NONE) -> _Function:
        return of(f"{prefix}{t.kernel.name}_part", t.task, t.form, late)

    for kernel in kernels.kernels:
        if kernel.library is not None:
            launches.append(_library_launch(kernel, kernel.library))
            continue
        if kernel.packed:
            tasks = lower_parts(kernel, partial(form, NONE), request.copied, cx)
            if not tasks:  # nothing to do in any part
                continue
            one = together(f"{prefix}{kernel.name}_pack", kernel, list(map(part, tasks)))
        elif any(p.packed for p in kernel.parts):
            late = written_memory(kernel)
            stages = lower_stages(kernel, partial(form, late), request.copied, cx)
            each = [[part(t, late) for t in tasks] for tasks in stages if tasks]
            if not each:
                continue
            one = staged(f"{prefix}{kernel.name}_stages", kernel, each)
        else:
            for k, task in enumerate(lower_device(kernel, copied=request.copied, cx=cx)):
                function = of(f"{prefix}{kernel.name}_{k}", task)
                one = _alone(function, kernel)
                functions += one.texts
                launches.append(one.launch)
            continue
        functions += one.texts
        launches.append(one.launch)
    needs = tuple((b.name, aligned[b.name]) for b in buffers if b.name in aligned)
    plan = GridPlan(buffers, tuple(launches), needs, kernels.graph.sizes, tuple(sorted(request.copied)))
    return functions, plan, tuple(checks), noted(cx)


def _library_launch(kernel: Kernel, product: MatrixProduct) -> GridLaunch:
    operands = (product.left, product.right, product.out)
    arguments = tuple(Argument(Passing.POINTER, x.tensor) for x in operands)
    return GridLaunch("", kernel.name, as_index(1), (1, 1), 0, arguments, library=product)


def _alone(function: _Function, kernel: Kernel) -> Together:
    """One kernel as a launch; one with too many arguments for that gets them from a table."""
    text = function.text()
    if len(function.declared) <= MOST_PASSED or kernel.parts:
        return Together((text,), function.launch())
    function.declared.clear()
    function.name, name = f"{function.name}_part", function.name
    return together(name, kernel, [function])


@dataclass(slots=True)
class _Function:
    name: str
    task: DeviceTask
    places: DeviceAddresses
    used: set[str]
    sizes: tuple[str, ...]
    alike: object = None  # equal for kernels that differ in names only
    declared: list[Parameter] = field(default_factory=list)
    inner: bool = False  # a part of a pack, called with the number of its block
    marks: Marks | None = None

    def text(self) -> str:
        index = "int" if fits_32(self.task) else "pf_i64"
        ranges = self.task.ranges or {}
        printer = CudaPrinter(
            self.places.element,
            self.used,
            lazy=True,
            index_type=index,
            places=self.places,
            ranges=ranges,
            in_turn=self.task.resident > 0,
            within=self.places.within if self.places.checked else None,
            origins=self.marks.of(self.task.kernel, self.task.body) if self.marks else None,
        )
        self.parameters()
        own = ["const pf_i64 pf_block"] if self.inner else []
        parameters = ",\n    ".join([*own, *(p.text for p in self.declared)])
        x = self.task.kernel.threads[0]
        where = (
            f"threadIdx.x % {x}, ty = threadIdx.x / {x}" if self.inner else "threadIdx.x, ty = threadIdx.y"
        )
        # Indices are products of these, and have no more bits than their factors.
        body = [*self.storage(), f"  const {index} tx = {where};", "  (void)tx; (void)ty;"]
        body += self.decode(printer)
        body += printer.block(self.task.body, "  ")
        head = f'extern "C" __global__ void __launch_bounds__({self.bounds()}) {self.name}('
        if self.inner:
            # Very many arguments would go through memory from the call to the function.
            how = "__attribute__((noinline))" if len(self.declared) <= MOST_CALLED else "__forceinline__"
            head = f"static __device__ {how} void {self.name}("
        return "\n".join(
            [
                *self.heading(),
                head,
                f"    {parameters}) {{",
                *body,
                "}",
                "",
            ]
        )

    def bounds(self) -> str:
        """Threads of a block; where blocks are resident also how many of them a multiprocessor must hold."""
        kernel = self.task.kernel
        x, y = kernel.threads
        return f"{x * y}, {kernel.per_sm}" if self.task.resident else str(x * y)

    def heading(self) -> list[str]:
        """What the function computes, and why its storage is where it is."""
        kernel = self.task.kernel
        lines: list[str] = []
        for s in kernel.graph.statements:
            own = (s.span,) if s.span.source.text else ()
            lines += self.marks.marked([f"// {s}"], own) if self.marks else [f"// {s}"]
        return lines + [f"// {b}" for b in kernel.buffers if b.reason]

    def parameters(self) -> None:
        """Declare the parameters, and what is passed for each."""

        def add(how: str, kind: str, name: str, argument: Argument) -> None:
            self.declared.append(Parameter(how, kind, name, argument))

        together = exchanged(self.task.kernel, self.task.body)
        for n in self.sizes:
            add(NUMBER, "pf_i64", f"N_{n}", Argument(Passing.SIZE, n))
        for b in self.task.kernel.arguments:
            plan = self.places.buffers[b.tensor]
            if b.tensor in self.places.shared:
                continue  # printed through the output that takes its place
            if self.places.by_value(b):
                add(NUMBER, b.dtype.c_name, f"v_{b.tensor}", Argument(Passing.VALUE, b.tensor))
                continue
            how = STAGE_INPUT if self.places.is_late(b.tensor) else INPUT
            if b.tensor in self.places.written:
                how = INOUT if b.tensor in together else OUTPUT
            add(how, b.dtype.c_name, f"b_{b.tensor}", Argument(Passing.POINTER, b.tensor))
            for k in range(len(plan.shape) if plan.strided else 0):
                add(NUMBER, "pf_i64", f"st_{b.tensor}_{k}", Argument(Passing.STRIDE, b.tensor, k))
        if self.places.checked:
            add(STATE, "pf_i64", "status", Argument(Passing.STATUS))
        if self.task.kernel.parts:
            add(STATE, "pf_u32", "grid_state", Argument(Passing.BARRIER))

    def storage(self) -> list[str]:
        """Arrays of the block and of the thread."""
        lines = []
        buffers = self.task.kernel.buffers
        homes = shared_memory.homes(buffers) | shared_memory.homes(buffers, Scope.LOCAL)
        offsets, total = shared_memory.offsets(buffers)
        # Arrays in the memory of another one come after it.
        for b in sorted(buffers, key=lambda b: homes.get(b.tensor, b) is not b):
            count = evaluate(b.elements, {}) if b.scope in (Scope.SHARED, Scope.LOCAL) else 0
            if b.scope is Scope.SHARED and homes[b.tensor] is not b:
                where = f"b_{b.tensor}, {count}, b_{homes[b.tensor].tensor}"
                lines.append(f"  PF_REUSED({b.dtype.c_name}, {where});")
            elif b.scope is Scope.SHARED and total > MOST_DECLARED:
                where = f"b_{b.tensor}, {count}, {offsets[b.tensor]}"
                lines.append(f"  PF_DYNAMIC({b.dtype.c_name}, {where});")
            elif b.scope is Scope.SHARED:
                lines.append(f"  PF_SHARED({b.dtype.c_name}, b_{b.tensor}, {count});")
            elif b.scope is Scope.LOCAL:
                home = homes[b.tensor].tensor
                lines.append(f"  {thread_array(b.dtype, f'b_{b.tensor}', count, f'b_{home}')};")
        return lines

    def decode(self, printer: CudaPrinter) -> list[str]:
        """The loop variables of the block loops from the number of the block, innermost fastest."""
        loops, kind = self.task.loops, printer.index_type
        if not loops:
            return []
        lines = [f"  {kind} block = {'pf_block' if self.inner else 'blockIdx.x'};"]
        for k in range(len(loops) - 1, -1, -1):
            x = loops[k]
            low = f"{printer.index(x.lower)} + " if x.lower != IConst(0) else ""
            extent = printer.index(binary("-", x.upper, x.lower))
            if k == 0:
                lines.append(f"  const {kind} {x.var} = {low}block;")
            else:
                lines.append(f"  const {kind} {x.var} = {low}block % {extent};")
                lines.append(f"  block /= {extent};")
        return lines

    def launch(self) -> GridLaunch:
        kernel = self.task.kernel
        blocks = product(tuple(binary("-", x.upper, x.lower) for x in self.task.loops))
        if self.task.resident:
            blocks = as_index(self.task.resident)
        _, shared = shared_memory.offsets(kernel.buffers)
        dynamic = shared if shared > MOST_DECLARED else 0
        together, arguments = bool(kernel.parts), tuple(p.argument for p in self.declared)
        return GridLaunch(
            self.name, kernel.name, blocks, kernel.threads, shared, arguments, together, dynamic
        )


def thread_array(dtype: DType, name: str, count: int, home: str) -> str:
    """The declaration of an array of a thread: elements of 16 bits are two in a register. `home`: the array
    whose place it has."""
    if dtype.bytes == 2 and count > 1:
        kind = f"pf_packed<{dtype.c_name}, {count}>"
        return f"{kind} {name}" if home == name else f"{kind}& {name} = {home}"
    kind = dtype.c_name
    return f"{kind} {name}[{count}]" if home == name else f"{kind} (&{name})[{count}] = {home}"


# Bytes that a thread has on their way while it goes from row to row: with 768 threads of a multiprocessor
# these are 48 kB (an H200 needs 25 kB all the time), and more copies of a loop take registers.
BYTES_IN_FLIGHT = 64


def has_rounds(loop: For) -> bool:
    """Does a loop over rows have loops in it that are unrolled over a thread's part of a row?

    Compilers that unroll it first take these for too large: then arrays of the thread are in memory.
    """
    return any(isinstance(n, For) and n.coordinate is Coordinate.ROUND for n in nodes_of(loop.body))


def rows_in_flight(loop: For) -> int:
    """Iterations that a thread's loop over rows is unrolled by: compilers put their loads first.

    1 where it loads no vectors of memory anew, or has loops or barriers in it.
    """
    inner = [n for n in nodes_of(loop.body) if not isinstance(n, VectorLoad)]
    plain = all(n.coordinate is Coordinate.VECTOR for n in inner if isinstance(n, For))
    if not plain or any(isinstance(n, (Barrier, Combine)) for n in inner):
        return 1
    loads = [n for n in loop.body if isinstance(n, VectorLoad) and depends_on(*n.indices) & {loop.var}]
    nbytes = sum(n.dtype.bytes * n.count for n in loads)
    return max(1, min(4, BYTES_IN_FLIGHT // nbytes)) if nbytes else 1


@dataclass(slots=True)
class CudaPrinter(Printer):
    """The printer of the C family with what a GPU has besides."""

    places: DeviceAddresses = field(kw_only=True)
    ranges: Mapping[str, Range] = field(kw_only=True)
    in_turn: bool = field(kw_only=True)  # blocks take the iterations of block loops in turn

    def fence(self, body: Block, indent: str) -> list[str]:
        return []  # that is against a bug of a CPU compiler

    def expr(self, e: Expr) -> str:
        match e:
            case Apply("pow", (base, Read(x, ()) as y)) if e.dtype.is_float and self.places.kernel.find(x):
                return self.call(f"pf_pow_alike_{e.dtype.name}", [self.expr(base), self.expr(y)])
            case Cast(Cast(arg, middle), dtype) if (arg.dtype, middle, dtype) == (F32, BF16, F32):
                return self.call("pf_bf16_rounded_f32", [self.expr(arg)])
            case _:
                return Printer.expr(self, e)

    def power(self, base: Expr, n: float) -> str:
        kind, value = base.dtype, self.expr(base)
        if abs(n) in ROOTS:
            root = self.call(f"pf_root_{kind.name}", [value])
            return self.operation("div", [literal(1.0, kind), root], kind) if n < 0 else root
        if has_root(n):
            return self.call(f"pf_power_half_{kind.name}", [value, str(int(n))])
        if n == 2:
            return self.call(f"pf_square_{kind.name}", [value])
        return self.call(f"pf_power_{kind.name}", [value, str(n)])

    def pragma(self, loop: For, indent: str) -> list[str]:
        if loop.coordinate is Coordinate.SEQ and (factor := rows_in_flight(loop)) > 1:
            return [f"{indent}#pragma unroll {factor}"]
        if loop.coordinate is Coordinate.SEQ and has_rounds(loop):
            return [f"{indent}#pragma unroll 1"]
        if loop.coordinate not in (Coordinate.VECTOR, Coordinate.ROUND):
            return []
        if not isinstance(loop.lower, IConst) or not isinstance(loop.upper, IConst):
            return []
        trip, factor = loop.upper.value - loop.lower.value, rows_in_flight(loop)
        if loop.coordinate is Coordinate.ROUND and trip > 2 * factor > 2 and not self.keeps(loop):
            return [f"{indent}#pragma unroll {factor}"]
        return [f"{indent}#pragma unroll"] if trip <= MOST_UNROLLED else []

    def keeps(self, loop: For) -> bool:
        """Does each iteration touch elements of its own of an array of the thread, which is in registers?"""
        nodes = [n for n in nodes_of(loop.body) if isinstance(n, (Store, Update, Declare))]
        places = [(r.tensor, r.indices) for n in nodes if n.value is not None for r in reads(n.value)]
        places += [(n.buffer, n.indices) for n in nodes if not isinstance(n, Declare)]
        return any(
            (b := self.places.kernel.find(name)) is not None
            and b.scope is Scope.LOCAL
            and loop.var in depends_on(*indices)
            for name, indices in places
        )

    def loop(self, loop: For, indent: str) -> list[str]:
        if loop.coordinate is Coordinate.BLK and self.in_turn:
            return self.grid_stride(loop, indent)
        return Printer.loop(self, loop, indent)

    def grid_stride(self, loop: For, indent: str) -> list[str]:
        """Block loops whose iterations the blocks of the grid take in turn; one does those inside alone."""
        loops, body = block_nest(loop)
        count = self.index(product(tuple(binary("-", x.upper, x.lower) for x in loops)))
        kind, inner = self.index_type, indent + "  "
        head = f"{indent}for ({kind} block = blockIdx.x; block < {count}; block += gridDim.x) {{"
        lines = [head, f"{inner}{kind} rest = block;", f"{inner}(void)rest;"]
        for k in range(len(loops) - 1, -1, -1):
            x = loops[k]
            low = f"{self.index(x.lower)} + " if x.lower != IConst(0) else ""
            extent = self.index(binary("-", x.upper, x.lower))
            lines.append(f"{inner}const {kind} {x.var} = {low}rest{f' % {extent}' if k else ''};")
            if k:
                lines.append(f"{inner}rest /= {extent};")
        alone = replace(self, in_turn=False)
        return [*lines, *alone.block(body, inner), f"{indent}}}"]

    def device_node(self, node: Barrier | Combine | VectorLoad | VectorStore, indent: str) -> list[str]:
        match node:
            case Barrier(BarrierScope.BLOCK, reason):
                return [f"{indent}__syncthreads();  // {reason}"]
            case Barrier(_, reason):
                return [f"{indent}pf_grid_barrier(grid_state);  // {reason}"]
            case Combine(name, op, dtype, width):
                value = scalar_name(name)
                call = self.call(f"pf_warp_{op}_{dtype.name}", [value, str(width)])
                return [f"{indent}{value} = {call};"]
            case VectorLoad(name, _, buffer, indices, count, cond):
                where = f"{self.places.pointer(buffer)}, {bare(self.places.offset(self, buffer, indices))}"
                load = f"pf_load<{count}>({where})"
                if cond is not None:
                    load = f"pf_load_if<{count}>({bare(self.expr(cond))}, {where})"
                return [f"{indent}const auto {scalar_name(name)} = {load};"]
            case VectorStore(buffer, indices, name, count):
                where = f"{self.places.pointer(buffer)}, {bare(self.places.offset(self, buffer, indices))}"
                home = self.places.kernel.find(buffer)
                store = "pf_store_once" if home is not None and home.past else "pf_store"
                return [f"{indent}{store}<{count}>({where}, {scalar_name(name)});"]

    def atomic(self, node: Update, indent: str) -> list[str]:
        place = self.places.element(self, node.buffer, node.indices)
        call = self.call(f"pf_atomic_{node.op}_{node.value.dtype.name}", [f"&{place}", self.expr(node.value)])
        return [f"{indent}{call};"]

    def array(self, node: Declare, indent: str) -> list[str]:
        name = scalar_name(node.name)
        lines = [f"{indent}pf_vec<{node.dtype.c_name}, {node.count}> {name};"]
        if node.value is not None:
            value = self.expr(node.value)
            lines.append(f"{indent}#pragma unroll")
            lines.append(f"{indent}for (int l = 0; l < {node.count}; ++l) {name}[l] = {value};")
        return lines

    def index(self, e: IndexExpr) -> str:
        """Division of what is never negative is that of C."""
        match e:
            case IBin("//" | "%" as op, left, IConst(c)) if c > 0:
                bounds = interval(left, self.ranges)
                if bounds is not None and bounds[0] >= 0:
                    return f"({self.index(left)} {'/' if op == '//' else '%'} {c})"
            case IBin("min" | "max" as op, left, right):
                a, b = self.index(left), self.index(right)
                return f"({a} {'<' if op == 'min' else '>'} {b} ? {a} : {b})"
            case _:
                pass
        return Printer.index(self, e)
