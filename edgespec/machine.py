"""The device as one loaded model uses it: the thread that decodes, its cores, the sensors, the governor over them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from edgespec.calibrate import WIDTHS, calibrate, choose_threads, gains
from edgespec.conditions import Team, TeamChange
from edgespec.config import EngineConfig
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.round import play_round
from edgespec.decode_thread import NAME, decode_thread
from edgespec.device import affinity
from edgespec.device.clock import Clock
from edgespec.device.monitor import Monitor
from edgespec.device.placement import Placement, placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology
from edgespec.errors import EvalCancelled
from edgespec.interfaces import Chunk
from edgespec.target.llama import LlamaTarget
from edgespec.tuning_profile import Choice

T = TypeVar("T")
_CHECK_EVERY_S = 1.0
_LOOK_EVERY_S = 0.5
"""The sensors are read once a second: what they say is acted on half a second later at most."""
_MAX_PAUSE_S = 0.25
"""Longest pause between two passes, so that a cancelled answer ends soon."""


def full_team(
    config: EngineConfig,
    placed: Placement,
    topology: Topology,
    *,
    one_thread: bool = False,
    tuned: Choice = Choice(),  # noqa: B008 - it is frozen
) -> Team:
    """The team that heat and competition may only make smaller. Asked-for threads are taken as they are.

    `one_thread`: single rows keep to one thread, as an exact recipe may want it; nothing makes a team smaller.
    `tuned`: threads where none were asked for.
    """
    # Hardware threads of one core share what a pass needs most of: one thread a core.
    siblings = {core.id: core.siblings[:1] or (core.id,) for core in topology.cores}
    n_cores = len({siblings.get(cpu, (cpu,)) for cpu in placed.target})
    n_most = max(1, len(topology.usable))  # it may have been tuned when there were more
    one = 1 if one_thread else config.threads or min(tuned.threads or n_cores, n_most)
    wide = config.threads_batch or config.threads or min(tuned.threads_batch or n_cores, n_most)
    # A pin is for keeping off slower cores; where all cores are alike, the system places threads better than we do.
    pinned = set(placed.target) != set(topology.usable) and max(one, wide) <= len(placed.target)
    return Team(one, wide, placed.target if pinned else ())


class Machine:
    """Runs rounds on the decode thread, with the team that fits the moment."""

    def __init__(
        self,
        target: LlamaTarget,
        sysfs: Sysfs,
        config: EngineConfig,
        topology: Topology,
        *,
        one_thread: bool = False,
        tuned: Choice = Choice(),  # noqa: B008 - it is frozen
    ) -> None:
        """The pool and the monitor start with the first use. `one_thread`, `tuned`: see `full_team`."""
        self.topology = topology
        self._target = target
        self._sysfs = sysfs
        self._config = config
        self._one_thread, self._tuned = one_thread, tuned
        self._placed = placement(topology)
        team = self._full_team(tuned)
        fixed = config.threads is not None
        self._clock = Clock(sysfs, self._placed.target)
        # A clamp is for our own threads; a power profile is for everybody's, so only who asked for `cool` gets that.
        ours = self._clock.slowing == "clamp" or config.policy == "cool"
        slowing = self._clock.slowing if ours else None
        heat = HeatPolicy(config.policy, config.max_draft, max(team.one, team.wide), slowing=slowing)
        self.governor = Governor(
            team,
            heat,
            n_usable=len(topology.usable),
            n_draft_max=config.max_draft,
            fixed=fixed,
            thrifty=_thrifty(topology, team),
        )
        self.monitor = Monitor(sysfs, performance=topology.performance)
        n, n_cores = max(team.one, team.wide), len(topology.usable)
        self.notes: list[str] = (
            [f"{n} threads on {n_cores} cores: they will wait for each other"] if n > n_cores else []
        )
        self._thread = decode_thread()
        self._mark = object()
        self._applied: Team | None = None
        self._allowed = affinity.allowed()
        self._checked_s = float("-inf")
        self._looked_s = float("-inf")

    def round(self, active: Sequence[Generation]) -> list[Chunk]:
        """Play one round; see `core.round.play_round`."""
        self.monitor.start()
        return self._thread.run(lambda: self._round(active), self._target)

    def calibrate(self, *, wide: bool) -> CostModel:
        """Measure what passes cost, `wide` ones too, and let the governor decide by it. Uses sequence 0."""
        self.monitor.start()  # here, not on the decode thread: threads inherit its name, and with it its cores
        return self._thread.run(lambda: self._calibrate(WIDTHS if wide else (1,)), self._target)

    def timed(self, tuned: Choice, job: Callable[[], T]) -> T:
        """What `job` gives on the decode thread, its passes having the full team of this choice."""
        team, full = self._full_team(tuned), self.governor.full
        if tuned.threads_batch is None:  # slower cores may have joined
            team = replace(team, wide=full.wide, cpus_wide=full.cpus_wide)

        def play() -> T:
            self._settle(time.perf_counter())
            self._use(team)
            self._applied = None
            return job()

        return self._thread.run(play, self._target)

    def begin(self, cost: CostModel) -> bool:
        """Let the governor decide by what was measured earlier; whether that fits the threads that were asked for."""
        full, joined = self.governor.full, self._joined()
        if self._config.threads is not None and cost.calibrated != (full.one, full.wide):
            return False  # measured when the machine was busy, by a run that could choose fewer
        if joined is not None and cost.calibrated[1] > full.wide:
            full = joined
        self.governor.use_cost(cost, time.perf_counter(), full)
        return True

    def changes_since(self, began_s: float) -> tuple[TeamChange, ...]:
        """What was done to the team since a moment, in seconds from it."""
        found = [change for change in self.governor.changes if change.at_s >= began_s]
        return tuple(replace(change, at_s=change.at_s - began_s) for change in found)

    def target_cpus(self) -> tuple[int, ...] | None:
        """Cores that the target's threads may run on, as the kernel says; None where it does not say."""
        found = affinity.masks(self._sysfs, NAME)
        if found:
            return tuple(sorted(frozenset().union(*found.values())))
        allowed = affinity.allowed()
        return None if allowed is None else tuple(sorted(allowed))

    def heat(self) -> dict[str, object]:
        """The latest reading and what follows from it, for a report."""
        now, limits = self.monitor.latest(), self.governor.heat.limits
        return {
            "headroom": now.headroom, "temp_c": now.temp_c, "source": now.heat_source, "throttled": now.throttled,
            "freq_cap": now.freq_cap, "battery": now.battery, "on_mains": now.on_mains, "limits": list(limits.reasons),
        }  # fmt: skip

    def drafter_pin(self) -> DrafterPin:
        """What keeps a drafter's own thread on its cores."""
        return DrafterPin(self._drafter_cpus)

    def close(self) -> None:
        """End the monitor and take wishes back. May be called twice."""
        self.monitor.close()
        self._clock.close()

    def _drafter_cpus(self) -> tuple[int, ...]:
        """Where a drafter would hold up nobody."""
        taken = {*self.governor.team.cpus, *self.governor.team.cpus_wide}
        return tuple(cpu for cpu in self._placed.drafter if cpu not in taken)

    # --- on the decode thread ---

    def _round(self, active: Sequence[Generation]) -> list[Chunk]:
        now_s = time.perf_counter()
        self._settle(now_s)
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            self.governor.update(self.monitor.latest())
            if self.governor.heat.slowing is not None:
                self._ask_clock()
        if self.governor.team is not self._applied:
            self._apply()
        chunks = self._play(active)
        if self.governor.pace:
            time.sleep(min(_MAX_PAUSE_S, self.governor.pace * (time.perf_counter() - now_s)))
        return chunks

    def _play(self, active: Sequence[Generation]) -> list[Chunk]:
        patience_s = self.governor.patience_s(sum(generation.session.n_kv for generation in active))
        may_break_off = self._target.capabilities.rewind and not any(generation.prefilling for generation in active)
        if patience_s is None or not may_break_off:
            return play_round(active, self._target, time.perf_counter, self.governor)
        with _Watch(self._target, patience_s) as watch:
            try:
                return play_round(active, self._target, time.perf_counter, self.governor)
            except EvalCancelled:
                if not watch.end():
                    raise
        self.governor.stalled(time.perf_counter())
        self._apply()
        return play_round(active, self._target, time.perf_counter, self.governor)

    def _joined(self) -> Team | None:
        """The full team with slower cores joining its wide passes, which arithmetic binds; None: there are none."""
        full, usable = self.governor.full, self.topology.usable
        fixed = self._config.threads or self._config.threads_batch or self._tuned.threads_batch
        if not full.cpus or fixed is not None:
            return None
        return replace(full, wide=full.wide + len(set(usable) - set(full.cpus)), cpus_wide=usable)

    def _full_team(self, tuned: Choice) -> Team:
        return full_team(self._config, self._placed, self.topology, one_thread=self._one_thread, tuned=tuned)

    def _calibrate(self, widths: Sequence[int]) -> CostModel:
        self._settle(time.perf_counter())
        while True:
            try:
                full, table = self._measure(widths)
                break
            except EvalCancelled:
                # Meant for an answer that another thread is waiting for; that one notices by itself.
                self._target.resume()
        cost = CostModel(table)
        self.governor.use_cost(cost, time.perf_counter(), full)
        return cost

    def _measure(self, widths: Sequence[int]) -> tuple[Team, CostTable]:
        """The largest team worth having, and what passes cost with the one that is fastest just now."""
        clock, full, joined = time.perf_counter, self.governor.full, self._joined()
        if joined is not None and len(widths) > 1:
            alone, together = functools.partial(self._use, full), functools.partial(self._use, joined)
            full = joined if gains(self._target, clock, alone, together) else full
        team = full
        if self._config.threads is None:
            team = _less(full, choose_threads(self._target, clock, functools.partial(self._use_less, full), full.one))
        self._use(team)
        table = calibrate(self._target, clock, widths=widths)
        return full, replace(table, one=team.one, wide=team.wide)

    def _use_less(self, full: Team, n: int) -> None:
        self._use(_less(full, n))

    def _settle(self, now_s: float) -> None:
        """See to it that we are on the cores we want, as far as the system lets us."""
        if self._thread.user is not self._mark:
            self._thread.user, self._applied = self._mark, None  # another model's team was here
        allowed = affinity.allowed()
        if allowed != self._allowed:
            self._allowed = allowed
            self._move(now_s)
        team = self.governor.team
        if now_s - self._checked_s > _CHECK_EVERY_S:
            self._checked_s = now_s
            wanted = (frozenset(team.cpus), frozenset(team.cpus_wide)) if team.cpus else (allowed,)
            if affinity.own_mask() not in wanted:
                self._applied = None

    def _move(self, now_s: float) -> None:
        """Other cores are ours to use: a cpuset, a mask, or a core that came or went."""
        self.topology = read_topology(self._sysfs, self._allowed)
        self._placed = placement(self.topology)
        team = self._full_team(self._tuned)
        usable = self.topology.usable
        reason = f"cores {_spelled(usable)} may be used now"
        self._applied = None  # a mask of the whole process need not be one of each thread
        self.governor.move(team, len(usable), now_s, reason, _thrifty(self.topology, team))

    def _ask_clock(self) -> None:
        refused = self._clock.ask(self.governor.max_clock, affinity.masks(self._sysfs, NAME) or (0,))
        if refused is not None:
            self.governor.heat.slowing = None
            self._note(f"a lower clock cannot be asked for: {refused}")

    def _apply(self) -> None:
        team = self.governor.team
        self._use(team)
        self._applied = team

    def _use(self, team: Team) -> None:
        """Give the next passes this team, and note why its cores could not be had."""
        before = self._applied
        moved = before is None or (team.cpus, team.cpus_wide) != (before.cpus, before.cpus_wide)
        reason = self._target.use_team(team)
        if moved:
            self._applied = team
            # OpenMP's workers keep the mask they were made with; those of a pool are new. Of two masks ggml takes care.
            threads = {} if team.cpus_wide else affinity.masks(self._sysfs, NAME)
            for thread in threads or (0,):
                reason = affinity.pin(team.cpus, thread) or reason
            mask = affinity.own_mask()
            if reason is None and team.cpus and mask is not None and mask != frozenset(team.cpus):
                reason = f"the system keeps the target on cores {_spelled(sorted(mask))}, not {_spelled(team.cpus)}"
        self._note(reason)

    def _note(self, reason: str | None) -> None:
        if reason is not None and reason not in self.notes:
            self.notes.append(reason)


