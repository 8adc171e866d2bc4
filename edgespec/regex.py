r"""Regular expressions to grammars, read by Python's own parser.

What a grammar cannot say (looking around, back references, boundaries of words, flags) is refused. `\d`, `\w`, and `\s`
mean their ASCII characters; their opposites leave out whatever Python would count among them.
"""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from edgespec.errors import ConstraintError
from edgespec.grammar_text import ANY, Ranges, Rules, char_class, choice, complement, repeat, union

_Items = Sequence[tuple[Any, Any]]
"""What `re` parses a pattern into: pairs of an opcode and its argument."""
_DIGIT: Ranges = ((0x30, 0x39),)
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_IS: dict[str, tuple[Ranges, Callable[[str], bool]]] = {
    "DIGIT": (_DIGIT, str.isdecimal),
    "SPACE": (_SPACE, str.isspace),
    "WORD": (_WORD, lambda c: c.isalnum() or c == "_"),
}
_ENDLESS = 2**32 - 1
"""The upper bound `re` gives to a repetition without one."""
_NOT_LINE_END = complement([(0x0A, 0x0A), (0x0D, 0x0D)])
_MAX_QUOTED = 200
"""Characters of a pattern and of what is wrong with it that an error shows."""
_BEGIN = {"AT_BEGINNING", "AT_BEGINNING_STRING"}
_END = {"AT_END", "AT_END_STRING"}


def to_grammar(pattern: str) -> str:
    """A grammar for texts that match `pattern` from their beginning to their end.

    Raises:
        ConstraintError: it is no regular expression, or no grammar can say it.
    """
    rules = Rules()
    return rules.text(expression(pattern, rules, char_class, search=False))


def expression(pattern: str, rules: Rules, char: Callable[[Ranges], str], *, search: bool) -> str:
    """What `pattern` matches, as an expression over `rules`; `char` writes one character.

    With `search` it may match anywhere in the text, unless it is anchored.

    Raises:
        ConstraintError: it is no regular expression, or no grammar can say it.
    """
    parsed = _parse(pattern)
    if parsed.state.flags & ~re.UNICODE:
        raise _cannot(pattern, "flags")
    writer = _Writer(pattern, rules, char)
    return writer.whole(list(parsed), search, search)


def width(pattern: str) -> tuple[int, int]:
    """Fewest and most characters that `pattern` matches.

    Raises:
        ConstraintError: it is no regular expression.
    """
    least, most = _parse(pattern).getwidth()
    return int(least), int(most)


def anchored(pattern: str) -> bool:
    """Whether a pattern matches from the beginning to the end wherever it is searched for."""
    ops = [str(argument) for op, argument in _parse(pattern) if str(op) == "AT"]
    return len(ops) == 2 and ops[0] in _BEGIN and ops[1] in _END and pattern[:1] == "^" and pattern[-1:] == "$"


def _parse(pattern: str) -> Any:
    if not isinstance(pattern, str):
        raise ConstraintError(f"a regular expression is a text, not {type(pattern).__name__}")
    parser: Any = importlib.import_module("re._parser")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            return parser.parse(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise _fail(pattern, str(error)) from None


def _fail(pattern: str, message: str) -> ConstraintError:
    quoted = repr(pattern) if len(pattern) <= _MAX_QUOTED else f"{pattern[:_MAX_QUOTED]!r}..."
    return ConstraintError(f"regular expression {quoted}: {message[:_MAX_QUOTED]}")


def _cannot(pattern: str, what: str) -> ConstraintError:
    return _fail(pattern, f"a grammar cannot say {what}")


class _Writer:
    """Turns parsed items into expressions."""

    def __init__(self, pattern: str, rules: Rules, char: Callable[[Ranges], str]) -> None:
        self._pattern = pattern
        self._rules = rules
        self._char = char

    def whole(self, items: list[tuple[Any, Any]], before: bool, behind: bool) -> str:
        """Items at the top, with any text `before` and `behind` them unless anchors forbid it."""
        while items and str(items[0][0]) == "AT" and str(items[0][1]) in _BEGIN:
            items, before = items[1:], False
        while items and str(items[-1][0]) == "AT" and str(items[-1][1]) in _END:
            items, behind = items[:-1], False
        if len(items) == 1 and str(items[0][0]) == "BRANCH":
            return choice(self.whole(list(way), before, behind) for way in items[0][1][1])
        if len(items) == 1 and str(items[0][0]) == "SUBPATTERN" and not any(items[0][1][1:3]):
            return self.whole(list(items[0][1][3]), before, behind)
        anything = [repeat(self._rules.add("any", self._char(ANY)), 0, None)] if before or behind else []
        return " ".join([*(anything if before else []), self.sequence(items), *(anything if behind else [])])

    def sequence(self, items: _Items) -> str:
        """Items one after the other."""
        return " ".join(self.item(str(op), argument) for op, argument in items) or '""'

    def item(self, op: str, argument: Any) -> str:
        """One item as something that may stand in a sequence."""
        if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._char_of(self.ranges(op, argument))
        if op == "BRANCH":
            return choice(self.sequence(way) for way in argument[1])
        if op == "SUBPATTERN" and not any(argument[1:3]):
            return f"({self.sequence(argument[3])})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, items = argument
            body = self._rules.add("part", self.sequence(items))
            return repeat(body, least, None if most >= _ENDLESS else most)
        known = {
            "AT": "an anchor here",
            "GROUPREF": "a back reference",
            "ASSERT": "looking ahead or behind",
            "ASSERT_NOT": "looking ahead or behind",
            "SUBPATTERN": "flags",
        }
        raise _cannot(self._pattern, known.get(op, f"this ({op.lower().replace('_', ' ')})"))

    def _char_of(self, ranges: Ranges) -> str:
        try:
            return self._char(ranges)
        except ConstraintError as error:
            raise _fail(self._pattern, str(error)) from None

    def ranges(self, op: str, argument: Any) -> Ranges:
        """The characters of an item that is a single one."""
        if op == "ANY":
            return _NOT_LINE_END
        if op in ("LITERAL", "NOT_LITERAL"):
            one = [(argument, argument)]
            return one if op == "LITERAL" else complement(one)
        names = [str(name) for name, _ in argument]
        parts = argument[1:] if names[0] == "NEGATE" else argument
        if names[0] != "NEGATE":
            return union(pair for name, value in parts for pair in self.member(str(name), value, inside=True))
        return complement([pair for name, value in parts for pair in self.member(str(name), value, inside=False)])

    def member(self, name: str, value: Any, *, inside: bool) -> Ranges:
        """The characters of a part of a class: the surely meant ones, or (not `inside`) all possibly meant ones."""
        if name == "LITERAL":
            return [(value, value)]
        if name == "RANGE":
            return [value]
        category = str(value).removeprefix("CATEGORY_")
        negated = category.startswith("NOT_")
        ascii_, _ = _IS[category.removeprefix("NOT_")]
        if inside:
            return complement(_all_of(category.removeprefix("NOT_"))) if negated else ascii_
        return complement(ascii_) if negated else _all_of(category)


@functools.cache
def _all_of(category: str) -> list[tuple[int, int]]:
    """Every character that Python counts to a category; beyond the first plane all are counted, to be safe."""
    test = _IS[category][1]
    return union([*((i, i) for i in range(0x10000) if test(chr(i))), (0x10000, 0x10FFFF)])
