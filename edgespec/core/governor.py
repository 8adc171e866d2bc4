"""What the target may use right now: threads, draft length, pace. Heat sets limits, competition moves below them.

Pure: readings and times are handed in, so that a simulated device can drive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from edgespec.conditions import Conditions, Team, TeamChange
from edgespec.core.contention import Contention
from edgespec.core.cost import CostModel
from edgespec.core.heat import HeatPolicy

_LOOK_EVERY = 6
"""Of undisturbed single passes, every sixth is looked at: Python's caches are cold after a pass."""
_QUICK = 1.4
"""A single pass of up to this many times the usual one is undisturbed at first sight."""
_PATIENCE = 5.0
_MAX_CHANGES = 256


class Governor:
    """Composes the heat policy and the answer to competition. One a loaded model."""

    def __init__(
        self,
        team: Team,
        heat: HeatPolicy,
        *,
        n_usable: int,
        n_draft_max: int,
        fixed: bool = False,
        thrifty: Sequence[int] = (),
    ) -> None:
        """Start with the full team.

        Args:
            team: the full one.
            heat: sets the limits.
            n_usable: cores this process may use.
            n_draft_max: longest draft without heat.
            fixed: leaves the size of the team alone.
            thrifty: the team's cores, those that draw least first: a team that heat makes smaller keeps to the first
                of them, since a scheduler would pick the fastest. None: it may run on all of them.
        """
        self._cost: CostModel | None = None
        self.heat = heat
        self.changes: deque[TeamChange] = deque(maxlen=_MAX_CHANGES)
        self._full = team
        self._n_usable = n_usable
        self._n_draft_max = n_draft_max
        self._fixed = fixed
        self._thrifty = tuple(thrifty)
        self._cpus = team.cpus
        self._contention = Contention(team.one, team.wide)
        self._team = team
        self._n_quick = 0
        self._quick_s = 0.0

    @property
    def cost(self) -> CostModel | None:
        """What passes cost; None while it was not measured, and then nothing is observed."""
        return self._cost

    def use_cost(self, cost: CostModel, now_s: float, full: Team | None = None) -> None:
        """Decide by `cost` from now on, beginning with the team it was measured with; `full` replaces the full team."""
        self._cost = cost
        if full is not None and full != self._full:
            self._full, self._cpus = full, full.cpus
            self._contention.limit(full.one, full.wide)
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
        if self._contention.probing:
            return 0  # passes that may be broken off are short ones
        cap = self.heat.limits.max_draft
        return self._n_draft_max if cap is None else min(cap, self._n_draft_max)

    @property
    def pace(self) -> float:
        """Idle time to add, as a share of busy time."""
        return self.heat.limits.pace

    @property
    def max_clock(self) -> float | None:
        """Clock to ask the system for at most, over the highest, 0..1; None: no cap."""
        return self.heat.limits.max_clock

    def patience_s(self, n_ctx: int) -> float | None:
        """While a larger team is on trial: seconds after which its pass is better broken off; else None.

        A team that meets another program can take a hundred times as long as a single thread would. On new cores the
        price is a guess, and some more time is given.
        """
        if not self._contention.probing or self._cost is None:
            return None
        return _PATIENCE * self._cost.seconds(1, n_ctx)

    def stalled(self, now_s: float) -> None:
        """A pass was broken off as `patience_s` said."""
        self._contention.stalled(now_s)
        self._settle(now_s, self._contention.reason)

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
        if told and (width > 1 or seconds >= self._quick_s):  # a quick single pass was learned from above
            cost.observe(width, n_ctx, seconds)
        self._quick_s = _QUICK * cost.seconds(1, n_ctx) if self._contention.calm else 0.0
        self._settle(now_s, self._contention.reason)

    def update(self, conditions: Conditions) -> None:
        """Take in a new reading of the sensors."""
        limits = self.heat.update(conditions)
        if conditions.busy_others is not None:
            self._contention.suggest(self._n_usable - conditions.busy_others, conditions.at_s)
        one, wide = self._full.one, self._full.wide
        if limits.max_team is not None and not self._fixed:
            one, wide = min(one, limits.max_team), min(wide, limits.max_team)
        self._contention.limit(one, wide)
        n = max(one, wide)
        fewer = n < max(self._full.one, self._full.wide) and n <= len(self._thrifty)
        self._cpus = tuple(sorted(self._thrifty[:n])) if fewer else self._full.cpus
        self._settle(conditions.at_s, "; ".join(limits.reasons) or "cooler again")

    def move(self, team: Team, n_usable: int, now_s: float, reason: str, thrifty: Sequence[int] = ()) -> None:
        """The target got other cores: begin anew with `team` as the full one."""
        self._full, self._n_usable = team, n_usable
        self._thrifty, self._cpus = tuple(thrifty), team.cpus
        timed = self._cost.calibrated if self._cost is not None else None
        self._contention = Contention(team.one, team.wide, timed, moved=True)
        self._team = replace(team, one=0)  # whatever the size, it counts as a change
        if self._cost is not None:
            self._cost.moved()
        self._settle(now_s, reason)

    def _settle(self, now_s: float, reason: str) -> None:
        one, wide = self._contention.sizes()
        fewer = self._cpus != self._full.cpus
        cpus_wide = () if fewer else self._full.cpus_wide
        team = replace(self._full, one=one, wide=wide, cpus=self._cpus, cpus_wide=cpus_wide)
        if team == self._team:
            return
        self._team = team
        self.changes.append(TeamChange(now_s, one, wide, reason))
        self._quick_s = 0.0
        if self._cost is not None:
            self._cost.use_team(one, wide)
