"""A headless Chromium that a test drives: the DevTools protocol over the two pipes of --remote-debugging-pipe.

Neither a websocket library nor a driver is needed: messages are JSON, each ended by a zero byte.
Source: the Chrome DevTools Protocol, and content/browser/devtools/devtools_pipe_handler.cc of Chromium.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 30.0
"""For what happens at once unless the machine is very busy."""
_PATH = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
MISSING = None if _PATH else "no chromium on this machine: the page is not driven"
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars", "--mute-audio", "--no-proxy-server",
)  # fmt: skip
# The browser reads from file 3 and writes to file 4, whatever these are in this process.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
_SHIFT = 8


@dataclass
class Browser:
    """The running browser."""

    _reads: int
    _writes: int
    _held: bytes = b""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """One command of the protocol and its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writes, data) :]
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            assert select.select([self._reads], [], [], WAIT_S)[0], "the browser says nothing"
            part = os.read(self._reads, 1 << 20)
            assert part, "the browser is gone"
            self._held += part
        data, _, self._held = self._held.partition(b"\0")
        found: dict[str, Any] = json.loads(data)
        return found

    @contextmanager
    def tab(self, url: str, *, width: int = 1000, height: int = 800, phone: bool = False) -> Iterator[Tab]:
        """A tab with storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        scale = 2 if phone else 1
        tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        try:
            tab.go(url)
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


@dataclass
class Tab:
    """A page."""

    browser: Browser
    session: str

    def call(self, method: str, **params: Any) -> Any:
        """A command to this page."""
        return self.browser.call(method, self.session, **params)

    def go(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, code: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str, every_s: float = 0.01) -> None:
        """Wait for what happens at once unless the machine is busy, looking every so often."""
        until_s = time.monotonic() + WAIT_S
        while not self.js(condition):
            assert time.monotonic() < until_s, (
                f"never came: {condition}; the page: {self.js('document.body?.innerText')}"
            )
            time.sleep(every_s)

    def text(self, selector: str) -> str:
        """What an element holds as text."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).textContent"))

    def shown(self, selector: str) -> bool:
        """Whether an element is there and takes up room."""
        return bool(self.js(f"!!document.querySelector({json.dumps(selector)})?.getClientRects().length"))

    def click(self, selector: str, label: str = "") -> None:
        """A click with the mouse on the first such element, or on the one with this label."""
        listed = f"[...document.querySelectorAll({json.dumps(selector)})]"
        code = f"{listed}.find(e => e.textContent.includes({json.dumps(label)}))"
        self.until(f"!!{code}")
        box = self.js(f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const b = e.getBoundingClientRect();"
                      f" return [b.x + b.width / 2, b.y + b.height / 2] }})({code})")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, name: str, *, shift: bool = False) -> None:
        """One key."""
        code, text = _KEYS[name]
        key = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": _SHIFT if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def media(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The events of this page with this name so far."""
        self.js("0")
        return [
            e["params"] for e in self.browser.events if e["method"] == method and e.get("sessionId") == self.session
        ]


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser with an empty profile."""
    assert _PATH is not None, MISSING
    (reads_there, writes_here), (reads_here, writes_there) = os.pipe(), os.pipe()
    # High numbers, so that none of them is 3 or 4.
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (reads_there, writes_there)]
    for fd in (reads_there, writes_there):
        os.close(fd)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command: Sequence[str] = (
            sys.executable, "-c", _LAUNCH, *map(str, theirs), _PATH, *_OPTIONS, f"--user-data-dir={profile}",
            "about:blank",
        )  # fmt: skip
        process = subprocess.Popen(
            command, pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        for fd in theirs:
            os.close(fd)
        browser = Browser(reads_here, writes_here)
        try:
            browser.call("Browser.getVersion")
            yield browser
        finally:
            for fd in (writes_here, reads_here):  # it ends when its pipe does
                os.close(fd)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
