"""The one thread that decodes: OpenMP's teams belong to the thread that makes them, and a pin must not be the caller's.

The caller waits for each call, so there is one flow of control; the hand-over takes about 15 microseconds.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")


class Abortable(Protocol):
    """What ends a running call early: the target."""

    def abort(self) -> None:
        """Make it end soon."""
        ...

    def resume(self) -> None:
        """Lower the flag."""
        ...


@dataclass(slots=True)
class _Mailbox:
    """What caller and thread share; it holds no reference to either."""

    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    job: Callable[[], object] | None = None
    result: object = None
    error: BaseException | None = None


class DecodeThread:
    """Runs functions on a thread of its own, one at a time. Its users take turns."""

    def __init__(self, target: Abortable, on_start: Callable[[], None]) -> None:
        """The thread starts with the first call, and with `on_start`, which must not hold what owns this object."""
        self._target = target
        self._on_start = on_start
        self._pid = os.getpid()
        self._box = _Mailbox()
        self._thread: threading.Thread | None = None
        self._finalizer = weakref.finalize(self, _stop, self._pid, self._box)
        self._finalizer.atexit = False

    def run(self, job: Callable[[], T]) -> T:
        """What `job` returns or raises. In a forked child, where the thread does not exist, it is called directly."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return job()
        box = self._box
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(box, self._on_start), name="edgespec-decode", daemon=True
            )
            self._thread.start()
        box.job = job
        box.go.release()
        try:
            box.done.acquire()
        except BaseException:
            self._end_early()
            raise
        error, box.error = box.error, None
        result, box.result = box.result, None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # it is what job returned

    def close(self) -> None:
        """Let the thread end. May be called twice; nothing runs afterwards."""
        self._finalizer()

    def _end_early(self) -> None:
        """Ctrl-C in the caller's thread: the call must not go on behind its back."""
        while True:
            self._target.abort()
            try:
                self._box.done.acquire()
            except KeyboardInterrupt:
                continue
            self._target.resume()
            self._box.error = self._box.result = None
            return


def _stop(pid: int, box: _Mailbox) -> None:
    if os.getpid() == pid:
        box.go.release()


def _work(box: _Mailbox, on_start: Callable[[], None]) -> None:
    on_start()
    while True:
        box.go.acquire()
        job, box.job = box.job, None
        if job is None:
            return
        try:
            box.result = job()
        except BaseException as error:
            box.error = error
        del job  # what it refers to must not live until the next call
        box.done.release()
