"""Power and batteries: folders of real files, and a Termux command that is a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_files import REFUSED, Refused, command, empty_root, put

from edgespec.device import power
from edgespec.device.power import Power, PowerReader, read_termux
from edgespec.device.sysfs import Sysfs

RAPL = "/sys/class/powercap"
SUPPLY = "/sys/class/power_supply"

Files = dict[str, str | int | Refused | None]


def rapl(zone: str, name: str, energy: str | int | Refused, wrap: int | None = 262143328850) -> Files:
    folder = f"{RAPL}/{zone}"
    return {f"{folder}/name": name, f"{folder}/energy_uj": energy, f"{folder}/max_energy_range_uj": wrap}


def supply(name: str, kind: str, **values: str | int) -> Files:
    return {f"{SUPPLY}/{name}/type": kind, **{f"{SUPPLY}/{name}/{key}": value for key, value in values.items()}}


def test_nothing_there(tmp_path: Path) -> None:
    assert PowerReader(Sysfs(tmp_path)).read(0) == Power()


def test_energy_over_time_is_power(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {**rapl("intel-rapl:0", "package-0", 5_000_000), **rapl("intel-rapl:0:0", "core", 1_000_000)})
    # The same package through another interface, and the platform around it.
    put(tmp_path, {**rapl("intel-rapl-mmio:0", "package-0", 7), **rapl("intel-rapl:1", "psys", 9)})
    reader = PowerReader(sysfs)
    assert reader.read(10).power_w is None
    put(tmp_path, rapl("intel-rapl:0", "package-0", 35_000_000))
    state = reader.read(12)
    assert (state.power_w, state.source) == (15.0, "RAPL")
    assert reader.read(12).power_w is None, "no time has passed"
    assert reader.read(13).power_w is None, "a counter that stands still is no meter"


def test_two_packages_count_together_or_not_at_all(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {**rapl("intel-rapl:0", "package-0", 0), **rapl("intel-rapl:1", "package-1", 0)})
    reader = PowerReader(sysfs)
    reader.read(0)
    put(tmp_path, {**rapl("intel-rapl:0", "package-0", 20_000_000), **rapl("intel-rapl:1", "package-1", 30_000_000)})
    assert reader.read(1).power_w == 50.0
    put(tmp_path, {**rapl("intel-rapl:0", "package-0", 40_000_000), **rapl("intel-rapl:1", "package-1", REFUSED)})
    assert reader.read(2).power_w is None


def test_a_counter_that_wraps(tmp_path: Path) -> None:
    wrap = 65_532_610_987
    sysfs = put(tmp_path, rapl("intel-rapl:0", "package-0", wrap - 4_000_000, wrap))
    reader = PowerReader(sysfs)
    reader.read(0)
    put(tmp_path, rapl("intel-rapl:0", "package-0", 6_000_000, wrap))
    assert reader.read(1).power_w == 10.0
    # After a minute it may have wrapped twice.
    put(tmp_path, rapl("intel-rapl:0", "package-0", 8_000_000, wrap))
    assert reader.read(70).power_w is None
    put(tmp_path, rapl("intel-rapl:0", "package-0", 9_000_000, wrap))
    assert reader.read(71).power_w == 1.0


@pytest.mark.parametrize("wrap", [None, 0, -5])
def test_a_wrap_of_unknown_range_and_a_jump(tmp_path: Path, wrap: int | None) -> None:
    sysfs = put(tmp_path, rapl("intel-rapl:0", "package-0", 10_000_000, wrap))
    reader = PowerReader(sysfs)
    reader.read(0)
    put(tmp_path, rapl("intel-rapl:0", "package-0", 1_000_000, wrap))
    assert reader.read(1).power_w is None
    put(tmp_path, rapl("intel-rapl:0", "package-0", 9_000_000_000, wrap))
    assert reader.read(2).power_w is None, "9 kW"


def test_a_refused_energy_counter_is_said(tmp_path: Path) -> None:
    reader = PowerReader(put(tmp_path, rapl("intel-rapl:0", "package-0", REFUSED)))
    for second in range(3):
        assert reader.read(second) == Power(notes=("the processor's energy counter is refused; root may read it",))


DISCHARGING = {"status": "Discharging", "capacity": 63}


@pytest.mark.parametrize(
    ("values", "watts"),
    [
        ({**DISCHARGING, "power_now": 7_500_000}, 7.5),
        ({**DISCHARGING, "power_now": -7_500_000}, 7.5),
        ({**DISCHARGING, "voltage_now": 4_000_000, "current_now": 500_000}, 2.0),
        ({**DISCHARGING, "voltage_now": 4_000_000, "current_now": -500_000}, 2.0),
        # A unit of mA, a dead gauge, half a pair, an absurd value, text.
        ({**DISCHARGING, "voltage_now": 4_000_000, "current_now": -500}, None),
        ({**DISCHARGING, "power_now": 0}, None),
        ({**DISCHARGING, "current_now": 500_000}, None),
        ({**DISCHARGING, "power_now": 2147483647_000}, None),
        ({**DISCHARGING, "power_now": "N/A"}, None),
        # Charging: what flows in is not what the machine draws.
        ({"status": "Charging", "power_now": 30_000_000}, None),
        ({"status": "Full", "power_now": 30_000_000}, None),
        # Without a status a minus means discharging and a plus means nothing.
        ({"voltage_now": 4_000_000, "current_now": -500_000}, 2.0),
        ({"status": "Unknown", "voltage_now": 4_000_000, "current_now": -500_000}, 2.0),
        ({"voltage_now": 4_000_000, "current_now": 500_000}, None),
    ],
)
def test_a_battery_as_a_meter(tmp_path: Path, values: dict[str, str | int], watts: float | None) -> None:
    state = PowerReader(put(tmp_path, supply("BAT0", "Battery", **values))).read(0)
    assert state.power_w == watts
    assert state.source == (None if watts is None else "battery")


@pytest.mark.parametrize(
    ("values", "charge"),
    [
        ({"capacity": 63}, 0.63),
        ({"capacity": 0}, 0.0),
        ({"capacity": 255, "energy_now": 30, "energy_full": 40}, 0.75),
        ({"capacity": -1, "charge_now": 10, "charge_full": 40}, 0.25),
        ({"energy_now": 41, "energy_full": 40}, 1.0),
        ({"energy_now": 400, "energy_full": 40}, None),
        ({"energy_now": 4, "energy_full": 0}, None),
        ({"capacity": "full"}, None),
        ({"present": 0, "capacity": 50}, None),
        ({"scope": "Device", "capacity": 50}, None),
        ({"scope": "System", "capacity": 50}, 0.5),
    ],
)
def test_charge(tmp_path: Path, values: dict[str, str | int], charge: float | None) -> None:
    assert PowerReader(put(tmp_path, supply("BAT0", "Battery", **values))).read(0).battery == charge


def test_several_batteries(tmp_path: Path) -> None:
    big = supply("BAT0", "Battery", capacity=80, energy_full=60, status="Discharging", power_now=9_000_000)
    small = supply("BAT1", "Battery", capacity=20, energy_full=20, status="Not charging", power_now=0)
    mouse = supply("hid-1", "Battery", capacity=3, status="Discharging", power_now=100_000, scope="Device")
    state = PowerReader(put(tmp_path, {**big, **small, **mouse})).read(0)
    assert state == Power(power_w=9.0, source="battery", battery=0.65, on_mains=False)
    put(tmp_path, {f"{SUPPLY}/BAT1/energy_full": None})
    assert PowerReader(Sysfs(tmp_path)).read(0).battery == 0.5
    put(tmp_path, {f"{SUPPLY}/BAT1/status": "Discharging"})
    assert PowerReader(Sysfs(tmp_path)).read(0).power_w is None, "a part is not the whole"


@pytest.mark.parametrize(
    ("adapter", "status", "on_mains"),
    [
        (("Mains", 1), "Charging", True),
        (("Mains", 0), "Discharging", False),
        (("USB", 1), "Full", True),
        (("USB_PD", 2), "Charging", True),
        (("Wireless", 1), "Charging", True),
        (("Mains", 7), "Discharging", False),
        (("Mains", "x"), None, None),
        (("UPS", 1), None, None),
        # An adapter that says it is off, and a battery that charges from it.
        (("Mains", 0), "Charging", True),
        (None, "Charging", True),
        (None, "Not charging", True),
        (None, "Discharging", False),
        (None, "Unknown", None),
        (("Mains", 1), None, True),
        (("Mains", 0), None, False),
    ],
)
def test_mains(tmp_path: Path, adapter: tuple[str, str | int] | None, status: str | None, on_mains: object) -> None:
    files: Files = supply("AC", adapter[0], online=adapter[1]) if adapter else {}
    files |= supply("BAT0", "Battery", status=status) if status else {}
    state = PowerReader(put(tmp_path, files)).read(0)
    assert state.on_mains is on_mains
    assert state.notes == ()


def test_a_weak_charger_is_said(tmp_path: Path) -> None:
    files = {**supply("AC", "Mains", online=1), **supply("BAT0", "Battery", status="Discharging", power_now=3_000_000)}
    state = PowerReader(put(tmp_path, files)).read(0)
    assert (state.on_mains, state.power_w) == (True, 3.0)
    assert state.notes == ("the battery discharges although the machine is plugged in",)


def test_batteries_are_asked_rarely(tmp_path: Path) -> None:
    reader = PowerReader(put(tmp_path, supply("BAT0", "Battery", capacity=50)))
    assert reader.read(0).battery == 0.5
    put(tmp_path, supply("BAT0", "Battery", capacity=49))
    assert reader.read(5).battery == 0.5
    assert reader.read(10).battery == 0.49


PRINTED = """cat <<'X'
{ "health": "GOOD", "percentage": 59, "plugged": "UNPLUGGED", "status": "DISCHARGING",
  "temperature": 27.200000762939453, "current": -693 }
