"""Seconds a verify pass takes, by width and context length, and how the machine has drifted since it was calibrated.

T(w, n_ctx) = a_w * scale + slope * w * n_ctx * a_1: `a_w` is calibrated at a short context; scale and slope are learned
while running, apart for single rows and for wider passes, since heat and a lost core move those bound by memory and
those bound by arithmetic differently, and since ggml's attention takes another path for single rows; and apart for each
number of threads. Owns no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

_GUESSED_STEPS = ((1, 1.0), (2, 1.9), (4, 3.2), (8, 5.6), (16, 10.0), (64, 40.0))
"""Decode steps by width where nothing was measured: dearer than any measured machine, so that nothing is risked on it.
Source: measured on x86 with Q4_1 weights, two threads: 1 / 1.76 / 2.8 / 4.5 / 8."""
_RATE = 0.15
"""Share of an error that is corrected at once (normalised least mean squares over scale and slope)."""
_CTX_UNIT = 1024.0
"""Context tokens that one unit of slope stands for, so that scale and slope are of like size."""
_RELAX = 0.01
"""Share by which the line of wide passes returns to that of single ones, each round: a bad spell is forgotten."""
_OBSERVE_EVERY = 6
"""Of so many single passes in a row, two are learned from: Python's caches are cold after a pass."""
_SWITCH_RATE = _SPREAD_RATE = 0.05
_SUSPECT = 0.75
_MAX_SAVED_DRIFT = 1.25
_N_GUESSED = 6
_ONE_BY_THREADS, _WIDE_BY_THREADS = 0.5, 1.0
"""Power of (calibrated threads / threads) by which a pass is thought to take longer until it is measured: single rows
wait for memory, wide passes for arithmetic."""
_OUTLIER = 1.6
"""A pass this many times dearer than expected counts as a stall unless the next one agrees."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """What calibration measured: seconds by width at a short context, and the attention slopes learned so far."""

    base_s: Mapping[int, float]
    slope_one: float = 0.0
    """Plain steps that 1024 tokens of context add to a single-row pass."""
    slope_wide: float = 0.0
    """Plain steps that 1024 tokens of context add per row of a wider pass."""
    switch_s: float = 0.0
    """Seconds that a single-row pass right after a wider one takes longer: llama.cpp builds its graph anew."""
    one: int = 1
    """Threads of the single-row passes that were timed."""
    wide: int = 1
    """Threads of the wider ones."""
    restore_s: float = 0.0
    """Seconds that going back to the state of before a pass takes, where the memory replays. Keeping that state is part
    of `base_s`."""


@dataclass(slots=True)
class _Line:
    """Time over calibrated time: `scale + slope * x`, followed as it drifts."""

    slope: float
    scale: float = 1.0
    late: bool = False
    n_guessed: int = 0
    """How many more observations move a guessed line by more than the usual share."""
    spread: float = 0.0
    """Mean error of late, as a share of what was expected."""

    def at(self, x: float) -> float:
        return self.scale + self.slope * x

    def observe(self, x: float, ratio: float) -> None:
        expected = self.at(x)
        late, self.late = self.late, ratio > _OUTLIER * expected
        if self.late and not late:
            return
        self.spread += _SPREAD_RATE * (min(1.0, abs(ratio / expected - 1.0)) - self.spread)
        rate = _RATE
        if self.n_guessed:
            rate, self.n_guessed = max(_RATE, 1.0 / (_N_GUESSED + 1 - self.n_guessed)), self.n_guessed - 1
        step = rate * (min(ratio, 4.0 * expected) - expected) / (1.0 + x * x)
        self.scale = max(0.05, self.scale + step)
        self.slope = max(0.0, self.slope + step * x)


class CostModel:
    """Predicts pass times and learns from each one that was measured."""

    def __init__(self, table: CostTable) -> None:
        """`table.base_s` needs width 1; widths between measured ones are interpolated, beyond them extrapolated."""
        self._base = dict(sorted(table.base_s.items()))
        self._one = self._full_one = _Line(table.slope_one)
        self._wide = self._full_wide = _Line(table.slope_wide)
        self.calibrated = (table.one, table.wide)
        """Threads that the table was measured with."""
        self._ones = {table.one: self._one}
        self._wides = {table.wide: self._wide}
        self._by_width: dict[int, float] = {}
        self._last_width = 1
        self._n_single = 0
        self.restore_s = table.restore_s
        """Seconds that going back to the state of before a pass takes."""
        self.switch_s = table.switch_s
        """Seconds that going back to single rows costs after a wider pass."""

    def table(self) -> CostTable:
        """What is worth saving: the table, its wide passes moved some way to where they were found to be."""
        one, wide = self._full_one, self._full_wide
        drift = min(_MAX_SAVED_DRIFT, max(1.0 / _MAX_SAVED_DRIFT, wide.scale / one.scale))
        base = {width: seconds if width == 1 else seconds * drift for width, seconds in self._base.items()}
        return CostTable(base, one.slope, wide.slope, self.switch_s, *self.calibrated, self.restore_s)

    def use_team(self, one: int, wide: int) -> None:
        """From now on passes of one row have `one` threads, wider ones `wide`. What each costs is remembered."""
        if one not in self._ones:
            self._ones[one] = self._guess(self._full_one, slower(self.calibrated[0], one, wide=False))
        if wide not in self._wides:
            self._wides[wide] = self._guess(self._full_wide, slower(self.calibrated[1], wide, wide=True))
        self._one, self._wide = self._ones[one], self._wides[wide]

    def moved(self) -> None:
        """The threads run on other cores now: what passes cost is a guess again, soon corrected."""
        for lines in (self._ones, self._wides):
            for line in lines.values():
                line.n_guessed = _N_GUESSED

    @staticmethod
    def _guess(full: _Line, factor: float) -> _Line:
        return _Line(full.slope * factor, full.scale * factor, n_guessed=_N_GUESSED)

    @property
    def widths(self) -> frozenset[int]:
        """Widths that were measured."""
        return frozenset(self._base)

    def relative(self, width: int, n_ctx: int, seconds: float) -> float:
        """A measured time as a multiple of the calibrated one, the context's share taken out."""
        line = self._one if width == 1 else self._wide
        return seconds / self.base_s(width) * line.scale / line.at(self._load(width, n_ctx))

    @property
    def doubt(self) -> float:
        """By how much the price of a single pass may be wrong, as a share: its error follows that of the passes.

        An average that moves by `_RATE` keeps a third of their standard deviation, 1.25 times their mean error; the
        price of the drafted pass that is held against it is as uncertain.
        """
        return 0.6 * self._one.spread

    @property
    def suspect(self) -> bool:
        """Whether single passes run much faster than calibrated: the machine was busy then, and the table is wrong."""
        return self._full_one.scale < _SUSPECT

    def base_s(self, width: int) -> float:
        """Calibrated seconds of `width` rows at a short context, interpolated."""
        found = self._by_width.get(width)
        if found is None:
            found = self._by_width[width] = self._interpolate(width)
        return found

    def seconds(self, width: int, n_ctx: int) -> float:
        """Expected seconds now of a pass of `width` rows on `n_ctx` cached tokens."""
        line = self._one if width == 1 else self._wide
        return self.base_s(width) * line.at(self._load(width, n_ctx))

    def observe(self, width: int, n_ctx: int, seconds: float) -> None:
        """Learn from a measured pass. A single stall is ignored; two in a row are the new truth."""
        went_back, self._last_width = width == 1 < self._last_width, width
        self._n_single = self._n_single + 1 if width == 1 else 0
        # Single passes are many; two in a row tell a stall from a change. The second is the first that is no way back.
        if self._n_single > 2 and self._n_single % _OBSERVE_EVERY > 1:
            return
        if went_back:
            extra_s = min(max(0.0, seconds - self.seconds(1, n_ctx)), self.base_s(1))
            self.switch_s += _SWITCH_RATE * (extra_s - self.switch_s)
            return
        line = self._one if width == 1 else self._wide
        line.observe(self._load(width, n_ctx), seconds / self.base_s(width))
        if width == 1 and self._one is self._full_one and self._wide is self._full_wide:
            self._wide.scale += _RELAX * (self._one.scale - self._wide.scale)
            self._wide.slope += _RELAX * (self._one.slope - self._wide.slope)

    def _load(self, width: int, n_ctx: int) -> float:
        """Attention's share in units of the pass: rows times context, over what the rows cost anyway."""
        return width * n_ctx / _CTX_UNIT * self.base_s(1) / self.base_s(width)

    def _interpolate(self, width: int) -> float:
        known = list(self._base)
        if width in self._base:
            return self._base[width]
        below = [w for w in known if w < width]
        above = [w for w in known if w > width]
        if below and above:
            lo, hi = below[-1], above[0]
            # Rows cost in steps (groups of four on repacked weights): a width between two measured ones is priced as
            # the upper one less a little, never by the optimistic straight line alone.
            line = self._base[lo] + (self._base[hi] - self._base[lo]) * (width - lo) / (hi - lo)
            return 0.5 * (line + self._base[hi])
        anchor = known[-1]
        return self._base[anchor] * _guess(width) / _guess(anchor)


def _guess(width: int) -> float:
    """Decode steps of `width` rows on an unknown machine."""
    for (lo, lo_steps), (hi, hi_steps) in itertools.pairwise(_GUESSED_STEPS):  # neighbours
        if width <= hi:
            return lo_steps + (hi_steps - lo_steps) * (width - lo) / (hi - lo)
    return _GUESSED_STEPS[-1][1] * width / _GUESSED_STEPS[-1][0]


def slower(calibrated: int, threads: int, *, wide: bool) -> float:
    """Times as long a pass is thought to take on `threads` as on `calibrated` threads, until it is measured."""
    return float((calibrated / threads) ** (_WIDE_BY_THREADS if wide else _ONE_BY_THREADS))
