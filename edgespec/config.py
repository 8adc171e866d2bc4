"""TOML file, environment and flags become one frozen EngineConfig that knows where each value came from.

Knows nothing of models, drafters (their names are checked against the registry by the caller) or the command line.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from edgespec import paths
from edgespec.errors import ConfigError

Value = str | int | float | bool | None
PREFIX = "EDGESPEC_"
NOT_OPTIONS = frozenset({"EDGESPEC_CONFIG", "EDGESPEC_PYTHON", "EDGESPEC_TEST_MODEL"})
"""Variables that are used, by the scripts or before the options are read, without being options."""
DEFAULT = "default"
TUNED = "tuned"
_MAX_BYTES = 2**20
FLAG = "flag"


class Unasked(int):
    """A default that nobody asked for, told apart from the same number that somebody did: tuning may replace it."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Every option with its default. None lets edgespec choose."""

    model: str = "smollm2-135m"
    n_ctx: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    kv_type: str | None = None
    """Types of the KV cache: one name, or "K/V". None: f16, or what `exact` chooses."""
    exact: bool | None = None
    """Keep to what is certified to give the text of plain decoding; None: where that costs at most 2 %."""
    mmap: bool = True
    drafter: str = "auto"
    max_draft: int = Unasked(15)
    tuned: bool = True
    """Use what `edgespec tune` found for options that nothing else sets."""
    policy: Literal["fast", "balanced", "cool"] = "balanced"
    """What counts when the device gets hot."""
    kernels: Literal["auto", "off"] = "auto"
    """Kernels that make verify passes cheap; auto: where they are built, unless `edgespec kernels off` was said."""
    max_tokens: int | None = None
    temperature: float = 0.2
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    min_keep: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    seed: int = 0
    logprobs: int | None = None
    system: str | None = None
    offline: bool = False
    verbose: bool = False
    color: Literal["auto", "always", "never"] = "auto"
    think: Literal["dim", "hide", "show"] = "dim"
    history: bool = True
    learn: bool = True
    """Keep what `edgespec chat` and `run` are about, on this machine only, to draft from it later."""
    models: str | None = None
    """Folder of downloaded models."""
    hub_url: str | None = None
    """Where `hf:` addresses are fetched from."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options in force, and where each is from: "flag", a variable's name, a file's path, "tuned" or "default"."""

    config: EngineConfig
    sources: Mapping[str, str]
    file: Path
    """The configuration file that was looked for; it need not exist."""

    def to_toml(self) -> str:
        """The options as a configuration file that gives the same values; what edgespec chooses is commented out."""
        lines = []
        for name, value in as_dict(self.config).items():
            source = self.sources[name]
            # JSON writes strings, numbers and booleans as TOML reads them, but for DEL.
            text = "not set" if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            chosen = "# " if value is None or source == TUNED else ""
            lines.append(f"{chosen}{name} = {text}  # {source}")
        return "\n".join(lines) + "\n"


def with_tuned(settings: Settings, values: Mapping[str, Value]) -> Settings:
    """The settings with these values of a tuned profile, which hold for options that nobody set."""
    config = replace(settings.config, **values)  # type: ignore[arg-type]  # they are checked where the profile is read
    return replace(settings, config=config, sources={**settings.sources, **dict.fromkeys(values, TUNED)})


