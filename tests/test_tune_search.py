"""The search of `edgespec tune` on a simulated device: a planted best is found, noise alone changes nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from edgespec.bench.device_model import Profile, pass_cost
from edgespec.bench.profiles import load_profiles
from edgespec.errors import ModelError
from edgespec.testing import FakeClock
from edgespec.tune_search import Knob, Means, interval, search
from edgespec.tuning_profile import Choice

N_CORES = 4
KV = ("q8_0/q8_0", "f16/bf16")
DRAFTS = (7, 31)


@dataclass
class Device:
    """Passes of a simulated phone, with noise, spikes and a slow drift; time passes as it measures."""

    truth: Callable[[Choice], float]
    seed: int
    noise: float = 0.03
    n_tokens: int = 10
    """Tokens of one measurement."""
    clock: FakeClock = field(default_factory=FakeClock)
    n_measured: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def measure(self, choice: Choice) -> float:
        self.n_measured += 1
        drift = 1.0 + 0.1 * math.sin(self.clock.now_s / 17.0)
        spike = self.rng.uniform(1.2, 3.0) if self.rng.random() < 0.05 else 1.0
        seconds = self.truth(choice) * drift * spike * math.exp(self.rng.gauss(0.0, self.noise))
        self.clock.now_s += self.n_tokens * seconds
        return seconds

    def knobs(self) -> list[Knob]:
        fewer = tuple(range(1, N_CORES))
        return [
            Knob("threads", N_CORES, fewer, self.measure),
            Knob("threads_batch", N_CORES, fewer, self.measure),
            Knob("kv_type", "f16/f16", KV, self.measure),
            Knob("drafter", "ngram", ("none",), self.measure),
            Knob("max_draft", 15, DRAFTS, self.measure),
        ]

    def tune(self, budget_s: float) -> tuple[Choice, float]:
        choice, _ = search(self.knobs(), Means(self.clock, seed=self.seed), budget_s)
        return choice, self.clock.now_s


def phone(profile: Profile, best: Choice) -> Callable[[Choice], float]:
    """Seconds of a token on a simulated phone, some of whose values are made better than the others."""

    def truth(choice: Choice) -> float:
        one, wide = choice.threads or N_CORES, choice.threads_batch or N_CORES
        single_s = pass_cost(profile, 1, N_CORES, 1.0)[0] * (1.0 if one == (best.threads or N_CORES) else 1.15)
        wide_s = pass_cost(profile, 8, N_CORES, 1.0)[0] * (1.0 if wide == (best.threads_batch or N_CORES) else 1.15)
        kv = 1.0 if choice.kv_type == best.kv_type else 1.06
        draft = 1.0 if choice.max_draft == best.max_draft else 1.05
        return 0.5 * (single_s + wide_s) * kv * draft * (1.2 if choice.drafter == "none" else 1.0)

    return truth


GRID = [
    Choice(threads=one, threads_batch=wide, kv_type=kv, max_draft=draft)
    for one, wide, kv, draft in [
        (None, None, None, None), (1, None, None, None), (3, None, "q8_0/q8_0", None), (None, 2, "f16/bf16", 31),
        (2, 3, "q8_0/q8_0", 7), (1, 1, "f16/bf16", 31), (None, None, "q8_0/q8_0", 31), (3, 3, None, 7),
    ]
]  # fmt: skip


@pytest.mark.parametrize("best", GRID, ids=str)
def test_the_planted_best_of_the_grid_is_found_in_time(best: Choice) -> None:
    profile = load_profiles()["pixel7"]
    found = [Device(phone(profile, best), seed, n_tokens=1).tune(180.0) for seed in range(5)]
    assert [choice for choice, _ in found] == [best] * 5
    assert max(took_s for _, took_s in found) <= 180.0


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_alone_does_not_leave_the_default(noise: float) -> None:
    found = [Device(lambda _: 0.02, seed, noise).tune(60.0)[0] for seed in range(100)]
    assert sum(choice != Choice() for choice in found) <= 5


def test_gains_nobody_notices_change_nothing() -> None:
    def truth(choice: Choice) -> float:
        return 0.02 / (1.004 if choice.threads == 3 else 1.0)

    assert Device(truth, 1, noise=0.0005).tune(60.0)[0] == Choice()


def test_a_slow_device_keeps_what_it_cannot_decide_and_ends_in_time() -> None:
    device = Device(lambda choice: 1.0 if choice.threads == 2 else 2.0, 0)
    knobs = device.knobs()
    choice, findings = search(knobs, Means(device.clock), 100.0)
    assert choice == Choice()
    assert "more --minutes" in findings[0].why
    assert device.clock.now_s <= 100.0 + 60.0  # a measurement takes 20 s, three times that where there is a spike


def test_what_cannot_be_decided_in_time_is_not_begun() -> None:
    device = Device(lambda _: 1.0, 0)
    slow = Knob("drafter", "ngram", ("none",), device.measure, takes_s=10.0)
    _, (finding,) = search([slow], Means(device.clock), 100.0)
    assert "more --minutes" in finding.why
    assert device.n_measured == 0


def test_disturbed_rounds_do_not_count_and_are_repeated() -> None:
    clean = Device(lambda choice: 0.02 if choice.drafter == "none" else 0.025, 0, noise=0.01)
    calls = 0

    def trouble() -> str | None:
        nonlocal calls
        calls += 1
        return "another program" if calls % 3 == 0 else None

    def measure(choice: Choice) -> float:
        # What the disturbance does would turn the choice around, if it counted.
        return clean.measure(choice) * (3.0 if (calls + 1) % 3 == 0 and choice.drafter == "none" else 1.0)

    choice, (finding,) = search([Knob("drafter", "ngram", ("none",), measure)], Means(clean.clock, trouble), 240.0)
    assert choice == Choice(drafter="none")
    assert finding.tried[0].n_rounds == 100
    assert finding.n_dropped == 50
    assert finding.tried[0].low is not None
    assert finding.tried[0].low > 1.2


def test_what_is_always_disturbed_is_given_up_and_said() -> None:
    device = Device(lambda choice: 0.01 if choice.threads else 0.02, 0)
    choice, findings = search(device.knobs(), Means(device.clock, lambda: "others take 1.5 cores"), 240.0)
    assert choice == Choice()
    assert all("others take 1.5 cores" in finding.why for finding in findings)
    assert device.n_measured < 300


def test_what_is_not_possible_is_left_out_with_its_reason() -> None:
    device = Device(lambda choice: 0.01 if choice.kv_type == "f16/bf16" else 0.02, 0)

    def measure(choice: Choice) -> float:
        if choice.kv_type == "q8_0/q8_0":
            raise ModelError("it takes no such cache")
        return device.measure(choice)

    choice, (finding,) = search([Knob("kv_type", "f16/f16", KV, measure)], Means(device.clock), 60.0)
    assert choice.kv_type == "f16/bf16"
    assert [item.note for item in finding.tried] == ["it takes no such cache", None]
    _, (finding,) = search([Knob("kv_type", "f16/f16", KV[:1], measure)], Means(device.clock), 60.0)
    assert finding.value is None
    assert "nothing else is possible" in finding.why


def test_a_choice_must_beat_the_defaults_too() -> None:
    """Beside the first choice the second helps, but both together are worse than none: it is not taken."""
    table = {(None, None): 0.02, ("none", None): 0.018, ("none", 31): 0.017, (None, 31): 0.02}
    honest = Device(lambda choice: table[choice.drafter, choice.max_draft], 0, noise=0.005)
    turned = False

    def measure(choice: Choice) -> float:
        # The machine changes between the two options, so that the first choice is wrong by then.
        return honest.measure(choice) * (1.5 if turned and choice.drafter == "none" else 1.0)

    def tell(what: str) -> None:
        nonlocal turned
        turned = turned or what.startswith("max_draft")

    knobs = [Knob("drafter", "ngram", ("none",), measure), Knob("max_draft", 15, (31,), measure)]
    choice, _ = search(knobs, Means(honest.clock, tell=tell), 240.0)
    assert choice == Choice(drafter="none")


def test_every_choice_takes_every_turn() -> None:
    order: list[int] = []
    clock = FakeClock()

    def measure(choice: Choice) -> float:
        clock.now_s += 0.01
        order.append(choice.threads or 0)
        return 0.01

    search([Knob("threads", 4, (1, 2), measure)], Means(clock), 60.0)
    rounds = [order[i : i + 3] for i in range(3, 21, 3)]
    assert all(sorted(row) == [0, 1, 2] for row in rounds)
    assert len({tuple(row) for row in rounds}) == 6


def test_an_interval_holds_the_median_and_is_repeatable() -> None:
    rng = random.Random(0)
    logs = [math.log(1.1) + rng.gauss(0, 0.05) for _ in range(20)]
    ratio, low, high = interval(logs)
    assert low < ratio < high
    assert low > 1.0
    assert high < 1.2
    assert interval(logs) == (ratio, low, high)
