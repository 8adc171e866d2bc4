"""Answers on an event loop. The engine's one thread makes them (`edgespec.jobs`); here they are only waited for."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from edgespec.errors import EvalCancelled
from edgespec.interfaces import Chunk, Result
from edgespec.jobs import Event, Job, Service, Wanted


class AsyncStream:
    """An answer in the making: an asynchronous iterator of Chunk; `result` afterwards.

    It is queued when the iteration begins. A task that is cancelled while it waits for a piece ends the answer, and so
    does a loop that is closed. Who leaves before the end should do so from an `async with`, or call `aclose`.
    """

    def __init__(self, service: Service, wanted: Wanted) -> None:
        """Use `Engine.astream`."""
        self._service, self._wanted = service, wanted
        self._job: Job | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False
        self._result: Result | None = None

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Chunk:
        """The next piece.

        Raises:
            EdgespecError: as `Engine.stream` and its iteration; EvalCancelled where it was cancelled before it began.
            RuntimeError: it was begun on another event loop.
        """
        if self._ended:
            raise StopAsyncIteration
        if self._job is None:
            self._begin()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the answer was begun on another event loop")
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, Chunk):
                    return event
                if isinstance(event, Result):
                    self._ended, self._result = True, event
                    raise StopAsyncIteration
                if isinstance(event, Exception):
                    self._ended = True
                    raise event
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop as soon as possible, also in the middle of a prompt; callable from any thread."""
        if self._job is not None:
            self._service.cancel(self._job)

    async def aclose(self) -> None:
        """End the answer if it still runs, and wait until it has ended; its text so far is in `result`."""
        self.cancel()
        if self._job is None:
            self._ended = True
        with contextlib.suppress(EvalCancelled):  # it never began, and has nothing to tell
            async for _ in self:
                pass

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            RuntimeError: it is not finished.
        """
        if self._result is None:
            raise RuntimeError("the answer is not finished: iterate to its end, or await aclose()")
        return self._result

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; a task that is being cancelled does not wait."""
        if isinstance(error, asyncio.CancelledError):
            self.cancel()
        else:
            await self.aclose()

    def __del__(self) -> None:
        """Nobody waits any more."""
        if not self._ended:
            self.cancel()

    def _begin(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        service, events = self._service, self._events  # not self: it ends the answer when nobody refers to it

        def tell(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:  # the loop is closed: nobody will ever take it
                if not isinstance(event, Result | Exception):
                    service.cancel(job)

        job = self._job = Job(self._wanted, tell)
        try:
            service.submit([job])
        except Exception:
            self._ended = True
            raise
