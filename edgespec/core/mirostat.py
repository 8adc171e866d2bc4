"""Mirostat: cut the candidates so that the surprise of the drawn tokens stays near a wished one.

Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2007.14966;
version 2 and the order of steps as in llama-sampler.cpp.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec.core.cutoffs import top_k, within_float32
from edgespec.core.noise import Ids, Scores
from edgespec.interfaces import Row, Sampling

_LN2 = math.log(2.0)
_N_FIT = 100
"""Likeliest tokens that version 1 fits Zipf's exponent to."""


class Mirostat:
    """The largest surprise allowed, `mu` in bits. It changes in `accept` only, so that a drawn guess may be dropped."""

    def __init__(self, params: Sampling) -> None:
        """`mu` begins at twice the wished surprise."""
        self._p = params
        self.mu = 2.0 * params.mirostat_tau
        self._drawn: tuple[int, float] | None = None

    def candidates(self, row: Row, best: np.float32) -> Ids:
        """Ids of the tokens that may be drawn from a row whose best logit is finite."""
        if self._p.mirostat == 1:
            ids = top_k(row, self._zipf_k(row))
            return ids[row[ids] > -np.inf]
        t = self._p.temperature
        mass = np.exp((row - best) / np.float32(t), dtype=np.float32)
        bits = math.log2(float(mass.sum(dtype=np.float64)))
        # surprise = bits - (logit - best) / (t ln 2) <= mu, as a floor for logits; the best one always stays
        floor = float(best) + t * _LN2 * (bits - self.mu)
        return np.flatnonzero((row > -np.inf) & (row >= within_float32(min(floor, float(best)))))

    def drew(self, token: int, ids: Ids, scaled: Scores) -> None:
        """Remember the surprise of the token drawn from `ids` with logits `scaled` by the temperature."""
        best = scaled.max()
        own = float(scaled[np.flatnonzero(ids == token)[0]] - best)
        self._drawn = token, (math.log(float(np.exp(scaled - best).sum())) - own) / _LN2

    def accept(self, token: int) -> None:
        """Learn from a committed token; nothing is learned from one that was not drawn here."""
        if self._drawn is not None and self._drawn[0] == token:
            self.mu -= self._p.mirostat_eta * (self._drawn[1] - self._p.mirostat_tau)
        self._drawn = None

    def _zipf_k(self, row: Row) -> int:
        """Version 1: how many of the likeliest tokens are kept."""
        slope = zipf_exponent(row, self._p.temperature)
        if slope is None:
            return 1
        log_n, epsilon = math.log(len(row)), slope - 1.0
        # ln of epsilon * 2^mu / (1 - n^-epsilon); the quotient tends to 1 / ln n where epsilon is 0
        quotient = epsilon / -math.expm1(-epsilon * log_n) if abs(epsilon) > 1e-9 else 1.0 / log_n
        log_k = math.log(quotient) + self.mu * _LN2
        if slope * log_n <= abs(log_k):  # as many as there are, or less than one
            return len(row) if log_k > 0 else 1
        return max(1, int(math.exp(log_k / slope)))


def zipf_exponent(row: Row, temperature: float) -> float | None:
    """Of the likeliest 100 tokens' probabilities, by least squares over neighbours; None where there is one token."""
    best = row[top_k(row, _N_FIT)].astype(np.float64)
    best = best[best > -np.inf]
    if len(best) < 2:
        return None
    ranks = np.arange(1, len(best))
    t, b = np.log((ranks + 1) / ranks), -np.diff(best) / temperature
    return float((t * b).sum() / (t * t).sum())
