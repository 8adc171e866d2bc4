"""A drafter whose calls take time is asked while that pays, and what finding out may cost is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgespec.core.asking import Asking

STEP_S = 0.01


def play(n_rounds: int, call_s: Callable[[int], float], gain_s: Callable[[int], float]) -> tuple[int, float, Asking]:
    """Times asked, and what was lost to it in plain steps, where a call at round n takes and gives so many seconds."""
    asking, n_asked, lost_s = Asking(), 0, 0.0
    for n in range(n_rounds):
        asked = asking.worth(STEP_S)
        saved_s = 0.0
        if asked:
            n_asked += 1
            asking.called(call_s(n))
            saved_s = gain_s(n) - call_s(n)
            lost_s -= saved_s
        asking.book(1, saved_s, STEP_S, asked=asked)
    return n_asked, lost_s / STEP_S, asking


@pytest.mark.parametrize("share", [0.01, 0.08, 0.5, 3.0])
def test_one_that_never_helps_costs_less_than_a_hundredth(share: float) -> None:
    n_asked, lost, _ = play(5000, lambda _n: share * STEP_S, lambda _n: 0.0)
    assert n_asked >= 3  # it is tried again now and then
    assert lost <= (0.006 * 5000 + 0.4) / 0.994 + share


def test_one_that_takes_long_and_returns_nothing_is_no_exception() -> None:
    asking = Asking()
    assert asking.worth(STEP_S)
    asking.called(0.0)  # at first it was quick
    for _ in range(20):
        asking.book(1, -0.3 * STEP_S, STEP_S, asked=True)
    assert not asking.worth(STEP_S)


def test_one_that_pays_is_asked_always() -> None:
    n_asked, lost, _ = play(1000, lambda _n: 0.08 * STEP_S, lambda _n: 0.15 * STEP_S)
    assert n_asked == 1000
    assert lost < 0


def test_one_that_stops_paying_is_given_up_soon_and_found_again() -> None:
    def gain_s(n: int) -> float:
        return 0.0 if 300 <= n < 900 else 0.2 * STEP_S

    n_before, _, _ = play(300, lambda _n: 0.08 * STEP_S, gain_s)
    n_without, _, _ = play(900, lambda _n: 0.08 * STEP_S, gain_s)
    n_after, _, _ = play(1500, lambda _n: 0.08 * STEP_S, gain_s)
    assert n_before == 300
    assert n_without - n_before < 100
    assert n_after - n_without > 400


def test_a_single_stall_does_not_end_it_for_good() -> None:
    n_asked, _, asking = play(2000, lambda n: 4 * STEP_S if n == 10 else 0.05 * STEP_S, lambda _n: 0.1 * STEP_S)
    assert n_asked > 1000
    assert asking.worth(STEP_S)
