"""How hot the processor is, and how far the system holds its clock back. Unknown is None.

Reads through Sysfs only, never raises, and changes nothing. Headroom is in Android's unit: 1.0 where severe throttling
begins, 0 at 30 °C below and under that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from edgespec.device.sysfs import Sysfs

_ZONES = "/sys/class/thermal"
_HWMON = "/sys/class/hwmon"
_CPU = "/sys/devices/system/cpu"

DEGREES_PER_UNIT_C = 30.0
"""°C between headroom 0 and 1. Source: Android's TemperatureWatcher, DEGREES_BETWEEN_ZERO_AND_ONE."""
_BELOW_CRITICAL_C = 20.0
"""Where a zone names only the temperature of its shutdown, throttling is taken to begin this far below.

Source: the zones of device trees that name both (RK3399 70 and 95, SM8350 and SM8550 90 and 110, SDM845 95 and 125).
"""
_RESCAN_S = 60.0
"""Which sensors there are and where their limits lie hardly changes; a module loaded later is found by then."""
_N_STUCK = 30
"""Readings without any change after which an extreme one is no longer believed."""

_NOT_CPU = re.compile(r"gpu|batt|bms|charg|usb|wifi|wlan|modem|mdm|nvme|ddr|pmic|skin|camera|pa[-_]|npu|video", re.I)
_KINDS = [
    re.compile(pattern, re.I)
    for pattern in (
        r"x86_pkg_temp|coretemp.*package|k10temp.*(tctl|tdie)|zenpower",
        r"cpu",  # cpu-thermal, cpu_thermal, cpu-0-0-usr, mtktscpu, bigcpu
        r"soc|^ap$|tsens|bcm2835|sunxi",
        r"coretemp|k10temp|^big|^little|^mid|cluster|core",
        r"acpitz",  # often a board sensor, on some laptops the only one
    )
]
_BOARD = len(_KINDS) - 1
_X86_CHIP = re.compile(r"coretemp|k10temp|zenpower")
_COOLING = re.compile(r"Processor|cpufreq-cpu.*|thermal-cpufreq-.*|intel_powerclamp")


@dataclass(frozen=True, slots=True)
class Heat:
    """What the thermometers said."""

    temp_c: float | None = None
    source: str | None = None
    """The sensor behind `temp_c`."""
    headroom: float | None = None
    headroom_source: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the system holds the performance cores back."""

    cooling: float | None = None
    """Steps taken by the processor's cooling devices, of the steps there are: the furthest; 0..1."""
    freq_cap: float | None = None
    """Highest clock allowed over the highest possible, the lowest of the performance cores; 0..1."""
    freq_lost: float | None = None
    """Share by which the allowed clock lies below the highest that was allowed since the start; 0..1."""
    notes: tuple[str, ...] = ()


def headroom(temp_c: float, severe_c: float) -> float:
    """Android's unit, 0 or more: `1 + (temp_c - severe_c) / 30`."""
    return max(0.0, 1.0 + (temp_c - severe_c) / DEGREES_PER_UNIT_C)


def temperature_c(sysfs: Sysfs) -> tuple[float, str] | None:
    """Temperature of the processor in °C and its sensor, read once; None where no plausible one is found."""
    heat = Thermometer(sysfs).read(0.0)
    return None if heat.temp_c is None or heat.source is None else (heat.temp_c, heat.source)


def degrees_c(raw: int | None) -> float | None:
    """°C of a raw reading; None where it cannot be one.

    The unit is 1/1000 °C, but some drivers write whole degrees. Exactly 0 is what a dead sensor says, -40000 a stuck
    one (DD3Boh/android_kernel_zuk_msm8996 PR 12), -274000 the kernel's own THERMAL_TEMP_INVALID. Between 200 and 2000
    the unit is unclear: tenths are written by some.
    """
    if raw is None or raw == 0 or 200 <= abs(raw) < 2000:
        return None
    degrees = float(raw) if abs(raw) < 200 else raw / 1000
    return degrees if -30 <= degrees <= 130 else None


@dataclass(slots=True)
class _Sensor:
    name: str
    kind: int
    """Place in `_KINDS`."""
    path: str
    severe_c: float | None
    raw: int | None = None
    n_same: int = _N_STUCK
    """Readings since it last moved; it counts as stuck until it has moved once."""

    def read(self, sysfs: Sysfs) -> tuple[float | None, bool]:
        """°C, and whether the sensor seems stuck at a value that no processor keeps."""
        raw = sysfs.read_int(self.path)
        degrees = degrees_c(raw)
        if raw is not None:
            self.n_same = 0 if self.raw is not None and raw != self.raw else self.n_same + 1
            self.raw = raw
        # 105 °C for minutes, to the degree, is what a throttled laptop shows; more is not.
        if degrees is not None and not 0 < degrees <= 110 and self.n_same >= _N_STUCK:
            return None, True
        return degrees, False


