"""The simulated device and its command: the text is the known one, heat and other programs act, a seed decides all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.bench import workloads
from edgespec.bench.modes import Mode
from edgespec.bench.profiles import load_profiles
from edgespec.bench.sim_device import Events, SimDevice, SimTarget, Window
from edgespec.bench.sim_here import Python, compare, comparison_json, comparison_table, profile_here
from edgespec.bench.sim_report import geometric_mean, group_ratios, table, to_json
from edgespec.bench.sim_texts import Texts, load, pieces_of, save
from edgespec.bench.simulate import Outcome, Scene, SimMachine, simulate, simulate_one
from edgespec.bench.trace import Trace, save_traces
from edgespec.calibrate import calibrate
from edgespec.cli.main import run as command
from edgespec.core.cost import CostTable
from edgespec.core.heat import Policy
from edgespec.errors import ConfigError, EvalError
from edgespec.interfaces import Plan

PROFILES = load_profiles()
PLAIN, AUTO, ORACLE = Mode("plain", "none"), Mode("auto", "auto"), Mode("oracle", "oracle")
FIXED = Mode("fixed-3", "auto", 3)
ALL = (PLAIN, FIXED, Mode("fixed-10", "auto", 10), AUTO)


def copied(n_prompt: int, n_answer: int, ident: str, group: str) -> Trace:
    """An answer that copies its prompt but for a word here and there."""
    prompt = tuple(100 + 7 * i % 389 for i in range(n_prompt))
    answer = tuple(900 + i if i % 17 == 5 else prompt[(i + 3) % n_prompt] for i in range(n_answer))
    return Trace(prompt, answer, (), ident, group)


def fresh(n_answer: int, ident: str, group: str) -> Trace:
    """An answer in which nothing comes twice."""
    return Trace(tuple(range(50)), tuple(range(1000, 1000 + n_answer)), (), ident, group)


def texts(n_answer: int = 60) -> Texts:
    traces = (copied(80, n_answer, "a", "copy"), copied(150, n_answer, "b", "copy"), fresh(n_answer, "c", "new"))
    return Texts(traces, {token: b" w" for t in traces for token in (*t.prompt, *t.answer)})


TEXTS = texts()


def one(key: str, mode: Mode = AUTO, policy: Policy = "balanced", **scene: object) -> Outcome:
    return simulate_one(Scene(PROFILES[key], **scene), TEXTS, mode, policy)  # type: ignore[arg-type]  # by name


# What is written. --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", PROFILES)
@pytest.mark.parametrize("mode", [*ALL, ORACLE], ids=lambda mode: mode.name)
def test_the_text_is_the_recorded_one_in_every_mode(key: str, mode: Mode) -> None:
    outcome = one(key, mode)
    assert [run.ids for run in outcome.runs] == [trace.answer for trace in TEXTS.traces]
    assert all(run.finish_reason == "length" for run in outcome.runs)
    assert all(run.accepted <= run.drafted for run in outcome.runs)
    assert (sum(run.drafted for run in outcome.runs) == 0) == (mode is PLAIN)


def test_a_seed_decides_everything() -> None:
    busy = Events(busy=(Window(0.5, 1.0),))
    first, again, other = (replace(one("server", seed=seed, events=busy), host_s=0.0) for seed in (1, 1, 2))
    assert first == again
    assert first.seconds != other.seconds


def test_copies_are_drafted_and_new_text_costs_nothing() -> None:
    scene, long = Scene(PROFILES["server"]), texts(128)
    plain, auto, oracle = (simulate_one(scene, long, mode, "fast") for mode in (PLAIN, AUTO, ORACLE))
    ratios = group_ratios(plain.runs, auto.runs)
    assert ratios["copy"] > 1.05
    assert ratios["new"] > 0.975
    assert geometric_mean(group_ratios(plain.runs, oracle.runs)) > geometric_mean(ratios)  # type: ignore[operator]  # both are known
    assert geometric_mean({}) is None


def test_the_drafter_gets_the_kinds_of_tokens() -> None:
    """Without their bytes all tokens are of one kind, and other classes of guesses are learned."""
    machines = []
    for known in (TEXTS, replace(TEXTS, pieces=None)):
        machines.append(SimMachine(Scene(PROFILES["server"]), AUTO, "balanced"))
        machines[-1].answer(known.traces[0], known)
    assert machines[0].prior.table.keys() != machines[1].prior.table.keys()


# What it costs. ----------------------------------------------------------------------------------------------------


def test_calibration_finds_the_staircase_of_the_profile() -> None:
    server = replace(PROFILES["server"], noise=0.0)
    device = SimDevice(server)
    found = calibrate(SimTarget(device), device.clock)
    for width, seconds in server.stairs:
        assert found.base_s[width] == pytest.approx(seconds)
    assert found.switch_s == pytest.approx(server.switch * found.base_s[1], rel=0.05)


def test_prices_grow_with_the_context_and_with_fewer_threads() -> None:
    for key in ("server", "pi4"):
        device = SimDevice(PROFILES[key])
        n = PROFILES[key].n_team
        for width in (1, 8):
            assert device.price(width, 2000, n)[0] > device.price(width, 0, n)[0]
            assert device.price(width, 0, n // 2)[0] > device.price(width, 0, n)[0]


def test_the_target_refuses_positions_that_are_not_consecutive() -> None:
    target = SimTarget(SimDevice(PROFILES["server"]))
    target.tell([1, 2, 3])
    target.eval([Plan(0, 0, [1])])
    with pytest.raises(EvalError, match="consecutive"):
        target.eval([Plan(0, 5, [2])])


def test_python_between_the_passes_takes_time() -> None:
    slow = replace(PROFILES["server"], round_s=0.009, noise=0.0)
    fast = replace(slow, round_s=0.0)
    speeds = [simulate_one(Scene(profile), TEXTS, PLAIN, "fast").tok_s for profile in (slow, fast)]
    assert speeds[1] > 1.7 * speeds[0]  # type: ignore[operator]  # both are known


# Heat, other programs, the background. -----------------------------------------------------------------------------


def test_a_bare_pi_heats_up_and_the_policy_holds_it_below_severe() -> None:
    without = one("pi5", FIXED, "fast", minutes=12.0)
    cared = one("pi5", AUTO, "balanced", minutes=12.0)
    cool = one("pi5", AUTO, "cool", minutes=12.0)
    assert without.max_temp_c > 82.0 > 60.0  # type: ignore[operator]  # known
    assert without.throttled_s > 60.0  # type: ignore[operator]  # known
    assert cared.max_temp_c <= without.max_temp_c  # type: ignore[operator]  # known
    assert cool.max_temp_c < cared.max_temp_c  # type: ignore[operator]  # known
    assert any("headroom" in reason for reason in cared.reasons)
    assert cared.j_token is not None


def test_drafting_saves_energy_where_rows_are_cheap() -> None:
    plain, auto = (one("pi5", mode, minutes=2.0) for mode in (PLAIN, AUTO))
    assert auto.j_token < 0.8 * plain.j_token  # type: ignore[operator]  # known


def test_unknown_heat_and_energy_are_none() -> None:
    outcome = one("server")
    assert (outcome.joules, outcome.max_temp_c, outcome.throttled_s, outcome.j_token) == (None,) * 4
    assert "–" in table([outcome])


def rates(events: Events, key: str, mode: Mode, spans: Sequence[tuple[float, float]]) -> list[float]:
    """Tokens a second of decoding within spans of simulated time."""
    at: list[tuple[float, int]] = []

    class Counting(SimMachine):
        n = 0

        def round(self, generation):  # type: ignore[no-untyped-def]  # as the parent's
            before = len(generation.tokens)
            super().round(generation)
            self.n += len(generation.tokens) - before
            at.append((self.clock.now_s, self.n))

    steady = replace(PROFILES[key], slope_one=0.0, slope_wide=0.0)  # the text gets long
    machine = Counting(Scene(steady, events), mode, "balanced")
    long = Texts((fresh(6000, "x", "new"),), None)
    end_s = max(last for _, last in spans)
    machine.scene = replace(machine.scene, minutes=end_s / 60.0)
    while machine.clock.now_s < end_s:
        machine.answer(long.traces[0], long)
    found = []
    for first, last in spans:
        inside = [(s, n) for s, n in at if first <= s <= last]
        found.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    return found


def test_a_busy_program_costs_a_thread_and_no_more() -> None:
    """Measured on two cores (decision 0007): 113 tokens a second idle, 73 beside one busy process, 115 after it; two
    threads that are kept make 33."""
    before, during, after = rates(Events(busy=(Window(10.0, 20.0),)), "server", PLAIN, [(4, 10), (12, 20), (25, 35)])
    assert 0.5 <= during / before <= 0.8
    assert after / before >= 0.93


def test_two_busy_programs_leave_half_the_speed() -> None:
    """Measured: two threads made 1.1 tokens a second there, the governed team 45 of 113."""
    before, during = rates(Events(busy=(Window(10.0, 20.0, 2.0),)), "server", PLAIN, [(4, 10), (12, 20)])
    assert 0.25 <= during / before <= 0.6


def test_in_the_background_efficiency_cores_decode_and_the_others_come_back() -> None:
    events = Events(background=(Window(20.0, 40.0),))
    before, during, after = rates(events, "pixel7", PLAIN, [(10, 20), (25, 40), (50, 60)])
    assert 0.2 <= during / before <= 0.75
    assert after / before >= 0.9


# This machine. -----------------------------------------------------------------------------------------------------


TABLE = CostTable({1: 0.01, 2: 0.017, 4: 0.026, 8: 0.04, 16: 0.07}, 0.1, 0.2, 0.0005, 2, 2)


def test_a_cost_table_becomes_a_profile() -> None:
    profile = profile_here(TABLE, Python(0.0002, 0.0001, 0.05), "here")
    device = SimDevice(profile)
    assert {w: device.price(w, 0, 2)[0] for w in TABLE.base_s} == pytest.approx(dict(TABLE.base_s))
    assert device.price(1, 1024, 2)[0] == pytest.approx(0.011)
    assert device.price(4, 1024, 2)[0] == pytest.approx(0.026 + 4 * 0.2 * 0.01)
    assert device.price(1, 0, 1)[0] == pytest.approx(0.01 * 2**0.5)
    assert device.price(16, 0, 1)[0] == pytest.approx(0.14)
    assert {basis for basis, _ in profile.basis.values()} == {"measured", "assumed"}
    assert not profile.heats


def test_what_the_simulator_did_itself_it_predicts() -> None:
    profile = profile_here(TABLE, Python(0.0002, 0.0001, 0.0))
    outcomes = simulate(Scene(profile), TEXTS, ALL, ["balanced"])
    measured = [run for outcome in outcomes for run in outcome.runs]
    found = compare(profile, TEXTS, ALL, measured, "balanced", 15)
    assert [row.mode for row in found] == ["fixed-3", "fixed-10", "auto"]
    assert all(row.error == pytest.approx(0.0) for row in found)
    halved = [replace(run, decode_s=2.0 * run.decode_s) if run.mode == "auto" else run for run in measured]
    off = compare(profile, TEXTS, ALL, halved, "balanced", 15)
    assert off[2].error == pytest.approx(1.0)
    assert "+100.0 %" in comparison_table(off)
    modes = comparison_json(off)["modes"]
    assert isinstance(modes, dict)
    assert modes["auto"]["error"] == pytest.approx(1.0)


# Files and the command. --------------------------------------------------------------------------------------------


def test_texts_survive_a_file(tmp_path: Path) -> None:
    save(TEXTS, tmp_path / "mine.jsonl")
    found = load(tmp_path / "mine.jsonl")
    assert found.traces == TEXTS.traces
    assert found.pieces == TEXTS.pieces
    (tmp_path / "mine.pieces.json").unlink()
    assert load(tmp_path / "mine.jsonl").pieces is None


@pytest.mark.parametrize(("pieces", "said"), [("[]", "not an object"), ('{"100": "a"}', "is missing"), ("{", "not an")])
def test_pieces_that_do_not_fit_are_refused(tmp_path: Path, pieces: str, said: str) -> None:
    save(replace(TEXTS, pieces=None), tmp_path / "mine.jsonl")
    (tmp_path / "mine.pieces.json").write_text(pieces)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "mine.jsonl")


def test_a_file_without_an_answer_is_refused(tmp_path: Path) -> None:
    save_traces([Trace((1,), (2,), ())], tmp_path / "short.jsonl")
    with pytest.raises(ConfigError, match="two tokens"):
        load(tmp_path / "short.jsonl")


def test_the_built_in_texts_are_the_built_in_questions() -> None:
    found = load()
    assert [trace.question_id for trace in found.traces] == [question.question_id for question in workloads.load()]
    assert found.pieces is not None
    assert pieces_of(found.traces, found.pieces.__getitem__) == found.pieces
    folder = Path(__file__).parents[1] / "edgespec" / "bench"
    assert sum(path.stat().st_size for path in folder.glob("texts.*")) < 400_000


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(TEXTS, tmp_path / "mine.jsonl")
    args = ["simulate", "--profile", "pi4", "--traces", str(tmp_path / "mine.jsonl"), "--minutes", "0.5"]
    assert command([*args, "--policy", "fast,cool"]) == 0
    shown = capsys.readouterr().out
    assert "Raspberry Pi 4" in shown
    assert "assumed" in shown
    assert [line.split()[0] for line in shown.splitlines() if "plain" in line] == ["fast", "cool"]
    assert all(len(line) <= 80 for line in shown.splitlines() if "Raspberry" not in line)


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(TEXTS, tmp_path / "mine.jsonl")
    events = ["--busy", "0.1-0.2:2", "--busy", "0.3-0.4", "--background", "0-0.1"]
    args = ["simulate", "--profile", "pixel7", "--traces", str(tmp_path / "mine.jsonl"), "--json", *events]
    assert command(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["mode"], row["policy"]) for row in found["outcomes"]] == [(m.name, "balanced") for m in ALL]
    assert found["scene"]["events"]["busy"][0] == {"begin_s": 6.0, "end_s": 12.0, "cores": 2.0}
    assert set(found["outcomes"][3]["groups"]) == {"copy", "new"}
    assert found["outcomes"][0]["max_temp_c"] > 20.0
    assert {row[0] for row in found["profile"]["basis"].values()} == {"published", "assumed"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--profile", "pi6"], "choose from pi4"),
        (["--policy", "hot"], "choose from fast"),
        (["--minutes", "-1"], "--minutes"),
        (["--busy", "2"], "FROM-TO"),
        (["--busy", "2-1"], "below the second"),
        (["--background", "1-nan"], "finite"),
        (["--modes", "quick"], "unknown mode"),
        (["--traces", "nowhere.jsonl"], "cannot read"),
    ],
)
def test_what_cannot_be_simulated_is_refused(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["simulate", *args]) == 2
    assert said in capsys.readouterr().err


def test_json_holds_everything_of_an_outcome() -> None:
    scene = Scene(PROFILES["pi4"])
    outcomes = simulate(scene, TEXTS, (PLAIN, AUTO), ["fast"])
    found = json.loads(json.dumps(to_json(scene, TEXTS, outcomes)))
    assert found["outcomes"][1]["ratio"] == pytest.approx(outcomes[1].tok_s / outcomes[0].tok_s)  # type: ignore[operator]  # known
    assert found["outcomes"][1]["reasons"] == list(outcomes[1].reasons)


@pytest.mark.model
@pytest.mark.slow
def test_this_machine_is_simulated_and_compared(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No figure is asserted: the machine may be busy."""
    args = ["--modes", "plain,auto", "--json", "--offline"]
    assert command(["simulate", "--profile", "this-machine", "--model", str(default_model), *args]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"]["basis"]["stairs"][0] == "measured"
    assert all(row["tok_s"] > 0.0 and row["joules"] is None for row in found["outcomes"])
    assert command(["simulate", "--validate", str(default_model), "--max-tokens", "8", *args]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert set(modes) == {"auto", "plain2"}
    assert modes["plain2"]["predicted"] == pytest.approx(1.0)
    assert modes["auto"]["runs"] == 9
