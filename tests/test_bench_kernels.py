"""The staircase of the kernels: what was measured is read again, printed and drawn."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[1]
_SCRIPT = _ROOT / "scripts/bench_kernels.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("bench_kernels", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", *map(str, arguments)])
    script.main()


def test_the_figures_in_the_documentation_are_those_of_its_data(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(script, monkeypatch, "--from-json", _ROOT / "docs/cheap-rows.jsonl")
    shown = capsys.readouterr().out
    assert "   8    96.3  5.09     33.6  1.78    2.86x" in shown
    text = (_ROOT / "docs/cheap-rows.md").read_text(encoding="utf-8")
    for one in script.read_lines(_ROOT / "docs/cheap-rows.jsonl"):
        for costs in one.least_ms.values():
            for rows in (2, 4, 8, 16):
                for name in ("stock", "kernels"):
                    assert f"{costs[name][rows] / costs['stock'][1]:.2f}" in text


def test_lines_are_found_among_tables_and_drawn_where_something_is_missing(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = {"stock": {"1": 2.0, "4": 6.0}, "kernels": {"1": 2.0, "4": 3.0}}
    lines = [
        "threads: 2; least ms",
        json.dumps({"model": "a", "least_ms": {"2": whole}, "floor_steps": {"2": 0.9}}),
        json.dumps({"model": "b", "least_ms": {"1": whole, "2": {"stock": {"4": 6.0}, "kernels": {"4": 3.0}}}}),
    ]
    file, picture = tmp_path / "measured.txt", tmp_path / "steps.png"
    file.write_text("\n".join(lines), encoding="utf-8")
    assert [one.model for one in script.read_lines(file)] == ["a", "b"]
    run(script, monkeypatch, "--from-json", file, "--picture", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_measure_is_said(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(script, monkeypatch)
    assert "give a model, or --from-json" in capsys.readouterr().err
