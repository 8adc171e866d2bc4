"""One request on its way through the engine: its events on the event loop, and its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncGenerator, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from edgespec.errors import EdgespecError
from edgespec.interfaces import Chunk, Result
from edgespec.jobs import Event, Job, Service
from edgespec.server import shape
from edgespec.server.errors import RequestError, from_engine
from edgespec.server.schema import Asked
from edgespec.server.wire import encode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a request is given up."""

    answer_s: float = 600.0
    """From its arrival to the end of its answer, the time in the queue included."""
    body_s: float = 30.0
    """For its body to arrive."""
    send_s: float = 60.0
    """For the client to take a piece."""
    ping_s: float = 15.0
    """A stream that says nothing for so long, as during a long prompt, sends an empty comment: some proxies hang up."""


class Answer:
    """Answers a checked request; an ASGI application, so that it may watch whether the client is still there."""

    def __init__(self, service: Service, asked: Asked, model: str, patience: Patience) -> None:
        """`model` is the name to answer under."""
        self._service, self._asked, self._patience = service, asked, patience
        self._frame = _Frame(asked, model)
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._jobs: list[Job] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        del scope
        await unless_gone(receive, self._answer(send))

    async def _answer(self, send: Send) -> None:
        started = False
        try:
            self._submit()
            async with asyncio.timeout(self._patience.answer_s):
                if self._asked.stream:
                    async with contextlib.aclosing(self._stream()) as pieces:
                        async for data in pieces:
                            if not started:
                                started = True
                                await _start(send, 200, "text/event-stream; charset=utf-8")
                            await self._send(send, data, more=True)
                else:
                    await _respond(send, 200, encode(await self._whole()))
        except TimeoutError:
            error = RequestError(504, f"no whole answer within {self._patience.answer_s:g} s: ask for fewer max_tokens")
            await self._fail(send, error, started=started)
        except RequestError as error:
            await self._fail(send, error, started=started)
        except _TakesNothing:
            return
        finally:
            for job in self._jobs:
                self._service.cancel(job)
        if started:
            await self._send(send, b"", more=False)

    def _submit(self) -> None:
        loop = asyncio.get_running_loop()

        def tell(index: int, event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        jobs = [Job(wanted, functools.partial(tell, i)) for i, wanted in enumerate(self._asked.wanted)]
        try:
            self._service.submit(jobs)
        except EdgespecError as error:
            raise from_engine(error) from None
        self._jobs = jobs

    async def _whole(self) -> dict[str, Any]:
        shapers, results = self._frame.shapers(self._service), dict[int, Result]()
        while len(results) < len(self._jobs):
            index, event = await self._events.get()
            if isinstance(event, Exception):
                raise from_engine(event)
            if isinstance(event, Chunk):
                shapers[index].push(event)
            elif isinstance(event, Result):
                shapers[index].finish()
                results[index] = event
        return self._frame.whole(shapers, [results[i] for i in range(len(shapers))])

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        frame, shapers, results = self._frame, self._frame.shapers(self._service), dict[int, Result]()
        told, piece = [False] * len(self._jobs), _piece_of(self._service)
        while len(results) < len(self._jobs):
            try:
                async with asyncio.timeout(self._patience.ping_s if any(told) else None):
                    index, event = await self._events.get()
            except TimeoutError:
                yield b":\n\n"
                continue
            if isinstance(event, Exception):
                raise from_engine(event)
            if event == "started":
                told[index] = True
                yield frame.chunk(index, frame.opening())
            elif isinstance(event, Chunk):
                if pieces := b"".join(frame.pieces(index, shapers[index], event, piece)):
                    yield pieces
            elif isinstance(event, Result):
                for part in shapers[index].finish():
                    yield frame.chunk(index, part)
                results[index] = event
                yield frame.end(index, shapers[index].reason(event), event)
        if self._asked.include_usage:
            yield frame.usage([results[i] for i in range(len(shapers))])
        yield b"data: [DONE]\n\n"

    async def _fail(self, send: Send, error: RequestError, *, started: bool) -> None:
        if started:
            await self._send(send, b"data: " + encode(error.body()) + b"\n\n", more=True)
        else:
            await respond_error(send, error)

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._patience.send_s):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise _TakesNothing from None


