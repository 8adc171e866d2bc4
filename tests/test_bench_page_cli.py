"""`edgespec bench` with a page, a long run and several answers at once, on a tiny real model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import gguf_maker
import pytest

from edgespec.cli import common, main
from edgespec.cli.render import Screen
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.errors import ModelMemoryError

WORKLOAD = "".join(
    f'{{"question_id": {i}, "group": "{group}", "turns": ["abcabcabc abc {i}"]}}\n'
    for i, group in enumerate(("chat", "chat", "<b>edit</b>"))
)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_maker.make(tmp_path / "tiny.gguf", meta={"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    path.write_text(WORKLOAD)
    return path


def bench(model: Path, workload: Path, *more: str) -> int:
    short = ["--threads", "1", "--ctx", "1024", "--max-tokens", "12", "--ignore-eog"]
    return main.run(["bench", str(model), "--workload", str(workload), *short, *more])


@pytest.mark.usefixtures("patient")
def test_page_long_run_and_several_at_once(
    model: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no charts")
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    assert bench(
        model, workload, "--json", str(out), "--html", str(page), "--sustain", "0.01", "--concurrency", "2"
    ) == 0  # fmt: skip
    data = json.loads(out.read_text("utf-8"))
    assert data["sustain"]["modes"]["auto"]["answers"] >= 1
    assert data["sustain"]["partial"] is data["sustain"]["gave_up"] is False
    assert data["concurrency"]["sessions"] == 2
    assert {found["failed"] for found in data["concurrency"]["modes"].values()} == {0}
    assert set(data["concurrency"]["modes"]) == {"plain", "auto"}
    assert {"sustain", "concurrency"} <= set(data["about"])
    made = page.read_text("utf-8")
    for said in ("tiny", "2 answers at once", "Speed over 0.01 min", "What a pass costs", "&lt;b&gt;edit&lt;/b&gt;"):
        assert said in made
    assert "<b>" not in made
    told = capsys.readouterr().out
    assert "2 answers at once\n" in told
    assert "minute" in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.usefixtures("patient")
def test_without_them_nothing_of_it_is_there(model: Path, workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert bench(model, workload, "--json", str(out), "--per-group", "1") == 0
    data = json.loads(out.read_text("utf-8"))
    assert data["sustain"] is data["concurrency"] is None


@pytest.mark.usefixtures("patient")
def test_ctrl_c_in_the_long_run_keeps_the_rest(
    model: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgespec.bench import sustain

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sustain, "run_one", interrupted)
    out = tmp_path / "out.json"
    assert bench(model, workload, "--json", str(out), "--sustain", "5", "--concurrency", "2") == 130
    data = json.loads(out.read_text("utf-8"))
    assert data["partial"] is False
    assert data["sustain"]["partial"] is True
    assert data["concurrency"] is None
    assert "PARTIAL: it was to take 5 min." in capsys.readouterr().out


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("error", [ModelMemoryError("too large for 2"), KeyboardInterrupt()])
def test_what_was_measured_is_kept_when_the_second_engine_does_not_load(
    model: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:  # fmt: skip
    opened = common.open_engine

    def refused(config: EngineConfig, screen: Screen, n_sessions: int = 1) -> Engine:
        if n_sessions > 1:
            raise error
        return opened(config, screen)

    monkeypatch.setattr(common, "open_engine", refused)
    out = tmp_path / "out.json"
    interrupted = isinstance(error, KeyboardInterrupt)
    status = bench(model, workload, "--json", str(out), "--per-group", "1", "--concurrency", "2")
    assert status == (130 if interrupted else 0)
    data = json.loads(out.read_text("utf-8"))
    assert data["groups"]["chat"]["auto"]["runs"] == 1
    assert (data["concurrency"]["partial"], data["concurrency"]["problem"]) == (
        (True, None) if interrupted else (False, "too large for 2")
    )
    assert ("PARTIAL" if interrupted else "FAILED: too large for 2") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--html", "no/such/page.html"], "--html no/such/page.html: not a file in a folder that exists"),
        (["--html", "."], "--html .: not a file"),
        (["--sustain", "0"], "--sustain 0: give a number of minutes above 0"),
        (["--sustain", "nan"], "--sustain nan: give a number of minutes above 0"),
        (["--sustain", "inf"], "--sustain inf: give a number of minutes above 0"),
        (["--concurrency", "1"], "concurrency"),
    ],
)
def test_refused_before_loading(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "open_engine", lambda *_: pytest.fail("a model was loaded"))
    assert main.run(["bench", *args]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    monkeypatch.setattr(common, "open_engine", lambda *_: pytest.fail("a model was loaded"))
    assert main.run(["bench", "--html", str(tmp_path / "page.html")]) == 2
    told = capsys.readouterr().err.strip()
    assert "--html needs matplotlib: pip install 'edgespec[bench]'" in told
    assert len(told.splitlines()) == 1
