"""The backend of `torch.compile`: `torch.compile(model, backend="polyfuse")`.

    Dynamo's graph --AOTAutograd--> functional ATen graphs, forward and backward
                   --partition--> regions --lowering--> tensor graphs --driver--> kernels
                   --assemble--> a graph with a call for each region

What cannot be lowered or compiled stays with ATen: it is counted, has a reason in the report, and a file that
shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from polyfuse.diagnostics import ToolchainError
from polyfuse.options import Options
from polyfuse.torch.dynamo import lowerings
from polyfuse.torch.dynamo.assemble import assemble
from polyfuse.torch.dynamo.kernels import PROGRAMS, Call, told_by
from polyfuse.torch.dynamo.lowering import Lowered, device_of, is_item, lower
from polyfuse.torch.dynamo.lowerings.table import complete
from polyfuse.torch.dynamo.memory import relieve
from polyfuse.torch.dynamo.partition import Partition, Region, partition
from polyfuse.torch.dynamo.products import add_up
from polyfuse.torch.dynamo.report import (
    COUNTERS,
    GRAPHS,
    GraphReport,
    aten_nodes,
    references,
    region_report,
)
from polyfuse.torch.dynamo.reproducer import ByAten, Text, save
from polyfuse.torch.dynamo.settings import Settings, decompositions, forward_and_backward
from polyfuse.torch.dynamo.sizes import Unsupported

Node: TypeAlias = Any
__all__ = ["lowerings", "polyfuse_backend"]


def polyfuse_backend(
    module: Any,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """What Dynamo calls with a graph: gives what computes it.

    Raises ArgumentError PF810 for options that there are not, ToolchainError PF811 with `strict` for a region
    that cannot be compiled.
    """
    from torch._dynamo.backends.common import aot_autograd

    settings = Settings.of({**(options or {}), **kwargs}, mode)
    tensors = references(inputs)
    with _keeping(settings, tensors) as kept:
        compilers = {
            name: kept(partial(compile_graph, settings=settings, kind=kind, tensors=tensors))
            for name, kind in (
                ("fw_compiler", "forward"),
                ("bw_compiler", "backward"),
                ("inference_compiler", "inference"),
            )
        }
        made: Callable[..., Any] = aot_autograd(
            **compilers,
            decompositions=decompositions(),
            partition_fn=forward_and_backward,
            keep_inference_input_mutations=True,
        )(module, inputs)
    return made


@contextmanager
def _keeping(settings: Settings, tensors: tuple[Any, ...]) -> Iterator[Callable[[Any], Any]]:
    """`cached.keeping`, where this torch keeps graphs of other backends."""
    try:
        from polyfuse.torch.dynamo.cached import keeping
    except ImportError:
        yield lambda compiler: compiler
        return
    with keeping(str(settings), tensors) as kept:
        yield kept


def compile_graph(
    module: Any,
    inputs: Sequence[Any],
    *,
    settings: Settings,
    kind: str,
    tensors: tuple[Any, ...] = (),
    wrap: Callable[..., Any] | None = None,
) -> Callable[[list[Any]], Any]:
    """What computes an ATen graph; it takes a list of arguments, and empties it.  `wrap` makes of it what
    torch keeps."""
    import torch

    start = time.perf_counter()
    graph = module.graph
    graph.eliminate_dead_code()
    complete()
    add_up(graph)
    told = GraphReport(kind, tensors=tensors)
    found, lowered, calls = _compiled(graph, settings, told)
    assembled = assemble(graph, found, lowered, calls)
    if settings.rest == "inductor":
        _rest_by_inductor(assembled, settings, told)
    made = torch.fx.GraphModule(module, assembled)
    told.aten = aten_nodes(found)
    told.calls = list(calls.values())
    told.seconds = time.perf_counter() - start
    GRAPHS.append(told)
    code = _boxed(made)
    return _run(made) if wrap is None or code is None else wrap(_run(made), made, Text.of(code), told)


def _rest_by_inductor(graph: Any, settings: Settings, told: GraphReport) -> None:
    """What is in no region, by Inductor."""
    from torch._dynamo.utils import counters

    from polyfuse.torch.dynamo.rest import by_inductor

    def refused(operators: str, problem: Exception) -> None:
        message = f"Inductor does not compile {operators}: {problem}"
        if settings.strict:
            raise ToolchainError(message, code="PF811", hint="without strict ATen computes it") from problem
        told.failures.append(message)
        counters[COUNTERS]["fallbacks"] += 1

    told.by_inductor = [x.operators for x in by_inductor(graph, settings.precision, refused)]


def _boxed(module: Any) -> Any:
    """Have the graph take a list, which it empties: arguments die as soon as they are read last.  Gives its
    code; None where this torch has no such code."""
    try:
        from torch.fx.graph import _BoxedCodeGen
    except ImportError:
        return None
    module.graph.set_codegen(_BoxedCodeGen())
    return module.recompile()


def _run(module: Any) -> Callable[[list[Any]], Any]:
    """A call with a list, which is emptied."""
    forward = module.forward
    takes_list = type(module.graph._codegen).__name__ == "_BoxedCodeGen"

    def run(arguments: list[Any], forward: Callable[..., Any] = forward) -> Any:
        if takes_list:
            return forward(arguments)
        given = tuple(arguments)
        arguments.clear()
        return forward(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _compiled(
    graph: Any, settings: Settings, told: GraphReport
) -> tuple[Partition, dict[int, Lowered], dict[int, Call]]:
    """Regions, their graphs and calls; nodes that cannot be lowered are refused until all others are."""
    refused: dict[Node, str] = {}
    while True:
        found = partition(graph, refused)
        relieve(list(graph.nodes), found, arguments_die=told.kind == "backward")
        try:
            lowered = {k: _lowered(r, settings) for k, r in enumerate(found.regions)}
        except _Refused as problem:
            refused.update(problem.reasons)
            continue
        calls = {k: _call(k, r, lowered[k], found, told) for k, r in enumerate(found.regions)}
        failed = _failures(found, lowered, calls, settings, told)
        if not failed:
            return found, lowered, calls
        refused.update(failed)


class _Refused(Exception):
    """Nodes that cannot be lowered after all, and why."""

    def __init__(self, reasons: dict[Node, str]) -> None:
        super().__init__()
        self.reasons = reasons


def _lowered(region: Region, settings: Settings) -> Lowered:
    try:
        return lower(region.nodes, region.outputs, settings.precision)
    except Unsupported as problem:
        node = getattr(problem, "node", None)
        nodes = region.nodes if node is None else (node.args[0] if is_item(node) else node,)
        raise _Refused(dict.fromkeys(nodes, str(problem))) from None
    except Exception as problem:  # a fault of ours is no fault of the model
        if settings.strict:
            raise
        raise _Refused(dict.fromkeys(region.nodes, f"{type(problem).__name__}: {problem}")) from None


def _call(k: int, region: Region, low: Lowered, found: Partition, told: GraphReport) -> Call:
    program = PROGRAMS.of(low.graph, device_of(region.nodes).partition(":")[0], Options())
    name = f"polyfuse_{told.kind}_{k}"
    return Call(low, program, ByAten(region, low), name)


def _failures(
    found: Partition,
    lowered: dict[int, Lowered],
    calls: dict[int, Call],
    settings: Settings,
    told: GraphReport,
) -> dict[Node, str]:
    """Compile; the nodes of regions that cannot be, and why."""
    from torch._dynamo.utils import counters

    failed: dict[Node, str] = {}
    reports = []
    for k, region in enumerate(found.regions):
        call = calls[k]
        if call.is_known:
            try:
                call.compile()
            except Exception as problem:  # a fault of ours is no fault of the model
                why = told_by(problem)
                file = save(region, lowered[k], why)
                message = f"{call.__name__} cannot be compiled: {why}; it is in {file}"
                if settings.strict:
                    raise ToolchainError(
                        message, code="PF811", hint="without strict ATen computes it"
                    ) from problem
                told.failures.append(message)
                counters[COUNTERS]["fallbacks"] += 1
                failed.update(dict.fromkeys(region.nodes, f"it could not be compiled: {why}"))
                continue
        reports.append(region_report(call, region, lowered[k], found))
    told.regions = reports
    if not failed:
        counters[COUNTERS]["regions"] += len(calls)
    return failed
