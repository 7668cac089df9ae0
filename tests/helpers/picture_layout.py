"""What a picture looks like, from its SVG alone: boxes of texts, their colours, what lies on what.

    check(svg)      nothing leaves the page, no two texts overlap, every text is readable, names are its own

Widths of texts are estimated from above, with the widths of DejaVu, the widest of the fonts that are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

SVG = "{http://www.w3.org/2000/svg}"
# Of each class of texts: size, and the width of a character over the size.
FONTS = {"t": (18, 0.69), "h": (14, 0.69), "s": (12, 0.6), "n": (10, 0.64), "m": (12, 0.61), "b": (12, 0.61)}
LEAST_CONTRAST = 4.5  # WCAG AA for text of usual size
MODES = ("light", "dark")


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    words: str = ""

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


def check(svg: str) -> None:
    """Raises AssertionError for what a reader would stumble over."""
    root = ElementTree.fromstring(svg)
    texts = [text_box(t) for t in root.iter(f"{SVG}text")]
    page = _page(root)
    for box in [*texts, *(b for _, b in _areas(root))]:
        assert _within(page, box), f"{box} leaves the page {page}"
    for a, b in combinations(texts, 2):
        assert not a.overlaps(b), f"{a} and {b} overlap"
    for words, mode, contrast in contrasts(root):
        assert contrast >= LEAST_CONTRAST, (
            f"{words!r} has a contrast of {contrast:.1f} in {mode} surroundings"
        )
    _check_names(root, svg)


def _page(root: Element) -> Box:
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (root.get("width"), root.get("height")) == tuple(root.attrib["viewBox"].split()[2:])
    return Box(left, top, left + width, top + height)


def _within(page: Box, box: Box) -> bool:
    return page.holds(box.left, box.top) and page.holds(box.right, box.bottom)


def text_box(t: Element) -> Box:
    """Where a text is, at most."""
    size, wide = next(FONTS[c] for c in (t.get("class") or "").split() if c in FONTS)
    words = "".join(x for x in [t.text or "", *(c.tail or "" for c in t)])
    x, y, width = float(t.get("x", "nan")), float(t.get("y", "nan")), size * wide * len(words)
    left = x - width / 2 if "n" in (t.get("class") or "").split() else x
    return Box(left, y - 0.76 * size, left + width, y + 0.2 * size, words)


def _areas(root: Element) -> Iterator[tuple[str, Box]]:
    """Fills and boxes of rectangles and circles, in the order in which they are drawn."""
    for e in root.iter():
        if e.tag == f"{SVG}rect":
            full = e.get("width") == "100%"
            x, y = float(e.get("x", 0)), float(e.get("y", 0))
            w, h = (float(root.get(n) if full else e.get(n)) for n in ("width", "height"))  # type: ignore[arg-type]
            yield e.get("fill", ""), Box(x, y, x + w, y + h)
        elif e.tag == f"{SVG}circle":
            x, y, r = (float(e.get(n, "nan")) for n in ("cx", "cy", "r"))
            yield e.get("fill", ""), Box(x - r, y - r, x + r, y + r)


# --- colours -----------------------------------------------------------------------------------------------


def contrasts(root: Element) -> Iterator[tuple[str, str, float]]:
    """Each text with its contrast to what it stands on, in light and in dark surroundings."""
    tables = palettes(root)
    drawn: list[tuple[str, Box]] = []
    areas = iter(_areas(root))
    for e in root.iter():
        if e.tag in (f"{SVG}rect", f"{SVG}circle"):
            fill, box = next(areas)
            if fill not in ("", "none"):
                drawn.append((fill, box))
        elif e.tag == f"{SVG}text":
            box = text_box(e)
            x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
            ground = next(f for f, b in reversed(drawn) if b.holds(x, y))
            ink = (e.get("style") or "fill:var(--pf-ink)").removeprefix("fill:")
            for mode in MODES:
                yield box.words, mode, contrast(tables[mode], ink, ground)


def palettes(root: Element) -> dict[str, dict[str, str]]:
    """Name -> colour, of light and of dark surroundings, from the style of a picture."""
    style = root.findtext(f"{SVG}style") or ""
    found = [dict(re.findall(r"--pf-([a-z-]+):(#[0-9a-f]{6})", rule)) for rule in style.split("}")]
    light, dark, *again = [p for p in found if p]
    assert again == [light, dark]
    return dict(zip(MODES, (light, dark), strict=True))


def contrast(table: dict[str, str], a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""
    first, second = sorted((_luminance(table, a), _luminance(table, b)))
    return (second + 0.05) / (first + 0.05)


def _luminance(table: dict[str, str], value: str) -> float:
    name = re.fullmatch(r"var\(--pf-([a-z-]+)\)", value)
    found = table[name[1]] if name else value
    channels = [int(found[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# --- names -------------------------------------------------------------------------------------------------


def _check_names(root: Element, svg: str) -> None:
    """Rules of a picture hold in it alone, and ids begin with its own name."""
    name = root.attrib["class"]
    assert re.fullmatch(r"pf-[0-9a-f]{10}", name)
    for e in root.iter():
        assert e.get("id", name).startswith(name)
    assert "@root@" not in svg
    for used in re.findall(r"url\(#([^)]+)\)", svg):
        assert f'id="{used}"' in svg
    style = root.findtext(f"{SVG}style") or ""
    for selectors in re.findall(r"(?:^|})([^@{}]+){", style):
        if not selectors.strip().endswith("%") and selectors.strip() != "from":
            assert all(f".{name}" in s for s in selectors.split(",")), selectors
