"""The simulated device against published traces, and the heat policies on five devices over 20 minutes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import pytest

from edgespec.bench.device_model import (
    Cluster,
    Decode,
    Device,
    Profile,
    Throttle,
    Trace,
    best_draft,
    expected_tokens,
    pass_cost,
    run,
    stress_w,
)
from edgespec.bench.profiles import BASES, load_profiles
from edgespec.core.heat import Policy

PROFILES = load_profiles()
KEYS = tuple(key for key, profile in PROFILES.items() if profile.heats)
MINUTES = 20.0
LONG = Decode(fixed_draft=10)
"""The fixed maximum: all performance cores, prompt lookup's usual ten tokens, throttled by the system alone."""
SHORT_ANSWERS = Decode(acceptance=0.5, answer_s=20, pause_s=60)
"""A chat: 20 s of answer in 80 s, and half of the guesses right."""


@cache
def trace(key: str, decode: Decode, policy: Policy | None) -> Trace:
    return run(PROFILES[key], decode, policy, MINUTES)


# Published traces. ------------------------------------------------------------------------------------------------

PI4_2GHZ_C = {
    # Source: TuxfeatMac/RPiHeatSinkTest, DEFAULT.csv (Raspberry Pi 4 at 2.0 GHz, sysbench on four cores from second 60
    # to 660, one row a second). °C at the second named, jitter of ±1 °C averaged by eye.
    65: 59.0, 70: 61.0, 80: 63.0, 90: 65.0, 120: 68.0, 150: 70.5, 180: 72.0, 210: 74.0, 240: 75.0, 270: 76.5,
    300: 78.0, 330: 79.0, 360: 79.5, 390: 80.2, 420: 80.4, 480: 80.7, 540: 81.0, 600: 81.3, 660: 81.7,
    665: 73.0, 670: 70.0, 680: 69.0, 690: 67.5, 700: 66.0, 719: 65.5,
}  # fmt: skip
PI4_2GHZ_SHARE = {
    # The same file: mean clock over 2000 MHz (rows are 2000 or 1333 MHz), by first and last second.
    (60, 400): 1.0, (400, 460): 0.961, (460, 520): 0.956, (520, 580): 0.906, (580, 640): 0.861, (640, 661): 0.778,
}  # fmt: skip
PI4_STOCK_C = {
    # Source: nschloe/stressberry, rpi4b-stock.dat (no case, 1.5 GHz, stress on four cores from second 150 to 453).
    157: 55.0, 168: 59.0, 180: 60.0, 200: 63.3, 220: 65.0, 240: 67.0, 260: 67.0, 290: 69.0, 320: 70.0,
    350: 70.7, 380: 71.0, 420: 71.3, 452: 72.0, 458: 65.0, 464: 62.0, 476: 58.5, 490: 57.0, 510: 55.3, 530: 54.3,
    560: 53.0, 600: 51.0,
}  # fmt: skip


