"""`polyfuse compare`: an operator with and without its layers, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from polyfuse.cli import files, screen, settings
from polyfuse.cli import run as running

SUBSETS: tuple[tuple[str, ...], ...] = ((), ("loop",), ("stitch",), ("loop", "stitch"))


def compare(
    file: settings.File,
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    target: settings.Target = "cpu",
    device: settings.Device = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the fastest counts.")] = 20,
    no_check: Annotated[
        bool, typer.Option("--no-check", metavar="", help="Do not compare with the reference.")
    ] = False,
) -> None:
    """Run an operator with each subset of the layers: kernels, bytes, time, agreement.

    A time is the fastest of --repeat runs; bytes count each buffer of a kernel once.

    Examples:

      polyfuse compare stdlib:softmax --size B_0=4096 --size H=1024

      polyfuse compare stdlib:softmax --target cuda
    """
    from polyfuse.cli.compiler import Options
    from polyfuse.decisions import format_bytes
    from polyfuse.runtime import report

    chosen = settings.target_of(target, device)
    options = Options(device=device, seed=seed)
    operator = files.open_operator(file, op, without)
    case = running.prepare(operator, settings.choice(operator, size, dtype, rank), seed)
    columns = [
        ("layers", "left"),
        *((c, "right") for c in ("kernels", "bytes", "on chip", "time", "speed-up")),
    ]
    table = screen.table(running.title(case), [*columns, ("result", "left")])
    slowest, good = 0.0, True
    for layers in SUBSETS:
        done = running.execute(case, operator, chosen, layers, options)
        seconds = _seconds(case, done, repeat)
        machine = None if done.built.compilation.target == "interpret" else done.built.executable
        figures = report.kernel_figures(done.built.kernels.ir, machine)
        slowest = slowest or seconds
        word = "-" if no_check else _verdict(case, done)
        good &= no_check or word == "agrees"
        table.add_row(
            ", ".join(layers) or "none",
            str(len(figures)),
            format_bytes(sum(k.bytes for k in figures)),
            format_bytes(max((k.on_chip for k in figures), default=0)),
            screen.duration(seconds) if seconds else "-",
            f"{slowest / seconds:.2f}x" if seconds else "-",
            word,
        )
    screen.out().print(table)
    if not good:
        raise typer.Exit(1)


def _seconds(case: running.Case, done: running.Done, repeat: int) -> float:
    """Of a call on the CPU, of the kernels on a GPU; 0 where time says nothing."""
    from polyfuse.runtime import report

    executable, target = done.built.executable, done.built.compilation.target
    if target not in ("cpu", "cuda"):
        return 0.0
    arrays = report.memory(executable, case.inputs)
    with screen.working("measuring"):
        if target == "cuda":
            return float(sum(executable.profile(arrays, repeat)))
        return report.best_time(executable.bind(arrays), repeat)


def _verdict(case: running.Case, done: running.Done) -> str:
    judged = [(n, v, running.judgement(v, share)) for n, v, share in running.verdicts(case, done.results)]
    wrong = [f"{name}: {v.message}" for name, v, word in judged if word == "differs"]
    vague = [f"{name}: not checked" for name, _, word in judged if word == "not checked"]
    return "; ".join([*wrong, *vague]) or "agrees"
