"""The two consoles (standard output and error) and what is printed on them.

Rich colours only on a terminal and honours NO_COLOR.  Text of users is never read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WIDE = 160


def out() -> Console:
    """Standard output; what goes to a file or a pipe is not wrapped at 80 columns."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """A remark on standard error."""
    err().print(text, style="dim", soft_wrap=True)


def show(text: str) -> None:
    """Plain text on standard output, exactly as it is."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def severity_line(text: str) -> None:
    """A rendered diagnostic on standard error: the first line coloured by its severity."""
    from rich.text import Text

    first, _, rest = text.partition("\n")
    shown = Text(first + "\n")
    for word, style in (("error PF", "bold red"), ("warning PF", "bold yellow")):
        at = first.find(word)
        if at >= 0:
            shown.stylize(style, at, at + len(word) + 3)
            break
    shown.append(rest)
    err().print(shown, soft_wrap=True)


def table(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    """A table without lines; `columns` are (heading, "left" or "right")."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(title) if title else None, title_justify="left", title_style="bold")
    made.box, made.show_edge, made.pad_edge = SIMPLE_HEAD, False, False
    for heading, side in columns:
        made.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    return made


@contextmanager
def working(what: str) -> Iterator[None]:
    """On a terminal, what is being done, with a bar where its pieces are known; nothing elsewhere."""
    from polyfuse.support.progress import Progress, followed

    console = err()
    if not console.is_terminal:
        with followed(False):
            yield
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)

        def show(p: Progress) -> None:
            count = f" {p.done} of {p.total}" if p.total > 1 else ""
            bars.tasks[0].total = p.total if p.total > 1 else None
            bars.update(task, description=f"{what}: {p.phase}{count}", completed=p.done)

        with followed(show):
            yield


def duration(seconds: float) -> str:
    """`1.23 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
