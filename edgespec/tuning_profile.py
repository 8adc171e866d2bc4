"""What `edgespec tune` found: values that stand between the defaults and what the user says, for one model here.

One small JSON file a model and machine. It is used only for the model, llama.cpp build and machine that it was measured
with; anything else is ignored, with one line that says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgespec import paths
from edgespec.config import EngineConfig, Unasked, Value, check
from edgespec.draft import NAMES
from edgespec.errors import ConfigError
from edgespec.kernels import named
from edgespec.state import read_small, state_file, write_json
from edgespec.target.options import kv_types

_VERSION = 1
_AGAIN = "run `edgespec tune` again"
_MOST_TEXT = 400
_MOST_ITEMS = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """Values in place of defaults, named like the options; None: the default."""

    threads: int | None = None
    """Most threads of a pass of one row; heat and other programs may leave it fewer, unlike with --threads."""
    threads_batch: int | None = None
    """Most threads of a wider pass."""
    kv_type: str | None = None
    """Types of the KV cache, "K/V"."""
    drafter: str | None = None
    """What "auto" stands for."""
    max_draft: int | None = None
    """Longest draft, 1..63."""
    file: str | None = None
    """Another file of the same model. Advice: it is never opened in place of the one that was asked for."""

    def values(self) -> dict[str, Value]:
        """The options that are not at their default."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "file"}

    def __str__(self) -> str:
        """In plain words."""
        return ", ".join(f"{name} {value}" for name, value in self.values().items()) or "all defaults"


@dataclass(frozen=True, slots=True)
class Tried:
    """One value beside the one that stood until then, measured in the same rounds."""

    value: Value
    ratio: float | None = None
    """How many times as fast, the median over the rounds; None: it was not measured."""
    low: float | None = None
    """Bounds of a 99 % bootstrap interval of it; None: it went no further than the first rounds."""
    high: float | None = None
    n_rounds: int = 0
    note: str | None = None
    """Why it could not be tried."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was decided about one option, and by which numbers."""

    option: str
    default: Value
    value: Value
    """The choice; None: the default stays."""
    why: str
    tried: tuple[Tried, ...] = ()
    s_token: float | None = None
    """Median seconds of a token with what stood until then; of passes alone: of a row."""
    n_dropped: int = 0
    """Rounds that did not count, as something else disturbed them."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The choices for one model on one machine, and how they came about."""

    fingerprint: str
    """The model."""
    build: str
    """Version of llama-cpp-python."""
    machine: str
    """The processor's name."""
    made: str
    """When, ISO 8601."""
    seconds: float
    """What measuring took."""
    choice: Choice
    findings: tuple[Finding, ...]
    kernels: str | None = None
    """What edgespec's kernels for few rows were made for; None: ggml's own computed."""


def profile_file(fingerprint: str, machine: str) -> Path:
    """Where the profile of this model on this machine lives.

    Raises:
        ConfigError: no home folder is known.
    """
    return state_file(paths.cache_dir() / "tuned", fingerprint, machine)


def load(fingerprint: str, build: str, machine: str, kernels: str | None) -> tuple[Profile | None, str | None]:
    """The profile, and a line for the user where a file was there but is of no use.

    With other kernels (see `Profile`) wide passes have other prices, and other lengths and teams are best.

    Raises:
        ConfigError: no home folder is known.
    """
    path = profile_file(fingerprint, machine)
    try:
        raw = json.loads(read_small(path))
        if raw["version"] != _VERSION:
            return None, f"the tuned profile is of another version of edgespec and is ignored: {_AGAIN}"
        found = from_json(raw)
    except FileNotFoundError:
        return None, None
    except (
        OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError, ConfigError
    ) as error:  # fmt: skip
        return None, f"the tuned profile cannot be read ({error}) and is ignored: {_AGAIN}"
    pairs = [("model", found.fingerprint, fingerprint), ("machine", found.machine, machine)]
    other = next((what for what, its, ours in pairs if its != ours), None)
    if other is not None:
        return None, f"the tuned profile is of another {other} and is ignored: {_AGAIN}"
    if found.build != build:
        return None, f"the tuned profile is of llama-cpp-python {found.build[:40]}, not {build}: ignored; {_AGAIN}"
    if found.kernels != kernels:
        its, ours = named(found.kernels), named(kernels)
        return None, f"the tuned profile was measured with {its[:40]}, not {ours}, and is ignored: {_AGAIN}"
    return found, None


