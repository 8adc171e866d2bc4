"""The page at `/`, driven in a headless Chromium: what a person types, sees and hears."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra [server] is not installed")
from browser import MISSING, Browser, Tab, browsing
from page_tools import ANSWER, DONE, kept, opened, say
from server_fakes import Gate, Live, last_message, served_engine, serving

from edgespec.errors import EvalError

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
COPY = "the same words again and the same words again and the same words again"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def engine() -> Any:
    return served_engine(lambda prompt: f"You said: {last_message(prompt)}")


@pytest.fixture(scope="module")
def live(engine: Any) -> Iterator[Live]:
    with serving(engine) as live:
        yield live


def test_type_and_read(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        tab.until("document.querySelector('#model').textContent.startsWith('fake')")
        say(tab, "hello")
        assert tab.text(ANSWER) == "You said: hello"
        assert tab.text("#said") == "Answer: You said: hello"
        assert tab.js("document.activeElement.id") == "input"
        assert tab.js("document.querySelector('#input').value") == ""
        say(tab, "more")
        assert tab.js("document.querySelectorAll('article').length") == 4
        assert tab.text(ANSWER) == "You said: more"
        hosts = {re.sub(r"^(\w+://[^/]*).*", r"\1", e["request"]["url"]) for e in tab.seen("Network.requestWillBeSent")}
        assert hosts - {"data:,"} == {f"http://127.0.0.1:{live.port}"}


def test_enter_shift_enter_and_tab(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        tab.js("document.querySelector('#input').focus()")
        tab.type("one")
        tab.press("Enter", shift=True)
        tab.type("two")
        assert tab.js("document.querySelector('#input').value") == "one\ntwo"
        tab.press("Enter")
        tab.until(DONE)
        assert tab.text("article.user .text") == "one\ntwo"
        tab.press("Tab")
        assert tab.js("document.activeElement.id") == "send"
        assert tab.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        tab.press("Enter")
        assert tab.js("document.querySelectorAll('article').length") == 2, "nothing was typed, so nothing is sent"


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_it_streams_and_stops(browser: Browser, how: str) -> None:
    engine = served_engine("one two three four five six seven eight nine ten eleven twelve")
    gate = Gate(engine.target)
    with serving(engine) as live, opened(browser, live) as tab:
        say(tab, "count", wait=False)
        tab.until("document.querySelector('.wait')?.textContent.includes('waiting for a place')")
        gate.let(12)
        tab.until(f"document.querySelector({json.dumps(ANSWER)})?.textContent.startsWith('one two')")
        assert tab.text("#send") == "Stop"
        assert tab.js("document.querySelector('#log').getAttribute('aria-busy')") == "true"
        assert tab.text("#said") == "Answering", "a screen reader is not told each piece"
        assert tab.js("document.querySelector('article.assistant').closest('[aria-live], [role=log]')") is None
        if how == "Escape":
            tab.press("Escape")
        else:
            tab.click("#send")
        live.until(lambda: engine.target.aborted)
        gate.open()
        tab.until(DONE)
        live.until(lambda: live.service.tally.n_answers == {"cancelled": 1})
        assert tab.text(ANSWER).startswith("one two")
        assert tab.text("article.assistant .note") == "stopped"
        tab.click(".acts button", "Retry")
        tab.until(f"document.querySelector({json.dumps(ANSWER)})?.textContent.endsWith('twelve')")
        assert tab.js("document.querySelectorAll('article').length") == 2


def test_the_strip_moves_and_guessed_text_is_tinted(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        tab.until("document.querySelector('#heat').textContent === '52'")
        assert tab.text("#rate") == tab.text("#accepted") == tab.text("#draft") == "–", "what is not known is no 0"
        say(tab, COPY)
        assert float(tab.text("#rate")) > 0
        assert re.fullmatch(r"\d+ %", tab.text("#accepted"))
        assert float(tab.text("#width")) > 1
        report = live.service.tally.last
        assert report is not None
        assert f"{report.accepted} of {report.drafted} guessed tokens accepted" in tab.text("#drafting")
        assert tab.js("document.querySelectorAll('#passes i').length") >= report.rounds
        guessed = tab.js("[...document.querySelectorAll('#log .guessed')].map(e => e.textContent).join('')")
        assert len(guessed) in {report.accepted, report.accepted - 1}, "a token is a character here, or the end"
        assert "and the same w" in guessed
        tint = "getComputedStyle(document.querySelector('.guessed')).backgroundColor"
        assert tab.js(tint) != "rgba(0, 0, 0, 0)"
        tab.click("#open-settings")
        tab.click("#tint")
        assert tab.js(tint) == "rgba(0, 0, 0, 0)"
        tab.click("#drafts")
        assert tab.text("#drafting").startswith("Drafting off: switched off in Settings")
        tab.press("Escape")
        tab.until("!document.querySelector('dialog[open]')")
        say(tab, COPY)
        assert live.service.tally.last is not None
        assert live.service.tally.last.drafted == 0


def test_why_drafting_is_off(browser: Browser) -> None:
    with serving(served_engine("x", drafter="none")) as live, opened(browser, live) as tab:
        tab.until("document.querySelector('#drafting').textContent === 'Drafting off: drafting was not asked for'")


def test_retry_edit_new_and_settings(browser: Browser, live: Live, engine: Any) -> None:
    with opened(browser, live) as tab:
        tab.click("#open-settings")
        tab.click("#system")
        tab.type("be brief")
        tab.click("#temperature")
        tab.type("0.2")
        tab.click("dialog[open] button", "Close")
        tab.until("!document.querySelector('dialog[open]')")
        say(tab, "first")
        assert "system\nbe brief" in engine.decode(engine.calls[-1][0]).decode()
        assert engine.calls[-1][1].temperature == 0.2
        tab.click(".acts button", "Retry")
        live.until(lambda: engine.calls[-1][1].temperature == 0.7)
        tab.until(DONE)
        assert tab.text("article.assistant .note") == "drawn at temperature 0.7"
        assert tab.js("document.querySelectorAll('article').length") == 2
        tab.click(".acts button", "Edit")
        assert tab.js("document.querySelector('#input').value") == "first"
        tab.type(" again")
        tab.press("Enter")
        tab.until(DONE)
        assert tab.text("article.user .text") == "first again"
        assert tab.js("document.querySelectorAll('article').length") == 2
        tab.click("#new")
        tab.until("!document.querySelector('article')")
        assert kept(tab)["settings"]["system"] == "be brief", "settings outlive a chat"


def test_the_conversation_is_kept_bounded_and_forgotten(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        say(tab, COPY)
        before = tab.js("document.querySelector('#log').innerHTML")
        tab.js("document.querySelector('#input').focus()")
        tab.type("half a thou")
        url = tab.js("location.href")
        tab.go(url + "health")
        tab.go(url)
        assert tab.js("document.querySelector('#log').innerHTML") == before, "the tint too"
        assert tab.js("document.querySelector('#input').value") == "half a thou"
        tab.go(url + "health")  # the page keeps what it has when it is left
        tab.js(
            "localStorage.setItem('edgespec.chat', JSON.stringify({messages: Array.from({length: 400},"
            " (_, i) => ({role: i % 2 ? 'assistant' : 'user', content: i + 'x'.repeat(2000)}))}))"
        )
        tab.go(url)
        tab.until("document.querySelectorAll('article').length === 400")
        say(tab, "last")
        assert tab.js("localStorage.getItem('edgespec.chat').length") <= 250_000
        assert [message["content"] for message in kept(tab)["messages"]][-2:] == ["last", "You said: last"]
        tab.go(url + "health")
        tab.js("localStorage.setItem('edgespec.chat', JSON.stringify({messages: [{role: 'god', content: 'x'}, 5,"
               " {role: 'user', content: 'old', marks: 'bad'}], settings: {tint: 'no', system: 'kept'}}))")  # fmt: skip
        tab.go(url)
        tab.until("document.querySelector('article.user .text')?.textContent === 'old'")
        assert tab.js("document.querySelector('#system').value") == "kept"
        tab.click("#open-settings")
        tab.click("#forget")
        tab.until("!document.querySelector('article')")
        assert tab.js("localStorage.getItem('edgespec.chat')") is None


def test_the_oldest_messages_stay_behind_when_the_context_is_full(browser: Browser) -> None:
    engine = served_engine(lambda prompt: f"You said: {last_message(prompt)}", n_ctx=400)
    with serving(engine) as live, opened(browser, live) as tab:
        for i in range(5):
            say(tab, f"{i} " + "abc" * 20)
        assert "the oldest" in tab.text("article.assistant:last-of-type .note")
        assert tab.js("document.querySelectorAll('article').length") == 10
        say(tab, "y" * 500, wait=False)
        tab.until("document.querySelector('#error span').textContent.includes('longer than the model')")
        tab.click("#error button", "Edit")
        assert tab.js("document.querySelector('#input').value.length") == 500


def test_errors_are_one_line_with_what_to_do(browser: Browser) -> None:
    engine = served_engine("a long answer")
    with serving(engine) as live, opened(browser, live) as tab:
        broken = iter([False, False, True])

        def fail(_: object) -> None:
            if next(broken, False):
                raise EvalError("the device is gone")

        engine.target.before_eval = fail
        say(tab, "x", wait=False)
        tab.until("document.querySelector('#error span').textContent === 'the device is gone'")
        assert tab.js("document.querySelector('#error').getAttribute('role')") == "alert"
        tab.click("#error button", "Try again")
        tab.until(f"document.querySelector({json.dumps(ANSWER)})?.textContent === 'a long answer'")
        assert not tab.shown("#error")
        live.service.draining = True
        say(tab, "y", wait=False)
        tab.until("document.querySelector('#error span').textContent === 'the server is shutting down, in 60 s'")
        live.service.draining = False
        tab.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        tab.click("#error button")
        tab.until("document.querySelector('#error span').textContent.includes('see whether edgespec serve still runs')")


@pytest.mark.parametrize("width", [360, 320])
def test_a_phone_never_scrolls_sideways(browser: Browser, width: int) -> None:
    reply = f"# {'word ' * 30}\n\n{'x' * 200}\n\n```\n{'y' * 200}\n```\n- {'z' * 100}\n"
    with serving(served_engine(reply)) as live, opened(browser, live, width=width, height=640, phone=True) as tab:
        wide = "document.documentElement.scrollWidth"
        say(tab, "w" * 120)
        assert tab.js(wide) == width
        assert tab.js("document.querySelector('#log').scrollWidth <= document.querySelector('#log').clientWidth")
        assert tab.js("document.querySelector('#composer').getBoundingClientRect().bottom") <= 640
        small = "[...document.querySelectorAll('button')].filter(e => e.getClientRects().length && e.offsetHeight < 32)"
        assert tab.js(f"{small}.length") == 0
        tab.click("#open-settings")
        assert tab.js("document.querySelector('#settings').getBoundingClientRect().right") <= width
        assert tab.js(wide) == width
        tab.js("history.back()")  # the back gesture
        tab.until("!document.querySelector('#settings').open")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=330, deviceScaleFactor=2, mobile=True)
        tab.until("document.querySelector('#composer').getBoundingClientRect().bottom <= 331")  # the keyboard is up


def test_dark_and_light_and_motion(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        say(tab, COPY)
        for scheme in ("light", "dark"):
            tab.media(prefers_color_scheme=scheme)
            for selector in (
                f"{ANSWER} p",
                ".guessed",
                "#strip",
                "#rate",
                ".acts button",
                "#send",
                "article.user .text",
            ):
                assert contrast(tab, selector) >= 4.5, (scheme, selector)
        for motion, name in (("no-preference", "wait"), ("reduce", "none")):
            tab.media(prefers_reduced_motion=motion)
            tab.js(
                "document.querySelector('#log').append(Object.assign(document.createElement('p'), {className: 'wait'}))"
            )
            assert tab.js("getComputedStyle(document.querySelector('.wait'), '::after').animationName") == name


def contrast(tab: Tab, selector: str) -> float:
    """Of an element's text with what is behind it. Source: WCAG 2.2, contrast ratio."""
    colors = tab.js(
        f"(e => {{ let b = e; while (getComputedStyle(b).backgroundColor === 'rgba(0, 0, 0, 0)') b = b.parentElement;"
        f" return [getComputedStyle(e).color, getComputedStyle(b).backgroundColor] }})"
        f"(document.querySelector({json.dumps(selector)}))"
    )
    light, dark = sorted((luminance(color) for color in colors), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_everything_has_a_name(browser: Browser, live: Live) -> None:
    with opened(browser, live) as tab:
        say(tab, "```\nx\n```")
        tab.click("#open-settings")
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        controls = [
            n for n in nodes if n.get("role", {}).get("value") in {"button", "textbox", "checkbox", "spinbutton"}
        ]
        assert len(controls) >= 6
        assert [n for n in controls if not n["ignored"] and not n["name"]["value"]] == []
