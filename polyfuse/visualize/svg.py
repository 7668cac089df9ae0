"""Words of SVG: the page, rectangles, texts. The same calls give the same text, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

MONO = "'DejaVu Sans Mono', Menlo, Consolas, ui-monospace, monospace"
SANS = "'DejaVu Sans', Verdana, system-ui, Arial, sans-serif"
INK, FAINT, EDGE, PAPER = "#1f2328", "#57606a", "#c4ccd4", "#ffffff"
MARGIN = 24
CHAR = 7.5  # width of one monospaced character at 12 px, rounded up


def head(title: str, width: float, height: float) -> Iterator[str]:
    """The beginning of a page with its title."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{num(width)}" height="{num(height)}" '
        f'viewBox="0 0 {num(width)} {num(height)}" role="img" aria-label={quoteattr(clean(title))}>'
    )
    yield f"<title>{escape(clean(title))}</title>"
    yield (
        f"<style>text{{font:12px {MONO};fill:{INK}}} .b{{font-weight:600}} "
        f".t{{font:600 18px {SANS}}} .h{{font:600 14px {SANS}}} .s{{font:12px {SANS}}} "
        f".n{{font:10px {SANS};text-anchor:middle}} .rail{{stroke:{EDGE};stroke-width:1.5}} "
        f".arrow{{fill:none;stroke:{FAINT};stroke-width:2}}</style>"
    )
    yield f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    yield text(MARGIN, MARGIN + 14, title, family="t")


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def text(x: float, y: float, words: str, *, family: str, fill: str = "") -> str:
    """`family` is a class of the style sheet: m mono, b bold, h heading, t title, s small, n number."""
    style = f' style="fill:{fill}"' if fill else ""
    return f'<text class="{family}" x="{num(x)}" y="{num(y)}"{style}>{escape(clean(words))}</text>'


def clean(words: str) -> str:
    """What XML cannot hold, and line breaks, as a replacement character."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def num(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
