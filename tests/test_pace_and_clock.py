"""Why `cool` asks for a lower clock instead of earning one by idle time: the rules of two frequency governors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest


def schedutil(pass_ms: int, pause_ms: int, floor: float = 0.35) -> float:
    """Mean clock of passes that wait for memory, as a share of the highest, over ten seconds after ten.

    Utilisation halves in 32 ms and counts busy time by the clock it ran at; a task that wakes counts as it did when it
    slept (UTIL_EST); the clock is a quarter above that.
    Source: Linux Documentation/scheduler/schedutil.rst; util_est_update in kernel/sched/fair.c.
    """
    kept = math.exp2(-1 / 32)
    busy_util, estimate, clock, clocks = 1.0, 1.0, 1.0, []
    average = 1.0
    for ms in range(20_000):
        at = ms % (pass_ms + pause_ms)
        if at < pass_ms:
            busy_util = busy_util * kept + (1.0 - kept) * clock
            clock = min(1.0, max(floor, 1.25 * max(busy_util, estimate)))
            if ms >= 10_000:
                clocks.append(clock)
        else:
            if at == pass_ms:
                average = max(busy_util, average + 0.25 * (busy_util - average))
                estimate = average
            busy_util *= kept
    return sum(clocks) / len(clocks)


def ondemand(pass_ms: int, pause_ms: int, floor: float = 1 / 3) -> float:
    """The same of Raspberry Pi OS: a look every 100 ms, all the clock above half load, and then no look for 5 s.

    Source: od_update in drivers/cpufreq/cpufreq_ondemand.c; up_threshold 50, sampling_rate 100000 and
    sampling_down_factor 50 of raspi-config.
    """
    clock, clocks, n_busy, n_seen, next_ms = 1.0, [], 0, 0, 100
    for ms in range(60_000):
        busy = ms % (pass_ms + pause_ms) < pass_ms
        n_busy, n_seen = n_busy + busy, n_seen + 1
        if busy and ms >= 30_000:
            clocks.append(clock)
        if ms + 1 >= next_ms:
            load = n_busy / n_seen
            n_busy = n_seen = 0
            clock = 1.0 if load > 0.5 else floor + load * (1.0 - floor)
            next_ms += 5_000 if load > 0.5 else 100
    return sum(clocks) / len(clocks)


@pytest.mark.parametrize("governor", [schedutil, ondemand])
def test_without_idle_time_the_clock_is_the_highest(governor: Callable[[int, int], float]) -> None:
    assert governor(60, 0) == 1.0


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("pass_ms", [111, 334])
def test_idle_time_lowers_no_clock_on_a_pi(pass_ms: int, share: float) -> None:
    """A pass of TinyLlama (Q8_0: 111 ms on a Pi 5, 334 on a Pi 4) is longer than the look."""
    assert ondemand(pass_ms, round(share * pass_ms)) > 0.9


def test_on_a_phone_it_takes_as_much_idle_time_as_a_pass_is_long() -> None:
    """58 ms: a pass of TinyLlama on the flagship. A clamp lowers the clock at no such price."""
    assert schedutil(58, 43) == pytest.approx(1.0, abs=0.01)
    assert schedutil(58, 58) < 0.6
    assert schedutil(111, 222) == pytest.approx(1.0, abs=0.01)


def test_short_passes_need_less() -> None:
    assert schedutil(20, 10) < 0.6