class _Watch:
    """Breaks a pass off when it takes too long, and leaves no raised flag behind."""

    def __init__(self, target: LlamaTarget, after_s: float) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._ended = self._fired = False
        self._timer = threading.Timer(after_s, self._fire)
        self._timer.daemon = True

    def _fire(self) -> None:
        with self._lock:
            if not self._ended:
                self._fired = True
                self._target.abort()

    def end(self) -> bool:
        """Stop watching; whether the pass was broken off."""
        with self._lock:
            ended, self._ended = self._ended, True
        self._timer.cancel()
        if self._fired and not ended:
            self._target.resume()
        return self._fired

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class DrafterPin:
    """Keeps the thread that calls it on the drafter's cores."""

    def __init__(self, wanted: Callable[[], tuple[int, ...]]) -> None:
        """`wanted` gives the cores; none of them: wherever the process may run."""
        self._wanted = wanted
        self._asked: tuple[int, ...] | None = None
        self._checked_s = float("-inf")
        self.cpus: tuple[int, ...] | None = None
        """Where the thread may run, as the system says; None while unknown."""
        self.reason: str | None = None
        """Why the wish was refused."""

    def __call__(self) -> None:
        """Call it on the drafter's thread before it works; it acts at most once a second unless the wish changed."""
        now_s, wanted = time.perf_counter(), self._wanted()
        if wanted == self._asked and now_s - self._checked_s < _CHECK_EVERY_S:
            return
        self._checked_s = now_s
        if self._asked is None:
            affinity.name_thread("edgespec-draft")  # it inherited the name of the thread that decodes
        mask = affinity.own_mask()
        if wanted != self._asked or (wanted and mask != frozenset(wanted)):
            self._asked = wanted
            self.reason = affinity.pin(wanted)
            mask = affinity.own_mask()
        self.cpus = None if mask is None else tuple(sorted(mask))


def _less(full: Team, n: int) -> Team:
    """The team with `n` threads for single rows and as many fewer for wider passes."""
    return replace(full, one=n, wide=max(1, full.wide - (full.one - n)))


def _thrifty(topology: Topology, team: Team) -> tuple[int, ...]:
    """The team's cores, those that draw least first, where it is pinned and they differ."""
    capacity = {core.id: core.capacity or core.max_khz or 0 for core in topology.cores}
    return tuple(sorted(team.cpus, key=lambda cpu: capacity.get(cpu, 0)))


def _spelled(cpus: Any) -> str:
    return ",".join(map(str, cpus))
