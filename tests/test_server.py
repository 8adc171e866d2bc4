"""The server's answers: OpenAI's form, what requests may say, one engine for all (C56, C57, C62, C63, C65)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from server_fakes import Gate, Live, last_message, served_engine, serving

from edgespec.constraint import Constraint
from edgespec.errors import EvalError
from edgespec.interfaces import Sampling

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second", "draft_n", "draft_n_accepted", "report",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Any:
    return served_engine(lambda prompt: f"You said: {last_message(prompt)}")


@pytest.fixture(scope="module")
def live(engine: Any) -> Iterator[Live]:
    with serving(engine) as live:
        yield live


def say(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_chat_completion(live: Live) -> None:
    body = live.chat("hello", model="alias")
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "You said: hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == len("You said: hello") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert set(body["timings"]) == TIMINGS
    assert body["timings"]["predicted_n"] == usage["completion_tokens"]


def test_text_completion_of_texts_and_tokens_with_echo(live: Live) -> None:
    prompt = "user\nhi<|start|>assistant\n"
    body = live.ask(TEXT, {"prompt": prompt, "echo": True, "n": 2}).json
    assert [choice["text"] for choice in body["choices"]] == [f"{prompt}You said: hi"] * 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["object"] == "text_completion"
    ids = live.ask("/tokenize", {"content": prompt}).json["tokens"]
    several = live.ask(TEXT, {"prompt": [ids, ids], "max_tokens": 3}).json
    assert [(c["text"], c["finish_reason"]) for c in several["choices"]] == [("You", "length")] * 2
    assert several["usage"]["prompt_tokens"] == 2 * len(ids)
    assert several["usage"]["completion_tokens"] == 6


def test_options_reach_the_engine(live: Live, engine: Any) -> None:
    options = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "repeat_last_n": -1, "presence_penalty": -0.5,
        "mirostat": 2, "xtc_probability": 0.25, "seed": -5, "logit_bias": {"65": -100, "66": 2}, "logprobs": True,
        "top_logprobs": 2, "max_completion_tokens": 9, "stop": ["##", "end"], "ignore_eos": True,
        "speculative.n_max": 3, "speculative.type": "ngram", "n": 2,
    }  # fmt: skip
    body = live.chat("x", **options)
    (_, first, limits, drafter), (_, second, _, _) = engine.calls[-2:]
    assert first == Sampling(
        temperature=0.5, top_k=7, top_p=0.5, min_p=0.1, penalty_last_n=-1, presence_penalty=-0.5, mirostat=2,
        xtc_probability=0.25, seed=-5, logit_bias={65: -100.0, 66: 2.0}, logprobs=2,
    )  # fmt: skip
    assert second.attempt == 1
    assert (limits.max_tokens, limits.stop, limits.max_draft, limits.ignore_eog) == (9, ("##", "end"), 3, True)
    assert drafter == "ngram"
    assert body["edgespec"]["seed"] == -5
    live.chat("x", speculative={"n_max": 100, "type": "none"})
    _, plain, limits, drafter = engine.calls[-1]
    assert (limits.max_draft, drafter, plain.seed, plain.logprobs) == (engine.config.max_draft, "none", 0, None)
    assert limits.max_tokens == 1024


def test_without_a_seed_each_request_gets_one_and_tells_it() -> None:
    with serving(served_engine("x"), seed=None) as live:
        seeds = {live.chat()["edgespec"]["seed"] for _ in range(3)}
        assert len(seeds) == 3
        assert live.ask("/props").json["default_generation_settings"]["seed"] is None


def test_drafts_are_told_and_can_be_switched_off(live: Live) -> None:
    text = "the same words again and the same words again and the same words again"
    on, off = live.chat(text)["timings"], live.chat(text, **{"speculative.n_max": 0})["timings"]
    assert on["draft_n"] >= on["draft_n_accepted"] > 10
    assert on["report"]["drafter"] == "ngram"
    assert (off["draft_n"], off["draft_n_accepted"]) == (0, 0)
    assert off["report"]["drafter"] == "none"
    assert off["report"]["drafter_off_reason"]


def test_stop_text_and_length_cut_everything_at_the_same_token(live: Live) -> None:
    body = live.chat("a##b###c", stop="###", logprobs=True, top_logprobs=1)
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "You said: a##b"
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == body["usage"]["completion_tokens"]
    cut = live.chat("abc", max_tokens=4, logprobs=True)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert [item["token"] for item in cut["choices"][0]["logprobs"]["content"]] == list("You ")
    assert cut["choices"][0]["logprobs"]["content"][0]["bytes"] == [ord("Y")]


def test_logprobs_of_text_completions(live: Live) -> None:
    prompt = "user\nhié<|start|>assistant\n"
    (choice,) = live.ask(TEXT, {"prompt": prompt, "logprobs": 1}).json["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"][:9]) == "You said:"
    assert found["text_offset"][:4] == [0, 1, 2, 3]
    assert found["text_offset"][-1] == len("You said: hié")
    assert all(value <= 0 for value in found["token_logprobs"])
    assert [list(top) for top in found["top_logprobs"]][:3] == [["Y"], ["o"], ["u"]]


def test_messages_of_all_kinds_reach_the_template(live: Live, engine: Any) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None, "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "tool", "tool_call_id": "2", "content": "8"},
    ]
    assert live.ask(CHAT, {"messages": messages}).status == 200
    prompt = engine.decode(engine.calls[-1][0]).decode()
    assert "system\nbe brief" in prompt
    assert "user\none two" in prompt
    assert 'assistant\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in prompt
    assert "user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>" in prompt


def test_reasoning_is_told_from_the_answer() -> None:
    engine = served_engine(lambda prompt: "<think>\nhm</think>\n\nyes <think>" if "ask" in prompt else "no <think>x")
    with serving(engine) as live:
        message = live.chat("ask")["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("\nhm", "yes <think>")
        events = live.streamed(CHAT, say("ask"))
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "\nhm"
        assert "".join(delta.get("content", "") for delta in deltas) == "yes <think>"
        assert live.chat("else")["choices"][0]["message"]["content"] == "no <think>x"
    with serving(served_engine("<think>hm</think>yes", think="show")) as live:
        assert live.chat()["choices"][0]["message"]["content"] == "<think>hm</think>yes"


@pytest.mark.parametrize("option", ["response_format", "json_schema", "grammar", "regex"])
def test_forms_of_answers(live: Live, engine: Any, option: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    forms: dict[str, object] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        "json_schema": schema,
        "grammar": 'root ::= "yes" | "no"',
        "regex": "(yes|no)",
    }
    live.chat("x", **{option: forms[option]})
    found = engine.constraints[-1]
    assert found is not None
    expected = {"grammar": Constraint('root ::= "yes" | "no"'), "regex": Constraint.regex("(yes|no)")}
    assert found == expected.get(option, Constraint.json_schema(schema))
    reply = live.ask(CHAT, say("x", **{option: forms[option]}, **{"grammar" if option != "grammar" else "regex": "a"}))
    assert reply.status == 400
    assert "one of" in reply.error["message"]


def test_json_object_and_plain_text(live: Live, engine: Any) -> None:
    live.chat("x", response_format={"type": "json_object"})
    assert engine.constraints[-1] is not None
    live.chat("x", response_format={"type": "text"})
    assert engine.constraints[-1] is None


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"temperature": "x"}, "temperature", "a number"),
        ({"temperature": 9}, "temperature", "from 0 to 5"),
        ({"temperature": True}, "temperature", "a number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"max_tokens": -5}, "max_tokens", "from 1"),
        ({"n": 17}, "n", "from 1 to 16"),
        ({"stop": [""]}, "stop", "1 to 1000"),
        ({"stop": 5}, "stop", "a text"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"5": "much"}}, "logit_bias", "token id"),
        ({"logit_bias": {"999": 1}}, None, "vocabulary has 259"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"speculative.type": "magic"}, "speculative.type", "ngram"),
        ({"speculative.n_max": -1}, "speculative.n_max", "whole number"),
        ({"speculative": {"n_min": 1}}, "speculative.n_min", "not a field"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not a field"),
        ({"functions": []}, "functions", "not a field"),
        ({"modalities": ["text", "audio"]}, "modalities", "text"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, "response_format",
         "type must be"),
        ({"regex": "("}, "regex", "regular expression"),
        ({"grammar": "root ="}, "grammar", "grammar"),
        ({"messages": []}, "messages", "one message"),
        ({"messages": None}, "messages", "one message"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "a text"),
        ({"messages": [{"role": "god", "content": "x"}]}, "messages.0.role", "must be system"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "messages.0.name", "not a field"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content",
         "pictures"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(live: Live, more: dict[str, object], param: str | None, words: str) -> None:
    reply = live.ask(CHAT, {**say("x"), **more})
    assert reply.status == 400, reply.data
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param
    assert words in reply.error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "prompt must be"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": []}, "no tokens"),
        ({"prompt": [1, "a"]}, "token ids from 0 to 258"),
        ({"prompt": [[1], [999]]}, "token ids from 0 to 258"),
        ({"prompt": ["a"] * 17}, "at most 16"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "leave out echo"),
        ({"prompt": "a", "best_of": 2}, "best_of must be n"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not a field"),
    ],
)
def test_bad_text_completions(live: Live, body: dict[str, object], words: str) -> None:
    reply = live.ask(TEXT, body)
    assert reply.status == 400
    assert words in reply.error["message"]


def test_harmless_fields_are_named_in_the_answer(live: Live) -> None:
    assert live.chat("x", user="me", store=False, metadata={"a": "b"})["edgespec"]["ignored"] == [
        "user", "metadata", "store",
    ]  # fmt: skip


def test_a_prompt_that_does_not_fit() -> None:
    with serving(served_engine("x", n_ctx=64)) as live:
        reply = live.ask(CHAT, say("x" * 100))
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert live.chat("y")["choices"][0]["message"]["content"] == "x"


def test_unknown_models_and_addresses(live: Live) -> None:
    reply = live.ask(CHAT, say("x", model="gpt-4o"))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert live.ask("/v1/models/other").status == 404
    assert live.ask("/nowhere").error["type"] == "not_found_error"
    assert live.ask("/v1/embeddings", {"input": "x"}).status == 501
    assert live.ask("/v1/audio/speech", {}).error["type"] == "not_supported_error"
    assert live.ask(CHAT).status == 405
    assert live.ask("/v1/models", {}).error["message"].startswith("POST is not")


def test_a_failing_pass_is_told_and_the_next_request_is_served() -> None:
    engine = served_engine("a long answer")
    with serving(engine) as live:
        broken = iter([False, False, True])

        def fail(_: object) -> None:
            if next(broken, False):
                raise EvalError("the device is gone")

        engine.target.before_eval = fail
        reply = live.ask(CHAT, say("x"))
        assert (reply.status, reply.error["message"]) == (500, "the device is gone")
        assert live.chat("y")["choices"][0]["message"]["content"] == "a long answer"


def test_a_bug_of_the_engine_costs_one_answer_and_its_cache() -> None:
    engine = served_engine("a long answer")
    with serving(engine) as live:
        passes = iter(range(100))

        def fail(_: object) -> None:
            if next(passes) == 5:
                raise IndexError("my secret")

        engine.target.before_eval = fail
        reply = live.ask(CHAT, say("x"))
        assert (reply.status, reply.error["message"]) == (500, "internal error (IndexError)")
        assert live.chat("x")["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_conversation_goes_on_in_the_cache(live: Live) -> None:
    first = live.chat("a question of some length")
    answer = first["choices"][0]["message"]
    messages = [{"role": "user", "content": "a question of some length"}, answer, {"role": "user", "content": "more"}]
    second = live.ask(CHAT, {"messages": messages}).json
    known = first["usage"]["total_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= known - 2


@pytest.mark.parametrize("n_places", [1, 3])
def test_many_at_once_get_the_answers_they_would_get_alone(n_places: int) -> None:
    engine = served_engine(lambda prompt: f"You said: {last_message(prompt)}")
    with serving(engine, n_places=n_places, n_queue=64) as live:
        found: dict[str, str] = {}

        def ask(text: str) -> None:
            found[text] = live.chat(text)["choices"][0]["message"]["content"]

        threads = [threading.Thread(target=ask, args=(f"{'ab' * i} {i}",)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {text: f"You said: {text}" for text in (f"{'ab' * i} {i}" for i in range(20))}
        assert engine.n_sessions <= n_places
    assert engine.n_released == engine.n_sessions


def test_conversations_keep_their_places_in_the_cache() -> None:
    engine = served_engine("yes")
    with serving(engine, n_places=2) as live:
        gate = Gate(engine.target)
        texts = ("alpha alpha alpha", "omega omega omega")
        threads = [threading.Thread(target=live.chat, args=(text,)) for text in texts]
        threads[0].start()
        live.until(lambda: live.service.n_playing == 1)
        threads[1].start()
        live.until(lambda: live.service.n_waiting == 1)
        gate.open()
        for thread in threads:
            thread.join()
        for text in (texts[0], texts[1], texts[0]):
            assert live.chat(text)["usage"]["prompt_tokens_details"]["cached_tokens"] > len(text)


def test_a_full_queue_says_when_to_come_again() -> None:
    engine = served_engine("answer")
    gate = Gate(engine.target)
    with serving(engine, n_queue=1) as live:
        threads = [threading.Thread(target=live.chat) for _ in range(2)]
        for thread in threads:
            thread.start()
        live.until(lambda: (live.service.n_playing, live.service.n_waiting) == (1, 1))
        reply = live.ask(CHAT, say("x"))
        assert reply.status == 503
        assert reply.error["type"] == "unavailable_error"
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert live.ask("/health").status == 200
        gate.open()
        for thread in threads:
            thread.join()
        assert live.chat()["choices"][0]["message"]["content"] == "answer"
        assert live.service.tally.n_refused == 1


def test_models_props_health_tokens(live: Live) -> None:
    (model,) = live.ask("/v1/models").json["data"]
    assert (model["id"], model["object"], model["created"]) == ("fake", "model", 1)
    assert model["meta"] == {"n_ctx": 4096, "n_vocab": 259}
    assert model["speculative"]["type"] == "auto"
    assert live.ask("/v1/models/alias").json["id"] == "fake"
    props = live.ask("/props").json
    assert props["default_generation_settings"]["temperature"] == 0.0
    assert (props["total_slots"], props["n_ctx"], props["heat"]["temp_c"]) == (1, 4096, 51.5)
    assert live.ask("/health").json == {"status": "ok"}
    ids = live.ask("/tokenize", {"content": "abcé"}).json["tokens"]
    assert ids == [258, ord("c"), 0xC3, 0xA9]
    assert live.ask("/detokenize", {"tokens": ids}).json == {"content": "abcé"}
    pieces = live.ask("/tokenize", {"content": "abé", "with_pieces": True, "add_special": True}).json["tokens"]
    assert pieces == [{"id": 258, "piece": "ab"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]
    assert live.ask("/detokenize", {"tokens": [1, 999]}).status == 400
    assert live.ask("/detokenize", {}).error["param"] == "tokens"
    assert live.ask("/tokenize", {"content": "a", "odd": 1}).error["param"] == "odd"


def test_why_drafting_is_off_is_told_before_any_answer() -> None:
    with serving(served_engine("x", drafter="none")) as live:
        found = live.ask("/v1/models").json["data"][0]["speculative"]
        assert (found["type"], found["off_reason"]) == ("none", "drafting was not asked for")
        live.chat()
        found = live.ask("/v1/models").json["data"][0]["speculative"]
        assert found["last"]["drafter"] == "none"
