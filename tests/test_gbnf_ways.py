"""Grammars that llama.cpp would read in too many ways are refused before it sees them, and ordinary ones are not."""

from __future__ import annotations

import pytest

from edgespec.constraint import Constraint
from edgespec.errors import ConstraintError

HALVES = "".join(f'r{i} ::= r{i + 1} r{i + 1} | ""\n' for i in range(8)) + 'r8 ::= "x" | ""\n'


@pytest.mark.parametrize(
    "grammar",
    [
        f'root ::= r0 "z"\n{HALVES}',
        f'root ::= "begin" "[" r0 "z"\n{HALVES}',
        "root ::= " + " | ".join(f'"k{i}"' for i in range(50_000)),
        'root ::= "a" (' + " | ".join(f'"k{i}"' for i in range(20_000)) + ")",
        "root ::= " + '"x"? ' * 300 + '"x"' * 300,
        'root ::= "ab" ' + "[a-z]? " * 300,
        'root ::= "ab" ([a-z]? [^q]? .?){30}',
    ],
)
def test_too_many_ways_are_refused(grammar: str) -> None:
    with pytest.raises(ConstraintError, match="too many ways to read the same text"):
        Constraint(grammar)


def test_too_many_ways_of_patterns_and_schemas_are_refused() -> None:
    for pattern in ("(a?b?c?d?){25}z", "x?" * 300 + "x" * 300, "(\\w?\\d?){60}"):
        with pytest.raises(ConstraintError, match="too many ways"):
            Constraint.regex(pattern)
    with pytest.raises(ConstraintError, match="too many ways"):
        Constraint.json_schema({"enum": [f"k{i}" for i in range(30_000)]})


def test_ordinary_grammars_have_few_ways() -> None:
    for pattern in (
        r"[\w.+-]+@[\w-]+(\.[\w-]+)+", r"\s*a\s*\s*b(\s*,\s*c)*", r"[a-z]{0,1000}[a-z]{0,1000}", r"(\w+ ?){1,100}",
        r"(?:ab|ab?)*", "(yes|no|maybe)( (yes|no|maybe)){0,50}", ".*", "a?b?c?d?e?f?g?h?i?j?",
    ):  # fmt: skip
        Constraint.regex(pattern)
    properties = {f"name{i}": {"type": "string", "maxLength": 50} for i in range(60)}
    for schema in (
        True,
        {"type": "object", "properties": properties},
        {"enum": [f"city {i}" for i in range(5000)]},
        {"type": "string", "format": "date-time"},
        {"type": "number", "minimum": -12345.5, "maximum": 987654321.5},
        {"type": "array", "items": {"anyOf": [{"type": "object", "properties": properties}, {"type": "string"}]}},
    ):
        Constraint.json_schema(schema)


def test_the_rule_is_named_by_its_place() -> None:
    with pytest.raises(ConstraintError, match="line 1, column 16: too many ways"):
        Constraint("root ::= [a-c] many\nmany ::= " + "[a-z]? " * 300 + "\n")


def test_recursion_is_followed_as_far_as_a_token_goes() -> None:
    Constraint('root ::= "(" root ")" | "" | "x"')
    Constraint('root ::= "a" root root | "b"')
    with pytest.raises(ConstraintError, match="too many ways"):
        Constraint('root ::= "a" root | "a" root | "a" root | "a" root | "b"')  # 4 ** 8 ways to eight a's
