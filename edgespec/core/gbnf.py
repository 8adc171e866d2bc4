"""Checks a grammar in llama.cpp's notation (GBNF) before llama.cpp sees it, so that a bad one is an error of one line.

llama.cpp prints a bad grammar to stderr, does not end on some kinds of left recursion, takes exponential time to look
for the others, and turns long repetitions into endless ones. Source: llama-grammar.cpp as vendored in
llama-cpp-python 0.3.36 (`parse_sequence`, `llama_grammar_detect_left_recursion`, `llama_grammar_advance_stack`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from edgespec.core.gbnf_ways import Chars, check_ways
from edgespec.errors import ConstraintError

MAX_REPEAT = 2000
"""Most repetitions, the repeated rules counted; more are refused by llama.cpp or silently made endless."""
_MAX_BYTES = 4 << 20
_MAX_VISITS = 2_000_000
"""Steps of llama.cpp's search for left recursion, which visits shared rules once for every way to them."""
_MAX_DEPTH = 200
"""Nested groups: llama.cpp's parser calls itself for each."""
_LAST = 0x10FFFF
_MAX_REASON = 300
"""Characters of an error, which may quote a long name."""
_NAME = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_CHAR = re.compile(r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr\\"\[\]])|[^\\]', re.DOTALL)
_COUNT = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")

_Alternative = list[int | Chars]
"""A sequence of rule numbers and characters."""


@dataclass(slots=True)
class _Parser:
    text: str
    at: int = 0
    depth: int = 0
    names: dict[str, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """Where a rule was first named."""
    rules: list[list[_Alternative] | None] = field(default_factory=list)

    def fail(self, reason: str, at: int | None = None) -> ConstraintError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return ConstraintError(f"grammar, line {line}, column {column}: {reason[:_MAX_REASON]}")

    def rule(self, name: str | None, at: int) -> int:
        """The number of a rule; a new one for None."""
        if name is not None and name in self.names:
            return self.names[name]
        number = len(self.rules)
        self.rules.append(None)
        self.places[number] = at
        if name is not None:
            self.names[name] = number
        return number

    def skip(self, *, lines: bool) -> None:
        match = (_SPACE_LINES if lines else _SPACE).match(self.text, self.at)
        assert match is not None  # it also matches nothing
        self.at = match.end()

    def parse(self) -> None:
        self.skip(lines=True)
        while self.at < len(self.text):
            name = _NAME.match(self.text, self.at)
            if name is None:
                raise self.fail("a rule must begin with its name (letters, digits, -)")
            number = self.rule(name[0], self.at)
            self.at = name.end()
            self.skip(lines=False)
            if not self.text.startswith("::=", self.at):
                raise self.fail(f'"::=" must follow the name {name[0]}')
            if self.rules[number] is not None:
                raise self.fail(f"the rule {name[0]} is there twice", name.start())
            self.at += 3
            self.skip(lines=True)
            self.rules[number] = self.alternatives(nested=False)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise self.fail(f"{self.text[self.at]!r} is not understood here")
            self.skip(lines=True)

    def alternatives(self, *, nested: bool) -> list[_Alternative]:
        found = [self.sequence(nested=nested)]
        while self.text.startswith("|", self.at):
            self.at += 1
            self.skip(lines=True)
            found.append(self.sequence(nested=nested))
        return found

    def sequence(self, *, nested: bool) -> _Alternative:
        sequence: _Alternative = []
        last: _Alternative | None = None  # what a repetition sign would repeat
        weight = 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?{":
                self.repeat(sequence, last, weight)
                last = None
            else:
                item = self.item(char)
                if item is None:
                    break
                last, weight = item
                sequence += last
            self.skip(lines=nested)
        return sequence

    def item(self, char: str) -> tuple[_Alternative, int] | None:
        """One thing that a repetition may follow, and how many rules it is made of; None at the sequence's end."""
        begin = self.at
        if char == '"':
            return list(self.literal()), 1
        if char == "[":
            return [self.char_class()], 1
        if char == ".":
            self.at += 1
            return [((0, _LAST),)], 1
        if char == "(":
            return self.group(begin)
        if char in "<!":
            raise self.fail("tokens by name or number are not supported: write their text")
        name = _NAME.match(self.text, self.at)
        if name is None:
            return None
        self.at = name.end()
        return [self.rule(name[0], begin)], 1

    def group(self, begin: int) -> tuple[_Alternative, int]:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail(f"more than {_MAX_DEPTH} nested groups")
        self.at += 1
        self.skip(lines=True)
        n_before = len(self.rules)
        number = self.rule(None, begin)
        self.rules[number] = self.alternatives(nested=True)
        if not self.text.startswith(")", self.at):
            raise self.fail("this group is not closed", begin)
        self.at += 1
        self.depth -= 1
        return [number], max(1, len(self.rules) - n_before)

    def literal(self) -> list[Chars]:
        begin = self.at
        chars: list[Chars] = []
        self.at += 1
        while not self.text.startswith('"', self.at):
            point = self.char("this literal is not closed", begin)
            chars.append(((point, point),))
        self.at += 1
        return chars

    def char_class(self) -> Chars:
        begin = self.at
        negated = self.text.startswith("^", begin + 1)
        ranges: list[tuple[int, int]] = []
        self.at += 2 if negated else 1
        if self.text.startswith("]", self.at):
            raise self.fail("an empty class matches nothing", begin)
        while not self.text.startswith("]", self.at):
            low = high = self.char("this class is not closed", begin)
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.char("this class is not closed", begin)
                if low > high:
                    raise self.fail("this range ends before it begins", begin)
            ranges.append((low, high))
        self.at += 1
        joined: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        if not negated:
            return tuple(joined)
        edges = [-1, *(edge for pair in joined for edge in pair), _LAST + 1]
        return tuple((lo + 1, hi - 1) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo + 1 < hi)

    def char(self, unclosed: str, begin: int) -> int:
        """The code point of a character of a literal or class."""
        match = _CHAR.match(self.text, self.at)
        if match is None:
            if self.at >= len(self.text):
                raise self.fail(unclosed, begin)
            raise self.fail(r"unknown escape: \t \n \r \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH are known")
        self.at = match.end()
        escaped = match[0]
        if escaped[0] != "\\":
            return ord(escaped)
        return int(escaped[2:], 16) if escaped[1] in "xuU" else ord(escaped[1].translate({116: 9, 110: 10, 114: 13}))

    def repeat(self, sequence: _Alternative, last: _Alternative | None, weight: int) -> None:
        """Rewrite `last`, the end of `sequence`, as llama.cpp does; `weight` rules are repeated."""
        at = self.at
        if not last:
            raise self.fail("there is nothing before this sign that could be repeated: use parentheses")
        sign = _COUNT.match(self.text, at) if self.text[at] == "{" else None
        if sign is not None:
            least = int(sign[1])
            most = int(sign[3]) if sign[3] else None if sign[2] else least
            self.at = sign.end()
        elif self.text[at] == "{":
            raise self.fail("a repetition is written {3}, {3,} or {3,5}")
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.text[at]]
            self.at += 1
        if most is not None and most < least:
            raise self.fail("this repetition ends before it begins", at)
        total = weight * (most or least or 1)
        if max(least, most or 0) > MAX_REPEAT or total > MAX_REPEAT:
            raise self.fail(f"more than {MAX_REPEAT} repetitions (times the groups repeated): make it fewer", at)
        del sequence[len(sequence) - len(last) :]
        sequence += last * least
        if most is None:
            number = self.rule(None, at)
            self.rules[number] = [[*last, number], []]
            sequence.append(number)
        else:
            below: _Alternative = []
            for _ in range(most - least):
                number = self.rule(None, at)
                self.rules[number] = [[*last, *below], []]
                below = [number]
            sequence += below


def check(text: str, root: str = "root") -> None:
    """Refuse what llama.cpp would refuse, misunderstand, or not survive.

    Raises:
        ConstraintError: with the line and column, and what is wrong there.
    """
    if not isinstance(text, str):
        raise ConstraintError(f"a grammar is a text, not {type(text).__name__}")
    _check(text, root)


@functools.lru_cache(maxsize=4)
def _check(text: str, root: str) -> None:
    """Checks the text of one grammar once, though every answer asks for it."""
    if "\0" in text:
        raise ConstraintError("grammar: a null character ends it early; write \\x00")
    if len(text) > _MAX_BYTES:
        raise ConstraintError(f"grammar: more than {_MAX_BYTES >> 20} Mi characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(f"grammar: not valid Unicode at character {error.start}") from None
    parser = _Parser(text)
    parser.parse()
    names = {number: name for name, number in parser.names.items()}
    rules: list[list[_Alternative]] = []
    for number, alternatives in enumerate(parser.rules):
        if alternatives is None:
            raise parser.fail(f"there is no rule {names[number]}", parser.places[number])
        rules.append(alternatives)
    if root not in parser.names:
        raise ConstraintError(f"grammar: there is no rule {root}, with which it begins")
    empty = _nullable(rules)
    looping = _left_recursive(rules, empty)
    if looping is not None:
        name = names.get(looping)
        what = f"the rule {name}" if name else "what is repeated here"
        raise parser.fail(f"{what} can begin with itself: put what it begins with first", parser.places[looping])
    wide = check_ways(rules, empty)
    if wide is not None:
        raise parser.fail(
            "too many ways to read the same text from here, which llama.cpp would all try: "
            "make optional parts or alternatives fewer", parser.places[wide],
        )  # fmt: skip


def _nullable(rules: list[list[_Alternative]]) -> set[int]:
    """The rules that the empty text satisfies."""
    users: dict[int, list[int]] = {}
    for number, alternatives in enumerate(rules):
        for item in {item for alternative in alternatives for item in alternative if isinstance(item, int)}:
            users.setdefault(item, []).append(number)
    empty: set[int] = set()
    todo = list(range(len(rules)))
    while todo:
        number = todo.pop()
        if number not in empty and any(all(i in empty for i in alternative) for alternative in rules[number]):
            empty.add(number)
            todo += users.get(number, ())
    return empty


def _left_recursive(rules: list[list[_Alternative]], empty: set[int]) -> int | None:
    """A rule that can reach itself before any character, or None.

    Raises:
        ConstraintError: llama.cpp's own search for one would take too long.
    """
    first: list[list[int]] = []
    for alternatives in rules:
        children: list[int] = []
        for alternative in alternatives:
            for item in alternative:
                if not isinstance(item, int):
                    break
                children.append(item)
                if item not in empty:
                    break
        first.append(children)
    visits: dict[int, int] = {}
    for start in range(len(rules)):
        path, open_rules = [(start, iter(first[start]))], {start}
        while path and start not in visits:
            number, children_left = path[-1]
            child = next((c for c in children_left if c not in visits), None)
            if child is None:
                path.pop()
                open_rules.discard(number)
                visits[number] = 1 + sum(visits[c] for c in first[number])
                if visits[number] > _MAX_VISITS:
                    raise ConstraintError("grammar: too many ways through its rules before the first character")
            elif child in open_rules:
                return child
            else:
                open_rules.add(child)
                path.append((child, iter(first[child])))
    if sum(visits.values()) > 10 * _MAX_VISITS:
        raise ConstraintError("grammar: too many ways through its rules before the first character")
    return None
