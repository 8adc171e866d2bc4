"""An answer as it is being made: what `Engine.stream` hands out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from edgespec.core.generation import Generation
from edgespec.core.round import batches
from edgespec.core.trace import RoundTrace
from edgespec.errors import EvalCancelled
from edgespec.interfaces import Chunk, Result, Target


@dataclass(frozen=True, slots=True)
class Live:
    """Numbers for a status line while an answer streams; None while unknown."""

    tok_s: float | None
    accepted_share: float | None
    tokens_per_round: float | None


class Maker(Protocol):
    """What an answer needs of the engine behind it."""

    @property
    def target(self) -> Target:
        """Whose abort flag stops a pass."""
        ...

    def advance(self, *generations: Generation) -> list[Chunk]:
        """One round of each, in one pass."""
        ...

    def finish(self, generation: Generation, owned: bool) -> Result:
        """The account; `owned` sessions are given up."""
        ...


class Stream:
    """An answer in the making: an iterator of Chunk; `result` afterwards."""

    def __init__(self, engine: Maker, generation: Generation, owned: bool) -> None:
        """Use `Engine.stream`."""
        self._engine = engine
        self._generation = generation
        self._owned = owned
        self._cancelled = False
        self._result: Result | None = None
        self._pid = os.getpid()

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Chunk:
        """The next piece.

        Raises:
            EvalError: llama.cpp failed; the text so far is in `result`.
            ModelError: this process was forked after the answer began.
        """
        while (chunk := play_together([self])[0]) is not None:
            if chunk.tokens or chunk.text:
                return chunk
        raise StopIteration

    def cancel(self) -> None:
        """Stop as soon as possible, also in the middle of a prompt; callable from any thread or signal handler."""
        if self._result is not None:
            return
        self._cancelled = True
        self._engine.target.abort()

    def close(self) -> None:
        """End the answer if it still runs; for those who leave before its end. In a forked child it is the parent's."""
        if os.getpid() != self._pid:
            return
        self.cancel()
        for _ in self:
            pass

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            RuntimeError: it is not finished.
        """
        if self._result is None:
            raise RuntimeError("the answer is not finished: iterate to its end, or close() it")
        return self._result

    def record(self) -> list[RoundTrace]:
        """A list that takes up each round of decoding from now on; ask before the first piece to have them all."""
        if self._generation.trace is None:
            self._generation.trace = []
        return self._generation.trace

    def live(self) -> Live:
        """Numbers so far."""
        stats = self._generation.stats
        first, last = stats.first_token_s, stats.last_token_s
        seconds = last - first if first is not None and last is not None else 0.0
        return Live(
            (stats.n_tokens - 1) / seconds if seconds > 0 else None,
            stats.accepted / stats.drafted if stats.drafted else None,
            stats.n_decoded / stats.rounds if stats.rounds else None,
        )

    @property
    def _plays(self) -> bool:
        return self._result is None and not self._cancelled and self._generation.finish_reason is None

    def _last(self) -> Chunk | None:
        """End an answer that does not play on; text that was held back till then."""
        if self._result is not None:
            return None
        rest = self._generation.cancel() if self._generation.finish_reason is None else ""
        self._end()
        return Chunk(rest, (), 0) if rest else None

    def _end(self) -> None:
        if self._cancelled:
            self._engine.target.resume()
        self._result = self._engine.finish(self._generation, self._owned)


def play_together(streams: Sequence[Stream]) -> list[Chunk | None]:
    """Play one round of several answers of one engine, in as few passes as the model's memory allows.

    Each needs a session of its own that keeps its place in the cache: open the engine with as many `n_sessions`.

    Returns:
        In order, what each may show, which may be nothing as yet; None for an answer that has ended.

    Raises:
        EvalError: llama.cpp failed. The answers of that pass have ended with what they had; the others can go on, but
            pieces that passes before it in the same round brought are in their results only.
        ModelError: this process was forked after the answers began.
    """
    last = {id(stream): stream._last() for stream in streams if not stream._plays}
    playing = {id(stream._generation): stream for stream in streams if id(stream) not in last}
    found: dict[int, Chunk | None] = dict(last)
    if playing:
        engine = next(iter(playing.values()))._engine
        # One pass at a time, so that one that is cancelled takes nothing away from those before it.
        for together in batches([stream._generation for stream in playing.values()], engine.target):
            chunks = _advance(engine, [playing[id(generation)] for generation in together])
            found.update((id(playing[id(g)]), chunk) for g, chunk in zip(together, chunks, strict=True))
    return [found[id(stream)] for stream in streams]


def _advance(engine: Maker, streams: Sequence[Stream]) -> list[Chunk]:
    try:
        return engine.advance(*(stream._generation for stream in streams))
    except EvalCancelled:
        engine.target.resume()  # whose answer was meant ends in the next round
        return [Chunk("", (), 0)] * len(streams)
    except BaseException:
        for stream in streams:
            stream._generation.cancel()
            stream._end()
        raise
