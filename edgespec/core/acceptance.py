"""What each drafter's proposals were worth, by drafter and strength class, from verified and shadow-scored tokens.

Every proposal is compared with the text that was committed anyway, whether it was verified or not: that costs
microseconds and keeps the estimate alive while drafting is off. Two memories are kept: a long one that outlives the
session (a prior by temperature band), and a short one for this text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgespec.interfaces import Draft

Key = tuple[str, int]
"""(drafter, strength)."""

_LONG_DECAY = 0.998
_SHORT_DECAY = 0.9
_CLAIM_WEIGHT = 4.0
"""Observations that a drafter's own confidence counts for."""
_PRIOR_WEIGHT = 4.0
"""Observations of this text that the long memory counts for."""
_BANDS = (0.05, 0.5, 1.0)
"""Upper temperatures of the bands that have a prior of their own; acceptance at 0.7 is half of greedy's."""


_BAND_ODDS = (1.0, 1.3, 1.9, 3.3)
"""By how much a temperature raises the odds against a drafter's claim, which is made for greedy text.
Measured at 0.7: what was right 85 times in 100 is right 71 times."""


def band(temperature: float) -> int:
    """The temperature band, 0 (greedy) to 3."""
    return sum(temperature > upper for upper in _BANDS)


class Prior:
    """The long memory: decayed (hits, tries) by temperature band and key. Shared by all sessions of an engine."""

    def __init__(self, table: Mapping[tuple[int, str, int], tuple[float, float]] | None = None) -> None:
        """`table` is a saved memory: (band, drafter, strength) to (hits, tries)."""
        self.table: dict[tuple[int, str, int], tuple[float, float]] = dict(table or {})

    def rate(self, at: int, key: Key, claim: float) -> float:
        """Probability that a token of this class is right; the drafter's own claim while nothing is known."""
        hits, tries = self.table.get((at, *key), (0.0, 0.0))
        if at and 0.0 < claim < 1.0:
            claim = 1.0 / (1.0 + (1.0 / claim - 1.0) * _BAND_ODDS[at])
        return (claim * _CLAIM_WEIGHT + hits) / (_CLAIM_WEIGHT + tries)

    def learn(self, at: int, key: Key, hit: bool) -> None:
        """Record one guess."""
        hits, tries = self.table.get((at, *key), (0.0, 0.0))
        self.table[(at, *key)] = (hits * _LONG_DECAY + hit, tries * _LONG_DECAY + 1.0)


class Acceptance:
    """The estimate for one session: the long memory's prior, bent by what this text did lately."""

    def __init__(self, prior: Prior, temperature: float) -> None:
        """`temperature` picks the prior's band."""
        self._prior = prior
        self._band = band(temperature)
        self._recent: dict[Key, tuple[float, float]] = {}

    def rate(self, drafter: str, strength: int, claim: float) -> float:
        """Probability in 0..1 that a token of this class is right, given that the tokens before it are."""
        key = (drafter, strength)
        hits, tries = self._recent.get(key, (0.0, 0.0))
        prior = self._prior.rate(self._band, key, claim)
        return (prior * _PRIOR_WEIGHT + hits) / (_PRIOR_WEIGHT + tries)

    def rates(self, drafter: str, proposal: Draft) -> Iterator[float]:
        """`rate` of each token of a proposal, in order."""
        for strength, claim in zip(proposal.strength, proposal.confidence, strict=True):
            yield self.rate(drafter, strength, claim)

    def promise(self, drafter: str, proposal: Draft) -> float:
        """How many tokens of a chain may be expected to be right."""
        reach, expected = 1.0, 0.0
        for rate in self.rates(drafter, proposal):
            reach *= rate
            expected += reach
        return expected

    def score(self, drafter: str, proposal: Draft, committed: tuple[int, ...]) -> None:
        """Hold a proposal, verified or not, against the tokens that became the text.

        The chain of first children is scored to its first miss; what lies beyond was never reached and says nothing.
        """
        node = -1
        index = 0
        for token in committed:
            while index < len(proposal.tokens) and proposal.parents[index] != node:
                index += 1
            if index == len(proposal.tokens):
                return
            hit = proposal.tokens[index] == token
            key = (drafter, proposal.strength[index])
            hits, tries = self._recent.get(key, (0.0, 0.0))
            self._recent[key] = (hits * _SHORT_DECAY + hit, tries * _SHORT_DECAY + 1.0)
            self._prior.learn(self._band, key, hit)
            if not hit:
                return
            node = index
