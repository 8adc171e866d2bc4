"""Where edgespec keeps its files: the XDG folders. Nothing is created here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from edgespec.errors import ConfigError


def _folder(env: Mapping[str, str] | None, variable: str, *below_home: str) -> Path:
    values = os.environ if env is None else env
    given = values.get(variable, "")
    # The XDG specification: relative paths are to be ignored.
    if given and Path(given).is_absolute():
        return Path(given) / "edgespec"
    home = values.get("HOME", "")
    if home:
        return Path(home).joinpath(*below_home, "edgespec")
    try:
        return Path.home().joinpath(*below_home, "edgespec")
    except RuntimeError:
        raise ConfigError(f"no home folder is known: set HOME or {variable}") from None


def config_file(env: Mapping[str, str] | None = None) -> Path:
    """The configuration file, whether it exists or not; EDGESPEC_CONFIG names another.

    Raises:
        ConfigError: no home folder is known.
    """
    given = (os.environ if env is None else env).get("EDGESPEC_CONFIG", "")
    if given:
        return Path(given).expanduser()
    return _folder(env, "XDG_CONFIG_HOME", ".config") / "config.toml"


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """What can be made again: compiled wheels, calibrations.

    Raises:
        ConfigError: no home folder is known.
    """
    return _folder(env, "XDG_CACHE_HOME", ".cache")


def data_dir(env: Mapping[str, str] | None = None) -> Path:
    """What the user would miss: models.

    Raises:
        ConfigError: no home folder is known.
    """
    return _folder(env, "XDG_DATA_HOME", ".local", "share")


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """What outlives a run without being asked for: chat history, what drafters learned.

    Raises:
        ConfigError: no home folder is known.
    """
    return _folder(env, "XDG_STATE_HOME", ".local", "state")


def models_dir(env: Mapping[str, str] | None = None) -> Path:
    """The folder of downloaded models; EDGESPEC_MODELS names another.

    Raises:
        ConfigError: no home folder is known.
    """
    given = (os.environ if env is None else env).get("EDGESPEC_MODELS", "")
    return Path(given).expanduser() if given else data_dir(env) / "models"
