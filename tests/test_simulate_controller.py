"""Never slower, on simulated devices: real rounds and calibration, random prices, noise, drafters of any character."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from edgespec.bench.device_model import Profile
from edgespec.bench.modes import Mode
from edgespec.bench.profiles import load_profiles
from edgespec.bench.sim_device import SimDevice
from edgespec.bench.sim_texts import Texts
from edgespec.bench.simulate import Scene, SimMachine
from edgespec.bench.trace import Trace
from edgespec.core.controller import Ledger, chain_parents
from edgespec.core.generation import Generation
from edgespec.interfaces import NO_DRAFT, Draft

SERVER = load_profiles()["server"]
N_WORDS = 50
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
NRight = Callable[[int, SimMachine], int]
"""How many leading tokens of a proposal are right, by position in the text; it may look at the controller."""


@dataclass(frozen=True)
class Prices:
    """What passes cost: a second row, each further one, context, the way back (plain steps), and how much it varies."""

    second: float = 1.7
    row: float = 0.3
    noise: float = 0.0
    slope: float = 0.1
    switch: float = 0.0
    step_s: float = 0.01
    ask: float = 0.0
    jumps: int = 1
    """Rows are dear in groups of so many, as with weights that are repacked."""

    def device(self) -> Profile:
        """One core, so that no team is changed."""
        stairs = [(1, self.step_s)]
        for width in WIDTHS:
            rows = -(-(width - 2) // self.jumps) * self.jumps
            # No row is dearer than a pass of its own: the guess of a width that was not measured rests on that.
            stairs.append((width, self.step_s * min(width, self.second + self.row * rows)))
        return replace(
            SERVER, clusters=(replace(SERVER.clusters[0], n_cores=1),), memory_gb_s=SERVER.memory_gb_s[:1],
            stairs=tuple(stairs), noise=self.noise, slope_one=self.slope, slope_wide=self.slope, switch=self.switch,
            round_s=0.0, ask_s=self.ask * self.step_s,
        )  # fmt: skip


PRICES = st.builds(
    Prices,
    second=st.floats(1.05, 2.0),
    row=st.floats(0.02, 1.0),
    noise=st.sampled_from([0.0, 0.03, 0.1, 0.2]),
    slope=st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.4]),
    switch=st.sampled_from([0.0, 0.05, 0.2]),
    step_s=st.sampled_from([0.003, 0.01, 0.05, 0.4]),
    ask=st.sampled_from([0.0, 0.002]),
    jumps=st.sampled_from([1, 4]),
)


class Oracle:
    """Knows the text, and is as right as it is told; it claims `confidence` for every token, right or not."""

    name = "oracle"

    def __init__(self, n_right: Callable[[int], int], confidence: float) -> None:
        self._n_right, self._confidence = n_right, confidence

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        at, right = len(context), self._n_right(len(context))
        if right < 0:
            return NO_DRAFT
        tokens = tuple((at + i + (i >= right)) % N_WORDS for i in range(limit))
        return Draft(tokens, chain_parents(limit), (0,) * limit, (self._confidence,) * limit)

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class Played:
    """An answer, round by round."""

    at: list[tuple[int, float]]
    """Tokens, and the seconds that their passes and questions were to take without noise, from the first token on."""
    plain_s: list[float]
    """What plain decoding was to take for so many tokens."""
    device: SimDevice

    def loss(self, n_tokens: int | None = None) -> float:
        """By how much it took longer than plain decoding; negative where it was faster."""
        n, seconds = next(((n, s) for n, s in self.at if n_tokens is not None and n >= n_tokens), self.at[-1])
        return seconds / self.plain_s[n] - 1.0

    def speed(self, skip: int) -> float:
        """Times as fast as plain decoding after so many rounds."""
        (n, began_s), (n_end, ended_s) = self.at[skip], self.at[-1]
        return (self.plain_s[n_end] - self.plain_s[n]) / (ended_s - began_s)


def play(
    prices: Prices,
    n_right: NRight,
    confidence: float = 0.9,
    *,
    n_tokens: int = 2000,
    n_rounds: int | None = None,
    fixed: int | None = None,
    seed: int = 0,
) -> Played:
    """Let the simulator write `n_tokens`, or play `n_rounds`, with such a drafter."""
    at: list[tuple[int, float]] = []

    class Counting(SimMachine):
        def round(self, generation: Generation) -> None:
            super().round(generation)
            at.append((len(generation.tokens) - 1, self.device.expected_s))
            if n_rounds is not None and len(at) > n_rounds:
                generation.cancel()

    mode = Mode("auto", "auto", fixed, lambda: Oracle(lambda i: n_right(i, machine), confidence))
    machine = Counting(Scene(prices.device(), seed=seed), mode, "fast")
    text = Trace((0, 1), tuple(i % N_WORDS for i in range(2, n_tokens + 2)), ())
    machine.answer(text, Texts((text,), None))
    first_s = at[0][1]
    plain_s = [0.0]
    for n in range(at[-1][0]):
        plain_s.append(plain_s[-1] + machine.device.price(1, n + 2, 1)[0])
    return Played([(n, seconds - first_s) for n, seconds in at], plain_s, machine.device)


def run_of(rng: random.Random, chance: float) -> int:
    """How many tokens are right where each is with this chance, given the one before."""
    n = 0
    while n < 15 and rng.random() < chance:
        n += 1
    return n


KINDS: dict[str, Callable[[random.Random, float, int], NRight]] = {
    "wrong": lambda rng, chance, period: lambda i, machine: 0,
    "silent or wrong": lambda rng, chance, period: lambda i, machine: -1 if i // period % 2 else 0,
    "never pays": lambda rng, chance, period: lambda i, machine: rng.choice([0, 0, 0, 1]),
    "all or nothing": lambda rng, chance, period: lambda i, machine: rng.choice([0, 0, 1, 2, 15]),
    "steady": lambda rng, chance, period: lambda i, machine: run_of(rng, chance),
    "getting worse": lambda rng, chance, period: lambda i, machine: run_of(rng, chance + 0.5 - i / 2000),
    "getting better": lambda rng, chance, period: lambda i, machine: run_of(rng, chance - 0.5 + i / 2000),
    "moody": lambda rng, chance, period: lambda i, machine: 15 if i // period % 2 else 0,
    "hostile": lambda rng, chance, period: lambda i, machine: 15 if balance(machine) < 2.5 else 0,
    "greedy for credit": lambda rng, chance, period: lambda i, machine: 15 if balance(machine) < 6.0 else 0,
}  # fmt: skip


def balance(machine: SimMachine) -> float:
    assert machine.controller is not None
    return machine.controller.ledger.balance


def check_loss(prices: Prices, kind: str, chance: float, period: int, confidence: float, seed: int) -> None:
    played = play(prices, KINDS[kind](random.Random(seed), chance, period), confidence, seed=seed)
    assert played.loss() <= 0.01


ANY = {
    "prices": PRICES, "kind": st.sampled_from(sorted(KINDS)), "chance": st.floats(0.0, 1.0),
    "period": st.sampled_from([10, 30, 100, 300]), "confidence": st.floats(0.3, 1.0), "seed": st.integers(0, 10**6),
}  # fmt: skip


@settings(max_examples=12, phases=[Phase.generate])  # a case takes too long for a search for smaller ones
@given(**ANY)
def test_loss_stays_within_one_percent(
    prices: Prices, kind: str, chance: float, period: int, confidence: float, seed: int
) -> None:
    check_loss(prices, kind, chance, period, confidence, seed)


@pytest.mark.slow
@settings(max_examples=500, phases=[Phase.generate])
@given(**ANY)
def test_loss_stays_within_one_percent_on_500_devices(
    prices: Prices, kind: str, chance: float, period: int, confidence: float, seed: int
) -> None:
    check_loss(prices, kind, chance, period, confidence, seed)


@pytest.mark.parametrize("kind", ["hostile", "greedy for credit"])
def test_a_wrong_price_of_plain_decoding_hides_no_loss(kind: str) -> None:
    """Without a break from drafting nothing said that single rows got dearer with the context by less than thought:
    a drafter that just earned its keep by the wrong price made decoding 17 % slower."""
    prices = Prices(second=1.693, row=0.789, slope=0.1, switch=0.05, step_s=0.05)
    played = play(prices, KINDS[kind](random.Random(0), 0.5, 100), 0.5)
    assert played.loss() <= 0.01


def test_prices_of_cheap_wide_passes_are_learned() -> None:
    """Passes of up to 1.4 plain steps were never looked at where single ones ran undisturbed: their price stayed a
    guess for long contexts, and drafting won a quarter less than it could."""
    prices = Prices(second=1.06, row=0.13, slope=0.0, step_s=0.003)
    rng = random.Random(1)
    played = play(prices, lambda i, machine: run_of(rng, 0.54), 0.8, n_tokens=3000)
    assert played.speed(300) >= 0.9 * max(sum(0.54**i for i in range(k + 1)) / cost(prices, k) for k in range(1, 4))


def cost(prices: Prices, n_drafted: int) -> float:
    """Plain steps of a pass with so many drafted tokens, at any context where that costs nothing."""
    return prices.second + prices.row * (n_drafted - 1) if n_drafted else 1.0


# Against the best fixed length. ------------------------------------------------------------------------------------

SLOPE = 0.35
"""Between what calibration expects of contexts for single rows and for wider passes: prices are then as it thinks."""


def regret(
    prices: Prices, chance: float, confidence: float, seed: int, *, bounded: bool = True, n_rounds: int = 1000
) -> float:
    """Share of the best fixed length's speed, known in hindsight, that is missed after the first 300 rounds.

    Each token is right with the same `chance`. Without `bounded` the ledger allows everything.
    """
    rng, skip = random.Random(seed), 300

    def n_right(i: int, machine: SimMachine) -> int:
        if not bounded and machine.controller is not None:
            machine.controller.ledger = Ledger(1e9, 1e9, 1e9)
        return run_of(rng, chance)

    played = play(prices, n_right, confidence, n_tokens=16 * n_rounds, n_rounds=n_rounds, seed=seed)
    contexts = [n + 2 for n, _ in played.at[skip:-1]]
    rates = []
    for n in range(16):
        seconds = sum(played.device.price(1 + n, n_ctx, 1)[0] for n_ctx in contexts)
        rates.append(len(contexts) * sum(chance**i for i in range(n + 1)) / seconds)
    (n_first, first_s), (n_last, last_s) = played.at[skip], played.at[-1]
    return 1.0 - (n_last - n_first) / (last_s - first_s) / max(rates)


def stationary(seed: int) -> tuple[Prices, float, float]:
    """A random device and a drafter that stays as good as it is: prices, chance, claim."""
    rng = random.Random(seed)
    prices = Prices(
        rng.uniform(1.05, 2.0), rng.uniform(0.02, 1.0), rng.choice([0.0, 0.03, 0.1]), SLOPE, rng.choice([0.0, 0.05]),
        rng.choice([0.003, 0.01]), jumps=rng.choice([1, 4]),
    )  # fmt: skip
    return prices, rng.random(), rng.uniform(0.3, 1.0)


@pytest.mark.parametrize(
    ("second", "row", "chance", "confidence"),
    [
        (1.05, 0.05, 0.5, 0.5),
        (1.1, 0.1, 0.95, 0.4),
        (1.3, 0.3, 0.75, 0.95),
        (1.7, 0.3, 0.95, 0.9),
        (1.7, 0.3, 0.3, 0.9),
    ],
)
def test_after_300_rounds_it_is_as_fast_as_the_best_fixed_length(
    second: float, row: float, chance: float, confidence: float
) -> None:
    prices = Prices(second, row, noise=0.03, slope=SLOPE, step_s=0.005)
    assert regret(prices, chance, confidence, 1, n_rounds=600) <= 0.05


@pytest.mark.slow
def test_regret_on_random_devices() -> None:
    """Measured: learning alone misses 5 % on 1 device of 60 and 0.6 % in the mean, with the loss bound 2 and 0.8 %.

    Where a draft may cost more than its credit, an unlucky one is paid for by plain rounds: the price of the bound.
    """
    cases = [stationary(seed) for seed in range(60)]
    free = [regret(*case, seed, bounded=False) for seed, case in enumerate(cases)]
    bound = [regret(*case, seed) for seed, case in enumerate(cases)]
    assert sum(found > 0.05 for found in free) <= 2
    assert sum(found > 0.05 for found in bound) <= 3
    assert fmean(map(abs, free)) <= 0.01
    assert fmean(map(abs, bound)) <= 0.012
