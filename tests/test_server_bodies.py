"""Hundreds of malformed requests: always a 4xx in OpenAI's form, never a 500, and the server goes on (C62)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from server_fakes import Live, served_engine, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
KNOWN = (
    "model", "messages", "prompt", "n", "best_of", "seed", "stop", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "n_predict", "temperature", "top_p", "top_k", "min_p", "mirostat", "repeat_penalty",
    "penalty_last_n", "repeat_last_n", "logprobs", "top_logprobs", "logit_bias", "response_format", "json_schema",
    "grammar", "regex", "tools", "tool_choice", "parallel_tool_calls", "speculative", "speculative.n_max",
    "speculative.type", "echo", "ignore_eos", "modalities", "user", "metadata",
)  # fmt: skip


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(served_engine("yes")) as live:
        yield live


@pytest.fixture(scope="module")
def link(live: Live) -> Iterator[http.client.HTTPConnection]:
    connection = live.connect()
    yield connection
    connection.close()


def refused(live: Live, path: str, body: bytes, link: http.client.HTTPConnection | None = None) -> str:
    reply = live.ask(path, body, connection=link)
    assert 400 <= reply.status < 500, (reply.status, reply.data[:300], body[:300])
    message = reply.error["message"]
    assert isinstance(message, str)
    return message


NAMES = st.text(max_size=8) | st.sampled_from(KNOWN)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SEVERAL = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff\xfe{\x00}\x00")
@example(b'{"messages": [{"role": "user", "content": "\xe6\x97"}]}')
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'{"seed": ' + b"9" * 5000 + b"}")
@example(b'{"temperature": NaN}')
@example(b'{"user": "\\ud800"}')
@SEVERAL
def test_bytes_that_are_no_request(live: Live, link: http.client.HTTPConnection, data: bytes) -> None:
    refused(live, CHAT, data, link)


@given(st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize"]), JSON)
@SEVERAL
def test_json_that_is_no_request(live: Live, link: http.client.HTTPConnection, path: str, body: object) -> None:
    refused(live, path, json.dumps(body).encode(), link)


@given(st.sampled_from([name for name in KNOWN if name != "prompt"]), JSON)
@settings(SEVERAL, max_examples=400)
def test_one_field_may_hold_anything(live: Live, link: http.client.HTTPConnection, name: str, value: object) -> None:
    """What such a request means may be right after all; then it is answered."""
    reply = live.ask(CHAT, json.dumps({**GOOD, "max_tokens": 2, name: value}).encode(), connection=link)
    assert reply.status == 200 or (400 <= reply.status < 500 and reply.error), (reply.status, reply.data[:300])


@given(JSON, JSON)
@SEVERAL
def test_tools_and_schemas_may_hold_anything(
    live: Live, link: http.client.HTTPConnection, value: object, other: object
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": value}}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": other}}
    for more in ({"tools": [tool]}, {"response_format": form}, {"json_schema": value}):
        reply = live.ask(CHAT, json.dumps({**GOOD, "max_tokens": 2, **more}).encode(), connection=link)
        assert reply.status == 200 or (400 <= reply.status < 500 and reply.error), (reply.status, reply.data[:300])


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"messages": {}},
        {"messages": [[]]},
        {"messages": ["x"] * 10_001},
        {**GOOD, "seed": 10**400},
        {**GOOD, "temperature": 10**400},
        {**GOOD, "n_predict": -5},
        {**GOOD, "stop": ["x" * 100_000]},
        {**GOOD, "stop": ["x"] * 1000},
        {**GOOD, "x" * 100_000: 1},
        {**GOOD, "model": "y" * 1_000_000},
        {**GOOD, "logit_bias": {"1" * 5000: 1}},
        {**GOOD, "logit_bias": {"٣": 1}},
        {**GOOD, "tools": [{"type": "function", "function": {"name": "f" * 65}}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
    ],
)
def test_huge_and_odd_values(live: Live, body: object) -> None:
    message = refused(live, CHAT, json.dumps(body).encode())
    assert len(message) < 300
    assert live.ask("/health").status == 200


def test_a_schema_nested_beyond_all_measure(live: Live) -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for more in ({"tools": [tool]}, {"json_schema": schema}):
        refused(live, CHAT, json.dumps({**GOOD, **more}).encode())
