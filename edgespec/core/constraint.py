"""What the sampler sees of a constraint (a grammar): which tokens may come next, and which came.

The rule, in full: a token is drawn as if there were no constraint and kept if it is allowed. Else the best allowed
token by the same scores (logit over temperature plus the noise of that token) is taken, among those that top-k, top-p
and the like had left; only where these are all refused are the cut-offs applied anew, to the allowed tokens alone.

Since the noise belongs to the token, the arg max over the allowed tokens is the first draw wherever that is allowed. It
is an exact draw from the sampler's distribution restricted to the allowed tokens and made to sum to one: the cut-offs
come first, the grammar last. llama.cpp instead draws anew with the cut-offs after the grammar, a mixture of the two.
The same rows give the same text, drafted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgespec.errors import ConstraintError
from edgespec.interfaces import Row

_FIRST = 64
"""Best tokens that are tried before all are: mostly one of them is allowed."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What a constraint leaves no choice about. Each token but the last is the only one that may come there."""

    tokens: tuple[int, ...] = ()
    ends: bool = False
    """Whether the last token is the end of the answer."""


class Guide(Protocol):
    """The state of one constraint in one answer. It is told of committed tokens only, so it never steps back."""

    def only(self) -> int | None:
        """The only token that may come next, where that is known without looking at the row; else None."""
        ...

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        ...

    def allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the token `ids` may come next."""
        ...

    def accept(self, token: int) -> None:
        """Go on behind `token`, which must be allowed."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may come next, one after the other, before the first that may not."""
        ...

    def forced(self) -> Forced:
        """What must come next, up to the next choice."""
        ...


def best_allowed(guide: Guide, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]) -> int | None:
    """The allowed token with the highest score, of equals the first; None where none is allowed."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    if len(ids) > _FIRST:
        near = np.flatnonzero(scores >= np.partition(scores, -_FIRST)[-_FIRST])
        found = _best(guide, ids[near], scores[near])
        if found is not None:
            return found
    return _best(guide, ids, scores)


def only_allowed(guide: Guide, row: Row) -> Row:
    """The row with all but the allowed tokens forbidden.

    Raises:
        ConstraintError: none is allowed.
    """
    may = guide.allowed(np.arange(len(row)))
    if not may.any():
        raise ConstraintError("the constraint allows nothing that this model can write here: loosen it")
    # What is forbidden otherwise (a bias of -inf) may be the only allowed token: then it is taken all the same.
    floored: Row = np.where(may, np.maximum(row, np.finfo(np.float32).min), -np.inf)
    return floored


def _best(guide: Guide, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.floating]) -> int | None:
    may = guide.allowed(ids)
    if not may.any():
        return None
    return int(ids[may][np.argmax(scores[may])])
