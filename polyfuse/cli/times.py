"""Tables of `polyfuse run`: time, bytes and bandwidth of each kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.cli import screen

if TYPE_CHECKING:
    from rich.table import Table

    from polyfuse.cli.run import Case, Done


def show_cpu(case: Case, done: Done, repeat: int) -> None:
    """Kernels, one call, the machine, NumPy."""
    from polyfuse.decisions import format_bytes
    from polyfuse.runtime import report
    from polyfuse.runtime.machine import probe as machine

    executable = done.built.executable
    arrays = report.memory(executable, case.inputs)
    with screen.working("measuring the kernels"):
        seconds = executable.profile(arrays, repeat)
        whole = report.best_time(executable.bind(arrays), repeat)
    figures = report.kernel_figures(done.built.kernels.ir, executable)
    table = _table()
    read, written = sum(k.read for k in figures), sum(k.written for k in figures)
    held = report.working_set(executable)
    with screen.working("measuring the machine (once; then it is known)"):
        for k in figures:
            took = sum(seconds[i] for i in k.launches)
            table.add_row(k.name, _names(k.statements), *_row(took, k.read, k.written, k.bytes))
        table.add_section()
        table.add_row("one call", kernels(len(figures)), *_row(whole, read, written, held))
        rates = machine.measure(held)
    out = screen.out()
    out.print(table)
    most = f"{report.rate_for(rates, read, written):.3g} GB/s on {format_bytes(held)}"
    threads = f"{rates.threads} thread{'s' if rates.threads != 1 else ''}"
    out.print(f"this machine: {most} with {threads}; best of {repeat} runs", soft_wrap=True)
    _show_numpy(case, whole)


def show_gpu(case: Case, done: Done, repeat: int) -> None:
    """Kernels on the device, and a call with its copies."""
    from polyfuse.runtime import report

    executable = done.built.executable
    arrays = report.memory(executable, case.inputs)
    with screen.working("measuring the kernels"):
        seconds = executable.profile(arrays, repeat)
        whole = report.best_time(lambda: executable.run(arrays), repeat)
    figures = report.kernel_figures(done.built.kernels.ir, executable)
    properties = executable.driver.properties
    most = _memory_bandwidth(properties.name)
    table = _table()
    for k in figures:
        took = sum(seconds[i] for i in k.launches)
        table.add_row(k.name, _names(k.statements), *_gpu_row(took, k.bytes, most))
    table.add_section()
    all_bytes = sum(k.bytes for k in figures)
    table.add_row("all", kernels(len(figures)), *_gpu_row(sum(seconds), all_bytes, most))
    out = screen.out()
    out.print(table)
    limit = "its bandwidth is not in the table of devices" if most is None else f"{most / 1e9:.4g} GB/s"
    out.print(f"{properties}: {limit}; best of {repeat} runs", soft_wrap=True)
    copies = f"{screen.duration(whole)} with NumPy arrays, copies to and from the GPU included"
    out.print(f"one call: {copies}", soft_wrap=True)
    _show_numpy(case, whole)


def _gpu_row(seconds: float, moved: int, most: float | None) -> tuple[str, str, str, str]:
    """Time, bytes, rate, and its share of what the memory of the device can do, if that is known."""
    from polyfuse.decisions import format_bytes

    rate = moved / seconds if seconds > 0 else 0.0
    share = "n/a" if most is None else f"{rate / most:.0%}"
    return screen.duration(seconds), format_bytes(moved), f"{rate / 1e9:.3g}", share


def _memory_bandwidth(name: str) -> float | None:
    """Bytes per second of a GPU's memory; None for one that the table of devices lacks."""
    from polyfuse.cli.compiler import Options, ToolchainError, chip

    try:
        return chip(Options(device=name)).memory_bandwidth
    except ToolchainError:
        return None


def _table() -> Table:
    columns = [("kernel", "left"), ("statements", "left")]
    return screen.table("", columns + [(c, "right") for c in ("time", "bytes", "GB/s", "share")])


def _row(seconds: float, read: int, written: int, held: int) -> tuple[str, str, str, str]:
    """Time, bytes, rate, and its share of what the machine reaches on `held` bytes with this mix."""
    from polyfuse.decisions import format_bytes
    from polyfuse.runtime.machine.probe import measure
    from polyfuse.runtime.report import rate_for

    rate = (read + written) / seconds / 1e9 if seconds > 0 else 0.0
    share = f"{rate / rate_for(measure(held), read, written):.0%}"
    return screen.duration(seconds), format_bytes(read + written), f"{rate:.3g}", share


def kernels(count: int) -> str:
    """`3 kernels`."""
    return f"{count} kernel{'s' if count != 1 else ''}"


def _names(statements: tuple[str, ...], most: int = 5) -> str:
    more = len(statements) - most
    shown = list(statements[:most]) + ([f"and {more} more"] if more > 0 else [])
    return ", ".join(shown)


def _show_numpy(case: Case, ours: float) -> None:
    from polyfuse.runtime.numpy_baseline import baseline
    from polyfuse.runtime.numpy_text import Unsupported
    from polyfuse.runtime.report import best_time

    try:
        with screen.working("running NumPy"):
            function = baseline(case.graph, case.sizes)
            theirs = best_time(lambda: function(case.inputs))
    except Unsupported as why:
        screen.out().print(f"NumPy: n/a ({why})")
        return
    except (ValueError, IndexError, TypeError, MemoryError) as why:
        screen.out().print(f"NumPy: n/a ({type(why).__name__})")
        return
    speed = f"{theirs / ours:.1f}x faster" if theirs >= ours else f"{ours / theirs:.1f}x slower"
    screen.out().print(f"NumPy: {screen.duration(theirs)}; polyfuse is {speed}")
