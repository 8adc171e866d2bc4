"""Seconds a verify pass takes, by width and context length, and how the machine has drifted since it was calibrated.

T(w, n_ctx) = scale * (a_w + slope * w * n_ctx): `a_w` is calibrated at a short context, the slopes of attention (one
for single rows, which take another path in ggml, one for wider passes) are learned while running. Two live scales
follow heat and load, since passes bound by memory (width 1) and by arithmetic drift apart. Does not own a clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

_GUESSED_STEPS = ((1, 1.0), (2, 1.9), (4, 3.2), (8, 5.6), (16, 10.0), (64, 40.0))
"""Decode steps by width where nothing was measured: dearer than any measured machine, so that nothing is risked on it.
Source: measured on x86 with Q4_1 weights, two threads: 1 / 1.76 / 2.8 / 4.5 / 8."""
_SCALE_RATE = 0.15
_SLOPE_RATE = 0.02
_RELAX = 0.01
"""Share by which an unconfirmed wide scale returns to the narrow one each round, so that a bad spell is forgotten."""
_SUSPECT = 0.75
_OUTLIER = 1.6
"""A pass this many times dearer than expected counts as a stall unless the next one agrees."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """What calibration measured: seconds by width at a short context, and the attention slopes learned so far."""

    base_s: Mapping[int, float]
    slope_one_s: float = 0.0
    """Seconds per context token of a single-row pass."""
    slope_wide_s: float = 0.0
    """Seconds per row and context token of a wider pass."""


class CostModel:
    """Predicts pass times and learns from each one that was measured."""

    def __init__(self, table: CostTable) -> None:
        """`table.base_s` needs width 1; widths between measured ones are interpolated, beyond them extrapolated."""
        self._base = dict(sorted(table.base_s.items()))
        self._slope_one = table.slope_one_s
        self._slope_wide = table.slope_wide_s
        self._scale_one = 1.0
        self._scale_wide = 1.0
        self._late_one = self._late_wide = False
        self._by_width: dict[int, float] = {}

    def table(self) -> CostTable:
        """What is worth saving."""
        return CostTable(self._base, self._slope_one, self._slope_wide)

    @property
    def drift(self) -> float:
        """How much dearer wide passes became against single ones since calibration; 1 is not at all."""
        return self._scale_wide / self._scale_one

    @property
    def suspect(self) -> bool:
        """Whether single passes run much faster than calibrated: the machine was busy then, and the table is wrong."""
        return self._scale_one < _SUSPECT

    def base_s(self, width: int) -> float:
        """Calibrated seconds of `width` rows at a short context, interpolated."""
        found = self._by_width.get(width)
        if found is None:
            found = self._by_width[width] = self._interpolate(width)
        return found

    def seconds(self, width: int, n_ctx: int) -> float:
        """Expected seconds now of a pass of `width` rows on `n_ctx` cached tokens."""
        if width == 1:
            return self._scale_one * (self.base_s(1) + self._slope_one * n_ctx)
        return self._scale_wide * (self.base_s(width) + self._slope_wide * width * n_ctx)

    def observe(self, width: int, n_ctx: int, seconds: float) -> None:
        """Learn from a measured pass. A single stall is ignored; two in a row are the new truth."""
        ratio = seconds / self.seconds(width, n_ctx)
        if width == 1:
            late, self._late_one = self._late_one, ratio > _OUTLIER
            if ratio > _OUTLIER and not late:
                return
            error = seconds - self.seconds(1, n_ctx)
            if n_ctx > 64 and ratio < _OUTLIER:
                self._slope_one = max(0.0, self._slope_one + _SLOPE_RATE * error / n_ctx)
            self._scale_one *= 1.0 + _SCALE_RATE * (min(ratio, 4.0) - 1.0)
            self._scale_wide += _RELAX * (self._scale_one - self._scale_wide)
            return
        late, self._late_wide = self._late_wide, ratio > _OUTLIER
        if ratio > _OUTLIER and not late:
            return
        error = seconds - self.seconds(width, n_ctx)
        if n_ctx > 64 and ratio < _OUTLIER:
            self._slope_wide = max(0.0, self._slope_wide + _SLOPE_RATE * error / (n_ctx * width))
        self._scale_wide *= 1.0 + _SCALE_RATE * (min(ratio, 4.0) - 1.0)

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
