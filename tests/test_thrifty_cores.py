"""The governor on the simulated device: which cores a team keeps that heat makes smaller, and the clock it asks for."""

from __future__ import annotations

from edgespec.bench.device_model import Device, stress_w
from edgespec.bench.profiles import load_profiles
from edgespec.conditions import Conditions, Team
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy

PROFILES = load_profiles()


def test_a_team_that_heat_makes_smaller_keeps_to_the_thrifty_cores_and_comes_back() -> None:
    profile = PROFILES["pixel7"]
    device = Device(profile, profile.ambient_c, profile.ambient_c)
    full, heat, order = Team(4, 4, (4, 5, 6, 7)), HeatPolicy("balanced", 15, 4), (6, 4, 5, 7)
    governor = Governor(full, heat, n_usable=8, n_draft_max=15, thrifty=order)
    seen = set()
    for second in range(1800):
        governor.update(device.conditions(float(second)))
        team = governor.team
        seen.add((team.one, team.cpus))
        busy = second < 600
        for _ in range(4):
            device.step(0.25, stress_w(device, team.one) / (1.0 + governor.pace) if busy else 0.0)
    assert len(seen) > 1
    assert all(cpus == tuple(sorted(order[:n])) for n, cpus in seen)
    assert governor.team == full


def test_thrifty_cores_are_forgotten_after_a_move_and_too_few_of_them_are_not_used() -> None:
    def cool(thrifty: tuple[int, ...]) -> Governor:
        heat = HeatPolicy("cool", 15, 4)
        made = Governor(Team(4, 4, (4, 5, 6, 7)), heat, n_usable=8, n_draft_max=15, thrifty=thrifty)
        made.update(Conditions(1.0, headroom=0.3))
        return made

    assert (cool(()).team.one, cool(()).team.cpus) == (2, (4, 5, 6, 7))
    assert cool((5,)).team.cpus == (4, 5, 6, 7)
    moved = cool((6, 4, 5, 7))
    assert moved.team == Team(2, 2, (4, 6))
    moved.move(Team(4, 4, (0, 1, 2, 3)), 4, 2.0, "elsewhere")
    moved.update(Conditions(3.0, headroom=0.3))
    assert moved.team == Team(2, 2, (0, 1, 2, 3))


def test_the_governor_passes_the_clock_on() -> None:
    heat = HeatPolicy("cool", 15, 4, slowing="clamp")
    governor = Governor(Team(4, 4), heat, n_usable=4, n_draft_max=15)
    governor.update(Conditions(1.0, headroom=0.3))
    assert (governor.max_clock, governor.team.one) == (0.5, 4)
