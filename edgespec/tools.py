"""Functions that a model may call: how they are told to it, the grammar of its calls, and finding them in its text.

One notation for all models, in the text of the messages: a line of JSON between `<tool_call>` and `</tool_call>`, which
the grammar makes sure of, arguments and all. Whether to call is the model's choice unless the request made it.
Source: the function-calling format of NousResearch's Hermes models, which Qwen and SmolLM share.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec import schema as schemas
from edgespec.constraint import Constraint
from edgespec.errors import FieldError
from edgespec.fields import Fields

N_TOOLS_MAX = 128
"""OpenAI's limit."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\n\{"name": "([A-Za-z0-9_-]+)", "arguments": ')
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords of a schema whose values are data: nothing in them is a reference."""
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are objects with names of the user's own."""
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: its name, what it does, and the JSON schema of its arguments."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]

    def told(self) -> str:
        """As the model is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        shown = {key: value for key, value in function.items() if value is not None}
        return json.dumps({"type": "function", "function": shown}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request, and whether and how often they may be called."""

    tools: tuple[Tool, ...]
    needed: bool = False
    """Whether there must be a call."""
    several: bool = True
    """Whether there may be more than one."""

    def told(self) -> str:
        """What the system text says about them."""
        listed = "\n".join(tool.told() for tool in self.tools)
        return (
            "You may call functions to answer. They are described here, each on a line between <tools> and </tools>:\n"
            f"<tools>\n{listed}\n</tools>\n"
            f"To call one, write its name and its arguments as JSON between {_OPEN} and {_CLOSE}:\n"
            f'{_OPEN}\n{{"name": "name-of-the-function", "arguments": {{"name-of-an-argument": "value"}}}}\n{_CLOSE}'
        )

    def constraint(self) -> Constraint:
        """Answers are text, then calls whose arguments are valid; or calls alone where one is needed.

        Raises:
            ConstraintError: a grammar cannot guarantee one of the schemas.
        """
        call = schemas.to_grammar({"anyOf": [_call_schema(tool, i) for i, tool in enumerate(self.tools)]})
        name = "t"
        while f"{name}-" in call:
            name += "t"
        more = f'"\\n{_OPEN}" {name}-calls | ""' if self.several else '""'
        rules = [
            f'root ::= "{_OPEN}" {name}-calls' if self.needed else f"root ::= {name}-0",
            f'{name}-calls ::= "\\n" {name}-call "\\n{_CLOSE}" {name}-more',
            f"{name}-more ::= {more}",
            *([] if self.needed else _free_text(name)),
            f"{name}-call ::= {call.removeprefix('root ::= ')}",
        ]
        return Constraint("\n".join(rules))


def _free_text(name: str) -> list[str]:
    """Rules for text up to the mark of a call: rule n has read the first n characters of the mark."""
    rules = [f'{name}-0 ::= [^<] {name}-0 | "<" {name}-1 | ""']
    for n in range(1, len(_OPEN)):
        following = f"{name}-{n + 1}" if n + 1 < len(_OPEN) else f"{name}-calls"
        rules.append(f'{name}-{n} ::= "{_OPEN[n]}" {following} | "<" {name}-1 | [^<{_OPEN[n]}] {name}-0 | ""')
    return rules


