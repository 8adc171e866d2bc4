"""A long run: turns, blocks, what is unknown, what fails, what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench_fakes import FakeEngine, run_of
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bench.modes import parse_modes
from edgespec.bench.runner import Plan
from edgespec.bench.sustain import Sample, Sustained, blocks, kept, modes_of, overall, sustain, table, to_json
from edgespec.bench.workloads import Question
from edgespec.conditions import Conditions
from edgespec.draft import NAMES
from edgespec.interfaces import Limits, Sampling

QUESTIONS = tuple(Question(f"q{i}", "chat", "why?") for i in range(3))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting before each of thousands of answers is all that takes time here."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def plan(modes: str = "auto", questions: tuple[Question, ...] = QUESTIONS) -> Plan:
    return Plan(questions, parse_modes(modes, NAMES), Sampling(), max_tokens=128)


def heating(engine: FakeEngine) -> Conditions:
    """A degree a second, and the clock's limit at half from the second minute on."""
    now_s = engine.clock.now_s
    return Conditions(now_s, temp_c=40.0 + now_s, freq_cap=1.0 if now_s < 60 else 0.5, busy_others=0.2)


def long_run(engine: FakeEngine, minutes: float, modes: str = "auto") -> Sustained:
    what = plan(modes)
    found = Sustained(minutes, modes_of(what))
    return sustain(what, lambda: engine, lambda: heating(engine), found, clock=engine.clock)


def slowing(drafter: str, engine: FakeEngine) -> float:
    """Half as fast from the second minute on; drafted always twice as fast as not."""
    return (0.01 if engine.clock.now_s < 60 else 0.02) * (0.5 if drafter == "auto" else 1.0)


@pytest.fixture
def hot() -> FakeEngine:
    engine = FakeEngine(lambda drafter, limits: slowing(drafter, engine))
    return engine


def test_the_modes_take_turns_in_short_answers_until_the_time_is_over(hot: FakeEngine) -> None:
    found = long_run(hot, 2.5)
    drafters = [drafter for drafter, _ in hot.asked]
    assert drafters[:6] == ["none", "auto", "auto", "none", "none", "auto"]
    assert abs(drafters.count("none") - drafters.count("auto")) == 0
    assert {limits.max_tokens for _, limits in hot.asked} == {64}
    assert 150.0 <= hot.clock.now_s < 160.0
    assert not found.partial
    assert [sample.run.question_id for sample in found.samples[:8:2]] == ["q0", "q1", "q2", "q0"]


def test_what_it_says_of_a_device_that_gets_hot(hot: FakeEngine) -> None:
    found = long_run(hot, 4.0)
    cells = overall(found)
    assert cells["auto"].ratio.value == pytest.approx(2.0, rel=0.05)
    assert kept(found) == {"plain": pytest.approx(0.5, rel=0.05), "auto": pytest.approx(0.5, rel=0.05)}
    told = table(found)
    lines = told.splitlines()
    assert lines[0].split() == ["minute", "plain", "auto", "ratio", "drafted", "°C", "clock", "others"]
    assert [line.split()[0] for line in lines[1:5]] == ["1", "2", "3", "4"]
    assert lines[1].split()[1:5] == ["100.0", "200.0", "2.000", "1.02"]
    assert lines[3].split()[-2:] == ["50%", "0.2"]
    assert "plain: the last minute had 50% of the speed of the first" in told
    assert max(map(len, lines)) <= 80


def test_blocks_hold_what_ended_in_them(hot: FakeEngine) -> None:
    found = long_run(hot, 1.5)
    folded = blocks(found.samples)
    assert sum(part.answers for block in folded for part in block.parts.values()) == len(found.samples)
    assert [block.at_s for block in folded] == [5.0 * i for i in range(len(folded))]
    assert folded[0].now is not None
    assert folded[0].now.temp_c == pytest.approx(44.0, abs=1.5)
    data = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert data["blocks"][2]["modes"]["auto"]["tok_s"] == pytest.approx(200.0)
    assert data["blocks"][-1]["freq_cap"] == 0.5
    assert data["modes"]["auto"]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert data["modes"]["auto"]["last_minute_over_first"] is None  # shorter than two minutes


