"""How often drafted tokens are right, by place: each counted only where all before it were right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.train.data import Flags, Text

Right = npt.NDArray[np.bool_]
"""(positions, places): whether the token drafted for a place is the text's."""
WARM = (0.55, 0.85)
"""Temperatures that count as 0.7."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of right tokens by place, and of how many positions."""

    by_place: tuple[float | None, ...]
    n: int


def rates(right: Right, which: Flags) -> Rates:
    """The rates over some of the positions; None where nothing was tried."""
    reached = np.cumprod(right[which], axis=1).astype(np.int64)
    tried = [int(which.sum()), *reached.sum(0)[:-1].tolist()]
    hits = reached.sum(0).tolist()
    return Rates(tuple(hit / n if n else None for hit, n in zip(hits, tried, strict=True)), tried[0])


def table(text: Text, places: npt.NDArray[np.int64], right: Right) -> dict[str, Rates]:
    """Rates overall, at the temperatures that are asked for most, without an n-gram, and by group.

    `places` are the rows whose token was the newest; the first drafted one is that of the row behind.
    """
    greedy = text.temperature[places] == 0
    warm = (text.temperature[places] >= WARM[0]) & (text.temperature[places] <= WARM[1])
    free = ~text.matched[places + 1]
    parts: Mapping[str, Flags] = {
        "all": np.ones(len(places), np.bool_), "greedy": greedy, "at 0.7": warm,
        "greedy, no n-gram": greedy & free, "at 0.7, no n-gram": warm & free,
    }  # fmt: skip
    groups = {str(name): text.group[places] == name for name in np.unique(text.group[places])}
    return {name: rates(right, which) for name, which in {**parts, **groups}.items() if which.any()}


def ahead(text: Text, places: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """(positions, n): the tokens behind each place; -1 where the answer is over."""
    steps = np.arange(1, n + 1)
    rows = np.minimum(places[:, None] + steps, len(text.tokens) - 1)
    return np.where(steps <= text.n_after[places][:, None], text.tokens[rows], -1)


def bigrams(text: Text) -> Callable[[npt.NDArray[np.int64], int], npt.NDArray[np.int64]]:
    """What mostly follows each token in the text to train on, as a drafter: (newest tokens, n) to a draft."""
    rows = text.places(held_out=False)
    pairs = text.tokens[rows].astype(np.int64) << 32 | text.tokens[rows + 1]
    keys, counts = np.unique(pairs, return_counts=True)
    best: dict[int, int] = {}
    for at in np.argsort(counts, kind="stable"):  # the commonest comes last and stays
        best[int(keys[at] >> 32)] = int(keys[at] & 0xFFFFFFFF)

    def draft(newest: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
        columns = [newest]
        for _ in range(n):
            columns.append(np.array([best.get(int(token), -2) for token in columns[-1]], np.int64))
        return np.stack(columns[1:], axis=1)

    return draft
