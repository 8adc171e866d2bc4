"""What an answer must look like: a grammar, a JSON schema, or a regular expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgespec import regex as regular
from edgespec import schema as schemas
from edgespec.core import gbnf


@dataclass(frozen=True, slots=True)
class Constraint:
    """Handed to `Engine.stream`: the answer is then a text of this grammar, or the beginning of one if it is cut.

    It is cut where `Result.finish_reason` is "length" or "cancelled", or a stop string was met.
    """

    grammar: str
    """In llama.cpp's notation (GBNF), beginning with the rule `root`; without tokens by name or number.
    Source: grammars/README.md of ggml-org/llama.cpp."""

    def __post_init__(self) -> None:
        """Check the grammar.

        Raises:
            ConstraintError: with the line and column of what is wrong.
        """
        gbnf.check(self.grammar)

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any] | bool) -> Self:
        """Answers are JSON that is valid under `schema`: JSON text, or what `json.loads` makes of it.

        White space is written one way (`, ` and `: `), properties in the order of the schema; see `edgespec.schema`.

        Raises:
            ConstraintError: not a schema, or one that a grammar cannot guarantee.
        """
        return cls(schemas.to_grammar(schema))

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Answers match `pattern` as a whole, in Python's notation; see `edgespec.regex`.

        Raises:
            ConstraintError: not a regular expression, or one that a grammar cannot say.
        """
        return cls(regular.to_grammar(pattern))
