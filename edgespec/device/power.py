"""Watts drawn, charge of the battery, and whether the machine is on mains. Unknown is None.

Reads through Sysfs and one Termux command only, never raises, and changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from edgespec.device.command import run_command
from edgespec.device.sysfs import Sysfs

_RAPL = "/sys/class/powercap"
_SUPPLIES = "/sys/class/power_supply"
_MAX_W = 1000.0
"""More is a counter that jumped, or a unit that is not what it should be."""
_MIN_BATTERY_W = 0.05
"""A running machine draws more; some phones write mA where µA is meant, which comes out a thousand times too small."""
_SUPPLIES_EVERY_S = 10.0
"""A battery's controller is slow to answer, and on some laptops everything waits for it."""
_TERMUX_TIMEOUT_S = 15.0
"""It waits for a broadcast of the system: 7 s were seen (fastfetch-cli/fastfetch issue 243)."""


@dataclass(frozen=True, slots=True)
class Power:
    """What meters and supplies said."""

    power_w: float | None = None
    source: str | None = None
    """The meter behind `power_w`."""
    battery: float | None = None
    """Charge, 0..1."""
    on_mains: bool | None = None
    battery_c: float | None = None
    """Temperature of the battery."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Supply:
    kind: Literal["battery", "mains"]
    online: bool | None = None
    status: str | None = None
    charge: float | None = None
    full_uwh: float | None = None
    """Energy when full, as a weight among several batteries."""
    discharging: bool = False
    discharge_w: float | None = None


@dataclass(slots=True)
class PowerReader:
    """Reads RAPL energy counters and `power_supply`.

    RAPL counts the processor's packages (Intel and AMD), a battery the whole machine while it discharges. Where both
    are known the packages win, since their counter has no lag.
    """

    sysfs: Sysfs
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Package to time and energy in µJ at the last reading."""
    _supplies: list[_Supply] = field(default_factory=list)
    _supplies_s: float | None = None

    def read(self, now_s: float) -> Power:
        """Read once; `now_s` in seconds on a clock that does not go back. RAPL needs two readings."""
        watts, refused = self._packages(now_s)
        source = None if watts is None else "RAPL"
        if self._supplies_s is None or now_s - self._supplies_s >= _SUPPLIES_EVERY_S:
            self._supplies, self._supplies_s = _read_supplies(self.sysfs), now_s
        supplies = self._supplies
        notes = []
        if refused:
            # Since Linux 5.10, against reading secrets off the power draw (CVE-2020-8694).
            notes.append("the processor's energy counter is refused; root may read it")
        if watts is None:
            # One of two batteries may rest.
            watts = _total([supply.discharge_w for supply in supplies if supply.discharging])
            source = None if watts is None else "battery"
        on_mains, weak = _mains(supplies)
        if weak:
            notes.append("the battery discharges although the machine is plugged in")
        return Power(watts, source, _charge(supplies), on_mains, None, tuple(notes))

    def _packages(self, now_s: float) -> tuple[float | None, bool]:
        """Watts of all packages since the last reading, and whether a counter exists that is refused."""
        watts: list[float | None] = []
        refused = False
        for zone in self.sysfs.listdir(_RAPL):
            # `intel-rapl-mmio:0` counts the same package again, `intel-rapl:0:1` a part of it.
            folder = f"{_RAPL}/{zone}"
            if not zone.startswith("intel-rapl:") or zone.count(":") != 1:
                continue
            if not (self.sysfs.read_text(f"{folder}/name", limit=64) or "").startswith("package"):
                continue
            energy = self.sysfs.read_int(f"{folder}/energy_uj")
            if energy is None:
                refused = True
                self._last.pop(zone, None)
                continue
            wrap = self.sysfs.read_int(f"{folder}/max_energy_range_uj")
            watts.append(self._watts(zone, now_s, energy, wrap))
        return (None if refused else _total(watts)), refused

    def _watts(self, zone: str, now_s: float, energy: int, wrap: int | None) -> float | None:
        last = self._last.get(zone)
        self._last[zone] = (now_s, energy)
        if last is None or now_s <= last[0]:
            return None
        elapsed_s, spent = now_s - last[0], energy - last[1]
        # It starts again at 0. One wrap can be made good; over a long pause there may have been more.
        if wrap is not None and elapsed_s * _MAX_W * 1e6 > wrap:
            return None
        if spent < 0:
            spent += wrap or 0
        watts = spent / 1e6 / elapsed_s
        return watts if 0 < watts <= _MAX_W else None


