"""Compilation in the background, for `compile="async"`.

    a call at new sizes   asks for its kernels, and is computed by NumPy while there are none
    a thread              compiles what was asked for, one after another, and ends with the process
    a shape called often  has kernels of its own made, where those that run have its sizes open, and by the
                          cost model it pays

What NumPy computes is what the operator says, in its own types; a program that has no NumPy form waits for
its kernels.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from polyfuse.cost.open_gain import OpenGain, open_gain
from polyfuse.cost.speed_of_light import estimate
from polyfuse.diagnostics import PolyfuseError, PolyfuseWarning
from polyfuse.driver.call import Instance
from polyfuse.driver.kernel_stages import kernels_at
from polyfuse.driver.open_sizes import Family
from polyfuse.driver.pipeline import Built, Compilation, Watch, fixed_graph, planned
from polyfuse.driver.stages import BuiltStages
from polyfuse.driver.targets import this_cpu
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.layouts import Layouts
from polyfuse.options import Options
from polyfuse.runtime.cpu.fast_path import layout
from polyfuse.runtime.numpy_baseline import NumpyKernels
from polyfuse.runtime.numpy_text import Unsupported
from polyfuse.support.processes import ForkLock

# --- the thread -------------------------------------------------------------------------------------------


class Background:
    """A thread that does tasks one after another while there are any. Nobody waits for it; in a forked child
    what was asked for is done again."""

    _usual: Background | None = None

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    @classmethod
    def get(cls) -> Background:
        """That of the process."""
        if cls._usual is None:
            cls._usual = cls()
        return cls._usual

    def submit(self, task: Callable[[], None]) -> None:
        """Do a task, which raises nothing, some time."""
        with self._lock:
            self._tasks.append(task)
        self.wake()

    def wake(self) -> None:
        """Go on with what is left: a forked child has no thread."""
        with self._lock:
            if self._tasks and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="polyfuse compiler", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._thread = None
                    return
                task = self._tasks[0]  # stays there until it is done, for forked children
            task()
            with self._lock:
                self._tasks.popleft()


# --- what runs meanwhile ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What a call needs kernels for: sizes, layouts of memory, and the family whose graph it is."""

    sizes: Mapping[str, int]
    layouts: Layouts
    family: Family

    def instance(self, built: BuiltStages) -> Instance:
        """What was built for it, with what calls need to know."""
        graph = self.family.graph
        outputs = map(graph.tensor, graph.outputs)
        shapes = tuple((t, tuple(evaluate(e, self.sizes) for e in t.shape)) for t in outputs)
        pairs = tuple((t.name, t.alias) for t in graph.tensors if t.alias is not None)
        inputs = tuple(map(graph.tensor, graph.inputs))
        return Instance(built, inputs, shapes, pairs, self.sizes, self.layouts.orders, self.family)


def in_numpy(wanted: Wanted, target: str, options: Options) -> Built | None:
    """The operator as NumPy computes it, None where it has no such form.

    Raises DslError for sizes at which the program reads out of range."""
    graph, sizes = wanted.family.graph, wanted.sizes
    fixed_graph(graph, sizes)
    try:
        machine = NumpyKernels(graph, sizes)
    except Unsupported:
        return None
    return Built(Compilation(graph, sizes, None, options, target=target), None, machine, (), {}, at=sizes)


@dataclass
class Pending:
    """Calls of a function whose kernels are being compiled, and what runs them until then."""

    name: str
    _found: dict[object, Instance | None] = field(default_factory=dict)
    _failures: dict[object, str] = field(default_factory=dict)

    def find(self, key: object) -> Instance | None:
        """What runs a call. Warns once where there will be no kernels."""
        found = self._found.get(key)
        if found is not None:
            Background.get().wake()
            if (why := self._failures.pop(key, None)) is not None:
                warnings.warn(why, PolyfuseWarning, stacklevel=5)
        return found

    def begin(self, key: object, meanwhile: Instance | None, compile: Callable[[], None]) -> None:
        """Compile for such calls, unless that goes on."""
        if key not in self._found:
            self._found[key] = meanwhile
            Background.get().submit(partial(self._do, key, compile))

    def _do(self, key: object, compile: Callable[[], None]) -> None:
        try:
            compile()
        except Exception as error:  # whatever it is, there is something that runs the calls
            known = isinstance(error, PolyfuseError)
            why = error.diagnostics[0].message if isinstance(error, PolyfuseError) else str(error)
            text = f"{self.name} could not be compiled in the background, calls go on without: "
            self._failures[key] = f"PF760: {text}{'' if known else type(error).__name__ + ': '}{why}"
        else:
            self._found.pop(key, None)


# --- shapes that are called often -------------------------------------------------------------------------

EVERY, OFTEN = 64, 16
"""One in so many calls is looked at; a layout that was seen so often may have kernels of its own."""
MOST_LAYOUTS = 1024


@dataclass
class Frequent:
    """Counts layouts of calls, by samples."""

    _calls: int = 0
    _seen: Counter[object] = field(default_factory=Counter)
    _due: dict[object, float] = field(default_factory=dict)

    def due(self, args: Sequence[Any]) -> tuple[object, int] | None:
        """Note a call: its layout and how many calls of it there were, about, if these are as many as were
        waited for."""
        self._calls += 1
        if self._calls % EVERY:
            return None
        key = layout(args)
        if key is None:
            return None
        if len(self._seen) > MOST_LAYOUTS:
            self._seen.clear()
            self._due.clear()
        self._seen[key] += 1
        if self._seen[key] < self._due.get(key, OFTEN):
            return None
        self._due[key] = inf
        return key, EVERY * self._seen[key]

    def wait(self, key: object, calls: float) -> None:
        """Tell when there were so many calls of a layout."""
        self._due[key] = calls / EVERY


def gain_at(open: Built, fixed: Compilation) -> OpenGain:
    """What a CPU gains by kernels that know all sizes. Compiles them as far as their source text, which the
    cache keeps."""
    step = Watch(replace(fixed.options, dump=None))
    made, _, decisions = planned(step, fixed)
    machine = this_cpu(fixed.options.threads)
    own = (made or fixed.lowered(step)).kernels
    seconds = (estimate(k, machine).seconds for k in (kernels_at(open.kernels, fixed.sizes), own))
    return open_gain((next(seconds), next(seconds)), (open.decisions, decisions), len(own.kernels))
