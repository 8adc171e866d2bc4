"""The one thread that decodes: OpenMP's teams belong to the thread that makes them, and a pin must not be the caller's.

The caller waits for each call, so there is one flow of control; the hand-over takes about 15 microseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from edgespec.device import affinity

T = TypeVar("T")
NAME = "edgespec-decode"
"""Of the thread and, as they inherit it, of the threads of its teams."""


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
    """Runs functions on a thread of its own, one at a time; callers take turns."""

    def __init__(self) -> None:
        """Use `decode_thread`. The thread starts with the first call."""
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._box = _Mailbox()
        self._thread: threading.Thread | None = None
        self.user: object = None
        """Who ran last, for that one to know whether its team and pins still stand. A mark of the users' own."""

    def run(self, job: Callable[[], T], target: Abortable) -> T:
        """What `job` returns or raises; `target` ends it early where the caller is interrupted while it waits.

        In a forked child, where the thread does not exist, it is called directly.
        """
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return job()
        with self._turn:
            box = self._box
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(box,), name=NAME, daemon=True)
                self._thread.start()
            box.job = job
            box.go.release()
            try:
                box.done.acquire()
            except BaseException:
                self._end_early(target)
                raise
            error, box.error = box.error, None
            result, box.result = box.result, None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # it is what job returned

    def _end_early(self, target: Abortable) -> None:
        """Ctrl-C in the caller's thread: the call must not go on behind its back."""
        while True:
            target.abort()
            try:
                self._box.done.acquire()
            except KeyboardInterrupt:
                continue
            target.resume()
            self._box.error = self._box.result = None
            return


_shared: DecodeThread | None = None
_making = threading.Lock()


def decode_thread() -> DecodeThread:
    """The process's decode thread; a forked child's only runs what its callers run anyway.

    One for all models: each thread that decodes has an OpenMP team of its own, and from the second team on libgomp
    finds more threads than cores and lets them sleep at every barrier, which makes all of them a quarter slower.
    """
    global _shared
    with _making:
        if _shared is None:
            _shared = DecodeThread()
        return _shared


def _work(box: _Mailbox) -> None:
    affinity.name_thread(NAME)
    while True:
        box.go.acquire()
        job, box.job = box.job, None
        try:
            box.result = job() if job is not None else None
        except BaseException as error:
            box.error = error
        del job  # what it refers to must not live until the next call
        box.done.release()
