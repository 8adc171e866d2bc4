"""Never slower: the loss bound, coming back, adapting, and what costs and acceptance learn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from harness import COSTS
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.core.acceptance import Acceptance, Prior, band
from edgespec.core.controller import Controller, Ledger, cut
from edgespec.core.cost import CostModel, CostTable
from edgespec.draft.suffix import SuffixDrafter
from edgespec.interfaces import Draft


def chain_of(tokens: Sequence[int], confidence: float = 0.9, strength: int = 0) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (strength,) * n, (confidence,) * n)


def drive(
    n_tokens: int,
    costs: dict[int, float],
    n_right: Callable[[int, float], int],
    confidence: float = 0.99,
    prior: Prior | None = None,
) -> list[tuple[int, float]]:
    """Let a controller decode `n_tokens`; the drafter always proposes 15 tokens, the first `n_right` of them right.

    Returns (tokens, seconds) after every round, on a machine that costs exactly what the table says.
    """
    cost = CostModel(CostTable(costs))
    controller = Controller(cost, Acceptance(prior or Prior(), 0.0))
    at = [(0, 0.0)]
    while at[-1][0] < n_tokens:
        right = n_right(at[-1][0], controller.ledger.balance)
        proposal = chain_of([1] * 15, confidence)
        draft = controller.trim("d", proposal, 0)
        accepted = min(right, len(draft.tokens))
        committed = (1,) * accepted + ((1,) if right > accepted else (0,))
        seconds = cost.base_s(1 + len(draft.tokens))
        at.append((at[-1][0] + len(committed), at[-1][1] + seconds))
        controller.acceptance.score("d", proposal, committed)
        controller.book(1 + len(draft.tokens), 0, len(committed), seconds, 0.0)
    return at


def worst_loss(at: Sequence[tuple[int, float]], window: int) -> float:
    """Largest share by which any `window` tokens (or a few more, to the end of a round) took longer than plain."""
    worst, j = -1.0, 0
    for n, began_s in at:
        while j < len(at) and at[j][0] < n + window:
            j += 1
        if j == len(at):
            break
        worst = max(worst, (at[j][1] - began_s) / (at[j][0] - n) - 1.0)
    return worst


def seconds_for(at: Sequence[tuple[int, float]], n_tokens: int) -> float:
    """Seconds until at least `n_tokens` were there."""
    return next(now for n, now in at if n >= n_tokens)


@settings(max_examples=120)
@given(
    st.integers(0, 10**6),
    st.floats(1.05, 2.0),
    st.floats(0.02, 1.0),
    st.sampled_from(["wrong", "never pays", "random", "moody", "hostile"]),
    st.floats(0.3, 1.0),
)
def test_loss_is_bounded_whatever_the_drafter_does(
    seed: int, second: float, per_row: float, kind: str, confidence: float
) -> None:
    costs = {1: 1.0, **{w: second + per_row * (w - 2) for w in (2, 4, 8, 16)}}
    rng = random.Random(seed)
    peak = 0.0

    def n_right(i: int, balance: float) -> int:
        nonlocal peak
        peak = max(peak, balance)
        if kind == "wrong":
            return 0
        if kind == "never pays":
            return rng.choice([0, 0, 0, 1])
        if kind == "random":
            return rng.choice([0, 0, 1, 2, 15])
        if kind == "moody":
            return 15 if (i // 100) % 2 else 0
        return 15 if balance < 2.5 else 0  # earns trust and credit, then betrays them

    at = drive(1500, costs, n_right, confidence)
    # What was earned, by luck too, may be lost again, up to the ledger's cap of 7 steps.
    assert peak <= 7.0
    bound = 0.025 if kind == "wrong" else (peak + 2.0) / 128 + 0.006
    assert worst_loss(at, 128) <= bound + 1e-3
    assert seconds_for(at, 1000) <= 1.01 * 1000
    assert seconds_for(at, 1500) <= 1.01 * 1500


def test_an_early_win_does_not_fund_a_later_loss() -> None:
    ledger = Ledger()
    for _ in range(20):
        ledger.book(5.0, 16)
    assert ledger.balance == ledger.cap
    for _ in range(20):
        ledger.book(1.0, 1)
    assert ledger.balance < ledger.lasting + 0.2


def test_a_perfect_drafter_is_used_to_the_full() -> None:
    at = drive(400, COSTS, lambda i, balance: 15)
    assert seconds_for(at, 400) < 400 * COSTS[16] / 16 * 1.25


def test_nothing_is_drafted_where_rows_cost_whole_steps() -> None:
    costs = {w: 1.0 * w for w in (1, 2, 4, 8, 16)}
    assert seconds_for(drive(300, costs, lambda i, balance: 15), 300) <= 301


def test_speculation_comes_back_after_a_long_dry_spell() -> None:
    """Source: anthony-chaudhary/fak#5257: a fallback that never recovers."""
    at = drive(600, COSTS, lambda i, balance: 0 if i < 100 else 15)
    assert seconds_for(at, 600) - seconds_for(at, 300) < 0.6 * 300


