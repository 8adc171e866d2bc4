"""Sampling options from the command line, a saved conversation and Python to the engine; log-probabilities on their way
out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf_maker
import pytest
from test_cli_parts import RESULT

from edgespec.cli import common
from edgespec.cli.render import result_json
from edgespec.config import EngineConfig
from edgespec.conversation import Saved
from edgespec.engine import Engine
from edgespec.errors import ConfigError
from edgespec.interfaces import Chunk, Limits, Sampling, TokenLogprobs
from edgespec.testing import ScriptedDrafter

PROMPT = list(b"abcabcabc the cat sat on the mat, the cat sat on the mat")


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_set_names_any_option() -> None:
    config = common.load_config(["xtc_probability=0.5", "dry_penalty_last_n=-1", "mirostat=2"], temperature="0.9")
    assert (config.xtc_probability, config.dry_penalty_last_n, config.mirostat) == (0.5, -1, 2)
    assert config.temperature == 0.9
    assert common.load_config(None, logprobs="3").logprobs == 3
    assert common.load_config(["logprobs=off"]).logprobs is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("xtc_probability", "--set takes NAME=VALUE, not 'xtc_probability'"),
        ("xtc_probability=2", "--set xtc_probability must be a number from 0 to 1, not '2'"),
        ("xtc_probabilty=0.5", "--set xtc_probabilty is not an option; did you mean xtc_probability"),
        ("temperature=1", "--set temperature says again what another flag says"),
        ("mirostat=3", "--set mirostat must be a whole number from 0 to 2, not '3'"),
        ("logprobs=21", "--set logprobs must be a whole number from 0 to 20, or off, not '21'"),
        ("dry_allowed_length=0", "--set dry_allowed_length must be a whole number of at least 1"),
    ],
)
def test_what_set_refuses(named: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        common.load_config([named], temperature="0.9")
    assert message in str(error.value)


def test_logprobs_need_json() -> None:
    common.check_logprobs("3", json=True)
    common.check_logprobs(None, json=False)
    with pytest.raises(ConfigError, match="with --json only"):
        common.check_logprobs("3", json=False)


def test_logprobs_in_json() -> None:
    assert "logprobs" not in json.loads(result_json(RESULT))
    found = (TokenLogprobs(1, -0.5, ((1, -0.5), (2, float("-inf")))), TokenLogprobs(2, -1.0))
    body = json.loads(result_json(replace(RESULT, logprobs=found)))
    assert body["logprobs"] == [
        {"token": 1, "logprob": -0.5, "top": [[1, -0.5], [2, None]]},
        {"token": 2, "logprob": -1.0, "top": []},
    ]


def saved(**sampling: Any) -> str:
    body = json.loads(Saved().to_json())
    body["sampling"] |= sampling
    return json.dumps(body)


def test_a_saved_conversation_keeps_the_samplers() -> None:
    sampling = Sampling(
        temperature=0.4, mirostat=1, dry_multiplier=0.8, dry_breakers=((1, 2), (3,)), logprobs=2, penalty_last_n=-1,
        attempt=3,
    )  # fmt: skip
    assert Saved.from_json(Saved(sampling=sampling).to_json()).sampling == sampling
    assert Saved.from_json(Saved().to_json()).sampling == Sampling()


@pytest.mark.parametrize(
    "bad", [{"dry_breakers": [1]}, {"dry_breakers": [["x"]]}, {"dry_breakers": 7}, {"logprobs": -1}, {"mirostat": None}]
)
def test_a_bad_saved_option_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Saved.from_json(saved(**bad))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")


SAMPLINGS = (
    Sampling(logprobs=2),
    Sampling(temperature=0.9, xtc_probability=0.5, dynatemp_range=0.3, top_n_sigma=1.5, logprobs=1, seed=4),
    Sampling(temperature=1.0, mirostat=2, mirostat_tau=3.0, logprobs=0, seed=5),
    Sampling(temperature=0.6, dry_multiplier=0.8, dry_penalty_last_n=-1, logprobs=0, seed=6),
)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_drafted_answers_have_plain_log_probabilities(model: Path, sampling: Sampling) -> None:
    """Elsewhere those of accepted drafts were zero (ggml-org/llama.cpp#27972)."""
    limits = Limits(40, fixed_draft=6, ignore_eog=True)
    with Engine.open(model, EngineConfig(n_ctx=256, threads=1)) as engine:
        plain = engine.stream(PROMPT, sampling, limits, drafter="none")
        chunks: list[Chunk] = list(plain)
        answer = plain.result

        def right(context: Sequence[int], limit: int) -> Sequence[int]:
            done = len(context) - len(PROMPT)
            return answer.tokens[done : done + min(limit, 5)]

        stream = engine.stream(PROMPT, sampling, limits, drafter=ScriptedDrafter(right))
        drafted_chunks = list(stream)
        drafted = stream.result
    assert drafted.report.accepted > 0
    for result, parts in ((answer, chunks), (drafted, drafted_chunks)):
        assert tuple(item.token for item in result.logprobs) == result.tokens
        assert tuple(item for chunk in parts for item in chunk.logprobs) == result.logprobs
    assert drafted.tokens == answer.tokens
    # Passes of other widths take other kernels, which round differently.
    for one, other in zip(drafted.logprobs, answer.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-2)
        assert [x for _, x in one.top] == pytest.approx([x for _, x in other.top], abs=1e-2)
        assert len(one.top) == sampling.logprobs


def test_dry_stops_at_line_ends_unless_told_otherwise(model: Path) -> None:
    with Engine.open(model, EngineConfig(n_ctx=256, threads=1, drafter="none")) as engine:
        pieces = {engine.target.piece(token) for breaker in engine._breakers for token in breaker}
        assert pieces
        assert all(set(piece) & set(b'\n:"*') for piece in pieces)
        with pytest.raises(ConfigError, match="dry_breakers names token"):
            engine.stream(PROMPT, Sampling(dry_multiplier=0.8, dry_breakers=((10**6,),)))
    assert asdict(Sampling())["dry_breakers"] is None
