"""Ctrl-C while an answer is computed.

Python runs signal handlers between its own instructions, so one that arrives inside `llama_decode` would wait for the
end of the pass, seconds in a long prompt. The number of a signal written to the wake-up descriptor wakes a thread at
once instead, and that thread stops the answer.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit code of a command ended by Ctrl-C."""
_LEAVE = b"\0"
_HARD = 3

Handler = Callable[[int, FrameType | None], object] | int


class Interrupts:
    """While entered, Ctrl-C stops the answer instead of ending the program; the third press ends it after all.

    Does nothing outside the main thread, or where the program was started with Ctrl-C ignored.
    """

    def __init__(self) -> None:
        self.count = 0
        """How often Ctrl-C was pressed since entering."""
        self._stop: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def stops(self, stop: Callable[[], None]) -> None:
        """Name what ends the answer; it is called at once if Ctrl-C was pressed before."""
        self._stop = stop
        if self.count:
            stop()

    def __enter__(self) -> Interrupts:
        here = threading.current_thread() is threading.main_thread()
        if not here or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._handler = signal.signal(signal.SIGINT, _ignore)
        self._fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="edgespec-ctrl-c", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        signal.signal(signal.SIGINT, self._handler)  # first: the other way round a press between the two is lost
        signal.set_wakeup_fd(self._fd)
        os.write(self._writer, _LEAVE)
        self._thread.join()
        self._thread = None
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        while (number := os.read(self._reader, 1)) != _LEAVE:
            if number[0] != signal.SIGINT:
                continue
            self.count += 1
            if self.count >= _HARD:
                os._exit(INTERRUPTED)  # the answer does not end by itself: nothing else will
            if self._stop is not None:
                self._stop()


class Presses:
    """While entered, Ctrl-C is raised only inside `reading`; pressed elsewhere, it waits for the next `reading`.

    Does nothing outside the main thread, or where the program was started with Ctrl-C ignored.
    """

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._waits = False

    def __enter__(self) -> Presses:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._handler = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Where Ctrl-C may be raised.

        Raises:
            KeyboardInterrupt: it was pressed, now or since the last time.
        """
        if self._handler is None:
            yield
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            if self._waits:
                self._waits = False
                raise KeyboardInterrupt
            yield
        finally:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._waits = True


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the wake-up descriptor to be written."""
