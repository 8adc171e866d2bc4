"""What runs, in which order, what is recorded; texts against plain's; the shape of the report."""

from __future__ import annotations

import gc
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import FakeEngine, FakeStream, frozen_heap, run_of

from edgespec.bench import compare, report, runner
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, parse_modes
from edgespec.bench.table import table
from edgespec.bench.workloads import Question
from edgespec.core.noise import gumbel
from edgespec.core.session import Session
from edgespec.errors import ConfigError, EvalError, ModelError
from edgespec.interfaces import Limits, Message, Sampling
from edgespec.testing import FakeTarget

QUESTIONS = [Question(f"{group}{i}", group, f"{group} {i}?") for group in ("chat", "copy") for i in range(3)]
MODES = parse_modes("auto,fixed-3", ("auto", "none"))


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> Iterator[None]:
    with frozen_heap():
        yield


def speed(drafter: str, limits: Limits) -> float:
    if limits.fixed_draft:
        return 0.02
    return 0.005 if drafter == "auto" else 0.01


def measured(
    engine: FakeEngine | None = None, rounds: int = 2, questions: Sequence[Question] = QUESTIONS
) -> runner.Record:
    engine = engine or FakeEngine(speed)
    plan = runner.Plan(questions, MODES, Sampling(), rounds=rounds, max_tokens=20)
    return runner.run_all(plan, lambda: engine, runner.Record(), clock=engine.clock)


def test_every_pair_runs_all_modes_back_to_back() -> None:
    engine = FakeEngine(speed)
    runs = measured(engine).runs
    assert len(runs) == 6 * 2 * 4
    for start in range(0, len(runs), 4):
        pair = runs[start : start + 4]
        assert len({(run.question_id, run.round) for run in pair}) == 1
        assert sorted(run.mode for run in pair) == sorted(mode.name for mode in MODES)
        assert [run.place for run in pair] == [0, 1, 2, 3]
    places = Counter((run.mode, run.place) for run in runs)
    assert set(places.values()) == {3}
    assert gc.isenabled()


def test_times_and_limits() -> None:
    engine = FakeEngine(speed)
    runs = {run.mode: run for run in measured(engine, rounds=1, questions=QUESTIONS[:1]).runs}
    auto = runs["auto"]
    assert (auto.tokens, auto.decoded, auto.error) == (20, 19, None)
    assert auto.decode_s == pytest.approx(19 * 0.005)
    assert auto.ttft_s == pytest.approx(0.5)
    assert auto.total_s == pytest.approx(0.5 + 19 * 0.005)
    asked = {(drafter, limits.max_draft, limits.fixed_draft) for drafter, limits in engine.asked}
    assert asked == {("none", 0, None), ("auto", 15, None), ("auto", 3, 3)}
    cells = report.build(measured()).cells["copy"]
    assert cells["auto"].ratio.value == pytest.approx(2.0)
    assert cells["fixed-3"].ratio.value == pytest.approx(0.5)
    assert cells[PLAIN_AGAIN].ratio.value == pytest.approx(1.0)


def test_a_question_may_want_a_shorter_answer() -> None:
    short = [replace(QUESTIONS[0], max_tokens=1)]
    runs = measured(rounds=1, questions=short).runs
    assert [run.tokens for run in runs] == [1] * 4
    assert [run.decoded for run in runs] == [0] * 4


def test_a_failed_run_is_recorded_as_failed_and_has_no_numbers() -> None:
    def fail(drafter: str) -> None:
        if drafter == "auto":
            raise EvalError("the batch was refused\nand more")

    record = measured(FakeEngine(speed, fail=fail))
    bad = [run for run in record.runs if run.error is not None]
    assert {run.mode for run in bad} == {"auto", "fixed-3"}
    assert {(run.error, run.tokens, run.decode_s, run.ttft_s) for run in bad} == {
        ("EvalError: the batch was refused", 0, 0.0, None)
    }
    found = report.build(record)
    assert found.cells["chat"]["auto"].failed == 6
    assert found.means["auto"].ratio.value is None
    assert "6 failed" in table(found)
    assert "FAILED" in table(found)


def test_an_engine_that_cannot_be_opened_is_a_failed_run() -> None:
    engine, n_calls = FakeEngine(speed), 0

    def opened() -> FakeEngine:
        nonlocal n_calls
        n_calls += 1
        if n_calls > len(MODES) and n_calls % 2:
            raise ModelError("no memory")
        return engine

    plan = runner.Plan(QUESTIONS, MODES, Sampling(), max_tokens=20)
    runs = runner.run_all(plan, opened, runner.Record(), clock=engine.clock).runs
    assert Counter(run.error for run in runs) == {None: 12, "ModelError: no memory": 12}