class _TakesNothing(Exception):  # noqa: N818 - internal: the client does not read what it asked for
    pass


class _Frame:
    """The objects around the choices: who answered, when, and what it cost."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked = asked
        self._kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": self._kind,
            "created": int(datetime.now(UTC).timestamp()),
            "model": model,
        }
        self._notes = {"seed": asked.seed, "ignored": list(asked.ignored)}
        self._running = [shape.Running() for _ in asked.wanted] if asked.per_token else None

    def shapers(self, service: Service) -> list[shape.Shaper]:
        """One for each choice."""
        asked, piece = self._asked, _piece_of(service)
        if asked.chat:
            return [
                shape.ChatShaper(piece, logprobs=asked.logprobs, calls=asked.calls, thinking=asked.thinking)
                for _ in asked.wanted
            ]
        echo = asked.echo or ("",) * len(asked.wanted)
        return [shape.TextShaper(piece, logprobs=asked.logprobs, echo=text) for text in echo]

    def whole(self, shapers: list[shape.Shaper], results: list[Result]) -> dict[str, Any]:
        """The body of an answer that is not streamed. Several choices have their timings each."""
        choices = []
        for index, (shaper, result) in enumerate(zip(shapers, results, strict=True)):
            choice = {"index": index, **shaper.whole(), "finish_reason": shaper.reason(result)}
            choices.append(choice if len(results) == 1 else {**choice, "timings": shape.timings(result)})
        timings = {"timings": shape.timings(results[0])} if len(results) == 1 else {}
        return {
            **self._head, "choices": choices, "usage": self._used(results), **timings, "edgespec": self._notes,
        }  # fmt: skip

    def opening(self) -> dict[str, Any]:
        """What a stream begins with."""
        if self._asked.chat:
            return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        return {"text": "", "logprobs": None}

    def pieces(self, index: int, shaper: shape.Shaper, chunk: Chunk, piece: shape.Piece) -> Iterator[bytes]:
        """What a piece of the answer adds to a stream; what was guessed apart from the rest where that is asked for."""
        if self._running is None:
            yield from (self.chunk(index, part) for part in shaper.push(chunk))
            return
        for half in shape.by_origin(chunk, piece):
            timings = self._running[index].add(half)
            yield from (self.chunk(index, part, timings=timings) for part in shaper.push(half))

    def chunk(self, index: int, part: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        """A piece of a stream."""
        choice = {"index": index, **part, "finish_reason": reason}
        return self._event({"choices": [choice], **more})

    def end(self, index: int, reason: str, result: Result) -> bytes:
        """The piece that ends a choice."""
        empty: dict[str, Any] = {"delta": {}} if self._asked.chat else {"text": ""}
        part = {**empty, "logprobs": None}
        return self.chunk(index, part, reason, timings=shape.timings(result), edgespec=self._notes)

    def usage(self, results: list[Result]) -> bytes:
        """The last piece, where it was asked for."""
        return self._event({"choices": [], "usage": self._used(results)})

    def _used(self, results: list[Result]) -> dict[str, Any]:
        n_prompts = len({id(wanted.prompt) for wanted in self._asked.wanted})
        return shape.usage(results, n_prompts)

    def _event(self, body: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self._asked.include_usage else {}
        kind = f"{self._kind}.chunk" if self._asked.chat else self._kind
        return b"data: " + encode({**self._head, "object": kind, **usage, **body}) + b"\n\n"


def _piece_of(service: Service) -> shape.Piece:
    engine = service.engine
    return lambda token: engine.decode([token])


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None where the client left before, and then `work` is cancelled.

    The request's body must have been read: whatever comes then is the end.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: str, headers: dict[str, str] | None = None) -> None:
    fields = {"content-type": kind, "cache-control": "no-store", **(headers or {})}
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def _respond(send: Send, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
    await _start(send, status, "application/json", {"content-length": str(len(data)), **(headers or {})})
    await send({"type": "http.response.body", "body": data})


async def respond_error(send: Send, error: RequestError) -> None:
    """Send an error in OpenAI's form."""
    await _respond(send, error.status, encode(error.body()), error.headers)
