"""Streams: OpenAI's protocol, the same text as without, and who leaves or is too slow ends it (C20, C58, C59, C63)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from server_fakes import Gate, Live, last_message, read_events, served_engine, serving

from edgespec.errors import EvalError
from edgespec.server.stream import Patience

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = "one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(served_engine(lambda prompt: f"You said: {last_message(prompt)}")) as live:
        yield live


def say(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **more}


def content(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_a_stream_is_the_whole_answer_in_pieces(live: Live) -> None:
    options = {"stop": "###", "logprobs": True, "top_logprobs": 1}
    text = "grüße an alle, grüße an alle, grüße an alle 👩‍🚀 ### und nicht mehr"
    whole = live.chat(text, **options)
    events = live.streamed(CHAT, say(text, **options, stream_options={"include_usage": True}))
    assert content(events) == whole["choices"][0]["message"]["content"]
    first, *pieces, last, usage = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["timings"]["draft_n_accepted"] > 0
    assert last["edgespec"] == {"seed": 0, "ignored": []}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert all(event["usage"] is None for event in events[:-1])
    told = [item for event in pieces for item in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert told == whole["choices"][0]["logprobs"]["content"]


def test_without_include_usage_there_is_none(live: Live) -> None:
    events = live.streamed(CHAT, say("x"))
    assert not any("usage" in event for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_text_streams_with_several_choices(live: Live) -> None:
    prompt = "user\nhi<|start|>assistant\n"
    events = live.streamed(TEXT, {"prompt": [prompt, prompt], "n": 2, "echo": True, "logprobs": None})
    assert {event["object"] for event in events} == {"text_completion"}
    for index in range(4):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == f"{prompt}You said: hi"
        assert [choice["finish_reason"] for choice in choices].count("stop") == 1
    assert sum("timings" in event for event in events) == 4


@pytest.mark.parametrize("streamed", [True, False])
def test_the_client_leaves_and_the_answer_ends_within_a_round(streamed: bool) -> None:
    engine = served_engine(LONG)
    gate = Gate(engine.target, n=3)
    with serving(engine) as live:
        link = live.connect()
        link.request(
            "POST",
            CHAT,
            str(say("x", stream=streamed)).replace("'", '"').replace("True", "true").replace("False", "false"),
        )
        live.until(lambda: engine.target.n_evals == 3)
        assert link.sock is not None
        link.sock.shutdown(socket.SHUT_RDWR)
        link.close()
        live.until(lambda: engine.target.aborted)
        gate.open()
        live.until(lambda: live.service.n_playing == 0)
        assert engine.target.n_evals <= 4
        assert live.service.tally.n_answers == {"cancelled": 1}
        assert live.chat()["choices"][0]["message"]["content"] == LONG


def test_who_leaves_the_queue_is_forgotten() -> None:
    engine = served_engine(LONG)
    gate = Gate(engine.target)
    with serving(engine) as live:
        playing = threading.Thread(target=live.chat)
        playing.start()
        live.until(lambda: live.service.n_playing == 1)
        link = live.connect()
        link.request("POST", CHAT, b'{"messages": [{"role": "user", "content": "never"}], "stream": true}')
        live.until(lambda: live.service.n_waiting == 1)
        link.close()
        live.until(lambda: live.service.n_waiting == 0)
        gate.open()
        playing.join()
        assert len(engine.calls) == 1


def test_a_second_request_waits_for_the_first(live: Live) -> None:
    engine = served_engine(lambda prompt: f"{LONG} {last_message(prompt)}")
    gate = Gate(engine.target, n=5)
    with serving(engine) as live, live.open_stream(CHAT, say("A")) as first:
        events = read_events(first)
        next(events)
        second: list[str] = []
        thread = threading.Thread(target=lambda: second.append(live.chat("B")["choices"][0]["message"]["content"]))
        thread.start()
        live.until(lambda: live.service.n_waiting == 1)
        gate.open()
        rest = [event for event in events if event != "[DONE]"]
        assert content(rest) == f"{LONG} A"
        thread.join()
        assert second == [f"{LONG} B"]


def test_an_error_in_the_middle_of_a_stream_is_told_in_it() -> None:
    engine = served_engine(LONG)
    with serving(engine) as live:
        passes = iter(range(100))

        def fail(_: object) -> None:
            if next(passes) == 6:
                raise EvalError("the device is gone")

        engine.target.before_eval = fail
        with live.open_stream(CHAT, say("x")) as response:
            *events, last = read_events(response)
        assert LONG.startswith(content(events))
        assert last == {"error": {"message": "the device is gone", "type": "server_error", "param": None, "code": None}}


def test_answers_beside_one_that_fails_are_told_to_ask_again() -> None:
    engine = served_engine(LONG)
    gate = Gate(engine.target)
    with serving(engine, n_places=2) as live:
        replies: list[Any] = []
        for n in (1, 2):
            thread = threading.Thread(target=lambda: replies.append(live.ask(CHAT, say("x"))))
            thread.start()
            live.until(lambda n=n: live.service.n_playing + live.service.n_waiting == n)  # type: ignore[misc]
        gate.let(1)
        live.until(lambda: live.service.n_playing == 2)

        def fail(_: object) -> None:
            raise EvalError("the device is gone")

        gate.then(fail)
        live.until(lambda: len(replies) == 2)
        assert [reply.status for reply in replies] == [503, 503]
        assert all("ask again" in reply.error["message"] for reply in replies)
        engine.target.before_eval = None
        assert live.chat()["choices"][0]["message"]["content"] == LONG
        thread.join()


def test_no_answer_in_time() -> None:
    engine = served_engine(LONG)
    gate = Gate(engine.target, n=2)
    with serving(engine, patience=Patience(answer_s=0.3)) as live:
        reply = live.ask(CHAT, say("x"))
        assert (reply.status, reply.error["type"]) == (504, "timeout_error")
        gate.open()
        live.until(lambda: live.service.n_playing == 0)


def test_a_long_silence_is_filled_with_comments() -> None:
    engine = served_engine("yes")
    gate = Gate(engine.target)
    with serving(engine, patience=Patience(ping_s=0.02)) as live, live.open_stream(CHAT, say("x")) as response:
        lines = [response.readline() for _ in range(4)]
        assert lines[0].startswith(b"data: ")
        assert b":\n" in lines
        gate.open()
        assert content([event for event in read_events(response) if event != "[DONE]"]) == "yes"


def test_a_client_that_reads_nothing_is_given_up() -> None:
    engine = served_engine("x" * 1500)
    gate = Gate(engine.target)
    with (
        serving(engine, patience=Patience(send_s=0.2), send_buffer=4096) as live,
        socket.create_connection(("127.0.0.1", live.port)) as link,
    ):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps(say("x", stream=True, max_tokens=1500, **{"speculative.n_max": 0})).encode()
        link.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        link.sendall(body)
        live.until(lambda: live.service.n_playing == 1)
        assert len(live.server.server_state.tasks) == 1
        gate.open()
        live.until(lambda: len(live.server.server_state.tasks) == 0)  # which else would wait for ever
        live.until(lambda: live.service.n_playing == 0)


def test_shutting_down_finishes_streams_and_sends_the_queue_away() -> None:
    engine = served_engine(LONG)
    gate = Gate(engine.target, n=4)
    with serving(engine) as live, live.open_stream(CHAT, say("x")) as response:
        events = read_events(response)
        next(events)
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(live.ask(CHAT, say("y")).status))
        thread.start()
        live.until(lambda: live.service.n_waiting == 1)
        late = live.connect()
        late.connect()
        live.server.handle_exit(15, None)
        thread.join()
        assert waiting == [503]
        gate.open()
        rest = list(events)
        assert rest.pop() == "[DONE]"
        assert content(rest) == LONG
        late.close()
