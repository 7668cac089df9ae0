"""Requests of the explorer's page: who may ask, what is answered, what happens to jobs that take too long."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from polyfuse.diagnostics import ToolchainError
from polyfuse.explore import child, server
from polyfuse.explore.jobs import GREETING, SUPERSEDED, Jobs
from polyfuse.explore.programs import VIEWS
from polyfuse.explore.server import HEADERS, Settings, Workers, create_app

TOKEN, PORT = "a-token", 8765
HERE = f"http://127.0.0.1:{PORT}"
SOFTMAX = """\
op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h] - max[k](x[t, k]))
  y[t, h] = e[t, h] / sum[k](e[t, k])
}
"""
# A child that takes its time: as many seconds as its request says, or for ever.
SLOW = f"""
import json, sys, time
print({GREETING!r}, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(request["seconds"])
    print(json.dumps({{"done": request["seconds"]}}), flush=True)
"""


def started(**given: Any) -> TestClient:
    return TestClient(create_app(Settings(TOKEN, PORT, **given)), base_url=HERE)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The page as a browser has it after it was opened with the token, of a file in a folder."""
    folder = tmp_path_factory.mktemp("operators")
    (folder / "half.pf").write_text("op half(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] / 2.0 }")
    (folder.parent / "secret.pf").write_text("op secret(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }")
    (folder / "link.pf").symlink_to(folder.parent / "secret.pf")
    with started(name="page.pf", folder=folder) as made:
        assert made.get("/", params={"token": TOKEN}).status_code == 200
        yield made


def asked(client: TestClient, do: str, text: str = SOFTMAX, page: str = "1", **more: Any) -> dict[str, Any]:
    """The answer to a request of the page."""
    request = {"page": page, **{k: more.pop(k) for k in ("view", "at") if k in more}}
    done = client.post(f"/{do}", json={**request, "state": {"text": text, **more}}, headers={"Origin": HERE})
    assert done.status_code == 200, done.text
    found: dict[str, Any] = done.json()
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [d["code"] for d in [*found.get("found", ()), *found.get("errors", ())]]


# --- who may ask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{PORT}"},
        {"Host": "127.0.0.1:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1234"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_others_are_refused_although_they_have_the_token(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/start"), ("POST", "/check"), ("GET", "/static/index.html")):
        own = {"Origin": HERE, "X-Polyfuse-Token": TOKEN, **headers}
        done = client.request(method, path, headers=own, json={} if method == "POST" else None)
        assert done.status_code == 403, (path, done.text)


def test_without_an_origin_nothing_is_done(client: TestClient) -> None:
    assert client.post("/check", json={"page": "1"}).status_code == 403


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_who_has_no_token_gets_nothing(token: str | None) -> None:
    plain = TestClient(create_app(Settings(TOKEN, PORT)), base_url=HERE)  # no child starts
    for path in ("/", "/start", "/static/index.html", "/nowhere"):
        done = plain.get(path, params={"token": token} if token is not None else {})
        assert done.status_code == 403 and "set-cookie" not in done.headers
    headers = {"Origin": HERE, **({"X-Polyfuse-Token": token.encode()} if token else {})}
    assert plain.post("/check", json={"page": "1"}, headers=headers).status_code == 403


def test_the_token_in_an_address_opens_the_page_alone() -> None:
    plain = TestClient(create_app(Settings(TOKEN, PORT)), base_url=HERE)
    assert plain.get("/start", params={"token": TOKEN}).status_code == 403
    opened = plain.get("/", params={"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"})
    cookie = opened.headers["set-cookie"].lower()
    assert opened.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie
    assert plain.get("/start").status_code == 200


def test_every_answer_says_which_scripts_may_run(client: TestClient) -> None:
    assert "script-src 'self';" in HEADERS["Content-Security-Policy"]
    for path in ("/", "/start", "/static/index.html", "/nowhere"):
        for name, value in HEADERS.items():
            assert client.get(path).headers[name] == value


def test_the_page_has_no_script_of_its_own(client: TestClient) -> None:
    """Scripts are files from here; nothing is loaded from elsewhere."""
    text = client.get("/").text
    assert re.findall(r"<script[^>]*>[^<]*", text) == ['<script type="module" src="static/page.js">']
    assert not re.search(r"\son\w+=|style=|https?:", text)
    for name in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert client.get(f"/{name}").status_code == 200, name
    scripts = {p.name: p.read_text(encoding="utf-8") for p in server.STATIC.glob("*.js")}
    for name, script in scripts.items():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", script), name
        assert set(re.findall(r'from "\./([^"]*)"', script)) <= scripts.keys(), name
        assert name == "editor.js" or not re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(", script), (
            name
        )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("{", 400),
        ("[" * 100_000, 400),
        ("[]", 400),
        ("{}", 400),
        (json.dumps({"page": 1}), 400),
        (json.dumps({"page": "x" * 65}), 400),
        (json.dumps({"page": "1", "at": "2"}), 400),
        (json.dumps({"page": "1", "state": {"text": "x" * 2_000_000}}), 413),
    ],
)
def test_a_request_that_is_none_is_refused(client: TestClient, body: str, status: int) -> None:
    assert client.post("/check", content=body, headers={"Origin": HERE}).status_code == status


def test_only_the_named_jobs_are_done(client: TestClient) -> None:
    for name in ("jobs", "exec", "start"):
        done = client.post(f"/{name}", json={"page": "1"}, headers={"Origin": HERE})
        assert done.status_code in (404, 405)


# --- what is answered --------------------------------------------------------------------------------------


def test_the_page_begins_with_the_file() -> None:
    plain = TestClient(create_app(Settings(TOKEN, PORT, "op f", "a.pf")), base_url=HERE)
    plain.get("/", params={"token": TOKEN})
    found = plain.get("/start").json()
    assert (found["text"], found["name"], found["folder"]) == ("op f", "a.pf", "")


def test_what_may_be_chosen(client: TestClient) -> None:
    found = asked(client, "check")
    assert found["found"] == []
    assert found["controls"]["ops"] == ["softmax"]
    assert [s["name"] for s in found["controls"]["sizes"]] == ["T", "H"]


@pytest.mark.parametrize("view", [v for v in VIEWS if v != "run"])
def test_every_view_of_a_softmax(client: TestClient, view: str) -> None:
    parts = asked(client, "view", view=view, sizes={"T": 8, "H": 16})["parts"]
    kinds = [p["kind"] for p in parts]
    assert {
        "graph": "picture", "tree": "picture", "domains": "picture", "decisions": "decisions",
        "kernels": "picture", "code": "code", "cost": "table",
    }[view] in kinds  # fmt: skip
    assert all(p["svg"].startswith("<svg") for p in parts if p["kind"] == "picture")
    assert not any(p["tone"] == "bad" for p in parts if p["kind"] == "note")


def test_a_run_is_checked(client: TestClient) -> None:
    parts = asked(client, "view", view="run", sizes={"T": 8, "H": 16})["parts"]
    assert parts[0]["tone"] == "good" and parts[1]["rows"][0][:2] == ["y", "agrees"]


def test_code_of_a_gpu_needs_none(client: TestClient) -> None:
    parts = asked(client, "view", view="code", target="cuda")["parts"]
    assert any("__global__" in line for line in parts[0]["lines"])
    # Dims of a producer that its consumer has not, bounds that depend on other dims, no dims at all.
    grow = "op f(x: f32[T]) -> (s: f32) {\n  a[t] = sum[k in 0..t + 1](x[k]) for t in 0..T\n"
    grow += "  s = sum[t](a[t])\n}"
    assert "parts" in asked(client, "view", grow, view="kernels", target="cuda")
    places = asked(client, "view", view="kernels", target="cuda")["parts"]
    assert sum(p["title"].startswith("Blocks and threads") for p in places if p["kind"] == "picture") >= 2
    refused = asked(client, "view", view="run", target="cuda")["parts"]
    assert [p["tone"] for p in refused] == ["bad"]


def test_layers_and_sizes_count(client: TestClient) -> None:
    def launches(layers: list[str], **sizes: int) -> str:
        parts = asked(client, "view", view="kernels", layers=layers, sizes=sizes)["parts"]
        return str(dict(parts[0]["items"])["launches"])

    assert launches([]) == "4" and launches(["loop", "stitch"]) == "1"
    tall = asked(client, "view", view="graph", sizes={"T": 7, "H": 9})["parts"][0]
    assert ["sizes", "T = 7, H = 9"] in tall["items"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = ", "PF106"),
        ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }", "PF201"),
        ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1] }", "PF350"),
        ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i, i] }", "PF204"),
        ('import "nowhere.pf"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }', "PF107"),
    ],
)
def test_errors_have_code_and_place(client: TestClient, text: str, code: str) -> None:
    for do in ("check", "view"):
        found = asked(client, do, text, view="graph")
        assert code in codes(found), found
        assert "parts" not in found and "controls" not in found


