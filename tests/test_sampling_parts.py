"""DRY, XTC, mirostat, dynamic temperature, top-n-sigma: hand-made rows, any settings, and what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import request
from edgespec.config import EngineConfig
from edgespec.core.cutoffs import survivors
from edgespec.core.logprobs import logprobs_of
from edgespec.core.mirostat import Mirostat
from edgespec.core.noise import coin
from edgespec.core.penalties import Dry
from edgespec.core.sampling import Sampler
from edgespec.errors import ConfigError
from edgespec.interfaces import Row, Sampling


def row_of(*logits: float) -> Row:
    return np.array(logits, np.float32)


def kept(p: Sampling, *logits: float, tossed: float = 1.0) -> list[int]:
    row = row_of(*logits)
    return sorted(survivors(row, row.max(), p, tossed).tolist())


def dry(history: list[int], n_vocab: int = 10, **options: Any) -> dict[int, float]:
    """What DRY takes, by token."""
    row = np.zeros(n_vocab, np.float32)
    Dry(Sampling(dry_multiplier=1.0, dry_base=2.0, **options), history).apply(row)
    return {i: -float(x) for i, x in enumerate(row) if x}


def test_dry_takes_more_the_longer_the_repetition() -> None:
    assert dry([1, 2, 3, 3, 2, 3, 9, 1, 2, 3]) == {3: 2.0, 9: 1.0}  # 1 2 3 -> 3, and 2 3 -> 9
    assert dry([1, 2, 3, 3, 2, 3, 9, 1, 2, 3], dry_allowed_length=3) == {3: 1.0}
    assert dry([1, 2, 3, 9, 1, 2, 3], dry_penalty_last_n=5) == {}  # only the 3 before 9 is seen: one token
    assert dry([1, 2, 3, 9, 1, 2, 3], dry_penalty_last_n=-1) == {9: 2.0}
    assert dry([4, 4, 4, 4, 4]) == {4: 4.0}


def test_no_repetition_reaches_over_a_breaker() -> None:
    text = [1, 2, 3, 4, 9, 1, 2, 3, 4]
    assert dry(text) == {9: 4.0}
    assert dry(text, dry_breakers=((2,),)) == {9: 1.0}  # 3 4 are left
    assert dry(text, dry_breakers=((2, 3),)) == {}  # only 4 is left
    assert dry(text, dry_breakers=((2, 4), (9,))) == {}  # 9 itself may come; 2 4 is not in the text
    assert dry(text, dry_breakers=((4,),)) == {}


@given(
    st.lists(st.integers(0, 2), max_size=25),
    st.integers(1, 4),
    st.sampled_from([-1, 1, 3, 12]),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
)
def test_dry_does_what_llama_cpp_describes(
    text: list[int], allowed: int, n_last: int, breakers: tuple[tuple[int, ...], ...]
) -> None:
    options = {"dry_allowed_length": allowed, "dry_penalty_last_n": n_last, "dry_breakers": breakers}
    window = text if n_last < 0 else text[len(text) - min(n_last, len(text)) :]
    n = len(window)
    reach = n
    for start in range(n):  # the last beginning of a breaker counts, the longest that begins there
        whole = [len(b) for b in breakers if tuple(window[start : start + len(b)]) == b]
        if whole:
            reach = n - start - max(whole)
    expected: dict[int, float] = {}
    for end in range(n - 1):
        length = 0
        while length <= end and window[end - length] == window[n - 1 - length]:
            length += 1
        length = min(length, reach)
        token = window[end + 1]
        if length >= allowed and (token,) not in breakers:
            expected[token] = max(expected.get(token, 0.0), 2.0 ** (length - allowed))
    assert dry(text, 3, **options) == expected
    grown = Dry(Sampling(dry_multiplier=1.0, dry_base=2.0, **options), text[: len(text) // 2])  # type: ignore[arg-type]  # by name
    for token in text[len(text) // 2 :]:
        grown.accept(token)
    row = np.zeros(3, np.float32)
    grown.apply(row)
    assert {i: -float(x) for i, x in enumerate(row) if x} == expected


def test_dry_stays_finite_in_a_long_repetition() -> None:
    taken = dry([1] * 600, dry_penalty_last_n=-1)
    assert 1e38 < taken[1] < 1e39


LIKELY = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]


def test_xtc_leaves_the_least_likely_of_the_likely() -> None:
    p = Sampling(xtc_probability=0.5, xtc_threshold=0.15)
    assert kept(p, *LIKELY, tossed=0.4) == [2, 3]
    assert kept(p, *LIKELY, tossed=0.6) == [0, 1, 2, 3]
    assert kept(replace(p, xtc_threshold=0.35), *LIKELY, tossed=0.4) == [0, 1, 2, 3]  # one likely token: left
    assert kept(replace(p, min_keep=3), *LIKELY, tossed=0.4) == [0, 1, 2, 3]
    assert kept(replace(p, xtc_threshold=0.0), *LIKELY, tossed=0.4) == [3]
    assert kept(replace(p, xtc_threshold=0.51), *LIKELY, tossed=0.4) == [0, 1, 2, 3]


def test_the_coin_is_of_the_position_and_not_of_the_draw() -> None:
    tossed = [coin(1, 0, position) for position in range(4000)]
    assert tossed == [coin(1, 0, position) for position in range(4000)]
    assert len(set(tossed)) == 4000
    assert 0.45 < sum(x < 0.5 for x in tossed) / 4000 < 0.55
    assert coin(1, 1, 0) != coin(1, 0, 0) != coin(2, 0, 0)


def test_top_n_sigma_counts_only_tokens_that_may_be_drawn() -> None:
    row = (4.0, 3.0, 0.0, 1.0, -math.inf)  # mean 2, deviation sqrt(2.5)
    assert kept(Sampling(top_n_sigma=1.0), *row) == [0, 1]
    assert kept(Sampling(top_n_sigma=2.0), *row) == [0, 1, 3]
    assert kept(Sampling(top_n_sigma=1e300), *row) == [0, 1, 2, 3]


def test_min_keep() -> None:
    for p in (Sampling(top_p=0.1), Sampling(min_p=0.9), Sampling(typical_p=0.1), Sampling(top_k=4, top_p=0.1)):
        assert len(kept(p, *LIKELY)) == 1
        assert len(kept(replace(p, min_keep=3), *LIKELY)) == 3
        assert len(kept(replace(p, min_keep=9), *LIKELY)) == 4
    assert kept(Sampling(min_p=0.9, min_keep=3), 1.0, 0.0, -math.inf) == [0, 1]


def test_mirostat_learns_from_committed_tokens_only() -> None:
    p = Sampling(temperature=1.0, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5)
    sampler, row = Sampler(p, [0, 1]), row_of(*LIKELY)
    mirostat = sampler._mirostat
    assert isinstance(mirostat, Mirostat)
    token = sampler.sample(row, 5)
    assert sampler.sample(row, 5) == token
    assert mirostat.mu == 2.0
    sampler.accept(token)
    surprise = -math.log2(math.exp(LIKELY[token]) / 0.7)  # 2 bits leave the tokens of a quarter and more
    assert mirostat.mu == pytest.approx(2.0 - 0.5 * (surprise - 1.0))
    before = mirostat.mu
    sampler.accept(3)  # was not drawn here
    assert mirostat.mu == before


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_surprise_near_the_wish(version: int) -> None:
    rng = np.random.default_rng(0)
    p = Sampling(temperature=1.0, mirostat=version, mirostat_tau=2.0, mirostat_eta=0.1, seed=1)
    sampler, bits = Sampler(p, []), []
    for position in range(1500):
        row = rng.permutation(-1.1 * np.log(np.arange(1, 400))).astype(np.float32)
        token = sampler.sample(row, position)
        bits.append(sampler._mirostat._drawn[1])  # type: ignore[union-attr, index]  # mirostat is on and has drawn
        sampler.accept(token)
    assert np.mean(bits[200:]) == pytest.approx(2.0, abs=0.1)


def test_dynamic_temperature_follows_the_entropy() -> None:
    p = Sampling(temperature=1.0, dynatemp_range=1.0)
    certain, open_ = row_of(9.0, 0.0, 0.0, 0.0), row_of(1.0, 1.0, 1.0, 1.0)
    assert {Sampler(p, []).sample(certain, i) for i in range(300)} == {0}
    assert {Sampler(p, []).sample(open_, i) for i in range(300)} == {0, 1, 2, 3}


options: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 1e-7, 1e-5, 0.3, 1.0, 5.0, 1e30]),
    "top_k": st.integers(0, 50),
    "top_p": st.floats(0, 1, exclude_min=True),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0, 1, exclude_min=True),
    "top_n_sigma": st.floats(0, 1e300),
    "min_keep": st.integers(0, 50),
    "xtc_probability": st.floats(0, 1),
    "xtc_threshold": st.floats(0, 1),
    "dynatemp_range": st.floats(0, 5),
    "dynatemp_exponent": st.floats(0, 100),
    "mirostat": st.sampled_from([0, 0, 1, 2]),
    "mirostat_tau": st.floats(0, 1e6),
    "mirostat_eta": st.floats(0, 1),
    "repeat_penalty": st.floats(0, 1e300, exclude_min=True),
    "frequency_penalty": st.floats(-1e300, 1e300),
    "presence_penalty": st.floats(-1e300, 1e300),
    "penalty_last_n": st.integers(-1, 8),
    "dry_multiplier": st.floats(0, 1e300),
    "dry_base": st.floats(1, 1e300),
    "dry_allowed_length": st.integers(1, 5),
    "dry_penalty_last_n": st.integers(-1, 8),
    "dry_breakers": st.sampled_from([None, (), ((0,),), ((1, 0), (1,))]),
    "logit_bias": st.dictionaries(st.integers(0, 3), st.floats(allow_nan=False), max_size=3),
    "seed": st.integers(),
    "attempt": st.integers(),
    "logprobs": st.none() | st.integers(0, 20),
}
logits = st.floats(-30, 30, width=32) | st.sampled_from([-math.inf, math.nan, math.inf, 3e38, -3e38])


def test_every_option_is_tried_and_checked() -> None:
    assert set(options) == {f.name for f in fields(Sampling)}
    checked = {name for name, *_ in request._RANGES} | {"dry_breakers", "logit_bias", "logprobs"}
    assert set(options) == checked


@settings(max_examples=400)
@given(
    st.fixed_dictionaries({}, optional=options).map(lambda chosen: Sampling(**chosen)),
    st.lists(st.lists(logits, min_size=4, max_size=4), min_size=1, max_size=6)
    | st.lists(st.integers(0, 99), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_any_settings_give_a_token_that_may_be_drawn(
    p: Sampling, rows: list[list[float]] | list[int], history: list[int]
) -> None:
    request.check_sampling(p, 1000)
    sampler, text = Sampler(p, history), list(history)
    for drawn in rows:
        row = (
            row_of(*drawn)
            if isinstance(drawn, list)
            else np.random.default_rng(drawn).normal(0, 3, 1000).astype(np.float32)
        )
        before = row.copy()
        token = sampler.sample(row, len(text))
        assert sampler.sample(row, len(text)) == token
        assert np.array_equal(row, before, equal_nan=True)
        adjusted = sampler._adjusted(row)
        assert 0 <= token < len(row)
        if np.isfinite(adjusted).any():
            assert adjusted[token] > -math.inf
        if p.logprobs is not None:
            found = logprobs_of(row, token, p.logprobs)
            assert all(x <= 1e-6 for x in (found.logprob, *(x for _, x in found.top)))
            assert len(found.top) == min(p.logprobs, len(row))
        sampler.accept(token)
        text.append(token)


NEUTRAL = {
    "top_k": 50, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "xtc_probability": 0.0,
    "dynatemp_range": 0.0, "mirostat_tau": 3.0, "repeat_penalty": 1.0, "frequency_penalty": 0.0,
    "penalty_last_n": 0, "dry_multiplier": 0.0, "dry_base": 3.0, "dynatemp_exponent": 2.0, "min_keep": 7,
    "xtc_threshold": 0.6, "dry_breakers": ((1,),), "logprobs": 3,
}  # fmt: skip


@given(st.sets(st.sampled_from(sorted(NEUTRAL))), st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 1.5]))
def test_neutral_values_change_nothing(names: set[str], seed: int, temperature: float) -> None:
    row = np.random.default_rng(seed).normal(0, 2, 50).astype(np.float32)
    chosen: dict[str, Any] = {name: NEUTRAL[name] for name in names}
    plain = Sampler(Sampling(temperature=temperature, seed=seed), [1, 2, 1, 2])
    other = Sampler(Sampling(temperature=temperature, seed=seed, **chosen), [1, 2, 1, 2])
    assert [plain.sample(row, i) for i in range(5)] == [other.sample(row, i) for i in range(5)]


@given(st.integers(0, 2**32), st.integers(0, 20), st.sampled_from([5, 300, 20_000]))
def test_logprobs_are_the_log_softmax_of_the_row(seed: int, n_top: int, n_vocab: int) -> None:
    row = np.random.default_rng(seed).normal(0, 5, n_vocab).astype(np.float32)
    exact = row.astype(np.float64)
    exact -= exact.max() + math.log(np.exp(exact - exact.max()).sum())
    token = seed % n_vocab
    found = logprobs_of(row, token, n_top)
    assert found.token == token
    assert found.logprob == pytest.approx(exact[token], abs=1e-5)
    best = np.argsort(-row, kind="stable")[:n_top]
    assert [i for i, _ in found.top] == best.tolist()
    assert [x for _, x in found.top] == pytest.approx(exact[best].tolist(), abs=1e-5)


def test_logprobs_of_odd_rows() -> None:
    assert logprobs_of(row_of(math.nan, 0.0, -math.inf), 1, 0).logprob == 0.0
    assert logprobs_of(row_of(math.inf, 0.0, math.inf), 0, 3).top == (
        (0, -math.log(2)),
        (2, -math.log(2)),
        (1, -math.inf),
    )
    assert logprobs_of(row_of(-math.inf, -math.inf), 0, 0).logprob == -math.log(2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
        ({"temperature": math.nan}, "temperature must be a number"),
        ({"temperature": 10**400}, "temperature must be a number"),
        ({"top_k": 1.5}, "top_k must be a whole number of at least 0"),
        ({"top_k": True}, "top_k must be a whole number"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and up to 1"),
        ({"xtc_probability": 1.1}, "xtc_probability must be a number from 0 to 1"),
        ({"mirostat": 3}, r"mirostat must be a whole number: 0 \(off\), 1 or 2, not 3"),
        ({"mirostat_eta": math.inf}, "mirostat_eta must be a number from 0 to 1"),
        ({"dry_base": 0.5}, "dry_base must be a number of at least 1"),
        ({"dry_allowed_length": 0}, "dry_allowed_length must be a whole number of at least 1"),
        ({"dry_penalty_last_n": -2}, r"at least 0, or -1 \(all\)"),
        ({"dry_breakers": ((),)}, "dry_breakers must be sequences of one token or more"),
        ({"dry_breakers": ((1, 9),)}, "dry_breakers names token 9, the vocabulary has 8"),
        ({"logit_bias": {9: 1.0}}, "logit_bias names token 9, the vocabulary has 8"),
        ({"logit_bias": {1: math.nan}}, "biases must be numbers"),
        ({"logprobs": 21}, "logprobs must be None or a whole number from 0 to 20, not 21"),
        ({"logprobs": 1.0}, "logprobs must be None or a whole number"),
        ({"seed": "7"}, "seed must be a whole number, not '7'"),
    ],
)
def test_bad_values_are_refused_in_one_line(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        request.check_sampling(replace(Sampling(), **bad), 8)
    assert "\n" not in str(error.value)


def test_the_configuration_reaches_every_option_it_names() -> None:
    rng = random.Random(0)
    given_ = {"temperature": 0.9, "dry_multiplier": 0.8, "logprobs": 4, "mirostat": 2, "penalty_last_n": 7}
    sampling = request.sampling_from(EngineConfig(**given_, seed=rng.randrange(9)), attempt=3)  # type: ignore[arg-type]  # by name
    assert {name: getattr(sampling, name) for name in given_} == given_
    assert sampling.attempt == 3
    missing = {f.name for f in fields(Sampling)} - {f.name for f in fields(EngineConfig)}
    assert missing == {"logit_bias", "attempt", "dry_breakers"}


def test_breakers_are_the_tokens_with_a_line_end_colon_quotation_mark_or_asterisk() -> None:
    class Pieces:
        def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
            raise NotImplementedError  # breakers look at pieces only: a call would fail the test

        def piece(self, token: int) -> bytes:
            return [b"a", b".\n", b' "', b"b:c", b"**", b"", b"\xc3"][token]

    assert request.breakers(Pieces(), 7) == ((1,), (2,), (3,), (4,))
