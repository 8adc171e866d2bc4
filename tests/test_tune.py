"""`edgespec tune` on small real models: what is measured, what is kept, and that engines, report and command use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf_maker
import pytest

from edgespec import certificate, tune
from edgespec.certificate import Cell, Certificate, Kind
from edgespec.chat import Chat
from edgespec.cli import common, main
from edgespec.config import EngineConfig, Value
from edgespec.core.cost import CostModel, CostTable
from edgespec.device import host
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology
from edgespec.engine import Engine
from edgespec.errors import DeviceError, ModelError
from edgespec.interfaces import Limits, Plan, Rows
from edgespec.opening import build_name
from edgespec.target import gguf_check
from edgespec.target.llama import LlamaTarget
from edgespec.tune import Rig, Task, Watch, check_same, others_of
from edgespec.tune_search import Knob
from edgespec.tuning_profile import Choice, Finding, Profile, Tried, load, save

PROMPTS = ("the cat sat on the mat, the cat sat", "again and again")
CONFIG = EngineConfig(n_ctx=256)
ONE_THREAD = EngineConfig(n_ctx=256, threads=1)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers and contexts of a few tokens."""
    monkeypatch.setattr(tune, "_N_TOKENS", 6)
    monkeypatch.setattr(tune, "_N_CONTEXT", 32)
    monkeypatch.setattr(tune, "_PATTERN", (1, 4))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "tiny.Q4_0.gguf")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "mamba.gguf", "mamba")


def here(path: Path) -> tuple[str, str, str]:
    return gguf_check.check(path).fingerprint, build_name(), host.cpu_name(Sysfs())


def tuned(path: Path, choice: Choice, *findings: Finding) -> Profile:
    """Saved as if it had been measured."""
    profile = Profile(*here(path), "2026-01-01T00:00:00+00:00", 1.0, choice, findings)
    save(profile)
    return profile


def rig_of(path: Path, config: EngineConfig = ONE_THREAD, files: tuple[Path, ...] = ()) -> Rig:
    return Rig(Task(path, config, PROMPTS, files), "mamba" in path.name, lambda _: None)


def knobs_of(rig: Rig) -> dict[str, Knob]:
    return {knob.option: knob for knob in rig.knobs(read_topology(Sysfs()))}


def test_an_engine_uses_what_is_tuned_and_says_so(tiny: Path) -> None:
    tuned(tiny, Choice(threads=1, threads_batch=1, kv_type="f16/bf16", max_draft=7))
    with Engine.open(tiny, CONFIG) as engine:
        assert (engine.target.n_threads, engine.target.n_threads_batch) == (1, 1)
        assert (engine.config.kv_type, engine.config.max_draft) == ("f16/bf16", 7)
        assert engine.config.threads is None  # heat and other programs may change the team
        stream = engine.stream(engine.prompt(PROMPTS[0]), limits=Limits(4, ignore_eog=True))
        list(stream)
        assert stream.result.report.tuned == "threads 1, threads_batch 1, kv_type f16/bf16, max_draft 7"


def test_the_tuned_drafter_is_what_auto_means(tiny: Path) -> None:
    tuned(tiny, Choice(drafter="none"))
    prompt = list(b"abcabcabcabcabcabc")
    with Engine.open(tiny, ONE_THREAD) as engine:
        for name, used in [(None, "none"), ("auto", "none"), ("ngram", "ngram")]:
            stream = engine.stream(prompt, limits=Limits(4, ignore_eog=True), drafter=name)
            list(stream)
            assert stream.result.report.drafter == used


def test_what_the_user_says_wins(tiny: Path) -> None:
    tuned(tiny, Choice(threads=1, threads_batch=1, kv_type="f16/bf16", max_draft=7))
    asked = EngineConfig(n_ctx=256, threads=2, kv_type="f16", max_draft=15)
    for config, text in [(asked, None), (EngineConfig(n_ctx=256, tuned=False, threads=2), None)]:
        with Engine.open(tiny, config) as engine:
            assert (engine.target.n_threads, engine.config.kv_type, engine.config.max_draft) == (2, "f16", 15)
            stream = engine.stream(engine.prompt(PROMPTS[0]), limits=Limits(2, ignore_eog=True))
            list(stream)
            assert stream.result.report.tuned is text


def test_more_threads_than_there_are_cores_now_are_not_used(tiny: Path) -> None:
    tuned(tiny, Choice(threads=512, threads_batch=512))
    with Engine.open(tiny, CONFIG) as engine:
        assert engine.target.n_threads <= len(engine.machine.topology.usable)


