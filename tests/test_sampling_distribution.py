"""Drafted text has the distribution that the samplers' definitions say, and a biased rule of acceptance would show.

The model is a table: the logits after a token. Every draw is held against the reference's distribution given the text
so far, all in one chi-square: where the cumulative probabilities of the drawn tokens are spread over [0, 1) unevenly,
the draws do not follow the reference.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgespec.core import mirostat as mirostat_module
from edgespec.core import sampling
from edgespec.core.cutoffs import survivors
from edgespec.core.noise import gumbel
from edgespec.core.sampling import Sampler
from edgespec.core.verify import Verdict, verify
from edgespec.interfaces import Draft, Rows, Sampling

N_VOCAB = 7
N_DRAWS = 10_000
"""Of each seed; 200,000 in all."""
SEEDS = range(20)
N_BINS = 21
TABLE = np.random.default_rng(5).normal(0.0, 1.5, (N_VOCAB, N_VOCAB)).astype(np.float32)
PROMPT = (3, 1, 4, 1, 5)

COMBINATIONS = {
    "temperature": Sampling(temperature=1.0),
    "top-k": Sampling(temperature=0.7, top_k=4, min_p=0.05),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p, min-keep": Sampling(temperature=0.9, min_p=0.4, min_keep=3),
    "typical": Sampling(temperature=1.0, typical_p=0.6),
    "top-n-sigma": Sampling(temperature=1.5, top_n_sigma=1.2),
    "XTC": Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.12),
    "dynamic temperature": Sampling(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.5, min_p=0.05),
    "mirostat 1": Sampling(temperature=1.1, mirostat=1, mirostat_tau=1.3, mirostat_eta=0.2),
    "mirostat 2": Sampling(temperature=1.1, mirostat=2, mirostat_tau=1.1, mirostat_eta=0.2),
    "penalties": Sampling(
        temperature=1.0, repeat_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2, penalty_last_n=3
    ),
    "DRY": Sampling(
        temperature=1.2, dry_multiplier=0.9, dry_base=1.6, dry_allowed_length=1, dry_penalty_last_n=4,
        dry_breakers=((2,), (0, 6)),
    ),
    "all": Sampling(
        temperature=1.2, logit_bias={1: 0.7, 6: -0.4}, repeat_penalty=1.1, penalty_last_n=3, dry_multiplier=0.5,
        dry_allowed_length=1, dry_penalty_last_n=3, top_n_sigma=2.0, top_k=6, typical_p=0.97, top_p=0.97, min_p=0.02,
        xtc_probability=0.4, xtc_threshold=0.15, dynatemp_range=0.4, min_keep=2,
    ),
}  # fmt: skip

Probabilities = npt.NDArray[np.float64]
Rule = Callable[[Rows, Draft, Sampler, int], Verdict]


def softmax(z: Probabilities) -> Probabilities:
    e: Probabilities = np.exp(z - z.max())
    return e / float(e.sum())


def dry_penalties(text: tuple[int, ...], p: Sampling) -> dict[int, float]:
    """By trying every earlier place and every length."""
    found: dict[int, float] = {}
    breakers = p.dry_breakers or ()
    free = len(text)  # tokens at the end, behind the last breaker
    for start in range(len(text)):
        whole = [len(b) for b in breakers if text[start : start + len(b)] == b]
        if whole:
            free = len(text) - start - max(whole)
    for token in range(N_VOCAB):
        lengths = [
            n
            for n in range(p.dry_allowed_length, free + 1)
            for place in range(n, len(text))
            if text[place] == token and text[place - n : place] == text[len(text) - n :]
        ]
        if lengths and (token,) not in breakers:
            found[token] = p.dry_multiplier * p.dry_base ** (max(lengths) - p.dry_allowed_length)
    return found


def reference(text: tuple[int, ...], p: Sampling) -> Probabilities:
    """The definitions, step by step in float64."""
    z = TABLE[text[-1]].astype(np.float64)
    for token, bias in p.logit_bias.items():
        z[token] += bias
    window = text[max(0, len(text) - p.penalty_last_n) :]
    for token in set(window):
        z[token] = z[token] / p.repeat_penalty if z[token] > 0 else z[token] * p.repeat_penalty
        z[token] -= window.count(token) * p.frequency_penalty + p.presence_penalty
    if p.dry_multiplier:
        for token, penalty in dry_penalties(text[max(0, len(text) - p.dry_penalty_last_n) :], p).items():
            z[token] -= penalty
    kept = sorted(range(N_VOCAB), key=lambda i: -z[i])
    if p.top_n_sigma:
        kept = [i for i in kept if z[i] >= z.max() - p.top_n_sigma * z.std()]
    if p.top_k:
        kept = kept[: p.top_k]
    if p.typical_p < 1:
        q = dict(zip(kept, softmax(z[kept]), strict=True))
        entropy = -sum(x * math.log(x) for x in q.values())
        typical = sorted(kept, key=lambda i: abs(-math.log(q[i]) - entropy))
        shares = np.cumsum([q[i] for i in typical])
        n = next(i for i, share in enumerate(shares, 1) if (share >= p.typical_p and i >= p.min_keep) or i == len(kept))
        kept = sorted(typical[:n], key=lambda i: -z[i])
    if p.top_p < 1:
        shares = np.cumsum(softmax(z[kept]))
        kept = kept[: max(p.min_keep, 1 + int(np.count_nonzero(shares < p.top_p)))]
    if p.min_p:
        q_kept = softmax(z[kept])
        kept = [i for n, i in enumerate(kept) if q_kept[n] >= p.min_p * q_kept[0] or n < p.min_keep]
    without = kept
    if p.xtc_probability:
        n_likely = int(np.count_nonzero(softmax(z[kept]) >= p.xtc_threshold))
        if n_likely >= 2 and len(kept) - (n_likely - 1) >= p.min_keep:
            without = kept[n_likely - 1 :]
    result = np.zeros(N_VOCAB)
    for ids, weight in ((kept, 1 - p.xtc_probability), (without, p.xtc_probability)):
        result[ids] += weight * softmax(z[ids] / temperature(softmax(z[ids]), p))
    return result


def temperature(q: Probabilities, p: Sampling) -> float:
    if not p.dynatemp_range or len(q) == 1:
        return p.temperature
    evenness = float(-(q * np.log(q)).sum()) / math.log(len(q))
    low = max(0.0, p.temperature - p.dynatemp_range)
    return low + (p.temperature + p.dynatemp_range - low) * math.pow(evenness, p.dynatemp_exponent)


@functools.cache
def ranked(last: int, t: float) -> tuple[list[int], list[float], float]:
    """Tokens by likelihood, their probabilities, and Zipf's exponent of these."""
    q = softmax(TABLE[last].astype(np.float64) / t)
    order = [int(i) for i in np.argsort(-q)]
    b = [math.log(q[x] / q[y]) for x, y in itertools.pairwise(order)]
    ranks = [math.log((i + 2) / (i + 1)) for i in range(len(b))]
    s = sum(x * y for x, y in zip(ranks, b, strict=True)) / sum(x * x for x in ranks)
    return order, [float(x) for x in q[order]], s


