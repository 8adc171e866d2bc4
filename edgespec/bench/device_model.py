"""A simulated device: it heats up, throttles and decodes, so that a heat policy can be tried in seconds.

Heat flows from the die to a body (board, or case and skin) and on to the air. Cores draw what was measured at their
clock, less while they wait for memory; leakage grows with temperature. A pass takes as long as its weights need from
memory (hardly longer at a lower clock) or its rows need in the cores, whichever is longer. The clock is the highest
that heat, a person and the policy allow: passes and barriers keep cores busy, and every frequency governor then asks
for all it may. Throughput is the expected value over a given acceptance, so
a run is deterministic. All figures come from profiles.toml, each with its basis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgespec.conditions import Conditions
from edgespec.core.heat import NO_LIMITS, HeatLimits, HeatPolicy, Policy

HEADROOM_K = 30.0
"""Degrees from headroom 0 to 1. Source: AOSP ThermalManagerService.TemperatureWatcher."""
_DT_S = 0.25
_MARGIN = 1.02
"""A draft must promise this much more than plain decoding, as in the controller."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cores of one kind. `mhz` ascends; `watts` is what one busy core draws at each."""

    name: str
    n_cores: int
    mhz: tuple[float, ...]
    watts: tuple[float, ...]
    macs_per_cycle: float

    def at(self, share: float) -> tuple[float, float]:
        """Clock in MHz and watts of a busy core with the clock held to `share` of the highest."""
        mhz = max(self.mhz[0], share * self.mhz[-1])
        for (lo, lo_w), (hi, hi_w) in itertools.pairwise(zip(self.mhz, self.watts, strict=True)):
            if mhz <= hi:
                return mhz, lo_w + (hi_w - lo_w) * (mhz - lo) / (hi - lo)
        return self.mhz[-1], self.watts[-1]


