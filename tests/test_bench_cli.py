"""The command: what it refuses before anything is loaded, and a whole run on a fake engine."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from bench_fakes import FakeEngine, frozen_heap

from edgespec import paths
from edgespec.cli import common, main
from edgespec.cli.history import FILE, History
from edgespec.conditions import Conditions
from edgespec.config import EngineConfig
from edgespec.conversation import Exchange, Saved
from edgespec.core.cost import CostModel, CostTable
from edgespec.tuning_profile import Choice, left_open

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKLOAD = (
    '{"question_id": 1, "group": "chat", "turns": ["Hello?"]}\n{"question_id": 2, "group": "chat", "turns": ["So?"]}\n'
)


SENSORS = SimpleNamespace(latest=lambda: Conditions(0.0, temp_c=50.0, freq_cap=1.0, busy_others=0.1))
COST = CostModel(CostTable({1: 0.01, 4: 0.02}))


@dataclass
class Loaded(FakeEngine):
    """A fake engine that can be stamped."""

    config: EngineConfig = field(default_factory=EngineConfig)
    model_name: str = "fake"
    fingerprint: str = "f00"
    n_ctx: int = 512
    tuned: Choice = field(default_factory=lambda: Choice(max_draft=7))
    target: Any = field(default_factory=lambda: SimpleNamespace(n_threads=2))
    machine: Any = field(default_factory=lambda: SimpleNamespace(monitor=SENSORS, governor=SimpleNamespace(cost=COST)))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loaded]:
    """Opened in place of a model; `configs` would be asked of it."""
    loaded = Loaded(lambda drafter, limits: 0.005 if drafter == "auto" else 0.01)

    @contextmanager
    def opened(config: EngineConfig, screen: object) -> Iterator[Loaded]:
        loaded.config = replace(config, max_draft=left_open(loaded.tuned, config).max_draft or config.max_draft)
        yield loaded

    monkeypatch.setattr(common, "open_engine", opened)
    with frozen_heap():
        yield loaded


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--modes", "fast"], "unknown mode 'fast': choose from plain, auto"),
        (["--workload", "missing.jsonl"], "cannot read the workload"),
        (["--json", "no/such/folder.json"], "not a file in a folder that exists"),
        (["--temp", "hot"], "--temp must be a number"),
        (["--kv-type", "q2"], "--kv-type must be one of"),
        (["--rounds", "0"], "rounds"),
        (["--chats"], "nothing typed into `edgespec chat` was kept"),
        (["--workload", "w.jsonl", "--workload", "w.jsonl"], "question_id 1 is in more than one workload"),
        (["--modes", "none-3"], "unknown mode 'none-3'"),
    ],
)
def test_refused_before_loading(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.jsonl").write_text(WORKLOAD)
    monkeypatch.setattr(common, "open_engine", lambda *_: pytest.fail("a model was loaded"))
    assert main.run(["bench", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_whole_run(engine: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, out = tmp_path / "w.jsonl", tmp_path / "out.json"
    workload.write_text(WORKLOAD)
    args = ["--workload", str(workload), "--modes", "plain,auto,fixed-20", "--rounds", "2", "--json", str(out)]
    assert main.run(["bench", *args, "--max-tokens", "12"]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert found["settings"]["modes"] == ["plain", "auto", "fixed-20", "plain2"]
    assert found["settings"]["sampling"]["temperature"] == 0.0
    assert (found["stamp"]["model"], found["stamp"]["threads"]) == ("fake", 2)
    assert found["groups"]["chat"]["auto"]["pairs"] == 4
    assert engine.config.max_draft == 20  # room for the longest draft of any mode
    assert {limits.max_draft for drafter, limits in engine.asked if drafter == "auto"} == {15, 20}
    captured = capsys.readouterr()
    assert "fake, 2 threads, KV f16" in captured.out
    assert f"kernels {found['stamp']['kernels']}" in " ".join(captured.out.split())
    assert "bench 16 of 16 (100 %)" in captured.err
    assert max(map(len, captured.out.splitlines())) <= 80


def test_ones_own_chats(engine: Loaded, tmp_path: Path) -> None:
    history = History(paths.state_dir() / FILE)
    for text in ("Why?", "/save talk.json", "How?"):
        history.append(text)
    talk, out = tmp_path / "talk.json", tmp_path / "out.json"
    talk.write_text(Saved(exchanges=(Exchange("Hi?", "Hello."), Exchange("Then?", "Now."))).to_json())
    assert main.run(["bench", "--chats", "--workload", str(talk), "--max-tokens", "4", "--json", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    asked = {(run["group"], run["question_id"]) for run in found["runs"]}
    assert asked == {("talk", "talk-1"), ("talk", "talk-2"), ("typed", "typed-1"), ("typed", "typed-2")}


def test_asked_again_and_against_the_oracle(engine: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, out = tmp_path / "w.jsonl", tmp_path / "out.json"
    workload.write_text(WORKLOAD)
    args = ["--workload", str(workload), "--modes", "auto,oracle", "--warm", "--max-tokens", "6", "--json", str(out)]
    assert main.run(["bench", *args]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert found["settings"]["warm"] is True
    assert found["stamp"]["tuned"] == "max_draft 7"
    assert {limits.max_draft for drafter, limits in engine.asked} == {0, 7}  # as a chat would have it
    assert found["groups"]["chat"]["oracle"]["warm"]["runs"] == 2
    assert found["groups"]["chat"]["plain"]["footprint"]["temp_c"] == 50.0
    assert found["pass_s"] == {"1": 0.01, "4": 0.02}
    shown = capsys.readouterr().out
    assert "asked again" in shown
    assert "50 °C" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_ctrl_c_prints_what_there_is(engine: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, out = tmp_path / "w.jsonl", tmp_path / "out.json"
    workload.write_text(WORKLOAD)

    def fail(_drafter: str) -> None:
        if len(engine.asked) == 8:
            raise KeyboardInterrupt

    engine.fail = fail
    assert main.run(["bench", "--workload", str(workload), "--json", str(out)]) == 130
    assert json.loads(out.read_text("utf-8"))["partial"] is True
    assert "PARTIAL" in capsys.readouterr().out


def test_first_runs_start_with_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    from edgespec.bench.engines import FirstRuns

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[str] = []
    closed: list[int] = []

    class Engine:
        def __enter__(self) -> Engine:
            seen.append(os.environ["XDG_CACHE_HOME"])
            assert list(Path(seen[-1]).iterdir()) == []
            (Path(seen[-1]) / "learned").touch()
            return self

        def __exit__(self, *_: object) -> None:
            closed.append(len(seen))

    fresh = FirstRuns(Engine)  # type: ignore[arg-type]
    fresh()
    fresh()
    fresh.close()
    assert closed == [1, 2]
    assert len(set(seen)) == 2
    assert not any(Path(folder).exists() for folder in seen)
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path)
