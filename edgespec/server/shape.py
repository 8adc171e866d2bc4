"""The engine's pieces and results in the form of OpenAI's answers; `timings` as llama-server writes them."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from edgespec.interfaces import Chunk, Result, TokenLogprobs
from edgespec.think import OPEN, ThinkSplitter
from edgespec.tools import CallSplitter

_LEAST_LOGPROB = -9999.0
"""OpenAI's number for what is all but impossible; JSON has no infinity."""
Piece = Callable[[int], bytes]


class Shaper(Protocol):
    """Shapes the pieces of one answer."""

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What a piece adds to a choice of a stream: `delta` or `text`, and `logprobs`."""
        ...

    def finish(self) -> list[dict[str, Any]]:
        """What was held back until the end."""
        ...

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed, but for its index and its end."""
        ...

    def reason(self, result: Result) -> str:
        """Why the answer ended, in OpenAI's words."""
        ...


class TextShaper:
    """Choices of /v1/completions."""

    def __init__(self, piece: Piece, *, logprobs: bool, echo: str = "") -> None:
        """`piece` gives a token's bytes; `echo` precedes the answer."""
        self._piece, self._echo = piece, echo
        self._text: list[str] = []
        self._logprobs = _TextLogprobs(piece) if logprobs else None
        self._all: dict[str, list[Any]] | None = _TextLogprobs.empty() if logprobs else None

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """See `Shaper`."""
        text, self._echo = self._echo + chunk.text, ""
        self._text.append(text)
        if self._logprobs is None or self._all is None:
            return [{"text": text, "logprobs": None}] if text else []
        found = self._logprobs.of(chunk.logprobs)
        for key, values in found.items():
            self._all[key] += values
        return [{"text": text, "logprobs": found}]

    def finish(self) -> list[dict[str, Any]]:
        """See `Shaper`."""
        rest, self._echo = self._echo, ""
        self._text.append(rest)
        return [{"text": rest, "logprobs": None}] if rest else []

    def whole(self) -> dict[str, Any]:
        """See `Shaper`."""
        return {"text": "".join(self._text), "logprobs": self._all}

    def reason(self, result: Result) -> str:
        """See `Shaper`."""
        return "length" if result.finish_reason == "length" else "stop"


