"""`timings_per_token`: each piece of a stream says what was drafted and accepted so far, by which the page tints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server_fakes import Live, last_message, served_engine, serving

from edgespec.interfaces import Chunk
from edgespec.server import shape

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COPY = "grüße an alle und grüße an alle und grüße an alle und grüße an alle"
FIELDS = {"predicted_n", "predicted_ms", "predicted_per_second", "draft_n", "draft_n_accepted"}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(served_engine(lambda prompt: f"You said: {last_message(prompt)}")) as live:
        yield live


def say(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "timings_per_token": True, **more}


def pieces(events: list[Any]) -> list[tuple[str, int, int]]:
    """Text, tokens and accepted drafts of each piece of a chat."""
    found, before = [], {"predicted_n": 0, "draft_n_accepted": 0}
    for event in events[1:-1]:
        now = event["timings"]
        n, n_accepted = (now[name] - before[name] for name in before)
        found.append((event["choices"][0]["delta"]["content"], n, n_accepted))
        before = {name: now[name] for name in before}
    return found


def test_each_piece_has_the_numbers_so_far_and_is_guessed_or_not(live: Live) -> None:
    events = live.streamed(CHAT, say(COPY))
    assert "timings" not in events[0]
    for event in events[1:-1]:
        assert set(event["timings"]) == FIELDS
        assert event["timings"]["draft_n_accepted"] <= event["timings"]["draft_n"]
    found, end = pieces(events), events[-1]["timings"]
    assert "".join(text for text, _, _ in found) == f"You said: {COPY}"
    assert events[-2]["timings"]["predicted_n"] <= end["predicted_n"]
    assert events[-2]["timings"]["draft_n"] == end["draft_n"]
    guessed = [(text, n) for text, n, n_accepted in found if n == n_accepted > 0]
    assert sum(n for _, n in guessed) > 20
    *before, (last, n_last) = guessed
    assert all(len(text.encode()) == n for text, n in before), "a token is a byte here"
    assert n_last - len(last.encode()) in {0, 1}, "or the end, which may be guessed too"
    # What is neither holds half a character, or ends the answer.
    assert all(n == n_accepted or not n_accepted or "ü" in text or "ß" in text for text, n, n_accepted in found[:-1])


def test_the_text_is_the_same_and_others_streams_stay_as_they_are(live: Live) -> None:
    for path, body in ((CHAT, say(COPY, logprobs=True)), (TEXT, {"prompt": "user\nhi<|start|>assistant\n", "n": 2})):
        told = live.streamed(path, {**body, "timings_per_token": True})
        plain = live.streamed(path, {**body, "timings_per_token": False})
        assert [sum("timings" in event for event in plain)] == [2 if path == TEXT else 1]

        def joined(events: list[Any], index: int) -> tuple[str, list[Any]]:
            choices = [c for e in events for c in e["choices"] if c["index"] == index]
            text = "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)
            return text, [item for c in choices for item in (c["logprobs"] or {"content": []})["content"]]

        for index in range(2):
            assert joined(told, index) == joined(plain, index)


def test_text_that_was_held_back_is_not_divided(live: Live) -> None:
    found = pieces(live.streamed(CHAT, say(f"{COPY} ## {COPY}", stop="####")))
    assert "".join(text for text, _, _ in found) == f"You said: {COPY} ## {COPY}"


def test_without_a_stream_it_is_named_as_ignored(live: Live) -> None:
    assert live.chat("x", timings_per_token=True)["edgespec"]["ignored"] == ["timings_per_token"]
    reply = live.ask(CHAT, say("x", stream=True, timings_per_token="yes"))
    assert (reply.status, reply.error["param"]) == (400, "timings_per_token")


def test_how_a_piece_divides() -> None:
    def piece(token: int) -> bytes:
        return bytes([token])

    def split(text: str, n: int, data: bytes) -> list[tuple[str, int, int, int]]:
        halves = shape.by_origin(Chunk(text, tuple(data), n, (), 5), piece)
        return [(half.text, len(half.tokens), half.n_from_draft, half.n_drafted) for half in halves]

    assert split("abc", 2, b"abc") == [("ab", 2, 2, 5), ("c", 1, 0, 0)]
    assert split("abc", 0, b"abc") == [("abc", 3, 0, 5)]
    assert split("abc", 3, b"abc") == [("abc", 3, 3, 5)]
    assert split("é", 1, "é".encode()) == [("é", 2, 1, 5)], "a character across the border"
    assert split("xabc", 2, b"abc") == [("xabc", 3, 2, 5)], "text from before"
    assert split("ab", 2, b"abc") == [("ab", 3, 2, 5)], "text that is held back"


def test_the_rate_counts_from_the_first_piece() -> None:
    clock = iter([10.0, 10.5, 11.0])
    running = shape.Running(lambda: next(clock))
    first, second, third = (running.add(Chunk("", (1,) * n, n - 1, (), n)) for n in (1, 3, 2))
    assert (first["predicted_n"], first["predicted_per_second"]) == (1, None)
    assert (second["predicted_per_second"], second["predicted_ms"]) == (6.0, 500.0)
    assert third == {
        "predicted_n": 6, "predicted_ms": 1000.0, "predicted_per_second": 5.0, "draft_n": 6, "draft_n_accepted": 3,
    }  # fmt: skip
