"""The drafter that remembers: what it proposes, whose store it takes, what it learns of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_tools import DIGEST, FACTS, MODEL, N_VOCAB, SMALL, draft, write
from test_draft_contract import same

from edgespec.core.offers import TargetFacts
from edgespec.draft import store
from edgespec.draft.store import Learner, StoreDrafter, n_known, open_store
from edgespec.draft.store_file import LONG, SHORT, SUFFIX, StoreFile
from edgespec.draft.store_writer import forget
from edgespec.errors import DrafterError


def test_the_longest_match_decides_and_a_draft_ends_with_its_text(tmp_path: Path) -> None:
    path = write(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8], [10, 20, 30, 4, 5, 6, 70, 80], [3, 4, 5, 6])
    assert draft(path, [1, 2, 3, 4, 5, 6]) == (7, 8)
    assert draft(path, [10, 20, 30, 4, 5, 6]) == (70, 80)
    assert draft(path, [10, 20, 30, 4, 5, 6], limit=1) == (70,)
    assert draft(path, [10, 4, 5, 6], limit=1) == (70,)  # of equal matches the newer one
    assert draft(path, [5, 6]) == draft(path, [6, 7, 9]) == draft(path, []) == ()


def test_of_equal_matches_the_more_frequent_continuation_then_the_newer(tmp_path: Path) -> None:
    path = write(tmp_path, [7, 1, 2, 3, 4], [8, 1, 2, 3, 4], [9, 1, 2, 3, 5])
    assert draft(path, [6, 1, 2, 3]) == (4,)
    path = write(tmp_path, [10, 1, 2, 3, 5])
    assert draft(path, [6, 1, 2, 3]) == (5,)


def naive(texts: Sequence[Sequence[int]], context: Sequence[int]) -> int:
    """How many newest tokens of the context occur in a text with something behind them."""
    return max(
        (n for text in texts for end in range(1, len(text)) for n in range(1, min(end, len(context)) + 1)
         if list(text[end - n : end]) == list(context[len(context) - n :])),
        default=0,
    )  # fmt: skip


TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=6)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 9))
def test_whatever_is_proposed_is_in_the_store(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], context: list[int], limit: int
) -> None:
    path = write(tmp_path_factory.mktemp("s"), [999], *texts, max_bytes=SMALL)
    drafter = StoreDrafter(path=path)
    same(drafter, context, limit)
    found = drafter.propose(context, limit).tokens
    n_match = naive(texts, context)
    assert bool(found) <= (n_match >= SHORT and limit > 0)
    if n_match >= LONG and limit:
        assert found
    for n in range(1, len(found) + 1):
        joined = [*context[-SHORT:], *found[:n]]
        assert any(joined == list(text[i : i + len(joined)]) for text in texts for i in range(len(text)))
    drafter.close()
    drafter.close()
    assert drafter.propose(context, limit).tokens == ()


@given(st.lists(st.lists(st.integers(0, 6), max_size=40), min_size=1, max_size=4), st.integers(0, 20))
def test_contract(tmp_path_factory: pytest.TempPathFactory, contexts: list[list[int]], limit: int) -> None:
    path = write(tmp_path_factory.mktemp("s"), [1, 2, 3, 4, 5, 6, 0] * 3, *contexts[1:], max_bytes=SMALL)
    drafter = StoreDrafter(path=path)
    for context in contexts:
        same(drafter, context, limit)
        same(drafter, context[: len(context) // 2], limit)
        assert drafter.propose(context, limit).tokens == draft(path, context, limit)
    drafter.close()


def test_a_reader_follows_a_file_that_grew_or_was_forgotten_at_its_next_answer(tmp_path: Path) -> None:
    path = write(tmp_path, [1, 2, 3, 4])
    drafter = StoreDrafter(path=path)
    answer = [1, 2, 3]
    assert drafter.propose(answer, 1).tokens == (4,)
    write(tmp_path, [5, 6, 7, 8], [n % 1000 for n in range(100_000)])
    answer += [9, 5, 6, 7]
    assert drafter.propose(answer, 1).tokens == ()
    assert drafter.propose(list(answer), 1).tokens == (8,)
    forget(tmp_path, 0.0)
    assert drafter.propose([5, 6, 7], 1).tokens == ()


def test_the_tokenizer_is_named_only_where_nothing_says_whose_a_store_is(tmp_path: Path) -> None:
    asked: list[int] = []

    def name(n: int) -> str:
        asked.append(n)
        return DIGEST

    same_weights = TargetFacts("tiny", N_VOCAB, 0, MODEL, name)
    assert open_store(same_weights, tmp_path / "none") is None
    path = write(tmp_path, [1, 2, 3, 4])
    found = open_store(same_weights, tmp_path)
    assert found is not None
    assert found.path == path
    assert asked == []
    Learner(same_weights, tmp_path).learn([1, 2, 3, 5])
    assert asked == []
    other_weights = TargetFacts("other", N_VOCAB, 0, "e" * 64, name)
    assert open_store(other_weights, tmp_path) is not None
    assert asked == [N_VOCAB]
    Learner(other_weights, tmp_path).learn([1, 2, 3, 6])
    assert StoreFile(path).models() == ["e" * 64, MODEL]
    other_tokenizer = TargetFacts("third", N_VOCAB, 0, None, lambda n: "cd" * 32)
    assert open_store(other_tokenizer, tmp_path) is None
    drafter = StoreDrafter()
    with pytest.raises(DrafterError, match="nothing was learned for this tokenizer yet"):
        drafter.fit(FACTS)


def test_fit_takes_the_users_store(tmp_path: Path) -> None:
    write(store.folder(), [1, 2, 3, 4])
    drafter = StoreDrafter(lambda token: b" word")
    assert drafter.propose([1, 2, 3], 4).tokens == ()
    assert drafter.fit(FACTS) is None
    assert drafter.propose([1, 2, 3], 4).tokens == (4,)
    drafter.close()


@given(st.lists(st.integers(0, 99), min_size=60, max_size=90, unique=True), st.data())
def test_only_what_is_new_is_learned(conversation: list[int], data: st.DataObject) -> None:
    before = conversation[:50]
    assert n_known(conversation, before) == 50  # it grew
    n_left_out = data.draw(st.integers(1, 15))
    shorter = conversation[:3] + conversation[3 + n_left_out :]
    assert n_known(shorter, before) == 50 - n_left_out  # oldest turns were left out
    retried = [*before[:45], *conversation[50:]]
    assert n_known(retried, before) == 45  # its end is another
    assert n_known(conversation, []) == 0
    assert n_known(before[:10], before) == 10


def test_turns_of_a_chat_are_found_across_their_seam(tmp_path: Path) -> None:
    learner = Learner(FACTS, tmp_path)
    first = list(range(100, 160))
    second = [*first, *range(200, 260)]
    learner.learn(first)
    learner.learn(second, first)
    path = next(tmp_path.glob(f"*{SUFFIX}"))
    assert StoreFile(path).n_held == 61 + 60 + LONG + 1
    assert draft(path, list(range(150, 160)), 2) == (200, 201)
