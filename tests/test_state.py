"""What outlives a run: written whole, read sceptically, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.core.acceptance import Prior
from edgespec.core.cost import CostTable
from edgespec.state import load_state, save_state, state_file

TABLE = CostTable({1: 0.01, 4: 0.02}, 0.1, 0.2, 0.001)


def test_round_trip(tmp_path: Path) -> None:
    path = state_file(tmp_path, "model", "machine", "2 threads")
    prior = Prior({(0, "ngram", 3): (4.0, 5.0)})
    assert save_state(path, TABLE, prior) is None
    table, loaded, note = load_state(path)
    assert (table, loaded.table, note) == (TABLE, prior.table, None)
    assert state_file(tmp_path, "model", "machine", "1 thread") != path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 200_000,
        "[]",
        '{"version": 4}',
        '{"version": 4, "threads": [2, 2], "base_s": {"1": 1e-300}, '
        '"slope_one": 0, "slope_wide": 0, "switch_s": 0, "acceptance": []}',
        '{"version": 4, "threads": [2, 2], "base_s": {"1": 1, "-5": 1}, '
        '"slope_one": 0, "slope_wide": 0, "switch_s": 0, "acceptance": []}',
    ],
)
def test_rubbish_is_measured_anew_and_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    table, prior, note = load_state(path)
    assert table is None
    assert prior.table == {}
    assert note is not None
    assert "measured anew" in note


def test_another_version_is_no_news(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"version": 1}')
    assert load_state(tmp_path / "s.json")[2] is None
    assert load_state(tmp_path / "missing.json")[2] is None


def test_what_is_not_a_file_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert "not a file" in (load_state(tmp_path / "pipe.json")[2] or "")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    assert "not a file" in (load_state(tmp_path / "zero.json")[2] or "")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not saved" in (save_state(tmp_path / "file" / "s.json", TABLE, Prior()) or "")
