"""Heat, other programs and power beside the runs: what is read, which runs are no fair comparison, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_fakes import FakeEngine, run_of
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bench import report, runner
from edgespec.bench.marks import UNSEEN, Beside, Moment, Watch, mark
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, Mode
from edgespec.bench.table import table
from edgespec.bench.workloads import Question
from edgespec.conditions import Conditions
from edgespec.interfaces import Sampling
from edgespec.testing import FakeClock

QUIET = Beside(Moment(50.0, 1.0, False, 0.1), Moment(51.0, 1.0, False, 0.1))


def beside(**after: object) -> Beside:
    return replace(QUIET, after=replace(QUIET.after, **after))  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("run", "plain", "reason"),
    [
        (QUIET, QUIET, None),
        (UNSEEN, QUIET, None),
        (QUIET, UNSEEN, None),
        (beside(throttled=True), QUIET, "throttled"),
        (QUIET, beside(throttled=True), "plain was throttled"),
        (beside(throttled=True), beside(throttled=True), None),
        (beside(throttled=None), QUIET, None),
        (beside(freq_cap=0.8), QUIET, "clock limit 0.80, plain's 1.00"),
        (beside(freq_cap=0.8), beside(freq_cap=0.8), None),
        (beside(busy_others=0.9), QUIET, "other programs took 0.50 cores, beside plain 0.10"),
        (beside(busy_others=0.5), QUIET, None),  # 0.3 in the mean of before and after
        (beside(busy_others=0.9), beside(busy_others=0.9), None),
        (beside(temp_c=80.0), QUIET, None),  # what is hot and not held back is as fast
    ],
)
def test_what_marks_a_run(run: Beside, plain: Beside, reason: str | None) -> None:
    assert mark(run, plain) == reason


@given(st.floats(0, 2), st.floats(0, 2))
def test_load_marks_beyond_a_quarter_of_a_core(ours: float, its: float) -> None:
    run, plain = (Beside(Moment(busy_others=x), Moment(busy_others=x)) for x in (ours, its))
    assert (mark(run, plain) is not None) == (abs(ours - its) > 0.25)


def pair(number: int, auto: Beside = QUIET, plain: Beside = QUIET, noise: Beside = QUIET) -> list[runner.Run]:
    return [
        replace(run_of(mode, round_=number, s=s), beside=at)
        for mode, s, at in ((PLAIN, 1.0, plain), ("auto", 0.5, auto), (PLAIN_AGAIN, 1.0, noise))
    ]


def test_marked_runs_give_no_ratio_and_are_counted() -> None:
    slow = [replace(run, decode_s=5.0) if run.mode == "auto" else run for run in pair(1, auto=beside(throttled=True))]
    found = report.build(runner.Record([*pair(0), *slow, *pair(2, noise=beside(busy_others=1.0))]))
    auto, noise = found.cells["g"]["auto"], found.cells["g"][PLAIN_AGAIN]
    assert (auto.marked, auto.pairs, auto.pairs_left_out, auto.failed) == (1, 2, 1, 0)
    assert auto.ratio.value == pytest.approx(2.0)
    assert auto.e2e.value == pytest.approx(1.1 / 0.6)
    assert (noise.marked, found.cells["g"][PLAIN].marked) == (1, 0)
    shown = table(found)
    assert "1 of 3" in shown.partition("clock cap")[2]
    assert "plain's run: 1 of auto, 1 of (noise)" in " ".join(shown.split())
    assert shown.count("1 marked of 3") == 2
    assert max(map(len, shown.splitlines())) <= 80
    body = report.to_json(found)
    assert [(item["mode"], item["round"], item["reason"]) for item in body["marked"]] == [  # type: ignore[attr-defined]
        ("auto", 1, "throttled"), (PLAIN_AGAIN, 2, "other programs took 0.55 cores, beside plain 0.10"),
    ]  # fmt: skip
    assert body["geomean"]["auto"]["marked"] == 1  # type: ignore[index]


def test_all_marked_is_no_ratio() -> None:
    found = report.build(runner.Record(pair(0, plain=beside(freq_cap=0.6))))
    assert found.means["auto"].ratio.value is None
    assert "–" in table(found)


def test_nothing_is_said_where_nothing_is_known() -> None:
    runs = [run_of(mode, round_=number) for number in range(2) for mode in (PLAIN, "auto", PLAIN_AGAIN)]
    shown = table(report.build(runner.Record(runs)))
    assert "MARKED" not in shown
    assert not any(word in shown for word in ("resident", "hottest", "J/token", "others", "marked", "failed"))


# --- the meter ---


def readings(clock: FakeClock, *, watts: float | None, source: str = "RAPL", every_s: float = 1.0) -> Conditions:
    """A meter that is read once in `every_s`."""
    at_s = clock.now_s // every_s * every_s
    return Conditions(at_s, temp_c=40.0 + clock.now_s, power_w=watts, power_source=source)


def watched(seconds: float, source: str, watts: float | None = 5.0) -> Beside:
    clock = FakeClock()
    clock.now_s = 100.5
    watch = Watch(lambda: readings(clock, watts=watts, source=source), clock)
    for _ in range(int(seconds * 10)):
        clock.now_s += 0.1
        watch.look(clock.now_s)
    return watch.end()


def test_power_counts_once_the_meter_is_past_the_beginning() -> None:
    assert watched(1.2, "RAPL").power_w is None
    assert watched(1.2, "RAPL").power_source is None
    assert watched(4.0, "RAPL").power_w == pytest.approx(5.0)
    assert watched(4.0, "RAPL").power_source == "RAPL"
    assert watched(4.0, "battery").power_w is None
    assert watched(20.0, "battery").power_w == pytest.approx(5.0)
    assert watched(4.0, "RAPL", None).power_w is None
    assert watched(4.0, "RAPL").before.temp_c == pytest.approx(140.5)
    assert watched(4.0, "RAPL").temp_c == pytest.approx(144.5)


def test_the_sensors_are_read_four_times_a_second_at_most() -> None:
    clock, n_read = FakeClock(), 0

    def sensors() -> Conditions:
        nonlocal n_read
        n_read += 1
        return Conditions(clock.now_s)

    watch = Watch(sensors, clock)
    for _ in range(1000):
        clock.now_s += 0.01
        watch.look(clock.now_s)
    watch.end()
    assert 2 < n_read <= 42


def test_joules_per_token() -> None:
    engine = FakeEngine(lambda drafter, limits: 0.05 if drafter == "auto" else 0.1)
    clock = engine.clock
    plan = runner.Plan(
        [Question("q", "g", "?")], [Mode(PLAIN, "none"), Mode("auto", "auto")], Sampling(), max_tokens=100
    )
    record = runner.run_all(
        plan, lambda: engine, runner.Record(), clock=clock, sensors=lambda: readings(clock, watts=4.0)
    )
    found = report.build(record)
    plain, auto = found.cells["g"][PLAIN].footprint, found.cells["g"]["auto"].footprint
    assert plain.j_token == pytest.approx(4.0 * (0.5 + 99 * 0.1) / 100)
    assert auto.j_token == pytest.approx(4.0 * (0.5 + 99 * 0.05) / 100)
    assert (plain.power_source, plain.rss_bytes) == ("RAPL", 10**8)
    assert "100 MB" in table(found)
    unmetered = runner.run_all(plan, lambda: engine, runner.Record(), clock=clock)
    assert report.build(unmetered).cells["g"][PLAIN].footprint.j_token is None


def test_a_sensor_that_fails() -> None:
    def broken() -> Conditions:
        raise OSError("gone")

    engine = FakeEngine(lambda drafter, limits: 0.1)
    plan = runner.Plan([Question("q", "g", "?")], [Mode(PLAIN, "none")], Sampling(), max_tokens=5)
    (run,) = runner.run_all(plan, lambda: engine, runner.Record(), clock=engine.clock, sensors=broken).runs
    assert run.error == "OSError: gone"
