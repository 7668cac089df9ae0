"""The explorer's page in Chromium: what people do there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from chromium import COMMAND, Chromium, Page

from polyfuse.explore import server
from polyfuse.explore.jobs import Jobs
from polyfuse.explore.server import Settings, Workers

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(COMMAND is None, reason="there is no chromium (Debian: apt install chromium)"),
]

ADD = "op add(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] + b[h] }\n"
READY = "document.querySelector('#panel[aria-busy=false]:not(.stale)')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium.started() as found:
        yield found


def served(text: str | None = None, workers: Workers | None = None) -> Iterator[Settings]:
    at = server.bound(None)
    settings = server.settings_for(at.getsockname()[1], text, "page.pf", None)
    config = uvicorn.Config(server.create_app(settings, workers), log_level="error", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([at],), daemon=True)
    thread.start()
    yield settings
    running.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    yield from served()


@pytest.fixture
def page(browser: Chromium, settings: Settings) -> Iterator[Page]:
    found = browser.open(settings.address)
    found.wait("document.querySelector('#panel svg')")
    yield found
    assert found.problems() == []


def write(page: Page, text: str) -> None:
    """Replace the program."""
    page.click(".cm-content")
    page.key("KeyA", 65, control=True)
    page.type(text)


def tab(page: Page, name: str) -> None:
    page.click(f"#tab-{name}")
    page.wait(f"document.getElementById('tab-{name}').getAttribute('aria-selected') === 'true' && {READY}")


def choose(page: Page, name: str, value: str) -> None:
    """One of a list."""
    change = f"e.value = '{value}'; e.dispatchEvent(new Event('change'))"
    page.do(f"(e => {{ {change} }})(document.getElementById('{name}'))")


def panel(page: Page) -> str:
    found: str = page.do("document.getElementById('panel').innerText")
    return found


def test_errors_appear_while_one_types_and_a_button_mends_them(page: Page) -> None:
    write(page, ADD.replace("x[t, h] +", "exq(x[t, h]) +"))
    page.wait("document.querySelector('#problems .problem')")
    assert "PF202" in page.do("document.getElementById('problems').innerText")
    page.wait("document.querySelector('.cm-lintRange-error')?.textContent.includes('exq')")
    assert "Mend the error" in panel(page)
    page.click("#problems .fix")
    page.wait("!document.querySelector('#problems .problem') && document.querySelector('#panel svg')")
    assert "exp(x[t, h])" in page.do("document.querySelector('.cm-content').innerText")


def test_a_layer_is_switched_off(page: Page) -> None:
    tab(page, "kernels")
    assert panel(page).split("launches")[1].split()[0] == "1"
    page.click("#layers input[value=loop]")
    page.click("#layers input[value=stitch]")
    page.wait("document.getElementById('panel').innerText.startsWith('launches\\n5')")


def test_sizes_and_target_count(page: Page) -> None:
    page.click("#sizes input[data-name=T]")
    page.type("12")
    page.wait("document.getElementById('panel').innerText.includes('T = 12')")
    page.type("x")
    page.wait("document.querySelector('#sizes input[data-name=T].wrong')")
    choose(page, "target", "cuda")
    tab(page, "code")
    page.wait("document.getElementById('panel').innerText.includes('__global__')")


def first(selector: str, holds: str, name: str) -> str:
    """Code that gives a name to the first element in which something holds of the text `t`."""
    found = f"[...document.querySelectorAll('{selector}')].find(e => (t => {holds})(e.textContent))"
    return f"{found}.id = '{name}'"


def test_code_and_program_light_each_other_up(page: Page) -> None:
    tab(page, "code")
    page.wait("document.querySelector('.line.from')")
    page.do(first(".line.from", r"/b_y\[.*\] = /.test(t)", "store"))
    page.hover("#store")
    lit = "[...document.querySelectorAll('.cm-lit')].map(e => e.textContent).join(' ')"
    page.wait(f"{lit}.includes('sqrt')")
    assert "variance[t] = sum" not in page.do(lit)
    page.do(first(".cm-line", "t.includes('variance[t] =')", "variance"))
    page.hover("#variance")
    page.wait("document.querySelector('.line.lit')?.textContent.includes('variance')")
    assert page.do("!document.querySelector('#store.lit')")


def test_a_link_has_the_whole_state(page: Page, browser: Chromium, settings: Settings) -> None:
    write(page, ADD + "# \N{GRINNING FACE} <b>é</b>\n")
    page.wait("document.querySelector('#sizes input[data-name=H]')")
    page.click("#sizes input[data-name=H]")
    page.type("24")
    page.click("#layers input[value=pack]")
    tab(page, "cost")
    page.click("#link")
    page.wait("document.getElementById('toast')")
    link = page.do("location.href")
    assert settings.token not in link
    other = browser.open(link)
    other.wait("document.getElementById('tab-cost')?.getAttribute('aria-selected') === 'true'")
    other.wait("document.querySelector('#sizes input[data-name=H]')?.value === '24'")
    other.wait("document.querySelector('#panel table')")
    assert "\N{GRINNING FACE} <b>é</b>" in other.do("document.querySelector('.cm-content').innerText")
    assert other.do("document.querySelector('#layers input[value=pack]').checked") is False
    other.go(link.split("#")[0] + "#1.bad")
    other.wait("document.getElementById('toast')?.innerText.includes('cannot be read')")


def test_a_page_without_the_token_has_nothing(browser: Chromium, settings: Settings) -> None:
    context = browser.call("Target.createBrowserContext")["browserContextId"]
    stranger = browser.open(f"http://127.0.0.1:{settings.port}/", browserContextId=context)
    stranger.wait("document.body.innerText.startsWith('Refused')")


def test_dark_and_light(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.dark(False)
    light = page.do(colour)
    page.dark(True)
    assert (light, page.do(colour)) == ("rgb(255, 255, 255)", "rgb(22, 27, 34)")


def test_texts_stay_texts(page: Page) -> None:
    """Names cannot have signs; comments, errors and what is drawn can."""
    hostile = "# <img src=x onerror=document.title=1><script>document.title=1</script>\n"
    write(page, hostile + ADD)
    page.wait("document.querySelector('#panel svg')")
    write(page, hostile + ADD.replace("b[h] }", '"<img src=x onerror=document.title=1>" }'))
    page.wait("document.querySelector('#problems .problem')")
    assert page.do("document.querySelectorAll('img, #panel script').length") == 0
    assert page.do("document.title") != "1"


def test_a_run_waits_for_its_button(page: Page) -> None:
    tab(page, "run")
    assert "agrees" not in panel(page)
    page.click("#panel button.main")
    page.wait("document.getElementById('panel').innerText.includes('agrees')")
    assert "one call, median" in panel(page)


def test_the_keyboard_alone(page: Page) -> None:
    page.do("document.getElementById('tab-graph').focus()")
    page.key("ArrowRight", 39)
    page.wait("document.activeElement.id === 'tab-tree'")
    page.key("End", 35)
    page.wait("document.activeElement.id === 'tab-run'")
    page.do("document.getElementById('divider').focus()")
    before = page.do("document.getElementById('left').offsetWidth")
    page.key("ArrowRight", 39)
    page.wait(f"document.getElementById('left').offsetWidth > {before}")


def test_an_operator_of_the_library_is_loaded(page: Page) -> None:
    page.wait("document.querySelectorAll('#library option').length > 100")
    choose(page, "library", "softmax")
    page.wait("document.getElementById('panel').innerText.includes('B_0 = ')")
    assert "op softmax" in page.do("document.querySelector('.cm-content').innerText")
    assert page.do("document.querySelector('#sizes select').value") == "f32"


def test_words_are_completed(page: Page) -> None:
    write(page, "op f(x: f32[N]) -> (y: f32[N]) { y[i] = ")
    page.press("sq")
    page.wait("document.querySelector('.cm-tooltip-autocomplete')?.innerText.includes('sqrt')")


def test_two_pages_at_once(page: Page, browser: Chromium, settings: Settings) -> None:
    other = browser.open(settings.address)
    other.wait("document.querySelector('#panel svg')")
    for name in ("domains", "cost", "code", "decisions"):
        page.do(f"document.getElementById('tab-{name}').click()")
        other.do(f"document.getElementById('tab-{name}').click()")
    for one in (page, other):
        one.wait(f"document.querySelector('#panel .decisions') && {READY}")


def test_what_takes_too_long_says_so(browser: Chromium, tmp_path: Path) -> None:
    for settings in served(workers=Workers(view=Jobs(0.005))):
        slow = browser.open(settings.address)
        slow.wait("document.querySelector('#panel .problem')?.innerText.includes('PF821')")
        assert "choose smaller sizes" in panel(slow)


def test_a_server_that_has_ended(browser: Chromium) -> None:
    for settings in served():
        lonely = browser.open(settings.address)
        lonely.wait("document.querySelector('#panel svg')")
    time.sleep(0.2)
    lonely.do("document.getElementById('tab-cost').click()")
    lonely.wait("document.getElementById('panel').innerText.includes('does not answer')")


def test_a_state_of_another_kind_is_told(page: Page) -> None:
    page.do(
        f"fetch('view', {{method: 'POST', body: {json.dumps(json.dumps({'page': '1', 'view': 'graph'}))}}})"
    )
    page.wait(READY)