def save(profile: Profile) -> Path:
    """Write the profile; the file is whole or as it was before.

    Raises:
        ConfigError: it cannot be written.
    """
    path = profile_file(profile.fingerprint, profile.machine)
    try:
        write_json(path, to_json(profile))
    except OSError as error:
        raise ConfigError(f"the profile cannot be written to {path}: {error.strerror or error}") from error
    return path


def forget(fingerprint: str, machine: str) -> bool:
    """Drop the profile, whatever it is of; whether there was one.

    Raises:
        ConfigError: it cannot be deleted.
    """
    path = profile_file(fingerprint, machine)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be deleted: {error.strerror or error}") from error
    return True


def choice_for(
    config: EngineConfig, fingerprint: str, build: str, machine: str, kernels: str | None
) -> tuple[Choice, str | None]:
    """What the profile says about options that the user leaves open, and a line where a profile is of no use."""
    if not config.tuned:
        return Choice(), None
    profile, note = load(fingerprint, build, machine, kernels)
    return (Choice(), note) if profile is None else (left_open(profile.choice, config), note)


def left_open(choice: Choice, config: EngineConfig) -> Choice:
    """The part of a choice that no flag, variable or file has taken."""
    no_threads = config.threads is None
    return Choice(
        threads=choice.threads if no_threads else None,
        threads_batch=choice.threads_batch if no_threads and config.threads_batch is None else None,
        kv_type=choice.kv_type if config.kv_type is None else None,
        drafter=choice.drafter if config.drafter == "auto" else None,
        max_draft=choice.max_draft if isinstance(config.max_draft, Unasked) else None,
        file=choice.file,
    )


def same_kv(one: str, other: str) -> bool:
    """Whether two spellings mean the same KV types."""
    return kv_types(one) == kv_types(other)


def to_json(profile: Profile) -> dict[str, Any]:
    """The profile as plain data."""
    return {"version": _VERSION, **asdict(profile)}


def from_json(raw: Any) -> Profile:
    """The profile that `to_json` gave.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, ConfigError: it is not one.
    """
    return Profile(
        _text(raw["fingerprint"]), _text(raw["build"]), _text(raw["machine"]), _text(raw["made"]),
        _number(raw["seconds"]), _choice(raw["choice"]),
        tuple(_finding(item) for item in raw["findings"][:_MOST_ITEMS]), _maybe(_text, raw.get("kernels")),
    )  # fmt: skip


def _choice(raw: Any) -> Choice:
    names = [field.name for field in fields(Choice)]
    if set(raw) - set(names):
        raise ValueError("a choice of something unknown")
    kinds: dict[str, type] = {"threads": int, "threads_batch": int, "max_draft": int}
    values: dict[str, Any] = {name: value for name, value in raw.items() if value is not None}
    for name, value in values.items():
        if type(value) is not kinds.get(name, str) or value in ("auto", 0):
            raise ValueError(f"{name} {str(value)[:40]!r}")
        if name != "file":
            check(name, value, name)
    if values.get("drafter") not in (None, *NAMES):
        raise ValueError("a drafter that there is not")
    return replace(Choice(), **values)


def _finding(raw: Any) -> Finding:
    return Finding(
        _text(raw["option"]), _value(raw["default"]), _value(raw["value"]), _text(raw["why"]),
        tuple(_tried(item) for item in raw["tried"][:_MOST_ITEMS]),
        _maybe(_number, raw["s_token"]), int(_number(raw["n_dropped"])),
    )  # fmt: skip


def _tried(raw: Any) -> Tried:
    ratio, low, high = (_maybe(_number, raw[name]) for name in ("ratio", "low", "high"))
    return Tried(_value(raw["value"]), ratio, low, high, int(_number(raw["n_rounds"])), _maybe(_text, raw["note"]))


def _maybe(read: Callable[[Any], Any], raw: Any) -> Any:
    return None if raw is None else read(raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError("a text is missing")
    return raw[:_MOST_TEXT]


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw) or raw < 0:
        raise ValueError("a number that cannot be")
    return float(raw)


def _value(raw: Any) -> Value:
    if raw is None or type(raw) is int:
        return raw
    return _text(raw)
