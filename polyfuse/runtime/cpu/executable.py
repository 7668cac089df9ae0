"""Running compiled kernels on the CPU: pointers in, one call of the pool.

A `CpuExecutable` belongs to one choice of sizes and layouts.  It owns the loaded library, as the
steps of its calls do; workspace comes from the arena at each call, so that calls from several threads do not
meet.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import PARALLEL_WORK
from polyfuse.ir.launch_plan import Kind, Launch, LaunchPlan, PlanBuffer
from polyfuse.runtime.arguments import Array, element_strides
from polyfuse.runtime.cpu.blas import LibraryStep
from polyfuse.runtime.cpu.memory import Arena, layout
from polyfuse.runtime.cpu.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain.compiler import KernelLibrary, load_kernels
from polyfuse.runtime.toolchain.sanitizers import sanitized
from polyfuse.runtime.toolchain.vector_report import not_vectorised
from polyfuse.support.processes import ForkLock

CHUNKS_PER_THREAD = 8
# Where a thread has less, it claims fewer chunks: each claim takes some 0.05 us of the others' time.  Short
# rounds of a series follow one another at once; elsewhere a worker may wake up late.
CHUNK_INSTANCES = 16 * 1024
FEWEST_CHUNKS, FEWEST_IN_SERIES = 4, 2
LINE = 64
_BYTE = np.dtype(np.uint8)


def _chunks_each(launch: Launch, instances: int) -> int:
    """Chunks of a thread with so many instances."""
    fewest = FEWEST_CHUNKS if launch.rounds == 1 else FEWEST_IN_SERIES
    return max(fewest, min(CHUNKS_PER_THREAD, instances // launch.rounds // CHUNK_INSTANCES))


def _chunk(count: int, parts: int, threads: int, together: Sequence[int], least: int = 1) -> int:
    """Iterations of a chunk: so many parts of `count`, or fewer, if these were shorter than `least` and each
    thread has one, in whole groups of those that are computed together, of the largest that leave a chunk for
    each thread."""
    chunk = max(-(-count // parts), min(least, count // threads))
    wholes = (-(-chunk // group) * group for group in together)
    return next((whole for whole in wholes if whole * threads <= count), chunk)


class CpuExecutable:
    """Kernels of one operator at known sizes. `run` is safe to call from several threads."""

    def __init__(
        self,
        code: CpuCode,
        sizes: Mapping[str, int],
        *,
        flush_denormals: bool = True,
        threads: int | None = None,
        library: KernelLibrary | None = None,
    ) -> None:
        """`threads` bounds how many of the pool's threads take part; None means all.  `library`: the kernels,
        where they are loaded already."""
        self.code = code
        self._threads = threads
        self.plan: LaunchPlan = code.plan
        self.sizes = dict(sizes)
        self._flush = flush_denormals
        self._library = library or load_kernels(code.source)
        self._lock = ForkLock()
        self._shapes = {b.name: tuple(evaluate(e, sizes) for e in b.shape) for b in self.plan.buffers}
        # Static offsets of workspace buffers (entry copies included).
        self.layout = layout(self.plan.buffers, self.plan.copied, sizes, LINE)
        self._spaces, self._workspace_bytes = self.layout.spaces, self.layout.nbytes
        self._failures: list[BaseException] = []
        self._library_steps: list[LibraryStep] = []
        self._prepared: PreparedCall | None = self.prepare()

    def at(self, sizes: Mapping[str, int]) -> CpuExecutable:
        """The same kernels at other values of the sizes that they have open."""
        return CpuExecutable(
            self.code, sizes, flush_denormals=self._flush, threads=self._threads, library=self._library
        )

    @property
    def scalar_loops(self) -> tuple[Decision, ...]:
        """The innermost loops that the C++ compiler did not vectorise, as it says."""
        return not_vectorised(Path(self._library._name).parent)

    # --- preparation ------------------------------------------------------------------------------------

    def prepare(self) -> PreparedCall:
        """A call of its own pointer table, to be filled."""
        pool = Pool.get()
        steps = StepArray([self._step(pool, x) for x in self.plan.launches], self._library)
        strides = sum(len(b.shape) for b in self.plan.buffers if b.strided)
        numbers = [self.sizes[n] for n in self.plan.sizes] + [0] * strides
        return pool.prepare(
            steps,
            buffers=len(self.plan.buffers) + 1,
            numbers=numbers,
            scratch_bytes=self.plan.scratch_bytes,
            flush_denormals=self._flush,
        )

    def _step(self, pool: Pool, launch: Launch) -> Step:
        count = max(0, evaluate(launch.count, self.sizes))
        instances = evaluate(launch.instances, self.sizes)
        if launch.library is not None:
            return Step(self._library_step(launch.library).address, 1, 1, False)
        function = self._library.address(launch.function)
        threads = self.threads(pool.threads)
        # Kernels know what a step of a series is worth.
        worth = evaluate(launch.work, self.sizes) >= PARALLEL_WORK or launch.rounds > 1
        parallel = launch.parallel and count > 1 and worth and threads > 1
        # As many chunks as threads keep the others out; otherwise more, for balance.
        each = self.plan.chunks or _chunks_each(launch, instances // threads)
        parts = threads if threads < pool.threads else threads * each
        chunk = _chunk(count, parts, threads, launch.together, launch.least) if parallel else max(1, count)
        return Step(function, count, chunk, parallel, launch.series, launch.rounds)

    def threads(self, pool: int) -> int:
        """How many of the pool's threads take part."""
        return min(self._threads or pool, pool, self.plan.threads or pool)

    def _library_step(self, product: MatrixProduct) -> LibraryStep:
        places = {b.name: k for k, b in enumerate(self.plan.buffers)}
        dtype = self.plan.buffers[places[product.out.tensor]].dtype
        step = LibraryStep(product, places, self._shapes, dtype, self._failures)
        self._library_steps.append(step)
        return step

    def workspace(self) -> tuple[dict[str, int], int]:
        """(workspace buffer -> offset in the block, bytes of the block)."""
        return {n: s.offset for n, s in self._spaces.items()}, self._workspace_bytes

    def temporaries(self) -> dict[str, tuple[Array, int]]:
        """Memory for one call, of each workspace buffer, and its address: all in one block, or for sanitizers
        one by one."""
        arena = Arena.get()
        if sanitized():
            return {n: arena.place((s.nbytes,), _BYTE) for n, s in self._spaces.items()}
        if not self._spaces:
            return {}
        block, base = arena.place((self._workspace_bytes,), _BYTE)
        return {n: (block[s.offset : s.offset + s.nbytes], base + s.offset) for n, s in self._spaces.items()}

    # --- calls -------------------------------------------------------------------------------------------

    def output(self, b: PlanBuffer) -> Array:
        """Fresh memory for a result."""
        return Arena.get().empty(self._shapes[b.name], b.dtype.numpy)

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on the given arrays (name -> memory, for every buffer that is not workspace).

        Raises ArgumentError PF450 (checked builds) for an index out of range, and MemoryError.
        """
        with self._lock:
            # Taken, so that this very thread, if it comes again in a finaliser, does not write into it.
            prepared, self._prepared = self._prepared, None
            prepared = prepared or self.prepare()
            try:
                call, keep = self._fill(prepared, arrays)
                call()
            finally:
                self._prepared = prepared
        del keep

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """A prepared call on fixed memory: nothing is checked or looked up again. Not for two threads."""
        call, keep = self._fill(self.prepare(), arrays)
        plain = not self.plan.copied and not self.code.checks and not self._library_steps

        def bound(call: Callable[[], None] = keep[0].check if plain else call, keep: object = keep) -> None:
            call()  # `keep` owns the memory that the prepared call points to

        return bound

    def profile(self, arrays: Mapping[str, Array], repeat: int = 10) -> list[float]:
        """Seconds of each launch of the plan: the best of `repeat` rounds, each of all launches in order."""
        whole, keep = self._fill(self.prepare(), arrays)
        whole()  # fills what is copied at entry, and warms up
        prepared = keep[0]
        calls = []
        for step in prepared.steps.steps:
            single = Pool.get().prepare(
                StepArray([replace(step, series=1)], self._library),
                buffers=len(prepared.buffers),
                numbers=list(prepared.numbers),
                scratch_bytes=self.plan.scratch_bytes,
                flush_denormals=self._flush,
            )
            ctypes.memmove(single.buffers, prepared.buffers, ctypes.sizeof(prepared.buffers))
            calls.append(single.check)
        best = [float("inf")] * len(calls)
        for _ in range(max(1, repeat)):
            for k, call in enumerate(calls):
                start = time.perf_counter()
                call()
                best[k] = min(best[k], time.perf_counter() - start)
        return best

    def _fill(
        self, prepared: PreparedCall, arrays: Mapping[str, Array]
    ) -> tuple[Callable[[], None], tuple[PreparedCall, object, object]]:
        """Put pointers and strides into a prepared call; what must stay alive comes back with it."""
        memory = self.temporaries()
        status = np.zeros(1, np.int64)
        number = len(self.plan.sizes)
        copies: list[tuple[Array, Array]] = []
        for k, b in enumerate(self.plan.buffers):
            if b.name not in memory:
                array = arrays[b.name]
                prepared.buffers[k] = array.__array_interface__["data"][0]
                strides = element_strides(array) if b.strided else ()
            else:
                own, prepared.buffers[k] = memory[b.name]
                strides = ()
                if b.kind is not Kind.WORKSPACE:
                    copies.append((own.view(b.dtype.numpy).reshape(self._shapes[b.name]), arrays[b.name]))
                    strides = element_strides(copies[-1][0]) if b.strided else ()
            for s in strides:
                prepared.numbers[number] = s
                number += 1
        prepared.buffers[len(self.plan.buffers)] = status.__array_interface__["data"][0]

        def call() -> None:
            for copy, source in copies:
                copy[...] = source.reshape(copy.shape)
            prepared.check()
            self.check_library()
            if status[0]:
                self._report(int(status[0]))

        return call, (prepared, (memory, copies, dict(arrays)), status)

    def check_library(self) -> None:
        """Raise what went wrong in library steps."""
        if self._failures:
            raise self._failures.pop()

    def _report(self, number: int) -> None:
        span, known = self.code.checks[number - 1]
        raise ArgumentError(
            f"an index from data is out of range: '{span.text}' is not in {known}",
            code="PF450",
            span=span,
        )
