"""What of a draft is taken: the leading tokens that are well formed, whoever proposed them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.core.drafting import Drafting
from edgespec.interfaces import Draft

NAN = float("nan")


class Says:
    """Proposes one draft for ever."""

    name = "says"

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def propose(self, _: Sequence[int], limit: int) -> Draft:
        return self._draft

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("wrong", [NAN, float("inf"), -0.1, 1.1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_draft_ends_before_a_confidence_that_is_none(wrong: float, place: int) -> None:
    confidence = tuple(wrong if index == place else 0.5 for index in range(3))
    drafting = Drafting(Says(Draft((1, 2, 3), (-1, 0, 1), (0, 0, 0), confidence)), 10)
    assert drafting.propose((5,), 8).tokens == (1, 2, 3)[:place]
    for _ in range(2):
        drafting.propose((5,), 8)
    assert drafting.off_reason == "says proposed invalid tokens 3 times"


def test_a_whole_draft_is_taken() -> None:
    drafting = Drafting(Says(Draft((1, 2, 3), (-1, 0, 1), (0, 0, 63), (0.0, 1.0, 0.5))), 10)
    assert drafting.propose((5,), 8).tokens == (1, 2, 3)
    assert drafting.propose((5,), 2).tokens == (1, 2)