X"""


def test_termux(tmp_path: Path) -> None:
    path = command(tmp_path, "termux-battery-status", PRINTED)
    assert read_termux(path) == Power(battery=0.59, on_mains=False, battery_c=27.200000762939453)
    command(tmp_path, "termux-battery-status", PRINTED.replace("UNPLUGGED", "PLUGGED_USB"))
    assert read_termux(path).on_mains is True


@pytest.mark.parametrize(
    "text",
    [
        '{"percentage": 255, "plugged": "?", "temperature": 2147483647}',
        '{"percentage": null, "plugged": null, "temperature": null}',
        '{"percentage": true, "plugged": 1, "temperature": "27"}',
        '{"percentage": NaN, "temperature": 0.0}',
        "{}",
    ],
)
def test_termux_says_nonsense(tmp_path: Path, text: str) -> None:
    assert read_termux(command(tmp_path, "termux-battery-status", f"echo '{text}'")) == Power()


@pytest.mark.parametrize("text", ["", "[1]", "rubbish", '{"percentage": 5'])
def test_termux_prints_no_json(tmp_path: Path, text: str) -> None:
    state = read_termux(command(tmp_path, "termux-battery-status", f"echo '{text}'"))
    assert state == Power(notes=("termux-battery-status printed no JSON object",))


def test_termux_without_its_app_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_termux(str(tmp_path)) == Power()
    monkeypatch.setattr(power, "_TERMUX_TIMEOUT_S", 0.1)
    state = read_termux(command(tmp_path, "termux-battery-status", "sleep 30"))
    assert state.notes == ("termux-battery-status does not answer: is the Termux:API app installed?",)
    assert state.battery is None


NAMES = [
    *(f"{RAPL}/intel-rapl:0/{file}" for file in ("name", "energy_uj", "max_energy_range_uj")),
    *(f"{SUPPLY}/AC/{file}" for file in ("type", "online")),
    *(
        f"{SUPPLY}/BAT0/{file}"
        for file in (
            "type",
            "scope",
            "present",
            "status",
            "capacity",
            "energy_full",
            "power_now",
            "voltage_now",
            "current_now",
        )
    ),
]
CONTENTS = [
    "Battery",
    "Mains",
    "package-0",
    "Discharging",
    "Charging",
    "0",
    "1",
    "50",
    "-5000000",
    "7500000",
    "",
    "x\0",
    "9" * 30,
]


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CONTENTS)), min_size=1, max_size=3))
def test_nothing_raises_and_all_is_in_range(trees: list[dict[str, str]]) -> None:
    with empty_root() as root:
        reader = PowerReader(Sysfs(root))
        for second, files in enumerate(trees):
            put(root, files)
            state = reader.read(20.0 * second)
            assert state.battery is None or 0 <= state.battery <= 1
            assert state.power_w is None or 0 < state.power_w <= 1000
            assert (state.power_w is None) == (state.source is None)
