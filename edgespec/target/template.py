"""Conversations to prompt text: the GGUF's own chat template in a sandbox, else a built-in one that says so.

Knows Jinja and the quirks of published templates. Knows nothing of tokens and models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError

from edgespec.errors import ModelError
from edgespec.interfaces import Message
from edgespec.target.builtin_templates import BY_ARCHITECTURE, SOURCES, TOKENS

_RANGE_BUDGET = 1_000_000  # loop steps of one rendering
_LONGEST_REPEAT = 1_000_000  # items of one "x * n"
_MARK_USER = "usermark7f3a"
_MARK_SYSTEM = "systemmark9c1e"
_BROKEN = (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError,
           RecursionError, MemoryError)  # fmt: skip


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class wants a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with the size of repetitions and powers bounded as well."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "**" and numbers and (abs(left) > _LONGEST_REPEAT or abs(right) > 64):
            raise SecurityError("a power in the template is too large")
        if operator == "*" and not numbers:
            sizes = [value if isinstance(value, int) else len(value) for value in (left, right)]
            if sizes[0] * sizes[1] > _LONGEST_REPEAT:
                raise SecurityError("a repetition in the template is too long")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str = "") -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _range_with_budget() -> Callable[..., range]:
    left = _RANGE_BUDGET

    def bounded(*arguments: int) -> range:
        nonlocal left
        steps = jinja2.sandbox.safe_range(*arguments)
        left -= len(steps)
        if left < 0:
            raise SecurityError("the template loops too long")
        return steps

    return bounded


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Implements `interfaces.Template`."""

    name: str
    """"gguf" for the model's own template, else the name of the built-in one."""
    note: str | None
    """The line to show the user where another template than the model's is used or a message is moved."""
    _template: jinja2.Template
    _variables: Mapping[str, object] = field(default_factory=dict)
    _fold_system: bool = False
    _parts: bool = False

    def render(self, messages: Iterable[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation; control tokens are written out.

        Raises:
            ModelError: the template refuses this conversation.
        """
        listed = list(messages)
        if self._fold_system:
            listed = _folded(listed)
        turns = [{"role": turn.role, "content": self._content(turn.content)} for turn in listed]
        try:
            return self._template.render(
                {"tools": None, "documents": None, **self._variables},
                messages=turns,
                add_generation_prompt=add_generation_prompt,
                range=_range_with_budget(),
            )
        except _BROKEN as error:
            raise ModelError(
                f"the chat template refused this conversation ({_line(error)}): start a new one"
            ) from error

    def _content(self, text: str) -> object:
        return [{"type": "text", "text": text}] if self._parts else text


def template_for(
    source: str | None,
    arch: str,
    *,
    bos: str = "",
    eos: str = "",
    has_token: Callable[[str], bool] | None = None,
    variables: Mapping[str, object] | None = None,
) -> ChatTemplate:
    """The template to use for a model.

    `source` is the GGUF's `tokenizer.chat_template`; `bos` and `eos` are the written start and end tokens;
    `has_token` tells whether a text is one token of the vocabulary, so that a built-in template is only chosen where
    the model knows its markers; `variables` are handed to the template as they are (such as `enable_thinking`).
    """
    values = {**(variables or {}), "bos_token": bos, "eos_token": eos}
    problem = "the model has no chat template"
    if source and source.strip():
        try:
            return _fitted("gguf", source, values, None)
        except _BROKEN as error:
            problem = f"the model's chat template does not work ({_line(error)})"
    name = _builtin_name(arch, has_token)
    if name == "raw":
        note = f"{problem}: the text is sent to it as it is, without roles"
    else:
        note = f"{problem}: using the built-in {name} template"
    return _fitted(name, SOURCES[name], values, note)


def _builtin_name(arch: str, has_token: Callable[[str], bool] | None) -> str:
    preferred = BY_ARCHITECTURE.get(arch.lower(), ())
    if has_token is None:
        return preferred[0] if preferred else "raw"
    others = [name for name in SOURCES if name not in preferred and TOKENS[name]]
    for name in (*preferred, *others):
        if all(has_token(token) for token in TOKENS[name]):
            return name
    return "raw"


def _fitted(name: str, source: str, values: Mapping[str, object], note: str | None) -> ChatTemplate:
    """Find out by trial how the template wants its messages.

    Raises:
        one of `_BROKEN`: it shows a user's text in no way that is tried.
    """
    plain = ChatTemplate(name, note, _environment().from_string(source), values)
    user = [Message("user", _MARK_USER)]
    no_tools: dict[str, object] = {"tools": [], "documents": [], "functions": ""}
    tries: list[tuple[bool, dict[str, object]]] = [(False, {}), (True, {}), (False, no_tools), (True, no_tools)]
    for parts, more in tries:
        candidate = replace(plain, _parts=parts, _variables={**more, **values})
        if _shows(candidate, user, _MARK_USER, last=(parts, more) == tries[-1]):
            break
    if _shows(candidate, [Message("system", _MARK_SYSTEM), *user], _MARK_SYSTEM, last=False):
        return candidate
    folded = "the model's chat template takes no system message: it is put before the first user message"
    return replace(candidate, _fold_system=True, note=note or folded)


def _shows(candidate: ChatTemplate, messages: Sequence[Message], mark: str, *, last: bool) -> bool:
    """Whether a rendering contains `mark`; where nothing else is left to try (`last`), failing raises."""
    try:
        shown = mark in candidate.render(messages)
    except ModelError as error:
        if last and error.__cause__ is not None:
            raise error.__cause__ from None
        return False
    if last and not shown:
        raise jinja2.TemplateError("it leaves out what the user says")
    return shown


def _folded(messages: Sequence[Message]) -> list[Message]:
    """System messages put before the text of the first user message."""
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return rest
    for index, message in enumerate(rest):
        if message.role == "user":
            rest[index] = Message("user", f"{system}\n\n{message.content}")
            return rest
    return [Message("user", system), *rest]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:160] or type(error).__name__
