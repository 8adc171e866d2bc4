"""What the target may use right now: threads, draft length, pace. Heat sets limits, competition moves below them.

Pure: readings and times are handed in, so that a simulated device can drive it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from edgespec.core.contention import Contention
from edgespec.core.cost import CostModel
from edgespec.core.heat import HeatPolicy
from edgespec.interfaces import Conditions, Team, TeamChange

_LOOK_EVERY = 6
"""Of undisturbed single passes, every sixth is looked at: Python's caches are cold after a pass."""
_QUICK = 1.4
"""A single pass of up to this many times the usual one is undisturbed at first sight."""
_MAX_CHANGES = 256


class Governor:
    """Composes the heat policy and the answer to competition. One a loaded model."""

    def __init__(self, team: Team, heat: HeatPolicy, *, n_usable: int, n_draft_max: int, fixed: bool = False) -> None:
        """`team` is the full one, `n_usable` the cores this process may use; `fixed` leaves its size alone."""
        self._cost: CostModel | None = None
        self.heat = heat
        self.changes: deque[TeamChange] = deque(maxlen=_MAX_CHANGES)
        self._full = team
        self._n_usable = n_usable
        self._n_draft_max = n_draft_max
        self._fixed = fixed
        self._contention = Contention(team.one, team.wide)
        self._team = team
        self._n_quick = 0
        self._quick_s = 0.0

    @property
    def cost(self) -> CostModel | None:
        """What passes cost; None while it was not measured, and then nothing is observed."""
        return self._cost

    def use_cost(self, cost: CostModel, now_s: float) -> None:
        """Decide by `cost` from now on, beginning with the team it was measured with."""
        self._cost = cost
        if cost.calibrated != (self._contention.full):
            self._contention = Contention(*self._contention.full, calibrated=cost.calibrated)
        self._settle(now_s, "fewer threads were faster when the passes were timed")
        cost.use_team(self._team.one, self._team.wide)

    @property
    def team(self) -> Team:
        """The team for the next pass."""
        return self._team

    @property
    def full(self) -> Team:
        """The largest team there is."""
        return self._full

    @property
    def max_draft(self) -> int:
        """Longest draft that heat allows."""
        cap = self.heat.limits.max_draft
        return self._n_draft_max if cap is None else min(cap, self._n_draft_max)

    @property
    def pace(self) -> float:
        """Idle time to add, as a share of busy time."""
        return self.heat.limits.pace

    def observe(self, width: int, n_ctx: int, seconds: float, now_s: float) -> None:
        """Learn from a decode pass of `width` rows on `n_ctx` cached tokens that ended at `now_s`."""
        cost = self._cost
        if cost is None:
            return
        if width == 1 and seconds < self._quick_s:
            cost.observe(width, n_ctx, seconds)
            self._n_quick += 1
            if self._n_quick % _LOOK_EVERY:
                return
        if self._fixed:
            cost.observe(width, n_ctx, seconds)
            return
        told = self._contention.observe(width > 1, cost.relative(width, n_ctx, seconds), now_s)
        if told and seconds >= self._quick_s:
            cost.observe(width, n_ctx, seconds)
        self._quick_s = _QUICK * cost.seconds(1, n_ctx) if self._contention.calm else 0.0
        self._settle(now_s, self._contention.reason)

    def update(self, conditions: Conditions) -> None:
        """Take in a new reading of the sensors."""
        limits = self.heat.update(conditions)
        if conditions.busy_others is not None:
            self._contention.suggest(self._n_usable - conditions.busy_others, conditions.at_s)
        if limits.max_team is not None and not self._fixed:
            self._contention.limit(min(self._full.one, limits.max_team), min(self._full.wide, limits.max_team))
        else:
            self._contention.limit(self._full.one, self._full.wide)
        self._settle(conditions.at_s, "; ".join(limits.reasons) or "cooler again")

    def move(self, team: Team, n_usable: int, now_s: float, reason: str) -> None:
        """The target got other cores: begin anew with `team` as the full one."""
        self._full, self._n_usable = team, n_usable
        self._contention = Contention(team.one, team.wide, calibrated=(0, 0))
        self._team = replace(team, one=0)  # whatever the size, it counts as a change
        if self._cost is not None:
            self._cost.moved()
        self._settle(now_s, reason)

    def _settle(self, now_s: float, reason: str) -> None:
        one, wide = self._contention.sizes()
        if (one, wide) == (self._team.one, self._team.wide):
            return
        self._team = replace(self._full, one=one, wide=wide)
        self.changes.append(TeamChange(now_s, one, wide, reason))
        self._quick_s = 0.0
        if self._cost is not None:
            self._cost.use_team(one, wide)
