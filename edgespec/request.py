"""What a request may ask for: checks in one line each, before anything native is touched."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from numbers import Integral, Real

from edgespec.config import EngineConfig
from edgespec.draft import NAMES, plugins
from edgespec.errors import ConfigError
from edgespec.interfaces import Limits, Sampling, Tokenizer

N_LOGPROBS_MAX = 20
"""OpenAI's limit of `top_logprobs`."""
_CONFIGURED = tuple(f.name for f in fields(Sampling) if f.name in {option.name for option in fields(EngineConfig)})
_FLOAT_MAX = sys.float_info.max
_BREAKING = frozenset(b'\n:"*')

_NUMBER, _WHOLE = "a number", "a whole number"


def _any(_: float) -> bool:
    return True


_RANGES: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("temperature", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("top_k", _WHOLE, " of at least 0", lambda x: x >= 0),
    ("top_p", _NUMBER, " above 0 and up to 1", lambda x: 0 < x <= 1),
    ("min_p", _NUMBER, " from 0 to 1", lambda x: 0 <= x <= 1),
    ("typical_p", _NUMBER, " above 0 and up to 1", lambda x: 0 < x <= 1),
    ("top_n_sigma", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("min_keep", _WHOLE, " of at least 0", lambda x: x >= 0),
    ("xtc_probability", _NUMBER, " from 0 to 1", lambda x: 0 <= x <= 1),
    ("xtc_threshold", _NUMBER, " from 0 to 1", lambda x: 0 <= x <= 1),
    ("dynatemp_range", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("dynatemp_exponent", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("mirostat", _WHOLE, ": 0 (off), 1 or 2", lambda x: x in (0, 1, 2)),
    ("mirostat_tau", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("mirostat_eta", _NUMBER, " from 0 to 1", lambda x: 0 <= x <= 1),
    ("repeat_penalty", _NUMBER, " above 0", lambda x: x > 0),
    ("frequency_penalty", _NUMBER, "", _any),
    ("presence_penalty", _NUMBER, "", _any),
    ("penalty_last_n", _WHOLE, " of at least 0, or -1 (all)", lambda x: x >= -1),
    ("dry_multiplier", _NUMBER, " of at least 0", lambda x: x >= 0),
    ("dry_base", _NUMBER, " of at least 1", lambda x: x >= 1),
    ("dry_allowed_length", _WHOLE, " of at least 1", lambda x: x >= 1),
    ("dry_penalty_last_n", _WHOLE, " of at least 0, or -1 (all)", lambda x: x >= -1),
    ("seed", _WHOLE, "", _any),
    ("attempt", _WHOLE, "", _any),
)
"""Option, its kind, its range in words, and the range as a test."""


def check_drafter(name: str) -> None:
    """Refuse names that no drafter has.

    Raises:
        ConfigError: naming the choices.
    """
    if name not in NAMES and name not in (others := plugins.names()):
        near = difflib.get_close_matches(name, (*NAMES, *others), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown drafter {name!r}: {hint}choose one of {', '.join((*NAMES, *others))}")


def sampling_from(config: EngineConfig, attempt: int = 0) -> Sampling:
    """The configured way of drawing tokens."""
    return Sampling(**{name: getattr(config, name) for name in _CONFIGURED}, attempt=attempt)


def check_sampling(sampling: Sampling, n_vocab: int) -> None:
    """Refuse values outside their range.

    Raises:
        ConfigError: naming the range.
    """
    for name, kind, words, allowed in _RANGES:
        value = getattr(sampling, name)
        if not (_is(kind, value) and allowed(value)):
            raise ConfigError(f"{name} must be {kind}{words}, not {value!r}")
    n = sampling.logprobs
    if n is not None and not (_is(_WHOLE, n) and 0 <= n <= N_LOGPROBS_MAX):
        raise ConfigError(f"logprobs must be None or a whole number from 0 to {N_LOGPROBS_MAX}, not {n!r}")
    if any(math.isnan(bias) for bias in sampling.logit_bias.values()):
        raise ConfigError("biases must be numbers, not nan")
    if any(not breaker for breaker in sampling.dry_breakers or ()):
        raise ConfigError("dry_breakers must be sequences of one token or more")
    named = {"logit_bias": sampling.logit_bias, "dry_breakers": chain.from_iterable(sampling.dry_breakers or ())}
    for name, tokens in named.items():
        bad = [token for token in tokens if not 0 <= token < n_vocab]
        if bad:
            raise ConfigError(f"{name} names token {bad[0]}, the vocabulary has {n_vocab}")


def _is(kind: str, value: object) -> bool:
    """Whether `value` is a number of that kind, neither nan nor beyond what a float holds."""
    if isinstance(value, bool):
        return False
    if kind == _WHOLE:
        return isinstance(value, Integral)
    # Not math.isfinite, which raises for whole numbers beyond floats.
    return isinstance(value, Real) and -_FLOAT_MAX <= value <= _FLOAT_MAX  # type: ignore[operator]  # numbers.Real declares no order with floats


def breakers(tokenizer: Tokenizer, n_vocab: int) -> tuple[tuple[int, ...], ...]:
    """The tokens over which DRY sees no repetition: those whose text has a line end, colon, quotation mark or asterisk.

    Source: the default of llama.cpp's `dry_sequence_breakers`.
    """
    return tuple((token,) for token in range(n_vocab) if not _BREAKING.isdisjoint(tokenizer.piece(token)))


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