def test_places_count_as_editors_do(client: TestClient) -> None:
    text = "# \N{GRINNING FACE} two units of UTF-16\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }"
    found = asked(client, "check", text)["found"]
    assert [d["code"] for d in found] == ["PF201"]
    units = text.encode("utf-16-le")
    assert units[2 * found[0]["from"] : 2 * found[0]["to"]].decode("utf-16-le") == "z"


def test_imports_stay_in_the_folder(client: TestClient) -> None:
    body = "op f(x: f32[N]) -> (y: f32[N]) { z = half(x)\n  y[i] = z[i] }"
    good = asked(client, "check", f'import "half.pf"\n{body}')
    assert good["found"] == [] and good["controls"]["ops"] == ["f"]
    for path in ("../secret.pf", "/etc/passwd", "link.pf", "~/x.pf"):
        assert codes(asked(client, "view", f'import "{path}"\n{body}', view="graph"))[0] == "PF107"


def test_a_text_without_a_folder_imports_nothing() -> None:
    text = 'import "half.pf"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }'
    request = {"name": "program.pf", "folder": "", "state": {"text": text}, "at": 3}
    assert codes(json.loads(child.answer(json.dumps({**request, "do": "check"})))) == ["PF107"]
    assert json.loads(child.answer(json.dumps({**request, "do": "complete"})))["proposals"]


