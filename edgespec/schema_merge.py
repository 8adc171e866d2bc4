"""Joining JSON schemas that must hold together, and telling apart those that must not.

Knows keywords and what two of them mean together; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from edgespec.errors import ConstraintError

Schema = Mapping[str, Any]
ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions",
    "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "discriminator", "$anchor",
})  # fmt: skip
"""Keywords under which every value is valid."""
_MAX_MESSAGE = 500
KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_HINTS = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "additionalItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_LARGER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_SMALLER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_MAX_NUMBER = 10**300
"""Bounds of numbers are no larger; a float goes little further."""
_MAX_DEPTH = 5
"""Levels of properties by which alternatives are told apart."""


def fail(path: str, message: str) -> ConstraintError:
    """The error for what stands at `path` of a schema, in one line of moderate length."""
    text = "".join(char if char.isprintable() else "?" for char in f"JSON schema, {path[-200:]}: {message}")
    half = _MAX_MESSAGE // 2
    return ConstraintError(text if len(text) <= _MAX_MESSAGE else f"{text[:half]} ... {text[-half:]}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def _count(value: object) -> bool:
    return _number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]  # a number


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_COUNT = (_count, "a count")
_NUMBER = (_number, "a number, at most 1e300")
_LIST = (lambda value: isinstance(value, list), "a list")
_TAKES: dict[str, tuple[Callable[[object], bool], str]] = {
    "minLength": _COUNT, "maxLength": _COUNT, "minItems": _COUNT, "maxItems": _COUNT, "minProperties": _COUNT,
    "maxProperties": _COUNT, "minimum": _NUMBER, "maximum": _NUMBER, "multipleOf": _NUMBER,
    "exclusiveMinimum": (lambda value: isinstance(value, bool) or _number(value), _NUMBER[1]),
    "exclusiveMaximum": (lambda value: isinstance(value, bool) or _number(value), _NUMBER[1]),
    "enum": _LIST, "allOf": _LIST, "anyOf": _LIST, "oneOf": _LIST, "prefixItems": _LIST,
    "required": (_texts, "a list of texts"),
    "type": (lambda value: isinstance(value, str) or _texts(value), "a text or a list of texts"),
    "pattern": (lambda value: isinstance(value, str), "a text"),
    "properties": (lambda value: isinstance(value, Mapping) and _texts(list(value)), "an object"),
}  # fmt: skip


def checked(schema: object, path: str) -> Schema:
    """A schema that is an object, whose keywords have values of the kind they take.

    Raises:
        ConstraintError: it is something else.
    """
    if not isinstance(schema, Mapping) or not _texts(list(schema)):
        raise fail(path, "a schema is a JSON object, true or false")
    for key, (fits, what) in _TAKES.items():
        if key in schema and not fits(schema[key]):
            raise fail(path, f"{key} takes {what}")
    return schema


def kinds(schema: Schema, path: str) -> list[str]:
    """The types a schema allows; where it names none, those that its other keywords are about.

    Raises:
        ConstraintError: a type that there is not.
    """
    named = schema.get("type")
    if named is None:
        return [kind for kind, keys in _HINTS.items() if any(key in schema for key in keys)]
    listed = named if isinstance(named, list) else [named]
    if not listed or any(kind not in KINDS for kind in listed):
        raise fail(path, f"type must be one or several of {', '.join(KINDS)}")
    return [kind for kind in listed if not (kind == "integer" and "number" in listed)]


def merge(a: Schema, b: Schema, path: str) -> Schema:
    """A schema under which a value is valid where it is under both.

    Raises:
        ConstraintError: two keywords that do not join.
    """
    joined: dict[str, Any] = {**a}
    for key, value in b.items():
        if key in ANNOTATIONS or (key in joined and identity(joined[key]) == identity(value)):
            continue
        if key not in joined:
            joined[key] = value
        elif key in _LARGER and not isinstance(value, bool):
            joined[key] = max(joined[key], value)
        elif key in _SMALLER and not isinstance(value, bool):
            joined[key] = min(joined[key], value)
        elif key == "required":
            joined[key] = list(dict.fromkeys([*joined[key], *value]))
        elif key == "properties":
            joined[key] = {**joined[key], **value}
            for name in set(a["properties"]) & set(value):
                if identity(a["properties"][name]) != identity(value[name]):
                    joined[key][name] = {"allOf": [a["properties"][name], value[name]]}
        elif key == "type":
            joined[key] = _both_types(joined[key], value)
        elif key == "enum":
            both = set(map(identity, value))
            joined[key] = [item for item in joined[key] if identity(item) in both]
        else:
            raise fail(path, f"two values of {key!r} that must both hold: join them by hand")
        if joined[key] == [] and key in ("type", "enum"):
            raise fail(path, f"{key!r} of the parts exclude one another")
    for one, other in ((a, b), (b, a)):
        extra = set(other.get("properties", {})) - set(one.get("properties", {}))
        if one.get("additionalProperties", True) is not True and extra:
            raise fail(path, "additionalProperties of one part is about properties of another")
    return joined


def _both_types(a: object, b: object) -> list[object]:
    one, other = (value if isinstance(value, list) else [value] for value in (a, b))
    both = [kind for kind in one if kind in other]
    if "integer" not in both and ({"integer"} & {*one, *other}) and "number" in {*one, *other}:
        both.append("integer")
    return both


def disjoint(a: Schema | bool, b: Schema | bool, path: str, depth: int = 0) -> bool:
    """Whether surely no value is valid under both.

    Raises:
        ConstraintError: one of them is not a schema.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    a, b = checked(a, path), checked(b, path)
    values_a, values_b = _values(a), _values(b)
    if values_a is not None and values_b is not None:
        return set(map(identity, values_a)).isdisjoint(map(identity, values_b))
    if "type" in a and "type" in b and not _both_types(a["type"], b["type"]):
        return True
    if a.get("type") == b.get("type") == "object" and depth < _MAX_DEPTH:
        shared = set(a.get("required", ())) & set(b.get("required", ()))
        parts = ((a.get("properties", {}).get(name), b.get("properties", {}).get(name)) for name in shared)
        return any(x is not None and y is not None and disjoint(x, y, path, depth + 1) for x, y in parts)
    return False


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def identity(value: object) -> Hashable:
    """Equal for equal JSON values; unlike in Python, true is not 1, nor is it inside of lists and objects."""
    if isinstance(value, list):
        return list, tuple(map(identity, value))
    if isinstance(value, Mapping):
        return dict, frozenset((name, identity(item)) for name, item in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return type(value), value if isinstance(value, str | bool) else repr(value)
