"""What is tuned as a file and as a layer of options: read sceptically, and never before what the user says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import config, tuning_profile
from edgespec.config import EngineConfig, Unasked, Value
from edgespec.errors import ConfigError
from edgespec.tuning_profile import Choice, Finding, Profile, Tried, choice_for, forget, left_open, load, save

CHOICE = Choice(threads=1, threads_batch=2, kv_type="q8_0/q8_0", drafter="none", max_draft=7, file="other.gguf")
FINDING = Finding(
    "threads", 2, 1, "clearly faster", (Tried(1, 1.2, 1.1, 1.3, 40), Tried(3, note="no")), 0.01, n_dropped=2
)
PROFILE = Profile("model", "0.3.36", "processor", "2026-01-01T00:00:00+00:00", 200.0, CHOICE, (FINDING,))
HERE = ("model", "0.3.36", "processor", None)


def test_round_trip_and_forgetting() -> None:
    path = save(PROFILE)
    assert load(*HERE) == (PROFILE, None)
    path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != "kernels"}))
    assert load(*HERE) == (PROFILE, None)  # as earlier versions wrote it
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert forget("model", "processor")
    assert not forget("model", "processor")
    assert load(*HERE) == (None, None)


@given(
    st.builds(
        Choice,
        threads=st.none() | st.integers(1, 512),
        threads_batch=st.none() | st.integers(1, 512),
        kv_type=st.none() | st.sampled_from(["f16/f16", "q8_0/q8_0", "f16/bf16"]),
        drafter=st.none() | st.sampled_from(["none", "ngram"]),
        max_draft=st.none() | st.integers(1, 63),
    )
)
def test_every_choice_comes_back(choice: Choice) -> None:
    made = replace(PROFILE, choice=choice)
    assert tuning_profile.from_json(json.loads(json.dumps(tuning_profile.to_json(made)))) == made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"build": "0.4.0"}, "llama-cpp-python"),
        ({"version": 0}, "another version"),
        ({"fingerprint": "other"}, "another model"),
        ({"machine": "other"}, "another machine"),
    ],
)
def test_a_profile_of_something_else_is_ignored_with_one_line(changed: dict[str, object], said: str) -> None:
    path = save(PROFILE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    found, note = load(*HERE)
    assert found is None
    assert note is not None
    assert said in note
    assert "ignored" in note
    assert "\n" not in note
    assert choice_for(EngineConfig(), *HERE) == (Choice(), note)


@pytest.mark.parametrize("its", [None, "avx2", "avx512vnni"])
@pytest.mark.parametrize("ours", [None, "avx2"])
def test_a_profile_of_other_kernels_is_ignored_with_one_line(its: str | None, ours: str | None) -> None:
    made = replace(PROFILE, kernels=its)
    save(made)
    found, note = load(*HERE[:3], ours)
    if its == ours:
        assert (found, note) == (made, None)
        return
    assert found is None
    assert note is not None
    assert note.endswith("and is ignored: run `edgespec tune` again")
    assert [("ggml's own" if name is None else name) in note for name in (its, ours)] == [True, True]


GOOD = tuning_profile.to_json(PROFILE)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "[" * 200_000, '{"version": 1}', "\0",
        json.dumps({**GOOD, "choice": {"threads": 0}}),
        json.dumps({**GOOD, "choice": {"threads": "2"}}),
        json.dumps({**GOOD, "choice": {"threads": True}}),
        json.dumps({**GOOD, "choice": {"threads": "auto"}}),
        json.dumps({**GOOD, "choice": {"kv_type": "auto"}}),
        json.dumps({**GOOD, "choice": {"max_draft": 64}}),
        json.dumps({**GOOD, "choice": {"drafter": "gone"}}),
        json.dumps({**GOOD, "choice": {"temperature": 5}}),
        json.dumps({**GOOD, "choice": {"kv_type": "q2"}}),
        json.dumps({**GOOD, "choice": None}),
        json.dumps({**GOOD, "seconds": float("nan")}),
        json.dumps({**GOOD, "findings": [1]}),
        json.dumps({**GOOD, "kernels": 2}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_with_one_line(text: str) -> None:
    save(PROFILE).write_text(text)
    found, note = load(*HERE)
    assert found is None
    assert note is not None
    assert "cannot be read" in note
    assert "\n" not in note


def test_what_is_not_a_file_never_blocks() -> None:
    path = save(PROFILE)
    path.unlink()
    os.mkfifo(path)
    assert "not a file" in (load(*HERE)[1] or "")


def test_a_folder_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "edgespec").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be written"):
        save(PROFILE)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, CHOICE),
        ({"threads": 2}, replace(CHOICE, threads=None, threads_batch=None)),
        ({"threads_batch": 2}, replace(CHOICE, threads_batch=None)),
        ({"kv_type": "f16"}, replace(CHOICE, kv_type=None)),
        ({"drafter": "ngram"}, replace(CHOICE, drafter=None)),
        ({"max_draft": 15}, replace(CHOICE, max_draft=None)),
        ({"max_draft": 3}, replace(CHOICE, max_draft=None)),
    ],
)
def test_what_the_user_says_goes_first(given: dict[str, object], left: Choice) -> None:
    assert left_open(CHOICE, config.load(given, {"HOME": "/nowhere"}).config) == left
    env = {"HOME": "/nowhere", **{f"EDGESPEC_{name.upper()}": str(value) for name, value in given.items()}}
    assert left_open(CHOICE, config.load({}, env).config) == left
    save(PROFILE)
    assert choice_for(EngineConfig(**given), *HERE) == (left, None)  # type: ignore[arg-type]  # named options
    assert choice_for(replace(config.load(given, {"HOME": "/x"}).config, tuned=False), *HERE) == (Choice(), None)


def test_a_default_and_the_same_number_asked_for_are_told_apart_and_otherwise_equal() -> None:
    assert isinstance(EngineConfig().max_draft, Unasked)
    assert isinstance(replace(EngineConfig(), seed=3).max_draft, Unasked)
    assert not isinstance(EngineConfig(max_draft=15).max_draft, Unasked)
    assert EngineConfig() == EngineConfig(max_draft=15)
    assert json.dumps(EngineConfig().max_draft) == "15"


def test_the_file_that_show_makes_asks_for_nothing_that_is_tuned(tmp_path: Path) -> None:
    values: dict[str, Value] = {"threads": 1, "max_draft": 7}
    settings = config.with_tuned(config.load({"top_k": 9}, {"HOME": "/nowhere"}), values)
    assert settings.config.threads == 1
    assert {settings.sources[name] for name in values} == {"tuned"}
    text = settings.to_toml()
    assert "# threads = 1  # tuned" in text
    file = tmp_path / "config.toml"
    file.write_text(text)
    again = config.load({}, {"HOME": "/nowhere"}, file).config
    assert again.threads is None
    assert isinstance(again.max_draft, Unasked)
    assert again.top_k == 9