@pytest.mark.parametrize(
    "state",
    [
        {"text": 1},
        {"text": SOFTMAX, "target": "tpu"},
        {"text": SOFTMAX, "layers": "loop"},
        {"text": SOFTMAX, "layers": ["weave"]},
        {"text": SOFTMAX, "sizes": {"T": -1}},
        {"text": SOFTMAX, "sizes": {"T": "8"}},
        {"text": SOFTMAX, "sizes": {"T": True}},
        {"text": SOFTMAX, "dtypes": {"F": "f31"}},
        {"text": SOFTMAX, "ranks": {"B": 99}},
        {"text": SOFTMAX, "op": 3},
    ],
)
def test_a_state_that_is_none_says_so(client: TestClient, state: dict[str, Any]) -> None:
    done = client.post("/view", json={"page": "1", "view": "graph", "state": state}, headers={"Origin": HERE})
    assert codes(done.json()) == ["PF822"]


def test_sizes_of_another_operator_do_not_count(client: TestClient) -> None:
    parts = asked(client, "view", view="graph", sizes={"T": 5, "Q": 7}, dtypes={"F": "f16"}, ranks={"B": 2})[
        "parts"
    ]
    assert dict(parts[0]["items"])["sizes"].startswith("T = 5")


def test_completion_and_hover(client: TestClient) -> None:
    at = SOFTMAX.index("exp(")
    assert ["exp", "function", "function"] in asked(client, "complete", at=at + 2)["proposals"]
    found = asked(client, "hover", at=SOFTMAX.index("e[t, h] /"))
    assert "exp(x[t, h]" in found["text"] and SOFTMAX[found["from"] : found["to"]] == "e"


def test_the_library(client: TestClient) -> None:
    families = asked(client, "library")["library"]
    texts = {op["name"]: op["text"] for f in families for op in f["ops"]}
    assert "layer_norm" in texts and texts["softmax"].startswith("# Softmax")


def test_hostile_names_and_odd_programs(client: TestClient) -> None:
    """Texts go through as they are; an operator without inputs, sizes of 0, two operators."""
    hostile = "# <script>alert(1)</script> </svg>\n" + SOFTMAX
    assert "parts" in asked(client, "view", hostile, view="graph")
    none = "op f[N: size = 4]() -> (y: f32[N]) { y[i] = f32(i) }"
    for view in VIEWS:
        assert "parts" in asked(client, "view", none, view=view), view
        empty = asked(client, "view", view=view, sizes={"T": 0})
        assert "parts" in empty, (view, empty)
    two = SOFTMAX + "op g(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }"
    assert asked(client, "check", two)["controls"]["op"] == "g"
    assert asked(client, "check", two, op="softmax")["controls"]["op"] == "softmax"
    assert asked(client, "check", two, op="gone")["controls"]["op"] == "g"
    assert codes(asked(client, "view", "# nothing", view="graph")) == ["PF411"]


