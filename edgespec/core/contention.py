"""How many threads the team gives up while other programs want its cores, from the times of our own passes.

A team of threads meets at a barrier after every node of the graph, so one thread that has to wait for its core stalls
them all: on two cores beside one busy process a team of two is slower than a single thread by a factor that luck
decides. Giving up early costs little, late everything. Pure: times are handed in.
"""

from __future__ import annotations

from statistics import fmean

from edgespec.core.cost import slower

_SLOW = 1.5
"""A pass this many times dearer than usual is a sign of competition. Source: measured, two cores, one busy process: the
median pass of two threads takes 1.9 times as long; idle, nine of ten stay under 1.4."""
_STALL = 3.0
"""A pass this many times dearer ends a trial of the larger team at once."""
_STRIKES = 2.0
_FORGIVEN = 0.5
"""How much of a strike each undisturbed pass takes back."""
_N_TRIAL = 6
"""Passes after which a smaller team is judged."""
_N_PROBE = 5
"""Undisturbed passes after which the larger team is kept."""
_BETTER = 0.97
"""A smaller team has to take at most this share of what the larger one took under load."""
_N_DOUBTS = 2
"""Smaller teams of every size must fail so often before a slow pace is taken to be the machine's own."""
_FIRST_WAIT_S, _MAX_WAIT_S = 0.25, 4.0
"""From giving up threads to the first attempt to have one back, doubled by each failure."""
_SOON_S = 0.3
_ELSEWHERE = 4.0
"""Times the price on the old cores that new ones may have: a big core does four times the work of a little one."""
_BLOCKED_WAIT_S = 16.0
"""As long as other programs are seen to hold the cores, attempts are this far apart."""
_CALM_AFTER_S = 3.0
"""Undisturbed for so long, the wait starts small again."""
_ROOM = 0.35
"""Cores that may be missing from a free core for it to count as free."""
_RATE = 0.05


