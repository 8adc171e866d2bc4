"""A drafter at arm's length: what it returns is checked, what it raises is contained, and why it is off is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgespec.core.asking import Asking
from edgespec.core.controller import chain_parents, cut
from edgespec.core.offers import Hidden, HiddenDrafter
from edgespec.interfaces import NO_DRAFT, Draft, Drafter, DrawingDrafter, Sampling

_MAX_FAULTS = 3
"""Faulty proposals (ids outside the vocabulary, malformed trees) before a drafter is cut off."""
_N_STRENGTHS = 64


class Drafting:
    """One drafter serving one session. It may fail in any way; the text goes on without it."""

    def __init__(self, drafter: Drafter, n_vocab: int) -> None:
        """`n_vocab` bounds the ids that are believed."""
        self.drafter = drafter
        self.name = drafter.name
        self.off_reason: str | None = None
        self.notes: list[str] = []
        self.asking = Asking() if getattr(drafter, "dear", False) else None
        """Its account where its proposals take a time that shows."""
        self.observing = drafter if isinstance(drafter, HiddenDrafter) and drafter.reads_hidden else None
        """The drafter where it reads the target's hidden states."""
        self._n_vocab = n_vocab
        self._n_faults = 0

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """At most `limit` valid tokens, whatever the drafter returned; nothing once it was cut off."""
        if self.off_reason is not None or limit <= 0:
            return NO_DRAFT
        try:
            draft = self.drafter.propose(context, limit)
            valid = _valid_length(draft, self._n_vocab)
        except Exception as error:
            self.stop(f"{self.name} raised {_line(error)}")
            return NO_DRAFT
        if valid < len(draft.tokens):
            self._n_faults += 1
            if self._n_faults >= _MAX_FAULTS:
                self.stop(f"{self.name} proposed invalid tokens {self._n_faults} times")
        return cut(draft, min(valid, limit))

    def draw_as(self, sampling: Sampling) -> None:
        """Tell a drafter that wants to know how the tokens of the answer that begins are drawn."""
        if self.off_reason is not None:
            return
        try:
            if isinstance(self.drafter, DrawingDrafter):
                self.drafter.draw_as(sampling)
        except Exception as error:
            self.stop(f"{self.name} raised {_line(error)}")

    def observe(self, context: Sequence[int], hidden: Hidden) -> None:
        """Show the state from which the newest token of `context` was drawn."""
        try:
            if self.observing is not None:
                self.observing.observe(context, hidden)
        except Exception as error:
            self.stop(f"{self.name} raised {_line(error)}")

    def stop(self, reason: str) -> None:
        """Cut the drafter off for the rest of the session."""
        self.off_reason = reason
        self.observing = None

    def close(self) -> None:
        """Close the drafter; a failure to close is noted, for it changes nothing about the text."""
        try:
            self.drafter.close()
        except Exception as error:
            self.notes.append(f"{self.name} failed to close: {_line(error)}")


def _line(error: Exception) -> str:
    """An exception as one line, also where it cannot say what it is."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".splitlines()[0]


def _valid_length(draft: Draft, n_vocab: int) -> int:
    """How many leading nodes are well formed: ids of the vocabulary, parents that come before.

    Raises:
        TypeError, ValueError: the draft is not a Draft, or its parts differ in length.
    """
    if not isinstance(draft, Draft):
        raise TypeError(f"returned {type(draft).__name__} instead of a Draft")
    parts = (draft.tokens, draft.parents, draft.strength, draft.confidence)
    if not all(type(part) is tuple for part in parts):
        raise TypeError("the parts of a Draft must be tuples")
    n = len(draft.tokens)
    if not n == len(draft.parents) == len(draft.strength) == len(draft.confidence):
        raise ValueError("the parts of the draft differ in length")
    if not n or (
        draft.parents == chain_parents(n)
        and min(draft.tokens) >= 0
        and max(draft.tokens) < n_vocab
        and min(draft.strength) >= 0
        and max(draft.strength) < _N_STRENGTHS
        and 0.0 <= min(draft.confidence) <= max(draft.confidence) <= 1.0
        and math.isfinite(sum(draft.confidence))  # not a number is neither least nor most
    ):
        return n
    for index, (token, parent, strength, confidence) in enumerate(zip(*parts, strict=True)):
        known = 0 <= token < n_vocab and 0 <= strength < _N_STRENGTHS
        if not (known and -1 <= parent < index and 0.0 <= confidence <= 1.0):
            return index
    return n