def mirostat(last: int, token: int, p: Sampling, mu: float) -> tuple[float, float]:
    """The mass of the tokens before `token`, and its own."""
    order, q, s = ranked(last, p.temperature)
    if p.mirostat == 1:
        n = int(((s - 1) * 2**mu / (1 - N_VOCAB ** -(s - 1))) ** (1 / s))
    else:
        n = sum(-math.log2(x) <= mu for x in q)
    kept = dict(zip(order[: max(1, n)], q, strict=False))
    mass = sum(kept.values())
    return sum(x for i, x in kept.items() if i < token) / mass, kept.get(token, 0.0) / mass


def draft_after(text: list[int], rng: random.Random) -> Draft:
    """A chain that is often right."""
    tokens: list[int] = []
    last = text[-1]
    for _ in range(rng.randrange(7)):
        last = BEST[last] if rng.random() < 0.7 else rng.randrange(N_VOCAB)
        tokens.append(last)
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (0,) * n, (0.5,) * n)


@functools.cache
def noise(seed: int) -> Probabilities:
    """The noise of every position of a text and of every token."""
    ids = np.arange(N_VOCAB)
    return np.stack([gumbel(seed, 0, position, ids) for position in range(N_DRAWS + 64)])


@pytest.fixture
def ready_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pure functions answer from memory, so that there is time for many draws; another test compares the texts."""
    known: dict[object, Any] = {}

    def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
        def from_memory(values: npt.NDArray[np.floating], *rest: Any) -> Any:
            # Of the settings only the address: they are alive as long as a test; of the coin only what comes of it.
            keys = tuple(id(x) if isinstance(x, Sampling) else x for x in rest[:2])
            tossed = len(rest) > 2 and rest[2] <= rest[1].xtc_probability
            key = (function, values.tobytes(), keys, tossed)
            if key not in known:
                known[key] = function(values, *rest)
            return known[key]

        return from_memory

    monkeypatch.setattr(sampling, "gumbel", lambda seed, attempt, position, ids: noise(seed)[position, ids])
    monkeypatch.setattr(sampling, "survivors", remembered(survivors))
    monkeypatch.setattr(sampling, "_dynamic_temperature", remembered(sampling._dynamic_temperature))
    monkeypatch.setattr(mirostat_module, "zipf_exponent", remembered(mirostat_module.zipf_exponent))


BEST = [int(i) for i in TABLE.argmax(axis=1)]


def write(p: Sampling, n: int, rule: Rule = verify, *, drafted: bool = True) -> list[int]:
    """A text of `n` tokens after the prompt."""
    rng, text, sampler = random.Random(p.seed), list(PROMPT), Sampler(p, PROMPT)
    while len(text) < len(PROMPT) + n:
        draft = draft_after(text, rng) if drafted else Draft()
        text.extend(rule(TABLE[[text[-1], *draft.tokens]], draft, sampler, len(text)).tokens)
    return text[: len(PROMPT) + n]


KNOWN: dict[str, dict[tuple[int, ...], Probabilities]] = {}
"""The reference's distributions, by sampling and text."""