def test_a_tuned_kv_type_never_costs_exactness(tiny: Path) -> None:
    kinds: list[Kind] = ["single", "wide", "prefill", "company"]
    cells = [Cell("width", "f16/f16", n, 1, 4, 0.0) for n in range(2, 17)]
    cells += [Cell(kind, "f16/f16", 2, 1, 4, 0.0) for kind in kinds]
    fingerprint, build, machine = here(tiny)
    certificate.save(Certificate(fingerprint, build, machine, 512, 4096, True, tuple(cells), ()))
    tuned(tiny, Choice(kv_type="f16/bf16"))
    with Engine.open(tiny, EngineConfig(n_ctx=256, exact=True)) as engine:
        assert engine.config.kv_type == "f16/f16"
        assert engine.exactness.recipe is not None
        assert [note for note in engine.notes if "not certified" in note]
    with Engine.open(tiny, EngineConfig(n_ctx=256, exact=False)) as engine:
        assert engine.config.kv_type == "f16/bf16"


def test_every_option_can_be_measured(tiny: Path) -> None:
    with rig_of(tiny) as rig:
        knobs = knobs_of(rig)
        assert set(knobs) == {"kv_type", "drafter", "max_draft"}
        assert [finding.option for finding in rig.settled] == ["threads", "threads_batch"]
        for knob in knobs.values():
            assert knob.measure(Choice()) > 0
            for value in knob.values:
                choice = with_value(knob, value)
                if value == "q8_0/q8_0":  # heads of 16 take no cache in blocks of 32
                    with pytest.raises(ModelError):
                        knob.measure(choice)
                else:
                    assert knob.measure(choice) > 0


def test_threads_are_measured_as_the_team_of_an_engine_that_is_so_tuned(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[int, int]] = []
    real = LlamaTarget.eval

    def watched(target: LlamaTarget, plans: Sequence[Plan]) -> list[Rows]:
        used.append((target.n_threads, target.n_threads_batch))
        return real(target, plans)

    with rig_of(tiny, CONFIG) as rig:
        knobs = knobs_of(rig)
        assert {"threads", "threads_batch"} <= set(knobs) | {finding.option for finding in rig.settled}
        monkeypatch.setattr(LlamaTarget, "eval", watched)
        for choice, largest in [(Choice(threads=1, threads_batch=1), 1), (Choice(), rig.n_threads)]:
            used.clear()
            assert rig.passes(choice) > 0
            assert {max(team) for team in used} == {largest}


def with_value(knob: Knob, value: Value) -> Choice:
    return Choice(**{knob.option: value})  # type: ignore[arg-type]  # the options of knobs are fields


def test_a_memory_that_does_not_rewind_is_measured_too(recurrent: Path) -> None:
    with rig_of(recurrent) as rig:
        knobs = knobs_of(rig)
        assert knobs["kv_type"].measure(Choice()) > 0
        assert knobs["max_draft"].values == (7,)  # longer ones would cost it memory
        assert knobs["drafter"].measure(Choice()) > 0


def test_what_the_user_set_is_not_tuned(tiny: Path) -> None:
    config = EngineConfig(n_ctx=256, threads=1, kv_type="f16", drafter="ngram", max_draft=15)
    with rig_of(tiny, config) as rig:
        assert knobs_of(rig) == {}
        assert {finding.why for finding in rig.settled} == {"you set it"}


def test_it_ends_with_a_profile_that_the_next_engine_uses(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "trouble", lambda _: None)

    def best(knobs: list[Knob], means: object, budget_s: float) -> tuple[Choice, tuple[Finding, ...]]:
        assert budget_s <= 30.0
        assert all(knob.measure(Choice()) > 0 for knob in knobs)
        return Choice(max_draft=7), (Finding("max_draft", 15, 7, "clearly faster", (Tried(7, 1.1, 1.05, 1.2, 40),)),)

    monkeypatch.setattr(tune, "search", best)
    profile = tune.tune(Task(tiny, ONE_THREAD, PROMPTS, budget_s=30.0))
    save(profile)
    assert load(*here(tiny), None) == (profile, None)
    with Engine.open(tiny, ONE_THREAD) as engine:
        assert engine.config.max_draft == 7


def test_a_real_search_stays_within_its_time(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "trouble", lambda _: None)
    profile = tune.tune(Task(tiny, ONE_THREAD, PROMPTS, budget_s=1.0))
    assert {"threads", "threads_batch", "kv_type", "drafter", "max_draft"} == {f.option for f in profile.findings}
    assert profile.choice.threads is None  # it was set
    assert all(finding.why for finding in profile.findings)


