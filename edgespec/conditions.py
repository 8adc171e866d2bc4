"""What the machine is doing, as its sensors say, and what the target's passes get of it: the device's seam."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the sensors of the machine said at one moment. None means unknown, never zero."""

    at_s: float
    """When, on the clock of `time.perf_counter`."""
    headroom: float | None = None
    """Heat in Android's unit: at 1.0 severe throttling begins; below it there is room, above it there is none."""
    temp_c: float | None = None
    heat_source: str | None = None
    """The sensor, file or interface behind `headroom` and `temp_c`."""
    throttled: bool | None = None
    """Whether the system holds the processor back now, by heat or by weak supply."""
    freq_cap: float | None = None
    """Highest clock now allowed over the highest possible, the lowest of the performance cores; 0..1."""
    battery: float | None = None
    """Charge, 0..1."""
    on_mains: bool | None = None
    power_w: float | None = None
    """Watts drawn, as the meter named by `power_source` counts them."""
    power_source: str | None = None
    busy_others: float | None = None
    """Cores' worth of time that other processes took lately."""
    pressure: float | None = None
    """Share of the last 10 s in which some task waited for a core (Linux PSI); 0..1."""
    notes: tuple[str, ...] = ()
    """What a person should know: a sensor that is refused, undervoltage since boot, and the like."""


@dataclass(frozen=True, slots=True)
class Team:
    """The threads of the target's passes and the cores they may run on."""

    one: int
    """Threads of a pass of one token."""
    wide: int
    """Threads of a wider pass."""
    cpus: tuple[int, ...] = ()
    """Cores for passes of one token; empty: wherever the system puts them."""
    cpus_wide: tuple[int, ...] = ()
    """Cores for wider passes; empty: the same as `cpus`."""


@dataclass(frozen=True, slots=True)
class TeamChange:
    """The target's passes got other threads."""

    at_s: float
    """When, on the clock of `time.perf_counter`; in a report, seconds since the answer began."""
    one: int
    """Threads of a pass of one token from then on."""
    wide: int
    """Threads of a wider pass."""
    reason: str