def test_counting_text_costs_at_most_a_twentieth() -> None:
    """Source: kekzl/imp#667: a times table looks repetitive and is not."""
    table = "".join(f"7 x {i} = {7 * i}\n" for i in range(1, 60))
    text = [ord(c) for c in table]
    cost = CostModel(CostTable(COSTS))
    controller = Controller(cost, Acceptance(Prior(), 0.0))
    drafter = SuffixDrafter()
    i, spent = 20, 0.0
    while i < len(text):
        proposal = drafter.propose(text[:i], min(15, len(text) - i - 1))
        draft = controller.trim("ngram", proposal, i)
        n = 0
        while n < len(draft.tokens) and draft.tokens[n] == text[i + n]:
            n += 1
        seconds = cost.base_s(1 + len(draft.tokens))
        committed = tuple(text[i : i + n + 1])
        spent += seconds
        controller.acceptance.score("ngram", proposal, committed)
        controller.book(1 + len(draft.tokens), i, len(committed), seconds, 0.0)
        i += len(committed)
    assert spent <= 1.05 * (len(text) - 20)


def test_switching_workload_adapts_within_forty_rounds() -> None:
    cost = CostModel(CostTable(COSTS))
    controller = Controller(cost, Acceptance(Prior(), 0.0))
    proposal = chain_of([1] * 15, 0.5)
    for _ in range(60):
        controller.acceptance.score("d", proposal, (0,))
        controller.book(1, 0, 1, 1.0, 0.0)
    assert controller.trim("d", proposal, 0).tokens == ()
    lengths = []
    for _ in range(40):
        lengths.append(len(controller.trim("d", proposal, 0).tokens))
        width = 1 + lengths[-1]
        controller.acceptance.score("d", proposal, (1,) * width)
        controller.book(width, 0, width, cost.base_s(width), 0.0)
    assert max(lengths) >= 3, lengths


def test_a_plain_round_comes_at_least_every_64() -> None:
    cost = CostModel(CostTable({1: 1.0, 16: 1.1}))
    controller = Controller(cost, Acceptance(Prior(), 0.0))
    proposal, widths = chain_of([1] * 15, 0.99), []
    for _ in range(200):
        width = 1 + len(controller.trim("d", proposal, 0).tokens)
        widths.append(width)
        controller.acceptance.score("d", proposal, (1,) * width)
        controller.book(width, 0, width, cost.base_s(width), 0.0)
    assert all(1 in widths[i : i + 65] for i in range(len(widths) - 65))


@given(st.integers(0, 15), st.integers(0, 20))
def test_cut_keeps_the_first_nodes(n: int, at: int) -> None:
    draft = chain_of(range(n))
    assert cut(draft, at).tokens == tuple(range(min(n, at)))