def as_dict(config: EngineConfig) -> dict[str, Value]:
    """All options by name, in the order of their declaration."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


# A rule turns what a person wrote into a value, or raises ValueError with what would have been right.
Rule = Callable[[object], Value]


def _whole(low: int, high: int) -> Rule:
    wanted = f"a whole number from {low} to {high}" if high < 2**31 - 1 else f"a whole number of at least {low}"

    def rule(raw: object) -> int:
        if isinstance(raw, str):
            try:
                raw = int(raw)
            except ValueError:
                raise ValueError(wanted) from None
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise ValueError(wanted)
        return raw

    return rule


def _number(low: float, high: float, *, above: bool = False) -> Rule:
    wanted = f"a number above {low:g} and up to {high:g}" if above else f"a number from {low:g} to {high:g}"

    def rule(raw: object) -> float:
        if isinstance(raw, str | int) and not isinstance(raw, bool):
            try:
                raw = float(raw)
            except (ValueError, OverflowError):
                raise ValueError(wanted) from None
        if not isinstance(raw, float) or not math.isfinite(raw) or not low <= raw <= high or (above and raw == low):
            raise ValueError(wanted)
        return raw

    return rule


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError("a text that is not empty")
    return raw


def _switch(raw: object) -> bool:
    if isinstance(raw, str):
        word = raw.strip().lower()
        if word in {"1", "true", "yes", "on"}:
            return True
        if word in {"0", "false", "no", "off"}:
            return False
    if isinstance(raw, bool):
        return raw
    raise ValueError("true or false")


def _one_of(*names: str) -> Rule:
    def rule(raw: object) -> str:
        if not isinstance(raw, str) or raw not in names:
            raise ValueError("one of " + ", ".join(names))
        return raw

    return rule


_KV_NAMES = ("f16", "q8_0", "bf16", "f32")


def _kv_type(raw: object) -> str:
    names = raw.split("/") if isinstance(raw, str) else []
    if len(names) not in (1, 2) or not all(name in _KV_NAMES for name in names):
        raise ValueError(f"one of {', '.join(_KV_NAMES)}, or two of them as K/V")
    return "/".join(names)


def _or_none(rule: Rule, word: str = "auto") -> Rule:
    """Also accept the word for what None means."""

    def either(raw: object) -> Value:
        if raw == word:
            return None
        try:
            return rule(raw)
        except ValueError as wanted:
            raise ValueError(f"{wanted}, or {word}") from None

    return either


_RULES: dict[str, Rule] = {
    "model": _text,
    "n_ctx": _or_none(_whole(32, 2**31 - 1)),
    "threads": _or_none(_whole(1, 512)),
    "threads_batch": _or_none(_whole(1, 512)),
    "kv_type": _or_none(_kv_type),
    "exact": _or_none(_switch),
    "mmap": _switch,
    "drafter": _text,
    "max_draft": _whole(0, 63),
    "tuned": _switch,
    "policy": _one_of("fast", "balanced", "cool"),
    "kernels": _one_of("auto", "off"),
    "max_tokens": _or_none(_whole(1, 2**31 - 1)),
    "temperature": _number(0, 5),
    "top_k": _whole(0, 2**31 - 1),
    "top_p": _number(0, 1, above=True),
    "min_p": _number(0, 1),
    "typical_p": _number(0, 1, above=True),
    "top_n_sigma": _number(0, 1000),
    "min_keep": _whole(0, 2**31 - 1),
    "xtc_probability": _number(0, 1),
    "xtc_threshold": _number(0, 1),
    "dynatemp_range": _number(0, 5),
    "dynatemp_exponent": _number(0, 100),
    "mirostat": _whole(0, 2),
    "mirostat_tau": _number(0, 100),
    "mirostat_eta": _number(0, 1),
    "repeat_penalty": _number(0, 10, above=True),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "penalty_last_n": _whole(-1, 2**31 - 1),
    "dry_multiplier": _number(0, 100),
    "dry_base": _number(1, 100),
    "dry_allowed_length": _whole(1, 2**31 - 1),
    "dry_penalty_last_n": _whole(-1, 2**31 - 1),
    "seed": _whole(0, 2**63 - 1),
    "logprobs": _or_none(_whole(0, 20), "off"),
    "system": _text,
    "offline": _switch,
    "verbose": _switch,
    "color": _one_of("auto", "always", "never"),
    "think": _one_of("dim", "hide", "show"),
    "history": _switch,
    "learn": _switch,
    "models": _text,
    "hub_url": _text,
    "debug": _switch,
}

_FLAG_OF = {"n_ctx": "--ctx", "temperature": "--temp"}
"""Flags that are not spelled like their option."""


def check(name: str, raw: object, where: str) -> Value:
    """The value of option `name` written as `raw`; `where` (a flag, variable or file) is named in the error.

    Raises:
        ConfigError: no such option, or not a value it takes.
    """
    rule = _RULES.get(name)
    if rule is None:
        raise ConfigError(f"{where} is not an option{_close(name)}")
    try:
        return rule(raw)
    except ValueError as wanted:
        raise ConfigError(f"{where} must be {wanted}, not {_shown(raw)}") from None


def load(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Merge the options: flags before EDGESPEC_* variables before the file before the defaults.

    A flag that is None and a variable that is empty count as not given. Without `file`, the one EDGESPEC_CONFIG
    names or the one in the user's configuration folder is read.

    Raises:
        ConfigError: something is not an option or not a value it takes, or a file that was named cannot be read.
    """
    env = os.environ if env is None else env
    named = file is not None or bool(env.get("EDGESPEC_CONFIG"))
    path = file if file is not None else paths.config_file(env)
    values: dict[str, Value] = {}
    sources = dict.fromkeys(_RULES, DEFAULT)

    def take(name: str, raw: object, where: str, source: str) -> None:
        values[name] = check(name, raw, where)
        sources[name] = source

    for name, raw in _read(path, must_exist=named).items():
        take(name, raw, f"{path}: {name}", str(path))
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in NOT_OPTIONS:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _RULES or variable != variable.upper():
            raise ConfigError(f"{variable} is not an option{_close(name, prefix=PREFIX)}")
        if env[variable]:
            take(name, env[variable], variable, variable)
    for name, raw in (flags or {}).items():
        if raw is not None:
            take(name, raw, _FLAG_OF.get(name, "--" + name.replace("_", "-")), FLAG)
    # The rules give each option the type its field declares.
    return Settings(EngineConfig(**values), sources, path)  # type: ignore[arg-type]


def _read(path: Path, *, must_exist: bool) -> dict[str, object]:
    try:
        # utf-8-sig: editors on Windows begin files with a byte order mark.
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: cannot be read: not a regular file")
        with path.open("rb") as file:
            return tomllib.loads(file.read(_MAX_BYTES).decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            raise ConfigError(f"{path}: no such configuration file") from error
        return {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:  # TOML errors, and numbers or nesting beyond what Python takes
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _close(name: str, *, prefix: str = "") -> str:
    near = difflib.get_close_matches(name, _RULES, n=3, cutoff=0.6)
    # Half a name is a common slip that the ratio misses: ctx for n_ctx.
    near += [option for option in _RULES if len(name) > 1 and name in option and option not in near][: 3 - len(near)]
    if not near:
        return "; `edgespec config show` lists them"
    return f"; did you mean {' or '.join(prefix + (option.upper() if prefix else option) for option in near)}?"


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
