"""Drafted text equals plain text, whatever the drafter does: random cases on a fake target."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.interfaces import Capabilities, Draft, Limits, Result, Sampling
from edgespec.testing import FakeClock, FakeTarget

COSTS = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.6, 16: 5.8}


class Odd:
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
            token = right if rng.random() < 0.7 else rng.randrange(-1, self._target.n_vocab + 2)
            branch = i > 0 and rng.random() < 0.3
            parents.append(rng.randrange(-1, i) if branch else i - 1)
            tokens.append(token)
            text.append(max(0, min(token, self._target.n_vocab - 1)))
        n = len(tokens)
        return Draft(tuple(tokens), tuple(parents), (1,) * n, (0.9,) * n)

    def close(self) -> None:
        pass


def piece(token: int) -> bytes:
    """Text of a token: letters, some of them halves of a two-byte character."""
    return bytes([0xC3]) if token % 11 == 7 else bytes([0xA9]) if token % 11 == 8 else bytes([97 + token % 26])


def answers(case: dict[str, object], drafted: bool) -> list[Result]:
    """All answers of a case: `n_turns` turns in each of `n_sessions` sessions that share batches."""
    rng = random.Random(int(case["seed"]))  # type: ignore[call-overload]
    clock = FakeClock()
    target = FakeTarget(
        case["n_vocab"], case["n_ctx"], seed=case["seed"], noise=case["noise"], clock=clock,  # type: ignore[arg-type]
        cost_s=lambda w, n: 0.001 * w, eog=(0, 1), capabilities=case["capabilities"],  # type: ignore[arg-type]
    )
    cost = CostModel(CostTable(COSTS)) if rng.random() < 0.5 else None
    sessions = [Session(target, i) for i in range(case["n_sessions"])]  # type: ignore[call-overload]
    results: list[Result] = []
    drafters = [
        Drafting(SuffixDrafter() if rng.random() < 0.4 else Odd(target, rng), target.n_vocab) for _ in sessions
    ]
    controls = [Controller(cost, Acceptance(Prior(), 0.0)) if cost else None for _ in sessions]
    for turn in range(case["n_turns"]):  # type: ignore[call-overload]
        active: list[Generation] = []
        for i, session in enumerate(sessions):
            room = max(1, target.n_ctx // 4)
            own = random.Random(f"{case['seed']}/{turn}/{i}")
            more = [own.randrange(2, target.n_vocab) for _ in range(own.randrange(1, room))]
            old = session.tokens if own.random() < 0.7 else session.tokens[: own.randrange(len(session.tokens) + 1)]
            prompt = (old + more)[: target.n_ctx]
            limits = Limits(case["max_tokens"], case["stop"], max_draft=own.choice([1, 3, 15]))  # type: ignore[arg-type]
            generation = Generation(
                session, prompt, case["sampling"], limits, piece, clock,  # type: ignore[arg-type]
                drafters[i] if drafted else None, controls[i] if drafted else None,
            )
            if generation.finish_reason is None:
                active.append(generation)
            results.append(None)  # type: ignore[arg-type]
            slot = len(results) - 1
            generation.slot = slot  # type: ignore[attr-defined]
            if generation.finish_reason is not None:
                results[slot] = generation.result()
        while active:
            play_round(active, target, clock, cost)
            for generation in active:
                assert generation.session.n_pending >= 1
                assert target.cells[generation.session.seq_id] == generation.session.tokens[: generation.session.n_kv]
                if generation.finish_reason is not None:
                    results[generation.slot] = generation.result()  # type: ignore[attr-defined]
            active = [g for g in active if g.finish_reason is None]
    return results


CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "n_vocab": st.integers(3, 200),
        "n_ctx": st.integers(12, 300),
        "noise": st.sampled_from([0.0, 0.3, 1.0]),
        "n_sessions": st.integers(1, 3),
        "n_turns": st.integers(1, 3),
        "max_tokens": st.sampled_from([1, 2, 7, 30]),
        "stop": st.lists(st.text(alphabet="abcdefé", min_size=1, max_size=4), max_size=2).map(tuple),
        "capabilities": st.sampled_from(
            [
                Capabilities(8, tree=True),
                Capabilities(8),
                Capabilities(1),
                Capabilities(2, max_rollback=4, rewind=False),
                Capabilities(1, max_rollback=0, rewind=False, off_reason="no partial rollback"),
            ]
        ),
        "sampling": st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
            top_k=st.sampled_from([0, 1, 5, 40]),
            top_p=st.sampled_from([1.0, 0.8]),
            min_p=st.sampled_from([0.0, 0.1]),
            typical_p=st.sampled_from([1.0, 0.7]),
            repeat_penalty=st.sampled_from([1.0, 1.3]),
            presence_penalty=st.sampled_from([0.0, 0.7]),
            penalty_last_n=st.sampled_from([-1, 4, 64]),
            seed=st.integers(0, 5),
        ),
    }
)


@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(CASES)
def test_drafted_text_is_plain_text(case: dict[str, object]) -> None:
    plain, drafted = answers(case, False), answers(case, True)
    assert len(plain) == len(drafted)
    for a, b in zip(plain, drafted, strict=True):
        assert (a.tokens, a.text, a.finish_reason) == (b.tokens, b.text, b.finish_reason)
        assert b.report.accepted <= b.report.drafted
        assert b.usage.completion_tokens == len(b.tokens)
