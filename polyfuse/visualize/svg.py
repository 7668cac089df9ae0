"""Pictures as values, and the words of SVG that they share: page, colours, rectangles, texts.

    page("softmax", 400, 300, [text(24, 60, "hello", family="m")])     SVG text
    Picture(svg)                                                       what a notebook shows

The same calls give the same text, byte by byte.  A style counts in its own picture only, wherever the SVG is
put: its rules name the class of the root element, which is made of what the picture consists of.  Colours are
named; each has a value for light surroundings and one for dark ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from polyfuse.diagnostics import ArgumentError

MONO = "'DejaVu Sans Mono', Menlo, Consolas, ui-monospace, monospace"
SANS = "'DejaVu Sans', Verdana, system-ui, Arial, sans-serif"
MARGIN = 24
CHAR = 7.5  # width of one monospaced character at 12 px, rounded up
SMALL = 6.5  # width of a digit at 10 px, rounded up
BETWEEN = 12  # pixels between two pictures
ROOT = "@root@"  # the class of a picture, before it is known

# Name -> colour on light paper and on dark paper.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#57606a", "#9da7b3"),
    "edge": ("#c4ccd4", "#444c56"),
    "paper": ("#ffffff", "#161b22"),
    "plain": ("#f5f6f8", "#21262d"),
    "bad": ("#c81e2b", "#ff7b72"),
    # Hues: strong ones for lines and points, soft ones for areas.
    "blue": ("#2a68ad", "#79b8ff"),
    "orange": ("#b3560b", "#f0a15e"),
    "green": ("#1a7f4b", "#5fcb90"),
    "purple": ("#7a45d6", "#b99bf8"),
    "teal": ("#0b7480", "#56ccd4"),
    "pink": ("#b03a86", "#f29acb"),
    "olive": ("#846800", "#dcbd55"),
    "grey": ("#57606a", "#9da7b3"),
    "blue-soft": ("#e7effa", "#17293f"),
    "orange-soft": ("#fdf0e1", "#38260f"),
    "green-soft": ("#e8f5ec", "#12301f"),
    "purple-soft": ("#efe9fb", "#2a2145"),
    "teal-soft": ("#e3f4f4", "#0e2f33"),
    "pink-soft": ("#f7e8f2", "#3a1f31"),
    "olive-soft": ("#fbf4d9", "#332b0c"),
    "grey-soft": ("#f0efe9", "#272d34"),
}
HUES = ("blue", "orange", "green", "purple", "teal", "pink", "olive", "grey")


def colour(name: str) -> str:
    """A colour of the table, as a value of CSS."""
    return f"var(--pf-{name})"


INK, FAINT, EDGE, PAPER, BAD = map(colour, ("ink", "faint", "edge", "paper", "bad"))


# --- pictures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: SVG text that a notebook shows where it is the value of a cell.

    Attributes
    ----------
    svg : str
        The SVG element. It needs no other file, and its text is text.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.domain("{ S[i, j] : 0 <= j <= i < 5 }")
    >>> picture.svg.startswith("<svg")
    True

    Two pictures side by side are a picture:

    >>> both = picture | pf.visualize.domain("{ S[i] : 0 <= i < 5 }")
    """

    svg: str

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in pixels."""
        root = ElementTree.fromstring(self.svg)
        return float(root.attrib["width"]), float(root.attrib["height"])

    def __or__(self, other: Picture) -> Picture:
        if not isinstance(other, Picture):
            return NotImplemented
        (first, high), (second, low) = self.size, other.size
        width, height = num(first + BETWEEN + second), num(max(high, low))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        moved = other.svg.replace("<svg ", f'<svg x="{num(first + BETWEEN)}" ', 1)
        return Picture(f'{head} viewBox="0 0 {width} {height}" role="img">\n{self.svg}{moved}</svg>\n')

    def __repr__(self) -> str:
        return f"<polyfuse Picture, {len(self.svg)} characters of SVG>"

    def __str__(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return f'<div class="polyfuse-picture" style="overflow-x:auto">{self.svg}</div>'

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the picture to a file.

        Parameters
        ----------
        path : path-like
            A name that ends in ``.svg``, or in ``.html`` for a page with the picture.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ArgumentError
            PF919 for a name with another ending.
        """
        file = Path(path)
        if file.suffix == ".svg":
            made = self.svg
        elif file.suffix == ".html":
            head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            made = f"<!doctype html>{head}<title>polyfuse</title>\n{self._repr_html_()}\n"
        else:
            what = f"a picture is no {file.suffix or 'file without ending'}"
            raise ArgumentError(what, code="PF919", hint=f"save it as {file.with_suffix('.svg').name}")
        file.write_text(made, encoding="utf-8")
        return file


# --- pages -------------------------------------------------------------------------------------------------


def page(title: str, width: float, height: float, parts: Iterable[str], *, css: str = "") -> str:
    """SVG text: a sheet of paper with a title and what is on it. `css` are rules, with `ROOT` for the class
    of the picture; `ROOT` in the parts makes names that no other picture has."""
    lines = [*_head(title, width, height, css), *parts, "</svg>", ""]
    made = "\n".join(lines)
    name = "pf-" + hashlib.sha256(made.encode()).hexdigest()[:10]
    return made.replace(ROOT, name)


def _head(title: str, width: float, height: float, css: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{ROOT}" width="{num(width)}" height="{num(height)}" '
        f'viewBox="0 0 {num(width)} {num(height)}" role="img" aria-label={quoteattr(clean(title))}>'
    )
    yield f"<title>{escape(clean(title))}</title>"
    yield f"<style>{escape(_style() + css)}</style>"
    yield f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    yield text(MARGIN, MARGIN + 14, title, family="t")


def _style() -> str:
    """Fonts, and colours: those of the reader's system, or of the page around where it says which."""
    light, dark = (";".join(f"--pf-{n}:{values[k]}" for n, values in COLOURS.items()) for k in (0, 1))
    root = f".{ROOT}"
    rules = [
        f"{root}{{{light}}}",
        f"@media(prefers-color-scheme:dark){{{root}{{{dark}}}}}",
        f"[data-theme=light] {root},[data-jp-theme-light=true] {root}{{{light}}}",
        f"[data-theme=dark] {root},[data-jp-theme-light=false] {root}{{{dark}}}",
        f"{root} text{{font:12px {MONO};fill:{INK}}}",
        f"{root} .b{{font-weight:600}}",
        f"{root} .t{{font:600 18px {SANS}}}",
        f"{root} .h{{font:600 14px {SANS}}}",
        f"{root} .s{{font:12px {SANS}}}",
        f"{root} .n{{font:10px {SANS};text-anchor:middle}}",
        f"{root} .rail{{stroke:{EDGE};stroke-width:1.5}}",
        f"{root} .arrow{{fill:none;stroke:{FAINT};stroke-width:2}}",
    ]
    return "".join(rules)


# --- shapes ------------------------------------------------------------------------------------------------


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def text(x: float, y: float, words: str, *, family: str, fill: str = "", tip: str = "") -> str:
    """`family` is a class of the style sheet: m mono, b bold, h heading, t title, s small, n number; `tip` is
    what the reader sees who points at it."""
    style = f' style="fill:{fill}"' if fill else ""
    inner = f"<title>{escape(clean(tip))}</title>" if tip else ""
    return f'<text class="{family}" x="{num(x)}" y="{num(y)}"{style}>{inner}{escape(clean(words))}</text>'


def clean(words: str) -> str:
    """What XML cannot hold, and line breaks, as a replacement character."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def num(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
