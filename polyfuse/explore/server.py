"""The page of the explorer and its requests, as a small ASGI application; `main` serves it.

    app = create_app(Settings("token", 8765))

Only this machine may ask, and of it only who has the token.  The page's address has it, a cookie keeps it.  A
request is refused whose Host is not this server (a name that leads here), whose Origin is another page, or
which lacks the token.  The page may load scripts from here alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse import __version__
from polyfuse.diagnostics import ToolchainError, install
from polyfuse.explore.jobs import SUPERSEDED, Jobs
from polyfuse.options import LAYERS

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
PORT = 8765
MOST_BYTES = 2_000_000
"""Of a request: the longest text that the language takes, and room."""
CHECK_LIMIT_S, VIEW_LIMIT_S = 10.0, 60.0
STATIC = Path(__file__).with_name("static")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of every answer. Styles stand in pictures and in what the editor makes; scripts only in files."""
EXAMPLE = """\
# Layer normalisation of rows, without gains.
op normalise(x: f32[T, H]) -> (y: f32[T, H]) {
  mean[t] = sum[h](x[t, h]) / H
  variance[t] = sum[h]((x[t, h] - mean[t]) ** 2) / H
  y[t, h] = (x[t, h] - mean[t]) / sqrt(variance[t] + 1e-5)
}
"""


@dataclass(frozen=True)
class Settings:
    """What is served: the text of `name`, which imports from `folder` or, without one, nothing."""

    token: str
    port: int
    text: str = EXAMPLE
    name: str = "program.pf"
    folder: Path | None = None

    @property
    def address(self) -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Cookies do not know ports: each server has a name of its own."""
        return f"polyfuse_explore_{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser on this machine calls the server."""
        return f"{HOST}:{self.port}", f"localhost:{self.port}"


@dataclass
class Workers:
    """Who answers: findings while one types must not wait for a compilation."""

    check: Jobs = field(default_factory=lambda: Jobs(CHECK_LIMIT_S))
    view: Jobs = field(default_factory=lambda: Jobs(VIEW_LIMIT_S))


def require_packages() -> None:
    """Raises ToolchainError PF820 where a package of the extra is missing."""
    missing = [n for n in ("starlette", "uvicorn") if find_spec(n) is None]
    if missing:
        message = f"the explorer needs {' and '.join(missing)}"
        raise ToolchainError(message, code="PF820", hint=install("explore"))


def create_app(settings: Settings, workers: Workers | None = None) -> Starlette:
    """The application."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    answers = _Answers(settings, workers or Workers())
    routes = [
        Route("/", answers.page),
        Route("/start", answers.start),
        Route("/{do:str}", answers.job, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, settings)], lifespan=answers.lifespan)


class _Answers:
    """What the routes do."""

    def __init__(self, settings: Settings, workers: Workers) -> None:
        self.settings, self.workers = settings, workers

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Children start with the server and end with it."""
        both = self.workers.check, self.workers.view
        starts = [asyncio.create_task(w.start()) for w in both]
        try:
            yield
        finally:
            for w in both:
                w.close()
            await asyncio.gather(*starts, return_exceptions=True)

    async def page(self, request: Request) -> Response:
        """The page; who comes with the token keeps it in a cookie."""
        from starlette.responses import HTMLResponse

        response = HTMLResponse((STATIC / "index.html").read_text(encoding="utf-8"))
        if request.query_params.get("token"):
            response.set_cookie(self.settings.cookie, self.settings.token, httponly=True, samesite="strict")
        return response

    async def start(self, request: Request) -> Response:
        """What the page begins with."""
        from starlette.responses import JSONResponse

        s = self.settings
        folder = str(s.folder) if s.folder else ""
        begin = {"text": s.text, "name": s.name, "folder": folder, "version": __version__}
        return JSONResponse({**begin, "layers": LAYERS, "limit": self.workers.view.limit_s})

    async def job(self, request: Request) -> Response:
        """A job for a child: findings, a view, names to complete, what a name is, the library."""
        from starlette.responses import JSONResponse

        do = request.path_params["do"]
        if do not in ("check", "view", "complete", "hover", "library"):
            return JSONResponse({"problem": f"there is no request {do}"}, 404)
        given = await _body(request)
        if isinstance(given, str):
            return JSONResponse({"problem": given}, 413 if given.startswith("too") else 400)
        place = {"name": self.settings.name, "folder": str(self.settings.folder or "")}
        asked = {"do": do, **{k: given.get(k) for k in ("state", "view", "at")}, **place}
        jobs = self.workers.view if do == "view" else self.workers.check
        found = await jobs.ask(f"{do} {given['page']}", asked)
        return JSONResponse(found, 409 if found is SUPERSEDED else 200)


async def _body(request: Request) -> Mapping[str, Any] | str:
    """The JSON of a request, or what is wrong with it."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            return f"too long: at most {MOST_BYTES} bytes"
    import json

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return "a request is JSON"
    if not isinstance(given, dict) or not isinstance(given.get("page"), str) or len(given["page"]) > 64:
        return "a request names its page"
    if not isinstance(given.get("at", 0), int):
        return "a place is a number"
    return given


class Guard:
    """Refuses requests that are not from the page, before anything looks at them."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse
        from starlette.types import Message

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        answer = self.app if refusal is None else PlainTextResponse(refusal + "\n", 403)
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> str | None:
        """Why a request is refused."""
        headers, hosts = request.headers, self.settings.hosts
        if headers.get("host") not in hosts:
            return "Refused: this server is for pages of this machine, by its own address."
        origin = headers.get("origin")
        if origin not in [f"http://{h}" for h in hosts] and (origin is not None or request.method == "POST"):
            return "Refused: another page asked."
        opens = request.method == "GET" and request.url.path == "/"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opens:
            return "Refused: another page asked."
        given = [request.cookies.get(self.settings.cookie), headers.get("x-polyfuse-token")]
        given += [request.query_params.get("token")] if opens else []
        if not any(secrets.compare_digest(g.encode(), self.settings.token.encode()) for g in given if g):
            return "Refused: open the address that `polyfuse explore` printed, which has a token."
        return None


# --- serving -----------------------------------------------------------------------------------------------


def bound(port: int | None) -> socket.socket:
    """A socket of this machine alone: at a port, or without one at the usual port if it is free, else any.

    Raises OSError where the port is taken.
    """
    for wanted in (PORT, 0) if port is None else (port,):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, wanted))
        except OSError:
            found.close()
            if wanted == port or wanted == 0:
                raise
        else:
            found.listen()
            return found
    raise AssertionError("one of the ports was tried last")


def settings_for(port: int, text: str | None, name: str, folder: Path | None) -> Settings:
    """Settings with a new token."""
    token = secrets.token_urlsafe(24)
    return Settings(token, port, EXAMPLE if text is None else text, name, folder)


def main(settings: Settings, at: socket.socket) -> None:
    """Serve until it is interrupted."""
    import uvicorn

    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, ws="none", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run([at])
