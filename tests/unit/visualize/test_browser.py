"""Pictures in a browser: Chromium, found as `chromium` or named by BROWSER; what it paints is not empty."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_point_pictures import TABLE

CHROMIUM = os.environ.get("BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
KINDS = ("triangle", "softmax", "order", "graph", "tree")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt install chromium)"),
]


COMMAND = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
CLOCK = """<script>
const picture = document.querySelector("svg"), name = "--" + picture.classList[0] + "-now";
const moving = document.getAnimations();
moving.forEach(m => { m.pause(); m.currentTime = TIME });
document.title = moving.length + " " + getComputedStyle(picture).getPropertyValue(name);
</script>"""


def painted(folder: Path, name: str, *options: str) -> np.ndarray:
    """The pixels of a picture's page, grey."""
    plt = pytest.importorskip("matplotlib.pyplot")
    TABLE[name]().save(folder / "page.html")
    shot = folder / "shot.png"
    place = [f"--screenshot={shot}", "--window-size=1200,900", (folder / "page.html").as_uri()]
    subprocess.run([*COMMAND, *options, *place], check=True, capture_output=True, timeout=60)
    return np.asarray(plt.imread(shot))[..., :3].mean(axis=-1)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_painted_in_light_and_in_dark(name: str, tmp_path: Path) -> None:
    light = painted(tmp_path, name)
    dark = painted(tmp_path, name, "--blink-settings=preferredColorScheme=0")
    paper = (12, 12)
    assert light[paper] > 0.95 and dark[paper] < 0.2
    for pixels in (light, dark):
        ink = np.abs(pixels[:60, :200] - pixels[paper]) > 0.5
        assert 0.002 < ink.mean() < 0.3, "a title, and no more"


def test_the_clock_of_an_order_runs_through_its_steps(tmp_path: Path) -> None:
    """24 steps of 0.35 s, then a rest; it begins at the rest."""
    page = TABLE["order"]().save(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    found = []
    for seconds in (2.5, 2.5 + 4.2):
        page.write_text(text + CLOCK.replace("TIME", str(1000 * seconds)), encoding="utf-8")
        done = subprocess.run(
            [*COMMAND, "--dump-dom", page.as_uri()], check=True, capture_output=True, timeout=60
        )
        title = re.search(r"<title>(\d+) ([\d.]+)</title>", done.stdout.decode())
        assert title is not None and title[1] == "1", "one animation"
        found.append(float(title[2]))
    assert found == pytest.approx([0, 12], abs=0.1)
