"""Rounds of real answers as they are told: they add up to the answer, and a file gives them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gguf_maker
import pytest

from edgespec.bench.trace import Trace, load_traces, n_right, save_traces, trace_run
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.errors import ConfigError
from edgespec.interfaces import Draft, Limits, Sampling

PROMPT = list(b"abcabcabc the cat sat on the mat, the cat sat on the mat")
LIMITS = Limits(max_tokens=60, ignore_eog=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        path = gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")
        with Engine.open(path, EngineConfig(n_ctx=256, threads=1)) as opened:
            yield opened


def traced(engine: Engine, drafter: str, limits: Limits = LIMITS) -> Trace:
    return trace_run(engine, PROMPT, Sampling(), limits, drafter=drafter, question_id="q", group="g", mode=drafter)


def chain(tokens: Sequence[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (3,) * n, (0.5,) * n)


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, fixed_draft=4)])
def test_rounds_add_up_to_the_answer(engine: Engine, limits: Limits) -> None:
    trace = traced(engine, "ngram", limits)
    assert trace.prompt == tuple(PROMPT)
    assert len(trace.answer) == 60
    made = [token for found in trace.rounds for token in found.tokens]
    assert tuple(made) == trace.answer[1:]
    position = len(PROMPT) + 1
    for number, found in enumerate(trace.rounds):
        assert found.position == position
        assert found.n_cached == position - found.n_pending
        position += len(found.tokens)
        assert found.n_rows == 1 + found.n_drafted
        assert found.n_accepted == min(found.n_drafted, trace.n_right(number)) == len(found.tokens) - 1
        assert found.verify_s > 0
    if limits.fixed_draft is not None:
        assert any(found.n_drafted for found in trace.rounds)
    assert {found.drafter for found in trace.rounds} <= {"ngram", None}
    began = [found.began_s for found in trace.rounds]
    assert began == sorted(began)


def test_plain_rounds_have_no_proposal(engine: Engine) -> None:
    trace = traced(engine, "none")
    assert [(r.drafter, r.n_drafted, r.n_rows, r.proposal.tokens) for r in trace.rounds] == [(None, 0, 1, ())] * 59


def test_nothing_is_kept_unasked(engine: Engine) -> None:
    stream = engine.stream(PROMPT, Sampling(), LIMITS)
    for _ in stream:
        assert stream._generation.trace is None


def test_a_file_gives_the_same_traces(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    traces = [traced(engine, "ngram", replace(LIMITS, fixed_draft=4)), traced(engine, "none")]
    two = (("forced", chain([1, 2])), ("other", chain([])))
    traces.append(replace(traces[0], rounds=tuple(replace(found, others=two) for found in traces[0].rounds)))
    save_traces(traces, path)
    assert load_traces(path) == tuple(traces)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "question_id": "q", "group": "g", "mode": "m", "prompt": [1], "answer": [1.5], "rounds": []}',
        '{"schema": 1, "question_id": "q", "group": "g", "mode": "m", "prompt": [1], "answer": [1], "rounds": [{}]}',
        '{"schema": 1, "question_id": "q", "group": "g", "mode": "m", "prompt": [1], "answer": [1], '
        '"rounds": [{"position": 1, "tokens": [1], "unknown": 3}]}',
    ],
)
def test_a_line_that_is_no_trace_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match="line 2: no trace"):
        load_traces(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the traces"):
        load_traces(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match="cannot write"):
        save_traces([], tmp_path / "no" / "traces.jsonl")


def test_how_far_a_proposal_is_right() -> None:
    assert n_right(chain([1, 2, 3]), [1, 2, 4]) == 2
    assert n_right(chain([1, 2]), [1, 2, 3]) == 2
    assert n_right(chain([5]), [1]) == 0
    assert n_right(chain([]), [1]) == 0
