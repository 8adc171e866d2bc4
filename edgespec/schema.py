"""JSON schemas to grammars: whatever the grammar lets through is valid under the schema.

It may be less than the schema allows, never more: one way of writing white space (`, ` and `: `), properties in the
order of the schema, only declared ones unless the schema wants others, numbers of at most 15 digits. What a grammar
cannot guarantee (`not`, `uniqueItems`, `contains`, ...) is refused, not ignored. `format` is kept for dates, times,
UUIDs and IPv4 addresses, and says nothing otherwise.

Source: JSON Schema 2020-12, with `items` and `definitions` of draft 7.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from edgespec import regex
from edgespec.errors import ConstraintError
from edgespec.grammar_text import Rules, choice, json_char, literal, repeat
from edgespec.schema_merge import ANNOTATIONS, checked, disjoint, identity, kinds, merge
from edgespec.schema_merge import fail as _error
from edgespec.schema_numbers import INTEGER, NUMBER, integers, numbers

_CHAR = (
    r'([\x20\x21\x23-\x5B\x5D-\x7E\u00A0-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF] | "\\" (["\\/bfnrt] | '
    r'"u" ([0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2})))'
)
_DATE = (
    r"[12]\d{3}-((01|03|05|07|08|10|12)-(0[1-9]|[12]\d|3[01])|(04|06|09|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
}
_REFUSED = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "propertyNames",
    "contains", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_COMMA = ' ", " '
_MAX_VISITS = 100_000
"""Parts of a schema that are looked at, one for each way that references and `allOf` lead to it."""
Schema = Mapping[str, Any]


def to_grammar(schema: str | Schema | bool) -> str:
    """A grammar for the JSON texts that are valid under `schema`, which may be given as JSON text.

    Raises:
        ConstraintError: no JSON, no schema, or one that a grammar cannot guarantee; saying where.
    """
    try:
        loaded = json.loads(schema) if isinstance(schema, str) else schema
        writer = _Writer(loaded)
        return writer.rules.text(writer.value(loaded, "#"))
    except json.JSONDecodeError as error:
        raise ConstraintError(f"JSON schema: not JSON: {error}; a schema is a JSON object") from None
    except RecursionError:
        raise ConstraintError("JSON schema: nested too deeply, or a reference that only leads to itself") from None
    except ValueError:  # Python neither reads nor writes whole numbers of more than 4300 digits
        raise ConstraintError("JSON schema: a number has too many digits") from None


class _Writer:
    """Writes one schema's rules. `path` says where in the schema something stands."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._refs: dict[str, str] = {}
        self._n_visits = 0
        self.rules = Rules()

    def value(self, schema: object, path: str) -> str:
        """An expression for the values of a schema, fit to stand in a sequence."""
        self._visit(path)
        if schema is True:
            return self._anything()
        if schema is False:
            raise _error(path, "nothing is valid under false")
        assertions = {key: value for key, value in checked(schema, path).items() if key not in ANNOTATIONS}
        if set(assertions) == {"$ref"}:
            return self._reference(assertions["$ref"], path)
        if set(assertions) == {"allOf"} and len(assertions["allOf"]) == 1:
            return self.value(assertions["allOf"][0], f"{path}/allOf/0")
        return self._written(self._joined(assertions, path), path)

    def _visit(self, path: str) -> None:
        self._n_visits += 1
        if self._n_visits > _MAX_VISITS:
            raise _error(path, "too many parts when its references are followed: refer to each in fewer places")

    def _written(self, schema: Schema, path: str) -> str:
        self._refuse(schema, path)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._one_of(schema, key, path)
        if "const" in schema or "enum" in schema:
            return self._listed(schema, path)
        ways = [self._of_kind(kind, schema, path) for kind in kinds(schema, path)]
        return choice(ways) if ways else self._anything()

    def _refuse(self, schema: Schema, path: str) -> None:
        for key in _REFUSED:
            if key in schema:
                raise _error(path, f"a grammar cannot guarantee {key!r}: leave it out, and check the answer")
        if schema.get("uniqueItems") not in (None, False) and not _at_most_one(schema):
            raise _error(path, "a grammar cannot guarantee 'uniqueItems': leave it out, and check the answer")
        if schema.get("unevaluatedProperties") not in (None, True, False):
            raise _error(path, "a grammar cannot guarantee 'unevaluatedProperties': use additionalProperties")

    def _joined(self, schema: Schema, path: str) -> Schema:
        """The schema without `$ref` and `allOf` at its top: what they say is joined in."""
        self._visit(path)
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", *ANNOTATIONS)}
        parts: list[object] = [self._resolve(schema["$ref"], path)] if "$ref" in schema else []
        for part in [*parts, *schema.get("allOf", ())]:
            if part is False:
                raise _error(path, "nothing is valid under false")
            if part is not True:
                rest = dict(merge(rest, self._joined(checked(part, path), path), path))
        return rest

    def _reference(self, ref: object, path: str) -> str:
        target = self._resolve(ref, path)
        name = self._refs.get(str(ref))
        if name is None:
            name = self._refs[str(ref)] = self.rules.reserve(str(ref).rsplit("/", 1)[-1])
            self.rules.define(name, self.value(target, str(ref)))
        return name

    def _resolve(self, ref: object, path: str) -> object:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise _error(path, f"the reference {ref!r} does not lead into this schema (#/...)")
        found = self._root
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and re.fullmatch("[0-9]{1,9}", key) and int(key) < len(found):
                found = found[int(key)]
            else:
                raise _error(path, f"the reference {ref!r} leads nowhere")
        return found

    def _one_of(self, schema: Schema, key: str, path: str) -> str:
        rest = {name: value for name, value in schema.items() if name != key}
        if not schema[key]:
            raise _error(path, f"{key} takes a list that is not empty")
        joined: list[Schema] = []
        ways: list[object] = []
        for i, part in enumerate(schema[key]):
            where = f"{path}/{key}/{i}"
            if part is False:
                continue
            joined.append(rest if part is True else merge(rest, self._joined(checked(part, where), where), where))
            ways.append(joined[-1] if rest else part)  # a bare reference stays one: it may lead back here
        if key == "oneOf" and not all(disjoint(a, b, path) for i, a in enumerate(joined) for b in joined[:i]):
            raise _error(path, "these alternatives of oneOf may both be true: use anyOf, or tell them apart by a const")
        if not ways:
            raise _error(path, f"{key} lets nothing through")
        return choice(self.value(way, f"{path}/{key}") for way in ways)

    def _listed(self, schema: Schema, path: str) -> str:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if "const" in schema and "enum" in schema:
            listed = set(map(identity, schema["enum"]))
            values = [value for value in values if identity(value) in listed]
        others = set(schema) - {"const", "enum", "type"}
        if others:
            raise _error(
                path, f"{sorted(others)[0]!r} beside const or enum: leave out the values that it forbids instead"
            )
        if "type" in schema:
            values = [value for value in values if any(_is(value, kind) for kind in kinds(schema, path))]
        if not values:
            raise _error(path, "no value is left")
        return choice(literal(_json(value, path)) for value in values)

    def _of_kind(self, kind: str, schema: Schema, path: str) -> str:
        try:
            if kind == "object":
                return self._object(schema, path)
            if kind == "array":
                return self._array(schema, path)
            if kind == "string":
                return self._string(schema, path)
            if kind in ("number", "integer"):
                return self._number(schema, kind, path)
        except ConstraintError as error:
            message = str(error)
            raise error if message.startswith("JSON schema") else _error(path, message) from None
        return {"boolean": '("true" | "false")', "null": '"null"'}[kind]

    def _anything(self) -> str:
        rules = self.rules
        if "" not in self._refs:
            name = self._refs[""] = rules.reserve("value")
            member = rules.add("member", f'{self._text()} ": " {name}')
            rules.define(
                name,
                f'"{{" ({member} (", " {member})*)? "}}" | "[" ({name} (", " {name})*)? "]" | {self._text()} | '
                f'{rules.add("number", NUMBER)} | "true" | "false" | "null"',
            )
        return self._refs[""]

    def _char(self) -> str:
        return self.rules.add("char", _CHAR)

    def _text(self) -> str:
        return self.rules.add("text", f'"\\"" {self._char()}* "\\""')

    def _string(self, schema: Schema, path: str) -> str:
        least, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        pattern: str | None = schema.get("pattern")
        known = _FORMATS.get(str(schema.get("format")))
        if pattern is None and known is None:
            return f'"\\"" {repeat(self._char(), least, most)} "\\""' if least or most is not None else self._text()
        if pattern is not None and known is not None:
            raise _error(path, "both a pattern and a format: leave one of them out")
        expression: str = known or schema["pattern"]
        if least or most is not None:
            shortest, longest = regex.width(expression)
            if (pattern is not None and not regex.anchored(expression)) or shortest < least:
                raise _error(path, "a length beside a pattern that does not keep to it: put it into the pattern")
            if most is not None and longest > most:
                raise _error(path, "a length beside a pattern that does not keep to it: put it into the pattern")
        inside = regex.expression(expression, self.rules, json_char, search=pattern is not None)
        return f'"\\"" {inside} "\\""'

    def _number(self, schema: Schema, kind: str, path: str) -> str:
        step = schema.get("multipleOf", 1 if kind == "integer" else None)
        if step not in (None, 1):
            raise _error(path, "a grammar cannot guarantee 'multipleOf': leave it out, and check the answer")
        least, above = _bound(schema, "minimum", "exclusiveMinimum")
        most, below = _bound(schema, "maximum", "exclusiveMaximum")
        if kind == "integer" or step == 1:
            if least is None and most is None:
                return self.rules.add("integer", INTEGER)
            low = None if least is None else math.floor(least) + 1 if above else math.ceil(least)
            high = None if most is None else math.ceil(most) - 1 if below else math.floor(most)
            return self.rules.add("integer", integers(low, high))
        if least is None and most is None:
            return self.rules.add("number", NUMBER)
        return self.rules.add("number", numbers(least, most, above=above, below=below))

    def _array(self, schema: Schema, path: str) -> str:
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # as in draft 7
            first, rest = rest, schema.get("additionalItems", True)
        if first and least <= len(first):
            rest = False
        if most is not None:
            first = first[:most]
        known = [self.value(item, f"{path}/items/{i}") for i, item in enumerate(first)]
        n = len(known)
        if rest is False or (most is not None and most <= n):
            if least > n:
                raise _error(path, "fewer items are allowed than minItems wants")
            return f'"[" {_COMMA.join(known)} "]"' if known else '"[]"'
        item = self.rules.add("item", self.value(rest, f"{path}/items"))
        n_first = max(n, 1)
        more = repeat(self.rules.add("more", f'", " {item}'), max(0, least - n_first), most and most - n_first)
        inside = f"{_COMMA.join(known) or item} {more}"
        return f'"[" {inside} "]"' if known or least else f'"[" ({inside})? "]"'

    def _object(self, schema: Schema, path: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        other = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        least, most = _count(schema, "minProperties") or 0, _count(schema, "maxProperties")
        undeclared = [name for name in required if name not in properties]
        if undeclared and other is False:
            raise _error(path, f"{undeclared[0]!r} is required but not among the properties")
        known = {**properties, **dict.fromkeys(undeclared, other)}
        if not known and other is not False:
            return self._map(other, least, most, path)
        optional = {name for name in known if name not in required and known[name] is not False}
        known = {name: value for name, value in known.items() if value is not False or name in required}
        if least > len(known) - len(optional) or (most is not None and most < len(known)):
            raise _error(path, "minProperties and maxProperties are kept only by what is required: leave them out")
        return self._members(known, optional, path)

    def _map(self, value: object, least: int, most: int | None, path: str) -> str:
        if least > 1:
            raise _error(path, "names may repeat, so that minProperties above 1 cannot be guaranteed: leave it out")
        if most == 0:
            return '"{}"'
        member = self.rules.add("member", f'{self._text()} ": " {self.value(value, f"{path}/additionalProperties")}')
        more = self.rules.add("more", f'", " {member}')
        inside = f"{member} {repeat(more, 0, None if most is None else most - 1)}"
        return f'"{{" {inside} "}}"' if least else f'"{{" ({inside})? "}}"'

    def _members(self, known: Mapping[str, object], optional: set[str], path: str) -> str:
        """Properties in order, written from the last: what may follow where one came before, and where none did."""
        tail = head = ""
        for name in reversed(list(known)):
            value = self.value(known[name], f"{path}/properties/{name}")
            member = f"{literal(_json(name, path) + ': ')} {value}"
            if name in optional:
                member = self.rules.add(name, member)
                after = tail and self.rules.add(f"{name}-rest", tail)
                none = self.rules.add(f"{name}-none", head) if head else '""'
                head = f"{member} {after}".rstrip() + f" | {none}"
                tail = f'(", " {member})? {after}'.rstrip()
            else:
                head = f"{member} {tail}".rstrip()
                tail = f'", " {head}'
                if len(head) > _LONG:
                    tail = self.rules.add(f"{name}-on", tail)
        if not known:
            return '"{}"'
        return f'"{{" ({head}) "}}"' if "|" in head else f'"{{" {head} "}}"'


_LONG = 400
"""Characters of a rule beyond which it gets a name instead of being repeated."""


def _json(value: object, path: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        raise _error(path, f"{value!r} cannot be written as JSON") from None
    return text


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value)) == kind


def _count(schema: Schema, key: str) -> int | None:
    return int(schema[key]) if key in schema else None


def _bound(schema: Schema, key: str, exclusive: str) -> tuple[float | None, bool]:
    """The tighter of an inclusive and an exclusive bound, and whether it is left out itself."""
    bound, strict = schema.get(key), schema.get(exclusive)
    if isinstance(strict, bool):  # as in draft 4
        strict, bound = (bound, None) if strict else (None, bound)
    if strict is None:
        return bound, False
    if bound is None:
        return strict, True
    tighter = bound > strict if key == "minimum" else bound < strict
    return (bound, False) if tighter else (strict, True)


def _at_most_one(schema: Schema) -> bool:
    most = schema.get("maxItems")
    return isinstance(most, int) and most <= 1
