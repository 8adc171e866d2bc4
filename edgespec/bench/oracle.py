"""The drafter that knows the text: what the best possible drafter would gain on these prompts, and the ceiling."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.bench.modes import ORACLE
from edgespec.core.controller import chain_parents
from edgespec.interfaces import NO_DRAFT, Draft


class OracleDrafter:
    """Proposes what was written before; nothing once the text goes another way."""

    name = ORACLE
    inline = True
    """It answers at once, so that no thread of its own stands in the measurement."""

    def __init__(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """`answer` is what the same sampling wrote after `prompt`."""
        self._text = [*prompt, *answer]

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """The next `limit` tokens, claimed to be certain."""
        n_known = len(context)
        if self._text[:n_known] != list(context):
            return NO_DRAFT
        tokens = tuple(self._text[n_known : n_known + max(0, limit)])
        n = len(tokens)
        return Draft(tokens, chain_parents(n), (0,) * n, (1.0,) * n) if n else NO_DRAFT

    def close(self) -> None:
        """Nothing to free."""
