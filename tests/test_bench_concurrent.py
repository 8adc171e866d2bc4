"""Several answers at once: who shares passes, what is counted and when, what fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf_maker
import pytest
from harness import piece
from hypothesis import given
from hypothesis import strategies as st

from edgespec.answer import Stream
from edgespec.bench.concurrent import Concurrent, cells, measure, slowest_over_mean, table, to_json, waves_of
from edgespec.bench.modes import Mode, parse_modes
from edgespec.bench.runner import Plan
from edgespec.bench.workloads import Question
from edgespec.config import EngineConfig
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft import NAMES
from edgespec.engine import Engine
from edgespec.errors import EvalError
from edgespec.interfaces import Capabilities, Chunk, Drafter, Limits, Message, Result, Rows, Sampling
from edgespec.interfaces import Plan as Batch
from edgespec.testing import FakeClock, FakeTarget, ScriptedDrafter

QUESTIONS = tuple(Question(f"q{i}", f"g{i // 2}", "abc" * (1 + i)) for i in range(6))
SCRIPT = [1 + i % 30 for i in range(400)]


class Counting(FakeTarget):
    """Writes the same text after any prompt; a pass takes 10 ms and 1 ms a token."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(
            64, 400, n_batch=64, n_rows_max=64, capabilities=Capabilities(4), clock=clock, script=SCRIPT,
            cost_s=lambda width, n_ctx: 0.010 + 0.001 * width,
        )  # fmt: skip
        self.together: list[int] = []
        self.fail_at = 0

    def eval(self, plans: Sequence[Batch]) -> list[Rows]:
        self.together.append(len(plans))
        if len(self.together) == self.fail_at:
            raise EvalError("refused")
        return super().eval(plans)


@dataclass
class Several:
    """As much of an engine as waves need."""

    clock: FakeClock = field(default_factory=FakeClock)
    free: list[int] = field(default_factory=lambda: [0, 1, 2, 3])
    fail_on: str = ""

    def __post_init__(self) -> None:
        self.target = Counting(self.clock)

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        return [1] * len(text)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return messages[-1].content

    def session(self) -> Session:
        raise NotImplementedError  # waves ask for no session: a call would fail the test

    def release(self, session: Session) -> None:
        raise NotImplementedError  # nor give one back

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
        session: Session | None = None,
    ) -> Stream:
        if drafter == self.fail_on:
            raise ValueError(f"no {drafter}")

        def right(context: Sequence[int], limit: int) -> Sequence[int]:
            return SCRIPT[len(context) : len(context) + min(3, limit)]

        session = Session(self.target, self.free.pop())
        desk = Drafting(ScriptedDrafter(right), self.target.n_vocab) if drafter != "none" else None
        assert limits is not None
        return Stream(self, Generation(session, prompt, Sampling(), limits, piece, self.clock, desk), True)

    def advance(self, *generations: Generation) -> list[Chunk]:
        return play_round(generations, self.target, self.clock)

    def finish(self, generation: Generation, owned: bool) -> Result:
        self.free.append(generation.session.seq_id)
        self.target.clear(generation.session.seq_id)
        return generation.result()


