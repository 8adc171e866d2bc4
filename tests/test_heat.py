"""The heat policy: caps in order, quick to tighten, slow to loosen, nothing claimed where nothing is known."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.conditions import Conditions
from edgespec.core.heat import HeatLimits, HeatPolicy, Policy, Slowing

N_DRAFT, N_TEAM = 15, 4
POLICIES: tuple[Policy, ...] = ("fast", "balanced", "cool")


def feed(policy: HeatPolicy, headrooms: Sequence[float | None], start_s: float = 0.0) -> list[HeatLimits]:
    """One reading a second."""
    return [policy.update(Conditions(start_s + i, headroom=headroom)) for i, headroom in enumerate(headrooms)]


def draft_of(limits: HeatLimits) -> int:
    return N_DRAFT if limits.max_draft is None else limits.max_draft


def team_of(limits: HeatLimits) -> int:
    return N_TEAM if limits.max_team is None else limits.max_team


def test_draft_cap_falls_smoothly_with_headroom() -> None:
    caps = [draft_of(feed(HeatPolicy("balanced", N_DRAFT, N_TEAM), [i / 100])[0]) for i in range(70, 105)]
    assert caps[:11] == [N_DRAFT] * 11  # up to 0.80
    assert caps[25] == 1  # at 0.95
    assert caps[30:] == [0] * 5
    assert max(high - low for high, low in itertools.pairwise(caps)) <= 2


def test_next_reading_shortens_drafts_and_the_one_after_takes_a_thread() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    limits = feed(policy, [0.5, 0.97, 0.97])
    assert limits[0] == HeatLimits()
    assert (limits[1].max_draft, limits[1].max_team, limits[1].pace) == (1, None, 0.0)
    assert limits[2].max_team == N_TEAM - 1
    assert limits[1].reasons == ("headroom 0.97: drafts up to 1",)
    assert limits[2].reasons[1] == "headroom 0.97: 3 of 4 threads"


def test_idle_time_comes_last_and_all_steps_end() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    limits = feed(policy, [0.97] * 200)
    first_pace = next(i for i, limit in enumerate(limits) if limit.pace)
    assert team_of(limits[first_pace]) == 2  # more cores than that are not left out: idle time costs no more
    assert limits[-1].pace == 2.0
    assert "headroom 0.97: 200 % idle time added" in limits[-1].reasons


def test_no_more_steps_while_it_cools() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    limits = feed(policy, [0.97, 0.97, *[0.969 - 0.0005 * i for i in range(40)]])
    assert team_of(limits[-1]) == N_TEAM - 1


def test_where_the_clock_is_lowered_idle_time_comes_before_fewer_threads() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    for i in range(3):
        limits = policy.update(Conditions(float(i), headroom=0.97, freq_cap=0.5))
    assert (limits.max_team, limits.pace) == (None, 0.25)


def test_fast_reacts_at_severe_only() -> None:
    policy = HeatPolicy("fast", N_DRAFT, N_TEAM)
    assert feed(policy, [0.97] * 60)[-1] == HeatLimits()
    hot = feed(policy, [1.01] * 3, start_s=100.0)[-1]
    assert team_of(hot) < N_TEAM
    assert draft_of(hot) < N_DRAFT


def test_cool_is_small_without_any_heat() -> None:
    limits = feed(HeatPolicy("cool", N_DRAFT, N_TEAM), [0.2])[0]
    assert limits == HeatLimits(3, 2, 0.0, ("policy cool: drafts up to 3", "policy cool: 2 of 4 threads"))
    assert feed(HeatPolicy("cool", N_DRAFT, N_TEAM, n_team_cool=3), [0.2])[0].max_team == 3
    assert feed(HeatPolicy("cool", N_DRAFT, 1), [0.2])[0].max_team is None


@pytest.mark.parametrize(("slowing", "how"), [("clamp", "clock up to 50 %"), ("saver", "the system's power saver")])
def test_cool_asks_for_half_the_clock_and_keeps_all_cores(slowing: Slowing, how: str) -> None:
    policy = HeatPolicy("cool", N_DRAFT, N_TEAM, slowing=slowing)
    limits = feed(policy, [0.2])[0]
    assert limits == HeatLimits(3, None, 0.0, ("policy cool: drafts up to 3", f"policy cool: {how}"), 0.5)
    hot = feed(policy, [0.95] * 3, start_s=1.0)[-1]
    assert (hot.max_team, hot.pace, hot.max_clock) == (None, 0.25, 0.5)  # idle time before fewer threads
    policy.slowing = None  # the system changed its mind
    assert feed(policy, [0.5], start_s=10.0)[0].max_clock is None
    assert policy.limits.max_team == 2


@pytest.mark.parametrize("kind", POLICIES[:2])
def test_only_cool_asks_for_a_lower_clock(kind: Policy) -> None:
    policy = HeatPolicy(kind, N_DRAFT, N_TEAM, slowing="clamp")
    assert all(limits.max_clock is None for limits in feed(policy, [0.5, 0.95, 1.05, 1.05, 1.3]))
    low = policy.update(Conditions(9.0, headroom=0.5, battery=0.1, on_mains=False))
    assert low.max_clock == (0.5 if kind == "balanced" else None)
    assert ("battery low: clock up to 50 %" in low.reasons) == (kind == "balanced")


def test_a_clock_lowered_by_our_own_wish_is_not_heat() -> None:
    policy = HeatPolicy("cool", N_DRAFT, N_TEAM, slowing="saver")
    policy.update(Conditions(0.0, freq_cap=1.0))
    limits = [policy.update(Conditions(1.0 + i, freq_cap=0.4)) for i in range(60)][-1]
    assert (limits.max_draft, limits.pace) == (3, 0.0)
    assert policy.update(Conditions(70.0, freq_cap=0.4, throttled=True)).max_draft is not None


def test_recovers_after_cooling() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    assert feed(policy, [0.97] * 20)[-1].max_team is not None
    limits = feed(policy, [0.5] * 300, start_s=20.0)
    assert limits[0].max_draft is None  # drafts at once
    assert limits[10].max_team is not None  # the team only after it stayed cool
    assert limits[-1] == HeatLimits()


def test_a_rest_without_readings_starts_anew() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    feed(policy, [0.97] * 200)
    assert policy.update(Conditions(230.0, headroom=0.5)).pace > 0.0
    assert policy.update(Conditions(330.0, headroom=0.95)).pace > 0.0  # as hot as before
    assert policy.update(Conditions(430.0, headroom=0.5)) == HeatLimits()


def test_idle_time_goes_step_by_step_and_before_the_team_comes_back() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    feed(policy, [0.97] * 200)
    limits = feed(policy, [0.5] * 900, start_s=200.0)
    assert max(a.pace - b.pace for a, b in itertools.pairwise(limits)) == 0.25
    assert all(limit.pace == 0.0 for limit in limits if team_of(limit) > 2)
    assert limits[-1] == HeatLimits()


def test_flicker_moves_nothing() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    limits = feed(policy, [0.88 + (0.009 if i % 2 else -0.009) for i in range(600)])
    assert len({(limit.max_draft, limit.max_team, limit.pace) for limit in limits[1:]}) == 1


def test_steps_back_up_become_rarer_where_they_fail() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    headroom, teams = 0.97, []
    for second in range(3600):  # the full team is too hot, one thread less is cool
        limits = policy.update(Conditions(float(second), headroom=headroom))
        headroom = 0.96 if team_of(limits) == N_TEAM else 0.88
        teams.append(team_of(limits))
    ups = [i for i in range(1, len(teams)) if teams[i] > teams[i - 1]]
    assert 2 <= len(ups) <= 12
    assert ups[-1] - ups[-2] >= 400 > ups[1] - ups[0]


@pytest.mark.parametrize("kind", POLICIES[:2])
def test_nothing_known_nothing_claimed(kind: Policy) -> None:
    policy = HeatPolicy(kind, N_DRAFT, N_TEAM)
    assert feed(policy, [None, math.nan, math.inf]) == [HeatLimits()] * 3


def test_a_sensor_that_dies_is_believed_for_ten_seconds() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    hot = feed(policy, [0.97] * 10)[-1]
    silent = feed(policy, [None] * 12, start_s=10.0)
    assert (silent[5].max_draft, silent[5].max_team) == (hot.max_draft, hot.max_team)
    assert silent[5].reasons[0].startswith("heat sensor silent")
    assert silent[-1] == HeatLimits()


def test_without_headroom_throttling_and_a_falling_clock_count() -> None:
    throttled = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    assert throttled.update(Conditions(0.0, throttled=False)) == HeatLimits()
    limits = throttled.update(Conditions(1.0, throttled=True))
    assert limits.reasons == (f"throttled: drafts up to {limits.max_draft}",)
    assert draft_of(limits) <= 3
    clock = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    assert clock.update(Conditions(0.0, freq_cap=0.7)) == HeatLimits()  # always so: a setting, not heat
    assert clock.update(Conditions(1.0, freq_cap=1.0)) == HeatLimits()
    limits = clock.update(Conditions(2.0, freq_cap=0.6))
    assert limits.reasons == (f"clock lowered to 60 %: drafts up to {limits.max_draft}",)
    assert draft_of(limits) <= 3


def test_low_battery_moves_one_step_towards_cool_and_mains_back() -> None:
    def at(second: int, battery: float | None, on_mains: bool | None) -> HeatLimits:
        return policy.update(Conditions(float(second), headroom=0.3, battery=battery, on_mains=on_mains))

    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    assert at(0, 0.5, False) == HeatLimits()
    low = at(1, 0.29, False)
    assert low.reasons[0] == "battery low: drafts up to 3"
    assert at(2, 0.32, False) == low  # a charge that flickers
    assert at(3, 0.36, False) == HeatLimits()
    assert at(4, 0.1, None) == HeatLimits()  # not known to be on battery
    assert at(5, 0.1, False) == low
    assert at(6, 0.1, True) == HeatLimits()
    policy = HeatPolicy("fast", N_DRAFT, N_TEAM)
    policy.update(Conditions(0.0, headroom=0.95, battery=0.1, on_mains=False))
    assert policy.limits.max_draft == 1  # as balanced does


def test_an_old_reading_changes_nothing() -> None:
    policy = HeatPolicy("balanced", N_DRAFT, N_TEAM)
    hot = policy.update(Conditions(5.0, headroom=0.97))
    assert policy.update(Conditions(5.0, headroom=0.1)) is hot
    assert policy.update(Conditions(4.0, headroom=0.1)) is hot
    assert policy.limits is hot


def optional(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | strategy


READINGS = st.builds(
    Conditions,
    at_s=st.floats(0.01, 30.0),
    headroom=optional(st.floats(-0.5, 1.5) | st.just(math.nan)),
    throttled=st.none() | st.booleans(),
    freq_cap=optional(st.floats(0.0, 1.0)),
    battery=optional(st.floats(0.0, 1.0)),
    on_mains=st.none() | st.booleans(),
)
SLOWING: st.SearchStrategy[Slowing | None] = st.sampled_from([None, "clamp", "saver"])


def replay(policy: HeatPolicy, readings: Sequence[Conditions]) -> float:
    """Feed readings whose `at_s` is the time since the one before; return the time."""
    now_s = 0.0
    for reading in readings:
        now_s += reading.at_s
        policy.update(replace(reading, at_s=now_s))
    return now_s


@settings(max_examples=150)
@given(st.sampled_from(POLICIES), SLOWING, st.integers(0, 64), st.integers(1, 16), st.lists(READINGS, max_size=40))
def test_limits_stay_in_bounds(
    kind: Policy, slowing: Slowing | None, n_draft: int, n_team: int, readings: list[Conditions]
) -> None:
    policy = HeatPolicy(kind, n_draft, n_team, slowing=slowing)
    now_s = 0.0
    for reading in readings:
        now_s += reading.at_s
        limits = policy.update(replace(reading, at_s=now_s))
        assert limits.max_draft is None or 0 <= limits.max_draft < n_draft
        assert limits.max_team is None or 1 <= limits.max_team < n_team
        assert 0.0 <= limits.pace <= 2.0
        assert limits.max_clock in (None, 0.5)
        n_limits = sum(limit is not None for limit in (limits.max_draft, limits.max_team, limits.max_clock))
        assert len(limits.reasons) == n_limits + (limits.pace > 0.0)
        assert all("nan" not in reason for reason in limits.reasons)


HOTTER: dict[str, Callable[[Conditions, float, float], tuple[Conditions, Conditions]]] = {
    "headroom": lambda c, lo, hi: (replace(c, headroom=lo), replace(c, headroom=hi)),
    "clock": lambda c, lo, hi: (
        replace(c, headroom=None, freq_cap=max(0.0, 1.0 - lo)),
        replace(c, headroom=None, freq_cap=max(0.0, 1.0 - hi)),
    ),
    "throttled": lambda c, lo, hi: (
        replace(c, headroom=None, throttled=False),
        replace(c, headroom=None, throttled=True),
    ),
}


@settings(max_examples=150)
@given(
    st.sampled_from(POLICIES),
    SLOWING,
    st.lists(READINGS, max_size=25),
    READINGS,
    st.sampled_from(sorted(HOTTER)),
    st.lists(st.floats(0.0, 1.3), min_size=2, max_size=2).map(sorted),
)
def test_hotter_is_never_looser(
    kind: Policy,
    slowing: Slowing | None,
    readings: list[Conditions],
    last: Conditions,
    signal: str,
    heats: list[float],
) -> None:
    policy = HeatPolicy(kind, N_DRAFT, N_TEAM, slowing=slowing)
    now_s = replay(policy, readings) + last.at_s
    cooler, hotter = HOTTER[signal](replace(last, at_s=now_s), *heats)
    loose, tight = copy.deepcopy(policy).update(cooler), policy.update(hotter)
    assert draft_of(tight) <= draft_of(loose)
    assert team_of(tight) <= team_of(loose)
    assert tight.pace >= loose.pace
