"""A simulated device that runs passes: a clock of its own, heat, other programs, and a target that writes a known text.

A pass takes what the staircase of the profile says, at the clock that heat leaves, with the team and on the cores that
are left, times noise. Everything random comes from one seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.bench.device_model import Device, Profile, pass_cost
from edgespec.conditions import Conditions, Team
from edgespec.core.cost import CostModel, CostTable
from edgespec.errors import EvalCancelled, EvalError
from edgespec.interfaces import Capabilities, Plan, Rows
from edgespec.testing import FakeClock

_CTX_UNIT = 1024.0
_HEAT_EVERY_S = 0.1
"""Heat is moved on in steps of about this length: well below the time constant of any die (seconds)."""
_N_BATCH = 512
_WAIT_MEDIAN, _WAIT_SPREAD = 1.9, 0.25
_WAIT_LONG, _LONG_TIMES = 1.0 / 7.0, (3.3, 18.0)
_BLOCKED_MEDIAN, _BLOCKED_SPREAD = 100.0, 0.5
"""Times as long a pass takes while one thread of the team waits for its core, and while every one does.
Source: measured on two cores beside one and two busy processes (docs/decisions/0007): the median 1.9, one pass in seven
30 to 160 ms instead of 9, and 1.1 tokens a second instead of 113."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which something else happens; seconds of the simulated clock."""

    begin_s: float
    end_s: float
    cores: float = 1.0
    """Cores' worth of work that other programs have, where that is what happens."""


@dataclass(frozen=True, slots=True)
class Events:
    """What happens beside decoding: other programs at work, and the program being sent to the background."""

    busy: tuple[Window, ...] = ()
    background: tuple[Window, ...] = ()


def at(windows: Sequence[Window], now_s: float) -> float:
    """Cores' worth of the windows that hold this moment; 0 outside all of them."""
    return sum(window.cores for window in windows if window.begin_s <= now_s < window.end_s)


class SimDevice:
    """A device with a clock, at rest when it begins. Temperatures, energy and time are counted from then on."""

    def __init__(self, profile: Profile, events: Events | None = None, seed: int = 0) -> None:
        """`seed` decides the noise of the passes and the luck beside other programs."""
        self.profile = profile
        self.cores = profile
        """The profile with the cores that are left to this program."""
        self.events = events or Events()
        self.clock = FakeClock()
        self.top = 1.0
        """Clock that the policy asks the system for, over the highest."""
        self.joules = 0.0
        """Drawn for decoding, above idle."""
        self.expected_s = 0.0
        """What all passes and all of Python's time were to take without noise and other programs."""
        self.throttled_s = 0.0
        self.state = Device.at_rest(profile)
        self.max_temp_c = self.state.temp_c
        self._rng = random.Random(seed)
        self._stairs = CostModel(CostTable(dict(profile.stairs))) if profile.stairs else None
        self._widest = max((width for width, _ in profile.stairs), default=0)
        self._known: dict[tuple[int, int, float, bool], tuple[float, float]] = {}
        self._due_s = self._due_j = 0.0

    @property
    def share(self) -> float:
        """The clock now over the highest."""
        return min(self.state.share, self.state.cap, self.top)

    def price(self, width: int, n_ctx: int, n_team: int) -> tuple[float, float]:
        """Expected seconds and joules of a pass on `n_ctx` cached tokens, undisturbed, at the clock of this moment."""
        seconds, joules = self._pass(width, n_team)
        profile = self.profile
        one_s = self._pass(1, n_team)[0]
        slope = profile.slope_one if width == 1 else profile.slope_wide * width
        longer = 1.0 + slope * n_ctx / _CTX_UNIT * one_s / seconds
        return seconds * longer, joules * longer

    def _pass(self, width: int, n_team: int) -> tuple[float, float]:
        key = (width, n_team, self.share, self.cores is self.profile)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > 4096:
                self._known.clear()  # throttling goes through many clocks
            found = self._known[key] = self._priced(width, n_team)
        return found

    def _priced(self, width: int, n_team: int) -> tuple[float, float]:
        seconds, joules = pass_cost(self.cores, width, n_team, self.share)
        if self._stairs is None:
            return seconds, joules
        n = min(width, self._widest)
        whole_s, beyond_s = (pass_cost(self.profile, w, self.profile.n_team, 1.0)[0] for w in (n, width))
        measured_s = self._stairs.base_s(n) + beyond_s - whole_s
        times = measured_s / beyond_s
        return seconds * times, joules * times

    def run_pass(self, width: int, n_ctx: int, n_team: int, *, back: bool, patience_s: float | None) -> bool:
        """Let a pass happen; whether it ended before `patience_s` was over, at which it is broken off.

        `back`: the pass before was a wider one.
        """
        seconds, joules = self.price(width, n_ctx, n_team)
        if back and width == 1:
            seconds += self.profile.switch * self._pass(1, n_team)[0]
        self.expected_s += seconds
        seconds *= math.exp(self.profile.noise * self._rng.gauss(0.0, 1.0)) if self.profile.noise else 1.0
        seconds *= self._waiting(n_team)
        ended = patience_s is None or seconds <= patience_s
        if not ended:
            assert patience_s is not None
            joules *= patience_s / seconds
            seconds = patience_s
        self.spend(seconds, joules)
        return ended

    def _waiting(self, n_team: int) -> float:
        """Times as long as usual that a pass takes because threads wait for their cores."""
        others = at(self.events.busy, self.clock.now_s) if self.events.busy else 0.0
        n_waiting = n_team + others - self.cores.n_team
        if n_waiting <= 0:
            return 1.0
        rng = self._rng
        if n_team == 1:  # a lone thread waits at no barrier: it only gets its share of the time
            return (1.0 + others) / self.cores.n_team
        if n_waiting >= n_team:
            return max(1.0, _BLOCKED_MEDIAN * math.exp(_BLOCKED_SPREAD * rng.gauss(0.0, 1.0)))
        if rng.random() < _WAIT_LONG:
            return math.exp(rng.uniform(math.log(_LONG_TIMES[0]), math.log(_LONG_TIMES[1])))
        return max(1.0, _WAIT_MEDIAN * math.exp(_WAIT_SPREAD * rng.gauss(0.0, 1.0)))

    def spend(self, seconds: float, joules: float = 0.0, *, resting: bool = False) -> None:
        """Let time pass in which decoding draws `joules`; while it is `resting`, the cores do not even leak."""
        self.clock.now_s += seconds
        if not self.profile.heats:
            return
        joules += 0.0 if resting else self.state.leak_w() * seconds
        self.joules += joules
        if self.state.share < 1.0:
            self.throttled_s += seconds
        self._due_s += seconds
        self._due_j += joules
        if self._due_s >= _HEAT_EVERY_S:
            self._heat()

    def _heat(self) -> None:
        others_w = 0.0
        if self.events.busy:
            n = at(self.events.busy, self.clock.now_s)
            cluster = self.profile.clusters[-1]
            others_w = min(n, cluster.n_cores) * cluster.at(self.share)[1]
        n_steps = math.ceil(self._due_s / (2.5 * _HEAT_EVERY_S))
        watts = self._due_j / self._due_s + others_w
        for _ in range(n_steps):
            self.state.step(self._due_s / n_steps, watts)
            self.max_temp_c = max(self.max_temp_c, self.state.temp_c)
        self._due_s = self._due_j = 0.0

    def conditions(self) -> Conditions:
        """What the sensors say now."""
        now_s = self.clock.now_s
        others = at(self.events.busy, now_s)
        if not self.profile.heats:
            return Conditions(now_s, busy_others=others)
        return replace(self.state.conditions(now_s), busy_others=others)


