"""What the machine was doing beside each run, and which runs are no fair comparison because of that.

Unknown is None and marks nothing: where no sensor answers, nobody can say that a run was disturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.conditions import Conditions

Sensors = Callable[[], Conditions]
"""The latest readings; as quick as `Monitor.latest`."""

MANY_BUSY = 0.25
"""Cores' worth of other programs' time by which two runs may differ."""
CAP_STEP = 0.01
"""Difference of the clock limit that is none: rounding of the files it is read from."""
_LOOK_EVERY_S = 0.25
_LAG_S = {"battery": 11.0}
"""How long a meter's reading may lie behind: supplies are read every 10 s, counters and the PMIC every second."""
_USUAL_LAG_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The machine right before or after a run."""

    temp_c: float | None = None
    freq_cap: float | None = None
    """Highest clock allowed over the highest possible, 0..1."""
    throttled: bool | None = None
    busy_others: float | None = None
    """Cores' worth of time that other programs took in the second before."""

    @classmethod
    def of(cls, now: Conditions) -> Moment:
        """The part of a reading that is kept."""
        return cls(now.temp_c, now.freq_cap, now.throttled, now.busy_others)


_UNKNOWN = Moment()


@dataclass(frozen=True, slots=True)
class Beside:
    """What went on beside a run."""

    before: Moment = _UNKNOWN
    after: Moment = _UNKNOWN
    power_w: float | None = None
    """Mean watts of the meter while it ran; None: no meter, or the run was shorter than its lag."""
    power_source: str | None = None

    @property
    def throttled(self) -> bool | None:
        """Whether the processor was held back before or after."""
        known = [moment.throttled for moment in (self.before, self.after) if moment.throttled is not None]
        return any(known) if known else None

    @property
    def freq_cap(self) -> float | None:
        """The lower of the clock limits."""
        known = [moment.freq_cap for moment in (self.before, self.after) if moment.freq_cap is not None]
        return min(known) if known else None

    @property
    def busy_others(self) -> float | None:
        """Mean of the loads."""
        known = [moment.busy_others for moment in (self.before, self.after) if moment.busy_others is not None]
        return sum(known) / len(known) if known else None

    @property
    def temp_c(self) -> float | None:
        """The higher temperature."""
        known = [moment.temp_c for moment in (self.before, self.after) if moment.temp_c is not None]
        return max(known) if known else None


UNSEEN = Beside()


class Watch:
    """Looks at the sensors around one run, and at the power meter now and then while it goes on."""

    def __init__(self, sensors: Sensors | None, clock: Callable[[], float]) -> None:
        """Take the readings of before; `clock` counts as `Conditions.at_s` does."""
        self._sensors = sensors
        self._clock = clock
        self._before = Moment.of(sensors()) if sensors is not None else _UNKNOWN
        self._began_s = self._looked_s = clock()
        self._watts: dict[float, float] = {}
        self._source: str | None = None

    def look(self, now_s: float) -> None:
        """Called at every piece; reads at most four times a second."""
        if self._sensors is not None and now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            self._take(self._sensors())

    def end(self) -> Beside:
        """The account of the run that ended."""
        if self._sensors is None:
            return UNSEEN
        now = self._sensors()
        self._take(now)
        watts = sum(self._watts.values()) / len(self._watts) if self._watts else None
        return Beside(self._before, Moment.of(now), watts, self._source if watts is not None else None)

    def _take(self, now: Conditions) -> None:
        # A meter says what was drawn since its reading before: one that reaches back before the run says nothing of it.
        lag_s = _LAG_S.get(now.power_source or "", _USUAL_LAG_S)
        if now.power_w is not None and now.at_s - self._began_s >= lag_s:
            self._watts[now.at_s] = now.power_w
            self._source = now.power_source


def mark(run: Beside, plain: Beside) -> str | None:
    """Why a run is no fair comparison with the plain run of its pair; None: nothing is known against it."""
    if None not in (run.throttled, plain.throttled) and run.throttled != plain.throttled:
        return "throttled" if run.throttled else "plain was throttled"
    if run.freq_cap is not None and plain.freq_cap is not None and abs(run.freq_cap - plain.freq_cap) > CAP_STEP:
        return f"clock limit {run.freq_cap:.2f}, plain's {plain.freq_cap:.2f}"
    ours, its = run.busy_others, plain.busy_others
    if ours is not None and its is not None and abs(ours - its) > MANY_BUSY:
        return f"other programs took {ours:.2f} cores, beside plain {its:.2f}"
    return None
