"""Proposes what a constraint leaves no choice about, such as the keys of a JSON object: text that costs no guess.

Only how the target cuts that text into tokens is a guess. It does not know the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.core.constraint import Guide
from edgespec.core.controller import chain_parents, cut
from edgespec.interfaces import Draft

FIRST, INSIDE, LAST, LAST_SPACE, END = range(5)
"""Places in the forced text. The first token may go on from the one before; the last may go on into what is free, a
space mostly; the end of the answer is certain where the model has one way to end."""
_CLAIMS = (0.9, 0.97, 0.8, 0.5, 0.95)


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
        n = len(forced.tokens)
        places = [INSIDE] * n
        if n:
            last = n - 2 if forced.ends else n - 1
            if not forced.ends:
                places[last] = LAST_SPACE if not self._piece(forced.tokens[last]).strip() else LAST
            else:
                places[-1] = END
            if last > 0:
                places[0] = FIRST
        return cut(
            Draft(forced.tokens, chain_parents(n), tuple(places), tuple(_CLAIMS[place] for place in places)), limit
        )

    def close(self) -> None:
        """Nothing to free."""
