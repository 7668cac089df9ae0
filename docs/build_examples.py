"""Assembles docs/reference/examples.md from the first comments of examples/operators/*.pf.

    python docs/build_examples.py            writes docs/reference/examples.md
    python docs/build_examples.py --check    fails if it is not up to date

The comment that begins a file says what its operator computes, then `# Source: ...`, and then
`# Shows: ...`, which parts of the language a reader finds in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

ROOT = Path(__file__).parents[1]
OPERATORS = ROOT / "examples" / "operators"
TARGET = ROOT / "docs" / "reference" / "examples.md"

_HEAD = """\
<!-- Made by docs/build_examples.py from examples/operators/*.pf; edit the comments there. -->
# {count} operators as examples

What people need beside layers of transformers: parts of detectors and of speech recognition, losses,
optimizers, filters, sparse and quantised products. Each is a file in
[examples/operators](../../examples/operators), written from its source in the language itself and compiled
like any program:

```python
import polyfuse as pf

nms = pf.compile("examples/operators/nms.pf", "nms")
keep = nms(boxes, most=0.6)
```

`tests/integration/test_example_operators.py` compares each with NumPy at ordinary and odd sizes, in the
interpreter, on a CPU and as CUDA in the emulator, with every subset of the layers.

| operator | what it computes | shows | source |
|---|---|---|---|
"""


class UndocumentedError(ValueError):
    """A file does not begin with a comment of this form."""


def build() -> str:
    """The whole page."""
    files = sorted(OPERATORS.glob("*.pf"))
    return _HEAD.format(count=len(files)) + "".join(map(_row, files))


def _row(path: Path) -> str:
    what, source, shows = described(path)
    link = f"[{path.stem}](../../examples/operators/{path.name})"
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in (link, what, shows, source))} |\n"


def described(path: Path) -> tuple[str, str, str]:
    """What the first comment of a file says: what is computed, the source, and what is shown."""
    parts: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").strip()
        if text.startswith(("Source: ", "Shows: ")):
            parts.append([text.partition(": ")[2]])
        else:
            parts[-1].append(text)
    if len(parts) != 3:
        raise UndocumentedError(
            f"{path.name} does not begin with what it does, '# Source: ...', '# Shows: ...'"
        )
    what, source, shows = (" ".join(p).removesuffix(".") for p in parts)
    return what, source, shows


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
