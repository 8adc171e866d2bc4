"""The suffix automaton against the obvious slow way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgespec.draft.suffix import MIN_MATCH, SuffixDrafter

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def longest_repeat(text: list[int]) -> int:
    """Length of the longest suffix that also occurs earlier and is followed by something."""
    for n in range(len(text) - 1, 0, -1):
        if any(text[i : i + n] == text[-n:] for i in range(len(text) - n)):
            return n
    return 0


@given(TEXTS)
def test_first_token_followed_the_longest_repeated_suffix(text: list[int]) -> None:
    draft = SuffixDrafter().propose(text, 1)
    n = longest_repeat(text)
    if n < MIN_MATCH:
        assert draft.tokens == ()
        return
    followers = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
    assert draft.tokens[0] in followers


@given(TEXTS, st.integers(1, 60), st.integers(0, 12))
def test_grown_index_equals_a_fresh_one(text: list[int], step: int, limit: int) -> None:
    grown = SuffixDrafter()
    for n in range(0, len(text) + 1, step):
        grown.propose(text[:n], 3)
    assert grown.propose(text, limit) == SuffixDrafter().propose(text, limit)


@given(TEXTS, TEXTS, st.integers(0, 12))
def test_another_text_leaves_no_trace(first: list[int], second: list[int], limit: int) -> None:
    drafter = SuffixDrafter()
    drafter.propose(first, limit)
    assert drafter.propose(second, limit) == SuffixDrafter().propose(second, limit)
    assert drafter.propose(second[: len(second) // 2], limit) == SuffixDrafter().propose(
        second[: len(second) // 2], limit
    )


def test_most_recent_of_equals_wins() -> None:
    text = [1, 2, 7, 7, 7, 1, 2, 9, 9, 9, 4, 1, 2]
    draft = SuffixDrafter().propose(text, 3)
    assert draft.tokens[:2] == (9, 9)


def test_a_loop_is_drafted_past_the_end_of_the_text() -> None:
    assert SuffixDrafter().propose([5, 6, 7] * 4, 10).tokens == (5, 6, 7) * 3 + (5,)


def test_unseen_text_gives_nothing() -> None:
    assert SuffixDrafter().propose(list(range(50)), 10).tokens == ()
    assert SuffixDrafter().propose([], 10).tokens == ()


@given(TEXTS, st.integers(0, 20))
def test_confidence_and_strength_are_in_range(text: list[int], limit: int) -> None:
    draft = SuffixDrafter().propose(text, limit)
    assert len(draft.tokens) <= limit
    assert all(0 <= s < 64 for s in draft.strength)
    assert all(0 < c < 1 for c in draft.confidence)
