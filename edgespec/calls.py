"""Whole answers from an engine, blocking and asynchronous: all by its one queue and thread (`edgespec.jobs`)."""

from __future__ import annotations

import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from edgespec.errors import ModelError
from edgespec.interfaces import Chunk, Limits, Message, Result, Sampling
from edgespec.jobs import Event, Job, Service, Wanted
from edgespec.options import Messages, Options, Prompt, wanted

if TYPE_CHECKING:
    from edgespec.aio import AsyncStream
    from edgespec.answer import Stream
    from edgespec.config import EngineConfig
    from edgespec.engine import Engine


class Calls(ABC):
    """The part of `Engine` that asks. Answers of threads and tasks take turns, or share passes on several sessions.

    All methods take the options of `edgespec.options.Options` by name and raise ConfigError for others and for values
    they do not take, ContextFullError where the prompt does not fit, and ModelError where the engine is closed or
    belongs to the process this one was forked from.
    """

    config: EngineConfig

    def __init__(self, n_places: int) -> None:
        """`n_places` answers share passes."""
        self._n_places = n_places
        self._service: Service | None = None
        self._over = False
        self._making = threading.RLock()
        self._running: weakref.WeakSet[Stream] = weakref.WeakSet()
        """So that `cancel` finds them. Both locks are not the engine's, which is held during passes."""

    @abstractmethod
    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        """Tokens of a text."""

    @abstractmethod
    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation."""

    @abstractmethod
    def _check_process(self) -> None:
        """Refuse a forked child."""

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """A whole answer; safe from any thread. Without `session` the beginning of a prompt may still be cached."""
        return self._wait(self._wanted(prompt, options))

    def chat(self, messages: str | Messages, **options: Unpack[Options]) -> Result:
        """The answer to a conversation; a text is one message of the user's, behind the configured system text."""
        return self._wait(self._wanted(self._said(messages), options))

    async def agenerate(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """`generate` for event loops; a cancelled task ends the answer."""
        return await _finish(self.astream(prompt, **options))

    async def achat(self, messages: str | Messages, **options: Unpack[Options]) -> Result:
        """`chat` for event loops; a cancelled task ends the answer."""
        return await _finish(self.astream(self._said(messages), **options))

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """An answer in pieces: `async for chunk in engine.astream("...")`, then `.result`; queued when that begins."""
        from edgespec.aio import AsyncStream  # asyncio takes a while to import

        asked = self._wanted(prompt, options)
        return AsyncStream(self._queue(), asked)

    def cancel(self) -> None:
        """End all answers of this engine, those that wait too; from any thread or signal handler.

        What plays ends within a round (within milliseconds in a prompt) and keeps its text, with the finish reason
        "cancelled"; what still waits raises EvalCancelled.
        """
        with self._making:
            running, service = list(self._running), self._service
        if service is not None:
            service.cancel_all()
        for stream in running:
            stream.cancel()

    def _wanted(
        self, prompt: Prompt, options: Options, sampling: Sampling | None = None, limits: Limits | None = None
    ) -> Wanted:
        self._check_process()
        if self._over:
            raise closed_error()
        return wanted(self, prompt, options, sampling, limits)

    def _said(self, messages: str | Messages) -> Messages:
        if not isinstance(messages, str):
            return messages
        system = [Message("system", self.config.system)] if self.config.system else []
        return [*system, Message("user", messages)]

    def pieces(self, asked: Wanted) -> Iterator[Chunk | Result]:
        """The pieces of an answer and then its result; it is made by the queue at its own pace, and ends if left."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        job, service = Job(asked, events.put), self._queue()
        service.submit([job])
        try:
            while True:
                event = events.get()
                if isinstance(event, Exception):
                    raise event
                if event != "started":
                    yield event
                if isinstance(event, Result):
                    return
        except BaseException:  # Ctrl-C, for one: the answer must not go on behind the caller's back
            service.cancel(job)
            raise

    def _wait(self, asked: Wanted) -> Result:
        return next(piece for piece in self.pieces(asked) if isinstance(piece, Result))

    def _queue(self) -> Service:
        with self._making:
            if self._over:
                raise closed_error()
            if self._service is None:
                engine: Engine = self  # type: ignore[assignment]  # the only class that is built on this one
                self._service = Service(engine, n_places=self._n_places, n_queue=None, closed=closed_error)
            return self._service

    def _end_calls(self) -> None:
        """End everything, for good: what plays keeps its text, what waits is told."""
        with self._making:
            self._over, service = True, self._service
        if service is not None:
            service.close()


def closed_error() -> ModelError:
    """What is said to whom asks too late."""
    return ModelError("the engine is closed; open a new one")


async def _finish(stream: AsyncStream) -> Result:
    async with stream:
        async for _ in stream:
            pass
    return stream.result
