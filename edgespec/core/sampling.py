"""One row of logits to one token.

Draws are keyed by (seed, attempt, absolute position, token id), so that the text depends neither on the draft length
nor on the company in the batch. This module does not know about drafts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgespec.interfaces import Row, Sampling

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

_M64 = (1 << 64) - 1
_MIX_A, _MIX_B, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
_MAX_GUMBEL = -math.log(-math.log1p(-(2.0**-54)))
"""Largest noise `gumbel` can return: its uniform numbers stay 2^-54 away from 1."""
_GREEDY = 1e-6
"""At lower temperatures only the likeliest token can be drawn, and dividing by them overflows."""
_BLOCK = 256
"""Vocabulary entries a block maximum stands for in `_top_k`."""
_POOL_CUTS = (6.0, 10.0, 16.0, 30.0)
"""Nats below the best token that top-p and typical look at, tried in turn; the last keeps all but 1e-8 of the mass."""


def _mix(x: int) -> int:
    """Finaliser of SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators"."""
    x = ((x ^ (x >> 30)) * _MIX_A) & _M64
    x = ((x ^ (x >> 27)) * _MIX_B) & _M64
    return x ^ (x >> 31)


def gumbel(seed: int, attempt: int, position: int, ids: Ids) -> Scores:
    """Standard Gumbel noise of each token at one position: a pure function of its arguments, (n,) float64."""
    key = _mix(_mix(_mix((seed + _GOLDEN) & _M64) + attempt & _M64) + position & _M64)
    x = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_B)
    x ^= x >> np.uint64(31)
    uniform = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _top_k(row: Row, k: int) -> Ids:
    """Ids of the k largest logits, largest first, ties by lower id.

    The k-th largest of the block maxima bounds the k-th largest logit from below, so one pass finds a pool of little
    more than k candidates; sorting the vocabulary would cost 12 ms at 152 k entries, this costs 0.1.
    """
    n_whole = len(row) // _BLOCK
    if n_whole > k:
        maxima = row[: n_whole * _BLOCK].reshape(n_whole, _BLOCK).max(axis=1)
        floor = np.partition(maxima, n_whole - k)[n_whole - k]
        pool = np.flatnonzero(row >= floor)
    else:
        pool = np.arange(len(row))
    return pool[np.lexsort((pool, -row[pool]))][:k]


