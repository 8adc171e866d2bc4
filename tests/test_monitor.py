"""The monitor: what its readings add up to, and that no sensor makes anyone wait."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_files import (
    CPU,
    DEVICES,
    HWMON,
    LAPTOP,
    REFUSED,
    ZONES,
    clock,
    command,
    cooling,
    empty_root,
    put,
    recorded_devices,
    zone,
)

from edgespec.conditions import Conditions
from edgespec.device import load
from edgespec.device import monitor as device_monitor
from edgespec.device.monitor import Monitor, _Group, _keep_reading
from edgespec.device.raspberry import is_raspberry
from edgespec.device.sysfs import Sysfs

WORD = "/sys/devices/platform/soc/soc:firmware/get_throttled"
NO_THERMOMETER = "no temperature sensor of the processor can be read"
NO_READING = "no sensor has been read lately"


class Time:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def monitor(sysfs: Sysfs, *performance: int, path: str = "") -> tuple[Monitor, Time]:
    now = Time()
    return Monitor(sysfs, performance, clock=now, path=path), now


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, for as long as it takes."""
    for _ in range(20000):
        if condition():
            return
        time.sleep(0.001)
    pytest.fail("it never came true")


def test_all_of_a_laptop(tmp_path: Path) -> None:
    watch, now = monitor(put(tmp_path, LAPTOP), 0)
    watch.tick()
    now.now_s += 1
    put(tmp_path, {"/proc/stat": f"cpu {load._ticks_per_s() // 2} 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0"})
    assert watch.tick() == Conditions(
        at_s=101.0,
        headroom=0.0,
        temp_c=70.0,
        heat_source="coretemp Package id 0",
        throttled=False,
        freq_cap=1.0,
        battery=0.8,
        on_mains=False,
        power_w=9.0,
        power_source="battery",
        busy_others=0.5,
        pressure=0.05,
    )


def test_an_empty_machine(tmp_path: Path) -> None:
    watch, now = monitor(Sysfs(tmp_path), 0, 1)
    assert watch.latest() == Conditions(100.0, notes=(NO_READING,))
    state = watch.tick()
    assert replace(state, notes=()) == Conditions(100.0)
    assert NO_THERMOMETER in state.notes
    now.now_s += 5
    assert watch.latest() == state
    now.now_s += 0.1
    assert watch.latest() == Conditions(now.now_s, notes=(NO_READING,))


def test_the_apps_headroom_goes_before_all(tmp_path: Path) -> None:
    watch, now = monitor(put(tmp_path, zone(0, "cpu", 80000, ("passive", 95000))))
    assert watch.tick().headroom == 0.5
    watch.set_headroom(0.7)
    state = watch.latest()
    assert (state.headroom, state.temp_c, state.heat_source, state.throttled) == (0.7, 80.0, "app, cpu", None)
    watch.set_headroom(1.2)
    assert watch.latest().throttled is True
    now.now_s += 15.1
    watch.tick()
    assert (watch.latest().headroom, watch.latest().heat_source) == (0.5, "cpu"), "an old value is unknown"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, None])
def test_an_app_that_does_not_know(tmp_path: Path, value: float | None) -> None:
    watch, _ = monitor(Sysfs(tmp_path))
    watch.tick()
    watch.set_headroom(0.7)
    watch.set_headroom(value)
    assert watch.latest().headroom is None


def test_cooling_devices_are_heat(tmp_path: Path) -> None:
    watch, _ = monitor(put(tmp_path, cooling(0, "thermal-cpufreq-0", 0, 4)))
    state = watch.tick()
    assert (state.headroom, state.throttled) == (None, False)
    put(tmp_path, cooling(0, "thermal-cpufreq-0", 1, 4))
    state = watch.tick()
    assert state.headroom == pytest.approx(1.15)
    assert (state.throttled, state.heat_source) == (True, "cooling devices")
    assert "the system slows the processor down to cool it" in state.notes


def test_a_clock_limit_that_falls_is_heat_unless_it_is_cool(tmp_path: Path) -> None:
    watch, _ = monitor(put(tmp_path, clock(7, 2000000, 2000000)), 7)
    assert watch.tick().throttled is False
    put(tmp_path, clock(7, 1500000, 2000000))
    state = watch.tick()
    assert state.headroom == pytest.approx(1.15)
    assert (state.throttled, state.freq_cap) == (True, 0.75)
    assert state.heat_source == "scaling_max_freq"
    put(tmp_path, zone(0, "cpu", 40000, ("passive", 90000)))
    watch, _ = monitor(put(tmp_path, clock(7, 2000000, 2000000)), 7)
    watch.tick()
    put(tmp_path, clock(7, 1500000, 2000000))
    state = watch.tick()
    assert (state.headroom, state.throttled, state.freq_cap) == (0.0, False, 0.75)
    assert "the clock was limited while cool: a power profile" in state.notes