def test_nothing_undisturbed_is_an_error_and_no_profile(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(watch: Watch) -> str:
        watch.last = "other programs take 1.5 cores"
        return watch.last

    monkeypatch.setattr(Watch, "trouble", busy)
    with pytest.raises(DeviceError, match=r"1\.5 cores"):
        tune.tune(Task(tiny, ONE_THREAD, PROMPTS, budget_s=20.0))


def test_files_of_one_model_are_found_by_name_and_shape(tiny: Path, tmp_path: Path) -> None:
    one = gguf_maker.make(tmp_path / "tiny-Q8_0.gguf")
    named_alike = gguf_maker.make(tmp_path / "tiny.IQ4_XS.gguf", n_vocab=300)
    other = gguf_maker.make(tmp_path / "tinier.Q4_0.gguf")
    broken = tmp_path / "tiny.F16.gguf"
    broken.write_text("no model")
    assert others_of(tiny, [tiny, one, named_alike, other, broken]) == (one,)
    with pytest.raises(ModelError, match="not a file of the same model"):
        check_same(gguf_check.check(tiny), named_alike)
    with rig_of(tiny, files=(one,)) as rig:
        knob = knobs_of(rig)["file"]
        assert list(rig.prices(Choice())) == []  # there is nothing to compare with as yet
        assert knob.measure(Choice(file=str(one))) > 0
        for path, steps in ((None, 2.84), (str(one), 1.52)):
            assert rig._engines[Choice(file=path)].machine.begin(CostModel(CostTable({1: 0.01, 4: 0.01 * steps})))
        for choice in (Choice(), Choice(file=str(one), drafter="ngram", max_draft=7)):
            (found,) = rig.prices(choice)
            assert (found.default, found.value) == ("tiny-Q8_0.gguf", None)
            assert found.why == "gains most there: 4 rows take 1.5 steps, 2.8 in tiny.Q4_0.gguf"


def run(*args: str) -> int:
    return main.run(["tune", *args])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Profile]], None]:
    """Put something in the place of measuring."""

    def put(measure: Callable[[], Profile]) -> None:
        monkeypatch.setattr(tune, "tune", lambda *_: measure())

    return put


FOUND = Finding(
    "threads", 2, 1, "clearly faster", (Tried(1, 1.25, 1.2, 1.3, 40), Tried(3, note="too many")), 0.01, n_dropped=3
)


def test_the_command_measures_saves_explains_and_forgets(
    tiny: Path, quick: Callable[[Callable[[], Profile]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tiny), "--show") == 0
    assert "nothing is tuned" in capsys.readouterr().out
    quick(lambda: Profile(*here(tiny), "2026-01-01", 2.0, Choice(threads=1), (FOUND,)))
    assert run(str(tiny)) == 0
    shown = capsys.readouterr().out
    assert "1.250 times as fast (1.200..1.300), 40 rounds" in shown
    assert "not possible: too many" in shown
    assert "3 disturbed rounds did not count" in " ".join(shown.split())
    assert "in force: threads 1" in shown
    assert "with ggml's own kernels" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert run(str(tiny), "--show") == 0
    assert capsys.readouterr().out == shown
    assert run(str(tiny), "--show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["choice"]["threads"] == 1
    assert run(str(tiny), "--forget") == 0
    assert run(str(tiny), "--show", "--json") == 0
    assert json.loads(capsys.readouterr().out) is None
    assert run(str(tiny), "--show", "--forget") == 2


def test_ctrl_c_keeps_an_older_profile(
    tiny: Path, quick: Callable[[Callable[[], Profile]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = tuned(tiny, Choice(threads=1))

    def interrupted() -> Profile:
        raise KeyboardInterrupt

    quick(interrupted)
    assert run(str(tiny)) == 130
    assert "stays as it was" in capsys.readouterr().err
    assert load(*here(tiny), None) == (before, None)


def test_config_show_says_what_is_tuned(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tiny, Choice(threads=1, max_draft=7))
    monkeypatch.setenv("EDGESPEC_MODEL", str(tiny))
    monkeypatch.setenv("EDGESPEC_MAX_DRAFT", "15")
    assert main.run(["config", "show", "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert options["threads"] == {"value": 1, "source": "tuned"}
    assert options["max_draft"] == {"value": 15, "source": "EDGESPEC_MAX_DRAFT"}
    assert main.run(["run", str(tiny), "-p", "hello", "--raw", "--json", "--max-tokens", "3", "--ctx", "256"]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["tuned"] == "threads 1"


def test_the_limits_of_an_answer_have_the_tuned_draft_length_unless_another_was_asked_for(tiny: Path) -> None:
    tuned(tiny, Choice(max_draft=2))
    for asked, used in [({}, 2), ({"max_draft": "9"}, 9), ({"max_draft": "15"}, 15), ({"tuned": "off"}, 15)]:
        config = common.load_config(None, n_ctx="256", threads="1", **asked)
        with Engine.open(tiny, config) as engine:
            assert common.tuned_limits(common.limits_of(config, None), engine).max_draft == used
            assert Chat(engine).limits.max_draft == used
            assert engine.machine.governor.max_draft == used