def run(engine: Several, sessions: int = 3, modes: str = "auto", rounds: int = 1) -> Concurrent:
    plan = Plan(QUESTIONS, parse_modes(modes, NAMES), Sampling(), rounds=rounds, max_tokens=21, ignore_eog=True)
    return measure(plan, engine, Concurrent(sessions), clock=engine.clock)


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_question_takes_part_and_waves_are_full(n: int, sessions: int) -> None:
    questions = [Question(f"q{i}", "g", "x") for i in range(n)]
    waves = waves_of(questions, sessions)
    assert {len(wave) for wave in waves} == {sessions}
    assert {question for wave in waves for question in wave} == set(questions)
    assert len(waves) == -(-n // sessions)


def test_a_wave_mixes_groups() -> None:
    assert [[q.question_id for q in wave] for wave in waves_of(QUESTIONS, 3)] == [
        ["q0", "q2", "q4"],
        ["q1", "q3", "q5"],
    ]


def test_the_answers_of_a_wave_share_their_passes_and_are_counted_together() -> None:
    engine = Several()
    found = run(engine)
    assert [wave.run.mode for wave in found.waves] == ["plain", "auto", "auto", "plain"]
    assert max(engine.target.together) == 3
    plain, auto = (cells(found)[mode] for mode in ("plain", "auto"))
    assert plain.tokens == auto.tokens == 2 * 3 * 21
    # Three answers of 20 tokens in passes of three rows; drafted in five passes of three times four rows.
    assert plain.tok_s == pytest.approx(3 / 0.013)
    assert auto.tok_s == pytest.approx(3 * 4 / 0.022)
    assert auto.ratio.value == pytest.approx((12 / 0.022) / (3 / 0.013))
    assert slowest_over_mean(found, "plain") == pytest.approx(1.0)
    assert found.waves[0].speeds == pytest.approx((1 / 0.013,) * 3)
    assert sorted(engine.free) == [0, 1, 2, 3]
    assert engine.clock.now_s > 0


def test_what_it_tells() -> None:
    found = run(Several(), rounds=2)
    told = table(found)
    assert told.splitlines()[0] == "3 answers at once"
    assert "100%" in told
    assert max(map(len, told.splitlines())) <= 80
    data = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert (data["sessions"], data["partial"], data["modes"]["auto"]["waves"]) == (3, False, 4)
    assert data["modes"]["auto"]["drafted_per_round"] == pytest.approx(3.0)
    assert data["modes"]["auto"]["ratio_low"] == pytest.approx(data["modes"]["auto"]["ratio"])
    assert data["modes"]["plain"]["e2e_tok_s"] < data["modes"]["plain"]["tok_s"]


def test_a_mode_that_fails_is_recorded_and_frees_its_sessions() -> None:
    engine = Several(fail_on="auto")
    found = run(engine)
    assert [wave.run.error for wave in found.waves if wave.run.mode == "auto"] == ["ValueError: no auto"] * 2
    assert cells(found)["plain"].failed == 0
    assert "FAILED auto on q0 q2 q4: ValueError: no auto" in table(found)
    assert to_json(found)["failures"][0]["mode"] == "auto"  # type: ignore[index]
    assert sorted(engine.free) == [0, 1, 2, 3]


def test_a_pass_that_fails_ends_the_wave_only() -> None:
    engine = Several()
    engine.target.fail_at = 30  # in the first wave, after those of the warm-up
    found = run(engine)
    assert [wave.run.error for wave in found.waves] == ["EvalError: refused", None, None, None]
    assert sorted(engine.free) == [0, 1, 2, 3]
    assert cells(found)["auto"].pairs == 1


def test_ctrl_c_keeps_what_there_is() -> None:
    engine = Several()
    plan = Plan(QUESTIONS, parse_modes("auto", NAMES), Sampling(), max_tokens=21, ignore_eog=True)

    def stop(done: int, n_all: int, _: object) -> None:
        assert n_all == 4
        if done == 3:
            raise KeyboardInterrupt

    found = measure(plan, engine, Concurrent(3), stop, clock=engine.clock)
    assert (found.partial, len(found.waves)) == (True, 3)
    assert "PARTIAL" in table(found)


def test_modes_that_need_the_text_and_the_second_plain_arm_are_left_out() -> None:
    found = run(Several(), modes="auto,oracle")
    assert {wave.run.mode for wave in found.waves} == {"plain", "auto"}


def test_on_a_real_model(tmp_path: Path) -> None:
    path = gguf_maker.make(tmp_path / "tiny.gguf")
    plan = Plan(
        QUESTIONS[:2], (Mode("plain", "none"), Mode("ngram", "ngram")), Sampling(), max_tokens=12, ignore_eog=True
    )
    with Engine.open(path, EngineConfig(n_ctx=1024, threads=1), n_sessions=2) as engine:
        found = measure(plan, engine, Concurrent(2))
    assert [wave.run.error for wave in found.waves] == [None, None]
    assert {wave.run.tokens for wave in found.waves} == {24}
    assert all(0 < (slowest_over_mean(found, mode) or 0) <= 1 for mode in ("plain", "ngram"))