def test_a_slow_device_leaves_blocks_unknown_not_zero() -> None:
    engine = FakeEngine(lambda drafter, limits: 0.2)  # an answer takes 13 s
    found = long_run(engine, 1.0)
    folded = blocks(found.samples)
    assert folded[0].parts == {}
    assert folded[0].now is None
    data = to_json(found)
    assert data["blocks"][0] == {  # type: ignore[index]
        "at_s": 0.0, "modes": {}, "temp_c": None, "headroom": None, "freq_cap": None, "throttled": None,
        "power_w": None, "busy_others": None,
    }  # fmt: skip
    assert "plain" in table(found)


def test_a_mode_that_fails_is_left_out_and_named() -> None:
    def fail(drafter: str) -> None:
        if drafter == "auto":
            raise ValueError("broken")

    engine = FakeEngine(lambda drafter, limits: 0.01, fail=fail)
    found = long_run(engine, 0.5)
    failed = [sample for sample in found.samples if sample.run.error]
    assert len(failed) == 3
    assert not found.partial
    assert len(found.samples) > 20
    assert "FAILED 3 answers; the first: auto on q0: ValueError: broken" in table(found)
    assert to_json(found)["failures"][0]["error"] == "ValueError: broken"  # type: ignore[index]


def test_when_all_fail_it_ends() -> None:
    def fail(drafter: str) -> None:
        raise ValueError("broken")

    found = long_run(FakeEngine(lambda drafter, limits: 0.01, fail=fail), 10.0)
    assert (found.partial, found.gave_up) == (False, True)
    assert len(found.samples) == 6
    assert "PARTIAL: it was to take 10 min." in table(found)


def test_ctrl_c_keeps_what_there_is(hot: FakeEngine) -> None:
    def fail(drafter: str) -> None:
        if len(hot.asked) == 5:
            raise KeyboardInterrupt

    hot.fail = fail
    found = long_run(hot, 5.0)
    assert found.partial
    assert len(found.samples) == 5
    assert to_json(found)["partial"] is True


def test_the_second_plain_arm_and_the_oracle_do_not_take_part() -> None:
    assert modes_of(plan("auto,oracle,fixed-3")) == ("plain", "auto", "fixed-3")


def test_nothing_at_all() -> None:
    empty = Sustained(1.0, ("plain", "auto"), partial=True)
    assert blocks([]) == []
    assert kept(empty) == {"plain": None, "auto": None}
    assert to_json(empty)["blocks"] == []
    assert "PARTIAL" in table(empty)


@given(st.lists(st.tuples(st.floats(0, 600), st.sampled_from(["plain", "auto"]), st.booleans()), max_size=60))
def test_no_answer_is_lost_or_counted_twice(found: list[tuple[float, str, bool]]) -> None:
    samples = [
        Sample(at_s, replace(run_of(mode, s=2.0), error="x" if failed else None), Conditions(at_s))
        for at_s, mode, failed in sorted(found)
    ]
    for block_s in (5.0, 60.0):
        folded = blocks(samples, block_s)
        parts = [part for block in folded for part in block.parts.values()]
        good = [sample for sample in samples if sample.run.error is None]
        assert sum(part.answers for part in parts) == len(good)
        assert sum(part.decoded for part in parts) == sum(sample.run.decoded for sample in good)
        for block in folded:
            assert block.now is None or block.at_s <= block.now.at_s < block.at_s + block_s


def test_limits_of_a_question_still_count() -> None:
    engine = FakeEngine(lambda drafter, limits: 0.5)
    what = plan(questions=(Question("q", "chat", "why?", 8),))
    sustain(what, lambda: engine, lambda: Conditions(0.0), Sustained(0.2, modes_of(what)), clock=engine.clock)
    assert {limits.max_tokens for _, limits in engine.asked} == {8}
    assert isinstance(engine.asked[0][1], Limits)
