"""Heat and clock limits: values of real machines, and every way in which a sensor was seen to fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sensor_files import CPU, DEVICES, HWMON, REFUSED, ZONES, Refused, clock, cooling, put, recorded_devices, zone

from edgespec.device.sysfs import Sysfs
from edgespec.device.thermal import ClockReader, Thermometer, degrees_c, headroom, temperature_c


def test_headroom_is_in_androids_unit() -> None:
    assert headroom(90, 90) == 1.0
    assert headroom(75, 90) == 0.5
    assert headroom(60, 90) == headroom(14, 90) == 0.0
    assert headroom(105, 90) == 1.5


def test_passive_trips_bound_and_fans_do_not(tmp_path: Path) -> None:
    # Snapdragon 8 Gen 2: 90 and 95 passive, 110 critical.
    sysfs = put(
        tmp_path, zone(0, "cpu7-top-thermal", 75000, ("passive", 90000), ("passive", 95000), ("critical", 110000))
    )
    heat = Thermometer(sysfs).read(0)
    assert (heat.temp_c, heat.source, heat.headroom, heat.headroom_source) == (
        75.0,
        "cpu7-top-thermal",
        0.5,
        "cpu7-top-thermal",
    )
    # Odroid HC2: 14 °C is a real idle reading; fans start at 70 and 85, the shutdown is at 120.
    trips = (("active", 70000), ("active", 85000), ("critical", 120000))
    sysfs = put(tmp_path / "odroid", zone(0, "cpu0-thermal", 14000, *trips))
    assert Thermometer(sysfs).read(0).temp_c == 14.0
    put(tmp_path / "odroid", zone(0, "cpu0-thermal", 85000, *trips))
    assert Thermometer(sysfs).read(0).headroom == pytest.approx(1 - 15 / 30)


@pytest.mark.parametrize(
    ("trips", "expected"),
    [
        ((), None),
        ((("active", 50000),), None),
        ((("hot", 110000), ("critical", 115000)), 1 - 30 / 30),
        ((("critical", 110000),), 1 - 10 / 30),
        ((("passive", 125000), ("critical", 90000)), 1 - 10 / 30),
        ((("passive", 0), ("passive", -274000), ("passive", 255000)), None),
        ((("passive", 90),), 1 - 10 / 30),
    ],
)
def test_what_counts_as_a_limit(tmp_path: Path, trips: tuple[tuple[str, int], ...], expected: float | None) -> None:
    heat = Thermometer(put(tmp_path, zone(0, "cpu-thermal", 80000, *trips))).read(0)
    assert heat.temp_c == 80.0
    assert heat.headroom == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_a_machine_whose_limit_is_known(tmp_path: Path) -> None:
    # Raspberry Pi 4: the zone names the shutdown at 90 only; the firmware slows down from 80 on.
    sysfs = put(tmp_path, zone(0, "cpu-thermal", 80000, ("critical", 90000)))
    assert Thermometer(sysfs, severe_c=80).read(0).headroom == 1.0


def test_trips_that_only_notify_are_no_limits(tmp_path: Path) -> None:
    # Intel N100: the package zone has none of its own, and the board's sensor does not speak for the processor.
    files = {**zone(0, "acpitz", 27800, ("critical", 110000)), **zone(1, "x86_pkg_temp", 38000, ("passive", 50000))}
    heat = Thermometer(put(tmp_path, files)).read(0)
    assert (heat.temp_c, heat.source, heat.headroom) == (38.0, "x86_pkg_temp", None)
    # Where it is the only one, it has to.
    heat = Thermometer(put(tmp_path / "b", zone(0, "acpitz", 75000, ("critical", 110000)))).read(0)
    assert (heat.temp_c, heat.headroom) == (75.0, 0.5)


BAD = ["-274000", "-40000", "0", "2147483647", "650788984", "-650788984", "N/A", "", "450", "200000", "45.0", REFUSED]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: "refused" if isinstance(bad, Refused) else str(bad))
def test_an_absurd_reading_is_unknown_and_the_others_count(tmp_path: Path, bad: str | Refused) -> None:
    sysfs = put(tmp_path, zone(0, "cpu-thermal", bad, ("passive", 80000)))
    heat = Thermometer(sysfs).read(0)
    assert (heat.temp_c, heat.source, heat.headroom, heat.headroom_source) == (None, None, None, None)
    assert heat.notes == ("no temperature sensor of the processor can be read",)
    put(tmp_path, zone(1, "cpu1-thermal", 50000, ("passive", 80000)))
    heat = Thermometer(sysfs).read(0)
    assert (heat.temp_c, heat.source, heat.headroom, heat.notes) == (50.0, "cpu1-thermal", 0.0, ())


@pytest.mark.parametrize("error", [22, 61, 1, 13, 19, 5])
def test_one_zone_whose_driver_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    sysfs = put(tmp_path, {**zone(0, "cpu0", 95000), **zone(1, "cpu1", 45000)})
    real = os.open

    def refuse(path: Path, flags: int) -> int:
        if str(path).endswith("thermal_zone0/temp"):
            raise OSError(error, os.strerror(error))
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    assert temperature_c(sysfs) == (45.0, "cpu1")


def test_mixed_units(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {**zone(0, "cpu0", 45), **zone(1, "cpu1", 44000)})
    assert temperature_c(sysfs) == (45.0, "cpu0")
    assert [degrees_c(raw) for raw in (45, 45000, 14, 14000, -5, -5000)] == [45, 45, 14, 14, -5, -5]


def test_a_zone_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {**zone(0, "cpu0", 60000), **zone(1, "cpu1", 50000)})
    meter = Thermometer(sysfs)
    assert meter.read(0).temp_c == 60.0
    put(tmp_path, {f"{ZONES}/thermal_zone0/temp": None, f"{ZONES}/thermal_zone0/type": None})
    assert meter.read(1).temp_c == 50.0
    assert meter.read(100).temp_c == 50.0
    put(tmp_path, zone(0, "cpu0", 61000))
    assert meter.read(101).temp_c == 50.0
    assert meter.read(200).temp_c == 61.0


@pytest.mark.parametrize("stuck", [125000, -20000])
def test_a_value_stuck_where_no_processor_stays(tmp_path: Path, stuck: int) -> None:
    sysfs = put(tmp_path, {**zone(0, "cpu0", stuck, ("passive", 90000)), **zone(1, "cpu1", 50000)})
    meter = Thermometer(sysfs)
    for second in range(200):
        heat = meter.read(second)
        assert (heat.temp_c, heat.headroom) == (50.0, None)
    assert heat.notes == (f"cpu0: {stuck / 1000:.0f} °C without any change is not believed",)


def test_an_extreme_value_counts_while_the_sensor_moves(tmp_path: Path) -> None:
    sysfs = put(tmp_path, zone(0, "cpu0", 109000, ("passive", 90000)))
    meter = Thermometer(sysfs)
    assert meter.read(0).temp_c == 109.0
    put(tmp_path, {f"{ZONES}/thermal_zone0/temp": 115000})
    assert [meter.read(second).temp_c for second in range(1, 31)] == [115.0] * 30
    assert meter.read(61).temp_c is None
    put(tmp_path, {f"{ZONES}/thermal_zone0/temp": 114000})
    assert meter.read(62).temp_c == 114.0


def test_a_steady_plausible_value_stays_believed(tmp_path: Path) -> None:
    meter = Thermometer(put(tmp_path, zone(0, "cpu0", 27800)))
    assert {meter.read(second).temp_c for second in range(0, 5000, 7)} == {27.8}


def test_the_sensor_is_chosen_by_name_not_by_heat(tmp_path: Path) -> None:
    kinds = ("gpu-thermal", "battery", "acpitz", "soc-thermal", "pm8550-thermal", "quiet-therm", "cpu-0-0-usr")
    files: dict[str, str | int | Refused] = {}
    for number, kind in enumerate(kinds):
        files |= zone(number, kind, 90000 - 1000 * number)
    assert temperature_c(put(tmp_path, files)) == (84.0, "cpu-0-0-usr")


def test_no_thermal_access(tmp_path: Path) -> None:
    for sysfs in (
        Sysfs(tmp_path / "none"),
        put(tmp_path / "a", {ZONES: REFUSED}),
        put(tmp_path / "b", {ZONES: "text"}),
    ):
        assert temperature_c(sysfs) is None
    put(tmp_path / "a", {f"{ZONES}/thermal_zone0/type": "cpu"})
    (tmp_path / "a/sys/class/thermal/thermal_zone1").symlink_to("../gone")
    assert temperature_c(Sysfs(tmp_path / "a")) is None


def chip(number: int, name: str, **channels: str | int) -> dict[str, str | int]:
    return {f"{HWMON}/hwmon{number}/name": name} | {f"{HWMON}/hwmon{number}/{key}": v for key, v in channels.items()}


@pytest.mark.parametrize(
    ("name", "label", "limits", "severe_c"),
    [
        # On x86 _max is where the fans should run at full speed; the clock falls at _crit.
        ("coretemp", "Package id 0", {"temp1_max": 80000, "temp1_crit": 100000}, 100),
        ("coretemp", "Package id 0", {"temp1_max": 100000}, 100),
        ("k10temp", "Tctl", {"temp1_max": 70000, "temp1_crit": 95000}, 95),
        ("k10temp", "Tctl", {}, None),
        ("scpi_sensors_soc", None, {"temp1_max": 85000, "temp1_crit": 105000}, 85),
        ("cpu_sensor", None, {"temp1_crit": 105000}, 85),
        ("cpu_sensor", None, {"temp1_max": 0, "temp1_crit": -274000}, None),
    ],
)
def test_hwmon(tmp_path: Path, name: str, label: str | None, limits: dict[str, int], severe_c: int | None) -> None:
    files = {**chip(0, "nvme", temp1_input=95000), **chip(1, name, temp1_input=70000, **limits)}
    files |= {f"{HWMON}/hwmon1/temp1_label": label} if label else {}
    heat = Thermometer(put(tmp_path, files)).read(0)
    assert (heat.temp_c, heat.source) == (70.0, f"{name} {label}" if label else name)
    assert heat.headroom == (None if severe_c is None else pytest.approx(headroom(70, severe_c)))


def test_a_zone_shown_again_as_a_chip_is_one_sensor(tmp_path: Path) -> None:
    files = zone(0, "cpu-thermal", 80000, ("passive", 95000), ("critical", 100000))
    copy = chip(0, "cpu_thermal", temp1_input=80000, temp1_crit=100000)
    assert Thermometer(put(tmp_path, {**files, **copy})).read(0).headroom == pytest.approx(0.5)
    assert Thermometer(put(tmp_path / "b", copy)).read(0).headroom == pytest.approx(1.0)


def test_cooling_devices_of_the_processor(tmp_path: Path) -> None:
    files = {**cooling(0, "pwm-fan", 3, 4), **cooling(1, "thermal-devfreq-0", 2, 4), **cooling(2, "TCC Offset", 5, 63)}
    assert ClockReader(put(tmp_path, files), ()).read(0).cooling is None
    files = {
        **cooling(3, "thermal-cpufreq-0", 0, 18),
        **cooling(4, "cpufreq-cpu4", 3, 12),
        **cooling(5, "Processor", 1, 10),
    }
    reader = ClockReader(put(tmp_path, files), ())
    assert reader.read(0).cooling == 0.25
    put(tmp_path, cooling(4, "cpufreq-cpu4", 0, 12))
    assert reader.read(1).cooling == 0.1
    put(tmp_path, cooling(5, "Processor", 0, 10))
    assert reader.read(2).cooling == 0.0


@pytest.mark.parametrize(("step", "n_steps", "expected"), [("", 4, None), (9, 4, None), (-1, 50, 0.0), (1, 0, None)])
def test_a_cooling_device_that_says_nonsense(tmp_path: Path, step: int | str, n_steps: int, expected: object) -> None:
    assert ClockReader(put(tmp_path, cooling(0, "intel_powerclamp", step, n_steps)), ()).read(0).cooling == expected


def test_clock_limits_of_the_performance_cores(tmp_path: Path) -> None:
    # A throttled machine: cores 4 and 7 are held at 1.6 of 2.253 and 1.9 of 2.802 GHz, the small ones free.
    files = {**clock(0, 500000, 1803000), **clock(4, 2253000, 2253000), **clock(7, 2802000, 2802000)}
    reader = ClockReader(put(tmp_path, files), (4, 7))
    assert (reader.read(0).freq_cap, reader.read(0).freq_lost) == (1.0, 0.0)
    put(tmp_path, {**clock(4, 1600000, 2253000), **clock(7, 1900000, 2802000)})
    state = reader.read(1)
    assert state.freq_cap == pytest.approx(1900 / 2802)
    assert state.freq_lost == pytest.approx(1 - 1900 / 2802)
    assert state.notes == ()


def test_a_limit_that_was_there_first_is_noted_and_is_no_heat(tmp_path: Path) -> None:
    sysfs = put(tmp_path, clock(7, 2100000, 2800000))
    reader = ClockReader(sysfs, (7,))
    state = reader.read(0)
    assert (state.freq_cap, state.freq_lost) == (0.75, 0.0)
    assert state.notes == ("the clock has been limited to 75% of its highest since the start",)
    put(tmp_path, clock(7, 2800000, 2800000))
    assert reader.read(1).notes == ()
    put(tmp_path, clock(7, 2100000, 2800000))
    assert reader.read(2).freq_lost == 0.25


@pytest.mark.parametrize("bad", ["0", "", "abc", "-5", REFUSED, None])
def test_a_clock_limit_that_cannot_be_read(tmp_path: Path, bad: str | Refused | None) -> None:
    sysfs = put(tmp_path, {**clock(0, bad, 2000000), **clock(1, 1500000, 2000000)})
    assert ClockReader(sysfs, (0,)).read(0).freq_cap is None
    assert ClockReader(sysfs, (0, 1, 9)).read(0).freq_cap == 0.75
    put(tmp_path, {f"{CPU}/cpu1/cpufreq/cpuinfo_max_freq": "0"})
    assert ClockReader(sysfs, (1,)).read(0).freq_cap is None


def test_limits_above_the_highest_clock_are_no_more_than_all(tmp_path: Path) -> None:
    assert ClockReader(put(tmp_path, clock(0, 3000000, 2000000)), (0,)).read(0).freq_cap == 1.0


@pytest.mark.skipif(not DEVICES.is_dir(), reason="the device records are not beside the project")
def test_every_recorded_device(tmp_path: Path) -> None:
    n = 0
    for record, sysfs in recorded_devices(tmp_path):
        n += 1
        heat = Thermometer(sysfs).read(0)
        names = [entry["type"] for entry in record["thermal_zones"]]
        own = [name for name in names if any(word in name.lower() for word in ("cpu", "soc", "pkg", "big", "mid"))]
        assert (heat.temp_c is not None) == bool(own), record["name"]
        limits = [trip for entry in record["thermal_zones"] if entry["type"] in own for trip in entry["trips"]]
        usable = [trip for trip in limits if trip["type"] in {"passive", "hot", "critical"}]
        assert (heat.headroom is not None) == bool(usable), record["name"]
        # All of them were recorded idle.
        assert heat.headroom is None or heat.headroom < 0.5, record["name"]
        fast = record["expected"]["performance"]
        state = ClockReader(sysfs, fast).read(0)
        limited = [cpu for cpu in record["cpus"] if cpu["cpu"] in fast and (cpu.get("scaling_max_khz") or 0) > 0]
        assert (state.freq_cap is not None) <= bool(limited), record["name"]
        assert not state.cooling, record["name"]
        assert not state.freq_lost, record["name"]
    assert n > 30
