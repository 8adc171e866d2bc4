"""What may be asked for by name for one answer; what is not an option is refused, with the nearest that is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from edgespec import messages, tools
from edgespec.constraint import Constraint
from edgespec.errors import ConfigError
from edgespec.fields import Fields
from edgespec.interfaces import Drafter, Limits, Message, Sampling
from edgespec.jobs import Wanted
from edgespec.request import sampling_from

if TYPE_CHECKING:
    from edgespec.config import EngineConfig
    from edgespec.core.session import Session

Messages = Sequence[Message | Mapping[str, Any]]
"""A conversation: objects, or mappings in OpenAI's notation, calls of functions and their results included."""
Prompt = str | Sequence[int] | Messages
"""A text (control tokens in it are parsed), token ids, or a conversation, which the model's template renders."""


class Options(TypedDict, total=False):
    """Options of one answer. One that is left out, or None, is as configured; see `Sampling` and `Limits` for ranges.

    At most one of `constraint`, `json_schema`, `regex`, `grammar` and `tools` says what the answer must look like.
    """

    max_tokens: int | None
    """Given as None: until the context is full."""
    stop: str | Sequence[str] | None
    max_draft: int | None
    """Longest draft, up to the engine's own `max_draft`; 0: none."""
    ignore_eog: bool | None
    drafter: str | Drafter | None
    """A name of `edgespec.draft.NAMES` or of a plug-in, or an object of your own, on its own thread unless `inline`."""
    session: Session | None
    """Continue in its KV cache, ending an answer that still runs there."""
    learn: bool | None
    """Keep the text, prompt included, in the user's data folder, to draft from it in later answers."""
    constraint: Constraint | None
    json_schema: str | Mapping[str, Any] | bool | None
    regex: str | None
    grammar: str | None
    tools: Sequence[Mapping[str, Any]] | None
    """Functions in OpenAI's notation, for conversations only; `edgespec.tools.calls` finds the calls in the text."""
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    min_keep: int | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    penalty_last_n: int | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_breakers: tuple[tuple[int, ...], ...] | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    attempt: int | None
    logprobs: int | None


NAMES = tuple(Options.__annotations__)
_SAMPLING = tuple(field.name for field in fields(Sampling))
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
_FORMS = {"json_schema": Constraint.json_schema, "regex": Constraint.regex, "grammar": Constraint}
_SLIPS = {"max_new_tokens": "max_tokens", "n_predict": "max_tokens", "num_predict": "max_tokens", "temp": "temperature",
          "draft_model": "drafter", "num_draft_tokens": "max_draft", "response_format": "json_schema"}  # fmt: skip
"""Names that other libraries use, and that no likeness of letters would lead to ours."""


class Renders(Protocol):
    """What is needed of an engine."""

    config: EngineConfig

    def prompt(self, text: str) -> list[int]:
        """Tokens of a text."""
        ...

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation."""
        ...


def wanted(
    engine: Renders, prompt: Prompt, options: Options, sampling: Sampling | None = None, limits: Limits | None = None
) -> Wanted:
    """The answer that is asked for; options come before `sampling` and `limits`, these before the configuration.

    Raises:
        ConfigError: an option is unknown, or has no such value, or does not go with another.
    """
    refuse_unknown(options, NAMES)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    config = engine.config
    sampling = sampling or sampling_from(config)
    sampling = replace(sampling, **{name: given[name] for name in _SAMPLING if name in given})
    limits = limits or Limits(config.max_tokens, max_draft=config.max_draft)
    listed = _tools(given)
    ids = _ids(engine, prompt, listed)
    drafter, session, learn = given.get("drafter"), given.get("session"), bool(given.get("learn"))
    return Wanted(ids, sampling, _limits(given, options, limits, config), drafter, _form(given, listed), session, learn)


def refuse_unknown(given: Mapping[str, Any], known: Sequence[str]) -> None:
    """See that all names are options.

    Raises:
        ConfigError: naming one that is not, and what may have been meant.
    """
    for name in given:
        if name not in known:
            near = [_SLIPS[name]] if _SLIPS.get(name) in known else difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"there is no option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def _limits(given: Mapping[str, Any], options: Options, limits: Limits, config: EngineConfig) -> Limits:
    changed: dict[str, Any] = {name: given[name] for name in ("max_draft", "ignore_eog") if name in given}
    if "max_draft" in changed:
        n = changed["max_draft"]
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= config.max_draft:
            raise ConfigError(f"max_draft must be a whole number from 0 to the engine's {config.max_draft}, not {n!r}")
    if "max_tokens" in options:
        n = changed["max_tokens"] = options["max_tokens"]
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ConfigError(f"max_tokens must be a whole number of at least 1, or None, not {n!r}")
    if "stop" in given:
        stops = [given["stop"]] if isinstance(given["stop"], str) else list(given["stop"])
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise ConfigError("stop must be a text, or several, none of them empty")
        changed["stop"] = tuple(stops)
    return replace(limits, **changed)


def _form(given: Mapping[str, Any], listed: tools.Tools | None) -> Constraint | None:
    names = [name for name in ("constraint", *_FORMS) if name in given] + (["tools"] if listed is not None else [])
    if len(names) > 1:
        raise ConfigError(f"an answer has one form: give {names[0]} or {names[1]}, not both")
    if listed is not None:
        return listed.constraint()
    for name, make in _FORMS.items():
        if name in given:
            return make(given[name])
    form = given.get("constraint")
    if form is not None and not isinstance(form, Constraint):
        raise ConfigError("constraint must be an edgespec.Constraint; json_schema, regex and grammar take texts")
    return form


def _tools(given: Mapping[str, Any]) -> tools.Tools | None:
    asked = {name: given[name] for name in _TOOLS if name in given}
    if "tools" in asked:
        asked["tools"] = list(asked["tools"])
    return tools.parse(Fields(asked))


def _ids(engine: Renders, prompt: Prompt, listed: tools.Tools | None) -> Sequence[int]:
    said = None if isinstance(prompt, str) else [item for item in prompt if isinstance(item, Message | Mapping)]
    if not said:
        if listed is not None:
            raise ConfigError("tools need a conversation: give messages instead of a text or token ids")
        return engine.prompt(prompt) if isinstance(prompt, str) else prompt  # type: ignore[return-value]  # checked later
    if len(said) < len(prompt):
        raise ConfigError("a prompt is a text, token ids, or messages, not a mixture")
    plain = [{"role": m.role, "content": m.content} if isinstance(m, Message) else dict(m) for m in said]
    return engine.prompt(engine.render(messages.parse(Fields({"messages": plain}), listed)))
