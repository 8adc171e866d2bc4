"""Folds rounds into a Report. Knows counts and seconds, not where they come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edgespec.interfaces import Report, Rollback


@dataclass(slots=True)
class Stats:
    """Running sums of one generation; times in seconds, `None` while unknown."""

    started_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float | None = None
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    n_tokens: int = 0
    n_decoded: int = 0
    """Tokens made by decode rounds, those of the prompt's last pass left out."""
    saved_s: float | None = None
    by_position: list[int] = field(default_factory=list)
    widths: Counter[int] = field(default_factory=Counter)

    def prefill(self, seconds: float) -> None:
        """A pass over part of the prompt."""
        self.prefill_s += seconds

    def decode_round(self, width: int, n_accepted: int, n_tokens: int, draft_s: float, verify_s: float) -> None:
        """A round of `width` rows that committed `n_tokens`, `n_accepted` of them drafted."""
        self.rounds += 1
        self.drafted += width - 1
        self.accepted += n_accepted
        self.n_decoded += n_tokens
        self.widths[width] += 1
        self.draft_s += draft_s
        self.verify_s += verify_s
        if n_accepted > len(self.by_position):
            self.by_position.extend([0] * (n_accepted - len(self.by_position)))
        for position in range(n_accepted):
            self.by_position[position] += 1

    def committed(self, n_tokens: int, now_s: float) -> None:
        """`n_tokens` became part of the text at `now_s`."""
        self.n_tokens += n_tokens
        if n_tokens:
            self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
            self.last_token_s = now_s

    def report(
        self, drafter: str, off_reason: str | None, notes: tuple[str, ...] = (), rollback: Rollback | None = None
    ) -> Report:
        """The finished account; what only the engine knows (load time, cores, memory) is added by it."""
        first, last = self.first_token_s, self.last_token_s
        decode_s = 0.0 if first is None or last is None else last - first
        return Report(
            drafter=drafter,
            drafter_off_reason=off_reason,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            accepted_by_position=tuple(self.by_position),
            tokens_per_round=self.n_decoded / self.rounds if self.rounds else None,
            widths=dict(sorted(self.widths.items())),
            prefill_s=self.prefill_s,
            ttft_s=None if first is None else first - self.started_s,
            decode_s=decode_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            tok_s=(self.n_tokens - 1) / decode_s if decode_s > 0 and self.n_tokens > 1 else None,
            saved_s=self.saved_s,
            rollback=rollback,
            notes=notes,
        )
