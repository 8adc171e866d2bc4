"""An engine for tests of the benchmark: it says what it is told, in times a fake clock counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgespec.bench.runner import Run
from edgespec.core.session import Session
from edgespec.core.trace import RoundTrace
from edgespec.interfaces import Chunk, Drafter, Limits, Message, Report, Result, Sampling, Usage
from edgespec.testing import FakeClock, FakeTarget

Speed = Callable[[str, Limits], float]


@contextmanager
def frozen_heap() -> Iterator[None]:
    """The runner collects garbage before every run, and a test session has a large heap: leave that out."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class FakeStream:
    """`ids` one at a time, `token_s` apart, after `first_s`."""

    clock: FakeClock
    ids: Sequence[int]
    first_s: float
    token_s: float
    drafter: str
    n_cached: int = 0

    def record(self) -> list[RoundTrace]:
        """Rounds are not faked."""
        return []

    def __iter__(self) -> Iterator[Chunk]:
        for index, token in enumerate(self.ids):
            self.clock.now_s += self.token_s if index else self.first_s
            yield Chunk("x", (token,), 0)

    @property
    def result(self) -> Result:
        n = len(self.ids)
        report = Report(
            drafter=self.drafter, drafter_off_reason=None, rounds=n - 1, drafted=n, accepted=n // 2,
            accepted_by_position=(n // 2,), tokens_per_round=1.0, widths={1: n - 1}, prefill_s=self.first_s,
            ttft_s=self.first_s, decode_s=0.0, draft_s=0.0, verify_s=0.0, tok_s=None, saved_s=None, rss_bytes=10**8,
        )  # fmt: skip
        return Result("x" * n, tuple(self.ids), "length", Usage(1, n, self.n_cached), report)


@dataclass
class FakeEngine:
    """Answers with the token ids 1, 2, 3, ...; `token_s(drafter, limits)` is what a token costs."""

    token_s: Speed
    clock: FakeClock = field(default_factory=FakeClock)
    fail: Callable[[str], None] = lambda drafter: None
    asked: list[tuple[str, Limits]] = field(default_factory=list)
    open_sessions: list[Session] = field(default_factory=list)

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        return [1] * (1 + len(text))

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(message.content for message in messages)

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
        session: Session | None = None,
    ) -> FakeStream:
        name = drafter if isinstance(drafter, str) else drafter.name if drafter is not None else "auto"
        assert limits is not None
        self.fail(name)
        self.asked.append((name, limits))
        n_cached = session.load(prompt) if session is not None else 0
        if session is not None:
            assert session in self.open_sessions
            session.n_kv = len(prompt)
        ids = range(1, 1 + (limits.max_tokens or 1))
        return FakeStream(self.clock, list(ids), 0.1 if n_cached else 0.5, self.token_s(name, limits), name, n_cached)

    def session(self) -> Session:
        self.open_sessions.append(Session(FakeTarget(n_ctx=4096)))
        return self.open_sessions[-1]

    def release(self, session: Session) -> None:
        self.open_sessions.remove(session)


def run_of(mode: str, *, question: str = "q", group: str = "g", round_: int = 0, n: int = 101, s: float = 1.0) -> Run:
    """A run of `n` tokens, all but the first decoded in `s` seconds."""
    return Run(
        question, group, round_, mode, 0, tokens=n, decoded=n - 1, decode_s=s, ttft_s=0.1, total_s=s + 0.1,
        rounds=n - 1, ids=tuple(range(n)),
    )  # fmt: skip
