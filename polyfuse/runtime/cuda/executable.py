"""Running compiled kernels on a GPU.

A `CudaExecutable` belongs to one choice of sizes and one device.  NumPy arrays are copied to the device and
back; arrays that live there (torch, cupy, jax, numba, PyCUDA, our own) are used where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError, DeviceError
from polyfuse.ir.launch_plan import GridPlan, PlanBuffer
from polyfuse.options import Options
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cuda.call import Job, Resolver
from polyfuse.runtime.cuda.compiler import Cubin, compile_cuda
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.grids import Grids
from polyfuse.runtime.cuda.memory import DeviceMemory, Graph
from polyfuse.runtime.cuda.open import open_driver
from polyfuse.runtime.cuda.results import DeviceArray

Array = np.ndarray[Any, np.dtype[Any]]


def load(
    code: CudaCode, sizes: Mapping[str, int] | None = None, *, flush_denormals: bool = True, index: int = 0
) -> CudaExecutable:
    """Compile for the device of this machine, and load.

    Raises DeviceError PF740 or PF741 without a GPU, ToolchainError PF72x if the source cannot be compiled.
    """
    driver = open_driver(index)
    return CudaExecutable(code, compiled(code, driver, flush_denormals).cubin, sizes or {}, driver)


def compiled(code: CudaCode, driver: Driver, flush_denormals: bool = True) -> Cubin:
    """What `load` loads, compiled or from the cache; the driver's context is not made."""
    options = Options(denormals="flush" if flush_denormals else "keep")
    return compile_cuda(code.source, driver.properties.arch, options=options)


