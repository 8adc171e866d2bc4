"""What a certificate compares, and with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.conditions import Team
from edgespec.interfaces import Target

_WIDTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48)


class CertTarget(Target, Protocol):
    """A target whose threads can be set."""

    def use_team(self, team: Team) -> str | None:
        """Threads from the next pass on."""
        ...

    def close(self) -> None:
        """Give its memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Grid:
    """What to measure."""

    contexts: tuple[int, ...]
    """Cached tokens at which comparisons begin, rising."""
    widths: tuple[int, ...]
    threads: tuple[int, ...]
    """Numbers of threads, rising."""
    n_threads: int
    """Of the team that is usual here; one of `threads`."""
    n_tokens: int
    """Rows to compare in a cell, rounded up to whole pieces."""
    n_piece: int = 64
    """Tokens that are decoded from one context before going back to it."""
    n_company: int = 4
    """Sequences of the batches in company."""
    n_ctx_company: int = 640
    """Longest context at which company is compared."""
    n_ctx_prompt: int = 640
    """Longest context at which ways of evaluating the prompt are compared."""
    chunks: tuple[int, ...] = (64, 48)
    """Tokens of a prompt's chunks, to compare with `n_batch`."""


def thread_counts(n: int, n_most: int) -> tuple[int, ...]:
    """Numbers of threads to compare on a team of `n` that may grow to `n_most`; these stand for those between."""
    return tuple(sorted({1, 2, n // 2, n - 1, n, n_most} & set(range(1, n_most + 1))))


def widths(max_draft: int) -> tuple[int, ...]:
    """Widths to compare for drafts of up to `max_draft` tokens: all that pay on a processor, then fewer and fewer."""
    return (*(width for width in _WIDTHS if width <= max_draft), 1 + max_draft)


Opener = Callable[[str, int, int], CertTarget]
"""Opens a target for (KV types, tokens of context of a sequence, sequences), each sequence with cells of its own."""


@dataclass(frozen=True, slots=True)
class Means:
    """With what to measure."""

    opener: Opener
    """At most two targets are open at a time."""
    text: Sequence[int]
    """Tokens to feed, more than the longest context and a piece."""
    grid: Grid
    clock: Callable[[], float]
    """Seconds."""
    tick: Callable[[str], None] = lambda _: None
    """Told what is measured now."""
