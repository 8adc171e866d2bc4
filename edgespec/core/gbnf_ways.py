"""How many ways a grammar has to read the same text: llama.cpp follows every one of them.

It keeps a stack for each way to the next character, and tries a token along all of them before it refuses it, so that
`x?` three hundred times over, or 50,000 alternatives, hang an answer. Ways are counted here as llama.cpp would follow
them, along the text that has the most, from wherever in the grammar a choice begins. That text is sought greedily: a
grammar whose ways multiply late or along an unlikely text may slip through.

Source: llama-grammar.cpp as vendored in llama-cpp-python 0.3.36 (`llama_grammar_advance_stack`,
`llama_grammar_reject_candidates_for_stack`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

Chars = tuple[tuple[int, int], ...]
"""Code points, as ascending pairs of the first and the last that do not overlap."""
_MAX_WAYS = 10_000
_N_CHARS = 8
"""Characters of a text along which ways are counted: about the length of a token."""
_FEW = 4
"""Fewer ways are not followed further."""
_MAX_STEPS = 2_000_000
"""Stacks that are looked at; a grammar that needs more is refused."""


def check_ways(rules: Sequence[Sequence[Sequence[int | Chars]]], empty: Set[object]) -> int | None:
    """The number of a rule from which there are too many ways to read a text, or None.

    Args:
        rules: alternatives of each rule; a number names a rule. None may begin with itself.
        empty: the rules that the empty text satisfies.
    """
    ways = _Ways(rules)
    for number in reversed(range(len(rules))):  # used ones mostly come later than their users
        starts = [[ways.push(at, 0) for at in ways.begins[number]]]
        for begin, items in zip(ways.begins[number], rules[number], strict=True):
            for i, before in enumerate(items[:-2], 1):  # the last item alone is its own rule's beginning
                if isinstance(items[i], int) and before not in empty:
                    starts.append([ways.push(begin + i, 0)])
        if not all(map(ways.bounded, starts)):
            return number
    return None


class _TooManyError(Exception):
    """More ways than are allowed."""


class _Ways:
    """Stacks as numbers: 0 is the empty one, others are a position in the grammar on top of another stack."""

    def __init__(self, rules: Sequence[Sequence[Sequence[int | Chars]]]) -> None:
        self.items: list[int | Chars | None] = []
        """All alternatives one after the other, each ended by None."""
        self.begins: list[list[int]] = []
        for alternatives in rules:
            self.begins.append([])
            for alternative in alternatives:
                self.begins[-1].append(len(self.items))
                self.items += [*alternative, None]
        self._stacks: list[tuple[int, int]] = [(-1, 0)]
        self._numbers: dict[tuple[int, int], int] = {}
        self._reached: dict[int, list[int]] = {}
        self._n_steps = 0

    def push(self, at: int, below: int) -> int:
        """The stack with a position on top; nothing is put there at the end of an alternative."""
        if self.items[at] is None:
            return below
        number = self._numbers.setdefault((at, below), len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append((at, below))
        return number

    def bounded(self, starts: Sequence[int]) -> bool:
        """Whether the ways from these stacks stay within bounds along the text that has the most."""
        try:
            ways = self._count(Counter(starts))
            for _ in range(_N_CHARS):
                if ways.total() < _FEW:
                    break
                point = self._commonest(ways)
                behind: Counter[int] = Counter()
                for stack, n in ways.items():
                    at, below = self._stacks[stack]
                    chars = self.items[at]
                    if isinstance(chars, tuple) and any(lo <= point <= hi for lo, hi in chars):
                        behind[self.push(at + 1, below)] += n
                ways = self._count(behind)
        except _TooManyError:
            return False
        return True

    def _count(self, stacks: Counter[int]) -> Counter[int]:
        """Ways to each stack with a character on top."""
        ways: Counter[int] = Counter()
        total = 0
        for stack, n in stacks.items():
            found = self._advance(stack)
            self._n_steps += len(found)
            total += n * len(found)
            if total > _MAX_WAYS or self._n_steps > _MAX_STEPS:
                raise _TooManyError
            for reached in found:
                ways[reached] += n
        return ways

    def _advance(self, stack: int) -> list[int]:
        if stack not in self._reached:
            todo, seen, found = [stack], {stack}, []
            while todo:
                number = todo.pop()
                at, below = self._stacks[number]
                rule = self.items[at] if number else None
                if isinstance(rule, int):
                    rest = self.push(at + 1, below)
                    new = {self.push(begin, rest) for begin in self.begins[rule]} - seen
                    seen |= new
                    todo += new
                    if len(seen) > 2 * _MAX_WAYS:
                        raise _TooManyError
                elif number:
                    found.append(number)
            self._reached[stack] = found
        return self._reached[stack]

    def _commonest(self, ways: Counter[int]) -> int:
        """The code point that the most ways go on with; -1 where none goes on."""
        changes: Counter[int] = Counter()
        for stack, n in ways.items():
            chars = self.items[self._stacks[stack][0]]
            for lo, hi in chars if isinstance(chars, tuple) else ():
                changes[lo] += n
                changes[hi + 1] -= n
        most, best, open_ = 0, -1, 0
        for point in sorted(changes):
            open_ += changes[point]
            if open_ > most:
                most, best = open_, point
        return best
