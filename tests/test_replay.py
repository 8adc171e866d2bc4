"""Memory that goes back to before a draft: what that costs, when it pays, and that the loss stays bounded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import state
from edgespec.calibrate import calibrate
from edgespec.conditions import Team
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller, Ledger
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.interfaces import Capabilities, Draft, Limits, Report, Sampling
from edgespec.testing import FakeClock, FakeTarget, ScriptedDrafter

REPLAY = Capabilities(1, rewind=False, rollback="replay")
FLAT = {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.3, 16: 1.8}
STEPS = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.6, 16: 5.8}
WHOLE = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0}
"""Plain steps by width: nearly free rows, those of a usual machine, and rows that cost as much as steps."""


def chain_of(n: int, confidence: float) -> Draft:
    return Draft((1,) * n, tuple(range(-1, n - 1)), (0,) * n, (confidence,) * n)


def chosen(
    costs: dict[int, float],
    confidence: float,
    *,
    n_replay: int = 0,
    replays: bool = True,
    restore_s: float = 0.0,
    balance: float = 0.4,
) -> int:
    """Length of the draft that is worth verifying, of 15 tokens of one confidence each."""
    cost = CostModel(CostTable(costs, restore_s=restore_s))
    controller = Controller(cost, Acceptance(Prior(), 0.0), Ledger(balance))
    return len(controller.trim("d", chain_of(15, confidence), 0, n_replay=n_replay, replays=replays).tokens)


def test_a_rejection_that_costs_a_replay_is_priced() -> None:
    assert 0 < chosen(STEPS, 0.99) <= chosen(STEPS, 0.99, replays=False)
    assert chosen(STEPS, 0.8, replays=False) > chosen(STEPS, 0.8) == 0
    assert chosen(FLAT, 0.8) > 0
    assert chosen(WHOLE, 0.999) == 0


def test_the_way_back_is_priced() -> None:
    assert chosen(FLAT, 0.8, restore_s=5.0) == 0


def test_a_pass_that_replays_anyway_is_wide_anyway() -> None:
    costs = {1: 1.0, 2: 1.6, 4: 1.6, 8: 1.7, 16: 1.8}
    assert chosen(costs, 0.5, balance=3.0) == 0
    assert chosen(costs, 0.5, balance=3.0, n_replay=4) > 0
    assert chosen(costs, 0.5, n_replay=4) == 0  # not on credit: the replay itself is still to be paid


@dataclass(frozen=True)
class Decoded:
    report: Report
    at: list[tuple[int, float]]
    """Tokens and seconds after each round."""


def decode(costs: dict[int, float], guess: Callable[[Sequence[int], int], Sequence[int]], n_tokens: int) -> Decoded:
    """An answer of a model that writes 1, 2, ..., 29, 1, ..., on a machine that costs exactly what the table says."""
    script = [1 + i % 29 for i in range(n_tokens + 10)]
    clock = FakeClock()
    cost = CostModel(CostTable(costs))
    target = FakeTarget(
        n_ctx=n_tokens + 100,
        eog=(),
        capabilities=REPLAY,
        clock=clock,
        cost_s=lambda width, n_ctx: cost.base_s(width),
        script=script,
    )
    governor = Governor(Team(1, 1), HeatPolicy("balanced", 15, 1), n_usable=1, n_draft_max=15)
    governor.use_cost(cost, 0.0)
    generation = Generation(
        Session(target),
        script[:1],
        Sampling(),
        Limits(n_tokens),
        lambda token: b"x",
        clock,
        Drafting(ScriptedDrafter(lambda context, limit: guess(script[len(context) :], limit)), target.n_vocab),
        Controller(cost, Acceptance(Prior(), 0.0)),
    )
    at = []
    while generation.finish_reason is None:
        play_round([generation], target, clock, governor)
        at.append((len(generation.tokens), clock.now_s))
    result = generation.result()
    assert list(result.tokens) == script[1 : 1 + n_tokens]
    return Decoded(result.report, at)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([STEPS, FLAT, WHOLE]), st.sampled_from(["wrong", "half", "moody", "one"]))
def test_the_loss_is_bounded_with_replays_too(seed: int, costs: dict[int, float], kind: str) -> None:
    rng = random.Random(seed)

    def guess(right: Sequence[int], limit: int) -> Sequence[int]:
        n_right = {"wrong": 0, "half": rng.choice([0, 1, 2, 15]), "moody": rng.choice([0, 15]), "one": 1}[kind]
        return [*right[: min(n_right, limit)], *[30] * limit][:limit]

    decoded = decode(costs, guess, 1000)
    assert decoded.report.rollback == "replay"
    assert decoded.report.decode_s <= 1.01 * 999
    if kind == "wrong":
        assert worst_loss(decoded.at, 128) <= 0.025 + 1e-3


def worst_loss(at: Sequence[tuple[int, float]], window: int) -> float:
    """Largest share by which any `window` tokens took longer than plain steps of a second."""
    losses = [
        (ended_s - began_s) / (end - begin) - 1.0
        for begin, began_s in at
        for end, ended_s in [next(((n, s) for n, s in at if n >= begin + window), at[-1])]
        if end >= begin + window
    ]
    return max(losses)


def test_it_pays_at_usual_prices_and_is_off_where_rows_cost_whole_steps() -> None:
    def guess(right: Sequence[int], limit: int) -> Sequence[int]:
        wrong = right[0] % 7 == 0  # a rejection every seventh token
        return [30] * limit if wrong else right[:limit]

    usual = decode(STEPS, guess, 600).report
    assert usual.accepted < usual.drafted
    assert usual.decode_s < 0.6 * 599
    assert decode(WHOLE, guess, 600).report.drafted == 0


def test_calibration_times_the_way_back_and_the_next_run_knows_it(tmp_path: Path) -> None:
    clock = FakeClock(tick_s=0.001)
    table = calibrate(FakeTarget(capabilities=REPLAY, clock=clock, cost_s=lambda width, n_ctx: 0.01 * width), clock)
    assert table.restore_s == pytest.approx(0.001)
    assert max(table.base_s) == 16
    file = tmp_path / "state.json"
    assert state.save_state(file, CostModel(table).table(), Prior()) is None
    assert state.load_state(file)[0] == table
    plain = calibrate(FakeTarget(clock=clock, cost_s=lambda width, n_ctx: 0.01 * width), clock)
    assert plain.restore_s == 0.0