# --- jobs --------------------------------------------------------------------------------------------------


def slow(limit_s: float, patience_s: float = 0.0) -> Jobs:
    return Jobs(limit_s, (sys.executable, "-c", SLOW), patience_s)


def test_a_job_that_takes_too_long_is_ended() -> None:
    async def run() -> None:
        jobs = slow(0.2)
        late = await jobs.ask("1", {"seconds": 60})
        assert codes(dict(late)) == ["PF821"] and late["late"]
        assert "0.2 s" in late["errors"][0]["message"]
        assert await jobs.ask("1", {"seconds": 0}) == {"done": 0}, "with another child"
        assert jobs.child.starts == 2
        jobs.close()

    asyncio.run(run())


def test_the_latest_request_of_a_page_wins() -> None:
    async def run() -> None:
        jobs = slow(20)
        await jobs.start()
        first, other = asyncio.create_task(jobs.ask("1", {"seconds": 30})), None
        await asyncio.sleep(0.05)
        second = asyncio.create_task(jobs.ask("1", {"seconds": 29}))
        other = asyncio.create_task(jobs.ask("2", {"seconds": 0}))
        await asyncio.sleep(0.05)
        third = asyncio.create_task(jobs.ask("1", {"seconds": 0.01}))
        assert await first is SUPERSEDED and await second is SUPERSEDED
        assert await third == {"done": 0.01}
        assert await other == {"done": 0}, "another page keeps what it asked"
        assert not jobs.latest and jobs.running is None
        jobs.close()

    asyncio.run(run())


def test_a_child_that_ends_is_started_again() -> None:
    async def run() -> None:
        jobs = slow(20)
        job = asyncio.create_task(jobs.ask("1", {"seconds": 30}))
        while jobs.child.process is None or jobs.running is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        jobs.child.end()
        assert codes(dict(await job)) == ["PF821"]
        assert await jobs.ask("1", {"seconds": 0}) == {"done": 0}
        jobs.close()

    asyncio.run(run())


def test_a_child_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    """On a busy machine the first one may be late."""
    late = f"import pathlib, sys; p = pathlib.Path({str(tmp_path / 'seen')!r})\n"
    late += "if not p.exists():\n    p.touch()\n    sys.exit()\n"

    async def run() -> None:
        jobs = Jobs(20, (sys.executable, "-c", late + SLOW))
        assert codes(dict(await jobs.ask("1", {"seconds": 0}))) == ["PF821"]
        assert await jobs.ask("1", {"seconds": 0}) == {"done": 0}
        jobs.close()

    asyncio.run(run())


def test_the_server_says_that_a_job_was_dropped() -> None:
    class Dropping(Jobs):
        async def ask(self, page: str, request: Any) -> Any:
            return SUPERSEDED

        async def start(self) -> None: ...

    app = create_app(Settings(TOKEN, PORT), Workers(Dropping(1), Dropping(1)))
    plain = TestClient(app, base_url=HERE, headers={"Origin": HERE, "X-Polyfuse-Token": TOKEN})
    assert plain.post("/view", json={"page": "1"}).status_code == 409


# --- the command -------------------------------------------------------------------------------------------


def test_missing_packages_have_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        server.require_packages()
    assert caught.value.code == "PF820" and "pip install '.[explore]'" in str(caught.value)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError):
            server.bound(taken.getsockname()[1])
    free = server.bound(None)
    assert free.getsockname()[0] == "127.0.0.1"
    free.close()


def test_the_server_loads_nothing_of_the_compiler() -> None:
    """Children compile; the server starts at once."""
    code = (
        "import sys; from polyfuse.explore.server import *; create_app(Settings('t', 1)); "
        "print(*{'numpy', 'islpy', 'lark'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""


def test_the_example_has_no_findings() -> None:
    request = {"do": "check", "name": "program.pf", "folder": "", "state": {"text": server.EXAMPLE}}
    assert json.loads(child.answer(json.dumps(request)))["found"] == []


def test_static_files_are_there() -> None:
    assert {p.name for p in server.STATIC.iterdir()} >= {"index.html", "editor.js", "editor.LICENSE.txt"}