class _TextLogprobs:
    """Log-probabilities in the form of /v1/completions, token by token."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_chars = 0

    @staticmethod
    def empty() -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def of(self, items: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """Of the next tokens; `text_offset` counts the characters of the answer that were whole before each."""
        found = self.empty()
        for item in items:
            data = self._piece(item.token)
            found["tokens"].append(data.decode("utf-8", "replace"))
            found["token_logprobs"].append(_bounded(item.logprob))
            top = {self._piece(token).decode("utf-8", "replace"): _bounded(value) for token, value in item.top}
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._n_chars)
            self._n_chars += len(self._decoder.decode(data))
        return found


class ChatShaper:
    """Choices of /v1/chat/completions: reasoning told from content, and calls of functions from both."""

    def __init__(self, piece: Piece, *, logprobs: bool, calls: bool = False, thinking: bool | None = None) -> None:
        """See `schema.Asked` for `calls` and `thinking`."""
        self._piece = piece
        self._thinking = None if thinking is None else _Thinking(opened=thinking)
        self._calls = CallSplitter() if calls else None
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._logprobs: list[dict[str, Any]] | None = [] if logprobs else None

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """See `Shaper`."""
        deltas = self._deltas(chunk.text)
        if self._logprobs is None:
            return [{"delta": delta, "logprobs": None} for delta in deltas]
        found = [self._told(item) for item in chunk.logprobs]
        self._logprobs += found
        # They belong to tokens, not to the text that became certain with them; the first piece takes them along.
        first, *rest = deltas or [{"content": ""}]
        later = [{"delta": delta, "logprobs": None} for delta in rest]
        return [{"delta": first, "logprobs": {"content": found, "refusal": None}}, *later]

    def finish(self) -> list[dict[str, Any]]:
        """See `Shaper`."""
        return [{"delta": delta, "logprobs": None} for delta in self._deltas("", end=True)]

    def whole(self) -> dict[str, Any]:
        """See `Shaper`."""
        message = self._message
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        message["refusal"] = None
        logprobs = None if self._logprobs is None else {"content": self._logprobs, "refusal": None}
        return {"message": message, "logprobs": logprobs}

    def reason(self, result: Result) -> str:
        """See `Shaper`."""
        if result.finish_reason == "length":
            return "length"
        return "tool_calls" if self._calls is not None and self._calls.complete else "stop"

    def _deltas(self, text: str, *, end: bool = False) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if self._thinking is None:
            pieces = [(text, False)]
        else:
            pieces = self._thinking.push(text) + (self._thinking.finish() if end else [])
        for piece, thinking in pieces:
            if thinking:
                deltas.append({"reasoning_content": piece})
            elif self._calls is not None:
                deltas += self._calls.push(piece)
            elif piece:
                deltas.append({"content": piece})
        if end and self._calls is not None:
            deltas += self._calls.finish()
        for delta in deltas:
            self._take_in(delta)
        return deltas

    def _take_in(self, delta: dict[str, Any]) -> None:
        for key in ("content", "reasoning_content"):
            if key in delta:
                self._message[key] = (self._message.get(key) or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            listed = self._message.setdefault("tool_calls", [])
            if "id" in call:
                listed.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                listed[-1]["function"]["arguments"] += call["function"]["arguments"]

    def _told(self, item: TokenLogprobs) -> dict[str, Any]:
        top = [self._one(token, value) for token, value in item.top]
        return {**self._one(item.token, item.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": _bounded(logprob), "bytes": list(data)}


class _Thinking:
    """Tells a block of reasoning at the beginning of an answer from the rest; what looks like one later is text."""

    def __init__(self, *, opened: bool) -> None:
        self._splitter = ThinkSplitter(opened=True) if opened else None
        self._held = ""
        self._over = False

    def push(self, text: str) -> list[tuple[str, bool]]:
        """Pieces that are now certain, and whether each is reasoning."""
        if self._over:
            return [(text, False)]
        if self._splitter is None:
            self._held += text
            begin = self._held.lstrip()
            if OPEN.startswith(begin):
                return []  # it may still become one
            text, self._held = self._held, ""
            if not begin.startswith(OPEN):
                self._over = True
                return [(text, False)]
            self._splitter, text = ThinkSplitter(), begin
        pieces = self._splitter.push(text)
        if any(not piece.thinking for piece in pieces):
            pieces += self._splitter.finish()
            self._over = True
        return [(piece.text, piece.thinking) for piece in pieces]

    def finish(self) -> list[tuple[str, bool]]:
        """What was held back."""
        if self._over:
            return []
        if self._splitter is None:
            return [(self._held, False)] if self._held else []
        return [(piece.text, piece.thinking) for piece in self._splitter.finish()]


def _bounded(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def usage(results: Sequence[Result], n_prompts: int) -> dict[str, Any]:
    """Token counts in OpenAI's terms; a prompt that several answers share counts once."""
    step = max(1, len(results) // max(1, n_prompts))
    prompt = sum(result.usage.prompt_tokens for result in results[::step])
    cached = sum(result.usage.cached_tokens for result in results[::step])
    completion = sum(result.usage.completion_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(result: Result) -> dict[str, Any]:
    """What an answer cost, in llama-server's names; `draft_n` is there also where nothing was drafted."""
    report, used = result.report, result.usage
    n_prompt = used.prompt_tokens - used.cached_tokens
    return {
        "cache_n": used.cached_tokens,
        **_rate("prompt", n_prompt, report.prefill_s),
        **_rate("predicted", used.completion_tokens, report.decode_s),
        "predicted_per_second": report.tok_s,
        "draft_n": report.drafted,
        "draft_n_accepted": report.accepted,
        "report": asdict(report),
    }


def by_origin(chunk: Chunk, piece: Piece) -> tuple[Chunk, ...]:
    """The guessed part of a piece and the model's own; the piece as it is where its text does not divide so.

    Text that was held back, as by a stop string, and characters across the border do not.
    """
    n = chunk.n_from_draft
    if not 0 < n < len(chunk.tokens):
        return (chunk,)
    try:
        guessed, own = (b"".join(map(piece, part)).decode() for part in (chunk.tokens[:n], chunk.tokens[n:]))
    except UnicodeDecodeError:
        return (chunk,)
    if guessed + own != chunk.text:
        return (chunk,)
    return (
        replace(chunk, text=guessed, tokens=chunk.tokens[:n], logprobs=chunk.logprobs[:n]),
        Chunk(own, chunk.tokens[n:], 0, chunk.logprobs[n:]),
    )


class Running:
    """`timings` of an answer under way: what has been sent adds up to, in llama-server's names.

    Source: llama-server's `timings_per_token`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._began_s: float | None = None
        self._n = self._n_first = self._drafted = self._accepted = 0

    def add(self, chunk: Chunk) -> dict[str, Any]:
        """The numbers with this piece."""
        now_s = self._clock()
        self._n += len(chunk.tokens)
        if self._began_s is None:
            self._began_s, self._n_first = now_s, self._n
        self._drafted += chunk.n_drafted
        self._accepted += chunk.n_from_draft
        seconds = now_s - self._began_s
        return {
            "predicted_n": self._n,
            "predicted_ms": 1000 * seconds,
            "predicted_per_second": (self._n - self._n_first) / seconds if seconds > 0 else None,
            "draft_n": self._drafted,
            "draft_n_accepted": self._accepted,
        }


def _rate(name: str, n: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": n,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": 1000 * seconds / n if n else None,
        f"{name}_per_second": n / seconds if seconds > 0 else None,
    }
