"""Drafters that other packages register: found by name, isolated, closed, and left out in one line where broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import gguf_maker
import pytest

from edgespec.config import EngineConfig
from edgespec.draft import plugins
from edgespec.engine import Engine
from edgespec.errors import ConfigError
from edgespec.testing import ScriptedDrafter

PLAIN: Any = {"temperature": 0.0, "max_tokens": 24, "ignore_eog": True}
made: list[ScriptedDrafter] = []
threads: set[str] = set()


def works(piece: Callable[[int], bytes]) -> ScriptedDrafter:
    assert piece(100)

    def play(context: Sequence[int], limit: int) -> Sequence[int]:
        threads.add(threading.current_thread().name)
        return list(context[-1:]) * min(limit, 2)

    made.append(ScriptedDrafter(play, "mine"))
    return made[-1]


def fails(piece: Callable[[int], bytes]) -> ScriptedDrafter:
    raise OSError("no such\nfile")


def nothing(piece: Callable[[int], bytes]) -> None:
    return None


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {name: f"{__name__}:{name}" for name in ("fails", "nothing")}
    values |= {"mine": f"{__name__}:works", "absent": "no_such_module:make", "misspelt": f"{__name__}:wroks"}
    listed = EntryPoints(EntryPoint(name, value, plugins.GROUP) for name, value in values.items())
    monkeypatch.setattr(plugins, "entry_points", listed.select)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return gguf_maker.make(tmp_path / "llama.gguf")


@pytest.mark.usefixtures("registered", "patient")
def test_a_registered_drafter_drafts_on_its_own_thread_and_is_closed(path: Path) -> None:
    with Engine.open(path, EngineConfig(n_ctx=256, threads=1, drafter="mine")) as engine:
        plain = engine.generate("abc abc", **PLAIN, drafter="none")
        session = engine.session()
        drafted = engine.generate("abc abc", **PLAIN, session=session)
        assert drafted.tokens == plain.tokens
        assert drafted.report.drafter == "mine"
        assert threads == {"drafter-mine"}
        engine.release(session)
    for thread in [t for t in threading.enumerate() if t.name == "drafter-mine"]:
        thread.join()
    assert made
    assert all(drafter.closed for drafter in made)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fails", "test_draft_plugins:fails raised OSError: no such file"),
        ("nothing", "test_draft_plugins:nothing made a NoneType"),
        ("absent", "no_such_module:make raised ModuleNotFoundError"),
        ("misspelt", "test_draft_plugins:wroks raised AttributeError"),
    ],
)
def test_a_broken_plugin_is_one_line(path: Path, name: str, reason: str) -> None:
    with Engine.open(path, EngineConfig(n_ctx=256, threads=1, drafter=name)) as engine:
        for _ in range(2):
            report = engine.generate("abc abc", **PLAIN).report
            assert report.drafter == "ngram"
        (note,) = [note for note in report.notes if name in note]
        assert note.startswith(f"the drafter {name} is left out: {reason}")
        assert "\n" not in note


@pytest.mark.usefixtures("registered")
def test_an_unknown_name_is_refused_with_the_registered_ones(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown drafter 'mina': did you mean 'mine'\? choose one of auto.*mine"):
        Engine.open(path, EngineConfig(n_ctx=256, threads=1, drafter="mina"))
