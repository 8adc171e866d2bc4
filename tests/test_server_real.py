"""The server with the default model and OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra [server] is not installed")
from server_fakes import Live, serving

from edgespec.config import EngineConfig
from edgespec.engine import Engine

openai = pytest.importorskip("openai", reason="openai is not installed")
pytestmark = pytest.mark.model

COPY = "Repeat this word by word: the quick brown fox jumps over the lazy dog, the quick brown fox jumps over the dog."
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
        },
    },
}


@pytest.fixture(scope="module")
def live(default_model: Path) -> Iterator[Live]:
    config = EngineConfig(n_ctx=2048, threads=1, threads_batch=1, temperature=0.0)
    with Engine.open(default_model, config, n_sessions=2) as engine, serving(engine, n_places=2) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_chat_streamed_or_not_drafted_or_not_is_the_same_text(client: Any) -> None:
    options: Any = {"model": "fake", "messages": say(COPY), "max_tokens": 40, "seed": 3}
    whole = client.chat.completions.create(**options)
    plain = client.chat.completions.create(**options, extra_body={"speculative.n_max": 0})
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = whole.choices[0].message.content
    assert text
    assert plain.choices[0].message.content == text
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert plain.timings["draft_n"] == 0
    assert whole.timings["report"]["verify_s"] > 0


def test_log_probabilities(client: Any) -> None:
    found = client.chat.completions.create(
        model="fake", messages=say("Name a colour."), max_tokens=5, logprobs=True, top_logprobs=3
    )
    content = found.choices[0].logprobs.content
    assert len(content) == found.usage.completion_tokens
    for item in content:
        assert item.logprob == pytest.approx(item.top_logprobs[0].logprob)


def test_a_json_schema_is_kept(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "year": {"type": "integer"}},
        "required": ["name", "year"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    found = client.chat.completions.create(
        model="fake", messages=say("Ada was born in 1815."), response_format=form, max_tokens=60
    )
    assert set(json.loads(found.choices[0].message.content)) == {"name", "year"}


def test_a_function_is_called_with_valid_arguments(client: Any) -> None:
    options: Any = {"model": "fake", "messages": say("How is the weather in Paris?"), "tools": [TOOL], "max_tokens": 80}
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    found = client.chat.completions.create(**options, tool_choice=choice).choices[0]
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert arguments["unit"] in {"C", "F"}
    assert isinstance(arguments["city"], str)
    free = client.chat.completions.create(**options, tool_choice="auto").choices[0]
    if free.message.tool_calls:
        json.loads(free.message.tool_calls[0].function.arguments)
    else:
        assert free.message.content


def test_text_completions_and_two_choices_at_a_temperature(client: Any) -> None:
    options: Any = {"model": "fake", "prompt": "The sea is", "max_tokens": 12, "temperature": 0.9, "seed": 4, "n": 2}
    first, again = client.completions.create(**options), client.completions.create(**options)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert texts[0] != texts[1]


def test_models_and_errors_as_the_client_knows_them(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.chat.completions.create(model="gpt-4o", messages=say("x"))
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="fake", messages=say("word " * 3000))
    assert raised.value.code == "context_length_exceeded"