def _call_schema(tool: Tool, i: int) -> dict[str, Any]:
    arguments = _moved(tool.parameters, f"#/anyOf/{i}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(value: Any, root: str, *, names: bool = False) -> Any:
    """A schema whose references lead to the same places once it stands at `root`; `names`: its keys are names."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    moved: dict[str, Any] = {}
    for key, item in value.items():
        if not names and key in _DATA:
            moved[key] = item
        elif not names and key == "$ref" and isinstance(item, str) and item.startswith("#"):
            moved[key] = root + item[1:]
        else:
            moved[key] = _moved(item, root, names=not names and key in _MAPS)
    return moved


def parse(body: Fields) -> Tools | None:
    """The `tools`, `tool_choice` and `parallel_tool_calls` of a request; None where nothing may be called.

    Raises:
        FieldError: they are not of OpenAI's form, or name a function that is not there.
    """
    listed = body.listed("tools", N_TOOLS_MAX) or []
    tools = tuple(_tool(body.as_fields(f"tools.{i}", item)) for i, item in enumerate(listed))
    if len({tool.name for tool in tools}) < len(tools):
        raise FieldError("two tools have the same name", "tools")
    several = body.flag("parallel_tool_calls", default=True)
    choice = body.take("tool_choice")
    if choice is None or choice == "auto":
        return Tools(tools, several=several) if tools else None
    if choice == "none":
        return None
    if not tools:
        raise FieldError("tool_choice needs tools", "tool_choice")
    if choice == "required":
        return Tools(tools, needed=True, several=several)
    if isinstance(choice, str):
        raise FieldError('tool_choice must be "auto", "none", "required" or a function', "tool_choice")
    return Tools((_chosen(body.as_fields("tool_choice", choice), tools),), needed=True, several=False)


def _chosen(choice: Fields, tools: Sequence[Tool]) -> Tool:
    if choice.take("type") != "function":
        raise FieldError('tool_choice must be "auto", "none", "required" or of type "function"', "tool_choice")
    function = choice.inner("function")
    name = function.needed_text("name") if function is not None else choice.needed_text("name")
    for fields in (choice, *([function] if function is not None else [])):
        fields.done()
    for tool in tools:
        if tool.name == name:
            return tool
    raise FieldError("tool_choice names a function that is not among the tools", "tool_choice")


def _tool(fields: Fields) -> Tool:
    if fields.take("type") != "function":
        raise FieldError(
            f'{fields.path("type")} must be "function": no other tools are offered here', fields.path("type")
        )
    function = fields.inner("function")
    if function is None:
        raise FieldError(f"{fields.path('function')} is missing", fields.path("function"))
    fields.done()
    name = function.needed_text("name")
    if not _NAME.fullmatch(name):
        where = function.path("name")
        raise FieldError(f"{where} must be 1 to 64 letters, digits, underscores and hyphens", where)
    description = function.text("description")
    parameters = function.take("parameters")
    function.flag("strict")  # arguments always keep to their schema
    if parameters is not None and not isinstance(parameters, dict):
        raise FieldError(f"{function.path('parameters')} must be a JSON schema, an object", function.path("parameters"))
    function.done()
    return Tool(name, description, _NO_ARGUMENTS if not parameters else {"type": "object", **parameters})


def written_call(name: str, arguments: str) -> str:
    """A call as the model wrote it."""
    return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n{_CLOSE}'


def written_result(content: str) -> str:
    """What a function returned, as the model is told."""
    return f"<tool_response>\n{content}\n</tool_response>"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function as the model wrote it."""

    name: str
    arguments: Mapping[str, Any]


def calls(text: str) -> tuple[Call, ...]:
    """The calls in an answer that was asked for with tools; one that was cut off is left out."""
    splitter, found = CallSplitter(), list[tuple[str, str]]()
    for delta in [*splitter.push(text), *splitter.finish()]:
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "name" in function:
                found.append((function["name"], ""))
            found[-1] = (found[-1][0], found[-1][1] + function["arguments"])
    return tuple(Call(name, json.loads(arguments)) for name, arguments in found if _is_json(arguments))


class CallSplitter:
    """Streamed text into `delta` objects of OpenAI's streams: content, and calls with their arguments as they come.

    Relies on the grammar of `Tools.constraint`: a call is one line, so the first line end after its arguments ends it.
    """

    def __init__(self) -> None:
        self.n_calls = 0
        self.complete = False
        """Whether there were calls, all of them whole."""
        self._held = ""
        self._arguments: str | None = None

    def push(self, text: str) -> list[dict[str, Any]]:
        """Take in more text; give what is now certain."""
        self._held += text
        deltas: list[dict[str, Any]] = []
        while (delta := self._next()) is not None:
            if delta:
                deltas.append(delta)
        return deltas

    def finish(self) -> list[dict[str, Any]]:
        """Flush: an answer may have been cut off anywhere."""
        rest, self._held = self._held, ""
        if self._arguments is not None:
            whole = rest == "}" and _is_json(self._arguments)
            return [self._more(rest)] if rest and not whole else []
        return [{"content": rest}] if rest and not self.n_calls and not rest.startswith(_OPEN) else []

    def _next(self) -> dict[str, Any] | None:
        """One step; None where more text is needed."""
        if self._arguments is not None:
            return self._read_arguments()
        at = self._held.find(_OPEN)
        if at > 0 or (at < 0 and self._held):
            end = at if at > 0 else len(self._held) - _overlap(self._held)
            text, self._held = self._held[:end], self._held[end:]
            # Between calls there are only line ends and the end of the last one.
            return ({} if self.n_calls else {"content": text}) if text else None
        head = _HEAD.match(self._held, len(_OPEN)) if at == 0 else None
        if head is None:
            return None
        self._held = self._held[head.end() :]
        self._arguments, self.complete = "", False
        self.n_calls += 1
        function = {"name": head[1], "arguments": ""}
        call = {"index": self.n_calls - 1, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
        return {"tool_calls": [{**call, "function": function}]}

    def _read_arguments(self) -> dict[str, Any] | None:
        end = self._held.find("\n")
        # The last brace is the call's, not the arguments'.
        n = (end if end >= 0 else len(self._held)) - 1
        if end < 0 and n <= 0:
            return None
        text = self._held[:n]
        if end < 0:
            self._held = self._held[n:]
            return self._more(text)
        self._held = self._held[end:]
        delta = self._more(text) if text else {}
        self._arguments, self.complete = None, True
        return delta

    def _more(self, arguments: str) -> dict[str, Any]:
        self._arguments = (self._arguments or "") + arguments
        return {"tool_calls": [{"index": self.n_calls - 1, "function": {"arguments": arguments}}]}


def _overlap(text: str) -> int:
    """Length of the longest end of `text` that begins the mark of a call."""
    return next((n for n in range(min(len(text), len(_OPEN) - 1), 0, -1) if text.endswith(_OPEN[:n])), 0)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
