"""What tests of the page share: opening it, saying something, reading what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from browser import Browser, Tab
from server_fakes import Live

DONE = "document.querySelector('#send').textContent === 'Send' && !!document.querySelector('article.assistant')"
ANSWER = "article.assistant:last-of-type .text"


@contextmanager
def opened(browser: Browser, live: Live, path: str = "/", **options: Any) -> Iterator[Tab]:
    """The page, ready; whatever its script or its policy complained about fails the test."""
    with browser.tab(f"http://127.0.0.1:{live.port}{path}", **options) as tab:
        yield tab
        assert tab.seen("Runtime.exceptionThrown") == []
        violations = [e for e in tab.seen("Log.entryAdded") if "Content Security" in e["entry"]["text"]]
        assert violations == []


def say(tab: Tab, text: str, *, wait: bool = True) -> None:
    tab.js("document.querySelector('#input').focus()")
    tab.type(text)
    tab.press("Enter")
    if wait:
        tab.until(DONE)


def kept(tab: Tab) -> Any:
    return json.loads(tab.js("localStorage.getItem('edgespec.chat')"))
