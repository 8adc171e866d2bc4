"""The sampler under a constraint: which distribution it draws from, and what the constraint is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from edgespec.core.constraint import Forced, best_allowed
from edgespec.core.sampling import Sampler
from edgespec.core.verify import verify
from edgespec.errors import ConstraintError
from edgespec.interfaces import Draft, Sampling


class ListGuide:
    """Allows the tokens of a set, and writes down what it is told and asked."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = set(tokens)
        self.accepted: list[int] = []
        self.n_asked = 0

    def only(self) -> int | None:
        return None

    def allows(self, token: int) -> bool:
        self.n_asked += 1
        return token in self.tokens

    def allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        self.n_asked += len(ids)
        return np.isin(ids, list(self.tokens))

    def accept(self, token: int) -> None:
        assert token in self.tokens
        self.accepted.append(token)

    def n_allowed(self, tokens: Sequence[int]) -> int:
        return next((i for i, token in enumerate(tokens) if token not in self.tokens), len(tokens))

    def forced(self) -> Forced:
        return Forced()


ROW = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


@pytest.mark.parametrize(
    ("sampling", "allowed", "wanted"),
    [
        (Sampling(1.0), (1, 3, 4), {1: 0.3, 3: 0.1, 4: 0.05}),
        (Sampling(1.0, top_k=2), (1, 3, 4), {1: 1.0}),  # the cut-off comes first
        (Sampling(1.0, top_p=0.8), (1, 2, 4), {1: 0.3, 2: 0.15}),
        (Sampling(1.0, top_k=2), (2, 3, 4), {2: 0.15, 3: 0.1}),  # nothing is left: cut anew
        (Sampling(0.5), (0, 2), {0: 0.16, 2: 0.0225}),
        (Sampling(1.0), (3,), {3: 1.0}),
    ],
)
def test_draws_follow_the_restricted_distribution(
    sampling: Sampling, allowed: tuple[int, ...], wanted: dict[int, float]
) -> None:
    n = 4000
    counts = dict.fromkeys(range(len(ROW)), 0)
    n_same = 0
    for seed in range(n):
        params = replace(sampling, seed=seed)
        token = Sampler(params, [], ListGuide(allowed)).sample(ROW, 7)
        free = Sampler(params, []).sample(ROW, 7)
        counts[token] += 1
        n_same += free == token
        assert token == free or free not in allowed  # an allowed draw is kept
    total = sum(wanted.values())
    for token, count in counts.items():
        share = wanted.get(token, 0.0) / total
        assert abs(count / n - share) < 4.5 * np.sqrt(share * (1 - share) / n) + 1e-12, counts


def test_greedy_takes_the_best_allowed_and_asks_about_few() -> None:
    row = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    order = np.argsort(-row)
    guide = ListGuide([int(order[40])])
    assert Sampler(Sampling(), [], guide).sample(row, 0) == order[40]
    assert guide.n_asked < 100
    rare = ListGuide([int(order[-1])])
    assert Sampler(Sampling(), [], rare).sample(row, 0) == order[-1]


def test_forbidden_tokens_are_taken_where_nothing_else_is_allowed() -> None:
    row = ROW.copy()
    row[:3] = -np.inf
    row[3] = np.nan
    assert Sampler(Sampling(), [], ListGuide([1])).sample(row, 0) == 1
    assert Sampler(Sampling(1.0), [], ListGuide([1])).sample(row, 0) == 1
    assert Sampler(Sampling(), [], ListGuide([1, 4])).sample(row, 0) == 4
    assert best_allowed(ListGuide([]), np.arange(5), row) is None
    for temperature in (0.0, 1.0):
        with pytest.raises(ConstraintError, match="allows nothing"):
            Sampler(Sampling(temperature), [], ListGuide([])).sample(row, 0)


def test_only_committed_tokens_are_accepted() -> None:
    """A draft of four of which the first is right: two tokens are committed, and the guide is told of two."""
    rows = np.full((5, 8), -5.0, np.float32)
    rows[0, 3] = rows[1, 6] = rows[2, 7] = 5.0
    guide = ListGuide([3, 5, 7])
    draft = Draft((3, 5, 7, 7), (-1, 0, 1, 2), (0,) * 4, (0.9,) * 4)
    verdict = verify(rows, draft, Sampler(Sampling(), [], guide), 0)
    assert verdict.path[:1] == (0,)
    assert guide.accepted == list(verdict.tokens)
    rows[1, 7] = 4.0  # 6 is refused, 7 is the best of the rest, and not the draft's 5
    guide = ListGuide([3, 5, 7])
    verdict = verify(rows, draft, Sampler(Sampling(), [], guide), 0)
    assert verdict.tokens == (3, 7)
    assert guide.accepted == [3, 7]
