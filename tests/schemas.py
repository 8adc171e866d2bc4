"""JSON schemas: a seeded generator of bounded ones, and hand-written ones as they are met in use."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "id", "größe", "名前", 'quo"te', "back\\slash", "a b", "tags", "€", "x-y.z", "line\nend", "")


def generated(seed: int) -> dict[str, Any]:
    """A schema whose values are short: nested, with enums, arrays, numbers, Unicode, and optional fields."""
    return _schema(random.Random(seed), 3)


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"]
    kind = rng.choice([*kinds, *(["object"] * 6 + ["array"] * 3 + ["anyOf", "types"]) * (depth > 0)])
    if kind == "object":
        return _object(rng, depth)
    if kind == "array":
        schema: dict[str, Any] = {"type": "array", "items": _schema(rng, depth - 1), "maxItems": rng.randint(0, 3)}
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, schema["maxItems"])
        return schema
    if kind == "anyOf":
        return {"anyOf": [_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "types":
        return {"type": ["boolean", "null", "integer"], "minimum": -9, "maximum": 9}
    return _leaf(rng, kind)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


def _leaf(rng: random.Random, kind: str) -> dict[str, Any]:
    low = rng.randint(-120, 120)
    if kind == "string":
        least = rng.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 4)}
    if kind == "integer":
        return {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 1, 9, 250])}
    if kind == "number":
        edge = rng.choice(["maximum", "exclusiveMaximum"])
        return {
            "type": "number",
            rng.choice(["minimum", "exclusiveMinimum"]): low,
            edge: low + rng.choice([2, 2.5, 70]),
        }
    if kind == "enum":
        return {"enum": rng.sample(["red", "grün", 1, 2.5, None, True, 'a"b', "\u2028", [1, "x"], {"k": 0}], 3)}
    if kind == "const":
        return {"const": rng.choice(["fixed", 7, "ß", None])}
    if kind == "pattern":
        return {
            "type": "string",
            "pattern": rng.choice([r"^[A-Z]{2}\d{3}$", r"^(ja|nein|ä+b)$", r"^\"?\\x[^a-z\s]{0,2}$"]),
        }
    return {"type": kind}


_ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string", "maxLength": 8}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "zip"],
}
_NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "next": {"anyOf": [{"$ref": "#/$defs/Node", "description": "the rest"}, {"type": "null"}]},
    },
    "required": ["value"],
}
WRITTEN: tuple[Any, ...] = (
    True,
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"], "maxLength": 3},
    {"enum": ["positive", "negative", "neutral"]},
    {"type": "string", "enum": ["a", 1, "b"]},
    {"const": {"nested": [1, 2, {"deep": "ü"}]}},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "pattern": "b"},
    {"type": "string", "pattern": "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$", "minLength": 8, "maxLength": 13},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 100000},
    {"type": "number", "minimum": -2.5, "exclusiveMaximum": 2.5},
    {"type": "number", "minimum": 5, "exclusiveMinimum": True},
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": "integer", "minimum": 1900, "maximum": 2099},
    {"type": "integer", "maximum": -17, "multipleOf": 1},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 5}, "minItems": 2, "maxItems": 4},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"enum": ["x"]}, "maxItems": 1, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 1}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3, "maxItems": 4},
    {"type": "array", "items": [{"const": "draft"}, {"const": 7}], "additionalItems": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "required": ["b"], "additionalProperties": True},
    {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a", "undeclared"],
        "additionalProperties": {"const": 2},
    },
    {"properties": {"only": {"type": "boolean"}}},
    {"$ref": "#/$defs/Node", "$defs": {"Node": _NODE}},
    {
        "type": "object",
        "properties": {"home": {"$ref": "#/definitions/A"}, "work": {"allOf": [{"$ref": "#/definitions/A"}]}},
        "required": ["home", "work"],
        "definitions": {"A": _ADDRESS},
    },
    {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["kind", "r"],
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "square"}, "side": {"type": "boolean"}},
                "required": ["kind"],
            },
        ]
    },
    {"allOf": [_ADDRESS, {"properties": {"country": {"enum": ["DE", "FR"]}}, "required": ["country"]}]},
    {
        "type": "object",
        "properties": {"n": {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]}},
        "required": ["n"],
    },
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}, False, {"const": "many"}]},
    {
        "title": "call",
        "type": "object",
        "required": ["tool", "arguments"],
        "additionalProperties": False,
        "properties": {
            "tool": {"type": "string", "enum": ["get_weather", "search", "calculator"]},
            "arguments": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 6},
                    "unit": {"enum": ["celsius", "fahrenheit"], "default": "celsius"},
                },
            },
        },
    },
    {"type": "object", "properties": {f"f{i}": {"type": "boolean"} for i in range(12)}, "required": ["f3", "f9"]},
)
