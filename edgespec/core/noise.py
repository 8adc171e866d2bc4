"""Randomness as a pure function of (seed, attempt, absolute position, token id): no generator, no state.

So a draw depends neither on the draft length nor on the company in the batch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

_M64 = (1 << 64) - 1
_MIX_A, _MIX_B, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
MAX_GUMBEL = -math.log(-math.log1p(-(2.0**-54)))
"""Largest noise `gumbel` can return: its uniform numbers stay 2^-54 away from 1."""


def _mix(x: int) -> int:
    """Finaliser of SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators"."""
    x = ((x ^ (x >> 30)) * _MIX_A) & _M64
    x = ((x ^ (x >> 27)) * _MIX_B) & _M64
    return x ^ (x >> 31)


def _key(seed: int, attempt: int, position: int) -> int:
    return _mix(_mix(_mix((seed + _GOLDEN) & _M64) + attempt & _M64) + position & _M64)


def gumbel(seed: int, attempt: int, position: int, ids: Ids) -> Scores:
    """Standard Gumbel noise of each token at one position, (n,) float64."""
    key = _key(seed, attempt, position)
    x = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_B)
    x ^= x >> np.uint64(31)
    uniform = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def coin(seed: int, attempt: int, position: int) -> float:
    """A number in (0, 1) for one decision at a position: the hash of token id -1, which no token has."""
    return ((_mix(_key(seed, attempt, position)) >> 11) + 0.5) * 2.0**-53
