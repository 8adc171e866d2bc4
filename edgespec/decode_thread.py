"""The one thread that decodes: OpenMP's teams belong to the thread that makes them, and a pin must not be the caller's.

The caller waits for each call, so there is one flow of control; the hand-over takes about 15 microseconds.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
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


class _Call:
    """One job on its way to the thread and back."""

    __slots__ = ("cancelled", "ended", "error", "finished", "job", "result")

    def __init__(self, job: Callable[[], object]) -> None:
        self.job: Callable[[], object] | None = job
        self.result: object = None
        self.error: BaseException | None = None
        self.cancelled = self.finished = False
        self.ended = threading.Lock()
        """Held until the call has finished: cheaper to wait for than an event."""
        self.ended.acquire()

    def play(self) -> None:
        """On the thread."""
        if self.finished:
            return  # it came twice, see `_end_early`
        job, self.job = self.job, None
        try:
            if job is not None and not self.cancelled:
                self.result = job()
        except BaseException as error:
            self.error = error
        self.finished = True
        self.ended.release()


class DecodeThread:
    """Runs functions on a thread of its own, one at a time; callers take turns."""

    def __init__(self) -> None:
        """Use `decode_thread`. The thread starts with the first call."""
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
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
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(self._calls,), name=NAME, daemon=True)
                self._thread.start()
            call = _Call(job)
            try:
                self._calls.put(call)
                call.ended.acquire()
            except BaseException:
                self._end_early(call, target)
                raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # it is what job returned

    def _end_early(self, call: _Call, target: Abortable) -> None:
        """Ctrl-C in the caller's thread: the call must not go on behind its back.

        The interrupt may have come before the call was handed over, while it ran, or after its end.
        """
        call.cancelled = True
        while not call.finished:
            try:
                target.abort()
                self._calls.put(call)
                call.ended.acquire()
            except KeyboardInterrupt:
                continue
        target.resume()


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


def _work(calls: queue.SimpleQueue[_Call]) -> None:
    affinity.name_thread(NAME)
    while True:
        call = calls.get()
        call.play()
        del call  # what it refers to must not live until the next one
