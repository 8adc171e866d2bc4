"""Proposes what a constraint leaves no choice about, such as the keys of a JSON object: text that costs no guess.

Only whether its last token goes on into the free text behind it is a guess. It does not know the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.core.constraint import Guide
from edgespec.core.controller import chain_parents
from edgespec.interfaces import NO_DRAFT, Draft

CERTAIN, LAST, LAST_SPACE, END = range(4)
"""Places in the forced text. The last token may go on into what is free, a space mostly; there may be several ends."""
_CLAIMS = (1.0, 0.8, 0.5, 0.95)


class ForcedDrafter:
    """Reads the guide of one answer; that answer's text is the only context it can be asked about."""

    name = "grammar"

    def __init__(self, guide: Guide, piece: Callable[[int], bytes]) -> None:
        """`guide` is advanced by the sampler; `piece` gives a token's bytes."""
        self._guide = guide
        self._piece = piece

    def propose(self, context: Sequence[int], limit: int) -> Draft:  # noqa: ARG002 - the guide stands where it ends
        """A chain of at most `limit` tokens up to the next choice, or nothing."""
        forced = self._guide.forced()
        n = min(limit, len(forced.tokens))
        if n <= 0:
            return NO_DRAFT
        places = [CERTAIN] * n
        if n == len(forced.tokens):
            last = self._piece(forced.tokens[-1])
            places[-1] = END if forced.ends else LAST if last.strip() else LAST_SPACE
        return Draft(forced.tokens[:n], chain_parents(n), tuple(places), tuple(_CLAIMS[place] for place in places))

    def close(self) -> None:
        """Nothing to free."""
