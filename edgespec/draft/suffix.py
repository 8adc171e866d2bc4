"""The n-gram drafter: a suffix automaton over prompt and output, with counts and recency.

It knows for every suffix of the text where it occurred before and what followed, how often and how lately; the
longest match decides. Adding a token is O(1) amortised, a proposal O(1) a token. It does not know the target.

Source: Blumer et al. 1985 (the automaton); SAM-Decoding, 2411.10666 (drafting with it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgespec.core.controller import chain_parents
from edgespec.interfaces import NO_DRAFT, Draft

MIN_MATCH = 2
"""A single matching token says next to nothing; proposing from it is noise."""
_MAX_CHAIN = 12
"""Suffixes of one text position whose followers are updated; the longest ones, which are what matters."""
_LENGTHS = (2, 3, 4, 6, 9, 16)
"""Lower bounds of the classes of match length."""
_HOPELESS = 0.2
"""A draft ends where reaching its end is this unlikely by its own claim: a row costs more than it can bring."""
_LENGTH_LOGIT = (-1.0, -0.55, -0.25, 0.55, 0.9, 1.8)
_AGREEMENT_LOGIT = (1.45, 0.6, -0.35)
_KIND_LOGIT = (1.25, 0.25, 0.25)
"""Logistic fit of "the pick is right" by match length, agreement and kind of token, on 4,300 positions of greedy text
(six Spec-Bench task groups, the prompts that no reported figure is measured on). Prior only: experience replaces it."""
CLEAR, DISPUTED, SEVERAL = range(3)
"""Agreement: the longest match has one follower, and shorter matches mostly the same; it has one, but shorter matches
mostly others; it has several itself."""
_CLEAR_SHARE = 0.66
INSIDE, WORD, OTHER = range(3)
"""Kind of token: goes on inside a word (nearly forced), begins a word, anything else."""
_CLASS_OF = [max(0, sum(n >= bound for bound in _LENGTHS) - 1) for n in range(_LENGTHS[-1] + 1)]
_CLAIMS = [
    1.0 / (1.0 + math.exp(-(by_length + by_agreement + by_kind)))
    for by_length in _LENGTH_LOGIT
    for by_agreement in _AGREEMENT_LOGIT
    for by_kind in _KIND_LOGIT
]


class SuffixDrafter:
    """Proposes what followed the longest suffix of the text that occurred before."""

    name = "ngram"

    def __init__(self, piece: Callable[[int], bytes] | None = None) -> None:
        """Start with an empty text. `piece` gives a token's bytes; without it all tokens are of one kind."""
        self._piece = piece
        self._kinds: dict[int, int] = {}
        self._followed: Sequence[int] | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the text."""
        self._text: list[int] = []
        self._length = [0]
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        # What followed the state's strings: token -> count, most recent last; and how many followers in all.
        self._after: list[dict[int, int]] = [{}]
        self._n_after = [0]
        self._last = 0

    def close(self) -> None:
        """Drop the index."""
        self._followed = None
        self._reset()

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """A chain of at most `limit` tokens, from the longest repeated suffix of `context`, or nothing."""
        self._follow(context)
        length, link, after = self._length, self._link, self._after
        state = link[self._last]
        if state <= 0 or limit <= 0:
            return NO_DRAFT
        match = length[state]
        tokens: list[int] = []
        strength: list[int] = []
        confidence: list[float] = []
        hope = 1.0
        while len(tokens) < limit and hope > _HOPELESS:
            while state > 0 and not after[state]:
                state = link[state]
                match = min(match, length[state])
            if state <= 0 or match < MIN_MATCH:
                break
            token = next(reversed(after[state]))
            at = _CLASS_OF[match] if match < len(_CLASS_OF) else len(_LENGTHS) - 1
            kind = self._kinds.get(token)
            tokens.append(token)
            strength.append(
                (at * 3 + self._agreement(state, token)) * 3 + (self._kind(token) if kind is None else kind)
            )
            confidence.append(_CLAIMS[strength[-1]])
            hope *= confidence[-1]
            state = self._next[state].get(token, 0)
            match += 1
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), chain_parents(len(tokens)), tuple(strength), tuple(confidence))

    def _agreement(self, state: int, token: int) -> int:
        """How clear it is that `token`, the most recent follower of `state`, comes next."""
        after, link = self._after, self._link
        if len(after[state]) > 1:
            return SEVERAL
        state = link[state]
        while state > 0:
            if len(after[state]) > 1:
                return CLEAR if after[state].get(token, 0) > _CLEAR_SHARE * self._n_after[state] else DISPUTED
            state = link[state]
        return CLEAR

    def _kind(self, token: int) -> int:
        """Whether a token goes on inside a word, begins one, or is anything else; looked up once."""
        kind = self._kinds[token] = kind_of(self._piece(token) if self._piece is not None else b"")
        return kind

    def _follow(self, context: Sequence[int]) -> None:
        """Make the index that of `context`: grow it where the text only grew, else begin anew."""
        n_known = len(self._text)
        if context is self._followed and len(context) >= n_known:
            # The same list object: a session's text only grows while it is one. Comparing it all would cost as much
            # as everything else here.
            for token in context[n_known:]:
                self._extend(token)
            return
        self._followed = context
        grew = n_known <= len(context) and (not n_known or context[n_known - 1] == self._text[-1])
        if not grew or (n_known and list(context[:n_known]) != self._text):
            self._reset()
            n_known = 0
        for token in context[n_known:]:
            self._extend(token)

    def _extend(self, token: int) -> None:
        self._text.append(token)
        length, link, follow, after = self._length, self._link, self._next, self._after
        # The suffixes before this token now have one more follower; taking it out first makes it the most recent.
        state, steps = self._last, 0
        while state > 0 and steps < _MAX_CHAIN:
            followers = after[state]
            followers[token] = followers.pop(token, 0) + 1
            self._n_after[state] += 1
            state, steps = link[state], steps + 1
        new = len(length)
        length.append(length[self._last] + 1)
        link.append(0)
        follow.append({})
        after.append({})
        self._n_after.append(0)
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
        self._n_after.append(self._n_after[known])
        link[known] = clone
        while state >= 0 and follow[state].get(token) == known:
            follow[state][token] = clone
            state = link[state]
        return clone


def kind_of(raw: bytes) -> int:
    """Kind of a token by its bytes."""
    first = raw[:1]
    word = (first == b" " and raw[1:2].isalpha()) or raw[:3] == b"\xe2\x96\x81"
    return WORD if word else INSIDE if first.isalpha() or first >= b"\x80" else OTHER