class Contention:
    """Decides between teams of the full size and smaller ones."""

    def __init__(self, one: int, wide: int, calibrated: tuple[int, int] | None = None, *, moved: bool = False) -> None:
        """`one` and `wide`: threads of a full team for single rows and for wider passes.

        `calibrated`: the team whose times are the unit, where it is another; it is also what to begin with, unless the
        team has `moved` to other cores: then it is whole, and what is usual there is yet to be seen.
        """
        self.full = (one, wide)
        """The largest team allowed now."""
        self._calibrated = calibrated or self.full
        self.level = 0 if moved else max(0, one - self._calibrated[0])
        """Threads given up."""
        self.reason = ""
        """Why the level is what it is, in plain words."""
        self._moved = moved
        self._n_seen = 0
        self._usual: dict[tuple[bool, int], tuple[float, int]] = {}
        self._phase = "calm"
        self._strikes = 0.0
        self._slow: dict[bool, list[float]] = {False: [], True: []}
        self._before: dict[bool, float] = {}
        self._trial: dict[bool, list[float]] = {False: [], True: []}
        self._step = 1
        self._from = 0
        self._n_doubts = 0
        self._n_probed = 0
        self._wait_s = _FIRST_WAIT_S
        self._next_probe_s = self._last_probe_s = self._calm_since_s = 0.0

    def sizes(self, level: int | None = None) -> tuple[int, int]:
        """Threads for single rows and for wider passes."""
        level = self.level if level is None else level
        return max(1, self.full[0] - level), max(1, self.full[1] - level)

    def limit(self, one: int, wide: int) -> None:
        """Allow at most `one` and `wide` threads from now on."""
        if (one, wide) != self.full:
            self.full = (one, wide)
            self.level = min(self.level, self._max_level)
            if self._phase != "calm":
                self._phase, self._strikes = "calm", 0.0

    @property
    def calm(self) -> bool:
        """Whether the full team runs undisturbed, as far as is known."""
        return self.level == 0 and self._phase == "calm" and not self._strikes

    def observe(self, wide: bool, relative: float, now_s: float) -> bool:
        """Take in a pass that took `relative` times its calibrated time; whether it says what such a pass costs."""
        threads = self.sizes()[wide]
        expected = self._expected(wide, threads)
        self._n_seen += 1
        slow = relative > _SLOW * expected
        if self._phase == "probe":
            self._probe(wide, relative, slow, now_s)
            return not slow
        if self._phase == "trial":
            self._try(wide, relative, now_s)
            self._learn(wide, threads, relative)
            return True
        if slow and self.level < self._max_level:
            self._slow[wide].append(relative)
            self._strikes += 1.0
            if self._strikes >= _STRIKES:
                self._shrink(relative / expected, now_s)
            return False
        self._strikes = max(0.0, self._strikes - _FORGIVEN)
        if not self._strikes:
            self._slow = {False: [], True: []}
        if self.level and now_s >= self._next_probe_s:
            self._start_probe(now_s)
        self._learn(wide, threads, relative)
        return True

    @property
    def probing(self) -> bool:
        """Whether a larger team, or one on new cores, is on trial."""
        return self._phase == "probe" or (self._moved and self._n_seen < _N_PROBE and self.level < self._max_level)

    def stalled(self, now_s: float) -> None:
        """The trial was broken off in the middle of a pass."""
        if self._phase == "probe":
            self._strikes = _STRIKES
            self._end_probe(now_s)
        elif self.level < self._max_level:
            self.level += 1
            self.reason = "a pass had to be broken off"
            self._next_probe_s = now_s + self._wait_s

    def suggest(self, n_free: float | None, now_s: float) -> None:
        """What a look at the machine says of the cores that others leave free (None: unknown).

        It only moves the next attempt; whether the larger team is kept is for its passes to say.
        """
        if not self.level or self._phase == "probe" or n_free is None:
            return
        wanted = max(self.sizes(self.level - 1))
        if n_free >= wanted - _ROOM:
            self._next_probe_s = min(self._next_probe_s, now_s)
        else:
            self._next_probe_s = max(self._next_probe_s, min(now_s + 2.0, self._last_probe_s + _BLOCKED_WAIT_S))

    @property
    def _max_level(self) -> int:
        return max(self.full) - 1

    def _expected(self, wide: bool, threads: int) -> float:
        """What an undisturbed pass takes."""
        known = self._usual.get((wide, threads))
        full = self._calibrated[wide]
        base = self._usual.get((wide, full), (1.0, 0))[0]
        guess = base * slower(full, threads, wide=wide)
        if self._moved:
            return float(guess * _ELSEWHERE if known is None else known[0])
        # A smaller team was only seen while others were busy: more than the guess may be their doing.
        return float(guess if known is None or threads == full else min(known[0], _SLOW * guess))

    def _learn(self, wide: bool, threads: int, relative: float) -> None:
        key = (wide, threads)
        # The calibrated team starts from its calibration, any other from its own first passes.
        timed = threads == self._calibrated[wide] and not self._moved
        usual, n = self._usual.get(key, (1.0, _N_TRIAL) if timed else (0.0, 0))
        rate = max(_RATE, 1.0 / (n + 1))
        self._usual[key] = (usual + rate * (relative - usual), n + 1)

    def _shrink(self, times: float, now_s: float) -> None:
        self._before = {wide: fmean(seen) for wide, seen in self._slow.items() if seen}
        if now_s - self._calm_since_s > _CALM_AFTER_S:
            self._wait_s, self._n_doubts = _FIRST_WAIT_S, 0
        self._step, self._from = 1, self.level
        self._start_trial(f"passes took {times:.1f} times as long as usual")

    def _start_trial(self, reason: str) -> None:
        self._slow = {False: [], True: []}
        self._trial = {False: [], True: []}
        self._phase, self._strikes = "trial", 0.0
        self.level = min(self._max_level, self.level + self._step)
        self.reason = reason

    def _try(self, wide: bool, relative: float, now_s: float) -> None:
        self._trial[wide].append(relative)
        if sum(map(len, self._trial.values())) < _N_TRIAL:
            return
        self._phase = "calm"
        self._last_probe_s = now_s
        self._next_probe_s = now_s + self._wait_s
        both = [kind for kind in self._before if self._trial[kind]]
        if not both or any(fmean(self._trial[kind]) <= _BETTER * self._before[kind] for kind in both):
            return
        if self.level < self._max_level:
            # Beside several busy programs one thread less changes nothing, a few less may.
            self._step *= 2
            self._start_trial(self.reason)
            return
        self.level = self._from
        self.reason = "fewer threads were no faster"
        self._calm_since_s = now_s
        self._n_doubts += 1
        if self._n_doubts >= _N_DOUBTS:
            # It is not competition then, but heat or a lower clock: the new pace is the usual one.
            self._n_doubts = 0
            for kind in both:
                self._usual[kind, self.sizes()[kind]] = (self._before[kind], _N_TRIAL)

    def _start_probe(self, now_s: float) -> None:
        self.level -= 1
        self._phase, self._n_probed, self._strikes = "probe", 0, 0.0
        self.reason = "to see whether the cores are free again"
        self._last_probe_s = now_s

    def _probe(self, wide: bool, relative: float, slow: bool, now_s: float) -> None:
        smaller = self._expected(wide, self.sizes(self.level + 1)[wide])
        usual = self._expected(wide, self.sizes()[wide])
        if slow and relative > _BETTER * smaller:
            self._strikes += 1.0
            if self._strikes >= _STRIKES or relative > _STALL * usual:
                self._end_probe(now_s)
            return
        self._n_probed += 1
        if self._n_probed >= _N_PROBE:
            self._phase, self._strikes = "calm", 0.0
            self._calm_since_s = self._next_probe_s = now_s

    def _end_probe(self, now_s: float) -> None:
        self.level += 1
        self.reason = "they are not"
        # One stall proves little, but waiting for more of them is dear: ask again soon.
        soon = self._strikes < _STRIKES
        self._phase, self._strikes = "calm", 0.0
        self._wait_s = self._wait_s if soon else min(_MAX_WAIT_S, 2.0 * self._wait_s)
        self._next_probe_s = now_s + (min(_SOON_S, self._wait_s) if soon else self._wait_s)
