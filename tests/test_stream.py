"""Token bytes to text: UTF-8 boundaries, stop strings split anywhere, dangling tails."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.stream import TextStream


def feed(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[str, list[str], TextStream]:
    stream = TextStream(pieces.__getitem__, stop)
    deltas = []
    for token in range(len(pieces)):
        deltas.append(stream.push(token))
        if stream.stopped:
            break
    deltas.append(stream.finish())
    return "".join(deltas), deltas, stream


def test_characters_split_across_tokens_are_held() -> None:
    text, deltas, _ = feed([b"\xf0\x9f", b"\x91\xa9", b"\xe2\x80\x8d", b"!"])
    assert text == "👩\u200d!"
    assert deltas[0] == ""


def test_dead_bytes_become_replacement_characters_at_once_and_tails_are_flushed() -> None:
    text, deltas, _ = feed([b"a", b"\xff", b"b", b"\xe6"])
    assert text == "a\ufffdb\ufffd"
    assert deltas[-1] == "\ufffd"


def test_partial_stop_string_is_released_when_broken() -> None:
    assert feed([bytes([c]) for c in b"a##b###c"], ("###",))[0] == "a##b"
    assert feed([b"a#", b"#"], ("###",))[0] == "a##"


def test_stop_inside_and_across_blocks() -> None:
    assert feed([b"x\nUser:", b"more"], ("\nUser:",))[0] == "x"
    assert feed([b"x\nUs", b"er", b":more"], ("\nUser:",))[0] == "x"


def test_earliest_of_several_stops_wins_and_empty_ones_are_ignored() -> None:
    text, _, stream = feed([b"one END two"], ("two", "END", ""))
    assert text == "one "
    assert stream.stopped


def test_stop_right_after_a_dead_byte() -> None:
    assert feed([b"a\xe6", b"STOP", b"x"], ("STOP",))[0] == "a\ufffd"


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_any_split_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(bounds)]
    found = [i for i in (text.find(s) for s in stops) if i >= 0]
    shown, deltas, _ = feed(pieces, tuple(stops))
    by_char, _, _ = feed([c.encode() for c in text], tuple(stops))
    # The stop string that is completed first decides, which may begin after one that is completed later.
    assert shown == by_char or shown == text[: min(found)]
    for stop in stops:
        assert stop not in shown
    for delta in deltas:
        delta.encode()  # never half a character
    if not found:
        assert shown == text


@pytest.mark.parametrize("stop", ["é", "ab", "b"])
def test_held_text_never_contains_a_whole_stop(stop: str) -> None:
    text, _, _ = feed([c.encode() for c in "xxé"], (stop,))
    assert stop not in text
