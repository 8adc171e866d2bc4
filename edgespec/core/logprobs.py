"""Log-probabilities of the model itself: of the row as it came, whatever was then done to it."""

from __future__ import annotations

import math

import numpy as np

from edgespec.core.cutoffs import top_k
from edgespec.interfaces import Row, TokenLogprobs


def logprobs_of(row: Row, token: int, n_top: int) -> TokenLogprobs:
    """The log softmax of the row at `token` and at its `n_top` largest entries; NaN counts as -inf."""
    if np.isnan(row).any():
        row = np.where(np.isnan(row), np.float32(-np.inf), row)
    best = row.max()
    if np.isfinite(best):
        with np.errstate(over="ignore"):  # differences beyond float32 have no mass
            rest = math.log(float(np.exp(row - best, dtype=np.float32).sum(dtype=np.float64)))

        def logprob(i: int) -> float:
            return float(row[i]) - float(best) - rest
    else:  # everything is forbidden, or some are forced: those share the mass evenly
        share = -math.log(int(np.count_nonzero(row == best)))

        def logprob(i: int) -> float:
            return share if row[i] == best else -math.inf

    top = top_k(row, n_top).tolist() if n_top else []
    return TokenLogprobs(token, logprob(token), tuple((i, logprob(i)) for i in top))
