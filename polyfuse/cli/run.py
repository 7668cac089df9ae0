"""`polyfuse run`: seeded inputs, a run, the check against the reference, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfuse.cli import files, inputs, screen, settings, times
from polyfuse.options import DENORMALS, LIBRARY

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Compiled, Operator, Options
    from polyfuse.runtime.reference.agreement import Agreement


def run(
    file: settings.File,
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    target: settings.Target = "auto",
    device: settings.Device = None,
    layers: settings.Layers = "loop,stitch,pack",
    partition: settings.Partition = "connect",
    tune: settings.Tune = "model",
    cost: settings.Cost = "auto",
    plan: settings.Plan = None,
    library: settings.Library = "auto",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the inputs, and of the emulator's order of threads.")
    ] = 0,
    input: inputs.Arrays = None,
    range: inputs.Ranges = None,
    resident: settings.Resident = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the fastest counts.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; else all cores.")] = None,
    checked: settings.Checked = False,
    denormals: Annotated[
        str, typer.Option(metavar="MODE", help="flush: f32 denormals may become zero; keep: they stay.")
    ] = "flush",
    no_check: Annotated[bool, typer.Option("--no-check", metavar="", help="Skip the comparison.")] = False,
) -> None:
    """Run an operator on seeded inputs, check it, and show where the time goes.

    Results are compared with a float64 reference; one of which 1 % or more is NaN or undecided was not
    checked, and the exit code is 1. Inputs are drawn so that results are numbers, if trying finds how.
    Bytes count each buffer of a kernel once; the share is of the bandwidth that this machine reaches on as
    many bytes, or of a GPU's memory (above 100 % where a kernel finds in a cache what the one before left).
    The emulator runs CUDA kernels on the CPU, and what it finds (races, accesses out of bounds) is an error.

    Examples:

      polyfuse run stdlib:layer_norm --size B_0=4096 --size H=768 --tune measure

      polyfuse run norms.pf --op rms_norm --dtype F=f16 --target interpret

      polyfuse run losses.pf --input batch.npz --range tau=0.5..2 --target emulate
    """
    from polyfuse.cli.compiler import Options

    chosen, applied = settings.target_of(target, device, resident), settings.layers_of(layers)
    cut, operator = settings.partition_of(partition, applied), files.open_operator(file, op, without)
    options = Options(
        checked=checked,
        denormals=settings.one_of(denormals, DENORMALS, f"there is no --denormals {denormals}"),  # type: ignore[arg-type]
        threads=threads,
        device=device,
        seed=seed,
        resident=resident,
        tune=settings.tune_of(tune, chosen),  # type: ignore[arg-type]
        cost=settings.cost_of(cost, chosen),  # type: ignore[arg-type]
        plan=settings.path_of(plan),
        library=settings.one_of(library, LIBRARY, f"there is no --library {library}"),  # type: ignore[arg-type]
    )
    _use_threads(threads, chosen)
    asked = inputs.wanted(operator, input, range)
    case = prepare(operator, settings.choice(operator, size, dtype, rank), seed, asked)
    done = execute(case, operator, chosen, applied, options, cut)
    _show(case, done, repeat)
    if not no_check and not compare_results(case, done.results):
        raise typer.Exit(1)


def _use_threads(threads: int | None, target: str) -> None:
    if threads is not None and target in ("auto", "cpu"):
        from polyfuse.runtime.cpu.pool import Pool

        Pool.get().set_threads(threads)


def _show(case: Case, done: Done, repeat: int) -> None:
    """Where the time goes, on a target on which it says something; what compiling took."""
    screen.out().print(title(case), style="bold", soft_wrap=True)
    executable, took = done.built.executable, screen.duration(done.seconds)
    match done.built.compilation.target:
        case "interpret":
            screen.out().print(f"interpreted in {took} (no compiler; times say nothing)")
        case "emulate":
            r = executable.report
            what = f"{times.kernels(r.launches)}, {r.blocks} blocks, nothing wrong found"
            screen.out().print(f"emulated in {took} (times say nothing): {what}")
        case "cuda":
            times.show_gpu(case, done, repeat)
        case _:
            times.show_cpu(case, done, repeat)
    if done.built.tuning is not None:
        screen.show(str(done.built.tuning))
    screen.out().print(done.built.cost, soft_wrap=True)


@dataclass(frozen=True)
class Case:
    """An operator with sizes and inputs."""

    name: str
    graph: Any
    sizes: Mapping[str, int]
    inputs: Mapping[str, Any]

    @property
    def given(self) -> dict[str, int]:
        """Size parameters, as a call gives them."""
        return {p.name: self.sizes[p.name] for p in self.graph.size_parameters}


@dataclass(frozen=True)
class Done:
    """A finished run: what was compiled, the results by name, the seconds of the first call."""

    built: Any
    results: Mapping[str, Any]
    seconds: float


def prepare(
    operator: Operator, choice: settings.Choice, seed: int, asked: inputs.Wanted | None = None
) -> Case:
    """The operator's graph at the generics asked for, all its sizes, and inputs."""
    from polyfuse.runtime.inputs import default_sizes
    from polyfuse.runtime.machine.room import require_room, wanted_by

    asked = asked or inputs.Wanted()
    choice = inputs.choice_for(operator, choice, asked.arrays)
    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    sizes = default_sizes(graph, choice.sizes)
    assumed = [f"{n}={v}" for n, v in sizes.items() if n not in choice.sizes]
    if assumed:
        screen.note(f"sizes not given: {', '.join(assumed)} (choose with --size)")
    require_room(wanted_by(graph, sizes), "the array")
    graph_at_sizes = operator.specialize(choice.dtypes, choice.ranks, **sizes).open_graph
    return Case(operator.name, graph_at_sizes, sizes, inputs.make(graph, sizes, seed, asked))


