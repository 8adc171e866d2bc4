"""How busy other processes keep the cores. Unknown is None; on Android all of it is refused to apps.

Reads through Sysfs, or by psutil where there is no /proc; never raises, and changes nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from edgespec.device import by_psutil
from edgespec.device.sysfs import Sysfs

_MIN_ELAPSED_S = 0.2
"""Counters move in steps of 10 ms: a shorter interval says little."""
_MUCH_STOLEN = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """What the counters said."""

    busy_others: float | None = None
    """Cores' worth of time that other processes took since the last reading, on the whole machine."""
    pressure: float | None = None
    """Share of the last 10 s in which some task waited for a core; 0..1. This process's tasks count too."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Counters:
    at_s: float
    own: int
    """Processor time of this process, in ticks."""
    busy: int | None = None
    """Processor time of all processes, interrupts and the host, in ticks."""
    steal: int = 0
    n_cpus: int = 0


def _ticks_per_s() -> int:
    try:
        return os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):  # no POSIX system
        return 100


@dataclass(slots=True)
class LoadReader:
    """Reads pressure and processor time; `ticks_per_s` is the unit of the kernel's counters."""

    sysfs: Sysfs
    ticks_per_s: int = field(default_factory=_ticks_per_s)
    _last: _Counters | None = None
    _load: Load = Load()

    def read(self, now_s: float) -> Load:
        """Read once; `now_s` in seconds on a clock that does not go back. Processor time needs two readings."""
        pressure = _pressure(self.sysfs)
        counters = self._counters(now_s)
        last = self._last
        if counters is None or last is None:
            self._last = counters
            self._load = Load(notes=() if counters else ("this process's own processor time cannot be read",))
        elif now_s - last.at_s >= _MIN_ELAPSED_S:
            self._last = counters
            self._load = self._since(last, counters)
        return Load(self._load.busy_others, pressure, self._load.notes)

    def _since(self, last: _Counters, counters: _Counters) -> Load:
        ticks = (counters.at_s - last.at_s) * self.ticks_per_s
        own = (counters.own - last.own) / ticks
        if own < 0:
            return Load()
        if counters.busy is None or last.busy is None:
            return self._from_loadavg(own)
        busy = (counters.busy - last.busy) / ticks
        # Counters do go backward now and then, and jump; no interval is made of such a step.
        if not 0 <= busy <= 1.5 * max(counters.n_cpus, 1):
            return Load()
        stolen = (counters.steal - last.steal) / ticks / max(counters.n_cpus, 1)
        note = f"the host takes {stolen:.0%} of this virtual machine's time" if stolen >= _MUCH_STOLEN else None
        return Load(max(0.0, busy - own), notes=(note,) if note else ())

    def _from_loadavg(self, own: float) -> Load:
        """An estimate: the mean number of runnable tasks of the last minute, without this process's share."""
        fields = (self.sysfs.read_text("/proc/loadavg", limit=128) or "").split()
        if not fields or not re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,6}", fields[0]):
            return Load(notes=("the load of other processes cannot be read",))
        return Load(max(0.0, float(fields[0]) - own), notes=("the load of others is guessed from the load average",))

    def _counters(self, now_s: float) -> _Counters | None:
        # The program's name stands in parentheses and may hold any character.
        text = (self.sysfs.read_text("/proc/self/stat", limit=4096) or "").rpartition(")")[2].split()
        own = _ints(text[11:13])
        if own is None or len(own) != 2:
            seconds = by_psutil.processor_s(self.sysfs)
            if seconds is None:
                return None
            of_this, of_all = (round(value * self.ticks_per_s) for value in seconds[:2])
            return _Counters(now_s, of_this, of_all, n_cpus=seconds[2])
        stat = self.sysfs.read_text("/proc/stat") or ""
        fields = _ints(stat.partition("\n")[0].split()[1:])
        if not stat.startswith("cpu ") or fields is None or len(fields) < 4:
            return _Counters(now_s, sum(own))
        # user nice system idle iowait irq softirq steal guest guest_nice; old kernels write fewer. Guest time is
        # already within user and nice. Source: man 5 proc_stat.
        user, nice, system, _idle, _iowait, irq, softirq, steal = (fields + [0] * 4)[:8]
        n_cpus = len(re.findall(r"^cpu[0-9]+ ", stat, re.M))
        return _Counters(now_s, sum(own), user + nice + system + irq + softirq + steal, steal, n_cpus)


def _ints(words: list[str]) -> list[int] | None:
    return [int(word) for word in words] if all(re.fullmatch("[0-9]{1,20}", word) for word in words) else None


def _pressure(sysfs: Sysfs) -> float | None:
    """Source: kernel, Documentation/accounting/psi.rst."""
    found = re.search(r"^some avg10=([0-9]{1,3}\.[0-9]{1,3}) ", sysfs.read_text("/proc/pressure/cpu") or "", re.M)
    share = float(found[1]) / 100 if found else None
    return share if share is not None and share <= 1 else None