class CudaExecutable:
    """Kernels of one operator at known sizes on one GPU. `run` is safe to call from several threads.

    Raises DeviceError PF744 to PF746 when the device cannot hold the kernels or does not take the code.
    """

    def __init__(
        self,
        code: CudaCode,
        cubin: bytes,
        sizes: Mapping[str, int],
        driver: Driver,
        module: int | None = None,
    ) -> None:
        """`module`: the machine code, where the driver has loaded it already."""
        self.code, self._cubin = code, cubin
        self.plan: GridPlan = code.plan
        self.sizes = dict(sizes)
        self.driver = driver
        self.remarks: tuple[str, ...] = ()
        """What calls so far had to do besides launching, each once."""
        self.memory = DeviceMemory.get(driver)
        self._lock = threading.Lock()
        with driver.current():
            self._module = driver.load(cubin) if module is None else module
            self.grids = Grids(self.plan, sizes, driver, self._module)
        self._resolver = Resolver(self.grids, self.memory, self._note, self._report if code.checks else None)
        self._buffers = [self._resolver.buffers()]  # of calls that are over, to be used again

    def at(self, sizes: Mapping[str, int]) -> CudaExecutable:
        """The same kernels at other values of the sizes that they have open."""
        return CudaExecutable(self.code, self._cubin, sizes, self.driver, self._module)

    def describe(self) -> str:
        """The device, each launch with what it takes there, and remarks."""
        lines = [self.driver.describe()]
        for grid in self.grids.grids:
            f = grid.function
            if grid.product is not None:
                lines.append(f"{f.name}: cuBLAS")
                continue
            x, y = grid.launch.threads
            shared = f.shared_bytes + grid.launch.dynamic_bytes
            lines.append(
                f"{f.name}: {grid.blocks} blocks of {x} x {y} threads, {f.registers} registers, "
                f"{shared} bytes shared, {f.local_bytes} bytes spilled or local"
                + ", cooperative"
                * grid.launch.cooperative
            )
        return "\n".join([*lines, *self.remarks])

    def workspace(self) -> tuple[dict[str, int], int]:
        """(workspace buffer -> offset in the block, bytes of the block)."""
        return dict(self.grids.spaces), self.grids.workspace_bytes

    # --- calls -------------------------------------------------------------------------------------------

    def output(self, b: PlanBuffer) -> Array:
        """Fresh host memory for a result."""
        return Arena.get().empty(self.grids.shapes[b.name], b.dtype.numpy)

    def device_output(self, b: PlanBuffer, stream: int | None = None) -> DeviceArray:
        """Fresh memory on the device for a result, for use on a stream (None: this thread's own)."""
        return self.device_array(self.grids.shapes[b.name], b.dtype.numpy, stream)

    def device_array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None = None
    ) -> DeviceArray:
        """The same in another shape: dims that are always used together are one in the plan."""
        return DeviceArray.empty(self.memory, shape, dtype, stream)

    def run(self, arrays: Mapping[str, object], workspace: int | None = None) -> None:
        """Run on the given arrays (name -> memory, for every buffer that is not workspace).  `workspace`: the
        address of memory for it that the caller has, at a multiple of 256.

        With a NumPy array among the results it returns when they are there; otherwise when all is queued on
        the stream of the arrays. Raises ArgumentError for arrays that do not fit, PF450 (checked builds) for
        an index out of range, and DeviceError PF742 (memory), PF743 (a kernel failed), PF749 where a graph
        that captures the call would use memory that is not its own.
        """
        with self.driver.current():
            try:
                buffers = self._buffers.pop()
            except IndexError:  # other threads are calling
                buffers = self._resolver.buffers()
            try:
                job = self._resolver.resolve(arrays, buffers, None, workspace)
                if job.borrows and self.driver.capturing(job.stream):
                    raise DeviceError(
                        "this call cannot be captured: it works on memory that others get when it is over",
                        hint="call it before with the same shapes, and dense, aligned arrays of one library",
                    )
                job.run()
                if job.held:
                    self.memory.hold(job.held, job.stream)
            finally:
                self._buffers.append(buffers)

    def bind(self, arrays: Mapping[str, object], *, graph: bool = False) -> Callable[[], None]:
        """A prepared call on fixed memory and a fixed stream: nothing is checked or looked up again.

        `graph` makes one CUDA graph of it, where nothing has to be done on the host in between: arrays all on
        the device, no scalars there, no checks; scalars keep the values that they have now. Not for two
        threads at a time.
        """
        job = self.prepare(arrays)
        if graph and not job.on_host and any(g.blocks for g in self.grids.grids):
            with self.driver.current():
                job = self._captured(arrays)
        return self.again(job)

    def prepare(self, arrays: Mapping[str, object]) -> Job:
        """What `run` does, to be done again (`again`)."""
        with self.driver.current():
            return self._resolver.resolve(arrays, self._resolver.buffers())

    def again(self, job: Job) -> Callable[[], None]:
        """A function that does a job once more. Not for two threads at a time."""
        current, memory = self.driver.current, self.memory

        def bound() -> None:
            with current():
                job.run()
                if job.held:
                    memory.hold(job.held, job.stream)

        return bound

    def _captured(self, arrays: Mapping[str, object]) -> Job:
        """The job as a graph, on a stream of its own: nobody else's work may get into the capture."""
        graph = Graph(self.driver)
        job = self._resolver.resolve(arrays, self._resolver.buffers(), graph.stream)
        graph.capture(job.steps)
        job.graph = graph
        return job

    def profile(self, arrays: Mapping[str, object], repeat: int = 10) -> list[float]:
        """Seconds of each launch of the plan: the best of `repeat` rounds, each of all launches in order."""
        with self.driver.current():
            buffers = self._resolver.buffers()
            job = self._resolver.resolve(arrays, buffers)
            job.run()  # fills what is copied at entry, and warms up
            best = {grid: float("inf") for grid, _ in buffers.launches}
            for _ in range(repeat):
                if job.zero is not None:
                    job.zero()
                for grid, parameters in buffers.launches:
                    step = partial(job.launch, grid, parameters)
                    best[grid] = min(best[grid], self.memory.measure(step, job.stream))
        return [best.get(grid, 0.0) for grid in self.grids.grids]

    def timer(self, arrays: Mapping[str, object], together: int = 8) -> Callable[[int], float]:
        """A prepared call on fixed memory that tells what the device takes for it: seconds, the shortest of
        so many turns. A turn is a CUDA graph of `together` calls, so that none waits for the host; a single
        call where something is done on the host in between."""
        with self.driver.current():
            graph = Graph(self.driver)
            job = self._resolver.resolve(arrays, self._resolver.buffers(), graph.stream)
            for other in job.others:
                self.memory.order(other, graph.stream)
            if not job.on_host and any(g.blocks for g in self.grids.grids):
                with suppress(DeviceError):  # a driver may not capture what it can launch
                    graph.capture(partial(_repeated, job, together))
                    job.graph = graph
        # The job has the workspace that the graph's launches use.
        work, count = (partial(_replayed, job), together) if job.graph is not None else (job.run, 1)

        def shortest(turns: int) -> float:
            with self.driver.current():
                times = [self.memory.measure(work, graph.stream) for _ in range(max(1, turns))]
            return min(times) / count

        return shortest

    def wait(self) -> None:
        """Until the device has done what this thread queued. Raises DeviceError PF743 if a kernel failed."""
        with self.driver.current():
            self.driver.synchronize(self.memory.stream())

    def _note(self, remark: str) -> None:
        if remark not in self.remarks:
            with self._lock:
                self.remarks = (*self.remarks, remark)

    def _report(self, number: int) -> None:
        span, known = self.code.checks[number - 1]
        raise ArgumentError(
            f"an index from data is out of range: '{span.text}' is not in {known}",
            code="PF450",
            span=span,
        )


def _repeated(job: Job, count: int) -> None:
    for _ in range(count):
        job.steps()


def _replayed(job: Job) -> None:
    assert job.graph is not None
    job.graph.launch()
