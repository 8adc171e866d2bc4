"""Whether this process computes with edgespec's own kernels: the options, the switch of this machine, and llama.cpp.

Called before anything else loads llama.cpp; afterwards kernels that are loaded can only be switched.
"""

from __future__ import annotations

from pathlib import Path

from edgespec import kernels, paths
from edgespec.config import EngineConfig
from edgespec.device.features import cpu_features
from edgespec.device.sysfs import Sysfs
from edgespec.errors import ConfigError, DeviceError
from edgespec.kernels import Status
from edgespec.target import lib


def switch_file() -> Path:
    """Where `edgespec kernels on` and `off` are remembered.

    Raises:
        ConfigError: no home folder is known.
    """
    return paths.state_dir() / "kernels"


def remember(on: bool) -> None:
    """Use the kernels on this machine from now on, or not.

    Raises:
        DeviceError: the choice cannot be written.
    """
    path = switch_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("on\n" if on else "off\n", encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"{path}: cannot be written ({error.strerror or error})") from error


def why_off(config: EngineConfig) -> str | None:
    """Why the kernels are not wanted; None: they are."""
    if config.kernels == "off":
        return "switched off by the option kernels = off"
    try:
        with switch_file().open(encoding="utf-8", errors="replace") as file:
            word = file.read(8).strip()
    except (OSError, ConfigError):
        word = ""
    return "switched off by `edgespec kernels off`" if word == "off" else None


def outlook(config: EngineConfig, sysfs: Sysfs | None = None) -> Status:
    """Whether a model opened now would have the kernels, and why not. Loads nothing."""
    problem = why_off(config)
    if problem is None:
        try:
            found = kernels.find_built(cpu_features(sysfs or Sysfs())).instruction_set
        except (DeviceError, ConfigError) as error:
            problem = str(error)
        else:
            return Status(True, kernels.named(found), found)
    return Status(False, problem)


def load(config: EngineConfig, sysfs: Sysfs | None = None) -> Status:
    """Load llama.cpp, behind the kernels where they are wanted and can be had; `reason` says why not.

    Raises:
        ModelError: llama-cpp-python is not installed.
        DeviceError: its library does not load.
    """
    problem = why_off(config)
    if problem is None:
        with kernels.loading(cpu_features(sysfs or Sysfs())):
            lib.native()
    else:
        lib.native()
        kernels.leave_off(problem)
    return kernels.status()
