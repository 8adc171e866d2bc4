"""What was said, as it is saved and loaded; and which token ids stand for it in the KV cache.

Knows nothing of generation: `edgespec.chat` does the talking.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from edgespec import config
from edgespec.errors import ConfigError
from edgespec.interfaces import Message, Sampling

FORMAT = "edgespec-chat"
VERSION = 1
_OPTIONS = frozenset(f.name for f in fields(Sampling)) - {"logit_bias", "attempt", "dry_breakers"}


@dataclass(slots=True)
class Exchange:
    """A user's message and its answer, empty where none was given."""

    user: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation as a file holds it."""

    system: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    drafter: str | None = None
    model: str | None = None

    def to_json(self) -> str:
        """One JSON object, the messages as chat APIs write them."""
        messages = [asdict(message) for message in as_messages(None, self.exchanges)]
        body = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "drafter": self.drafter,
            "sampling": asdict(self.sampling),
            "system": self.system,
            "messages": messages,
        }
        return json.dumps(body, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Saved:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not a saved conversation, or of a newer version.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not a saved conversation: {error}") from None
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ConfigError(f'not a saved conversation: "format" is not "{FORMAT}"')
        if body.get("version") != VERSION:
            raise ConfigError(f"saved as version {body.get('version')!r}; this edgespec reads version {VERSION}")
        return cls(
            system=_optional_text(body, "system"),
            exchanges=_exchanges(body.get("messages")),
            sampling=_sampling(body.get("sampling")),
            drafter=_optional_text(body, "drafter"),
            model=_optional_text(body, "model"),
        )


def as_messages(system: str | None, exchanges: Sequence[Exchange], *, open_end: bool = False) -> list[Message]:
    """The messages a template renders; with `open_end` the last answer is left out, to be written."""
    messages = [Message("system", system)] if system else []
    for exchange in exchanges:
        messages += [Message("user", exchange.user), Message("assistant", exchange.answer)]
    return messages[:-1] if open_end and exchanges else messages


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole or not at all; it is readable by its owner only.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    path = path.resolve()  # a link keeps pointing at the file
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class PromptMemory:
    """Which text the evaluated tokens stand for, so that the next prompt can go on from them.

    A model's own tokens for its answer need not be those a tokenizer gives for the same text. Where a new prompt
    begins with text that was evaluated, its ids are taken as they were, and the KV cache is reused.
    """

    def __init__(self, prompt: Callable[[str], list[int]], encode: Callable[[str], list[int]]) -> None:
        """`prompt` tokenises a whole prompt, start token included; `encode` a part of one, without it."""
        self._prompt = prompt
        self._encode = encode
        self._text = ""
        self._ids: list[int] = []
        self._marks: list[tuple[int, int]] = []
        """Where the ids can be cut: characters of the text, and the ids that stand for them."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, beginning with those evaluated before where the text does."""
        whole = self._prompt(text)
        n_chars, n_ids = self._known(text)
        known = self._ids[:n_ids]
        if whole[:n_ids] == known:
            return whole
        if n_chars == len(text):
            return known
        rest = self._encode(text[n_chars:])
        # A tokenizer may join characters across the cut, or begin every text with a space: then the cut is not a
        # place between tokens, and all is tokenised anew.
        return known + rest if rest and whole[-len(rest) :] == rest else whole

    def remember(self, text: str, ids: Sequence[int], answer: str, answer_ids: Sequence[int] | None) -> None:
        """Note a prompt that was evaluated, and the ids of its answer where they are exactly its text."""
        n_chars, n_ids = self._known(text)
        keeps = self._ids[:n_ids] == list(ids[:n_ids])
        self._marks = [mark for mark in self._marks if keeps and mark[0] <= n_chars]
        self._text, self._ids = text, list(ids)
        self._marks.append((len(self._text), len(self._ids)))
        if answer and answer_ids is not None:
            self._text += answer
            self._ids += answer_ids
            self._marks.append((len(self._text), len(self._ids)))

    def _known(self, text: str) -> tuple[int, int]:
        """The last mark up to which `text` is the text that was evaluated."""
        for n_chars, n_ids in reversed(self._marks):
            if text.startswith(self._text[:n_chars]):
                return n_chars, n_ids
        return 0, 0


def _optional_text(body: Mapping[str, object], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f'saved conversation: "{key}" must be a text')
    return value or None


def _exchanges(messages: object) -> tuple[Exchange, ...]:
    if not isinstance(messages, list):
        raise ConfigError('saved conversation: "messages" must be a list')
    exchanges: list[Exchange] = []
    for i, message in enumerate(messages):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        expected = ("user", "assistant")[i % 2]
        if role != expected or not isinstance(content, str):
            raise ConfigError(f"saved conversation: message {i + 1} must be a text of the {expected}")
        if role == "user":
            exchanges.append(Exchange(content))
        else:
            exchanges[-1].answer = content
    return tuple(exchanges)


def _sampling(raw: object) -> Sampling:
    if raw is None:
        return Sampling()
    if not isinstance(raw, dict):
        raise ConfigError('saved conversation: "sampling" must be an object')
    values: dict[str, object] = {}
    for name, value in raw.items():
        where = f"saved conversation: {name}"
        if value is None and name in {"logprobs", "dry_breakers"}:
            values[name] = None
        elif name in _OPTIONS:
            values[name] = config.check(name, value, where)
        elif name == "attempt" and isinstance(value, int):
            values[name] = value
        elif name == "dry_breakers" and isinstance(value, list):
            try:
                values[name] = tuple(tuple(int(token) for token in breaker) for breaker in value)
            except (TypeError, ValueError):
                raise ConfigError(f"{where} must be lists of token ids") from None
        elif name == "logit_bias" and isinstance(value, dict):
            try:
                values[name] = {int(token): float(bias) for token, bias in value.items()}
            except (TypeError, ValueError):
                raise ConfigError(f"{where} must give a number for each token id") from None
        else:
            raise ConfigError(f"{where} is not a sampling option, or not a value it takes")
    return Sampling(**values)  # type: ignore[arg-type]  # checked above, option by option
