"""Takes the screenshots of docs/howto/explore.md, docs/pictures/explore-*.png: the page in Chromium.

    python docs/build_explorer.py            needs chromium, uvicorn and Pillow

They show whatever machine takes them, so nothing compares them: look at them before you commit them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import uvicorn
from PIL import Image

from polyfuse.explore import server

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "helpers"))
from chromium import Chromium, Page  # noqa: E402

PICTURES = DOCS / "pictures"
WIDTH, HEIGHT = 1180, 690
COLOURS, MOST_BYTES = 96, 150_000
READY = "document.querySelector('#panel[aria-busy=false]:not(.stale)')"
WRONG = "  y[t, h] = (x[t, h] - mean[t]) / sqrt(varianz[t] + 1e-5)\n"


def code(page: Page) -> None:
    """A line of code, and the statement that it came from."""
    _tab(page, "code", ".line.from")
    lines = "[...document.querySelectorAll('.line.from')]"
    page.do(f"{lines}.find(l => /b_y.* = /.test(l.textContent)).id = 'line'")
    page.do("document.getElementById('line').scrollIntoView({block: 'center'})")
    page.hover("#line")
    page.wait("document.querySelector('.cm-lit')")


def points(page: Page) -> None:
    """Dependences under the schedule after fusion."""
    _tab(page, "domains", "svg")
    heading = "[...document.querySelectorAll('#panel h2')].find(h => h.innerText.startsWith('Dependences'))"
    page.do(f"{heading}.scrollIntoView()")


def cost(page: Page) -> None:
    """What each layer gains, in the dark."""
    page.dark(True)
    _tab(page, "cost", "table")


def findings(page: Page) -> None:
    """A wrong name with its hint, while it is written."""
    page.dark(False)
    text = server.EXAMPLE.replace(server.EXAMPLE.splitlines(keepends=True)[4], WRONG)
    page.click(".cm-content")
    page.key("KeyA", 65, control=True)
    page.type(text)
    page.wait("document.querySelector('#problems .problem')")


VIEWS: dict[str, Callable[[Page], None]] = {"code": code, "points": points, "cost": cost, "errors": findings}


def _tab(page: Page, name: str, holds: str) -> None:
    page.click(f"#tab-{name}")
    page.wait(f"{READY} && document.querySelector('#panel {holds}')")


def build() -> None:
    """Serve the example, and take each picture."""
    at = server.bound(None)
    settings = server.settings_for(at.getsockname()[1], None, "norms.pf", None)
    config = uvicorn.Config(server.create_app(settings), log_level="error", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([at],), daemon=True)
    thread.start()
    with Chromium.started(WIDTH, HEIGHT) as browser:
        page = browser.open(settings.address)
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH,
            height=HEIGHT,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.wait("document.querySelector('#panel svg')")
        for name, show in VIEWS.items():
            show(page)
            time.sleep(0.6)  # transitions
            _store(page, PICTURES / f"explore-{name}.png")
    running.should_exit = True
    thread.join(10)


def _store(page: Page, path: Path) -> None:
    """A screenshot with few colours, which takes a quarter of the bytes."""
    page.screenshot(path)
    shot = Image.open(BytesIO(path.read_bytes())).convert("RGB")
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    assert size < MOST_BYTES, f"{path.name} has {size} bytes"
    print(f"{path.name}: {size / 1e3:.0f} kB")


if __name__ == "__main__":
    build()
