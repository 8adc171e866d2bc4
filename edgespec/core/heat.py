"""How far drafts and teams must be cut to keep a device from throttling, and when they may grow again.

The cheapest means first: shorter drafts (wide passes draw the most power and lose the least when cut), then a smaller
team, then idle time between passes. `cool` also saves energy without heat: by a lower clock where the system takes such
a wish, else by a smaller team. The draft cap is a function of the latest reading alone; the team and the idle time are
moved one step at a time, since the heat they save shows in the sensor only seconds later. Pure: the time is that of the
reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from edgespec.conditions import Conditions

Policy = Literal["fast", "balanced", "cool"]
Slowing = Literal["clamp", "saver"]
"""How a system lowers the clock when a program asks, without privileges: for its own threads and as far as asked
(utilisation clamps), or for all programs and as far as it likes (a power profile)."""


@dataclass(frozen=True, slots=True)
class HeatLimits:
    """What heat and battery allow now."""

    max_draft: int | None = None
    """Longest draft, 0 or more; None: no cap."""
    max_team: int | None = None
    """Most threads of a pass, 1 or more; None: no cap."""
    pace: float = 0.0
    """Idle time to add, as a share of busy time; 0..2."""
    reasons: tuple[str, ...] = ()
    """One line for each limit, in words for the report."""
    max_clock: float | None = None
    """Clock to ask for at most, over the highest, 0..1; None: no cap."""


NO_LIMITS = HeatLimits()


@dataclass(frozen=True, slots=True)
class _Curve:
    """Where a policy acts, in headroom."""

    start: float
    """Drafts are shortened from here on ..."""
    short: float
    """... down to one token here."""
    stop: float
    """No drafts at all from here on."""
    step_down: float
    """The team is made smaller, then passes are spaced, from here on."""
    step_up: float
    """And the way back is tried below this."""


_CURVES: dict[Policy, _Curve] = {
    "fast": _Curve(0.97, 1.1, 1.2, 1.0, 0.97),
    "balanced": _Curve(0.8, 0.95, 1.0, 0.93, 0.9),
    "cool": _Curve(0.8, 0.95, 1.0, 0.9, 0.85),
}
_COOLER: dict[Policy, Policy] = {"fast": "balanced", "balanced": "cool", "cool": "cool"}
_BAND = 0.02
"""A cap grows only when it would also hold at a headroom this much higher: a reading that flickers moves nothing."""
_COOL_DRAFT = 4
"""`cool` drafts at most this part of the usual: beyond it most joules go into guesses that are wrong."""
_COOL_CLOCK = 0.5
"""`cool` asks for this clock. Source: kdrag0n/freqbench: there, phone cores do twice the work of a joule. A single row
waits for memory anyway; further down, what is always on (memory, leakage) takes more than the cores save."""
_EVERY_S, _SOON_S, _SOON = 20.0, 4.0, 0.03
"""Seconds between two steps down, which must see what the first one did: skin takes that long to show it. Sooner where
the heat is this far above where steps begin."""
_HOLD_S = 15.0
"""How long it must stay cool before a step up."""
_HOLD_MAX_S = 480.0
_PACE_STEP, _PACE_STEPS = 0.25, 8
_CLOCKED_DOWN = 0.8
"""Below this share of its clock a core runs at a voltage that saves more than leaving it out."""
_FORGET_S = 10.0
"""A sensor that says nothing for this long has failed; until then its last word stands."""
_GAP_S = 60.0
"""After so long without a reading, a cool one means that the device has rested."""
_LOW, _LOW_BAND = 0.3, 0.05
"""Battery charge below which a policy moves one step towards cool, and how much more it takes to move back."""
_THROTTLED = {"fast": 0.98, "balanced": 0.92, "cool": 0.92}
"""The headroom that "held back now" stands for at least, where none is known: short drafts, and all of the team."""
_FREQ_CAP_AT, _FREQ_CAP_SLOPE = 0.86, 0.3
"""Where no headroom is known, a clock lowered to the share c of the best one seen stands for 0.86 + 0.3 (1 - c), 0.99
at most: short drafts at nine tenths, fewer threads at three quarters."""


class HeatPolicy:
    """Turns readings into limits. One instance serves one target; call it from one thread."""

    def __init__(
        self,
        policy: Policy,
        n_draft_max: int,
        n_team: int,
        n_team_cool: int | None = None,
        *,
        slowing: Slowing | None = None,
    ) -> None:
        """Start with no heat known.

        Args:
            policy: "fast" acts only where the device throttles already, "balanced" before it does, "cool" saves energy.
            n_draft_max: longest draft without heat, 0 or more.
            n_team: threads of a pass without heat, 1 or more.
            n_team_cool: threads with which a single-row pass is about as fast as with all, where measured: such a
                pass waits for memory, and more cores only wait as well. None: half of the team, at least two.
            slowing: how the system lowers the clock when asked; None: it does not.
        """
        self.policy = policy
        self.slowing = slowing
        """May change at any time: a system may refuse later what it granted first."""
        self._n_draft = n_draft_max
        self._n_team = n_team
        self._n_cool = min(n_team, max(1, n_team_cool) if n_team_cool is not None else max(2, (n_team + 1) // 2))
        self._at_s = -math.inf
        self._last_heat = -math.inf
        self._known_s = -math.inf
        self._best_clock = 0.0
        self._low = False
        self._cap = n_draft_max
        self._n_less = 0
        self._n_pace = 0
        self._warned = False
        self._down_s = self._up_s = -math.inf
        self._cool_since_s: float | None = None
        self._hold_s = _HOLD_S
        self._limits = NO_LIMITS

    @property
    def at_s(self) -> float:
        """When the last reading was taken; -inf before the first."""
        return self._at_s

    @property
    def limits(self) -> HeatLimits:
        """What the last reading led to."""
        return self._limits

    def update(self, conditions: Conditions) -> HeatLimits:
        """Take in a reading, about one a second. One that is not newer than the last changes nothing."""
        if conditions.at_s <= self._at_s:
            return self._limits
        self._at_s = conditions.at_s
        policy = self._effective(conditions)
        curve, slow = _CURVES[policy], self._runs_slow(conditions, policy)
        heat, why = self._heat(conditions, policy)
        silent_s = conditions.at_s - self._known_s
        if heat is not None:
            if silent_s > _GAP_S and heat < curve.step_up:
                self._release()
            self._known_s = conditions.at_s
            self._shorten(heat, curve)
            self._step(heat, curve, slow)
            self._last_heat = heat
        elif silent_s > _FORGET_S:
            self._release()
            self._cap, self._best_clock = self._n_draft, 0.0
        self._limits = self._compose(policy, why, slow)
        return self._limits

    def _release(self) -> None:
        """Forget what heat did to team and pace."""
        self._n_less = self._n_pace = 0
        self._warned, self._cool_since_s, self._hold_s, self._last_heat = False, None, _HOLD_S, -math.inf

    def _effective(self, conditions: Conditions) -> Policy:
        """The policy, one step cooler on a battery that runs low."""
        if conditions.on_mains is False and conditions.battery is not None:
            self._low = conditions.battery < _LOW + (_LOW_BAND if self._low else 0.0)
        elif conditions.on_mains:
            self._low = False
        return _COOLER[self.policy] if self._low else self.policy

    def _heat(self, conditions: Conditions, policy: Policy) -> tuple[float | None, str]:
        """Headroom to act on, and its name; None where nothing is known."""
        if conditions.headroom is not None and math.isfinite(conditions.headroom):
            # Throttling below 1.0 is then no reason to act: a lower clock at a lower voltage makes more tokens of a
            # joule than fewer cores at the full clock.
            return conditions.headroom, f"headroom {conditions.headroom:.2f}"
        heat, why = None, "heat sensor silent for a moment"
        asked = self.slowing == "saver" and policy == "cool"  # such a profile may show as a lowered cap
        if conditions.freq_cap is not None and math.isfinite(conditions.freq_cap) and not asked:
            # A cap that was always there is a setting, not heat: only a fall counts.
            self._best_clock = max(self._best_clock, conditions.freq_cap)
            share = conditions.freq_cap / self._best_clock if self._best_clock > 0.0 else 1.0
            heat, why = 0.0, "clock not lowered"
            if share < 0.99:
                heat = min(0.99, _FREQ_CAP_AT + _FREQ_CAP_SLOPE * (1.0 - share))
                why = f"clock lowered to {100 * share:.0f} %"
        if conditions.throttled and (heat is None or heat < _THROTTLED[policy]):
            heat, why = _THROTTLED[policy], "throttled"
        elif conditions.throttled is False and heat is None:
            heat, why = 0.0, "not throttled"
        return heat, why

    def _shorten(self, heat: float, curve: _Curve) -> None:
        self._cap = max(min(self._cap, self._cap_at(heat, curve)), self._cap_at(heat + _BAND, curve))

    def _cap_at(self, heat: float, curve: _Curve) -> int:
        if heat >= curve.stop:
            return 0
        share = (curve.short - heat) / (curve.short - curve.start)
        return min(self._n_draft, max(1, math.ceil(self._n_draft * share)))

    def _runs_slow(self, conditions: Conditions, policy: Policy) -> bool:
        """Whether the clock is lowered, by us or on top of a known headroom; alone it is the sign of heat itself."""
        if self.slowing is not None and policy == "cool":
            return True
        known = conditions.headroom is not None and math.isfinite(conditions.headroom)
        return known and conditions.freq_cap is not None and conditions.freq_cap < _CLOCKED_DOWN

    def _step(self, heat: float, curve: _Curve, slow: bool) -> None:
        """Move the team or the pace at most one step."""
        now_s = self._at_s
        if heat >= curve.step_down:
            self._cool_since_s = None
            every_s = 1.0 if heat >= 1.0 else _SOON_S if heat >= curve.step_down + _SOON else _EVERY_S
            # The first hot reading shortens drafts; the team follows if that was not enough, and while it still heats.
            if not self._warned:
                self._warned = True
            elif heat >= self._last_heat and now_s - self._down_s >= every_s:
                if now_s - self._up_s < 4.0 * self._hold_s:
                    self._hold_s = min(_HOLD_MAX_S, 2.0 * self._hold_s)  # the last step up came too early
                self._less(slow and heat < 1.0)
                self._down_s, self._up_s = now_s, -math.inf
            return
        self._warned = False
        if heat >= curve.step_up:
            self._cool_since_s = None
        elif self._cool_since_s is None:
            self._cool_since_s = now_s
        elif (self._n_less or self._n_pace) and now_s - self._cool_since_s >= self._hold_s:
            if self._n_pace:
                self._n_pace -= 1
            else:
                self._n_less -= 1
            self._up_s = self._cool_since_s = now_s
        elif not (self._n_less or self._n_pace) and now_s - self._cool_since_s >= 4.0 * self._hold_s:
            self._hold_s = _HOLD_S  # cool for long: what was learned about this spell is over

    def _less(self, slow: bool) -> None:
        """One thread less, down to the team that `cool` would use; then more idle time.

        Where the clock is `slow` already, all cores at their lower voltage make the most tokens of a joule, and idle
        time comes first; but not once throttling is severe.
        """
        may_shrink = self._n_less < self._n_team - self._n_cool
        if self._n_pace < _PACE_STEPS and (slow or not may_shrink):
            self._n_pace += 1
        elif may_shrink:
            self._n_less += 1

    def _compose(self, policy: Policy, why: str, slow: bool) -> HeatLimits:
        n_team, pace = self._n_team - self._n_less, self._n_pace * _PACE_STEP
        n_draft, draft_why, team_why = self._cap, why, why
        saving, clock = "battery low" if self._low else "policy cool", None
        if policy == "cool":
            most = max(min(1, self._n_draft), self._n_draft // _COOL_DRAFT)
            if most < n_draft:
                n_draft, draft_why = most, saving
            if self._n_cool < n_team and not slow:
                n_team, team_why = self._n_cool, saving
            if self.slowing is not None:
                clock = _COOL_CLOCK
        reasons: list[str] = []
        if n_draft < self._n_draft:
            reasons.append(f"{draft_why}: " + (f"drafts up to {n_draft}" if n_draft else "no drafts"))
        if clock is not None:
            how = f"clock up to {100 * clock:.0f} %" if self.slowing == "clamp" else "the system's power saver"
            reasons.append(f"{saving}: {how}")
        if n_team < self._n_team:
            reasons.append(f"{team_why}: {n_team} of {self._n_team} threads")
        if pace:
            reasons.append(f"{why}: {100 * pace:.0f} % idle time added")
        return HeatLimits(
            max_draft=n_draft if n_draft < self._n_draft else None,
            max_team=n_team if n_team < self._n_team else None,
            pace=pace,
            reasons=tuple(reasons),
            max_clock=clock,
        )
