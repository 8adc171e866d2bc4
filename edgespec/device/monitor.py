"""Keeps an eye on heat, power and load while answers are written, without ever making one wait.

Every group of sensors has a daemon thread of its own, so that one that hangs in the kernel takes no other with it.
`latest` only puts together what they left.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from edgespec.conditions import Conditions
from edgespec.device import raspberry
from edgespec.device.load import Load, LoadReader
from edgespec.device.power import Power, PowerReader, read_termux
from edgespec.device.raspberry import Firmware, Raspberry
from edgespec.device.sysfs import Sysfs, within
from edgespec.device.thermal import Clock, ClockReader, Heat, Thermometer, headroom

T = TypeVar("T")

STALE_S = 5.0
"""A reading of the machine's own sensors that is older says nothing any more."""
_RETRY_S = 60.0
"""Pause after a reading that took longer than that."""
_TERMUX_EVERY_S = 60.0
_APP_STALE_S = 15.0
"""Android asks apps to poll its headroom every 10 s or so, and answers NaN above once a second."""
_JOIN_S = 0.2
_PATIENCE_S = 0.5
"""For telling a Raspberry Pi, in the thread that opens a model."""
_HELD = 0.9
"""Headroom of a processor that is held back, before the share taken away is added: a tenth is severe."""
_MIN_LOST = 0.02
_COOL = 0.7
"""Below this headroom a clock limit that came while running is somebody's power profile, not heat."""
_BATTERY_SEVERE_C = 45.0
"""Phones stop charging here, and are held back soon: an estimate for where nothing else can be read."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reading(Generic[T]):
    at_s: float
    value: T | None
    problem: str | None = None


class _Watched(Sysfs):
    """The same files, and which of them was asked for last: the one to name when it does not answer."""

    def __init__(self, files: Sysfs) -> None:
        super().__init__(files.root)
        self._files = files
        self.at: str | None = None

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        """As Sysfs."""
        self.at = path
        return self._files.read_text(path, limit)

    def listdir(self, path: str) -> list[str]:
        """As Sysfs."""
        self.at = path
        return self._files.listdir(path)


class _Group(Generic[T]):
    """Some sensors that are read together, one reading at a time."""

    def __init__(
        self,
        name: str,
        read: Callable[[float], T],
        every_s: float,
        clock: Callable[[], float],
        files: _Watched | None = None,
    ) -> None:
        self.name = name
        self.files = files
        self.every_s = every_s
        self.reading: _Reading[T] | None = None
        self._read = read
        self._clock = clock
        self._since: float | None = None
        self._busy = threading.Lock()

    def read_once(self) -> None:
        """Read, unless a reading is under way in another thread."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._since = self._clock()
            value, problem = None, None
            try:
                value = self._read(self._since)
            except Exception as error:  # a fault in a reader is told, and costs its group's values only
                problem = f"{self.name}: {type(error).__name__}: {error}"
            self.reading = _Reading(self._clock(), value, problem)
        finally:
            self._since = None
            self._busy.release()

    def fresh(self, now_s: float) -> _Reading[T] | None:
        """The last reading, if it is not too old."""
        reading = self.reading
        return reading if reading is not None and now_s - reading.at_s <= self._stale_s else None

    def trouble(self, now_s: float) -> str | None:
        """What to tell about a reading that failed or has been under way for too long."""
        since = self._since
        if since is not None and now_s - since > self._stale_s:
            return f"{self.name}: no answer from {self.files.at if self.files else self.name}"
        reading = self.fresh(now_s)
        return reading.problem if reading is not None else None

    @property
    def _stale_s(self) -> float:
        return max(STALE_S, 2.5 * self.every_s)