def test_warm_runs_follow_the_cold_ones_in_the_same_session() -> None:
    engine = FakeEngine(speed)
    plan = runner.Plan(QUESTIONS[:2], MODES, Sampling(), rounds=2, max_tokens=20, warm=True)
    calls: list[tuple[int, int]] = []
    record = runner.run_all(
        plan, lambda: engine, runner.Record(), lambda done, n_all, run: calls.append((done, n_all)), engine.clock
    )
    assert [run.warm for run in record.runs] == [False, True] * 16
    assert [run.cached > 0 for run in record.runs] == [False, True] * 16
    assert [run.ttft_s for run in record.runs] == pytest.approx([0.5, 0.1] * 16)
    assert engine.open_sessions == []
    assert calls[-1] == (32, 32)
    found = report.build(record)
    warm = found.cells["chat"]["auto"].warm
    assert warm is not None
    assert warm.runs == 4
    assert warm.ttft_s == pytest.approx(0.1)
    body = report.to_json(found)
    assert body["groups"]["chat"]["auto"]["warm"]["ratio"] == pytest.approx(2.0)  # type: ignore[index]
    shown = table(found)
    assert "asked again" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_failed_cold_run_has_no_warm_one() -> None:
    def fail(drafter: str) -> None:
        if drafter == "auto":
            raise EvalError("no")

    engine = FakeEngine(speed, fail=fail)
    plan = runner.Plan(QUESTIONS[:1], MODES, Sampling(), max_tokens=20, warm=True)
    runs = runner.run_all(plan, lambda: engine, runner.Record(), clock=engine.clock).runs
    assert {(run.mode, run.warm) for run in runs if run.error} == {
        (mode, warm) for mode in ("auto", "fixed-3") for warm in (False, True)
    }
    assert engine.open_sessions == []
    assert "1 failed of 1" in table(report.build(runner.Record(runs)))


def test_what_was_said_before_is_part_of_the_prompt() -> None:
    engine = FakeEngine(speed)
    before = (Message("system", "ab"), Message("user", "cd"), Message("assistant", "ef"))
    question = Question("q", "g", "gh", before=before)
    assert len(runner.prompt_of(engine, question, "a system prompt of the configuration")) == 1 + 8


