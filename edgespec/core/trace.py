"""What one round of an answer did, for those who ask: benchmarks and the simulator. Nobody pays for it who does not."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.interfaces import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One pass of decoding and what led to it. Passes over the prompt leave none."""

    position: int
    """Tokens of the text, prompt included, when it began: the index there of the first token it made."""
    tokens: tuple[int, ...]
    """What it made: at least one token, those of the draft that were right in front."""
    drafter: str | None
    """Whose proposal counted; None: nobody was asked."""
    proposal: Draft = NO_DRAFT
    """All of that proposal, with the drafter's classes and claims, before the controller cut it."""
    others: tuple[tuple[str, Draft], ...] = ()
    """Proposals of other drafters that promised less."""
    n_drafted: int = 0
    """Tokens of the proposal that were verified."""
    n_accepted: int = 0
    n_cached: int = 0
    """Tokens of this sequence in the KV cache when the pass began."""
    n_pending: int = 1
    """Tokens evaluated before the draft; more than 1 where the memory replays accepted ones."""
    n_rows: int = 1
    """Rows of the whole pass, those of other sessions included."""
    draft_s: float = 0.0
    """Seconds from asking the drafter to the decision how much of it to verify."""
    began_s: float = 0.0
    """When the pass began, on the engine's clock."""
    verify_s: float = 0.0
    """Seconds of the pass."""