class Monitor:
    """Reads the sensors at most once in `interval_s`; `latest` tells what they said. Use it from any thread."""

    def __init__(
        self,
        sysfs: Sysfs | None = None,
        performance: Iterable[int] = (),
        *,
        clock: Callable[[], float] = time.perf_counter,
        interval_s: float = 1.0,
        path: str | None = None,
    ) -> None:
        """No thread runs before `start`.

        Args:
            sysfs: the machine's files; None: this machine's.
            performance: ids of the cores whose clock limit matters.
            clock: seconds, never going back.
            interval_s: between two readings of a sensor; 1 or more outside of tests.
            path: replaces the environment's PATH in the search for vendors' commands.
        """
        sysfs = Sysfs() if sysfs is None else sysfs
        self._clock = clock
        looked = _Watched(sysfs)
        pi = within(_PATIENCE_S, lambda: raspberry.is_raspberry(looked), None)
        self._notes = (f"no answer from {looked.at}: not taken for a Raspberry Pi",) if pi is None else ()

        def group(name: str, make: Callable[[Sysfs], Callable[[float], T]]) -> _Group[T]:
            files = _Watched(sysfs)
            return _Group(name, make(files), interval_s, clock, files)

        severe_c = raspberry.PI_SEVERE_C if pi else None
        cores = tuple(performance)
        self._heat = group("temperature sensors", lambda files: Thermometer(files, severe_c).read)
        self._speed = group("clock limits", lambda files: ClockReader(files, cores).read)
        self._power = group("power supplies", lambda files: PowerReader(files).read)
        self._load = group("processor time", lambda files: LoadReader(files).read)
        self._firmware = group("the Pi's firmware", lambda files: Raspberry(files, path).read) if pi else None
        self._termux: _Group[Power] | None = None
        if shutil.which("termux-battery-status", path=path):
            every_s = max(interval_s, _TERMUX_EVERY_S)
            self._termux = _Group("termux-battery-status", lambda _now_s: read_termux(path), every_s, clock)
        known = (self._heat, self._speed, self._power, self._load, self._firmware, self._termux)
        self._groups = tuple(group for group in known if group is not None)
        self._app: tuple[float, float] | None = None
        self._threads: list[threading.Thread] = []
        self._stop: threading.Event | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin reading in the background; does nothing where that is so already. A forked child cannot."""
        if self._stop is not None or os.getpid() != self._pid:
            return
        self._stop = threading.Event()
        self._threads = []
        for group in self._groups:
            thread = threading.Thread(
                target=_keep_reading, args=(group, self._stop, self._clock), name=f"sensors-{group.name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no more threads for this user
                group.reading = _Reading(math.inf, None, f"{group.name}: {error}")
                continue
            self._threads.append(thread)

    def close(self) -> None:
        """Stop reading. A thread that hangs is left behind, as a daemon. May be called twice."""
        if self._stop is None or os.getpid() != self._pid:
            return
        self._stop.set()
        self._stop = None
        deadline_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tick(self) -> Conditions:
        """Read every sensor once, here and now, except where a thread is at it; waits for sensors that hang."""
        for group in self._groups:
            group.read_once()
        return self.latest()

    def set_headroom(self, value: float | None) -> None:
        """Take over Android's own headroom from an app that may ask for it; NaN or None: unknown.

        It counts for 15 s and goes before everything that is read here.
        """
        good = value is not None and math.isfinite(value) and value >= 0
        self._app = (self._clock(), float(value)) if good and value is not None else None

    def latest(self) -> Conditions:
        """What is known now. Never blocks, never raises, and reads nothing."""
        now_s = self._clock()
        if os.getpid() != self._pid:
            return Conditions(now_s, notes=("a forked process has no sensors",))
        fresh = [group.fresh(now_s) for group in self._groups]
        troubles = (group.trouble(now_s) for group in self._groups)
        notes = [*self._notes, *(trouble for trouble in troubles if trouble is not None)]
        ages = [reading.at_s for reading in fresh if reading is not None and reading.at_s <= now_s]
        if not ages:
            notes.append("no sensor has been read lately")
        heat = _value(self._heat, now_s) or Heat()
        speed = _value(self._speed, now_s) or Clock()
        power = _value(self._power, now_s) or Power()
        load = _value(self._load, now_s) or Load()
        firmware = _value(self._firmware, now_s) or Firmware()
        phone = _value(self._termux, now_s) or Power()
        app = self._app
        app_headroom = app[1] if app is not None and now_s - app[0] <= _APP_STALE_S else None
        room, held, sources, more = _judge(heat, speed, firmware, app_headroom, phone.battery_c)
        watts, meter = (power.power_w, power.source)
        if firmware.power_w is not None and power.source != "RAPL":
            watts, meter = firmware.power_w, "PMIC"
        return Conditions(
            at_s=max(ages, default=now_s),
            headroom=room,
            temp_c=heat.temp_c if heat.temp_c is not None else phone.battery_c,
            heat_source=", ".join(dict.fromkeys(sources)) or None,
            throttled=held,
            freq_cap=speed.freq_cap,
            battery=power.battery if power.battery is not None else phone.battery,
            on_mains=power.on_mains if power.on_mains is not None else phone.on_mains,
            power_w=watts,
            power_source=meter,
            busy_others=load.busy_others,
            pressure=load.pressure,
            notes=tuple(
                dict.fromkeys(
                    (*notes, *heat.notes, *speed.notes, *more, *firmware.notes, *power.notes, *phone.notes, *load.notes)
                )
            ),
        )


def _keep_reading(group: _Group[T], stop: threading.Event, clock: Callable[[], float]) -> None:
    while not stop.is_set():
        began_s = clock()
        group.read_once()
        # What took that long is not asked again soon; commands that wait for the system may take that long.
        slow = clock() - began_s > max(STALE_S, group.every_s)
        stop.wait(_RETRY_S if slow else group.every_s)


def _value(group: _Group[T] | None, now_s: float) -> T | None:
    reading = group.fresh(now_s) if group is not None else None
    return reading.value if reading is not None else None


def _judge(
    heat: Heat, clock: Clock, firmware: Firmware, app: float | None, battery_c: float | None
) -> tuple[float | None, bool | None, list[str], list[str]]:
    """Headroom, whether the processor is held back, what both rest on, and notes.

    The app's value is Android's own and stands alone. Else the worst of: the thermometers; 0.9 and the share of cooling
    steps or of the clock taken away; 1.0 where a Pi's firmware slows it for heat. The battery speaks where none does.
    """
    rooms: list[tuple[float, str]] = []
    held: list[bool] = []
    notes: list[str] = []
    if heat.headroom is not None and heat.headroom_source is not None:
        rooms.append((heat.headroom, heat.headroom_source))
    known = app if app is not None else heat.headroom
    if clock.cooling is not None:
        held.append(clock.cooling > 0)
        if clock.cooling > 0:
            rooms.append((_HELD + clock.cooling, "cooling devices"))
            notes.append("the system slows the processor down to cool it")
    if clock.freq_lost is not None:
        lost = clock.freq_lost > _MIN_LOST
        hot = known is None or known >= _COOL
        held.append(lost and hot)
        if lost and hot:
            rooms.append((_HELD + clock.freq_lost, "scaling_max_freq"))
        elif lost:
            notes.append("the clock was limited while cool: a power profile")
    if firmware.throttled is not None:
        held.append(firmware.throttled)
        if firmware.hot:
            rooms.append((1.0, "get_throttled"))
    if app is not None:
        rooms = [(app, "app")]
        if app >= 1:
            held.append(True)
    if not rooms and battery_c is not None:
        rooms.append((headroom(battery_c, _BATTERY_SEVERE_C), "battery"))
    room, source = max(rooms) if rooms else (None, None)
    temp_source = heat.source if heat.temp_c is not None else "battery" if battery_c is not None else None
    return room, any(held) if held else None, [name for name in (source, temp_source) if name is not None], notes
