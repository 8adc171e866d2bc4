"""Whether a drafter whose proposals take real time is worth asking. Pure: times are handed in."""

from __future__ import annotations

from edgespec.core.controller import Ledger

_RATE = 0.2
"""Weight of the newest proposal in what one is expected to take."""
_OPENING = 0.4
"""Credit at first, in plain steps, and the most that a call is expected to take: one that was held up once, or is slow
on this machine, is tried again when that much was earned."""


class Asking:
    """The account of one such drafter in one session, in plain decode steps.

    What a call took is spent whether a draft came of it or not, and unlike a draft's length it must be decided before
    anything is known. So each is paid from a ledger of its own: rounds in which the drafter was asked book what they
    won or lost, the call included, and all others the share that may be lost for good. One that never helps is then
    asked a few times, and later once in `call / 0.006` rounds to notice when that changes.
    """

    def __init__(self) -> None:
        # Less credit than drafts have: what it costs to find out is a call, not a pass.
        self._ledger = Ledger(balance=_OPENING, cap=1.5, lasting=0.75)
        self._call_s = 0.0

    def worth(self, step_s: float) -> bool:
        """Whether to ask, where a plain step takes `step_s` seconds."""
        loss = min(self._call_s / step_s, _OPENING)
        return self._ledger.balance > 0.0 and self._ledger.affords(loss, loss)

    def called(self, seconds: float) -> None:
        """A proposal took so long."""
        self._call_s += (_RATE if self._call_s else 1.0) * (seconds - self._call_s)

    def book(self, n_tokens: int, saved_s: float, step_s: float, *, asked: bool) -> None:
        """A round made `n_tokens`; if it was `asked`, it saved so many seconds over plain decoding, the call paid."""
        self._ledger.book(n_tokens - saved_s / step_s if asked else n_tokens, n_tokens)
