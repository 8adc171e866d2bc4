"""The n-gram drafter: a suffix automaton over prompt and output, with counts and recency.

It knows for every suffix of the text where it occurred before and what followed, how often and how lately; the
longest match decides. Adding a token is O(1) amortised, a proposal O(1) a token. It does not know the target.

Source: Blumer et al. 1985 (the automaton); SAM-Decoding, 2411.10666 (drafting with it).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.controller import chain_parents
from edgespec.interfaces import NO_DRAFT, Draft

MIN_MATCH = 2
"""A single matching token says next to nothing; proposing from it is noise."""
_MAX_CHAIN = 12
"""Suffixes of one text position whose followers are updated; the longest ones, which are what matters."""
_LENGTH_CLASSES = (2, 3, 4, 5, 6, 8, 11, 16, 24, 40)
"""Lower bounds of the match-length classes that acceptance is learned by."""
_CLAIMS = (
    (0.38, 0.52, 0.60, 0.66, 0.70, 0.76, 0.82, 0.88, 0.92, 0.95),  # the only continuation, seen once
    (0.55, 0.68, 0.76, 0.80, 0.84, 0.88, 0.91, 0.94, 0.96, 0.97),  # the only continuation, seen more often
    (0.40, 0.48, 0.55, 0.58, 0.60, 0.64, 0.68, 0.72, 0.76, 0.80),  # most frequent and most recent of several
    (0.28, 0.34, 0.38, 0.42, 0.45, 0.50, 0.55, 0.60, 0.65, 0.70),  # most recent and most frequent disagree
)
"""Prior probability that the pick is right, by agreement and match-length class."""
_HOPELESS = 0.02
"""A draft ends where reaching its end is this unlikely by its own claim; what follows would cost time for nothing."""
_N_CLASSES = len(_LENGTH_CLASSES)
_CLASS_OF = [max(0, sum(n >= bound for bound in _LENGTH_CLASSES) - 1) for n in range(_LENGTH_CLASSES[-1] + 1)]


class SuffixDrafter:
    """Proposes what followed the longest suffix of the text that occurred before."""

    name = "ngram"

    def __init__(self) -> None:
        """Start with an empty text."""
        self._reset()

    def _reset(self) -> None:
        self._text: list[int] = []
        self._length = [0]
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        # What followed the state's strings: token -> (count, last position).
        self._after: list[dict[int, tuple[int, int]]] = [{}]
        self._last = 0

    def close(self) -> None:
        """Drop the index."""
        self._reset()

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """A chain of at most `limit` tokens, from the longest repeated suffix of `context`, or nothing."""
        self._follow(context)
        state = self._link[self._last]
        if state <= 0 or limit <= 0:
            return NO_DRAFT
        match = self._length[state]
        tokens: list[int] = []
        strength: list[int] = []
        confidence: list[float] = []
        hope = 1.0
        while len(tokens) < limit and hope > _HOPELESS:
            while state > 0 and not self._after[state]:
                state = self._link[state]
                match = min(match, self._length[state]) if state >= 0 else 0
            if state <= 0 or match < MIN_MATCH:
                break
            token, agreement = _pick(self._after[state])
            at = _CLASS_OF[match] if match < len(_CLASS_OF) else _N_CLASSES - 1
            tokens.append(token)
            strength.append(agreement * _N_CLASSES + at)
            confidence.append(_CLAIMS[agreement][at])
            hope *= confidence[-1]
            state = self._next[state].get(token, 0)
            match += 1
        return Draft(tuple(tokens), chain_parents(len(tokens)), tuple(strength), tuple(confidence))

    def _follow(self, context: Sequence[int]) -> None:
        """Make the index that of `context`: grow it where the text only grew, else begin anew."""
        n_known = len(self._text)
        grew = n_known <= len(context) and (not n_known or context[n_known - 1] == self._text[-1])
        if not grew or (n_known and list(context[:n_known]) != self._text):
            self._reset()
            n_known = 0
        for token in context[n_known:]:
            self._extend(token)

    def _extend(self, token: int) -> None:
        position = len(self._text)
        self._text.append(token)
        length, link, follow, after = self._length, self._link, self._next, self._after
        # The suffixes before this token now have one more follower.
        state, steps = link[self._last] if self._last else -1, 0
        while state > 0 and steps < _MAX_CHAIN:
            count, _ = after[state].get(token, (0, 0))
            after[state][token] = (count + 1, position)
            state, steps = link[state], steps + 1
        if self._last:
            after[self._last][token] = (1, position)
        new = len(length)
        length.append(length[self._last] + 1)
        link.append(0)
        follow.append({})
        after.append({})
        state = self._last
        while state >= 0 and token not in follow[state]:
            follow[state][token] = new
            state = link[state]
        if state >= 0:
            known = follow[state][token]
            if length[known] == length[state] + 1:
                link[new] = known
            else:
                link[new] = self._split(state, known, token)
        self._last = new

    def _split(self, state: int, known: int, token: int) -> int:
        """Clone `known` for its shorter strings, which now occur in one more place."""
        length, link, follow = self._length, self._link, self._next
        clone = len(length)
        length.append(length[state] + 1)
        link.append(link[known])
        follow.append(dict(follow[known]))
        self._after.append(dict(self._after[known]))
        link[known] = clone
        while state >= 0 and follow[state].get(token) == known:
            follow[state][token] = clone
            state = link[state]
        return clone


def _pick(after: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """The likeliest follower and how clear the choice was: 0 single, 1 repeated, 2 leading, 3 only most recent."""
    if len(after) == 1:
        token, (count, _) = next(iter(after.items()))
        return token, 0 if count == 1 else 1
    recent = max(after, key=lambda t: after[t][1])
    frequent = max(after, key=lambda t: (after[t][0], after[t][1]))
    return (recent, 2) if recent == frequent else (recent, 3)