class Thermometer:
    """Reads the processor's thermal zones and hwmon chips."""

    def __init__(self, sysfs: Sysfs, severe_c: float | None = None) -> None:
        """`severe_c`: where this machine is known to throttle, whatever its trip points say."""
        self._sysfs = sysfs
        self._severe_c = severe_c
        self._sensors: dict[str, _Sensor] = {}
        self._scanned_s: float | None = None

    def read(self, now_s: float) -> Heat:
        """Read all sensors of the processor once; `now_s` on any clock that does not go back.

        A sensor is chosen by what it says it measures, not by being the hottest; of several of one kind the hottest
        counts. Headroom is the worst of all sensors with a known limit; a board's sensor counts only where it is alone.
        """
        if self._scanned_s is None or now_s - self._scanned_s >= _RESCAN_S:
            self._scan()
            self._scanned_s = now_s
        notes = []
        readings: list[tuple[float, _Sensor]] = []
        for sensor in self._sensors.values():
            degrees, stuck = sensor.read(self._sysfs)
            if degrees is not None:
                readings.append((degrees, sensor))
            elif stuck:
                notes.append(f"{sensor.name}: {degrees_c(sensor.raw):.0f} °C without any change is not believed")
        if not readings:
            return Heat(notes=(*notes, "no temperature sensor of the processor can be read"))
        kind = min(sensor.kind for _, sensor in readings)
        temp_c, name = max((degrees, sensor.name) for degrees, sensor in readings if sensor.kind == kind)
        limited = [
            (headroom(degrees, sensor.severe_c), sensor.name)
            for degrees, sensor in readings
            if sensor.severe_c is not None and (sensor.kind != _BOARD or kind == _BOARD)
        ]
        worst, worst_name = max(limited) if limited else (None, None)
        return Heat(temp_c, name, worst, worst_name, tuple(notes))

    def _scan(self) -> None:
        old = self._sensors
        self._sensors = {}
        zones = list(self._zones())
        for sensor in (*zones, *self._chips({_plain(sensor.name) for sensor in zones})):
            known = old.get(sensor.path)
            if known is not None and known.name == sensor.name:
                sensor.raw, sensor.n_same = known.raw, known.n_same
            self._sensors[sensor.path] = sensor

    def _zones(self) -> Iterator[_Sensor]:
        for zone in self._sysfs.listdir(_ZONES):
            name = self._sysfs.read_text(f"{_ZONES}/{zone}/type", limit=256) if zone[:12] == "thermal_zone" else None
            kind = _kind(name)
            if name and kind is not None:
                severe_c = self._severe_c or _trip_c(self._sysfs, f"{_ZONES}/{zone}", name)
                yield _Sensor(name, kind, f"{_ZONES}/{zone}/temp", severe_c)

    def _chips(self, zones: set[str]) -> Iterator[_Sensor]:
        for chip in self._sysfs.listdir(_HWMON):
            folder = f"{_HWMON}/{chip}"
            chip_name = self._sysfs.read_text(f"{folder}/name", limit=256)
            # The kernel shows most zones a second time as a chip, without their passive trips.
            if not chip_name or _NOT_CPU.search(chip_name) or _plain(chip_name) in zones:
                continue
            for file in self._sysfs.listdir(folder):
                if re.fullmatch(r"temp[0-9]+_input", file):
                    channel = f"{folder}/{file.removesuffix('_input')}"
                    label = self._sysfs.read_text(f"{channel}_label", limit=256)
                    name = f"{chip_name} {label}" if label else chip_name
                    kind = _kind(name)
                    if kind is not None:
                        severe_c = self._severe_c or _chip_limit_c(self._sysfs, channel, chip_name)
                        yield _Sensor(name, kind, f"{channel}_input", severe_c)


def _plain(name: str) -> str:
    """A name without what zones and chips spell differently: `cpu-thermal`, `cpu_thermal`."""
    return re.sub("[-_]", "", name)


def _kind(name: str | None) -> int | None:
    if not name or _NOT_CPU.search(name):
        return None
    return next((place for place, pattern in enumerate(_KINDS) if pattern.search(name)), None)


def _limit_c(raw: int | None) -> float | None:
    """A temperature that can be a limit; drivers write 0, -274000 or 255000 for one that is not set."""
    degrees = degrees_c(raw)
    return degrees if degrees is not None and degrees >= 40 else None


