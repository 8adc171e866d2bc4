"""Random cases on the fake target, and three ways to answer them: naively, plainly, drafted.

`naive` shares nothing with the engine but the fake model and the sampler's single draw: no cache, no rounds, no
streaming, everything recomputed from the whole text at every token.
"""

from __future__ import annotations

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.conditions import Team
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.logprobs import logprobs_of
from edgespec.core.round import play_round
from edgespec.core.sampling import Sampler
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.interfaces import Capabilities, Draft, Drafter, FinishReason, Limits, Sampling, TokenLogprobs
from edgespec.testing import FakeClock, FakeTarget

COSTS = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.6, 16: 5.8}
MEMORIES = (
    Capabilities(8, tree=True),
    Capabilities(8),
    Capabilities(1),
    Capabilities(2, max_rollback=4, rewind=False, rollback="snapshots"),
    Capabilities(1, rewind=False, rollback="replay"),
    Capabilities(1, max_rollback=0, rewind=False, rollback=None, off_reason="no partial rollback"),
)


@dataclass(frozen=True)
class Turn:
    """One request of one sequence: how much of the old text it keeps, what it adds, its limits."""

    keep: float
    more: tuple[int, ...]
    limits: Limits


@dataclass(frozen=True)
class Case:
    """Everything random about a comparison, drawn before any of it runs."""

    seed: int
    n_vocab: int
    n_ctx: int
    noise: float
    capabilities: Capabilities
    sampling: Sampling
    turns: tuple[tuple[Turn, ...], ...] = field(repr=False)
    """By turn, then by sequence."""
    controlled: bool = True


@dataclass(frozen=True)
class Answer:
    """What must be equal."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...]


def random_case(rng: random.Random) -> Case:
    """A case with 1-3 sequences of 1-3 turns."""
    n_vocab, n_ctx = rng.randint(3, 200), rng.randint(12, 300)
    stop = tuple("".join(rng.choices("abcdefé", k=rng.randint(1, 4))) for _ in range(rng.choice([0, 0, 1, 2])))
    n_sessions = rng.randint(1, 3)

    def turn() -> Turn:
        more = tuple(rng.randrange(2, n_vocab) for _ in range(rng.randint(1, max(1, n_ctx // 4))))
        limits = Limits(
            rng.choice([None, 1, 2, 7, 30]),
            stop,
            max_draft=rng.choice([1, 3, 15]),
            ignore_eog=rng.random() < 0.2,
        )
        return Turn(rng.choice([1.0, 1.0, rng.random()]), more, limits)

    return Case(
        seed=rng.randrange(2**32),
        n_vocab=n_vocab,
        n_ctx=n_ctx,
        noise=rng.choice([0.0, 0.1, 0.3]),
        capabilities=rng.choice(MEMORIES),
        sampling=Sampling(
            temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 1.5]),
            top_k=rng.choice([0, 1, 5, 40]),
            top_p=rng.choice([1.0, 0.8]),
            min_p=rng.choice([0.0, 0.1]),
            typical_p=rng.choice([1.0, 0.7]),
            repeat_penalty=rng.choice([1.0, 1.3]),
            presence_penalty=rng.choice([0.0, 0.7]),
            penalty_last_n=rng.choice([-1, 4, 64]),
            logit_bias=rng.choice([{}, {2: 1.5}]),
            seed=rng.randrange(5),
            attempt=rng.randrange(2),
            **random_extras(rng),
        ),
        turns=tuple(tuple(turn() for _ in range(n_sessions)) for _ in range(rng.randint(1, 3))),
        controlled=rng.random() < 0.5,
    )


def random_extras(rng: random.Random) -> dict[str, Any]:
    """The rarer samplers: each in some cases, none in half of them."""
    if rng.random() < 0.5:
        return {}
    return {
        "top_n_sigma": rng.choice([0.0, 1.0]),
        "min_keep": rng.choice([0, 3]),
        "xtc_probability": rng.choice([0.0, 0.5, 1.0]),
        "dynatemp_range": rng.choice([0.0, 0.4]),
        "mirostat": rng.choice([0, 0, 1, 2]),
        "mirostat_tau": rng.choice([1.0, 5.0]),
        "dry_multiplier": rng.choice([0.0, 0.8, 5.0]),
        "dry_allowed_length": rng.choice([1, 2]),
        "dry_penalty_last_n": rng.choice([-1, 5, 12, 64]),
        "dry_breakers": rng.choice([None, ((2,), (1, 2))]),
        "logprobs": rng.choice([None, 0, 2]),
    }


def piece(token: int) -> bytes:
    """Text of a token: letters, and the two halves of a two-byte character."""
    return b"\xc3" if token % 11 == 7 else b"\xa9" if token % 11 == 8 else bytes([97 + token % 26])


def fake_target(case: Case, clock: FakeClock | None = None) -> FakeTarget:
    """The model of a case."""
    return FakeTarget(
        case.n_vocab,
        case.n_ctx,
        seed=case.seed,
        noise=case.noise,
        eog=(0, 1),
        capabilities=case.capabilities,
        clock=clock,
        cost_s=lambda n_tokens, n_ctx: 0.001 * n_tokens + 1e-6 * n_ctx,
    )


def prompt_of(turn: Turn, old: Sequence[int], n_ctx: int) -> list[int]:
    """The turn's prompt: what it keeps of the old text, and what it adds."""
    return ([*old[: round(turn.keep * len(old))], *turn.more])[:n_ctx]


