"""A server with a fake model behind a real socket, and a client that may send anything.

`python tests/server_fakes.py serve ...` is the real command line with that model; EDGESPEC_FAKE sets seconds a pass.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from chat_fakes import FakeEngine, TalkingTarget, piece

from edgespec import jobs
from edgespec.answer import Stream
from edgespec.config import EngineConfig
from edgespec.constraint import Constraint
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Sampling
from edgespec.request import check_sampling
from edgespec.server import app, run, schema, stream
from edgespec.testing import FakeClock
from edgespec.tuning_profile import Choice

PASS_S = float(os.environ.pop("EDGESPEC_FAKE", "0"))
WAIT_S = 20.0
"""For what happens at once unless the machine is very busy."""


class ServedEngine(FakeEngine):
    """The surface of Engine that the server uses: with n-gram drafts, and sessions of their own sequences."""

    tuned = Choice()
    exactness = SimpleNamespace(why="nothing is certified")
    machine = SimpleNamespace(heat=lambda: {"temp_c": 51.5, "headroom": None, "throttled": False, "limits": []})

    def __init__(self, reply: Callable[[str], str], n_ctx: int = 4096, config: EngineConfig | None = None) -> None:
        super().__init__(reply, n_ctx, config)
        self.constraints: list[Constraint | None] = []
        self.n_released = 0

    def session(self) -> Session:
        self.n_sessions += 1
        return Session(self.target, seq_id=self.n_sessions)

    def release(self, session: Session) -> None:
        self.n_released += 1
        super().release(session)

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | None = None,
        session: Session | None = None,
        constraint: Constraint | None = None,
        learn: bool = False,
    ) -> Stream:
        assert not learn, "what is said to a server is not kept"
        assert sampling is not None
        assert limits is not None
        assert session is not None
        check_sampling(sampling, self.target.n_vocab)
        self.constraints.append(constraint)
        self.calls.append((list(prompt), sampling, limits, drafter))
        drafts = (drafter or self.config.drafter) != "none" and limits.max_draft > 0
        drafting = Drafting(SuffixDrafter(piece), self.target.n_vocab) if drafts else None
        generation = Generation(session, prompt, sampling, limits, piece, FakeClock(0.01), drafting)
        return Stream(self, generation, owned=False)

    @classmethod
    def open(cls, model: str, config: Any, *, progress: object = None, n_sessions: int = 1) -> ServedEngine:
        engine = cls(lambda prompt: "You said: " + last_message(prompt), config.n_ctx or 4096, config)
        engine.target.before_eval = lambda _: time.sleep(PASS_S)
        return engine

    def __enter__(self) -> ServedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.write("the model is closed\n")


def last_message(prompt: str) -> str:
    """What was said last, of a prompt as the fake model reads it."""
    return prompt.rpartition("user\n")[2].rstrip("\n\x00")


def served_engine(reply: Callable[[str], str] | str, n_ctx: int = 4096, **options: Any) -> ServedEngine:
    """A fake engine that answers with a text, or with what a function makes of the prompt."""
    config = EngineConfig(**{"temperature": 0.0, **options})
    return ServedEngine((lambda _: reply) if isinstance(reply, str) else reply, n_ctx, config)


class Gate:
    """Lets passes of a fake model through by the number."""

    def __init__(self, target: TalkingTarget, n: int = 0) -> None:
        self._permits = threading.Semaphore(n)
        self._open = False
        self._act: Callable[[TalkingTarget], None] | None = None
        target.before_eval = self._wait

    def let(self, n: int = 1) -> None:
        self._permits.release(n)

    def open(self) -> None:
        self._open = True
        self._permits.release()

    def then(self, act: Callable[[TalkingTarget], None]) -> None:
        """Let all through, but do this before each."""
        self._act = act
        self.open()

    def _wait(self, target: TalkingTarget) -> None:
        if not self._open:
            assert self._permits.acquire(timeout=WAIT_S), "no pass was let through"
        if self._act is not None:
            self._act(target)


@dataclass
class Reply:
    """What the server sent."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        """The error, which must be of OpenAI's form."""
        body = self.json
        assert set(body) == {"error"}
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["type"], str)
        return cast(dict[str, Any], error)


@dataclass
class Live:
    """A running server."""

    port: int
    service: jobs.Service
    server: run.Server
    logged: list[str] = field(default_factory=list)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Reply:
        """One request; bytes are sent as they are, everything else as JSON."""
        link = connection or self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        link.request(method or ("GET" if body is None else "POST"), path, data, dict(headers or {}))
        response = link.getresponse()
        reply = Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        if connection is None:
            link.close()
        return reply

    def chat(self, text: str = "hi", **more: object) -> Any:
        """The body of an answer to one message."""
        reply = self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
        assert reply.status == 200, reply.data
        return reply.json

    @contextmanager
    def open_stream(self, path: str, body: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        """A stream to be read line by line; closed at the end, read or not."""
        link = self.connect()
        try:
            link.request("POST", path, json.dumps({**body, "stream": True}).encode())
            response = link.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield response
        finally:
            link.close()

    def streamed(self, path: str, body: Mapping[str, object]) -> list[Any]:
        """All events of a stream; it must end as it should."""
        with self.open_stream(path, body) as response:
            events = list(read_events(response))
        assert events.pop() == "[DONE]"
        return events

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for something that happens at once unless the machine is busy."""
        until_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < until_s, "it did not happen"
            time.sleep(0.002)


def read_events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Events of a stream as they come; the last may be "[DONE]"."""
    while line := response.readline():
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)


@contextmanager
def serving(
    engine: ServedEngine | Engine,
    *,
    n_places: int = 1,
    n_queue: int = 16,
    seed: int | None = 0,
    patience: stream.Patience = stream.Patience(),  # noqa: B008 - it is frozen
    hosts: Sequence[str] = (),
    api_key: str | None = None,
    send_buffer: int | None = None,
) -> Iterator[Live]:
    """A server on a free port of this machine; `send_buffer`: bytes that the system keeps for a slow client."""
    logged: list[str] = []
    service = jobs.Service(cast(Engine, engine), n_places=n_places, n_queue=n_queue)
    application = app.make(
        service, schema.Defaults(("fake", "alias"), seed), created=1, log=logged.append, patience=patience,
        hosts=hosts, api_key=api_key,
    )  # fmt: skip
    server = run.Server(application, service)
    with run.bind("127.0.0.1", 0) as sock:
        if send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        live = Live(sock.getsockname()[1], service, server, logged)
        try:
            live.until(lambda: server.started)
            yield live
        finally:
            server.should_exit = True
            service.close()
            thread.join(WAIT_S)
    assert not thread.is_alive(), "the server did not end"
    assert logged == [], "internal errors"


if __name__ == "__main__":
    import edgespec.engine
    from edgespec.cli.main import main

    edgespec.engine.Engine = ServedEngine  # type: ignore[misc, assignment]
    main()