@dataclass(frozen=True, slots=True)
class Throttle:
    """How the system holds the clocks back.

    "firmware" lowers them in proportion to the heat above `from_c`, and steeply above `hard_c` (Raspberry Pi).
    "step_wise" polls, takes one step down at or above `from_c` while it does not cool, and one up below `clear_c`
    (the governor of the Linux kernel, and of Qualcomm's thermal-engine).
    """

    kind: Literal["firmware", "step_wise"]
    from_c: float
    floor: float
    """Lowest share of the clock."""
    slope_per_k: float = 0.0
    hard_c: float = 0.0
    hard_slope_per_k: float = 0.0
    clear_c: float = 0.0
    step: float = 0.0
    poll_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Profile:
    """A device and where it stands. Watts, joules and kelvin; memory in GB/s by number of threads, from one on."""

    name: str
    conditions: str
    clusters: tuple[Cluster, ...]
    """The performance cores, the clusters that draw least first."""
    throttle: Throttle
    sensor: Literal["die", "body"]
    severe_c: float
    """Temperature of that sensor at which headroom is 1."""
    ambient_c: float
    die_k_w: float
    """Thermal resistance from die to body, K/W."""
    die_j_k: float
    body_k_w: float
    """And from the body to the air."""
    body_j_k: float
    idle_w: float
    """Drawn by the die without decoding; not counted as energy of decoding."""
    body_w: float
    """Other heat in the body: screen, charging."""
    uncore_w: float
    """Caches, interconnect and memory controller while a pass runs."""
    stall: float
    """What a core draws while it waits for memory, as a share of a busy one; 0..1."""
    leak_w_60c: float
    leak_doubling_k: float
    memory_gb_s: tuple[float, ...]
    memory_by_clock: float
    """Part of the time of a memory access that goes with the clock of the cores; 0..1."""
    memory_j_gb: float
    weights_gb: float
    macs: float
    """Multiply-accumulates of one row."""
    slowing: Literal["clamp", "saver", "none"]
    """How the system lowers the clock when a program asks."""
    saver_clock: float
    """Clock under the system's power saver, over the highest; 1: it has none."""
    slope_one: float
    """Plain steps that 1024 tokens of context add to a pass of one row."""
    slope_wide: float
    """Plain steps that they add per row of a wider pass."""
    switch: float
    """Plain steps that going back to single rows takes after a wider pass."""
    noise: float
    """Standard deviation of the logarithm of a pass's time."""
    round_s: float
    """Seconds of Python between two passes."""
    ask_s: float
    """Seconds of Python to ask the drafter."""
    basis: Mapping[str, tuple[str, str]]
    """Where each figure is from: its name to (measured, published or assumed; source)."""
    efficiency: tuple[Cluster, ...] = ()
    """The efficiency cores, to which a phone confines programs in the background; empty: there are none."""
    efficiency_gb_s: tuple[float, ...] = ()
    """What they read of memory, by number of threads."""
    stairs: tuple[tuple[int, float], ...] = ()
    """Width and seconds of passes of the whole team at the full clock, where measured; else memory and cores say."""
    heats: bool = True
    """Whether watts and heat are known; else neither is given, and the clock stays at its highest."""

    @property
    def n_team(self) -> int:
        """All performance cores."""
        return sum(cluster.n_cores for cluster in self.clusters)

    def background(self) -> Profile:
        """What is left of it for a program in the background: the efficiency cores, or half of the cores.

        Source: Android, Platform 7.0 Release Notes and init.rc: the cpuset `background` holds little cores. Elsewhere
        half of the cores is assumed, as a container or a unit of systemd (AllowedCPUs) may have it.
        """
        if self.efficiency:
            return replace(self, clusters=self.efficiency, memory_gb_s=self.efficiency_gb_s)
        left, kept = max(1, self.n_team // 2), []
        for cluster in self.clusters:
            kept.append(replace(cluster, n_cores=min(left, cluster.n_cores)))
            left -= kept[-1].n_cores
        return replace(self, clusters=tuple(cluster for cluster in kept if cluster.n_cores))


@dataclass(frozen=True, slots=True)
class Decode:
    """What is decoded: `acceptance` is the probability of each draft token, given the one before."""

    acceptance: float = 0.65
    n_draft_max: int = 15
    fixed_draft: int | None = None
    """Always draft this many instead of what promises the most tokens per second."""
    answer_s: int = 0
    """Seconds of decoding between pauses; 0: without a break."""
    pause_s: int = 0
    """Seconds of rest between answers."""

    def rests(self, second: int) -> bool:
        """Whether this second of a run lies in a pause."""
        return self.answer_s > 0 and second % (self.answer_s + self.pause_s) >= self.answer_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One second of a run, at its end."""

    at_s: float
    tok_s: float
    temp_c: float
    headroom: float
    share: float
    """Clock over the highest; 0..1."""
    draft: int
    team: int
    pace: float
    watts: float
    """Drawn for decoding, above idle."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A run, sampled every second."""

    samples: tuple[Sample, ...]
    tokens: float
    joules: float
    """Above idle."""
    rest_j: float
    """What the device would have drawn in that time without decoding, screen or charging included."""
    reasons: tuple[str, ...]
    """All that the policy gave, without repeats."""

    @property
    def j_token(self) -> float:
        """Joules per token, above idle."""
        return self.joules / self.tokens

    @property
    def device_j_token(self) -> float:
        """Joules per token of the whole device."""
        return (self.joules + self.rest_j) / self.tokens

    @property
    def max_headroom(self) -> float:
        """The hottest moment."""
        return max(sample.headroom for sample in self.samples)


@dataclass(slots=True)
class Device:
    """The state of a device: two temperatures and the clock its system allows."""

    profile: Profile
    die_c: float
    body_c: float
    share: float = 1.0
    """Clock that heat leaves, over the highest."""
    cap: float = 1.0
    """Clock that a person allows, over the highest."""
    _poll_s: float = 0.0
    _last_c: float = 0.0

    @classmethod
    def at_rest(cls, profile: Profile, idle: bool = True) -> Device:
        """At the temperature of the air, or (`idle`) where a device settles that is switched on and does nothing."""
        if not idle:
            return cls(profile, profile.ambient_c, profile.ambient_c)
        body_c = profile.ambient_c + (profile.idle_w + profile.body_w) * profile.body_k_w
        return cls(profile, body_c + profile.idle_w * profile.die_k_w, body_c)

    @property
    def temp_c(self) -> float:
        """What the sensor says."""
        return self.die_c if self.profile.sensor == "die" else self.body_c

    def conditions(self, at_s: float) -> Conditions:
        """A reading, as the device layer would give it."""
        throttled = self.share < 1.0
        headroom = 1.0 + (self.temp_c - self.profile.severe_c) / HEADROOM_K
        clock = min(self.share, self.cap)
        return Conditions(at_s, headroom, self.temp_c, "simulated", throttled, freq_cap=clock, on_mains=True)

    def leak_w(self) -> float:
        """Leakage of the die at its temperature."""
        return self.profile.leak_w_60c * math.exp2((self.die_c - 60.0) / self.profile.leak_doubling_k)

    def step(self, dt_s: float, watts: float) -> None:
        """Let time pass while the die draws `watts` beyond idle."""
        profile = self.profile
        out_w = (self.die_c - self.body_c) / profile.die_k_w
        lost_w = (self.body_c - profile.ambient_c) / profile.body_k_w
        self.die_c += dt_s * (watts + profile.idle_w - out_w) / profile.die_j_k
        self.body_c += dt_s * (out_w + profile.body_w - lost_w) / profile.body_j_k
        self._throttle(dt_s)

    def _throttle(self, dt_s: float) -> None:
        throttle, temp_c = self.profile.throttle, self.temp_c
        if throttle.kind == "firmware":
            lowered = throttle.slope_per_k * max(0.0, temp_c - throttle.from_c)
            lowered += throttle.hard_slope_per_k * max(0.0, temp_c - throttle.hard_c)
            self.share = max(throttle.floor, 1.0 - lowered)
            return
        self._poll_s += dt_s
        if self._poll_s < throttle.poll_s:
            return
        if temp_c >= throttle.from_c and temp_c >= self._last_c:
            self.share = max(throttle.floor, self.share - throttle.step)
        elif temp_c < throttle.clear_c:
            self.share = min(1.0, self.share + throttle.step)
        self._poll_s, self._last_c = 0.0, temp_c


def stress_w(device: Device, n_cores: int) -> float:
    """Watts of `n_cores` that compute without memory, as stress tests do."""
    return _team(device.profile, n_cores, device.share)[1] + device.leak_w()


def pass_cost(profile: Profile, width: int, n_team: int, share: float) -> tuple[float, float]:
    """Seconds and joules of a pass of `width` rows on `n_team` cores, leakage aside."""
    macs_s, core_w = _team(profile, n_team, share)
    compute_s = width * profile.macs / macs_s
    seconds = max(compute_s, _memory_s(profile, n_team, share))
    busy = compute_s / seconds
    watts = profile.uncore_w + core_w * (busy + profile.stall * (1.0 - busy))
    return seconds, watts * seconds + profile.memory_j_gb * profile.weights_gb


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Tokens a round brings on average: one, and each draft token that is reached and right."""
    return sum(acceptance**i for i in range(n_draft + 1))


def best_draft(profile: Profile, decode: Decode, n_max: int, n_team: int, share: float) -> int:
    """The length that promises the most tokens per second at these costs, 0 unless one beats plain decoding."""
    row_s, memory_s = profile.macs / _team(profile, n_team, share)[0], _memory_s(profile, n_team, share)
    best, best_rate = 0, _MARGIN / max(row_s, memory_s)
    expected = reach = 1.0
    for n in range(1, n_max + 1):
        reach *= decode.acceptance
        expected += reach
        rate = expected / max((1 + n) * row_s, memory_s)
        if rate > best_rate:
            best, best_rate = n, rate
    return best


def run(profile: Profile, decode: Decode, policy: Policy | None, minutes: float, device: Device | None = None) -> Trace:
    """Decode for `minutes`.

    Args:
        profile: the device.
        decode: what is decoded.
        policy: the heat policy that is in charge; None: only the system's own throttling.
        minutes: simulated time.
        device: its state, to go on from; None: at the temperature of the air.
    """
    device = Device.at_rest(profile, idle=False) if device is None else device
    slowing = None if profile.slowing == "none" else profile.slowing
    heat = None if policy is None else HeatPolicy(policy, decode.n_draft_max, profile.n_team, slowing=slowing)
    limits, tokens, joules = NO_LIMITS, 0.0, 0.0
    samples: list[Sample] = []
    reasons: dict[str, None] = {}
    for second in range(round(60 * minutes)):
        if heat is not None:
            limits = heat.update(device.conditions(float(second)))
            reasons.update(dict.fromkeys(limits.reasons))
        sample = _second(device, decode, limits, second)
        tokens += sample.tok_s
        joules += sample.watts
        samples.append(sample)
    rest_j = len(samples) * (profile.idle_w + profile.body_w)
    return Trace(tuple(samples), tokens, joules, rest_j, tuple(reasons))


def _second(device: Device, decode: Decode, limits: HeatLimits, second: int) -> Sample:
    profile = device.profile
    team = profile.n_team if limits.max_team is None else limits.max_team
    cap = decode.n_draft_max if limits.max_draft is None else limits.max_draft
    top = device.cap
    if limits.max_clock is not None:
        top = min(top, profile.saver_clock if profile.slowing == "saver" else limits.max_clock)
    draft = decode.fixed_draft
    if draft is None:
        draft = best_draft(profile, decode, cap, team, min(device.share, top))
    rests = decode.rests(second)
    busy = 0.0 if rests else 1.0 / (1.0 + limits.pace)
    tokens = joules = 0.0
    for _ in range(round(1.0 / _DT_S)):
        share = min(device.share, top)
        seconds, pass_j = pass_cost(profile, 1 + draft, team, share)
        # Between two passes the cores stay powered: only a real rest ends their leakage.
        watts = busy * pass_j / seconds + (0.0 if rests else device.leak_w())
        tokens += busy * _DT_S / seconds * expected_tokens(decode.acceptance, draft)
        joules += watts * _DT_S
        device.step(_DT_S, watts)
    now = device.conditions(second + 1.0)
    share = min(device.share, top)
    return Sample(now.at_s, tokens, device.temp_c, now.headroom or 0.0, share, draft, team, limits.pace, joules)


def _memory_s(profile: Profile, n_team: int, share: float) -> float:
    """Seconds that a team needs to read the weights."""
    at_full_s = profile.weights_gb / profile.memory_gb_s[min(n_team, len(profile.memory_gb_s)) - 1]
    return at_full_s * (1.0 + profile.memory_by_clock * (1.0 / share - 1.0))


def _team(profile: Profile, n_team: int, share: float) -> tuple[float, float]:
    """Multiply-accumulates a second and watts of a busy team: of all cores, those that draw least."""
    macs_s = watts = 0.0
    for cluster in profile.clusters:
        n = min(n_team, cluster.n_cores)
        n_team -= n
        mhz, core_w = cluster.at(share)
        macs_s += n * cluster.macs_per_cycle * mhz * 1e6
        watts += n * core_w
    return macs_s, watts
