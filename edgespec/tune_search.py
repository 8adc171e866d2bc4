"""Which settings make a model fastest: a search by turns, medians and doubt. Pure: clock and measuring are given.

One option after the other. First its values are narrowed: all take turns within each round, and the slower half leaves.
Then the best one meets what stood until then, and the defaults, in fresh rounds that alone decide: it is taken only
where a bootstrap interval of how many times as fast it was lies above 1 against both. So however many values are
tried, chance has one try an option. Options are taken to act apart from each other, as threads of single rows, threads
of wide passes and the cache do.

Source: successive halving: Jamieson and Talwalkar 2016 (arXiv:1502.07943); percentile bootstrap: Efron 1979.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from edgespec.config import Value
from edgespec.errors import EdgespecError
from edgespec.tuning_profile import Choice, Finding, Tried

LEAST_GAIN = 1.01
"""Times as fast below which nothing is changed: less is not noticed."""
_LEVEL = 0.99
"""Of an interval: five options then err in one of forty runs where nothing is to be gained."""
_N_BOOTSTRAP = 1000
_LEAST, _MOST = 10, 100
"""Rounds that decide."""
_TOO_SHORT = "too few rounds fit the time: give more --minutes"
_LEAST_NARROWING, _MOST_NARROWING = 3, 10
_NARROWING = 0.4
"""Part of an option's time for narrowing."""
_HOPELESS = 0.99
"""A value this many times as fast at most leaves the narrowing."""
_MOST_DROPPED = 8
"""Disturbed rounds in a row after which an option stays as it is."""
_LOOK_EVERY = 10
"""Rounds after which deciding ends early where a value is clearly slower. It never ends early where it is faster."""


@dataclass(frozen=True, slots=True)
class Knob:
    """An option and its values."""

    option: str
    """A field of `Choice`."""
    default: Value
    """What stands where nothing is chosen, for people."""
    values: tuple[Value, ...]
    """The others."""
    measure: Callable[[Choice], float]
    """Seconds of a token with this choice. It may raise an EdgespecError: this choice is not possible."""
    share: float = 1.0
    """Weight of its time among the options'."""
    takes_s: float = 0.0
    """About what one measurement takes, all in all: an option that cannot be decided in its time is not begun."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a search needs besides the measuring."""

    clock: Callable[[], float]
    """Seconds."""
    trouble: Callable[[], str | None] = lambda: None
    """What disturbed the measuring since the last call; None: nothing. Such a round does not count."""
    tell: Callable[[str], None] = lambda _: None
    """Told what is measured now."""
    seed: int = 0
    """Of the resampling."""


def search(knobs: Sequence[Knob], means: Means, budget_s: float) -> tuple[Choice, tuple[Finding, ...]]:
    """The choice, and a finding for every option.

    Args:
        knobs: the options, those first whose choice matters to the later ones.
        means: clock, disturbances, messages.
        budget_s: no round begins that would probably end later. Time that an option leaves goes to the next ones.

    Raises:
        EdgespecError: the defaults themselves cannot be measured.
    """
    ends_s = means.clock() + budget_s
    choice, findings = Choice(), []
    for index, knob in enumerate(knobs):
        left_s = ends_s - means.clock()
        share = knob.share / sum(other.share for other in knobs[index:])
        option = _Option(knob, choice, means, means.clock() + left_s * share)
        try:
            finding = option.decide()
        except EdgespecError as error:
            if choice == Choice():
                raise
            finding = option.kept(f"not decided: {error}")
        findings.append(finding)
        if finding.value is not None:
            choice = _with(choice, knob, finding.value)
    return choice, tuple(findings)


