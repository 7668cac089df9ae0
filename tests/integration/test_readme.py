"""The README: its Python blocks run, one after the other, as a reader would paste them; figures and pictures
come from the repository."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks import gpu_table  # noqa: E402
from benchmarks.performance_page import PRODUCTS, row_of  # noqa: E402
from benchmarks.report import geometric_mean  # noqa: E402
from benchmarks.speed_chart import LIGHT, RUN, chart  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# What is slower by more counts as behind.
BEHIND = 0.97


def test_python_blocks_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [b for b in blocks if "import torch" not in b]  # tests/with_torch has these
    assert len(blocks) >= 2
    check = (
        "s = x.astype(np.float64) + r\n"
        "expected = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-5)\n"
        "np.testing.assert_allclose(y, expected, atol=1e-4)\n"
    )
    code = "\n".join([*blocks, check])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    tree = re.findall(r"^```\n(band.*?)^```", text, re.DOTALL | re.MULTILINE)[0]
    assert tree in done.stdout, "the README shows another tree than the program prints"
    told = re.findall(r"^```\n(\+ .*?)^```", text, re.DOTALL | re.MULTILINE)[0]
    parts = [re.escape(part) for part in told.split("...\n")]
    assert re.search("(.*\n)+".join(parts), done.stdout), "explain() tells something else"
    assert float(done.stdout.splitlines()[0]) < 1e-5, "the example prints its error first"


def test_its_figures_come_from_committed_results() -> None:
    """The speed on a CPU and on a GPU, and the case that is furthest behind there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [row_of(w) for w in json.loads(RUN.read_text())["workloads"]]
    kept = [r.best / r.call["median"] for r in rows if r.case not in PRODUCTS]
    assert f"{geometric_mean(kept):.1f}x faster" in text and f"of {len(kept)} workloads" in text
    cases = json.loads(gpu_table.RUN.read_text())["cases"]
    ratios = gpu_table.ratios(cases)
    assert f"{geometric_mean([*ratios.values()]):.2f}x the speed of the best peer" in text
    assert f"over {len(ratios)} cases" in text
    behind = sum(r < BEHIND for r in ratios.values())
    assert (behind, min(ratios, key=lambda n: ratios[n]).partition(" ")[0]) == (7, "dropout_residual")
    assert f"seven of {len(ratios)} cases, dropout {min(ratios.values()):.2f}x" in text


def test_what_it_says_of_models_is_on_their_page() -> None:
    """Steps of eager mode by ours: the mean, the least and the most."""
    page = (ROOT / "docs" / "lab" / "torch_models.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| \w+ \|.*?\| ([\d.]+), [\d.]+, ([\d.]+) \| [\d.]+ \|", page, re.MULTILINE)
    ratios = [float(eager) / float(ours) for eager, ours in steps]
    mean, least, most = geometric_mean(ratios), min(ratios), max(ratios)
    assert f"Eager mode's: steps {mean:.2f}, from {least:.2f} to {most:.2f}." in page
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{mean:.2f}x faster than in eager mode" in readme and f"[{len(steps)} models]" in readme
    assert f"{least:.2f}x to {most:.2f}x" in readme
    howto = (ROOT / "docs" / "howto" / "pytorch.md").read_text(encoding="utf-8")
    assert f"{mean:.2f}x faster than in eager mode" in howto
    assert f"from {least:.2f}x" in howto and f"to {most:.2f}x" in howto


def test_its_pictures_are_up_to_date() -> None:
    script = str(ROOT / "docs" / "build_pictures.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "".join(p.read_text(encoding="utf-8") for p in pages)
    drawn = {f.relative_to(ROOT / "docs").as_posix() for f in (ROOT / "docs" / "pictures").rglob("*.svg")}
    assert drawn and set(re.findall(r"pictures/[\w/-]+\.svg", text)) == drawn


def test_the_chart_has_a_bar_for_each_peer_that_ran() -> None:
    page = ET.fromstring(chart(RUN, LIGHT))
    width, height = float(page.attrib["width"]), float(page.attrib["height"])
    bars = [r for r in page.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    rows = [row_of(w) for w in json.loads(RUN.read_text())["workloads"]]
    assert len(bars) == sum(len(r.peers) for r in rows)
    for bar in bars:
        x, y, w, h = (float(bar.attrib[n]) for n in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height and h >= 0
