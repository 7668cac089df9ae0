"""Writes docs/reference/aten_operators.md from the table of lowerings; PyTorch has to be there.

python docs/build_aten_operators.py            writes it
python docs/build_aten_operators.py --check    fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

TARGET = Path(__file__).parent / "reference" / "aten_operators.md"

_HEAD = """\
<!-- Made by docs/build_aten_operators.py from the table of lowerings. -->
# ATen operators that regions have

`torch.compile(model, backend="polyfuse")` makes regions of these operators
(`polyfuse/torch/dynamo/lowerings`). All others stay with ATen, above all products, convolutions, attention,
sorting and random numbers; `polyfuse.torch.report(model)` says which and why. An operator with an entry
here is not decomposed before. Dtypes are those of the language: floats of 64, 32 and 16 bits, integers,
truth values.

Views are indices, and cost nothing. An operator that is *worth a kernel alone* makes a region by itself; of
the others it takes two, or on a CPU one of many elements that computes functions (`tanh`) or reduces in a
loop that ATen has no vectors for (`argmax`).
"""


def build() -> str:
    """The page."""
    import torch._inductor.inductor_prims  # noqa: F401  # has operators that Dynamo makes

    from polyfuse.torch.dynamo import lowerings  # noqa: F401
    from polyfuse.torch.dynamo.lowerings.table import TABLE, complete

    complete()

    rules = {r.name: r for r in TABLE.values()}
    groups: dict[str, list[str]] = {}
    for name, rule in sorted(rules.items()):
        text = f"`{name.removeprefix('aten.')}`" + (" (worth a kernel alone)" if rule.alone else "")
        groups.setdefault(rule.group, []).append(text)
    lines = [
        _HEAD,
        f"{len(rules)} operators.\n",
        "| group | operators |",
        "|---|---|",
    ]
    lines += [f"| {g} | {', '.join(names)} |" for g, names in sorted(groups.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit(0)  # `make pages` has no PyTorch; tests/with_torch compares the page
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
