"""Pictures of the stages of a compilation: statements, schedule trees, launches, times, places on a GPU.

    pf.visualize.graph(op.specialize(T=4, H=8))
    pf.visualize.tree(scheduled, before=unfused)
    pf.visualize.plan(kernels)

A stage at the end of a notebook cell shows the one of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyfuse.cost.figures import KernelEstimate
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.visualize.dataflow import graph_svg
from polyfuse.visualize.launches import layers_svg, plan_picture
from polyfuse.visualize.schedule import before_after_svg, tree_svg
from polyfuse.visualize.sources import graph_of
from polyfuse.visualize.svg import CHAR, FAINT, MARGIN, Picture, colour, page, rect, text
from polyfuse.visualize.threads import placement_svg

BAR, ROW, TOP, LONGEST_BAR = 16, 24, 84, 520


def graph(stage: object, /) -> Picture:
    """The statements of an operator, and what each reads.

    Parameters
    ----------
    stage : Specialized, Scheduled, Kernels or Executable

    Returns
    -------
    Picture
        Arguments on the left, results in green. Of more than 40 statements the names only.

    Raises
    ------
    ArgumentError
        PF910 for an object that has no graph.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.graph(pf.stdlib.softmax.specialize())
    """
    found = graph_of(stage)
    if found is None:
        raise no_stage(stage, "graph", "op.specialize()")
    return Picture(graph_svg(found))


def tree(stage: object, /, *, before: object = None) -> Picture:
    """The schedule tree of a stage, or two of them. Time runs downwards.

    Parameters
    ----------
    stage : Scheduled
    before : Scheduled, optional
        What is drawn on the left, or above where both together are too wide.

    Returns
    -------
    Picture
        A box is a loop around what it runs; its colour says whether its iterations may run in parallel.

    Raises
    ------
    ArgumentError
        PF910 for an object that has no schedule.

    Examples
    --------
    >>> import polyfuse as pf
    >>> unfused = pf.stdlib.softmax.specialize().schedule()
    >>> picture = pf.visualize.tree(unfused.apply(pf.LoopFusion()), before=unfused)
    """
    after = _scheduled(stage)
    if before is not None:
        return Picture(before_after_svg(_scheduled(before), after))
    return Picture(tree_svg(after.tree, f"{after.graph.name}: {after.shape}", after.graph))


def plan(*stages: object, names: tuple[str, ...] = (), title: str = "") -> Picture:
    """The kernels of a stage in the order of their launches: what is fused, what is packed, what waits.

    Parameters
    ----------
    *stages : Kernels or Executable
        Several are drawn below one another: an operator after each layer.
    names : tuple of str, optional
        A heading for each of several stages.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        A box is a kernel with its statements, a frame a launch.

    Raises
    ------
    ArgumentError
        PF910 for an object that has no kernels.

    Examples
    --------
    >>> import polyfuse as pf
    >>> unfused = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule()
    >>> fused = unfused.apply(pf.LoopFusion())
    >>> stages = unfused.lower(target="cpu"), fused.lower(target="cpu")
    >>> picture = pf.visualize.plan(*stages, names=("apart", "fused"))
    """
    found = [_kernels(s) for s in stages]
    if not found:
        raise no_stage(None, "kernels", "scheduled.lower()")
    shown = title or found[-1].graph.name
    if len(found) == 1:
        return plan_picture(found[0], shown)
    headings = [*names, *(f"stage {k}" for k in range(len(names), len(found)))]
    return Picture(layers_svg(list(zip(headings, found, strict=False)), shown))


def placement(stage: object, producer: str, consumer: str, /, *, along: str = "", title: str = "") -> Picture:
    """Which block and which thread of a GPU run two statements of a kernel, and what goes between them.

    Parameters
    ----------
    stage : Kernels
        Kernels for a GPU, at small sizes.
    producer, consumer : str
        Two statements of one kernel, with at most two dims each.
    along : str, optional
        The dim from left to right; the consumer's last one if none is named. A statement without it has its
        own last one there.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        A colour is a block. An element of the consumer, and those that it needs, have a frame.

    Raises
    ------
    ArgumentError
        PF910 for an object that has no kernels, PF914 where no kernel has both statements, PF915 for a
        statement with more than two dims.

    Examples
    --------
    >>> import polyfuse as pf
    >>> op = pf.stdlib.layer_norm.specialize(B_0=4, H=8)
    >>> kernels = op.schedule().apply(pf.LoopFusion()).lower(target="cuda").apply(pf.Stitching())
    >>> picture = pf.visualize.placement(kernels, "var__sum", "y")
    """
    for k in _kernels(stage).kernels:
        names = [s.name for s in k.graph.statements]
        if producer in names and consumer in names:
            last = along or next((d.name for d in reversed(k.graph.statement(consumer).dims)), "")
            return Picture(placement_svg(k, producer, consumer, along=last, title=title))
    what = f"no kernel runs both {producer} and {consumer}"
    raise ArgumentError(what, code="PF914", hint="str(kernels) shows the statements of each kernel")


def timeline(
    *stages: Any, names: tuple[str, ...] = (), device: str | None = None, title: str = ""
) -> Picture:
    """How long each launch takes, as the cost model has it: nothing runs.

    Parameters
    ----------
    *stages : Kernels
        At known sizes. Several are drawn below one another, on one scale.
    names : tuple of str, optional
        What each of several is called.
    device : str, optional
        A GPU of the table, for kernels of a GPU.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        A bar for each launch, from where the one before ends. Its pale part is what a launch costs without
        work, and barriers of all blocks. Behind it stands what takes longest: memory, cache, operations,
        latency (waiting for a result that the next step needs), or overhead (the pale part).

    Raises
    ------
    ArgumentError
        PF910 for an object without kernels, and as `Kernels.estimate` does.

    Examples
    --------
    >>> import polyfuse as pf
    >>> kernels = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule().lower(target="cpu")
    >>> picture = pf.visualize.timeline(kernels)
    """
    if not stages:
        raise no_stage(None, "kernels", "scheduled.lower()")
    made = [_kernels(s) for s in stages]
    found = [s.estimate(device) for s in stages]
    headings = [*names, *(f"stage {k}" for k in range(len(names), len(found)))] if len(found) > 1 else [""]
    called = [{k.name: _called(k) for k in m.kernels} for m in made]
    rows = [
        (heading, [(names[k.name], k) for k in e.kernels])
        for heading, names, e in zip(headings, called, found, strict=False)
    ]
    return Picture(_bars(title or f"{made[0].graph.name} on {found[0].machine}", rows))


def _called(k: Kernel) -> str:
    """A kernel and its first statements, as far as there is room."""
    words = ", ".join(k.computed)
    return f"{k.name}: {words if len(words) < 26 else words[:24] + '..'}"


def _bars(title: str, stages: Sequence[tuple[str, Sequence[tuple[str, KernelEstimate]]]]) -> str:
    """Bars of launches on one scale, each stage from the left."""
    longest = max((sum(k.seconds for _, k in found) for _, found in stages), default=0.0)
    scale = LONGEST_BAR / longest if longest else 0.0
    left = MARGIN + max((len(label) for _, found in stages for label, _ in found), default=0) * CHAR + 12
    parts: list[str] = []
    y, widest = float(TOP - 26), 0.0
    for name, found in stages:
        words = f"{sum(k.seconds for _, k in found) * 1e6:.1f} us by the cost model"
        parts.append(text(MARGIN, y, f"{name}: {words}" if name else words, family="s", fill=FAINT))
        y += 26
        x = left
        for label, k in found:
            parts += _bar(x, y, k, scale)
            words = _bar_words(k)
            parts.append(text(MARGIN, y, label, family="m"))
            parts.append(text(x + k.seconds * scale + 8, y, words, family="s", fill=FAINT))
            widest = max(widest, x + k.seconds * scale + 8 + len(words) * CHAR)
            x += k.seconds * scale
            y += ROW
        y += 12
    note = "pale: what a launch costs without work"
    parts.append(text(MARGIN, y, note, family="s", fill=FAINT))
    widest = max(widest, 2 * MARGIN + len(title) * 11.5, MARGIN + len(note) * CHAR)
    return page(title, widest + MARGIN, y + MARGIN, parts)


def _bar(x: float, y: float, k: KernelEstimate, scale: float) -> Iterator[str]:
    """What a launch costs without work, then its work."""
    idle = (k.terms.seconds - k.terms.spent) * scale
    whole = max(k.seconds * scale, 1.5)
    yield rect(x, y - 12, whole, BAR, colour("blue-soft"), colour("blue"), 2)
    if whole > idle:
        yield rect(x + idle, y - 12, whole - idle, BAR, colour("blue"), colour("blue"), 2)


def _bar_words(k: KernelEstimate) -> str:
    return f"{k.seconds * 1e6:.1f} us, {k.terms.bound}"


# --- stages, by what they have -----------------------------------------------------------------------------


def _scheduled(stage: object) -> ScheduledGraph:
    for found in (stage, getattr(stage, "ir", None)):
        if isinstance(found, ScheduledGraph):
            return found
    raise no_stage(stage, "schedule", "op.specialize().schedule()")


def _kernels(stage: object) -> KernelGraph:
    inner = getattr(stage, "kernels", None)
    for found in (stage, getattr(stage, "ir", None), getattr(inner, "ir", None)):
        if isinstance(found, KernelGraph):
            return found
    raise no_stage(stage, "kernels", "scheduled.lower()")


def no_stage(stage: object, what: str, hint: str) -> ArgumentError:
    """The error of an object that cannot be drawn so."""
    kind = "nothing" if stage is None else type(stage).__name__
    return ArgumentError(f"{kind} has no {what} to draw", code="PF910", hint=f"draw {hint}")