def p_value(text: list[int], p: Sampling) -> float:
    """Of the chi-square over the draws' places in their cumulative distributions. 0: a token that cannot come came."""
    n_penalties = 0 if (p.repeat_penalty, p.frequency_penalty, p.presence_penalty) == (1, 0, 0) else p.penalty_last_n
    n_memory = max(1, n_penalties, p.dry_penalty_last_n if p.dry_multiplier else 0)
    known = KNOWN.setdefault(repr(replace(p, seed=0)), {})
    mu = 2 * p.mirostat_tau
    low, own = [], []
    for at in range(len(PROMPT), len(text)):
        before, token = tuple(text[max(0, at - n_memory) : at]), text[at]
        if p.mirostat:
            below, itself = mirostat(text[at - 1], token, p, mu)
        else:
            if before not in known:
                known[before] = reference(before, p)
            below, itself = float(known[before][:token].sum()), float(known[before][token])
        if itself == 0:
            return 0.0
        low.append(below)
        own.append(itself)
        mu -= p.mirostat_eta * (-math.log2(itself) - p.mirostat_tau)
    places = np.array(low) + np.array(own) * np.random.default_rng(p.seed).random(len(low))
    counts = np.bincount((places * N_BINS).astype(int).clip(0, N_BINS - 1), minlength=N_BINS)
    half = float(((counts - counts.mean()) ** 2).sum() / counts.mean()) / 2
    # The chi-square distribution has a closed form for an even number of degrees of freedom.
    return math.exp(-half) * sum(half**i / math.factorial(i) for i in range((N_BINS - 1) // 2))


def follows(p: Sampling, rule: Rule = verify) -> bool:
    """Whether p > 0.01 for at least 18 of the 20 seeds."""
    n_failed = 0
    for params in [replace(p, seed=seed) for seed in SEEDS]:
        n_failed += p_value(write(params, N_DRAWS, rule), params) <= 0.01
        if n_failed > 2:
            return False
    return True


@pytest.mark.usefixtures("ready_made")
@pytest.mark.parametrize("name", COMBINATIONS)
def test_drafted_draws_follow_the_definition(name: str) -> None:
    assert follows(COMBINATIONS[name])


@pytest.mark.parametrize("name", COMBINATIONS)
def test_drafting_changes_no_draw(name: str, request: pytest.FixtureRequest) -> None:
    p = replace(COMBINATIONS[name], seed=0)
    text = write(p, 1000)
    assert text == write(p, 1000, drafted=False)
    request.getfixturevalue("ready_made")
    assert text == write(p, 1000)


def accepts_likely(rows: Rows, draft: Draft, sampler: Sampler, position: int) -> Verdict:
    """A deliberate bug: a guess is kept where the model finds it likely, drawn or not."""
    tokens: list[int] = []
    for guess in draft.tokens:
        if softmax(rows[len(tokens)].astype(np.float64))[guess] < 0.3:
            break
        sampler.accept(guess)
        tokens.append(guess)
    rest = verify(rows[len(tokens) :], Draft(), sampler, position + len(tokens))
    return Verdict((*tokens, *rest.tokens), tuple(range(len(tokens))))


@pytest.mark.usefixtures("ready_made")
@pytest.mark.parametrize("name", ["temperature", "XTC", "mirostat 2", "penalties"])
def test_a_biased_rule_of_acceptance_fails(name: str) -> None:
    assert not follows(COMBINATIONS[name], accepts_likely)
