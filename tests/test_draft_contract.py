"""Every registered drafter keeps the contract; what is added to the registry is tested unedited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.draft import AUTO, NAMES, REGISTRY
from edgespec.interfaces import Drafter


def piece(token: int) -> bytes:
    return (b" the", b"re", b".", b"\n", b"", b"\xc3", b" 7")[token % 7]


TEXTS = st.lists(st.integers(0, 6), max_size=40)


def same(drafter: Drafter, context: list[int], limit: int) -> None:
    before = list(context)
    draft = drafter.propose(context, limit)
    n = len(draft.tokens)
    assert n <= limit
    assert n == len(draft.parents) == len(draft.strength) == len(draft.confidence)
    assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))
    assert all(0 <= strength < 64 for strength in draft.strength)
    assert all(0.0 <= confidence <= 1.0 for confidence in draft.confidence)
    assert context == before
    assert drafter.propose(context, limit) == draft


@pytest.mark.parametrize("name", REGISTRY)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(0, 20))
def test_contract(name: str, contexts: list[list[int]], limit: int) -> None:
    drafter = REGISTRY[name](piece)
    for context in contexts:  # switching, growing and shrinking texts
        same(drafter, context, limit)
        same(drafter, context[: len(context) // 2], limit)
        assert drafter.propose(context, limit) == REGISTRY[name](piece).propose(context, limit)
    drafter.close()
    drafter.close()


@pytest.mark.parametrize("name", REGISTRY)
def test_edges(name: str) -> None:
    drafter = REGISTRY[name](piece)
    assert drafter.name == name
    for context in ([], [1], [1] * 30):
        assert drafter.propose(context, 0).tokens == ()
        same(drafter, context, 5)
    drafter.close()


def test_names() -> None:
    assert AUTO in REGISTRY
    assert set(NAMES) == {"auto", "none", *REGISTRY}