class Sampler:
    """Draws the tokens of one generation and keeps the counts that penalties need."""

    def __init__(self, params: Sampling, history: Sequence[int]) -> None:
        """`history` is the prompt; of it only the newest `penalty_last_n` tokens matter."""
        self.params = params
        self._penalised = (
            params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        ) and params.penalty_last_n != 0
        self._window: deque[int] = deque()
        self._counts: dict[int, int] = {}
        if self._penalised:
            start = 0 if params.penalty_last_n < 0 else max(0, len(history) - params.penalty_last_n)
            for token in history[start:]:
                self.accept(token)

    def accept(self, token: int) -> None:
        """Count a committed token; only committed ones, never a rejected guess."""
        if not self._penalised:
            return
        self._window.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        if 0 <= self.params.penalty_last_n < len(self._window):
            old = self._window.popleft()
            self._counts[old] -= 1
            if not self._counts[old]:
                del self._counts[old]

    def sample(self, row: Row, position: int) -> int:
        """Draw the token at absolute `position` from `(n_vocab,)` logits; the row is not changed."""
        if self.params.logit_bias or self._counts:
            row = self._adjusted(row)
        if self.params.temperature <= _GREEDY:
            return _argmax(row)
        ids = self._survivors(row)
        if not len(ids):  # every token was forbidden
            return _argmax(row)
        if len(ids) == 1:
            return int(ids[0])
        scaled = row[ids].astype(np.float64) / self.params.temperature
        if len(ids) > 4 * _BLOCK:
            # A token further below the best than the noise can lift it need not be hashed.
            best = int(np.argmax(scaled))
            noise = gumbel(self.params.seed, self.params.attempt, position, ids[best : best + 1])[0]
            near = np.flatnonzero(scaled >= scaled[best] + noise - _MAX_GUMBEL)
            ids, scaled = ids[near], scaled[near]
        scores = scaled + gumbel(self.params.seed, self.params.attempt, position, ids)
        return int(ids[np.argmax(scores)])

    def _adjusted(self, row: Row) -> Row:
        row = row.copy()
        for token, bias in self.params.logit_bias.items():
            row[token] += bias
        p = self.params
        if self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits = row[ids]
            logits = np.where(logits <= 0, logits * p.repeat_penalty, logits / p.repeat_penalty)
            row[ids] = logits - counts * p.frequency_penalty - p.presence_penalty
        return row

    def _survivors(self, row: Row) -> Ids:
        """Ids left after top-k, typical, top-p and min-p."""
        p = self.params
        best = row[_argmax(row)]
        if 0 < p.top_k < len(row):
            ids = _top_k(row, p.top_k)
        elif p.typical_p < 1.0 or p.top_p < 1.0:
            ids = _pool(row, best, 1.0 if p.typical_p < 1.0 else p.top_p)
        elif p.min_p > 0.0:
            return np.flatnonzero(row >= best + math.log(p.min_p))
        else:
            return np.flatnonzero(row > -np.inf)
        kept = row[ids].astype(np.float64)
        if p.typical_p < 1.0:
            chosen = _typical(kept, p.typical_p)
            ids, kept = ids[chosen], kept[chosen]
        if p.top_p < 1.0:
            # Where nothing was cut before, top-p is of the whole vocabulary's mass, not of the pool's.
            whole = p.top_k <= 0 and p.typical_p >= 1.0
            total = float(np.exp(row - best, dtype=np.float32).sum(dtype=np.float64)) if whole else None
            n = _nucleus(kept, p.top_p, total)
            ids, kept = ids[:n], kept[:n]
        if p.min_p > 0.0:
            ids = ids[kept >= kept.max() + math.log(p.min_p)]
        return ids


def _argmax(row: Row) -> int:
    """Index of the largest logit; NaN never wins."""
    best = int(np.argmax(row))
    return (
        best
        if row[best] == row[best]
        else int(np.argmax(np.nan_to_num(row, nan=-np.inf, posinf=np.inf, neginf=-np.inf)))
    )


def _pool(row: Row, best: np.float32, share: float) -> Ids:
    """Ids holding at least `share` of the probability mass, largest logit first."""
    mass = np.exp(row - best, dtype=np.float32)
    total = float(mass.sum(dtype=np.float64))
    ids = np.arange(0)
    for cut in _POOL_CUTS:
        ids = np.flatnonzero(row >= best - cut)
        if float(mass[ids].sum(dtype=np.float64)) >= share * total:
            break
    return ids[np.lexsort((ids, -row[ids]))]


def _nucleus(logits: Scores, share: float, total: float | None) -> int:
    """How many of the descending `logits` reach `share` of the mass `total` (None: of their own); at least one."""
    mass = np.exp(logits - logits[0])
    return min(len(logits), 1 + int(np.searchsorted(np.cumsum(mass), share * (mass.sum() if total is None else total))))


def _typical(logits: Scores, share: float) -> Ids:
    """Indices of the tokens whose surprise is nearest the entropy, reaching `share`, back in descending order.

    Source: Meister et al., "Locally Typical Sampling", 2202.00666.
    """
    mass = np.exp(logits - logits.max())
    prob = mass / mass.sum()
    surprise = -np.log(np.maximum(prob, 1e-300))
    order = np.argsort(np.abs(surprise - float((prob * surprise).sum())), kind="stable")
    n = min(len(order), 1 + int(np.searchsorted(np.cumsum(prob[order]), share)))
    chosen: Ids = np.sort(order[:n])
    return chosen