def _read_supplies(sysfs: Sysfs) -> list[_Supply]:
    """Supplies of the machine itself. Source: kernel, Documentation/ABI/testing/sysfs-class-power."""
    supplies = []
    for name in sysfs.listdir(_SUPPLIES):
        folder = f"{_SUPPLIES}/{name}"
        kind = sysfs.read_text(f"{folder}/type", limit=64)
        # `Device`: the battery of a mouse or a headset.
        if kind is None or sysfs.read_text(f"{folder}/scope", limit=64) == "Device":
            continue
        if kind == "Battery":
            if sysfs.read_int(f"{folder}/present") != 0:  # an empty bay
                supplies.append(_battery(sysfs, folder))
        elif kind == "Mains" or kind.startswith("USB") or kind == "Wireless":
            online = sysfs.read_int(f"{folder}/online")
            # 2: online, with a negotiated voltage.
            supplies.append(_Supply("mains", None if online is None or not 0 <= online <= 2 else online > 0))
    return supplies


def _battery(sysfs: Sysfs, folder: str) -> _Supply:
    def value(file: str) -> int | None:
        return sysfs.read_int(f"{folder}/{file}")

    status = sysfs.read_text(f"{folder}/status", limit=64)
    full = value("energy_full")
    percent = value("capacity")
    charge = percent / 100 if percent is not None and 0 <= percent <= 100 else None
    if charge is None:
        for unit in ("energy", "charge"):
            now, top = value(f"{unit}_now"), value(f"{unit}_full")
            if charge is None and now is not None and top is not None and top > 0 and 0 <= now <= 1.1 * top:
                charge = min(1.0, now / top)
    microwatts: float | None = value("power_now")
    current = value("current_now")
    if microwatts is None:
        volts = value("voltage_now")
        microwatts = None if volts is None or current is None else volts * current / 1e6
    # Drivers disagree on the sign, so the status decides; where there is none, a minus can only mean discharging.
    discharging = status == "Discharging" or (
        status in {None, "Unknown"} and microwatts is not None and (microwatts < 0 or (current or 0) < 0)
    )
    watts = abs(microwatts) / 1e6 if microwatts is not None and discharging else None
    if watts is not None and not _MIN_BATTERY_W <= watts <= _MAX_W:
        watts = None
    full_uwh = float(full) if full is not None and full > 0 else None
    return _Supply("battery", None, status, charge, full_uwh, discharging, watts)


def _charge(supplies: list[_Supply]) -> float | None:
    """Charge of all batteries together, by their energy where all of them say it."""
    known = [(supply.charge, supply.full_uwh) for supply in supplies if supply.charge is not None]
    weights = [full for _, full in known if full is not None]
    if len(weights) < len(known):
        weights = [1.0] * len(known)
    return (
        sum(charge * full for (charge, _), full in zip(known, weights, strict=True)) / sum(weights) if known else None
    )


def _mains(supplies: list[_Supply]) -> tuple[bool | None, bool]:
    """Whether the machine is on mains, and whether its battery loses charge nevertheless."""
    adapters = [supply.online for supply in supplies if supply.kind == "mains" and supply.online is not None]
    states = {supply.status for supply in supplies if supply.kind == "battery"}
    if any(adapters):
        return True, "Discharging" in states and "Charging" not in states
    if states & {"Charging", "Full", "Not charging"} and "Discharging" not in states:
        return True, False
    return (False if adapters or "Discharging" in states else None), False


def _total(values: list[float | None]) -> float | None:
    """Their sum; None where one is unknown: a part is not the whole."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def read_termux(path: str | None = None) -> Power:
    """What `termux-battery-status` says: for Android, where apps may not read `power_supply`. Takes seconds.

    `path` replaces the environment's PATH. Without the Termux:API app the command waits for ever: it is ended.
    """
    answer = run_command("termux-battery-status", timeout_s=_TERMUX_TIMEOUT_S, path=path)
    if answer.text is None:
        missing = answer.problem == "missing"
        return Power(notes=() if missing else (f"{answer.problem}: is the Termux:API app installed?",))
    try:
        values = json.loads(answer.text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return Power(notes=("termux-battery-status printed no JSON object",))
    percent = _in_range(values.get("percentage"), 0, 100)
    plugged = values.get("plugged")
    degrees = _in_range(values.get("temperature"), -30, 100)
    return Power(
        battery=None if percent is None else percent / 100,
        on_mains=plugged != "UNPLUGGED" if isinstance(plugged, str) and "PLUGGED" in plugged else None,
        # A Chromebook without that sensor says 0.0 (termux/termux-api-package issue 27).
        battery_c=degrees or None,
    )


def _in_range(value: object, low: float, high: float) -> float | None:
    """The number, where it is one within the bounds (which NaN is not)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if low <= value <= high else None
