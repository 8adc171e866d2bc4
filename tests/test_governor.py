"""Heat and competition together: what the next round may use, by the next reading and the round after it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.conditions import Conditions, Team
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.interfaces import Limits, Sampling
from edgespec.testing import FakeClock, FakeTarget, ScriptedDrafter

TABLE = CostTable({1: 1.0, 4: 2.0, 8: 4.0, 16: 8.0}, one=4, wide=4)


def governor(policy: str = "balanced", *, fixed: bool = False) -> Governor:
    heat = HeatPolicy(policy, 15, 4)  # type: ignore[arg-type]  # parametrised
    made = Governor(Team(4, 4, (4, 5, 6, 7)), heat, n_usable=8, n_draft_max=15, fixed=fixed)
    made.use_cost(CostModel(TABLE), 0.0)
    return made


def test_heat_shortens_drafts_at_the_next_reading_and_then_the_team_and_both_come_back() -> None:
    device = governor()
    device.update(Conditions(1.0, headroom=0.5))
    assert (device.max_draft, device.team.one, device.pace) == (15, 4, 0.0)
    device.update(Conditions(2.0, headroom=0.97))
    assert device.max_draft <= 2
    at_s = 2.0
    for _ in range(60):
        at_s += 1.0
        device.update(Conditions(at_s, headroom=0.97))
    assert device.team.one < 4
    assert device.team.cpus == (4, 5, 6, 7)
    assert "headroom" in device.changes[-1].reason
    for _ in range(1200):
        at_s += 1.0
        device.update(Conditions(at_s, headroom=0.3))
    assert (device.max_draft, device.team.one, device.pace) == (15, 4, 0.0)


def test_the_round_obeys_the_cap() -> None:
    device = governor()
    target = FakeTarget(n_ctx=128, eog=())
    drafter = Drafting(ScriptedDrafter(lambda context, limit: [1] * limit), target.n_vocab)
    limits = Limits(40, fixed_draft=8)
    generation = Generation(Session(target, 0), [1, 2, 3], Sampling(), limits, lambda _: b"x", FakeClock(0.01), drafter)
    play_round([generation], target, FakeClock(0.01), device)
    play_round([generation], target, FakeClock(0.01), device)
    device.update(Conditions(1.0, headroom=0.97))
    while generation.finish_reason is None:
        play_round([generation], target, FakeClock(0.01), device)
    widths = generation.result().report.widths
    assert widths[9] == 1
    assert max(width for width in widths if width != 9) <= device.max_draft + 1


def test_fixed_threads_are_kept_in_heat_but_drafts_are_not() -> None:
    device = governor(fixed=True)
    for i in range(100):
        device.update(Conditions(float(i), headroom=0.97))
    assert device.team == Team(4, 4, (4, 5, 6, 7))
    assert device.max_draft <= 2


def test_competition_moves_below_what_heat_allows() -> None:
    device = governor()
    at_s = 0.0
    while device.team.one == 4:
        at_s += 1.0
        device.update(Conditions(at_s, headroom=0.97))
        assert at_s < 100
    allowed = device.team.one
    for _ in range(40):  # a smaller team is undisturbed
        at_s += 1.0
        device.observe(1, 0, 9.0 if device.team.one == allowed else 1.5, at_s)
    assert device.team.one < allowed
    for _ in range(2000):
        at_s += 1.0
        device.observe(1, 0, 1.5, at_s)
        assert device.team.one <= allowed


def test_changes_are_bounded_and_say_why() -> None:
    device = governor()
    for i in range(5000):
        device.observe(1, 0, 9.0 if i // 10 % 2 else 1.0, float(i))
    assert 0 < len(device.changes) <= 256
    assert all(change.reason for change in device.changes)


_numbers = st.none() | st.floats(-10, 10) | st.just(float("nan"))


@settings(max_examples=100)
@given(
    st.sampled_from(["fast", "balanced", "cool"]),
    st.lists(
        st.tuples(_numbers, _numbers, st.none() | st.booleans(), st.floats(0, 30), st.floats(0.01, 100)), max_size=80
    ),
)
def test_any_reading_leaves_a_team_and_a_draft_within_bounds(
    policy: str, readings: list[tuple[float | None, float | None, bool | None, float, float]]
) -> None:
    device = governor(policy)
    at_s = 0.0
    for headroom, busy, throttled, pause_s, seconds in readings:
        at_s += pause_s
        device.update(Conditions(at_s, headroom=headroom, busy_others=busy, throttled=throttled, battery=busy))
        device.observe(1, 10, seconds, at_s)
        device.observe(4, 10, seconds, at_s)
        assert 1 <= device.team.one <= 4
        assert 1 <= device.team.wide <= 4
        assert 0 <= device.max_draft <= 15
        assert 0.0 <= device.pace <= 2.0


@pytest.mark.parametrize("policy", ["fast", "balanced", "cool"])
def test_without_cost_nothing_is_observed(policy: str) -> None:
    device = Governor(Team(2, 2), HeatPolicy(policy, 15, 2), n_usable=2, n_draft_max=15)  # type: ignore[arg-type]
    for i in range(10):
        device.observe(1, 0, 9.0, float(i))
    assert device.team == Team(2, 2)