def test_a_limit_since_the_start_is_noted_and_no_heat(tmp_path: Path) -> None:
    watch, _ = monitor(put(tmp_path, clock(7, 1500000, 2000000)), 7)
    for _ in range(3):
        state = watch.tick()
        assert (state.headroom, state.throttled, state.freq_cap) == (None, False, 0.75)
        assert "the clock has been limited to 75% of its highest since the start" in state.notes


def test_a_raspberry_pi(tmp_path: Path) -> None:
    files = {WORD: "0", **zone(0, "cpu-thermal", 65000, ("active", 50000), ("critical", 90000))}
    watch, _ = monitor(put(tmp_path, files))
    assert (watch.tick().headroom, watch.tick().throttled) == (0.5, False)
    put(tmp_path, {WORD: "80008"})
    state = watch.tick()
    assert (state.headroom, state.throttled, state.heat_source) == (1.0, True, "get_throttled, cpu-thermal")
    put(tmp_path, {WORD: "50005"})
    state = watch.tick()
    assert (state.headroom, state.throttled) == (0.5, True), "a weak supply is no heat"
    assert "undervoltage now: use a better power supply or cable" in state.notes


def test_power_of_a_pi_5(tmp_path: Path) -> None:
    adc = "A_A current(0)=2.0A\nA_V volt(1)=0.9V"
    path = command(tmp_path / "bin", "vcgencmd", f'[ "$1" = pmic_read_adc ] && cat <<"X"\n{adc}\nX\ntrue')
    watch, _ = monitor(put(tmp_path, {WORD: "0"}), path=path)
    state = watch.tick()
    assert (state.power_w, state.power_source) == (1.8, "PMIC")


def test_a_phone_in_termux(tmp_path: Path) -> None:
    printed = """echo '{"percentage": 59, "plugged": "UNPLUGGED", "temperature": 39.0}'"""
    denied = {ZONES: REFUSED, "/sys/class/power_supply": REFUSED, "/proc/stat": REFUSED, "/proc/pressure/cpu": REFUSED}
    sysfs = put(tmp_path, {**denied, **clock(7, 2800000, 2800000)})
    watch, now = monitor(sysfs, 7, path=command(tmp_path / "bin", "termux-battery-status", printed))
    state = watch.tick()
    assert state.headroom == pytest.approx(0.8)
    assert (state.temp_c, state.heat_source) == (39.0, "battery")
    assert (state.battery, state.on_mains, state.freq_cap, state.throttled) == (0.59, False, 1.0, False)
    assert (state.power_w, state.busy_others, state.pressure) == (None, None, None)
    assert NO_THERMOMETER in state.notes
    # It is read once a minute, and counts for longer than what is read every second.
    now.now_s += 100
    assert watch.latest().battery == 0.59
    now.now_s += 100
    assert watch.latest().battery is None


