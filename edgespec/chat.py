"""A conversation with the target: turns, retries, and what is dropped when the context is full.

Knows how to talk, not how it is shown: for that there is `edgespec.cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.answer import Live, Stream
from edgespec.constraint import Constraint
from edgespec.conversation import Exchange, PromptMemory, Saved, as_messages, write_atomically
from edgespec.engine import Engine
from edgespec.errors import ConfigError, ContextFullError, EdgespecError
from edgespec.interfaces import Chunk, Limits, Message, Result, Sampling
from edgespec.request import sampling_from
from edgespec.think import opens_thinking, strip_thinking

if TYPE_CHECKING:
    from edgespec.core.session import Session
    from edgespec.engine import Engine

RETRY_TEMPERATURE = 0.7
"""Below it, another attempt may well give the same text."""
ANSWER_TOKENS = 256
"""Room kept for an answer whose length is not limited."""
LEAST_ANSWER = 16
"""A prompt that leaves fewer tokens than this is refused."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    text: str
    ids: list[int]
    first: int
    """The oldest exchange that is sent."""


class Turn(Iterator[Chunk]):
    """One answer as it streams. Whatever ends it, what was written is kept in the conversation."""

    def __init__(
        self, stream: Stream, notes: tuple[str, ...], thinking: bool, keep: Callable[[Turn, Result | None], None]
    ) -> None:
        """Made by `Chat`; `keep` is called once, at the end, with the result if there is one."""
        self.notes = notes
        """What the user should know about this turn, one line each."""
        self.thinking = thinking
        """Whether the answer begins inside a `<think>` block that the prompt opened."""
        self.text = ""
        self.tokens: list[int] = []
        self.ended = False
        self._stream = stream
        self._keep = keep

    def __iter__(self) -> Turn:
        return self

    def __next__(self) -> Chunk:
        if self.ended:
            raise StopIteration
        try:
            chunk = next(self._stream)
        except StopIteration:
            self._end(self._stream.result)
            raise
        except BaseException:  # an error or Ctrl-C: the conversation keeps what had streamed
            self._end(None)
            raise
        self.text += chunk.text
        self.tokens += chunk.tokens
        return chunk

    def cancel(self) -> None:
        """Stop the answer; the iteration then ends. For any thread or signal handler."""
        self._stream.cancel()

    def close(self) -> None:
        """Stop the answer if it still runs, and keep what there is."""
        if not self.ended:
            self.cancel()
            for _ in self:
                pass

    @property
    def result(self) -> Result:
        """The finished answer; there once the iteration has ended without an error."""
        return self._stream.result

    def live(self) -> Live:
        """Numbers while the answer streams."""
        return self._stream.live()

    def _end(self, result: Result | None) -> None:
        if not self.ended:
            self.ended = True
            self._keep(self, result)


