"""How a download is shown: one line that is redrawn on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_REDRAW_S = 0.1
_LINE_S = 10.0


class DownloadLine:
    """Progress of one download. Use as a context manager: leaving it ends the line."""

    def __init__(self, name: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`name` is what is fetched."""
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._tty = self._stream.isatty()
        self._began: tuple[float, int] | None = None
        self._shown_at = float("-inf")
        self._shown_share = -1
        self._drawn = False

    def __enter__(self) -> DownloadLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._erase()

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._erase()
        self._write(f"edgespec: {text}\n")

    def update(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` bytes are here, unless that was shown a moment ago."""
        now = self._clock()
        if self._began is None:
            self._began = (now, done)
        if self._tty:
            if now - self._shown_at < _REDRAW_S and done != total:
                return
            width = max(10, shutil.get_terminal_size().columns - 1)
            self._write("\r\x1b[K" + self._text(done, total, now, width))
            self._drawn = True
        else:
            share = 100 * done // total if total else -1
            # A tenth more, or some time; so a log of a slow line shows that it goes on.
            if now - self._shown_at < _LINE_S and share // 10 <= self._shown_share // 10:
                return
            self._write(self._text(done, total, now, 200) + "\n")
            self._shown_share = share
        self._shown_at = now

    def _text(self, done: int, total: int | None, now: float, width: int) -> str:
        began, before = self._began or (now, done)
        rate = (done - before) / (now - began) if now - began > 0.5 else 0.0
        parts = [f"{100 * done // total} %"] if total else []
        parts.append(f"{done / 1e6:.1f}/{total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB")
        if rate:
            parts.append(f"{rate / 1e6:.1f} MB/s")
            if total:
                parts.append(f"{_duration((total - done) / rate)} left")
        text = f"{self._name}  {'  '.join(parts)}"
        while len(text) > width and len(parts) > 1:
            parts.pop()
            text = f"{self._name}  {'  '.join(parts)}"
        return text if len(text) <= width else parts[0][:width]

    def _erase(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _duration(seconds: float) -> str:
    whole = int(seconds) + 1
    return f"{whole} s" if whole < 100 else f"{whole // 60} min"
