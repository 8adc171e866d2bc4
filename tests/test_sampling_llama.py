"""Cut-offs, penalties, temperature and mirostat leave the tokens and logits that llama.cpp's own samplers leave."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.core.cutoffs import survivors
from edgespec.core.mirostat import Mirostat
from edgespec.core.sampling import Sampler, _dynamic_temperature
from edgespec.interfaces import Row, Sampling
from edgespec.target.lib import native

N_CASES = 300


def llama(row: Row, samplers: Sequence[Any], history: Sequence[int]) -> dict[int, float]:
    """Tokens left after a chain of llama.cpp's samplers, with their logits; the chain is freed."""
    lib = native()
    data = (lib.llama_token_data * len(row))()
    for i, logit in enumerate(row):
        data[i].id, data[i].logit, data[i].p = i, logit, 0.0
    array = lib.llama_token_data_array(data, len(row), -1, False)
    for sampler in samplers:
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        lib.llama_sampler_free(sampler)
    left = [array.data[i] for i in range(array.size)]
    return {item.id: item.logit for item in left if item.logit > -np.inf}


def chain(p: Sampling, n_vocab: int) -> list[Any]:
    """llama.cpp's default order."""
    lib = native()
    return [
        lib.llama_sampler_init_penalties(
            n_vocab, p.penalty_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        ),
        lib.llama_sampler_init_dry(
            None, p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, None, 0
        ),
        lib.llama_sampler_init_top_n_sigma(p.top_n_sigma),
        lib.llama_sampler_init_top_k(p.top_k),
        lib.llama_sampler_init_typical(p.typical_p, p.min_keep),
        lib.llama_sampler_init_top_p(p.top_p, p.min_keep),
        lib.llama_sampler_init_min_p(p.min_p, p.min_keep),
        lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, 0),
        lib.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
    ]


def ours(row: Row, p: Sampling, history: Sequence[int]) -> dict[int, float]:
    row = Sampler(p, history)._adjusted(row)
    ids = survivors(row, row.max(), p, 0.5)
    logits = row[ids].astype(np.float64)
    t = _dynamic_temperature(logits, p) if p.dynatemp_range and len(ids) > 1 else p.temperature
    return dict(zip(ids.tolist(), (logits / t).tolist(), strict=True))


def random_sampling(rng: random.Random) -> Sampling:
    # Tokens that top-n-sigma forbids stay in llama.cpp's list, where typical, XTC's min-keep and dynamic temperature
    # still count them: only the one or the other here.
    sigma = rng.choice([0.0, 0.0, 1.0, 2.5])
    return Sampling(
        temperature=rng.uniform(0.3, 2.0),
        top_k=rng.choice([0, 1, 5, 40]),
        top_p=rng.choice([1.0, 0.95, 0.5]),
        min_p=rng.choice([0.0, 0.05, 0.3]),
        typical_p=1.0 if sigma else rng.choice([1.0, 0.9, 0.4]),
        top_n_sigma=sigma,
        min_keep=0 if sigma else rng.choice([0, 1, 4]),
        xtc_probability=rng.choice([0.0, 1.0]),
        xtc_threshold=rng.choice([0.02, 0.1, 0.3]),
        dynatemp_range=0.0 if sigma else rng.choice([0.0, 0.5, 2.0]),
        dynatemp_exponent=rng.choice([0.5, 1.0, 3.0]),
        repeat_penalty=rng.choice([1.0, 1.3, 0.9]),
        frequency_penalty=rng.choice([0.0, 0.4]),
        presence_penalty=rng.choice([0.0, -0.3]),
        penalty_last_n=rng.choice([0, 3, 64]),
        dry_multiplier=rng.choice([0.0, 0.8]),
        dry_base=rng.choice([1.0, 1.75]),
        dry_allowed_length=rng.choice([1, 2, 3]),
        dry_penalty_last_n=rng.choice([0, 5, 64]),
    )


@pytest.mark.parametrize("n_vocab", [12, 200, 3000])
def test_the_chain_leaves_what_llama_cpp_leaves(n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    for _ in range(N_CASES):
        p = random_sampling(rng)
        row = np.random.default_rng(rng.randrange(2**32)).normal(0, rng.choice([1, 3]), n_vocab).astype(np.float32)
        history = [rng.randrange(min(4, n_vocab)) for _ in range(rng.choice([0, 10, 80]))]
        theirs, mine = llama(row, chain(p, n_vocab), history), ours(row, p, history)
        assert mine.keys() == theirs.keys(), p
        best = max(mine, key=mine.__getitem__)
        for token, logit in mine.items():
            assert logit - mine[best] == pytest.approx(theirs[token] - theirs[best], abs=1e-3), p


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_begins_with_the_tokens_that_llama_cpp_keeps(version: int) -> None:
    lib, rng = native(), random.Random(version)
    for _ in range(N_CASES):
        n_vocab, tau, t = rng.choice([12, 500]), rng.uniform(0.2, 4.0), rng.uniform(0.5, 2.0)
        row = np.random.default_rng(rng.randrange(2**32)).normal(0, 3, n_vocab).astype(np.float32)
        p = Sampling(temperature=t, mirostat=version, mirostat_tau=tau)
        last = (
            lib.llama_sampler_init_mirostat(n_vocab, 0, tau, 0.1, 100)
            if version == 1
            else lib.llama_sampler_init_mirostat_v2(0, tau, 0.1)
        )
        theirs = llama(row, [lib.llama_sampler_init_temp(t), last], ())
        assert set(Mirostat(p).candidates(row, row.max()).tolist()) == set(theirs), (p, n_vocab)