class SimTarget:
    """A target that writes `text` whatever it is fed, at the pace of a device. One sequence, chains only."""

    n_batch = _N_BATCH
    n_rows_max = 64
    eog: frozenset[int] = frozenset()
    capabilities = Capabilities()

    def __init__(self, device: SimDevice, n_ctx: int = 1 << 20) -> None:
        """Begin with an empty cache and no text: rows are then zero, as calibration does not mind."""
        self.device = device
        self.n_ctx = n_ctx
        self.team = Team(device.profile.n_team, device.profile.n_team)
        self.patience_s: float | None = None
        """After so long a pass is broken off; None: never."""
        self.n_cells = 0
        self._wide = False
        self.tell(())

    def tell(self, text: Sequence[int]) -> None:
        """Write `text` from now on, a prompt and its answer; `n_vocab` becomes what its ids need."""
        self.text = tuple(text)
        self.n_vocab = 1 + max(self.text, default=63)
        self._rows: Rows = np.zeros((self.n_rows_max, self.n_vocab), np.float32)
        self._marks: list[tuple[int, int]] = []

    def use_team(self, team: Team) -> str | None:
        """Run the next passes with other threads."""
        self.team = team
        return None

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """See `Target.eval`."""
        (plan,) = plans
        if plan.n_past != self.n_cells:
            raise EvalError(f"positions are not consecutive: {self.n_cells} cells, the batch starts at {plan.n_past}")
        width = len(plan.pending) + len(plan.draft.tokens)
        n_team = self.team.one if width == 1 else self.team.wide
        ended = self.device.run_pass(width, plan.n_past, n_team, back=self._wide, patience_s=self.patience_s)
        if not ended:
            raise EvalCancelled("the pass was broken off")
        self._wide = width > 1
        self.n_cells += width
        return [self._written(plan.n_past + len(plan.pending), plan.n_rows)]

    def _written(self, first: int, n_rows: int) -> Rows:
        rows = self._rows
        for mark in self._marks:
            rows[mark] = 0.0
        # A row behind a wrong guess says what would follow the right one: nobody looks at it.
        self._marks = list(enumerate(self.text[first : first + n_rows]))
        for mark in self._marks:
            rows[mark] = 1.0
        return rows[:n_rows]

    def retain(self, seq_id: int, n_keep: int, path: Sequence[int] = ()) -> bool:  # noqa: ARG002 - there is one sequence
        """See `Target.retain`."""
        self.n_cells = n_keep + len(path)
        return True

    def fall_back(self, seq_id: int, n_keep: int) -> int:  # noqa: ARG002 - there is one sequence
        """See `Target.fall_back`."""
        self.n_cells = 0
        return 0

    def clear(self, seq_id: int) -> None:  # noqa: ARG002 - there is one sequence
        """See `Target.clear`."""
        self.n_cells = 0

    def abort(self) -> None:
        """Nobody can: simulated passes take no time."""

    def resume(self) -> None:
        """There is no flag to lower."""
