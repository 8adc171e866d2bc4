"""One row to one token: order of steps, penalties, noise, ties, odd rows."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.cutoffs import top_k
from edgespec.core.noise import gumbel
from edgespec.core.sampling import Sampler
from edgespec.interfaces import Sampling


def row_of(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def test_noise_depends_on_seed_attempt_position_and_token_only() -> None:
    ids = np.array([5, 9, 200_000])
    base = gumbel(1, 0, 7, ids)
    assert np.array_equal(base, gumbel(1, 0, 7, ids))
    assert base[1] == gumbel(1, 0, 7, np.array([9]))[0]
    for other in (gumbel(2, 0, 7, ids), gumbel(1, 1, 7, ids), gumbel(1, 0, 8, ids)):
        assert not np.any(base == other)
    many = gumbel(0, 0, 0, np.arange(200_000))
    assert np.isfinite(many).all()
    assert abs(many.mean() - 0.5772) < 0.01
    assert abs(many.var() - math.pi**2 / 6) < 0.02
    gumbel(2**63, 2**40, -1, ids)  # any integers are keys


def test_penalties_count_committed_tokens_once_and_forget_old_ones() -> None:
    params = Sampling(repeat_penalty=2.0, penalty_last_n=2)
    sampler = Sampler(params, [1, 2])
    assert sampler.sample(row_of(0.9, 1.0, 1.0, -1.0), 0) == 0  # 1 and 2 were halved
    sampler.accept(0)  # pushes 1 out of the window
    assert sampler.sample(row_of(0.9, 1.0, 1.0, -1.0), 0) == 1
    negative = Sampler(Sampling(repeat_penalty=2.0), [0])
    assert negative.sample(row_of(-1.0, -1.5), 0) == 1  # a negative logit is multiplied


def test_frequency_and_presence() -> None:
    assert Sampler(Sampling(frequency_penalty=0.4), [0, 0, 0]).sample(row_of(2.0, 1.0), 0) == 1
    assert Sampler(Sampling(presence_penalty=0.4), [0, 0, 0]).sample(row_of(2.0, 1.0), 0) == 0
    assert Sampler(Sampling(frequency_penalty=0.4, penalty_last_n=0), [0, 0, 0]).sample(row_of(2.0, 1.0), 0) == 0


def test_bias_may_forbid_or_force_and_the_row_is_untouched() -> None:
    row = row_of(3.0, 2.0, 1.0)
    before = row.copy()
    assert Sampler(Sampling(logit_bias={0: -math.inf}), []).sample(row, 0) == 1
    assert Sampler(Sampling(logit_bias={2: 100.0}, temperature=0.5), []).sample(row, 0) == 2
    assert np.array_equal(row, before)


def test_nan_never_wins() -> None:
    assert Sampler(Sampling(), []).sample(row_of(math.nan, 1.0, 2.0), 0) == 2


@given(st.integers(1, 60), st.integers(0, 10_000), st.sampled_from([30, 257, 3000, 20_000]))
def test_top_k_is_exact_with_ties(k: int, seed: int, n: int) -> None:
    row = np.round(np.random.default_rng(seed).normal(0, 2, n), 1).astype(np.float32)
    expected = np.lexsort((np.arange(n), -row))[:k]
    assert np.array_equal(top_k(row, k), expected)


@given(st.integers(0, 1000), st.floats(0.1, 1.5))
def test_pruned_draw_equals_full_draw(position: int, temperature: float) -> None:
    """Leaving out tokens that no noise can lift changes nothing."""
    row = np.random.default_rng(position).normal(0, 4, 5000).astype(np.float32)
    ids = np.arange(5000)
    full = int(np.argmax(row.astype(np.float64) / temperature + gumbel(0, 0, position, ids)))
    assert Sampler(Sampling(temperature=temperature), []).sample(row, position) == full


def test_odd_settings_still_give_a_token() -> None:
    row = row_of(1.0, 3.0, 2.0)
    assert Sampler(Sampling(temperature=1e-320), []).sample(row, 0) == 1
    forbidden = Sampling(temperature=1.0, logit_bias=dict.fromkeys(range(3), -math.inf))
    assert Sampler(forbidden, []).sample(row, 0) in range(3)
