"""The page with the default model; `python tests/test_page_real.py MODEL docs/page.png` makes the picture."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra [server] is not installed")
from browser import MISSING, Tab, browsing
from page_tools import DONE, say
from server_fakes import Live, serving

from edgespec.config import EngineConfig
from edgespec.engine import Engine

pytestmark = [pytest.mark.model, pytest.mark.skipif(MISSING is not None, reason=MISSING or "")]
ASKED = ("Write a Python function that adds two numbers.", "Now the same function with type hints.")


@contextmanager
def served(model: Path) -> Iterator[Live]:
    config = EngineConfig(n_ctx=2048, threads=1, threads_batch=1, temperature=0.0, learn=False)
    with Engine.open(model, config) as engine, serving(engine) as live:
        yield live


def converse(tab: Tab, asked: tuple[str, ...]) -> None:
    tab.until("document.querySelector('#model').textContent !== ''")
    for text in asked:
        say(tab, text, wait=False)
        tab.until("document.querySelector('#send').textContent === 'Stop'")
        tab.until(DONE, 0.3)  # looking takes time from the model


def test_a_conversation(default_model: Path) -> None:
    with served(default_model) as live, browsing() as browser, browser.tab(f"http://127.0.0.1:{live.port}/") as tab:
        tab.click("#open-settings")
        tab.click("#max-tokens")
        tab.type("48")
        tab.click("dialog[open] button", "Close")
        tab.until("!document.querySelector('dialog[open]')")
        converse(tab, ("Repeat this word by word: the quick brown fox, the quick brown fox, the quick brown fox.",))
        assert tab.text("article.assistant .text").strip()
        assert float(tab.text("#rate")) > 0
        assert tab.text("#cores")[0].isdigit()
        report = live.service.tally.last
        assert report is not None
        if report.drafted:
            assert f"{report.accepted} of {report.drafted} guessed tokens" in tab.text("#drafting")
        assert tab.shown("#log .guessed, #log .partly") == (report.accepted > 0)
        assert tab.seen("Runtime.exceptionThrown") == []


@contextmanager
def told_by_the_command_line(model: str) -> Iterator[str]:
    """The address of `edgespec serve`, with its usual options."""
    code = "from edgespec.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", model, "--port", "0", "--ctx", "2048", "--temp", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = next(found for line in process.stderr if (found := re.search(r"(http://\S+)/ \(API", line)))
            yield f"{found[1]}/"
        finally:
            process.terminate()


def main(model: str, file: str) -> None:
    """A desktop and a phone side by side, the phone in the dark."""
    with told_by_the_command_line(model) as url, browsing() as browser:
        pictures = []
        for width, phone, scheme in ((860, False, "light"), (360, True, "dark")):
            with browser.tab(url, width=width, height=720, phone=phone) as tab:
                tab.media(prefers_color_scheme=scheme)
                converse(tab, ASKED)
                pictures.append((width, base64.b64encode(tab.picture()).decode()))
        with browser.tab("data:text/html,<body></body>", width=1260, height=760) as tab:
            shown = "".join(
                f'<img width="{w}" height="720" src="data:image/png;base64,{data}">' for w, data in pictures
            )
            style = "display:flex;gap:20px;margin:0;padding:20px 10px;background:#777c85"
            tab.js(f"document.body.style.cssText = {style!r}; document.body.innerHTML = {shown!r}; 0")
            tab.until("[...document.images].every(image => image.complete)")
            Path(file).write_bytes(tab.picture())


if __name__ == "__main__":
    main(*sys.argv[1:])
