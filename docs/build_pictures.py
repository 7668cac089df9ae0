"""Draws the pictures of the README and of the page of pictures, in docs/pictures.

python docs/build_pictures.py            draws them
python docs/build_pictures.py --check    fails if one is not up to date

layers.svg             an operator after each layer, as the compiler has it
points/*.svg           what `pf.visualize` draws of points
speed.svg, speed-dark.svg   the public workloads beside PyTorch and JAX, from committed results
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

import polyfuse as pf  # noqa: E402
from benchmarks.speed_chart import DARK, LIGHT, RUN, chart  # noqa: E402
from polyfuse.visualize.launches import layers_svg  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"


def layers() -> str:
    """The kernels of one operator without a layer, and after each of the three."""
    text = (FOLDER / "three_layers.pf").read_text(encoding="utf-8")
    unfused = pf.parse(text).op().specialize(T=512, H=768).schedule()
    fused = unfused.apply(pf.LoopFusion())
    kernels = fused.lower(target="cuda")
    stitched = kernels.apply(pf.Stitching())
    stages = [
        ("No layer", unfused.lower(target="cuda").ir),
        ("Layer I fuses loops", kernels.ir),
        ("Layer II stitches kernels", stitched.ir),
        ("Layer III packs kernels", stitched.apply(pf.Packing()).ir),
    ]
    return layers_svg(stages, "LayerNorm of a sum, and a softmax")


def points() -> dict[str, str]:
    """Examples of docs/reference/pictures.md."""
    draw = pf.visualize
    square = "{ S[i, j] : 0 <= i < 4 and 0 <= j < 6 }"
    needs = "{ S[i, j] -> S[i + 1, j - 1]; S[i, j] -> S[i + 1, j] }"
    return {
        "points/domain.svg": draw.domain("[N] -> { S[i, j] : 0 <= j <= i < N }", N=6).svg,
        "points/dependences.svg": draw.dependences(square, needs, schedule="{ S[i, j] -> [j, i] }").svg,
        "points/order.svg": draw.schedule_order(square, "{ S[i, j] -> [floor(i/2), floor(j/2), i, j] }").svg,
        "points/accesses.svg": draw.accesses(pf.stdlib.softmax, "s", B_0=3, H=4).svg,
    }


def main(arguments: list[str]) -> int:
    """Write or check all of them; the exit status."""
    (FOLDER / "points").mkdir(parents=True, exist_ok=True)
    made = {"layers.svg": layers(), "speed.svg": chart(RUN, LIGHT), "speed-dark.svg": chart(RUN, DARK)}
    made |= points()
    return max(publish(FOLDER / name, text + "\n", arguments) for name, text in made.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
