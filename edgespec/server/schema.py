"""OpenAI's requests to what the engine takes. What would change the text and is not known here is refused."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec import config, messages, tools
from edgespec.constraint import Constraint
from edgespec.draft import NAMES
from edgespec.errors import ConfigError
from edgespec.fields import Fields, shown
from edgespec.interfaces import Limits, Sampling
from edgespec.jobs import Wanted
from edgespec.request import N_LOGPROBS_MAX, sampling_from
from edgespec.server.errors import RequestError, invalid
from edgespec.think import opens_thinking

if TYPE_CHECKING:
    from edgespec.engine import Engine

T = TypeVar("T")
ANSWER_TOKENS = 1024
"""Longest answer unless the request or configuration says otherwise: small models may repeat themselves for ever."""
N_CHOICES_MAX = 16
N_STOPS_MAX, N_STOP_CHARS = 16, 1000
_WHOLE_MAX = 2**31 - 1
_BIAS_MAX = 100.0
_NUMBERS = tuple(
    field.name for field in fields(Sampling)
    if field.name not in {"seed", "attempt", "logit_bias", "logprobs", "dry_breakers"}
)  # fmt: skip
_HARMLESS = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction", "cache_prompt",
)  # fmt: skip
"""Fields that other servers know and that say nothing about the text. They are named in the answer."""
_FORMATS = "text, json_object or json_schema"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing."""

    names: tuple[str, ...]
    """Of the model; the first is the one it is called by."""
    seed: int | None = None
    """None: another one for each request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, checked. The answers in `wanted` are in the order of the choices."""

    chat: bool
    wanted: tuple[Wanted, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    seed: int
    ignored: tuple[str, ...]
    echo: tuple[str, ...] = ()
    """What precedes each answer; empty: nothing."""
    calls: bool = False
    """Whether functions may be called."""
    per_token: bool = False
    """Whether each piece of a stream has the `timings` so far."""
    thinking: bool | None = None
    """Whether answers begin inside a `<think>` block; None: such blocks are not looked for."""


def chat(body: Fields, engine: Engine, defaults: Defaults) -> Asked:
    """A request to /v1/chat/completions.

    Raises:
        RequestError: 4xx; naming the field that is wrong.
        EdgespecError: the engine says what is wrong.
    """
    callable_tools = tools.parse(body)
    listed = messages.parse(body, callable_tools)
    wants_logprobs, n_top = body.flag("logprobs"), body.whole("top_logprobs", 0, N_LOGPROBS_MAX)
    if n_top is not None and not wants_logprobs:
        raise invalid("top_logprobs needs logprobs", "top_logprobs")
    if body.take("modalities") not in (None, ["text"]):
        raise invalid('modalities must be ["text"]: nothing else is offered here', "modalities")
    prompt = engine.render(listed)
    constraint = _constraint(body)
    if callable_tools is not None:
        if constraint is not None:
            raise invalid("an answer has a form of its own or may call tools, not both", "tools")
        constraint = _guaranteed(callable_tools.constraint, "tools")
    free = constraint is None or callable_tools is not None
    n_top = (n_top or 0) if wants_logprobs else None
    asked = _common(body, engine, defaults, [engine.prompt(prompt)], constraint, n_top)
    thinking = opens_thinking(prompt) if free and engine.config.think != "show" else None
    return replace(asked, chat=True, calls=callable_tools is not None, thinking=thinking)


def text(body: Fields, engine: Engine, defaults: Defaults) -> Asked:
    """A request to /v1/completions.

    Raises:
        RequestError: 4xx; naming the field that is wrong.
        EdgespecError: the engine says what is wrong.
    """
    prompts = _prompts(body, engine)
    n_top = body.whole("logprobs", 0, N_LOGPROBS_MAX)
    echo = body.flag("echo")
    if echo and n_top is not None:
        raise invalid("log-probabilities of the prompt are not offered: leave out echo or logprobs", "logprobs")
    asked = _common(body, engine, defaults, [ids for _, ids in prompts], _constraint(body), n_top)
    n = len(asked.wanted) // len(prompts)
    return replace(asked, echo=tuple(written for written, _ in prompts for _ in range(n)) if echo else ())


def _common(
    body: Fields,
    engine: Engine,
    defaults: Defaults,
    prompts: Sequence[list[int]],
    constraint: Constraint | None,
    n_top: int | None,
) -> Asked:
    """What both kinds of request have in common; refuses what nobody took."""
    model = body.text("model")
    if model is not None and model not in defaults.names:
        name = defaults.names[0]
        raise RequestError(404, f"there is no model {shown(model)} here, only {name!r}", "model", "model_not_found")
    n = body.whole("n", 1, N_CHOICES_MAX) or 1
    if (body.whole("best_of", 1, N_CHOICES_MAX) or n) != n:
        raise invalid("best_of must be n: no answer is thrown away here", "best_of")
    if n * len(prompts) > N_CHOICES_MAX:
        raise invalid(f"{n * len(prompts)} answers are asked for, at most {N_CHOICES_MAX} are given", "n")
    seed = body.whole("seed", -(2**63), 2**63 - 1)
    if seed is None:
        seed = secrets.randbelow(2**31) if defaults.seed is None else defaults.seed
    sampling = replace(_sampling(body, engine.config), seed=seed, logprobs=n_top)
    drafter, max_draft = _drafting(body, engine.config.max_draft)
    limits = replace(_limits(body, engine.config), max_draft=max_draft)
    stream = body.flag("stream")
    include_usage = _include_usage(body.inner("stream_options"), stream=stream)
    per_token = stream and body.flag("timings_per_token")
    ignored = body.drop((*_HARMLESS, "timings_per_token"))  # what is not streamed has no pieces
    body.done()
    wanted = tuple(
        Wanted(prompt, replace(sampling, attempt=attempt), limits, drafter, constraint)
        for prompt in prompts for attempt in range(n)
    )  # fmt: skip
    return Asked(False, wanted, stream, include_usage, n_top is not None, seed, ignored, per_token=per_token)


def _include_usage(options: Fields | None, *, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options needs stream", "stream_options")
    wanted = options.flag("include_usage")
    if options.flag("include_obfuscation"):
        raise invalid("streams are not obfuscated here", options.path("include_obfuscation"))
    options.done()
    return wanted


def _guaranteed(make: Callable[[], T], param: str) -> T:
    """What `make` gives; what it refuses is about `param`."""
    try:
        return make()
    except ConfigError as error:
        raise invalid(str(error), param) from None


def _prompts(body: Fields, engine: Engine) -> list[tuple[str, list[int]]]:
    """A text, several, token ids, or several lists of them; each as text and as tokens."""
    value = body.take("prompt")
    given = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    if len(given) > N_CHOICES_MAX:
        raise invalid(f"prompt has {len(given)} prompts, at most {N_CHOICES_MAX} are taken", "prompt")
    return [_prompt(one, engine) for one in given]


def _prompt(value: object, engine: Engine) -> tuple[str, list[int]]:
    if isinstance(value, str):
        written, ids = value, engine.prompt(value)
    elif isinstance(value, list):
        ids = token_ids(value, engine.target.n_vocab, "prompt")
        written = engine.decode(ids).decode("utf-8", "replace")
    else:
        raise invalid("prompt must be a text or a list of token ids, or a list of these", "prompt")
    if not ids:
        raise invalid("the prompt has no tokens: give some text", "prompt")
    return written, ids


def token_ids(value: Sequence[object], n_vocab: int, param: str) -> list[int]:
    """Token ids, checked against the vocabulary.

    Raises:
        RequestError: 400; one is something else.
    """
    ids = [item for item in value if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < n_vocab]
    if len(ids) < len(value):
        raise invalid(f"{param} must hold token ids from 0 to {n_vocab - 1}, and nothing else", param)
    return ids


def _sampling(body: Fields, options: config.EngineConfig) -> Sampling:
    """How tokens are drawn: as configured, but for what the request says."""
    given: dict[str, Any] = {}
    for name in _NUMBERS:
        value = body.take(name)
        if value is None and name == "penalty_last_n":
            value = body.take("repeat_last_n")  # llama-server's name for it
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(f"{name} must be a number, not {shown(value)}", name)
        given[name] = _guaranteed(functools.partial(config.check, name, value, name), name)
    bias = body.inner("logit_bias")
    if bias is not None:
        given["logit_bias"] = _biases(bias)
    return replace(sampling_from(options), **given)


def _biases(bias: Fields) -> Mapping[int, float]:
    found: dict[int, float] = {}
    for key in bias.names():
        value = bias.take(key)
        plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _BIAS_MAX
        if not (plain and key.isascii() and key.isdecimal() and len(key) < 10):
            raise invalid(
                f"logit_bias must give a number from -{_BIAS_MAX:g} to {_BIAS_MAX:g} for each token id", "logit_bias"
            )
        found[int(key)] = float(value)  # type: ignore[arg-type]  # it is a number, see above
    return found


def _limits(body: Fields, options: config.EngineConfig) -> Limits:
    names = ("max_tokens", "max_completion_tokens", "n_predict")
    given = [n for name in names if (n := body.whole(name, 1, _WHOLE_MAX)) is not None]
    n_max = min(given) if given else options.max_tokens or ANSWER_TOKENS
    value = body.take("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or len(stops) > N_STOPS_MAX:
        raise invalid(f"stop must be a text, or a list of at most {N_STOPS_MAX}", "stop")
    if not all(isinstance(stop, str) and 0 < len(stop) <= N_STOP_CHARS for stop in stops):
        raise invalid(f"stop must hold texts of 1 to {N_STOP_CHARS} characters", "stop")
    return Limits(n_max, stop=tuple(map(str, stops)), ignore_eog=body.flag("ignore_eos"))


def _drafting(body: Fields, configured: int) -> tuple[str | None, int]:
    """The drafter and the longest draft: `{"speculative.n_max": 4}` as llama-server, or `{"speculative": {...}}`."""
    inner = body.inner("speculative")
    name, n_max = body.text("speculative.type"), body.whole("speculative.n_max", 0, _WHOLE_MAX)
    if inner is not None:
        name, n_max = inner.text("type") or name, inner.whole("n_max", 0, _WHOLE_MAX) if n_max is None else n_max
        inner.done()
    if name is not None and name not in NAMES:
        raise invalid(f"speculative.type must be one of {', '.join(NAMES)}, not {shown(name)}", "speculative.type")
    # No more rows than were reserved when the model was opened.
    return name, configured if n_max is None else min(configured, n_max)


def _constraint(body: Fields) -> Constraint | None:
    """What the answer must look like."""
    schema, grammar, regex = body.take("json_schema"), body.text("grammar"), body.text("regex")
    makers = {
        "response_format": _of_format(body.inner("response_format")),
        "json_schema": None if schema is None else functools.partial(_of_schema, schema),
        "grammar": None if grammar is None else functools.partial(Constraint, grammar),
        "regex": None if regex is None else functools.partial(Constraint.regex, regex),
    }
    given = [(name, make) for name, make in makers.items() if make is not None]
    if len(given) > 1:
        raise invalid(f"give one of {', '.join(makers)}", given[1][0])
    return _guaranteed(given[0][1], given[0][0]) if given else None


def _of_schema(value: object) -> Constraint:
    if not isinstance(value, dict | bool):
        raise ConfigError("a JSON schema is an object, true or false")
    return Constraint.json_schema(value)


def _of_format(fields: Fields | None) -> Callable[[], Constraint] | None:
    if fields is None:
        return None
    kind = fields.take("type")
    schema: object = None
    if kind == "json_schema":
        inner = fields.inner("json_schema")
        if inner is None:
            raise invalid("response_format.json_schema is missing", "response_format.json_schema")
        inner.text("name")
        inner.text("description")
        inner.flag("strict")  # answers always keep to the schema
        schema = inner.take("schema")
        inner.done()
        if schema is None:
            raise invalid("response_format.json_schema.schema is missing", "response_format.json_schema.schema")
    elif kind == "json_object":
        schema = fields.take("schema") or {"type": "object"}  # llama-server's form
    elif kind != "text":
        raise invalid(f"response_format.type must be {_FORMATS}, not {shown(kind)}", "response_format.type")
    fields.done()
    return None if schema is None else functools.partial(_of_schema, schema)
