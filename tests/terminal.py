"""A program in a pseudo-terminal: type, wait for what it shows, read how it ended."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

CTRL_C, CTRL_D = "\x03", "\x04"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """Use as a context manager; the program is killed at the end if it still runs."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 80, timeout_s: float = 20
    ) -> None:
        self.raw = ""
        self._timeout_s = timeout_s
        self._seen = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], list(command), dict(env))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    @property
    def text(self) -> str:
        """All that was shown, without escape sequences."""
        return _ANSI.sub("", self.raw)

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until `text` is shown after all that was waited for before; return what was shown up to it."""
        until_s = time.monotonic() + self._timeout_s
        while (at := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < until_s, f"{text!r} did not come; after what was waited for: {self.rest!r}"
            assert self._read(0.1), f"it ended without {text!r}: {self.rest!r}"
        begin, self._seen = self._seen, at + len(text)
        return self.text[begin : self._seen]

    @property
    def rest(self) -> str:
        return self.text[self._seen :]

    def exit_code(self) -> int:
        """Wait for the end."""
        until_s = time.monotonic() + self._timeout_s
        while self._read(0.1):
            assert time.monotonic() < until_s, f"it does not end; it shows: {self.rest!r}"
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def press_until_it_ends(self, text: str) -> None:
        """Send `text`, and again after 0.7 s while the program runs, five times at most.

        A press between an answer and the prompt is nobody's, and on a busy machine two presses may be a second apart.
        """
        for _ in range(5):
            self.send(text)
            until_s = time.monotonic() + 0.7
            while time.monotonic() < until_s:
                if not self._read(0.05):
                    return

    def _read(self, seconds: float) -> bool:
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # Linux: the program closed the terminal
                return False
            self.raw += data.decode("utf-8", "replace")
            return bool(data)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)