class Chat:
    """A conversation. Its turns share one session, so that only what is new is evaluated.

    `sampling`, `limits`, `drafter` and `constraint` may be changed between turns.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        system: str | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        drafter: str | None = None,
        constraint: Constraint | None = None,
        learn: bool = False,
    ) -> None:
        """What is not given comes from the engine's configuration; an empty `system` means none.

        `learn`: what is said may be kept to draft from it later (see `Engine.stream`).
        """
        self._engine = engine
        self.system = (engine.config.system if system is None else system) or None
        config = engine.config
        self.sampling = sampling_from(config) if sampling is None else sampling
        self.limits = Limits(config.max_tokens, max_draft=config.max_draft) if limits is None else limits
        self.drafter = drafter
        self.constraint = constraint
        self.learn = learn
        self.last: Result | None = None
        """The result of the last turn that ended without an error."""
        self._exchanges: list[Exchange] = []
        self._first = 0
        self._attempt = 0
        self._turn: Turn | None = None
        self._session: Session | None = None
        self._memory = PromptMemory(engine.prompt, engine.encode)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, also what is no longer sent; each user's message is followed by its answer."""
        return as_messages(self.system, self._exchanges)

    @property
    def n_turns(self) -> int:
        """Exchanges so far, also those no longer sent."""
        return len(self._exchanges)

    @property
    def n_dropped(self) -> int:
        """Oldest exchanges that are no longer sent because the context is full."""
        return self._first

    def ask(self, text: str) -> Turn:
        """Add a user's message and stream its answer.

        Raises:
            ContextFullError: message and system text do not fit the context; the conversation is unchanged.
            EdgespecError: the message is empty.
        """
        if not text.strip():
            raise EdgespecError("the message is empty")
        self._settle()
        exchange = Exchange(text)
        turn = self._start([*self._exchanges, exchange], self.sampling, ())
        self._exchanges.append(exchange)
        self._attempt = 0
        return turn

    def retry(self) -> Turn:
        """Answer the last message again, with other draws; the new answer takes the place of the old one.

        Raises:
            EdgespecError: there is no message yet.
        """
        self._settle()
        if not self._exchanges:
            raise EdgespecError("there is no message to answer again")
        notes: tuple[str, ...] = ()
        sampling = replace(self.sampling, attempt=self._attempt + 1)
        if sampling.temperature < RETRY_TEMPERATURE:
            notes = (f"another answer is drawn at temperature {RETRY_TEMPERATURE} instead of {sampling.temperature:g}",)
            sampling = replace(sampling, temperature=RETRY_TEMPERATURE)
        turn = self._start(self._exchanges, sampling, notes)
        self._attempt += 1
        return turn

    def undo(self) -> str | None:
        """Forget the last message and its answer; return the message, or None where there was none."""
        self._settle()
        if not self._exchanges:
            return None
        self._attempt = 0
        removed = self._exchanges.pop().user
        self._first = max(0, min(self._first, len(self._exchanges) - 1))
        return removed

    def clear(self) -> None:
        """Forget all messages; the system text stays."""
        self._settle()
        self._exchanges.clear()
        self._first = self._attempt = 0

    def set_system(self, text: str | None) -> None:
        """Replace the system text, from the next turn on; None or "" removes it."""
        self._settle()
        self.system = text or None

    def to_json(self) -> str:
        """The conversation as versioned JSON, with the sampling options and the model's name."""
        saved = Saved(self.system, tuple(self._exchanges), self.sampling, self.drafter, self._engine.model_name)
        return saved.to_json()

    def restore(self, text: str) -> str | None:
        """Become the conversation that `to_json` wrote; return the name of the model it was held with.

        Raises:
            ConfigError: not a saved conversation; this one is unchanged.
        """
        saved = Saved.from_json(text)
        self.clear()
        self._exchanges = list(saved.exchanges)
        self.system, self.sampling, self.drafter = saved.system, saved.sampling, saved.drafter
        return saved.model

    @classmethod
    def from_json(cls, engine: Engine, text: str) -> Chat:
        """Go on with a conversation that `to_json` wrote.

        Raises:
            ConfigError: not a saved conversation.
        """
        chat = cls(engine)
        chat.restore(text)
        return chat

    def save(self, path: str | Path) -> None:
        """Write the conversation to a file, whole or not at all.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            write_atomically(Path(path), self.to_json())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    def load(self, path: str | Path) -> str | None:
        """Become a saved conversation; return the name of the model it was held with.

        Raises:
            ConfigError: the file cannot be read, or is not a saved conversation; this one is unchanged.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not a saved conversation: not UTF-8 (byte {error.start})") from error
        try:
            return self.restore(text)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def close(self) -> None:
        """Give the session's place and its drafters back to the engine; the conversation can still go on."""
        self._settle()
        if self._session is not None:
            self._engine.release(self._session)
            self._session = None

    def _settle(self) -> None:
        """End a turn that was left before its end."""
        if self._turn is not None:
            self._turn.close()

    def _start(self, exchanges: list[Exchange], sampling: Sampling, notes: tuple[str, ...]) -> Turn:
        if self._session is None:
            self._session = self._engine.session()
        prompt = self._fit(exchanges, self._session.n_ctx)
        stream = self._engine.stream(
            prompt.ids, sampling, self.limits,
            drafter=self.drafter, session=self._session, constraint=self.constraint, learn=self.learn,
        )  # fmt: skip
        if prompt.first > self._first:
            n = prompt.first - self._first
            turns = "turn is" if n == 1 else f"{n} turns are"
            notes += (f"the context of {self._session.n_ctx} tokens is full: the oldest {turns} no longer sent",)
            self._first = prompt.first
        exchange = exchanges[-1]

        def keep(turn: Turn, result: Result | None) -> None:
            self._keep_answer(turn, result, exchange, prompt)

        self._turn = Turn(stream, notes, opens_thinking(prompt.text), keep)
        return self._turn

    def _fit(self, exchanges: list[Exchange], n_ctx: int) -> _Prompt:
        """The prompt, without as many of the oldest exchanges as it takes to leave room for the answer.

        Once something must go, room is made for the next turn too where more than one exchange is left: every drop
        means that what stays is evaluated anew.
        """
        reserve = min(self.limits.max_tokens or ANSWER_TOKENS, n_ctx // 4)
        last = len(exchanges) - 1
        for first in range(self._first, last + 1):
            text = self._engine.render(as_messages(self.system, exchanges[first:], open_end=True))
            ids = self._memory.encode(text)
            n_free = n_ctx - len(ids)
            if first == last:
                wanted = min(reserve, LEAST_ANSWER)
            else:
                wanted = 2 * reserve if self._first < first < last - 1 else reserve
            if n_free >= wanted:
                return _Prompt(text, ids, first)
        raise ContextFullError(
            f"this message{' and the system text have' if self.system else ' has'} {len(ids)} tokens and the context "
            f"holds {n_ctx}, the answer included; shorten {'them' if self.system else 'it'} or ask for a larger "
            "context with --ctx"
        )

    def _keep_answer(self, turn: Turn, result: Result | None, exchange: Exchange, prompt: _Prompt) -> None:
        self._turn = None
        text, tokens = turn.text, turn.tokens
        if result is not None:
            self.last = result
            text, tokens = result.text, list(result.tokens)
        answer = strip_thinking(text, opened=turn.thinking)
        if answer or not exchange.answer:
            exchange.answer = answer
        self._memory.remember(prompt.text, prompt.ids, text, self._ids_of(text, tokens))

    def _ids_of(self, text: str, tokens: list[int]) -> list[int] | None:
        """The tokens that are exactly `text`: without the one that ended it; None where a stop string cut into one."""
        for ids in (tokens, tokens[:-1]):
            if ids and self._engine.decode(ids) == text.encode():
                # A control token has no bytes, so the ending one would pass: the shorter list is tried as well.
                shorter = ids[:-1]
                return shorter if shorter and self._engine.decode(shorter) == text.encode() else ids
        return None
