"""The page's key, its policy, and what a model must not do in it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="the extra [server] is not installed")
from browser import MISSING, Browser, browsing
from page_tools import ANSWER, opened, say
from server_fakes import Live, served_engine, serving

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(served_engine("yes")) as live:
        yield live


def test_a_key_is_asked_for_and_kept_for_the_tab_only(browser: Browser) -> None:
    with serving(served_engine("yes"), api_key="s3cret") as live:
        assert live.ask("/").status == 200
        with opened(browser, live) as tab:
            tab.until("document.querySelector('#key').open")
            tab.type("wrong")
            tab.press("Enter")
            tab.until("document.querySelector('#key-why').textContent === 'That key is not the right one.'")
            tab.until("document.querySelector('#key').open")
            tab.type("s3cret")
            tab.press("Enter")
            tab.until("document.querySelector('#model').textContent.startsWith('fake')")
            say(tab, "hello")
            assert tab.text(ANSWER) == "yes"
            assert "s3cret" not in tab.js("JSON.stringify(localStorage)")
            tab.go(f"http://127.0.0.1:{live.port}/")
            tab.until("document.querySelector('#model').textContent.startsWith('fake')")


def test_a_key_in_the_address_is_taken_out_of_it(browser: Browser) -> None:
    with serving(served_engine("yes"), api_key="s3cret+/=") as live:
        for fragment in ("#token=s3cret+/=", "#token=s3cret%2B%2F%3D"):
            with opened(browser, live, "/" + fragment) as tab:
                tab.until("document.querySelector('#model').textContent.startsWith('fake')")
                assert tab.js("location.href") == f"http://127.0.0.1:{live.port}/"
                assert tab.js("history.length") <= 2
        with opened(browser, live) as tab:
            tab.until("document.querySelector('#key').open")
            tab.js("location.hash = '#token=s3cret+/='")  # as a shell does that has the page open
            tab.until("document.querySelector('#model').textContent.startsWith('fake')")
            tab.until("!document.querySelector('#key').open && location.hash === ''")


HOSTILE = (
    "<img src=x onerror=document.title='owned'> <script>document.title='owned'</script>\n\n"
    "# <b>head</b>\n\n```html\n<img src=x onerror=document.title='owned'>\n</code></pre><script>1</script>\n```\n"
    "- **<i>x</i>** [click](javascript:document.title='owned') ![p](https://evil.example/p.png)\n"
    "1. `<u>`\n> <a href=//evil.example>q</a>\n\n**never closed `nor this <em>\n\n~~~\nnor the fence <s>"
)


def test_what_the_model_writes_stays_text(browser: Browser) -> None:
    with serving(served_engine(HOSTILE)) as live, opened(browser, live) as tab:
        say(tab, "x")
        names = set(tab.js(f"[...document.querySelectorAll({json.dumps(ANSWER + ' *')})].map(e => e.localName)"))
        assert names <= {"p", "h3", "div", "span", "button", "pre", "code", "ul", "ol", "li", "strong", "blockquote"}
        assert {"h3", "code", "ul", "ol", "strong", "blockquote"} <= names
        text = tab.text(ANSWER)
        for part in ("<img src=x onerror", "<script>", "<i>x</i>", "javascript:", "never closed `nor", "fence <s>"):
            assert part in text
        assert tab.js("document.title") == "edgespec"
        asked = [event["request"]["url"] for event in tab.seen("Network.requestWillBeSent")]
        assert not [url for url in asked if "evil" in url or url.endswith("/x")]


def test_what_the_policy_forbids_does_not_happen(browser: Browser, live: Live) -> None:
    reply = live.ask("/")
    assert "'unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.data.count(b"<script") == reply.data.count(b"</script>") == 1
    with browser.tab(f"http://127.0.0.1:{live.port}/") as tab:
        assert (
            tab.js("(() => { try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name } })()")
            == "TypeError"
        )
        tab.js("document.head.append(Object.assign(document.createElement('style'), {textContent: 'body{opacity:0}'}))")
        assert tab.js("getComputedStyle(document.body).opacity") == "1"
        assert tab.js("fetch('http://127.0.0.1:9/').then(() => 'went', e => e.name)") == "TypeError"


def test_only_the_page_is_open_and_only_to_its_own_origin() -> None:
    with serving(served_engine("yes"), api_key="s3cret") as live:
        assert live.ask("/").headers["content-type"].startswith("text/html")
        assert live.ask("/", method="HEAD").data == b""
        assert live.ask("/", headers={"Host": "evil.example"}).status == 403
        assert live.ask("/", headers={"Origin": "https://evil.example"}).status == 403
        assert live.ask("/", {}).status == 405
        for path in ("//", "/index.html", "/page.js", "/?x", "/props", "/v1/models"):
            assert live.ask(path).status == (200 if path == "/?x" else 401)
