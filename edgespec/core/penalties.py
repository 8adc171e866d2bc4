"""What the committed text takes from logits: repetition, frequency and presence penalties, and DRY.

Both know the text by `accept` only, which is called for committed tokens and never for a rejected guess.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from edgespec.core.noise import Ids
from edgespec.interfaces import Row, Sampling

_LOG_FLOAT_MAX = 88.7228391
"""Logarithm of the largest float32: DRY's power stops there. Source: llama-sampler.cpp."""


class Penalties:
    """Counts of the newest tokens. Source: llama-sampler.cpp; Keskar et al., 1909.05858; OpenAI's two penalties."""

    def __init__(self, params: Sampling, history: Sequence[int]) -> None:
        """`history` is the prompt; of it only the newest `penalty_last_n` tokens matter."""
        self._p = params
        n_last = params.penalty_last_n
        self._window = deque(history if n_last < 0 else history[max(0, len(history) - n_last) :])
        self._counts: dict[int, int] = {}
        for token in self._window:
            self._counts[token] = self._counts.get(token, 0) + 1

    @staticmethod
    def wanted(params: Sampling) -> bool:
        """Whether any penalty can change a logit."""
        neutral = params.repeat_penalty == 1.0 and not params.frequency_penalty and not params.presence_penalty
        return not neutral and params.penalty_last_n != 0

    def accept(self, token: int) -> None:
        """Count a committed token."""
        self._window.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        if 0 <= self._p.penalty_last_n < len(self._window):
            old = self._window.popleft()
            self._counts[old] -= 1
            if not self._counts[old]:
                del self._counts[old]

    def apply(self, row: Row) -> None:
        """Change the row in place."""
        n = len(self._counts)
        ids = np.fromiter(self._counts.keys(), np.int64, n)
        counts = np.fromiter(self._counts.values(), np.float32, n)
        logits = row[ids]
        penalty = self._p.repeat_penalty
        logits = np.where(logits <= 0, logits * penalty, logits / penalty)
        row[ids] = logits - counts * self._p.frequency_penalty - self._p.presence_penalty


class Dry:
    """Takes `multiplier * base ** (length - allowed)` from a token that would prolong a repetition of that length.

    Source: oobabooga/text-generation-webui#5677; llama-sampler.cpp.
    """

    def __init__(self, params: Sampling, history: Sequence[int]) -> None:
        """`history` is the prompt; of it only the newest `dry_penalty_last_n` tokens matter."""
        self._p = params
        self._tails: dict[int, list[tuple[int, ...]]] = {}
        """Breakers by their first token: what follows it."""
        for head, *tail in params.dry_breakers or ():
            self._tails.setdefault(head, []).append(tuple(tail))
        n_last = params.dry_penalty_last_n
        self._text: Ids = np.array(history if n_last < 0 else history[max(0, len(history) - n_last) :], np.int64)
        self._exponent_max = int(_LOG_FLOAT_MAX / math.log(params.dry_base)) if params.dry_base > 1.000001 else 0

    @staticmethod
    def wanted(params: Sampling) -> bool:
        """Whether DRY can change a logit."""
        return params.dry_multiplier != 0.0 and params.dry_penalty_last_n != 0

    def accept(self, token: int) -> None:
        """Take in a committed token."""
        text = np.append(self._text, token)
        n_last = self._p.dry_penalty_last_n
        self._text = text if n_last < 0 else text[-n_last:]

    def apply(self, row: Row) -> None:
        """Change the row in place."""
        lengths = self._lengths()
        if not lengths:
            return
        ids = np.fromiter(lengths.keys(), np.int64, len(lengths))
        exponents = np.fromiter(lengths.values(), np.float64, len(lengths)) - self._p.dry_allowed_length
        row[ids] -= (self._p.dry_multiplier * self._p.dry_base**exponents).astype(np.float32)

    def _lengths(self) -> dict[int, int]:
        """Tokens that would prolong a repetition of at least the allowed length, and the longest such length."""
        text, allowed = self._text, self._p.dry_allowed_length
        n_max = min(self._reach(), allowed + self._exponent_max)
        if n_max < allowed or len(text) <= allowed:
            return {}
        found: dict[int, int] = {}
        ends = np.arange(len(text) - 1)
        for length in range(1, n_max + 1):
            # Ends of earlier text whose last `length` tokens are the text's last `length` tokens.
            ends = ends[ends >= length - 1]
            ends = ends[text[ends - (length - 1)] == text[-length]]
            if not len(ends):
                break
            if length >= allowed:
                found.update(dict.fromkeys(text[ends + 1].tolist(), length))
        return {token: length for token, length in found.items() if () not in self._tails.get(token, ())}

    def _reach(self) -> int:
        """Tokens after the newest breaker: no repetition is longer."""
        if not self._tails:
            return len(self._text)
        text = self._text.tolist()
        for i in range(len(text) - 1, -1, -1):
            tails = self._tails.get(text[i])
            if tails is None:
                continue
            whole = [len(tail) for tail in tails if tuple(text[i + 1 : i + 1 + len(tail)]) == tail]
            if whole:
                return len(text) - 1 - i - max(whole)
        return len(text)
