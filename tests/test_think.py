"""`<think>` blocks: however they are cut, the same text is told apart (C49)."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.think import CLOSE, OPEN, Piece, ThinkSplitter, opens_thinking, strip_thinking

# What is written, whether the prompt opened a block, what a stream shows as the answer, what the history keeps.
CASES = [
    ("plain", False, "plain", "plain"),
    ("<think>why</think>\n\nbecause", False, "because", "because"),
    ("<think>a</think>b<think>c</think>d", False, "bd", "bd"),
    ("<think>never ends", False, "", ""),
    ("said <think>never ends", False, "said ", "said "),
    ("why</think>\n\nbecause", True, "because", "because"),
    ("why</think>because", False, "whybecause", "because"),
    ("only thought", True, "", ""),
    ("<thinking> is no tag", False, "<thinking> is no tag", "<thinking> is no tag"),
    ("ends with <thi", False, "ends with <thi", "ends with <thi"),
    ("<think></think>", False, "", ""),
    ("<think>a<think>b</think>c", False, "c", "c"),
]


def split(chunks: list[str], *, opened: bool) -> list[Piece]:
    splitter = ThinkSplitter(opened=opened)
    pieces = [piece for chunk in chunks for piece in splitter.push(chunk)] + splitter.finish()
    joined = groupby(pieces, key=lambda piece: piece.thinking)
    return [Piece("".join(piece.text for piece in group), thinking) for thinking, group in joined]


@pytest.mark.parametrize(("text", "opened", "shown", "kept"), CASES)
def test_cases_whole_and_character_by_character(text: str, opened: bool, shown: str, kept: str) -> None:
    for chunks in ([text], list(text)):
        pieces = split(chunks, opened=opened)
        assert "".join(piece.text for piece in pieces if not piece.thinking) == shown
    assert strip_thinking(text, opened=opened) == kept


def test_thinking_is_kept_apart() -> None:
    assert split(["<th", "ink>so", "</thi", "nk>", "\n", "\nyes"], opened=False) == [
        Piece("so", True),
        Piece("yes", False),
    ]


@given(st.lists(st.sampled_from(["a", "\n", " ", "<", "think>", "/", OPEN, CLOSE]), max_size=12), st.data())
def test_any_cut_gives_the_same(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    opened = data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text], opened=opened)
    assert split(chunks, opened=opened) == whole
    assert not any(tag in piece.text for piece in whole for tag in (OPEN, CLOSE))


def test_prompt_that_opens_a_block() -> None:
    assert opens_thinking("<|assistant|>\n<think>\n")
    assert not opens_thinking("<think></think>")