class Hanging(Sysfs):
    """Files of which one does not answer until it is let go."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(root)
        self.path = path
        self.hang = True
        self.n_asked = 0
        self.let_go = threading.Event()

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        if path == self.path and self.hang:
            self.n_asked += 1
            self.let_go.wait()
        return super().read_text(path, limit)


def test_a_sensor_that_hangs_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Time leaps below, perhaps in the middle of a reading that then seems slow.
    monkeypatch.setattr(device_monitor, "_RETRY_S", 0.001)
    put(tmp_path, {**LAPTOP, **zone(1, "cpu-thermal", 60000)})
    stuck = f"{ZONES}/thermal_zone1/temp"
    sysfs = Hanging(tmp_path, stuck)
    now = Time()
    watch = Monitor(sysfs, (0,), clock=now, interval_s=0.001, path="")
    n_before = threading.active_count()
    watch.start()
    watch.start()

    def others() -> bool:
        state = watch.latest()
        return None not in (state.battery, state.freq_cap, state.pressure)

    until(lambda: sysfs.n_asked == 1 and others())
    now.now_s += 6
    until(others)
    state = watch.latest()
    assert (state.temp_c, state.headroom, state.battery, state.pressure) == (None, None, 0.8, 0.05)
    assert f"temperature sensors: no answer from {stuck}" in state.notes
    assert sysfs.n_asked == 1
    assert threading.active_count() == n_before + 4, "one thread a group, and no second for one that hangs"
    assert watch.tick().temp_c is None, "a reading on demand does not wait for it either"
    # Started anew, it is still not asked a second time.
    watch.close()
    watch.close()
    watch.start()
    until(lambda: watch.latest().battery is not None)
    assert sysfs.n_asked == 1
    # When it answers after all, it counts again.
    sysfs.hang = False
    sysfs.let_go.set()
    until(lambda: watch.latest().temp_c == 70.0)
    assert watch.latest().notes == ()
    watch.close()
    until(lambda: threading.active_count() == n_before)
    now.now_s += 6
    assert watch.latest() == Conditions(now.now_s, notes=(NO_READING,))


def test_what_was_slow_is_asked_rarely() -> None:
    now = Time()
    took_s = iter([0.1, 7.0, 0.1])
    waits = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) == 3:
                self.set()
            return True

    def read(_now_s: float) -> float:
        now.now_s += next(took_s)
        return now.now_s

    group = _Group("slow", read, 1.0, now)
    _keep_reading(group, Stop(), now)
    assert waits == [1.0, 60.0, 1.0]
    assert group.reading is not None
    assert (group.reading.at_s, group.reading.value) == (now.now_s, now.now_s)


def test_a_fault_in_a_reader_is_told_and_costs_its_values_only(tmp_path: Path) -> None:
    class Broken(Sysfs):
        def listdir(self, path: str) -> list[str]:
            if path == "/sys/class/power_supply":
                raise ZeroDivisionError("oops")
            return super().listdir(path)

    watch, _ = monitor(Broken(put(tmp_path, LAPTOP).root), 0)
    state = watch.tick()
    assert (state.battery, state.temp_c) == (None, 70.0)
    assert state.notes == ("power supplies: ZeroDivisionError: oops",)


def test_no_thread_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watch, _ = monitor(put(tmp_path, LAPTOP))
    monkeypatch.setattr(threading.Thread, "start", start)
    watch.start()
    state = watch.latest()
    assert state.temp_c is None
    assert "temperature sensors: can't start new thread" in state.notes
    watch.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # just what is tested
def test_a_forked_child_knows_nothing_and_may_go_on(tmp_path: Path) -> None:
    watch, now = monitor(put(tmp_path, LAPTOP), 0)
    with watch:
        until(lambda: watch.latest().temp_c == 70.0)
        child = os.fork()
        if child == 0:
            alone = watch.latest() == Conditions(now.now_s, notes=("a forked process has no sensors",))
            watch.start()
            watch.close()
            os._exit(0 if alone and threading.active_count() == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert watch.latest().temp_c == 70.0


def test_psutil_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert monitor(put(tmp_path, LAPTOP))[0].tick().temp_c == 70.0


def test_this_machine() -> None:
    with Monitor(interval_s=0.01) as watch:
        until(lambda: NO_READING not in watch.latest().notes)
        check(watch.latest())


def check(state: Conditions) -> None:
    """Every value is unknown or within its range."""
    for name, low, high in (
        ("headroom", 0, 10),
        ("temp_c", -30, 130),
        ("freq_cap", 0, 1),
        ("battery", 0, 1),
        ("power_w", 0, 10000),
        ("busy_others", 0, 10000),
        ("pressure", 0, 1),
    ):
        value = getattr(state, name)
        assert value is None or low <= value <= high, name
    assert (state.power_w is None) == (state.power_source is None)
    assert (state.heat_source is None) == (state.headroom is None and state.temp_c is None)


@pytest.mark.skipif(not DEVICES.is_dir(), reason="the device records are not beside the project")
def test_every_recorded_device(tmp_path: Path) -> None:
    for record, sysfs in recorded_devices(tmp_path):
        state = monitor(sysfs, *record["expected"]["performance"])[0].tick()
        check(state)
        assert not state.throttled, record["name"]
        assert is_raspberry(sysfs) == ("Raspberry" in record["name"])
        assert (state.temp_c is not None) or NO_THERMOMETER in state.notes


FIELDS = {
    ZONES: {"headroom", "temp_c", "heat_source", "throttled", "notes"},
    HWMON: {"headroom", "temp_c", "heat_source", "notes"},
    CPU: {"headroom", "heat_source", "throttled", "freq_cap", "notes"},
    "/sys/class/power_supply": {"battery", "on_mains", "power_w", "power_source", "notes"},
    "/proc/pressure": {"pressure", "notes"},
    "/proc/stat": {"busy_others", "notes"},
    "/proc/self": {"busy_others", "notes"},
}
JUNK = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(["", "N/A", "0", "-274000", "-40000", "2147483647", "650788984", "45", "99000", "Battery", "cpu"]),
)


def two_ticks(root: Path) -> Conditions:
    watch, now = monitor(Sysfs(root), 0)
    watch.tick()
    now.now_s += 20
    return watch.tick()


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(LAPTOP)), JUNK, max_size=8), st.sampled_from(sorted(LAPTOP)))
def test_no_tree_raises_and_one_file_changes_no_other_field(junk: dict[str, str | bytes], removed: str) -> None:
    with empty_root() as root:
        put(root, {**LAPTOP, **junk})
        before = two_ticks(root)
        put(root, {removed: None})
        after = two_ticks(root)
    check(before)
    check(after)
    changed = {name for name, value in asdict(before).items() if value != asdict(after)[name]}
    allowed = next(fields for folder, fields in FIELDS.items() if removed.startswith(folder))
    assert changed <= allowed