def _trip_c(sysfs: Sysfs, zone: str, name: str) -> float | None:
    """Where the kernel begins to slow the processor for this zone.

    `passive` and `hot` trips do that; `active` ones drive fans, `critical` is the shutdown.
    Source: kernel, Documentation/driver-api/thermal/sysfs-api.rst.
    """
    if name == "x86_pkg_temp":  # its passive trips only notify: x86_pkg_temperature_thermal.rst
        return None
    passive, critical = [], []
    for file in sysfs.listdir(zone):
        if re.fullmatch(r"trip_point_[0-9]+_type", file):
            kind = sysfs.read_text(f"{zone}/{file}", limit=64)
            degrees = _limit_c(sysfs.read_int(f"{zone}/{file.removesuffix('_type')}_temp"))
            if degrees is not None and kind in {"passive", "hot"}:
                passive.append(degrees)
            elif degrees is not None and kind == "critical":
                critical.append(degrees)
    if passive:
        return min(passive + critical)
    return min(critical) - _BELOW_CRITICAL_C if critical else None


def _chip_limit_c(sysfs: Sysfs, channel: str, chip: str) -> float | None:
    """Where a chip's sensor is too hot. On x86 `_max` is where fans run at full speed, `_crit` where clocks fall.

    Source: kernel, Documentation/hwmon/coretemp.rst and k10temp.rst.
    """
    full = _limit_c(sysfs.read_int(f"{channel}_max"))
    critical = _limit_c(sysfs.read_int(f"{channel}_crit"))
    if _X86_CHIP.search(chip):
        return full if critical is None else critical
    if full is not None:
        return full if critical is None else min(full, critical)
    return None if critical is None else critical - _BELOW_CRITICAL_C


@dataclass(slots=True)
class ClockReader:
    """Reads cooling devices of the processor and the clock limits of the `performance` cores."""

    sysfs: Sysfs
    performance: Iterable[int]
    _devices: list[tuple[str, int]] = field(default_factory=list)
    _possible_khz: dict[int, int] = field(default_factory=dict)
    _scanned_s: float | None = None
    _first: float | None = None
    """The clock limit at the first reading, as a share of the highest clock."""
    _highest_khz: dict[int, int] = field(default_factory=dict)
    """Highest limit seen of each core: what no heat has taken away."""

    def read(self, now_s: float) -> Clock:
        """Read once; `now_s` on any clock that does not go back."""
        if self._scanned_s is None or now_s - self._scanned_s >= _RESCAN_S:
            self._devices = list(self._scan())
            self._possible_khz = {
                cpu: khz for cpu in self.performance if (khz := self._khz(cpu, "cpuinfo_max_freq")) is not None
            }
            self._scanned_s = now_s
        shares = [share for path, n_steps in self._devices if (share := self._share(path, n_steps)) is not None]
        caps, lost = [], []
        for cpu, possible in self._possible_khz.items():
            limit = self._khz(cpu, "scaling_max_freq")
            if limit is None:
                continue
            highest = max(limit, self._highest_khz.get(cpu, 0))
            self._highest_khz[cpu] = highest
            caps.append(min(1.0, limit / possible))
            lost.append(1.0 - limit / highest)
        cap = min(caps, default=None)
        if self._first is None:
            self._first = cap
        notes: tuple[str, ...] = ()
        # A profile of the user, or heat before we came: either way no heat of ours.
        if self._first is not None and self._first < 0.98 and cap is not None and cap <= self._first:
            notes = (f"the clock has been limited to {self._first:.0%} of its highest since the start",)
        return Clock(max(shares, default=None), cap, max(lost, default=None), notes)

    def _scan(self) -> Iterator[tuple[str, int]]:
        for device in self.sysfs.listdir(_ZONES):
            folder = f"{_ZONES}/{device}"
            if not device.startswith("cooling_device"):
                continue
            kind = self.sysfs.read_text(f"{folder}/type", limit=256)
            n_steps = self.sysfs.read_int(f"{folder}/max_state")
            if kind and _COOLING.fullmatch(kind) and n_steps is not None and n_steps > 0:
                yield f"{folder}/cur_state", n_steps

    def _share(self, path: str, n_steps: int) -> float | None:
        step = self.sysfs.read_int(path)
        # -1: a powerclamp that is not running.
        return None if step is None or step > n_steps else max(0, step) / n_steps

    def _khz(self, cpu: int, file: str) -> int | None:
        khz = self.sysfs.read_int(f"{_CPU}/cpu{cpu}/cpufreq/{file}")
        return khz if khz is not None and khz > 0 else None
