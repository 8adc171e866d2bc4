"""Functions that a model may call: the grammar, what is told to the model, and finding calls in streamed text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import served_engine, serving

from edgespec import tools
from edgespec.core import gbnf
from edgespec.errors import FieldError
from edgespec.fields import Fields
from edgespec.server.errors import from_engine
from edgespec.tools import CallSplitter

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
            "required": ["city"],
            "$defs": {"days": {"type": "integer", "minimum": 1}},
        },
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def parsed(**body: object) -> tools.Tools | None:
    fields = Fields(body)
    found = tools.parse(fields)
    fields.done()
    return found


def ask(**more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "How is the weather?"}], "tools": [WEATHER, CLOCK], **more}


def fold(deltas: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls that a client makes of a stream."""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append((call["function"]["name"], ""))
            name, arguments = calls[call["index"]]
            calls[call["index"]] = (name, arguments + call["function"]["arguments"])
    return "".join(delta.get("content", "") for delta in deltas), calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [("weather", '{"city": "Köln"}')]),
        (f"Let me see.\n{CALL}\n{OTHER}", "Let me see.\n", [("weather", '{"city": "Köln"}'), ("clock", "{}")]),
        ("a < b, <tool> and <tool_cal", "a < b, <tool> and <tool_cal", []),
        ("plain", "plain", []),
        (CALL[:46], "", [("weather", "{")]),
        (CALL[:-13], "", [("weather", '{"city": "Köln"}')]),
        (CALL[:20], "", []),
        (OTHER.replace("{}", '{"a": "}<tool_call>{"}'), "", [("clock", '{"a": "}<tool_call>{"}')]),
    ],
)
def test_calls_are_found_however_the_text_comes(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for n in (1, 2, 3, 7, 1000):
        splitter = CallSplitter()
        deltas = [delta for i in range(0, len(text), n) for delta in splitter.push(text[i : i + n])]
        assert fold(deltas + splitter.finish()) == (content, calls)
        assert splitter.n_calls == len(calls)
        assert splitter.complete == (bool(calls) and text.endswith("</tool_call>"))


@given(st.text(alphabet='<tol_ca>{}\n" ab', max_size=60), st.integers(1, 9))
def test_text_without_a_call_comes_through_as_it_is(text: str, n: int) -> None:
    if "<tool_call>" in text:
        return
    splitter = CallSplitter()
    deltas = [delta for i in range(0, len(text), n) for delta in splitter.push(text[i : i + n])]
    assert fold(deltas + splitter.finish()) == (text, [])


@pytest.mark.parametrize(
    ("choice", "needed", "several", "names"),
    [
        (None, False, True, ["weather", "clock"]),
        ("auto", False, True, ["weather", "clock"]),
        ("required", True, True, ["weather", "clock"]),
        ({"type": "function", "function": {"name": "clock"}}, True, False, ["clock"]),
    ],
)
def test_choices(choice: object, needed: bool, several: bool, names: list[str]) -> None:
    found = parsed(tools=[WEATHER, CLOCK], tool_choice=choice)
    assert found is not None
    assert ([tool.name for tool in found.tools], found.needed, found.several) == (names, needed, several)
    gbnf.check(found.constraint().grammar)


def test_no_tools_no_constraint() -> None:
    assert parsed() is None
    assert parsed(tools=[]) is None
    assert parsed(tools=[WEATHER], tool_choice="none") is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tools": {}}, "a list"),
        ({"tools": [5]}, "an object"),
        ({"tools": [{"type": "retrieval"}]}, '"function"'),
        ({"tools": [{"type": "function"}]}, "missing"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "letters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "schema"),
        ({"tools": [{"type": "function", "function": {"name": "a", "more": 1}}]}, "not a field"),
        ({"tools": [CLOCK, CLOCK]}, "the same name"),
        ({"tools": [CLOCK], "tool_choice": "maybe"}, "tool_choice must be"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "not among"),
        ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools"}}, "tool_choice must be"),
        ({"tool_choice": "required"}, "needs tools"),
    ],
)
def test_bad_tools(body: dict[str, object], words: str) -> None:
    with pytest.raises(FieldError, match=words) as raised:
        parsed(**body)
    assert from_engine(raised.value).status == 400


def test_a_schema_that_cannot_be_guaranteed_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    with serving(served_engine("x")) as live:
        reply = live.ask(CHAT, ask(tools=[tool]))
        assert (reply.status, reply.error["param"]) == (400, "tools")
        reply = live.ask(CHAT, ask(response_format={"type": "json_object"}))
        assert (reply.status, reply.error["param"]) == (400, "tools")


def test_an_answer_with_calls_whole_and_streamed() -> None:
    engine = served_engine(f"Let me see.\n{CALL}\n{OTHER}")
    with serving(engine) as live:
        body = live.ask(CHAT, ask()).json
        (choice,) = body["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["content"] == "Let me see.\n"
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "clock"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}
        assert all(call["id"].startswith("call_") and call["type"] == "function" for call in message["tool_calls"])
        events = live.streamed(CHAT, ask())
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
        expected = [("weather", '{"city": "Köln"}'), ("clock", "{}")]
        assert fold([event["choices"][0]["delta"] for event in events]) == ("Let me see.\n", expected)
        assert live.ask(CHAT, ask(max_tokens=30)).json["choices"][0]["finish_reason"] == "length"
        prompt = engine.decode(engine.calls[0][0]).decode()
        told = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
        assert [json.loads(line)["function"]["name"] for line in told] == ["weather", "clock"]


def test_an_answer_without_calls() -> None:
    with serving(served_engine("It is 5 < 6 o'clock.")) as live:
        (choice,) = live.ask(CHAT, ask()).json["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == "It is 5 < 6 o'clock."
        assert "tool_calls" not in choice["message"]