def interval(logs: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median of ratios whose logarithms are given, and a bootstrap interval of it (99 %)."""
    found = np.asarray(logs)
    drawn = np.random.default_rng(seed).integers(len(found), size=(_N_BOOTSTRAP, len(found)))
    low, high = np.percentile(np.median(found[drawn], axis=1), [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)])
    return math.exp(float(np.median(found))), math.exp(float(low)), math.exp(float(high))


def _with(choice: Choice, knob: Knob, value: Value) -> Choice:
    changed: dict[str, Any] = {knob.option: value}
    return replace(choice, **changed)


@dataclass(slots=True)
class _Option:
    """One option on its way to a finding."""

    knob: Knob
    base: Choice
    """What stood until now."""
    means: Means
    ends_s: float
    refused: dict[Choice, str] = field(default_factory=dict)
    n_dropped: int = 0
    n_in_a_row: int = 0
    trouble: str | None = None
    round_s: float = 0.0
    """What the last round took."""
    measured_s: float = math.inf
    """What the quickest measurement took, all in all."""
    base_s: list[float] = field(default_factory=list)
    """Seconds of a token with `base`, by rounds."""
    _n_played: int = 0

    def decide(self) -> Finding:
        """Measure, and say what follows from it."""
        others = [_with(self.base, self.knob, value) for value in self.knob.values]
        if self.means.clock() >= self.ends_s or not self._fits(2 * _LEAST * self.knob.takes_s):
            return self.kept(_TOO_SHORT)
        seen: dict[Choice, list[float]] = {}
        best: Choice | None = others[0]
        if len(others) > 1:
            best, seen = self._narrow(others)
        elif not self._possible(others):
            best = None
        tried = tuple(self._first_look(other, seen) for other in others)
        if best is None:
            reason = "nothing else is possible" if len(self.refused) == len(others) else "nothing else was faster"
            return self.kept(self._unsure() or reason, tried)
        references = [self.base] if self.base == Choice() else [self.base, Choice()]
        rounds = self._play([*references, best], self.ends_s, _LEAST, _MOST, stop=self._slower(best))
        return self._judged(best, references, rounds, tried)

    def _narrow(self, others: Sequence[Choice]) -> tuple[Choice | None, dict[Choice, list[float]]]:
        """The best of several, None where none seems faster; and the logarithms of how many times as fast they were."""
        seen: dict[Choice, list[float]] = {}
        alive = self._possible(others)
        began_s = self.means.clock()
        n_stages = max(1, math.ceil(math.log2(max(1, len(alive)))))
        for stage in range(n_stages):
            until_s = began_s + (self.ends_s - began_s) * _NARROWING * (stage + 1) / n_stages
            for row in self._play([self.base, *alive], until_s, _LEAST_NARROWING, _MOST_NARROWING):
                for other in alive:
                    seen.setdefault(other, []).append(math.log(row[self.base] / row[other]))
            alive = [other for other in alive if other in seen and other not in self.refused]
            alive = [other for other in alive if median(seen[other]) > math.log(_HOPELESS)]
            alive = sorted(alive, key=lambda other: -median(seen[other]))[: math.ceil(len(alive) / 2)]
            if not alive:
                break
        return (alive[0] if alive else None), seen

    def _possible(self, others: Iterable[Choice]) -> list[Choice]:
        """Those that can be measured at all, as far as time allows; trying them is also what warms them up."""
        self._try(self.base)
        found = [other for other in others if self._fits(self.measured_s) and self._try(other) is not None]
        self.round_s = self.measured_s * (1 + len(found))
        self.means.trouble()  # nothing of this is counted
        return found

    def _try(self, choice: Choice) -> float | None:
        """Seconds of a token; None where the choice is not possible after all, which is remembered."""
        self._say(choice)
        began_s = self.means.clock()
        try:
            s_token = self.knob.measure(choice)
        except EdgespecError as error:
            if choice in (self.base, Choice()):
                raise
            self.refused[choice] = str(error)
            return None
        self.measured_s = min(self.measured_s, self.means.clock() - began_s)
        return s_token

    def _fits(self, seconds: float) -> bool:
        return self.means.clock() + seconds <= self.ends_s

    def _play(
        self,
        choices: Sequence[Choice],
        until_s: float,
        least: int,
        most: int,
        stop: Callable[[Sequence[dict[Choice, float]]], bool] = lambda _: False,
    ) -> list[dict[Choice, float]]:
        """Rounds that count, seconds of a token by choice: `least` of them as far as time allows, at most `most`."""
        found: list[dict[Choice, float]] = []
        while len(found) < most and self.n_in_a_row < _MOST_DROPPED and not stop(found):
            if any(choice in self.refused for choice in choices):
                break
            missing = least - len(found)
            if not self._fits(self.round_s) or not self._fits(missing * len(choices) * self.measured_s):
                break  # too few would decide nothing
            if missing <= 0 and self.means.clock() + self.round_s > until_s:
                break
            row = self._round(choices)
            if row is not None:
                found.append(row)
        return found

    def _round(self, choices: Sequence[Choice]) -> dict[Choice, float] | None:
        """Every choice once, in turns that change; None where something disturbed it."""
        shift = self._n_played % len(choices)
        order = [*choices[shift:], *choices[:shift]]
        if self._n_played // len(choices) % 2:
            order.reverse()  # no choice always follows the same one
        self._n_played += 1
        began_s = self.means.clock()
        row = {}
        for choice in order:
            s_token = self._try(choice)
            if s_token is None:
                return None
            row[choice] = s_token
        self.round_s = self.means.clock() - began_s
        trouble = self.means.trouble()
        if trouble is not None:
            self.trouble = trouble
            self.n_dropped, self.n_in_a_row = self.n_dropped + 1, self.n_in_a_row + 1
            return None
        self.n_in_a_row = 0
        self.base_s.append(row[self.base])
        return row

    def _slower(self, best: Choice) -> Callable[[Sequence[dict[Choice, float]]], bool]:
        """Whether rounds show already that a choice is no gain."""

        def clearly(rounds: Sequence[dict[Choice, float]]) -> bool:
            if len(rounds) < _LEAST or len(rounds) % _LOOK_EVERY:
                return False
            return interval(_logs(rounds, self.base, best), self.means.seed)[2] < LEAST_GAIN

        return clearly

    def _judged(
        self, best: Choice, references: Sequence[Choice], rounds: list[dict[Choice, float]], tried: tuple[Tried, ...]
    ) -> Finding:
        if len(rounds) < _LEAST:
            return self.kept(self.refused.get(best) or self._unsure() or _TOO_SHORT, tried)
        bounds = [interval(_logs(rounds, reference, best), self.means.seed) for reference in references]
        ratio, low, high = bounds[0]
        value = getattr(best, self.knob.option)
        decided = Tried(value, ratio, low, high, len(rounds))
        tried = tuple(decided if item.value == value else item for item in tried)
        if min(ratio for ratio, _, _ in bounds) >= LEAST_GAIN and min(low for _, low, _ in bounds) > 1:
            return self._finding(value, "clearly faster", tried)
        why = "slower" if high < 1 else "no gain" if high < LEAST_GAIN else "within the noise"
        return self.kept(f"the best of the others is {why}", tried)

    def _unsure(self) -> str | None:
        """Why nothing could be decided, where that is how it ended."""
        if self.n_in_a_row >= _MOST_DROPPED:
            return f"not decided: {self.trouble}"
        return None if self.base_s or len(self.refused) == len(self.knob.values) else _TOO_SHORT

    def _first_look(self, other: Choice, seen: dict[Choice, list[float]]) -> Tried:
        logs, value = seen.get(other, []), getattr(other, self.knob.option)
        return Tried(value, math.exp(median(logs)) if logs else None, None, None, len(logs), self.refused.get(other))

    def kept(self, why: str, tried: tuple[Tried, ...] = ()) -> Finding:
        """What stood stays."""
        return self._finding(None, why, tried)

    def _finding(self, value: Value, why: str, tried: tuple[Tried, ...]) -> Finding:
        s_token = median(self.base_s) if self.base_s else None
        return Finding(self.knob.option, self.knob.default, value, why, tried, s_token, self.n_dropped)

    def _say(self, choice: Choice) -> None:
        value = getattr(choice, self.knob.option)
        self.means.tell(f"{self.knob.option} {self.knob.default if value is None else value}")


def _logs(rounds: Sequence[dict[Choice, float]], reference: Choice, choice: Choice) -> list[float]:
    return [math.log(row[reference] / row[choice]) for row in rounds]
