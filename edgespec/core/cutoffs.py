"""Which tokens of a row may be drawn: top-n-sigma, top-k, typical, top-p, min-p, XTC, in this order.

Rows come without NaN and with a finite best logit; candidates are ids, best first wherever a step needs that.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec.core.noise import Ids, Scores
from edgespec.interfaces import Row, Sampling

BLOCK = 256
"""Vocabulary entries a block maximum stands for in `top_k`."""
_POOL_CUTS = (6.0, 10.0, 16.0, 30.0)
"""Nats below the best token that top-p and typical look at, tried in turn; the last keeps all but 1e-8 of the mass."""
_FLOAT_MAX = float(np.finfo(np.float32).max)
_XTC_OFF = 0.5
"""Above this threshold at most one token can reach it."""


def survivors(row: Row, best: np.float32, p: Sampling, coin: float) -> Ids:
    """Ids of the tokens that may be drawn, at least one.

    Args:
        row: (n_vocab,) logits.
        best: the largest of them.
        p: the cut-offs.
        coin: a number in (0, 1): XTC happens where it is not above `xtc_probability`.
    """
    if p.top_n_sigma > 0.0:
        row = _top_n_sigma(row, best, p.top_n_sigma)
    ids = _by_likelihood(row, best, p)
    if p.xtc_threshold <= _XTC_OFF and coin <= p.xtc_probability:
        ids = _xtc(ids, row[ids].astype(np.float64), p)
    return ids


def top_k(row: Row, k: int) -> Ids:
    """Ids of the k largest logits, largest first, ties by lower id.

    The k-th largest of the block maxima bounds the k-th largest logit from below, so one pass finds a pool of little
    more than k candidates; sorting the vocabulary would cost 12 ms at 152 k entries, this costs 0.1.
    """
    n_whole = len(row) // BLOCK
    if n_whole > k:
        maxima = row[: n_whole * BLOCK].reshape(n_whole, BLOCK).max(axis=1)
        floor = np.partition(maxima, n_whole - k)[n_whole - k]
        pool = np.flatnonzero(row >= floor)
    else:
        pool = np.arange(len(row))
    return pool[np.lexsort((pool, -row[pool]))][:k]


def _by_likelihood(row: Row, best: np.float32, p: Sampling) -> Ids:
    """Ids left after top-k, typical, top-p and min-p."""
    few = 0 < p.top_k < len(row)
    if few:
        ids = top_k(row, p.top_k)
        if row[ids[-1]] == -np.inf:
            ids = ids[row[ids] > -np.inf]
    elif p.typical_p < 1.0 or p.top_p < 1.0:
        ids = _pool(row, best, 1.0 if p.typical_p < 1.0 else p.top_p, p.min_keep)
    elif p.min_p > 0.0:
        ids = np.flatnonzero(row >= best + math.log(p.min_p))
        return ids if len(ids) >= p.min_keep else _finite(row, top_k(row, p.min_keep))
    else:
        return np.flatnonzero(row > -np.inf)
    kept = row[ids].astype(np.float64)
    if p.typical_p < 1.0:
        chosen = _typical(kept, p.typical_p, p.min_keep)
        ids, kept = ids[chosen], kept[chosen]
    if p.top_p < 1.0:
        # Where nothing was cut before, top-p is of the whole vocabulary's mass, not of the pool's.
        whole = not few and p.typical_p >= 1.0
        total = float(np.exp(row - best, dtype=np.float32).sum(dtype=np.float64)) if whole else None
        n = max(_nucleus(kept, p.top_p, total), p.min_keep)
        ids, kept = ids[:n], kept[:n]
    if p.min_p > 0.0:
        n = int(np.count_nonzero(kept >= kept[0] + math.log(p.min_p)))
        ids = ids[: max(n, p.min_keep)]
    return ids


def within_float32(logit: float) -> float:
    """The nearest number that comparisons with float32 take without overflow."""
    return min(max(logit, -_FLOAT_MAX), _FLOAT_MAX)


def _finite(row: Row, ids: Ids) -> Ids:
    return ids[row[ids] > -np.inf]


def _top_n_sigma(row: Row, best: np.float32, n_sigma: float) -> Row:
    """The row without logits further than `n_sigma` standard deviations below the best.

    Source: Tang et al., "Top-nσ: Not All Logits Are You Need", 2411.07641.
    """
    floor = float(best) - n_sigma * float(row[row > -np.inf].std(dtype=np.float64))
    return np.where(row >= within_float32(floor), row, np.float32(-np.inf))


def _pool(row: Row, best: np.float32, share: float, n_least: int) -> Ids:
    """Ids holding at least `share` of the probability mass, at least `n_least` of them, largest logit first."""
    mass = np.exp(row - best, dtype=np.float32)
    total = float(mass.sum(dtype=np.float64))
    ids = np.arange(0)
    for cut in _POOL_CUTS:
        ids = np.flatnonzero(row >= best - cut)
        if len(ids) >= n_least and float(mass[ids].sum(dtype=np.float64)) >= share * total:
            break
    if len(ids) < n_least:
        return _finite(row, top_k(row, n_least))
    return ids[np.lexsort((ids, -row[ids]))]


def _nucleus(logits: Scores, share: float, total: float | None) -> int:
    """How many of the descending `logits` reach `share` of the mass `total` (None: of their own); at least one."""
    mass = np.exp(logits - logits[0])
    return min(len(logits), 1 + int(np.searchsorted(np.cumsum(mass), share * (mass.sum() if total is None else total))))


def _typical(logits: Scores, share: float, n_least: int) -> Ids:
    """Indices of the tokens whose surprise is nearest the entropy, reaching `share`, back in descending order.

    Source: Meister et al., "Locally Typical Sampling", 2202.00666.
    """
    mass = np.exp(logits - logits.max())
    prob = mass / mass.sum()
    surprise = -np.log(np.maximum(prob, 1e-300))
    order = np.argsort(np.abs(surprise - float((prob * surprise).sum())), kind="stable")
    n = max(n_least, 1 + int(np.searchsorted(np.cumsum(prob[order]), share)))
    chosen: Ids = np.sort(order[:n])
    return chosen


def _xtc(ids: Ids, logits: Scores, p: Sampling) -> Ids:
    """Without the tokens at least as likely as the threshold, but for the least likely of them.

    Source: oobabooga/text-generation-webui#6335; llama-sampler.cpp.
    """
    mass = np.exp(logits - logits.max())
    likely = np.flatnonzero(mass >= p.xtc_threshold * mass.sum())
    n_out = len(likely) - 1
    if n_out < 1 or len(ids) - n_out < p.min_keep:
        return ids
    last = likely[np.lexsort((ids[likely], -logits[likely]))[-1]]
    return ids[np.isin(np.arange(len(ids)), likely[likely != last], invert=True)]
