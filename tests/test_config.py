"""Options: precedence, sources, and what is refused."""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import config, paths
from edgespec.config import EngineConfig, load
from edgespec.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_need_no_file() -> None:
    settings = load({}, {"HOME": "/nowhere"})
    assert settings.config == EngineConfig()
    assert set(settings.sources.values()) == {"default"}
    assert settings.file == Path("/nowhere/.config/edgespec/config.toml")


def test_every_field_has_a_rule_and_every_default_passes_it() -> None:
    assert [field.name for field in fields(EngineConfig)] == list(config._RULES)
    for name, value in config.as_dict(EngineConfig()).items():
        if value is not None:
            assert config.check(name, value, name) == value


def test_flags_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "top_k = 1\ntop_p = 0.1\nmin_p = 0.1\n")
    env = {"EDGESPEC_TOP_K": "2", "EDGESPEC_TOP_P": "0.2", "EDGESPEC_SEED": ""}
    settings = load({"top_k": 3, "seed": None}, env, file)
    assert (settings.config.top_k, settings.config.top_p, settings.config.min_p) == (3, 0.2, 0.1)
    assert settings.sources["top_k"] == "flag"
    assert settings.sources["top_p"] == "EDGESPEC_TOP_P"
    assert settings.sources["min_p"] == str(file)
    assert settings.sources["seed"] == "default"


def test_the_users_file_is_found_and_edgespec_config_names_another(tmp_path: Path) -> None:
    write(tmp_path / "edgespec" / "config.toml", "\ufeffseed = 7\n")
    assert load({}, {"XDG_CONFIG_HOME": str(tmp_path)}).config.seed == 7
    other = write(tmp_path / "other.toml", "seed = 8\n")
    assert load({}, {"XDG_CONFIG_HOME": str(tmp_path), "EDGESPEC_CONFIG": str(other)}).config.seed == 8


def test_relative_xdg_folders_are_ignored() -> None:
    env = {"XDG_DATA_HOME": "relative", "HOME": "/h"}
    assert paths.models_dir(env) == Path("/h/.local/share/edgespec/models")
    assert paths.models_dir({**env, "EDGESPEC_MODELS": "/m"}) == Path("/m")


def test_no_home_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="set HOME or XDG_DATA_HOME"):
        paths.data_dir({})


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"EDGESPEC_CTX": "512"}, "EDGESPEC_CTX is not an option; did you mean EDGESPEC_N_CTX"),
        ({"EDGESPEC_TEMPERATUR": "1"}, "did you mean EDGESPEC_TEMPERATURE"),
        ({"EDGESPEC_zzz": "1"}, "config show"),
        ({"EDGESPEC_Seed": "1"}, "EDGESPEC_Seed is not an option"),
        ({"EDGESPEC_TEMPERATURE": "nan"}, "a number from 0 to 5, not 'nan'"),
        ({"EDGESPEC_TEMPERATURE": "1e999"}, "a number from 0 to 5"),
        ({"EDGESPEC_TOP_P": "0"}, "a number above 0 and up to 1"),
        ({"EDGESPEC_N_CTX": "31"}, "at least 32, or auto"),
        ({"EDGESPEC_MAX_DRAFT": "64"}, "from 0 to 63"),
        ({"EDGESPEC_MAX_DRAFT": "4.5"}, "from 0 to 63"),
        ({"EDGESPEC_MMAP": "maybe"}, "true or false"),
        ({"EDGESPEC_COLOR": "blue"}, "one of auto, always, never, not 'blue'"),
        ({"EDGESPEC_CONFIG": "/nowhere/c.toml"}, "no such configuration file"),
    ],
)
def test_refused_variables(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load({}, {"HOME": "/nowhere", **env})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temprature = 1", "temprature is not an option; did you mean temperature"),
        ("ctx = 1", "did you mean n_ctx"),
        ("seed = true", "whole number"),
        ("mmap = 1", "true or false, not 1"),
        ("model = ''", "not empty"),
        ("top_p = 1.5", "up to 1, not 1.5"),
        ("temperature = inf", "from 0 to 5"),
        ("seed = 2024-01-01", "whole number"),
        ("[chat]\nseed = 1", "chat is not an option"),
        ("seed = ", "not TOML"),
        ("kv_type = 'q9'", "one of f16"),
    ],
)
def test_refused_files(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "c.toml", text)
    with pytest.raises(ConfigError, match=message) as error:
        load({}, {}, file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load({}, {}, tmp_path)
    (tmp_path / "c.toml").write_bytes(b"seed = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load({}, {}, tmp_path / "c.toml")


def test_flags_are_named_as_the_command_line_spells_them() -> None:
    with pytest.raises(ConfigError, match="--ctx must be"):
        load({"n_ctx": 1}, {"HOME": "/nowhere"})
    with pytest.raises(ConfigError, match="--max-draft must be"):
        load({"max_draft": -1}, {"HOME": "/nowhere"})


def test_auto_means_none() -> None:
    assert load({}, {"HOME": "/x", "EDGESPEC_N_CTX": "auto"}).config.n_ctx is None


def test_whole_numbers_become_floats(tmp_path: Path) -> None:
    value = load({}, {}, write(tmp_path / "c.toml", "temperature = 1")).config.temperature
    assert isinstance(value, float)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            "system": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            "n_ctx": st.integers(32, 2**31 - 1),
            "temperature": st.floats(0, 5),
            "top_p": st.floats(0, 1, exclude_min=True),
            "mmap": st.booleans(),
            "think": st.sampled_from(["dim", "hide", "show"]),
        },
    )
)
def test_shown_options_read_back_the_same(tmp_path_factory: pytest.TempPathFactory, flags: dict[str, object]) -> None:
    settings = load(flags, {"HOME": "/nowhere"})
    text = settings.to_toml()
    tomllib.loads(text)
    file = tmp_path_factory.getbasetemp() / "round.toml"
    file.write_bytes(text.encode())
    assert asdict(load({}, {}, file).config) == asdict(settings.config)


@pytest.mark.parametrize("text", ["seed = " + "[" * 100_000, "seed = " + "9" * 5000])
def test_toml_beyond_what_python_takes_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not TOML"):
        config.load({}, {}, path)


def test_a_pipe_as_configuration_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        config.load({}, {}, path)
