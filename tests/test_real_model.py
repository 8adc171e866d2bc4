"""The default model: the same text drafted or not, at any temperature, and the KV cache reused across turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edgespec.chat import Chat
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Message, Result, Sampling
from edgespec.testing import ScriptedDrafter

pytestmark = pytest.mark.model

QUESTIONS = (
    "Repeat this twice: the quick brown fox jumps over the lazy dog near the old river bank.",
    "Count from one to twenty in words.",
    "Write a short list of fruits, each with its colour.",
)


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[Engine]:
    with Engine.open(default_model, EngineConfig(n_ctx=1024, threads=2, threads_batch=2)) as opened:
        yield opened


def answer(engine: Engine, question: str, sampling: Sampling, drafter: str | ScriptedDrafter, fixed: bool) -> Result:
    prompt = engine.prompt(engine.render([Message("user", question)]))
    # Up to 256 cached tokens llama.cpp's rows do not depend on the width of the pass; beyond, `bench` lists ties.
    assert len(prompt) < 180
    stream = engine.stream(prompt, sampling, Limits(60, fixed_draft=7 if fixed else None), drafter=drafter)
    for _ in stream:
        pass
    return stream.result


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5), Sampling(0.8, 40, 0.95, seed=6)])
def test_same_seed_same_text(engine: Engine, question: str, sampling: Sampling) -> None:
    plain = answer(engine, question, sampling, "none", fixed=False)
    n_prompt = plain.usage.prompt_tokens

    def often_right(context: Sequence[int], limit: int) -> Sequence[int]:
        done = len(context) - n_prompt
        guess = list(plain.tokens[done : done + limit])
        if done % 3 == 0 and len(guess) > 2:
            guess[2] = 17
        return guess

    for drafter, fixed in (("auto", False), ("ngram", True), (ScriptedDrafter(often_right), True)):
        drafted = answer(engine, question, sampling, drafter, fixed)
        assert drafted.tokens == plain.tokens
        assert drafted.text == plain.text
        assert drafted.finish_reason == plain.finish_reason
    assert drafted.report.accepted >= min(10, len(plain.tokens) // 2)


def logprobs(engine: Engine, prompt: Sequence[int], n_draft: int | None) -> Result:
    limits = Limits(48, fixed_draft=n_draft)
    stream = engine.stream(prompt, Sampling(0.8, seed=5, logprobs=3), limits, drafter="ngram" if n_draft else "none")
    for _ in stream:
        pass
    return stream.result


def test_logprobs_are_the_same_drafted_or_not(engine: Engine) -> None:
    prompt = engine.prompt(engine.render([Message("user", QUESTIONS[0])]))
    plain, drafted = logprobs(engine, prompt, None), logprobs(engine, prompt, 7)
    assert len(plain.logprobs) == len(plain.tokens) > 20
    assert drafted.logprobs == plain.logprobs
    assert drafted.report.drafted > 7


def test_logprobs_of_a_long_text_move_no_further_than_logits_do(engine: Engine) -> None:
    """Beyond 256 cached tokens rows depend on the width by up to 1.5 logits; a log-probability by twice as much."""
    prompt = engine.prompt(engine.render([Message("user", " ".join(QUESTIONS * 9))]))
    assert len(prompt) > 300
    plain, drafted = logprobs(engine, prompt, None), logprobs(engine, prompt, 7)
    assert drafted.report.drafted > 7
    same = 0
    for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=False):
        if ours.token != theirs.token:
            break
        assert abs(ours.logprob - theirs.logprob) <= 3.0
        same += 1
    assert same > 8


def test_turn_two_reuses_the_cache(engine: Engine) -> None:
    chat = Chat(engine, sampling=Sampling(), limits=Limits(24))
    for _ in chat.ask("Name a river."):
        pass
    assert chat.last is not None
    first = chat.last.usage
    for _ in chat.ask("Name another one."):
        pass
    assert chat.last.usage.cached_tokens >= first.prompt_tokens + first.completion_tokens - 1