def naive(case: Case) -> list[Answer]:
    """All answers, one token at a time from the whole text."""
    target = fake_target(case)
    answers = []
    texts: list[list[int]] = [[] for _ in case.turns[0]]
    for turns in case.turns:
        for i, turn in enumerate(turns):
            text = prompt_of(turn, texts[i], case.n_ctx)
            answers.append(_naive_answer(case, target, text, turn.limits))
            texts[i] = text
    return answers


def _naive_answer(case: Case, target: FakeTarget, text: list[int], limits: Limits) -> Answer:
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    raw = b""
    sampler = Sampler(case.sampling, text)
    while True:
        if not case.sampling.mirostat:  # which knows how the text came about, the others only the text
            sampler = Sampler(case.sampling, text)
        row = target.logits(text)
        token = sampler.sample(row, len(text))
        sampler.accept(token)
        text.append(token)
        tokens.append(token)
        if case.sampling.logprobs is not None:
            logprobs.append(logprobs_of(row, token, case.sampling.logprobs))
        if token in target.eog and not limits.ignore_eog:
            return Answer(tuple(tokens), raw.decode("utf-8", "replace"), "stop", tuple(logprobs))
        raw += piece(token)
        shown = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
        found = [shown.find(s) for s in limits.stop if s in shown]
        if found:
            return Answer(tuple(tokens), shown[: min(found)], "stop", tuple(logprobs))
        if len(tokens) == limits.max_tokens or len(text) > case.n_ctx:
            return Answer(tuple(tokens), raw.decode("utf-8", "replace"), "length", tuple(logprobs))


class OddDrafter:
    """Right with some probability; else wrong, over-long, branching, past the end, or outside the vocabulary."""

    name = "odd"

    def __init__(self, target: FakeTarget, rng: random.Random) -> None:
        self._target, self._rng = target, rng

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        rng, text = self._rng, list(context)
        tokens: list[int] = []
        parents: list[int] = []
        for i in range(rng.choice([0, 1, limit, limit + 5])):
            right = int(self._target.logits(text).argmax())
            token = right if rng.random() < 0.75 else rng.randrange(-1, self._target.n_vocab + 2)
            branch = i > 0 and rng.random() < 0.2
            parents.append(rng.randrange(-1, i) if branch else i - 1)
            tokens.append(token)
            text.append(max(0, min(token, self._target.n_vocab - 1)))
        n = len(tokens)
        return Draft(tuple(tokens), tuple(parents), (1,) * n, (0.9,) * n)

    def close(self) -> None:
        """Nothing to free."""


def engine(case: Case, drafted: bool) -> list[Answer]:
    """All answers through sessions and rounds that share batches; checks the cache invariant after every round."""
    rng = random.Random(case.seed)
    clock = FakeClock()
    target = fake_target(case, clock)
    cost = CostModel(CostTable({w: s / 1000 for w, s in COSTS.items()})) if case.controlled else None
    governor = Governor(Team(2, 2), HeatPolicy("balanced", 63, 2), n_usable=2, n_draft_max=63)
    if cost is not None:
        governor.use_cost(cost, clock())
    sessions = [Session(target, i) for i in range(len(case.turns[0]))]
    drafters: list[Drafter] = [rng.choice((SuffixDrafter(), OddDrafter(target, rng))) for _ in sessions]
    desks = [Drafting(drafter, target.n_vocab) for drafter in drafters]
    controls = [Controller(cost, Acceptance(Prior(), case.sampling.temperature)) if cost else None for _ in sessions]
    answers = []
    for turns in case.turns:
        generations = [
            Generation(
                session,
                prompt_of(turn, session.tokens, case.n_ctx),
                case.sampling,
                turn.limits,
                piece,
                clock,
                desk if drafted else None,
                control if drafted else None,
            )
            for turn, session, desk, control in zip(turns, sessions, desks, controls, strict=True)
        ]
        streamed = [""] * len(generations)
        active = list(generations)
        while active:
            for generation, chunk in zip(active, play_round(active, target, clock, governor), strict=True):
                streamed[generations.index(generation)] += chunk.text
            for session in sessions:
                assert target.cells.get(session.seq_id, []) == session.tokens[: session.n_kv], "stale cells"
                assert session.n_pending > 0, "nothing is pending"
            active = [g for g in active if g.finish_reason is None]
        for generation, text in zip(generations, streamed, strict=True):
            result = generation.result()
            report = result.report
            assert result.text == text, "the pieces are not the text"
            assert report.accepted <= report.drafted, "more accepted than drafted"
            assert result.usage.completion_tokens == len(result.tokens), "usage differs from the tokens"
            assert sum(report.accepted_by_position) == report.accepted, "positions do not add up"
            answers.append(Answer(result.tokens, result.text, result.finish_reason, result.logprobs))
    return answers


def check(n_cases: int, seed: int = 0) -> None:
    """Compare all three ways on random cases.

    Raises:
        AssertionError: they differ.
    """
    rng = random.Random(seed)
    for _ in range(n_cases):
        compare(random_case(rng))


def compare(case: Case) -> None:
    """Compare all three ways on one case.

    Raises:
        AssertionError: they differ.
    """
    expected = naive(case)
    assert engine(case, drafted=False) == expected, case
    assert engine(case, drafted=True) == expected, case
