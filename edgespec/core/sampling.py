"""One row of logits to one token: bias and penalties, then what may be drawn, then the draw.

`sample` only reads the state and `accept` only advances it, so that a guess that is not kept leaves no trace. This
module does not know about drafts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgespec.core.constraint import Guide, best_allowed, only_allowed
from edgespec.core.cutoffs import BLOCK, survivors
from edgespec.core.mirostat import Mirostat
from edgespec.core.noise import MAX_GUMBEL, Ids, Scores, coin, gumbel
from edgespec.core.penalties import Dry, Penalties
from edgespec.interfaces import Row, Sampling

_GREEDY = 1e-6
"""At lower temperatures only the likeliest token can be drawn, and dividing by them overflows."""


class Sampler:
    """Draws the tokens of one generation and keeps what penalties, DRY and mirostat need to know of its text."""

    def __init__(self, params: Sampling, history: Sequence[int], guide: Guide | None = None) -> None:
        """`history` is the prompt; `guide` says which tokens a constraint lets through."""
        self.params = params
        self._guide = guide
        self._drawn: tuple[Ids, Scores] | None = None
        self._penalties = [kind(params, history) for kind in (Penalties, Dry) if kind.wanted(params)]
        self._greedy = params.temperature <= _GREEDY
        self._mirostat = Mirostat(params) if params.mirostat and not self._greedy else None
        self._listeners = [*self._penalties, *([self._mirostat] if self._mirostat else [])]
        self._adjusts = bool(params.logit_bias) or bool(self._penalties)

    def accept(self, token: int) -> None:
        """Take in a committed token; only committed ones, never a rejected guess."""
        if self._guide is not None:
            self._guide.accept(token)
        for listener in self._listeners:
            listener.accept(token)

    def sample(self, row: Row, position: int) -> int:
        """Draw the token at absolute `position` from `(n_vocab,)` logits; the row is not changed.

        Raises:
            ConstraintError: the guide allows no token at all.
        """
        only = self._guide.only() if self._guide is not None else None
        if only is not None:
            return only
        if self._adjusts:
            row = self._adjusted(row)
        token = self._choose(row, position)
        if self._guide is None or self._guide.allows(token):
            return token
        return self._choose_allowed(self._guide, row, position)

    def _choose_allowed(self, guide: Guide, row: Row, position: int) -> int:
        """The choice where the free one was refused; `edgespec.core.constraint` says what it is a draw from."""
        token = None
        if self._greedy:
            token = best_allowed(guide, np.arange(len(row)), row)
        elif self._drawn is not None:
            ids, scaled = self._drawn
            noise = gumbel(self.params.seed, self.params.attempt, position, ids)
            token = best_allowed(guide, ids, scaled + noise)
            if token is not None and self._mirostat is not None:
                self._mirostat.drew(token, ids, scaled)
        return self._choose(only_allowed(guide, row), position) if token is None else token

    def _choose(self, row: Row, position: int) -> int:
        self._drawn = None
        best = int(row.argmax())  # a NaN, if there is one
        logit = row[best]
        if logit != logit:
            row = np.where(np.isnan(row), np.float32(-np.inf), row)
            best = int(row.argmax())
            logit = row[best]
        if self._greedy or not math.isfinite(logit):  # not finite: one is forced, or all are forbidden
            return best
        with np.errstate(over="ignore"):  # differences of penalised logits may be beyond float32
            return self._chosen(row, logit, position)

    def _chosen(self, row: Row, best: np.float32, position: int) -> int:
        if self._mirostat is not None:
            ids = self._mirostat.candidates(row, best)
            scaled = row[ids].astype(np.float64) / self.params.temperature
            token = self._draw(ids, scaled, position)
            self._mirostat.drew(token, ids, scaled)
            return token
        p = self.params
        tossed = coin(p.seed, p.attempt, position) if p.xtc_probability > 0.0 else 1.0
        ids = survivors(row, best, p, tossed)
        if len(ids) == 1:
            return int(ids[0])
        logits = row[ids].astype(np.float64)
        temperature = p.temperature if p.dynatemp_range <= 0.0 else _dynamic_temperature(logits, p)
        if temperature <= _GREEDY:
            return int(ids[np.argmax(logits)])
        return self._draw(ids, logits / temperature, position)

    def _adjusted(self, row: Row) -> Row:
        row = row.copy()
        # Beyond float32 is infinite; inf - inf is NaN, which is never drawn.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for token, bias in self.params.logit_bias.items():
                row[token] += bias
            for penalty in self._penalties:
                penalty.apply(row)
        return row

    def _draw(self, ids: Ids, scaled: Scores, position: int) -> int:
        """One of `ids`, by the softmax of `scaled`: the argmax after Gumbel noise."""
        seed, attempt = self.params.seed, self.params.attempt
        self._drawn = ids, scaled
        if len(ids) > 4 * BLOCK:
            # A token further below the best than the noise can lift it need not be hashed.
            best = int(np.argmax(scaled))
            noise = gumbel(seed, attempt, position, ids[best : best + 1])[0]
            near = np.flatnonzero(scaled >= scaled[best] + noise - MAX_GUMBEL)
            ids, scaled = ids[near], scaled[near]
        return int(ids[np.argmax(scaled + gumbel(seed, attempt, position, ids))])


def _dynamic_temperature(logits: Scores, p: Sampling) -> float:
    """Between `temperature - range` and `temperature + range`, by the entropy of what is left, 0 at least.

    Source: llama-sampler.cpp (temp_ext), after "entropy sampling" in koboldcpp.
    """
    mass = np.exp(logits - logits.max())
    prob = mass[mass > 0] / mass.sum()
    entropy = float(-(prob * np.log(prob)).sum()) / math.log(len(logits))
    low, high = max(0.0, p.temperature - p.dynatemp_range), p.temperature + p.dynatemp_range
    return low + (high - low) * math.pow(min(1.0, max(0.0, entropy)), p.dynatemp_exponent)
