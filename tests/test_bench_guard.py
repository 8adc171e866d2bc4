"""The guard of the hot path: the same work passes, more of it is found and named, wherever it hides."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.core.sampling import Sampler
from edgespec.draft.suffix import SuffixDrafter

SCRIPT = Path(__file__).parents[1] / "scripts/bench_guard.py"
NAME = "sampled"


@pytest.fixture(scope="module")
def guard() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("bench_guard", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    vars(module)["N_ROUNDS"] = 25
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def before(guard: Any) -> dict[str, float]:
    found: dict[str, float] = guard.measure(guard.SCENARIOS[NAME])
    return found


@pytest.fixture(scope="module")
def greedy(guard: Any) -> dict[str, float]:
    found: dict[str, float] = guard.measure(guard.SCENARIOS["greedy"])
    return found


def grown(guard: Any, before: dict[str, float]) -> list[str]:
    """Names of the counts that the guard refuses now."""
    lines, _ = guard.compare(guard.measure(guard.SCENARIOS[NAME]), before)
    return [line.split(":")[0] for line in lines]


def with_more(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, more: Callable[[Any, Sequence[Any]], object]
) -> None:
    """Let a method do something useless as well."""
    original = getattr(kind, method)

    def slower(self: Any, *args: Any) -> Any:
        more(self, args)
        return original(self, *args)

    monkeypatch.setattr(kind, method, slower)


def spin(_self: Any, _args: Sequence[Any]) -> None:
    for _ in range(20):
        pass


def test_the_same_work_passes(guard: Any, before: dict[str, float]) -> None:
    assert before["tokens"] > 25, "nothing is drafted here"
    again = guard.measure(guard.SCENARIOS[NAME])
    assert guard.compare(again, before) == ([], [])
    exact = {name: n for name, n in before.items() if not name.startswith("bytes")}
    assert {name: again[name] for name in exact} == exact


def test_a_slower_suffix_index_is_found(guard: Any, before: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    with_more(monkeypatch, SuffixDrafter, "_extend", spin)
    assert grown(guard, before) == ["instructions", "instructions, index"]


def test_a_slower_sampler_is_found(guard: Any, before: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    with_more(monkeypatch, Sampler, "_choose", spin)
    assert grown(guard, before) == ["instructions, sampler"]


def test_a_sampler_that_sorts_every_row_is_found(
    guard: Any, before: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_more(monkeypatch, Sampler, "_choose", lambda _self, args: np.argsort(args[0]))
    assert "numpy elements" in grown(guard, before)


@pytest.mark.parametrize(
    ("kind", "method", "copy"),
    [
        (SuffixDrafter, "propose", lambda _self, args: list(args[0])),
        (Sampler, "_choose", lambda _self, args: np.array(args[0], dtype=np.float64)),
    ],
    ids=["the text", "a row, by a way that a counting array cannot follow"],
)
def test_a_copy_in_every_round_is_found(
    guard: Any,
    greedy: dict[str, float],
    kind: type,
    method: str,
    copy: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_more(monkeypatch, kind, method, copy)
    lines, _ = guard.compare(guard.measure(guard.SCENARIOS["greedy"]), greedy)
    assert "bytes held for a moment" in [line.split(":")[0] for line in lines]


@pytest.mark.parametrize(
    ("change", "fails", "says"),
    [
        ({}, False, "sampled:"),
        ({"numpy calls": 1.04}, False, "sampled:"),
        ({"numpy calls": 0.9}, True, "GROWN  numpy calls"),
        ({"instructions, verify": 0.93}, False, "sampled:"),
        ({"instructions, verify": 0.5}, True, "GROWN  instructions, verify"),
        ({"numpy elements": 1.2}, False, "shrunk numpy elements"),
        ({"tokens": 1.1}, True, "the rounds are others"),
        ({"numpy calls": None}, True, "GROWN  numpy calls: 0 ->"),
    ],
)
def test_the_command_judges_by_the_baseline(
    guard: Any,
    before: dict[str, float],
    change: dict[str, float | None],
    fails: bool,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`change`: by what the baseline differs from what is measured now; None: it has no such count."""
    monkeypatch.setattr(guard, "measure", lambda _scenario: before)
    changed = {name: n * (change.get(name, 1.0) or 0.0) for name, n in before.items() if change.get(name, 1.0)}
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({guard.VERSION: {NAME: changed}}))
    assert guard.main(["--baseline", str(file), "--only", NAME]) == int(fails)
    assert says in capsys.readouterr().out


def test_update_writes_what_the_next_run_accepts(
    guard: Any,
    before: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(guard, "measure", lambda _scenario: before)
    file = tmp_path / "baseline.json"
    arguments = ["--baseline", str(file)]
    assert guard.main(arguments) == 0
    assert "not compared" in capsys.readouterr().out
    assert not file.exists()
    assert guard.main([*arguments, "--update", "--only", NAME]) == 0
    assert guard.main([*arguments, "--only", NAME]) == 0
    assert guard.main(arguments) == 1, "a scenario without a baseline"
    assert guard.main([*arguments, "--update"]) == 0
    assert guard.main(arguments) == 0


def test_another_python_is_told_and_passed_over(
    guard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"cpython 3.99": {}}))
    assert guard.main(["--baseline", str(file)]) == 0
    assert f"no baseline for {guard.VERSION}, only for cpython 3.99" in capsys.readouterr().out


def test_the_committed_baseline_has_every_scenario(guard: Any) -> None:
    for version, scenarios in json.loads(guard.BASELINE.read_text()).items():
        assert scenarios.keys() == guard.SCENARIOS.keys(), version
