"""Chapters as pages in Markdown, made of what sphinx-gallery wrote in reStructuredText.

sphinx-gallery runs a chapter and writes its text as it stands, with the code and its outputs as directives.
The text of our chapters is Markdown, so a page has the text as it is, and the rest in `eval-rst`.
"""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^\.\. GENERATED FROM PYTHON SOURCE LINES \d+-\d+\n", re.MULTILINE)
_TITLE = re.compile(r"^\.\. _sphx_glr_(?!download).*:\n", re.MULTILINE)
# docutils refuses longer lines; a picture may be one.
_LINE = 10_000
_BETWEEN = re.compile(r"(/>|</(?:g|text)>)(?=<)")
_END = re.compile(r"^\.\. (?:rst-class:: sphx-glr-timing|_sphx_glr_download_.*:)\n", re.MULTILINE)


def as_markdown(made: str) -> str:
    """The page in Markdown.

    .. _sphx_glr_course_01.py:             the label, in `eval-rst`
    # Title, text                          the same
    .. GENERATED FROM ... LINES 3-5        gone
    .. code-block:: Python                 in `eval-rst`, with what is printed below
    """
    title = _TITLE.search(made)
    end = _END.search(made)
    if title is None or end is None:
        raise ValueError("this is no page that sphinx-gallery made")
    first, *blocks = _BLOCK.split(made[title.end() : end.start()])
    parts = [_directive(title[0] + "\n"), first.strip()]
    parts += [_directive(b) if b.lstrip().startswith(".. ") else b.strip() for b in blocks]
    return "\n\n".join([*parts, _directive(made[end.start() :])]) + "\n"


def _directive(text: str) -> str:
    text = "\n".join(map(_broken, text.split("\n")))
    longest = max((len(t) for t in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{{eval-rst}}\n{text.strip()}\n{fence}"


def _broken(line: str) -> str:
    """A line that is too long, as one for each shape of the picture."""
    if len(line) <= _LINE:
        return line
    begin = "\n" + " " * (len(line) - len(line.lstrip()))
    return _BETWEEN.sub(lambda m: m[1] + begin, line)