class TestCost:
    def test_unmeasured_widths_are_never_priced_below_the_line(self) -> None:
        cost = CostModel(CostTable({1: 1.0, 4: 2.0, 8: 4.0}))
        assert 2.5 <= cost.base_s(5) <= 4.0
        assert cost.base_s(16) >= 4.0
        assert cost.base_s(12) <= cost.base_s(16) <= cost.base_s(40)

    def test_one_stall_changes_nothing_two_do(self) -> None:
        cost = CostModel(CostTable({1: 1.0, 4: 2.0}))
        cost.observe(4, 0, 2.0)
        cost.observe(1, 0, 1.0)  # the way back
        for _ in range(4):
            cost.observe(1, 0, 1.0)
        cost.observe(1, 0, 30.0)
        assert cost.seconds(1, 0) == 1.0
        cost.observe(1, 0, 30.0)
        assert cost.seconds(1, 0) > 1.0

    def test_a_slower_machine_is_noticed_and_forgiven(self) -> None:
        cost = CostModel(CostTable({1: 1.0, 4: 2.0}))
        for _ in range(200):
            cost.observe(1, 0, 2.0)
        assert cost.seconds(1, 0) == pytest.approx(2.0, rel=0.05)
        assert cost.seconds(4, 0) > 2.5  # wide passes follow although none was measured
        for _ in range(900):
            cost.observe(1, 0, 1.0)
        assert cost.seconds(1, 0) == pytest.approx(1.0, rel=0.05)
        assert cost.seconds(4, 0) == pytest.approx(2.0, rel=0.15)

    def test_attention_grows_with_the_context(self) -> None:
        cost = CostModel(CostTable({1: 1.0, 4: 2.0}))
        for i in range(4000):
            n = 100 + i % 2000
            cost.observe(1, n, 1.2 + n / 4000)  # on the way back from a wider pass
            for _ in range(6):
                cost.observe(1, n, 1.0 + n / 4000)
            cost.observe(4, n, 2.0 + 4 * n / 4000)
        for n in (300, 1800):
            assert cost.seconds(1, n) == pytest.approx(1.0 + n / 4000, rel=0.1)
            assert cost.seconds(4, n) == pytest.approx(2.0 + 4 * n / 4000, rel=0.15)
        assert cost.switch_s == pytest.approx(0.2, abs=0.06)

    def test_a_table_measured_on_a_busy_machine_is_suspect(self) -> None:
        cost = CostModel(CostTable({1: 10.0, 4: 20.0}))
        for _ in range(90):
            cost.observe(1, 0, 1.0)
        assert cost.suspect


def test_a_stalled_pass_is_not_held_against_drafting() -> None:
    controller = Controller(CostModel(CostTable({1: 1.0, 4: 1.5})), Acceptance(Prior(), 0.0))
    for _ in range(20):
        controller.book(4, 0, 4, 1.5, 0.0)
    before = controller.ledger.balance
    controller.book(4, 0, 4, 600.0, 0.0)
    assert controller.ledger.balance > before - 1.0
    controller.book(4, 0, 1, 600.0, 0.0)
    assert controller.ledger.balance > before - 7.0
    for _ in range(20):
        controller.book(4, 0, 1, 6.0, 0.0)  # dear for good
    assert controller.ledger.balance < -20.0


class TestAcceptance:
    def test_the_claim_is_the_estimate_until_experience_replaces_it(self) -> None:
        acceptance = Acceptance(Prior(), 0.0)
        assert acceptance.rate("d", 3, 0.8) == pytest.approx(0.8)
        for _ in range(100):
            acceptance.score("d", chain_of([7], strength=3), (8,))
        assert acceptance.rate("d", 3, 0.8) < 0.1
        assert acceptance.rate("d", 4, 0.8) == pytest.approx(0.8)

    def test_what_lies_beyond_a_miss_says_nothing(self) -> None:
        acceptance = Acceptance(Prior(), 0.0)
        draft = Draft((1, 2, 3), (-1, 0, 1), (0, 1, 2), (0.5, 0.5, 0.5))
        acceptance.score("d", draft, (1, 9, 3))
        assert acceptance.rate("d", 0, 0.5) > 0.5
        assert acceptance.rate("d", 1, 0.5) < 0.5
        assert acceptance.rate("d", 2, 0.5) == 0.5

    def test_temperatures_do_not_share_a_prior(self) -> None:
        prior = Prior()
        for _ in range(50):
            Acceptance(prior, 0.0).score("d", chain_of([1]), (1,))
        assert Acceptance(prior, 0.0).rate("d", 0, 0.5) > 0.8
        assert Acceptance(prior, 0.8).rate("d", 0, 0.5) < 0.5  # the claim alone, at longer odds
        assert [band(t) for t in (0.0, 0.2, 0.8, 1.5)] == [0, 1, 2, 3]
