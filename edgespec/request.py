"""What a request may ask for: checks in one line each, before anything native is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgespec.config import EngineConfig
from edgespec.draft import NAMES
from edgespec.errors import ConfigError
from edgespec.interfaces import Limits, Sampling


def check_drafter(name: str) -> None:
    """Refuse names that no drafter has.

    Raises:
        ConfigError: naming the choices.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown drafter {name!r}: choose one of {', '.join(NAMES)}")


def sampling_from(config: EngineConfig, attempt: int = 0) -> Sampling:
    """The configured way of drawing tokens."""
    names = (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty",
        "presence_penalty", "seed",
    )  # fmt: skip
    return Sampling(**{name: getattr(config, name) for name in names}, attempt=attempt)


def check_sampling(sampling: Sampling, n_vocab: int) -> None:
    """Refuse values outside their range.

    Raises:
        ConfigError: naming the range.
    """
    bad = [token for token in sampling.logit_bias if not 0 <= token < n_vocab]
    if bad:
        raise ConfigError(f"logit_bias names token {bad[0]}, the vocabulary has {n_vocab}")
    numbers = (sampling.temperature, sampling.frequency_penalty, sampling.presence_penalty, sampling.repeat_penalty)
    if not all(map(math.isfinite, numbers)) or any(math.isnan(bias) for bias in sampling.logit_bias.values()):
        raise ConfigError("temperature, penalties and biases must be numbers, not nan or infinite")
    if not (sampling.temperature >= 0 and 0 < sampling.top_p <= 1 and 0 <= sampling.min_p <= 1):
        raise ConfigError("temperature must be >= 0, top_p in (0, 1], min_p in 0..1")
    if not (0 < sampling.typical_p <= 1 and sampling.repeat_penalty > 0 and sampling.top_k >= 0):
        raise ConfigError("typical_p must be in (0, 1], repeat_penalty > 0, top_k >= 0")


def check_limits(limits: Limits) -> None:
    """Refuse limits that would not mean what was meant.

    Raises:
        ConfigError: saying what is wanted.
    """
    stop: object = limits.stop
    if isinstance(stop, str):  # would stop at each of its letters
        raise ConfigError("stop takes a tuple of texts, not a single text")
    if limits.max_draft < 0 or (limits.fixed_draft is not None and limits.fixed_draft < 0):
        raise ConfigError("max_draft and fixed_draft must be 0 or more")


def check_prompt(prompt: Sequence[int], n_vocab: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        ConfigError: naming the vocabulary's size.
    """
    if prompt and not (min(prompt) >= 0 and max(prompt) < n_vocab):
        raise ConfigError(f"the prompt has token ids outside 0..{n_vocab - 1}")