def test_a_stream_that_loses_tokens_is_a_failed_run() -> None:
    class Lossy(FakeStream):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(list(super().__iter__())[:-1])

    class LossyEngine(FakeEngine):
        def stream(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            stream = super().stream(*args, **kwargs)
            return Lossy(stream.clock, stream.ids, stream.first_s, stream.token_s, stream.drafter)

    assert all("the stream gave 19 tokens" in (run.error or "") for run in measured(LossyEngine(speed)).runs)


def test_ctrl_c_keeps_what_was_measured() -> None:
    engine = FakeEngine(speed)
    plan = runner.Plan(QUESTIONS, MODES, Sampling(), rounds=2, max_tokens=20)

    def progress(done: int, n_all: int, run: runner.Run) -> None:
        assert n_all == 48
        assert run.error is None
        if done == 10:
            raise KeyboardInterrupt

    record = runner.run_all(plan, lambda: engine, runner.Record(), progress, engine.clock)
    assert (record.partial, len(record.runs)) == (True, 10)
    found = report.build(record)
    assert report.to_json(found)["partial"] is True
    assert "PARTIAL" in table(found)


def test_ctrl_c_before_the_first_answer() -> None:
    def fail(_drafter: str) -> None:
        raise KeyboardInterrupt

    engine = FakeEngine(speed, fail=fail)
    plan = runner.Plan(QUESTIONS, MODES, Sampling())
    record = runner.run_all(plan, lambda: engine, runner.Record(), clock=engine.clock)
    assert (record.partial, record.runs) == (True, [])
    assert "PARTIAL" in table(report.build(record))


# --- texts ---


class Rows:
    """A fake target with sessions, as the engine gives them."""

    def __init__(self) -> None:
        self.target = FakeTarget(n_batch=8)
        self.released = 0

    def session(self) -> Session:
        return Session(self.target)

    def release(self, session: Session) -> None:
        self.target.clear(session.seq_id)
        self.released += 1


def test_differences_with_margins() -> None:
    engine, prompt = Rows(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    ids: list[int] = []
    for _ in range(6):
        ids.append(int(engine.target.logits([*prompt, *ids]).argmax()))
    row = engine.target.logits([*prompt, *ids[:4]])
    other = int(row.argsort()[-2])
    changed = (*ids[:4], other, 7)
    runs = [
        replace(run_of(mode, round_=number), ids=tuple(text))
        for number in range(3)
        for mode, text in ((PLAIN, ids), ("auto", changed if number else ids), (PLAIN_AGAIN, ids))
    ]
    found = compare.differences(runs)
    assert [(d.mode, d.rounds, d.position, d.plain_token, d.mode_token) for d in found] == [
        ("auto", (1, 2), 4, ids[4], other)
    ]
    (done,) = compare.with_margins(found, runs, engine, {"q": prompt}, Sampling())
    wanted = float(row[ids[4]]) - float(row[other])
    assert done.margin == pytest.approx(wanted)
    assert done.top_margin == pytest.approx(wanted)
    assert done.note is None
    assert engine.released == 1
    sampling = Sampling(temperature=0.7, seed=5)
    (sampled,) = compare.with_margins(found, runs, engine, {"q": prompt}, sampling)
    noise = gumbel(5, 0, len(prompt) + 4, np.array([ids[4], other]))
    assert sampled.margin == pytest.approx(wanted + 0.7 * float(noise[0] - noise[1]))
    assert (sampled.note is None) == (sampled.margin is not None and sampled.margin >= 0)


def test_a_text_that_ends_early_is_a_difference() -> None:
    engine = Rows()
    runs = [replace(run_of(PLAIN), ids=(1, 2, 3)), replace(run_of("auto"), ids=(1, 2))]
    (item,) = compare.with_margins(compare.differences(runs), runs, engine, {"q": [1]}, Sampling())
    assert (item.position, item.plain_token, item.mode_token, item.margin) == (2, 3, None, None)
    assert item.note == "one of the texts ended here"


def test_distinct_4grams() -> None:
    assert compare.distinct_share([range(10)]) == 1.0
    assert compare.distinct_share([[1, 2] * 10]) == pytest.approx(2 / 17)
    assert compare.distinct_share([[1, 2, 3]]) is None
    looping = [replace(run_of(mode), ids=(1, 2) * 10) for mode in (PLAIN, "auto")]
    found = report.build(runner.Record(looping))
    assert found.texts["g"].repetitive
    assert found.texts["g"].loops == ("q",)
    assert "Repetitive answers" in table(found)
    assert "1 of 1 (12 % distinct); without them auto –" in table(found)
    assert "without loops, 0 of 1" in table(found)
    assert report.to_json(found)["texts"]["g"]["repetitive_answers"] == ["q"]  # type: ignore[index]


# --- report ---


def test_a_noisy_machine_is_named() -> None:
    runs = [run_of(mode, round_=number, s=s) for number in range(3) for mode, s in ((PLAIN, 1.0), (PLAIN_AGAIN, 1.2))]
    assert "NOT QUIET: plain against itself is 0.833" in table(report.build(runner.Record(runs)))
    assert "NOT QUIET" not in table(report.build(measured()))


def test_the_shape_of_the_json(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    difference = compare.Difference("chat0", "chat", "auto", (0,), 3, 5, 6, 0.01, 0.01)
    report.save_json(
        report.build(measured(), differences=[difference], stamp={"cpu": "x"}, pass_s={1: 0.01, 4: 0.02}), path
    )
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    found = json.loads(path.read_text("utf-8"))
    cell = found["groups"]["copy"]["auto"]
    assert {"tokens", "decode_s", "tok_s", "tokens_per_round", "drafted", "accepted", "ttft_s", "ratio", "ratio_low",
            "ratio_high", "accepted_by_position", "widths", "e2e_ratio", "failed", "marked", "warm", "footprint",
            "ratio_without_repetitive"} <= set(cell)  # fmt: skip
    assert cell["footprint"]["rss_bytes"] == 10**8
    assert found["marked"] == []
    assert found["pass_s"] == {"1": 0.01, "4": 0.02}
    assert found["runs"][0]["at_s"] == 0.0
    assert found["runs"][1]["at_s"] > 0.5
    assert set(found["about"]) >= {"ratio", "ceiling", "marked", "footprint", "runs"}
    assert cell["ratio"] == pytest.approx(2.0)
    assert math.isclose(found["geomean"]["auto"]["ratio"], 2.0, rel_tol=1e-9)
    assert set(found["geomean"]) == {"plain", "auto", "fixed-3", "plain2"}
    assert found["differences"][0]["margin"] == 0.01
    assert found["stamp"] == {"cpu": "x"}
    assert found["partial"] is False
    assert len(found["runs"]) == 48
    assert found["runs"][0]["ids"][:3] == [1, 2, 3]


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        report.save_json(report.build(measured()), tmp_path / "no" / "out.json")


def test_the_table_fits_a_terminal() -> None:
    engine = FakeEngine(lambda drafter, limits: 1 / 99999)
    long = [Question(f"q{i}", "a_group_with_a_long_name", "?") for i in range(3)]
    found = report.build(measured(engine, questions=[*QUESTIONS, *long]))
    shown = table(found)
    assert max(map(len, shown.splitlines())) <= 80
    assert "all 54 answers equal plain's" in shown
