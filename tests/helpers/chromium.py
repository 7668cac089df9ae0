"""Chromium, driven through the pipes of its DevTools protocol: nothing is installed for it.

with Chromium.started() as browser:
    page = browser.open("http://127.0.0.1:8765/?token=...")
    page.wait("document.title == 'ready'")
    page.click("#button"); page.type("text"); page.screenshot(Path("shot.png"))
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = os.environ.get("BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 60.0
# The protocol reads from 3 and writes to 4.
_PIPED = (
    "import os, sys; [os.dup2(int(sys.argv[k]), k + 2) for k in (1, 2)]; os.execvp(sys.argv[3], sys.argv[3:])"
)


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """The browser's ends of two pipes, by numbers that are neither 3 nor 4, and ours."""
    read, to = os.pipe()
    back, write = os.pipe()
    ends = fcntl.fcntl(read, fcntl.F_DUPFD, 10), fcntl.fcntl(write, fcntl.F_DUPFD, 10)
    os.close(read)
    os.close(write)
    return ends, (to, back)


@dataclass
class Chromium:
    """A browser without a window, and the pipes to it."""

    to: int
    back: int
    number: int = 0
    pending: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def started(cls, width: int = 1280, height: int = 800) -> Iterator[Chromium]:
        """A browser with a profile of its own, which goes with it."""
        ends, (to, back) = _pipes()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            size = f"--window-size={width},{height}"
            browser = [str(COMMAND), *FLAGS, size, f"--user-data-dir={folder}", "about:blank"]
            process = subprocess.Popen(
                [sys.executable, "-c", _PIPED, *map(str, ends), *browser], pass_fds=ends,
                stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            for fd in ends:
                os.close(fd)
            try:
                yield cls(to, back)
            finally:
                process.kill()
                process.wait()
                os.close(to)
                os.close(back)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The result of a command. Events that come meanwhile are kept."""
        self.number += 1
        number = self.number
        command = {"id": number, "method": method, "params": parameters}
        os.write(
            self.to, json.dumps({**command, **({"sessionId": session} if session else {})}).encode() + b"\0"
        )
        end = time.monotonic() + LIMIT_S
        while True:
            found = self._next(end)
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.pending:
            assert select.select([self.back], [], [], max(0.0, end - time.monotonic()))[0], "no answer"
            data = os.read(self.back, 1 << 16)
            assert data, "the browser has ended"
            self.pending += data
        line, self.pending = self.pending.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, address: str, **size: int) -> Page:
        """A page at an address."""
        target = self.call("Target.createTarget", url="about:blank", **size)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.go(address)
        return page


@dataclass
class Page:
    """A page of the browser."""

    browser: Chromium
    session: str

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def do(self, code: str) -> Any:
        """The value of an expression; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, (code, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, code: str, limit_s: float = 90.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # between two pages there is nothing to ask
                if self.do(f"Boolean({code})"):
                    return
            time.sleep(0.05)
        shown = self.do("(document.querySelector('main') ?? document.body)?.innerText?.slice(0, 3000)")
        raise AssertionError(f"never: {code}\n{shown}\n{self.problems()}")

    def problems(self) -> list[str]:
        """What the console has of errors, and what the page's policy refused."""
        self.do("0")
        found = []
        for e in self.browser.events:
            if e.get("sessionId") != self.session:
                continue
            if e["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(e["params"]["exceptionDetails"])[:600])
            if e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error":
                found.append(f"{e['params']['entry']['text']} {e['params']['entry'].get('url', '')}")
        return found

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it is scrolled to."""
        code = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + Math.min(r.width, 400) / 2, r.y + r.height / 2] })()"
        )
        x, y = self.do(code)
        return x, y

    def hover(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, text: str) -> None:
        """Characters, one after the other."""
        for c in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", text=c, key=c)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=c)

    def key(self, name: str, code: int, control: bool = False) -> None:
        """A key that has no character."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                modifiers=2 if control else 0,
            )  # fmt: skip

    def dark(self, is_dark: bool) -> None:
        value = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(found))
