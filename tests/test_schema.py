"""JSON schemas that no grammar can keep are refused, and bounds of numbers are kept. What is taken: `test_grammar`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from edgespec.constraint import Constraint
from edgespec.errors import ConstraintError
from edgespec.schema_numbers import integers, numbers


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "a schema is a JSON object, true or false"),
        (False, "nothing is valid under false"),
        ({"type": "text"}, "type must be one or several of object, array"),
        ({"not": {"type": "null"}}, "cannot guarantee 'not'"),
        ({"type": "array", "uniqueItems": True}, "cannot guarantee 'uniqueItems'"),
        ({"type": "integer", "multipleOf": 5}, "cannot guarantee 'multipleOf'"),
        ({"type": "object", "patternProperties": {"^x": {}}}, "cannot guarantee 'patternProperties'"),
        ({"properties": {"a": {"items": {"if": {}}}}}, "#/properties/a/items: a grammar cannot guarantee 'if'"),
        ({"$ref": "https://example.org/s.json"}, "does not lead into this schema"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#"}, "can begin with itself"),
        ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, "nested too deeply, or a reference that only leads to itself"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may both be true"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 9}]}, "may both be true"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "'type' of the parts exclude one another"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "two values of 'pattern' that must both hold"),
        ({"enum": [1, 2], "minimum": 2}, "'minimum' beside const or enum"),
        ({"enum": ["a"], "type": "integer"}, "no value is left"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "there is no integer from 3 to 2"),
        ({"type": "number", "minimum": 0.1, "maximum": 0.9}, "holds no integer"),
        ({"type": "integer", "minimum": "3"}, "minimum takes a number"),
        ({"type": "string", "minLength": -1}, "minLength takes a count"),
        ({"type": "string", "minLength": 3000}, "at most 2000"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "from 3 to 2 repetitions"),
        ({"type": "string", "pattern": "["}, "unterminated character set"),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "a length beside a pattern"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "a length beside a pattern"),
        ({"type": "string", "pattern": "\t\x01"}, "only characters that cannot be written"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a' is required but not among"),
        ({"type": "object", "minProperties": 2}, "names may repeat"),
        ({"properties": {"a": {}}, "minProperties": 1}, "kept only by what is required"),
        ({"type": "array", "items": False, "minItems": 1}, "fewer items are allowed"),
        ({"const": float("nan")}, "cannot be written as JSON"),
        ({"const": "\ud800"}, "cannot be written as JSON"),
        ("", "a schema is a JSON object"),
        ("5", "a schema is a JSON object"),
        (None, "a schema is a JSON object"),
        ({5: 7}, "a schema is a JSON object"),
        ({"type": "object", "required": [5]}, "required takes a list of texts"),
        ({"type": "object", "required": [{}]}, "required takes a list of texts"),
        ({"type": "object", "properties": {5: {}}}, "properties takes an object"),
        ({"allOf": [{"required": ["a"]}, {"required": [[]]}]}, "required takes a list of texts"),
        ({"oneOf": [{"required": 5}, {"required": ["a"]}]}, "required takes a list of texts"),
        ({"minimum": float("inf")}, "minimum takes a number"),
        ({"maximum": float("nan")}, "maximum takes a number"),
        ({"exclusiveMaximum": 10**400}, "exclusiveMaximum takes a number"),
        ({"allOf": [{"minimum": 1}, {"minimum": "1"}]}, "minimum takes a number"),
        ('{"type": "string", "minLength": 1e999}', "minLength takes a count"),
        ('{"type": "integer", "minimum": -1e999}', "minimum takes a number"),
        ('{"const": NaN}', "cannot be written as JSON"),
        ('{"const": ' + "9" * 5000 + "}", "a number has too many digits"),
        ({"const": 10**5000}, "a number has too many digits"),
        ({"x": [1], "$ref": "#/x/" + "9" * 5000}, "leads nowhere"),
        ({"x": [1], "$ref": "#/x/" + "\u0663"}, "leads nowhere"),
        ({"properties": {"a\nb": {"not": {}}}}, "#/properties/a?b: a grammar cannot guarantee 'not'"),
        ({"type": ["object", {}]}, "type takes a text or a list of texts"),
        ({"enum": 5}, "enum takes a list"),
        ({"allOf": [{"const": 1}, {"const": True}]}, "two values of 'const'"),
        ({"allOf": [{"const": [0]}, {"const": [False]}]}, "two values of 'const'"),
        ({"allOf": [{"enum": [1, {"a": 0}]}, {"enum": [True, {"a": False}]}]}, "'enum' of the parts exclude"),
        ({"const": 1, "enum": [True]}, "no value is left"),
        ({"oneOf": [{"const": [1]}, {"const": [1.0]}]}, "may both be true"),
        ({"pattern": 5}, "pattern takes a text"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(schema: object, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint.json_schema(schema)  # type: ignore[arg-type]  # wrong ones too
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("enum", [[10**400], ["a", 10**400]])
def test_long_whole_numbers_of_an_enum_are_kept(enum: list[object]) -> None:
    assert f'"1{"0" * 400}"' in Constraint.json_schema({"type": "integer", "enum": enum}).grammar


@pytest.mark.parametrize("wrong", [5, None, b"a", ["a"]])
def test_what_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(ConstraintError, match="a regular expression is a text"):
        Constraint.regex(wrong)  # type: ignore[arg-type]  # a wrong one
    with pytest.raises(ConstraintError, match="a grammar is a text"):
        Constraint(wrong)  # type: ignore[arg-type]  # a wrong one


@pytest.mark.parametrize("pattern", ["a{" + "9" * 5000 + "}", "(" * 5000 + ")" * 5000, "\\" + "9" * 5000, "\n" * 500])
def test_long_patterns_do_not_make_long_errors(pattern: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint.regex(f"{pattern}(?=x)")
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part",
    [
        lambda ref: {"allOf": [ref, ref]},
        lambda ref: {"anyOf": [{**ref, "minProperties": 0}, {**ref, "minProperties": 0}]},
        lambda ref: {"properties": {name: {**ref, "minProperties": 0} for name in "ab"}},
    ],
)
def test_references_that_multiply_are_refused_before_long(part: Callable[[dict[str, str]], object]) -> None:
    parts = {f"a{i}": part({"$ref": f"#/$defs/a{i - 1}"}) for i in range(1, 26)}
    with pytest.raises(ConstraintError, match="too many parts when its references are followed"):
        Constraint.json_schema({"$ref": "#/$defs/a25", "$defs": {"a0": {"type": "object"}, **parts}})


def test_alternatives_are_told_apart_without_looking_too_deep() -> None:
    one: dict[str, object] = {"type": "string"}
    other: dict[str, object] = {"type": "string"}
    for _ in range(24):
        one = {"type": "object", "required": ["a", "b"], "properties": {"a": one, "b": one}}
        other = {"type": "object", "required": ["a", "b"], "properties": {"a": other, "b": other}}
    with pytest.raises(ConstraintError, match="may both be true"):
        Constraint.json_schema({"oneOf": [one, other]})


def as_regex(expression: str) -> re.Pattern[str]:
    """A grammar of digits and signs as a regular expression: both write repetitions and choices alike."""
    return re.compile(re.sub(r'"([^"]*)"', lambda match: f"(?:{re.escape(match[1])})", expression).replace(" ", ""))


def test_integers_are_all_those_between_the_bounds_and_no_other() -> None:
    rng = random.Random(1)
    for _ in range(150):
        low = rng.randint(-1300, 1300)
        high = low + rng.choice([0, 1, 5, 30, 999])
        pattern = as_regex(integers(low, high))
        for number in range(low - 40, high + 41):
            assert bool(pattern.fullmatch(str(number))) == (low <= number <= high), (low, high, number)
        assert not pattern.fullmatch(f"0{low}")


def test_numbers_keep_their_bounds() -> None:
    rng = random.Random(2)
    n_matched = 0
    for _ in range(150):
        low = rng.choice([None, rng.uniform(-50, 50), rng.randint(-30, 30)])
        high = rng.choice([None, (low or 0) + rng.choice([3, 2.5, 50])])
        above, below = rng.random() < 0.5, rng.random() < 0.5
        pattern = as_regex(numbers(low, high, above=above, below=below))
        for _ in range(150):
            drawn = (
                f"{rng.uniform(-80, 80):.3f}",
                str(rng.randint(-80, 80)),
                str(low),
                str(high),
                "0.0",
                "-0.5",
                "0.25",
            )
            text = rng.choice(drawn)
            if pattern.fullmatch(text):
                n_matched += 1
                value = float(text)
                assert low is None or (value > low if above else value >= low), (low, high, text)
                assert high is None or (value < high if below else value <= high), (low, high, text)
    assert n_matched > 3000
