"""An engine whose model says what a test tells it to: real core, fake target, a byte tokenizer with one merge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

from edgespec.answer import Stream
from edgespec.config import EngineConfig
from edgespec.constraint import Constraint
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.engine import Engine
from edgespec.errors import EvalError
from edgespec.interfaces import Chunk, Limits, Message, Plan, Result, Rows, Sampling
from edgespec.testing import FakeClock, FakeTarget

START, END, AB = 256, 257, 258
SPECIAL = {"<|start|>": START, "<|end|>": END}
ASSISTANT = [START, *b"assistant\n"]


class TalkingTarget(FakeTarget):
    """Answers with `reply(prompt text)`, read off its cache, byte by byte."""

    def __init__(self, reply: Callable[[str], str], n_ctx: int) -> None:
        super().__init__(259, n_ctx, eog=[END], n_batch=64)
        self.reply = reply
        self.before_eval: Callable[[TalkingTarget], None] | None = None
        self.n_evaluated = 0

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        if self.before_eval is not None:
            self.before_eval(self)
        rows = super().eval(plans)
        self.n_evaluated += sum(plan.n_tokens for plan in plans)
        return rows

    def logits(self, text: Sequence[int]) -> Rows:
        row = super().logits(text) * 0
        ids = list(text)
        at = next((i for i in range(len(ids), -1, -1) if ids[i : i + len(ASSISTANT)] == ASSISTANT), -1)
        if at >= 0:
            written = ids[at + len(ASSISTANT) :]
            answer = [*self.reply(decode(ids[:at]).decode("utf-8", "replace")).encode(), END]
            row[answer[len(written)] if len(written) < len(answer) else END] = 60.0
        return row


def encode(text: str) -> list[int]:
    """Bytes, "ab" as one token, and control tokens."""
    ids: list[int] = []
    while text:
        found = [(at, word) for word in SPECIAL if (at := text.find(word)) >= 0]
        at, word = min(found, default=(len(text), ""))
        data = text[:at].encode()
        i = 0
        while i < len(data):
            merged = data[i : i + 2] == b"ab"
            ids.append(AB if merged else data[i])
            i += 1 + merged
        if word:
            ids.append(SPECIAL[word])
        text = text[at + len(word) :]
    return ids


def piece(token: int) -> bytes:
    return b"ab" if token == AB else bytes([token]) if token < 256 else b""


def decode(tokens: Sequence[int]) -> bytes:
    return b"".join(map(piece, tokens))


def render(messages: Sequence[Message], opening: str = "") -> str:
    turns = "".join(f"<|start|>{m.role}\n{m.content}<|end|>\n" for m in messages)
    return turns + "<|start|>assistant\n" + opening


class FakeEngine:
    """The surface of Engine that Chat and the command line use. `calls` are the streams that were asked for."""

    model_name = "fake"
    template_name = "fake"
    notes: tuple[str, ...] = ()
    load_s = 0.5

    def __init__(self, reply: Callable[[str], str], n_ctx: int = 4096, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig(temperature=0.0)
        self.n_ctx = n_ctx
        self.target = TalkingTarget(reply, n_ctx)
        self.opening = ""
        self.calls: list[tuple[list[int], Sampling, Limits, str | None]] = []
        self.n_sessions = 0
        self._lock = threading.RLock()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return encode(text)

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        return encode(text)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return decode(tokens)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return render(messages, self.opening)

    def session(self) -> Session:
        self.n_sessions += 1
        return Session(self.target)

    def release(self, session: Session) -> None:
        session.forget()

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
        self.constraint = constraint
        sampling, limits = sampling or Sampling(), limits or Limits()
        self.calls.append((list(prompt), sampling, limits, drafter))
        generation = Generation(session or self.session(), prompt, sampling, limits, piece, FakeClock(0.01))
        return Stream(self, generation, session is None)

    def close(self) -> None:
        pass

    def advance(self, *generations: Generation) -> list[Chunk]:
        return play_round(generations, self.target, FakeClock(0.01))

    def finish(self, generation: Generation, owned: bool) -> Result:
        return generation.result()


def fake_engine(reply: Callable[[str], str] | str, n_ctx: int = 4096, config: EngineConfig | None = None) -> FakeEngine:
    """An engine that answers with a text, or with what a function makes of the prompt."""
    return FakeEngine((lambda _: reply) if isinstance(reply, str) else reply, n_ctx, config)


def as_engine(engine: FakeEngine) -> Engine:
    return cast(Engine, engine)


def fail_after(n: int) -> Callable[[TalkingTarget], None]:
    """For `before_eval`: the n-th pass from now on fails."""
    left = n

    def check(_: TalkingTarget) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise EvalError("the device is gone")

    return check