def stress(profile: Profile, begin_s: int, end_s: int, until_s: int) -> dict[int, tuple[float, float]]:
    """°C and clock share by second, of four cores under stress between two seconds, from rest."""
    device = Device.at_rest(profile)
    seen = {}
    for quarter in range(4 * until_s + 1):
        if quarter % 4 == 0:
            seen[quarter // 4] = (device.die_c, device.share)
        device.step(0.25, stress_w(device, 4) if 4 * begin_s <= quarter < 4 * end_s else 0.0)
    return seen


def worst(seen: Mapping[int, tuple[float, float]], published: Mapping[int, float]) -> float:
    """Largest error of the rise over rest, as a share of the published rise: stricter than a share of the °C."""
    rest_c = seen[0][0]
    return max(abs(seen[at][0] - rest_c - (c - rest_c)) / (c - rest_c) for at, c in published.items())


def test_published_throttling_trace_of_a_pi_4_at_2_ghz() -> None:
    """Thermal constants are fitted to the heating until 390 s and the cooling; the throttled part is a prediction."""
    overclocked = replace(
        PROFILES["pi4"],
        clusters=(Cluster("Cortex-A72 at 2 GHz, 1.02 V", 4, (600.0, 2000.0), (0.29, 1.56), 1.7),),
        throttle=Throttle("firmware", from_c=80.0, floor=0.4, slope_per_k=0.12),  # 2020's firmware: 2/3 of the clock
        die_k_w=1.86,
        die_j_k=1.48,
        body_k_w=3.62,
        body_j_k=54.0,
        ambient_c=33.95,  # for the 49.3 °C at rest; neither air nor heat sink are named
    )
    seen = stress(overclocked, 60, 660, 719)
    assert worst(seen, PI4_2GHZ_C) <= 0.15
    for (begin, end), published in PI4_2GHZ_SHARE.items():
        mean = sum(seen[at][1] for at in range(begin, end)) / (end - begin)
        assert mean == pytest.approx(published, rel=0.15)


def test_published_heating_of_the_bare_pi_4() -> None:
    """The profile's own constants, at the clock of the trace; from five seconds on, since °C are whole."""
    pi4 = PROFILES["pi4"]
    core = pi4.clusters[0]
    at_1500 = replace(core, mhz=core.mhz[:3], watts=core.watts[:3])
    assert worst(stress(replace(pi4, clusters=(at_1500,)), 150, 453, 600), PI4_STOCK_C) <= 0.15


def test_uncooled_pi_5_gets_as_hot_as_published() -> None:
    """Source: Phoronix, Raspberry Pi 5 benchmarks: without a heat sink 81 °C on average and 89 at the peak."""
    hottest = max(sample.temp_c for sample in trace("pi5", Decode(), None).samples)
    assert hottest == pytest.approx(89.0, abs=3.0)


# The model. -------------------------------------------------------------------------------------------------------


def test_published_speeds_of_the_pis() -> None:
    """Source: guevara/read-it-later#11711, TinyLlama 1.1B Q8_0: 3 and 9 tok/s, prefill 10 and 35 to 45."""
    assert 1.0 / pass_cost(PROFILES["pi4"], 1, 4, 1.0)[0] == pytest.approx(3.0, rel=0.1)
    assert 1.0 / pass_cost(PROFILES["pi5"], 1, 4, 1.0)[0] == pytest.approx(9.0, rel=0.1)
    assert 512.0 / pass_cost(PROFILES["pi4"], 512, 4, 1.0)[0] == pytest.approx(10.0, rel=0.2)
    assert 35.0 <= 512.0 / pass_cost(PROFILES["pi5"], 512, 4, 1.0)[0] <= 45.0


@pytest.mark.parametrize("key", KEYS)
def test_single_rows_wait_for_memory_and_wide_passes_for_the_cores(key: str) -> None:
    profile = PROFILES[key]
    one, wide = (pass_cost(profile, width, profile.n_team, 1.0)[0] for width in (1, 16))
    assert one <= pass_cost(profile, 1, profile.n_team, 0.9)[0] <= 1.03 * one  # a lower clock costs them little
    assert wide < pass_cost(profile, 16, profile.n_team, 0.9)[0]
    times = [pass_cost(profile, width, profile.n_team, 1.0)[0] for width in range(1, 17)]
    assert times == sorted(times)


def test_draft_length_is_the_best_and_zero_where_nothing_pays() -> None:
    profile = PROFILES["pi5"]
    n = best_draft(profile, Decode(0.65), 15, 4, 1.0)
    rates = [expected_tokens(0.65, k) / pass_cost(profile, 1 + k, 4, 1.0)[0] for k in range(16)]
    assert rates[n] == max(rates)
    assert best_draft(profile, Decode(0.01), 15, 4, 1.0) == 0
    assert best_draft(profile, Decode(0.65), 2, 4, 1.0) == 2
    assert expected_tokens(0.5, 2) == 1.75


def test_rest_is_an_equilibrium_and_heat_is_conserved() -> None:
    for profile in PROFILES.values():
        device = Device.at_rest(profile)
        die_c = device.die_c
        for _ in range(400):
            device.step(0.25, 0.0)
        assert device.die_c == pytest.approx(die_c, abs=1e-6)
        for _ in range(40_000):
            device.step(0.5, 1.0)
        lost_w = (device.body_c - profile.ambient_c) / profile.body_k_w
        assert lost_w == pytest.approx(1.0 + profile.idle_w + profile.body_w, rel=1e-3)


def test_every_figure_has_its_basis() -> None:
    text = resources.files("edgespec.bench").joinpath("profiles.toml").read_text(encoding="utf-8")
    assert len(KEYS) == 5
    # All but the staircase of `server-stock` is the server's.
    n_figures = 1 + sum(len(profile.basis) for key, profile in PROFILES.items() if key != "server-stock")
    assert n_figures == sum(line.rstrip().endswith('"]') and " = [" in line for line in text.splitlines())
    assert {basis for profile in PROFILES.values() for basis, _ in profile.basis.values()} <= set(BASES)


def test_runs_are_deterministic() -> None:
    assert run(PROFILES["pi5"], Decode(), "balanced", 3.0) == run(PROFILES["pi5"], Decode(), "balanced", 3.0)


# The policies. ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_the_fixed_maximum_throttles_where_the_profile_stands(key: str) -> None:
    assert min(sample.share for sample in trace(key, LONG, None).samples) < 0.95


@pytest.mark.parametrize("key", KEYS)
def test_balanced_never_becomes_severe_and_beats_the_fixed_maximum(key: str) -> None:
    balanced = trace(key, Decode(), "balanced")
    assert balanced.max_headroom < 0.97
    assert balanced.tokens >= 1.05 * trace(key, LONG, None).tokens


VARIANTS: dict[str, Callable[[Profile], Profile]] = {
    "hungrier cores": lambda p: replace(
        p, clusters=tuple(replace(c, watts=tuple(1.3 * watts for watts in c.watts)) for c in p.clusters)
    ),
    "worse cooling": lambda p: replace(p, body_k_w=1.3 * p.body_k_w),
    "light body": lambda p: replace(p, body_j_k=0.4 * p.body_j_k),
    "light die": lambda p: replace(p, die_j_k=0.3 * p.die_j_k),
    "bad contact": lambda p: replace(p, die_k_w=2.0 * p.die_k_w),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_balanced_does_not_rest_on_the_exact_figures(key: str, variant: str) -> None:
    assert run(VARIANTS[variant](PROFILES[key]), Decode(), "balanced", MINUTES).max_headroom < 1.0


@pytest.mark.parametrize(
    ("key", "share"), [("pi4", 0.93), ("pi5", 0.82), ("pixel7", 0.64), ("pixel4a", 0.77), ("laptop", 0.99)]
)
def test_what_staying_below_severe_costs(key: str, share: float) -> None:
    """Against the same draft lengths without a policy, which pass severe on the Pi 5 and on both phones."""
    free = trace(key, Decode(), None)
    assert trace(key, Decode(), "balanced").tokens >= share * free.tokens
    assert (free.max_headroom >= 1.0) == (key in {"pi5", "pixel7", "pixel4a"})


@pytest.mark.parametrize(
    ("key", "share"), [("pi4", 0.2), ("pi5", 0.2), ("pixel7", 0.5), ("pixel4a", 0.0), ("laptop", 0.5)]
)
def test_cool_saves_energy_in_short_answers(key: str, share: float) -> None:
    """A fifth and more, except where half of the team is all of it (two cores)."""
    fast, cool = trace(key, SHORT_ANSWERS, "fast"), trace(key, SHORT_ANSWERS, "cool")
    assert cool.j_token <= (1.0 - share) * fast.j_token


def saved(key: str, cool: Trace) -> tuple[float, float]:
    """Share of the energy per token of `fast` that is saved in a long run: above idle, and of the whole device."""
    fast = trace(key, Decode(), "fast")
    return 1.0 - cool.j_token / fast.j_token, 1.0 - cool.device_j_token / fast.device_j_token


def capped(key: str, cap: float) -> Trace:
    """`cool` where a person, or another kernel, holds the clock to `cap`."""
    profile = PROFILES[key]
    return run(profile, Decode(), "cool", MINUTES, Device(profile, profile.ambient_c, profile.ambient_c, cap=cap))


@pytest.mark.parametrize(("key", "of_device"), [("pixel7", 0.27), ("laptop", 0.17)])
def test_cool_saves_a_fifth_in_a_long_run_where_the_system_lowers_the_clock(key: str, of_device: float) -> None:
    cool = trace(key, Decode(), "cool")
    above_idle, whole = saved(key, cool)
    assert above_idle >= 0.2
    assert whole >= of_device
    assert cool.tokens >= 0.8 * trace(key, Decode(), "fast").tokens
    assert cool.max_headroom < trace(key, Decode(), "fast").max_headroom


@pytest.mark.parametrize(
    ("key", "above_idle", "of_device"), [("pi4", 0.09, -0.07), ("pi5", 0.07, 0.01), ("pixel4a", -0.02, -0.05)]
)
def test_cool_saves_little_in_a_long_run_elsewhere(key: str, above_idle: float, of_device: float) -> None:
    """A throttled device works at a lower voltage, and fewer threads at the full clock save hardly more than that."""
    found = saved(key, trace(key, Decode(), "cool"))
    assert above_idle <= found[0] < 0.2
    assert of_device <= found[1]


def test_what_is_saved_does_not_rest_on_how_low_the_clock_falls() -> None:
    """Kernels from 6.8 on give four fifths of what is asked; a power profile gives what the firmware likes."""
    assert saved("pixel7", capped("pixel7", 0.4))[0] >= 0.3
    for clock in (0.3, 0.35, 0.45):
        laptop = replace(PROFILES["laptop"], saver_clock=clock)
        assert saved("laptop", run(laptop, Decode(), "cool", MINUTES))[0] >= 0.2


UNSURE: dict[str, Callable[[Profile], Profile]] = {
    "less while waiting": lambda p: replace(p, stall=0.3),
    "twice the leakage": lambda p: replace(p, leak_w_60c=2.0 * p.leak_w_60c),
    "twice the uncore": lambda p: replace(p, uncore_w=2.0 * p.uncore_w),
    "twice the energy of memory": lambda p: replace(p, memory_j_gb=2.0 * p.memory_j_gb),
    "slow memory": lambda p: replace(p, memory_gb_s=tuple(0.7 * gb_s for gb_s in p.memory_gb_s)),
    "memory at the clock of the cores": lambda p: replace(p, memory_by_clock=0.4),
}


@pytest.mark.parametrize("variant", UNSURE)
@pytest.mark.parametrize(("key", "share"), [("pixel7", 0.3), ("laptop", 0.09)])
def test_how_much_the_saving_rests_on_assumed_figures(key: str, share: float, variant: str) -> None:
    """On the laptop half of it does: doubled, what is always on leaves a tenth."""
    profile = UNSURE[variant](PROFILES[key])
    fast, cool = (run(profile, Decode(), policy, MINUTES) for policy in ("fast", "cool"))
    assert cool.j_token <= (1.0 - share) * fast.j_token


@pytest.mark.parametrize("key", ["pixel7", "laptop"])
def test_without_a_lower_clock_cool_saves_nothing_there(key: str) -> None:
    """Fewer cores clock higher until it is as hot as before. So it was before `cool` asked for a clock."""
    cool = run(replace(PROFILES[key], slowing="none"), Decode(), "cool", MINUTES)
    assert -0.16 <= saved(key, cool)[0] <= 0.0


def thriftiest(profile: Profile, floor: float) -> float:
    """Joules per token of the best team, width and clock there is, at the temperature where each settles."""
    found = []
    for clock in (share / 20 for share in range(20, math.ceil(20 * floor) - 1, -1)):
        for team, width in itertools.product(range(1, profile.n_team + 1), range(1, 9)):
            seconds, joules = pass_cost(profile, width, team, clock)
            device = Device.at_rest(profile)
            for _ in range(20):
                watts = joules / seconds + device.leak_w()
                device.body_c = profile.ambient_c + (watts + profile.idle_w + profile.body_w) * profile.body_k_w
                device.die_c = min(120.0, device.body_c + (watts + profile.idle_w) * profile.die_k_w)
            found.append(watts * seconds / expected_tokens(0.65, width - 1))
    return min(found)


@pytest.mark.parametrize("key", ["pi5", "pixel4a"])
def test_no_team_width_or_clock_at_all_saves_a_fifth(key: str) -> None:
    floor = PROFILES[key].clusters[0].mhz[0] / PROFILES[key].clusters[0].mhz[-1]
    assert thriftiest(PROFILES[key], floor) > 0.85 * trace(key, Decode(), "fast").j_token


def test_on_the_pi_4_a_clock_that_only_root_can_set_saves_a_fifth_but_not_of_the_board() -> None:
    above_idle, whole = saved("pi4", capped("pi4", 0.5))
    assert above_idle >= 0.2
    assert -0.05 <= whole <= 0.05  # the board is on for longer


@pytest.mark.parametrize(("key", "macs", "low", "high"), [
    ("pixel7", 1.6, -1.0, -0.5),
    ("pixel4a", 1.6, 0.1, 0.2),
    ("pixel4a", 1.2, -0.1, 0.0),
    ("laptop", 6.5, -0.25, -0.15),
])  # fmt: skip
def test_efficiency_cores_alone_save_no_fifth(key: str, macs: float, low: float, high: float) -> None:
    """How much an A55 does per cycle is not sure, 1.2 to 1.6: eight threads on four A76 and four A55 run at the pace
    of the slowest, half as fast as the A76 alone (ggml-org/llama.cpp#7176). An E core has half the vector pipes."""
    profile = PROFILES[key].background()
    profile = replace(profile, clusters=(replace(profile.clusters[0], macs_per_cycle=macs),))
    assert low <= saved(key, run(profile, Decode(), None, MINUTES))[0] <= high


@pytest.mark.parametrize("key", ["pi4", "laptop"])
def test_fast_leaves_throttling_to_the_system_below_severe(key: str) -> None:
    assert trace(key, Decode(), "fast").samples == trace(key, Decode(), None).samples


@pytest.mark.parametrize("key", KEYS)
def test_team_and_pace_settle(key: str) -> None:
    late = trace(key, Decode(), "balanced").samples[600:]
    moves = [(a.team, a.pace) != (b.team, b.pace) for a, b in itertools.pairwise(late)]
    assert sum(moves) <= 10  # in ten minutes


@pytest.mark.parametrize("key", KEYS)
def test_all_limits_go_after_a_rest(key: str) -> None:
    """A rest of 20 minutes, after ten at work."""
    samples = run(PROFILES[key], Decode(answer_s=600, pause_s=1200), "balanced", 30.5).samples
    if key in {"pi4", "pi5", "pixel7"}:  # the other two take longer to get there
        assert any(sample.team < PROFILES[key].n_team or sample.pace > 0.0 for sample in samples[:600])
    first, again = samples[0], samples[1801]
    assert (again.team, again.pace, again.draft) == (first.team, first.pace, first.draft)


def test_in_the_background_only_efficiency_cores_are_left_or_half_of_the_others() -> None:
    assert {key: PROFILES[key].background().n_team for key in PROFILES} == {
        "pi4": 2, "pi5": 2, "pixel7": 4, "pixel4a": 6, "laptop": 8, "server": 1, "server-stock": 1,
    }  # fmt: skip
    for profile in PROFILES.values():
        behind = profile.background()
        assert pass_cost(behind, 8, behind.n_team, 1.0)[0] > pass_cost(profile, 8, profile.n_team, 1.0)[0]
