"""A Raspberry Pi's firmware through its file and through a command that is a real script; commands in general."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_files import HWMON, REFUSED, Refused, command, put

from edgespec.device import raspberry
from edgespec.device.command import run_command
from edgespec.device.raspberry import Firmware, Raspberry, is_raspberry, pmic_power_w, throttle_word
from edgespec.device.sysfs import Sysfs

WORD = "/sys/devices/platform/soc/soc:firmware/get_throttled"
NOW_UNDERVOLTAGE = "undervoltage now: use a better power supply or cable"
NOW_THROTTLED = "the firmware throttles the processor now"
NOW_SOFT = "the soft temperature limit is reached now: better cooling helps"
EARLIER_UNDERVOLTAGE = "undervoltage occurred earlier since boot: use a better power supply or cable"
EARLIER_CAPPED = "the firmware capped the clock earlier since boot"
EARLIER_THROTTLED = "the firmware throttled the processor earlier since boot"
EARLIER_SOFT = "the soft temperature limit was reached earlier since boot"


def firmware(tmp_path: Path, word: str | Refused) -> Firmware:
    return Raspberry(put(tmp_path, {WORD: word}), path="").read(0)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("0", Firmware(throttled=False, hot=False)),
        ("50005", Firmware(throttled=True, hot=False, notes=(NOW_UNDERVOLTAGE, NOW_THROTTLED))),
        ("50000", Firmware(throttled=False, hot=False, notes=(EARLIER_UNDERVOLTAGE, EARLIER_THROTTLED))),
        ("80008", Firmware(throttled=True, hot=True, notes=(NOW_SOFT,))),
        ("E0008", Firmware(throttled=True, hot=True, notes=(NOW_SOFT, EARLIER_CAPPED, EARLIER_THROTTLED))),
        ("80000", Firmware(throttled=False, hot=False, notes=(EARLIER_SOFT,))),
        ("4", Firmware(throttled=True, hot=True, notes=(NOW_THROTTLED,))),
        ("1", Firmware(throttled=False, hot=False, notes=(NOW_UNDERVOLTAGE,))),
        ("0x80008", Firmware(throttled=True, hot=True, notes=(NOW_SOFT,))),
    ],
)
def test_now_is_apart_from_since_boot(tmp_path: Path, word: str, expected: Firmware) -> None:
    assert firmware(tmp_path, word) == expected


@pytest.mark.parametrize("word", ["", "-1", "xyz", "FFFFFFFF", "100000", "5.0", "throttled=", REFUSED])
def test_a_word_that_is_none(tmp_path: Path, word: str | Refused) -> None:
    assert firmware(tmp_path, word) == Firmware()


def test_what_happened_is_not_forgotten(tmp_path: Path) -> None:
    # Some kernels clear the upper half when it is read.
    reader = Raspberry(put(tmp_path, {WORD: "50005"}), path="")
    reader.read(0)
    put(tmp_path, {WORD: "0"})
    assert reader.read(1) == Firmware(throttled=False, hot=False, notes=(EARLIER_UNDERVOLTAGE, EARLIER_THROTTLED))


def test_the_file_below_a_bus_named_by_its_address(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {"/sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled": "80008"})
    assert Raspberry(sysfs, path="").read(0).hot is True


def test_mainline_kernels_flag_undervoltage_only(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {f"{HWMON}/hwmon2/name": "rpi_volt", f"{HWMON}/hwmon2/in0_lcrit_alarm": 1})
    assert is_raspberry(sysfs)
    assert Raspberry(sysfs, path="").read(0) == Firmware(notes=(NOW_UNDERVOLTAGE,))
    put(tmp_path, {f"{HWMON}/hwmon2/in0_lcrit_alarm": 0})
    assert Raspberry(sysfs, path="").read(0) == Firmware()


def test_what_is_a_raspberry(tmp_path: Path) -> None:
    model = "/proc/device-tree/model"
    assert not is_raspberry(Sysfs(tmp_path))
    assert is_raspberry(put(tmp_path / "a", {model: b"Raspberry Pi 5 Model B Rev 1.0\0"}))
    assert is_raspberry(put(tmp_path / "b", {WORD: "0"}))
    assert not is_raspberry(put(tmp_path / "c", {model: b"Radxa ROCK 5B\0", f"{HWMON}/hwmon0/name": "cpu_thermal"}))


PI = "/proc/device-tree/model"
ADC = """     3V7_WL_SW_A current(0)=0.00390372A
       3V3_SYS_A current(1)=0.50000000A
      VDD_CORE_A current(7)=2.00000000A
       3V3_SYS_V volt(9)=3.30000000V
      VDD_CORE_V volt(15)=0.90000000V
         EXT5V_V volt(24)=5.14898500V
          BATT_V volt(25)=0.00000000V"""


def test_power_of_a_pi_5_is_the_sum_over_its_rails() -> None:
    assert pmic_power_w(ADC) == pytest.approx(0.5 * 3.3 + 2.0 * 0.9)
    assert pmic_power_w("") is None
    assert pmic_power_w('error=1 error_msg="Command not registered"') is None
    assert pmic_power_w("A_A current(0)=0.0A\nA_V volt(1)=5.0V") is None
    assert pmic_power_w("A_A current(0)=900.0A\nA_V volt(1)=5.0V") is None


def vcgencmd(folder: Path, throttled: str, adc: str = "echo 'error=1 error_msg=\"Command not registered\"'") -> str:
    return command(folder, "vcgencmd", f'case "$1" in\nget_throttled) {throttled};;\npmic_read_adc) {adc};;\nesac')


def test_the_command_where_there_is_no_file(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {PI: b"Raspberry Pi 5 Model B Rev 1.0\0"})
    path = vcgencmd(tmp_path / "bin", "echo throttled=0x50005", f"cat <<'X'\n{ADC}\nX\n")
    state = Raspberry(sysfs, path).read(0)
    assert state.notes == (NOW_UNDERVOLTAGE, NOW_THROTTLED)
    assert state.power_w == pytest.approx(3.45)
    # A Pi 4 has no such chip.
    state = Raspberry(sysfs, vcgencmd(tmp_path / "bin", "echo throttled=0x0")).read(0)
    assert state == Firmware(throttled=False, hot=False)


def test_the_file_goes_before_the_command(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {WORD: "0"})
    assert Raspberry(sysfs, vcgencmd(tmp_path / "bin", "echo throttled=0x80008")).read(0).hot is False


def test_the_command_is_run_every_few_seconds_and_rarely_where_it_fails(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {PI: b"Raspberry Pi 4 Model B\0"})
    log = tmp_path / "log"
    path = command(tmp_path / "bin", "vcgencmd", f'echo "$1" >> {log}\n[ "$1" = get_throttled ] && echo throttled=0x0')
    reader = Raspberry(sysfs, path)
    for second in range(62):
        assert reader.read(second).throttled is False
    asked = log.read_text().split()
    assert asked.count("get_throttled") == 13
    assert asked.count("pmic_read_adc") == 2


def test_a_command_that_is_missing_or_fails(tmp_path: Path) -> None:
    sysfs = put(tmp_path, {PI: b"Raspberry Pi 3 Model B\0"})
    assert Raspberry(sysfs, path=str(tmp_path)).read(0) == Firmware()
    path = command(tmp_path / "bin", "vcgencmd", "echo VCHI initialization failed; exit 255")
    state = Raspberry(sysfs, path).read(0)
    assert (state.throttled, state.power_w) == (None, None)
    assert state.notes == ("vcgencmd failed with 255: VCHI initialization failed",)


def test_a_command_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raspberry, "_TIMEOUT_S", 0.1)
    sysfs = put(tmp_path, {PI: b"Raspberry Pi 3 Model B\0"})
    path = command(tmp_path / "bin", "vcgencmd", "sleep 987")
    assert Raspberry(sysfs, path).read(0) == Firmware(notes=("vcgencmd does not answer",))


def test_the_children_of_a_command_are_ended_too(tmp_path: Path) -> None:
    # They hold its output open.
    pids = tmp_path / "pids"
    path = command(tmp_path / "bin", "script", f"sleep 987 &\necho $! > {pids}\nwait")
    timeout_s = 0.1
    while not pids.is_file() or not pids.read_text().endswith("\n"):
        assert run_command("script", timeout_s=timeout_s, path=path).problem == "script does not answer"
        timeout_s *= 2  # a busy machine had not come that far
    assert ended(int(pids.read_text()))


def ended(pid: int) -> bool:
    """Whether the process is gone, or dead and not yet buried by whoever inherits it; waits for it a while."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_commands(tmp_path: Path) -> None:
    path = command(tmp_path, "good", 'echo "$1 $2"; echo noise >&2; cat')
    assert run_command("good", "a", "b c", timeout_s=20, path=path).text == "a b c"
    command(tmp_path, "bytes", "printf '\\377x'")
    assert run_command("bytes", timeout_s=20, path=path).text == "\ufffdx"
    assert run_command("none", timeout_s=20, path=path).problem == "missing"
    assert run_command("good", timeout_s=20, path="").problem == "missing"
    (tmp_path / "bad").write_bytes(b"\x7fELF rubbish")
    (tmp_path / "bad").chmod(0o755)
    assert (run_command("bad", timeout_s=20, path=path).problem or "").startswith("bad cannot be run: ")
    command(tmp_path, "endless", "yes")
    assert run_command("endless", timeout_s=20, path=path).problem == "endless does not answer"
    command(tmp_path, "closes", "exec >&-; sleep 987")
    assert run_command("closes", timeout_s=0.1, path=path).problem == "closes does not answer"


@given(st.text(max_size=40) | st.integers(0, 1 << 40).map(hex))
def test_no_text_raises(text: str) -> None:
    word = throttle_word(text)
    assert word is None or not word & ~0xF000F
    watts = pmic_power_w(text)
    assert watts is None or 0 < watts < 100
