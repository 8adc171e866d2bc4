"""OpenAI's messages to those that chat templates know: system, user, assistant, and text only."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import FieldError
from edgespec.fields import Fields
from edgespec.interfaces import Message
from edgespec.tools import Tools, written_call, written_result

N_MESSAGES_MAX = 10_000
_SYSTEM = ("system", "developer")
_SILENT = ("refusal", "annotations", "audio", "reasoning_content")
"""Fields of the server's own answers that come back with a conversation and that templates do not show."""


def parse(body: Fields, tools: Tools | None) -> list[Message]:
    """The `messages` of a request; what may be called is told in the system text.

    Raises:
        FieldError: not of OpenAI's form, or of a kind that is not offered here.
    """
    listed = body.listed("messages", N_MESSAGES_MAX)
    if not listed:
        raise FieldError("messages must be a list with one message at least", "messages")
    messages: list[Message] = []
    results: list[str] = []
    for i, item in enumerate(listed):
        fields = body.as_fields(f"messages.{i}", item)
        role = fields.needed_text("role")
        if role == "tool":
            fields.text("tool_call_id")
            fields.text("name")
            results.append(written_result(_content(fields)))
            fields.done()
            continue
        _settle(messages, results)
        messages.append(_message(fields, role))
        fields.done()
    _settle(messages, results)
    return _with_tools(messages, tools) if tools is not None else messages


def _settle(messages: list[Message], results: list[str]) -> None:
    """Results of functions are told together, in the user's place: templates want the roles to alternate."""
    if results:
        messages.append(Message("user", "\n".join(results)))
        results.clear()


def _message(fields: Fields, role: str) -> Message:
    if role in _SYSTEM:
        return Message("system", _content(fields))
    if role == "user":
        return Message("user", _content(fields))
    if role == "assistant":
        calls = [_call(fields.as_fields(f"tool_calls.{i}", item)) for i, item in enumerate(_calls(fields))]
        fields.drop(_SILENT)
        text = _content(fields, needed=not calls)
        return Message("assistant", "\n".join([*([text] if text else []), *calls]))
    where = fields.path("role")
    raise FieldError(f"{where} must be system, developer, user, assistant or tool", where)


def _calls(fields: Fields) -> Sequence[object]:
    return fields.listed("tool_calls", N_MESSAGES_MAX) or []


def _call(fields: Fields) -> str:
    fields.text("id")
    fields.take("index")
    function = fields.inner("function")
    if fields.take("type") not in (None, "function") or function is None:
        raise FieldError(f"{fields.where} must be the call of a function", fields.where)
    fields.done()
    name, arguments = function.needed_text("name"), function.text("arguments")
    function.done()
    return written_call(name, arguments or "{}")


def _content(fields: Fields, *, needed: bool = True) -> str:
    """The text of a message, given at once or in parts."""
    value, where = fields.take("content"), fields.path("content")
    if value is None:
        if needed:
            raise FieldError(f"{where} is missing", where)
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise FieldError(f"{where} must be a text, or a list of parts", where)
    texts = []
    for i, item in enumerate(value):
        part = fields.as_fields(f"content.{i}", item)
        kind = part.take("type")
        if kind != "text":
            raise FieldError(
                f'{part.path("type")} must be "text": pictures, sound and files are not offered here', where
            )
        texts.append(part.needed_text("text"))
        part.done()
    return "".join(texts)


def _with_tools(messages: list[Message], tools: Tools) -> list[Message]:
    for i, message in enumerate(messages):
        if message.role == "system":
            messages[i] = Message("system", f"{message.content}\n\n{tools.told()}".lstrip("\n"))
            return messages
    return [Message("system", tools.told()), *messages]
