"""An answer as it is being made: what `Engine.stream` hands out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, Self

from edgespec.core.generation import Generation
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

    def advance(self, generation: Generation) -> Chunk:
        """One round."""
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
        generation = self._generation
        while self._result is None:
            if self._cancelled and generation.finish_reason is None:
                rest = generation.cancel()
                self._end()
                if rest:
                    return Chunk(rest, (), 0)
                break
            if generation.finish_reason is not None:
                self._end()
                break
            try:
                chunk = self._engine.advance(generation)
            except EvalCancelled:
                self._engine.target.resume()
                continue
            except BaseException:
                generation.cancel()
                self._end()
                raise
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

    def _end(self) -> None:
        if self._cancelled:
            self._engine.target.resume()
        self._result = self._engine.finish(self._generation, self._owned)