def compiled(
    operator: Operator, target: str, layers: tuple[str, ...], options: Options, partition: str
) -> Compiled:
    """The operator as a function."""
    from polyfuse.cli.compiler import compile

    return compile(
        operator.program,
        operator.name,
        target=target,  # type: ignore[arg-type]
        layers=layers,
        partition=partition,  # type: ignore[arg-type]
        options=options,
    )


def execute(
    case: Case,
    operator: Operator,
    target: str,
    layers: tuple[str, ...],
    options: Options,
    partition: str = "connect",
) -> Done:
    """Compile and run once, on copies of what the operator changes."""
    import time

    function = compiled(operator, target, layers, options, partition)
    changed = {t.alias: t.name for t in case.graph.tensors if t.alias is not None}
    inputs = {n: a.copy() if n in changed else a for n, a in case.inputs.items()}
    with screen.working("compiling"):
        built = function.built(**inputs, **case.given)
    with screen.working("running"):
        start = time.perf_counter()
        value = function(**inputs, **case.given)
        seconds = time.perf_counter() - start
    values = value if isinstance(value, tuple) else (value,)
    results = dict(zip(case.graph.outputs, values, strict=False))
    results.update({written: inputs[name] for name, written in changed.items()})
    return Done(built, results, seconds)


def title(case: Case) -> str:
    """The operator and its sizes, as a heading."""
    sizes = ", ".join(f"{n}={v}" for n, v in case.sizes.items())
    return f"{case.name}({sizes})"


# --- the check ----------------------------------------------------------------------------------------


def compare_results(case: Case, results: Mapping[str, Any]) -> bool:
    """Compare with the reference and print a line for each result; whether all are checked and agree."""
    from rich.text import Text

    good = True
    for name, verdict, unchecked in verdicts(case, results):
        line, word = Text(f"{name}: "), judgement(verdict, unchecked)
        line.append(word, style="green" if word == "agrees" else "bold red")
        if word == "differs":
            line.append(f" from the float64 reference: {verdict.message}")
        elif word == "not checked":
            line.append(" with these inputs (give others with --range or --input)")
        else:
            line.append(
                f" with the float64 reference (worst error {verdict.worst_ratio:.2g} of what is allowed)"
            )
        if unchecked:
            line.append(f"; {unchecked:.2%} of it is NaN or undecided", style="yellow")
        screen.out().print(line, soft_wrap=True)
        good &= word == "agrees"
    return good


def judgement(verdict: Agreement, unchecked: float) -> str:
    """What a comparison says, `unchecked` being the share of elements about which it says nothing."""
    from polyfuse.runtime.reference.agreement import MOST_UNDECIDED

    if verdict.mismatches or not (verdict or unchecked):
        return "differs"
    return "agrees" if unchecked < MOST_UNDECIDED else "not checked"


def verdicts(case: Case, results: Mapping[str, Any]) -> list[tuple[str, Agreement, float]]:
    """(result, agreement, the share that cannot be checked) for each; an inout parameter has its own name."""
    import numpy as np

    from polyfuse.runtime.reference.agreement import agrees, unchecked
    from polyfuse.runtime.reference.evaluate import evaluate

    with screen.working("computing the float64 reference"):
        expected = evaluate(case.graph, case.sizes, case.inputs, checked=False, results=results)
    found = []
    for name, got in results.items():
        t, want = case.graph.tensor(name), expected[name]
        agreement = agrees(np.asarray(got), want, t.dtype)
        found.append((t.alias or name, agreement, unchecked(want, case.inputs)))
    return found
