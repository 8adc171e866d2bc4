"""What a Raspberry Pi's firmware says of supply, heat and power. Unknown is None.

Through sysfs where the kernel offers it, else through `vcgencmd`. Never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.device.command import run_command
from edgespec.device.sysfs import Sysfs, within

PI_SEVERE_C = 80.0
"""From here on the firmware slows the Arm cores step by step; from 85 °C on it slows all.

Source: Raspberry Pi documentation, "Frequency management and thermal control".
"""
_COMMAND_EVERY_S = 5.0
_COMMAND_RETRY_S = 60.0
_TIMEOUT_S = 2.0
_PATIENCE_S = 0.5
"""For finding a file: a folder of hardware that hangs may hang too."""
_PLATFORM = "/sys/devices/platform"
_HWMON = "/sys/class/hwmon"

UNDERVOLTAGE, CAPPED, THROTTLED, SOFT_LIMIT = 1, 2, 4, 8
_NOW = {
    UNDERVOLTAGE: "undervoltage now: use a better power supply or cable",
    CAPPED: "the firmware caps the clock now",
    THROTTLED: "the firmware throttles the processor now",
    SOFT_LIMIT: "the soft temperature limit is reached now: better cooling helps",
}
_EARLIER = {
    UNDERVOLTAGE: "undervoltage occurred earlier since boot: use a better power supply or cable",
    CAPPED: "the firmware capped the clock earlier since boot",
    THROTTLED: "the firmware throttled the processor earlier since boot",
    SOFT_LIMIT: "the soft temperature limit was reached earlier since boot",
}


@dataclass(frozen=True, slots=True)
class Firmware:
    """What the firmware said."""

    throttled: bool | None = None
    """Whether it holds the processor back now, for whatever reason."""
    hot: bool | None = None
    """Whether it does so because of heat."""
    power_w: float | None = None
    """Sum over the rails of a Pi 5's power chip; what hangs on USB is not in it."""
    notes: tuple[str, ...] = ()


def throttle_word(text: str | None) -> int | None:
    """The word behind `get_throttled`: hexadecimal, with or without `0x`, or as `throttled=0x50005`.

    Bits 0-3 are now, 16-19 since boot: undervoltage, clock capped, throttled, soft temperature limit. A word with
    other bits is none. Source: raspberrypi/linux issue 2367 and PR 2397.
    """
    found = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]{1,8})", text or "")
    word = int(found[1], 16) if found else None
    return word if word is not None and not word & ~0xF000F else None


def pmic_power_w(text: str) -> float | None:
    """Watts of `vcgencmd pmic_read_adc`: volts times amperes, summed over the rails that have both.

    A line reads `VDD_CORE_A current(7)=0.71430000A` or `VDD_CORE_V volt(15)=0.72046910V`. None where no rail has both.
    """
    values = {
        (name, unit): float(value)
        for name, unit, value in re.findall(r"(\w+)_([AV]) \w+\(\d+\)=([0-9]{1,6}(?:\.[0-9]{1,12})?)[AV]", text)
    }
    rails = [
        amperes * values[name, "V"] for (name, unit), amperes in values.items() if unit == "A" and (name, "V") in values
    ]
    watts = sum(rails)
    return watts if rails and 0 < watts < 100 else None


def is_raspberry(sysfs: Sysfs) -> bool:
    """Whether the device tree, or a firmware's file, says so."""
    # The name in the device tree ends with a NUL byte: only its beginning is text.
    return (
        sysfs.read_text("/proc/device-tree/model", limit=12) == "Raspberry Pi"
        or throttled_file(sysfs) is not None
        or _volt_alarm(sysfs) is not None
    )


def throttled_file(sysfs: Sysfs) -> str | None:
    """Path of the firmware's `get_throttled`; the bus above it is named after its address on newer boards."""
    for bus in sysfs.listdir(_PLATFORM):
        for node in sysfs.listdir(f"{_PLATFORM}/{bus}") if bus.startswith("soc") else ():
            # Only looked for here: reading it asks the firmware, which may take its time.
            if node.endswith("firmware") and "get_throttled" in sysfs.listdir(f"{_PLATFORM}/{bus}/{node}"):
                return f"{_PLATFORM}/{bus}/{node}/get_throttled"
    return None


def _volt_alarm(sysfs: Sysfs) -> str | None:
    """Undervoltage flag of mainline kernels (drivers/hwmon/raspberrypi-hwmon.c)."""
    for chip in sysfs.listdir(_HWMON):
        if sysfs.read_text(f"{_HWMON}/{chip}/name", limit=64) == "rpi_volt":
            return f"{_HWMON}/{chip}/in0_lcrit_alarm"
    return None


class Raspberry:
    """Reads the firmware's state at every call, and its commands less often."""

    def __init__(self, sysfs: Sysfs, path: str | None = None) -> None:
        """`path` replaces the environment's PATH in the search for `vcgencmd`."""
        self._sysfs = sysfs
        self._path = path
        self._earlier = 0
        self._answers: dict[str, str | None] = {}
        self._next_s: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._file = self._find(throttled_file, _PLATFORM)
        self._alarm = self._find(_volt_alarm, _HWMON)

    def read(self, now_s: float) -> Firmware:
        """Read once; `now_s` on any clock that does not go back."""
        word = throttle_word(self._sysfs.read_text(self._file, limit=64)) if self._file else None
        if word is None:
            word = throttle_word(self._ask("get_throttled", now_s))
        power_w = pmic_power_w(self._ask("pmic_read_adc", now_s) or "")
        notes = list(dict.fromkeys(self._problems.values()))
        if word is None:
            if self._alarm is not None and self._sysfs.read_int(self._alarm) == 1:
                notes.append(_NOW[UNDERVOLTAGE])
            return Firmware(power_w=power_w, notes=tuple(notes))
        # Some kernels forget the upper half once it has been read (raspberrypi/linux PR 2397): it is kept here.
        self._earlier |= word >> 16 | word & 15
        notes += [text for bit, text in _NOW.items() if word & bit]
        notes += [text for bit, text in _EARLIER.items() if self._earlier & bit and not word & bit]
        slowed = bool(word & (CAPPED | THROTTLED | SOFT_LIMIT))
        hot = bool(word & SOFT_LIMIT) or (slowed and not word & UNDERVOLTAGE)
        return Firmware(slowed, hot, power_w, tuple(notes))

    def _find(self, find: Callable[[Sysfs], str | None], folder: str) -> str | None:
        """The path it finds; None and a note where the folder takes too long."""
        late: tuple[str | None, ...] = ()
        answer = within(_PATIENCE_S, lambda: (find(self._sysfs),), late)
        if answer:
            return answer[0]
        self._problems[folder] = f"no answer from {folder}"
        return None

    def _ask(self, question: str, now_s: float) -> str | None:
        """The last answer to it, asked anew every few seconds; rarely where it was refused."""
        if now_s >= self._next_s.get(question, now_s):
            answer = run_command("vcgencmd", question, timeout_s=_TIMEOUT_S, path=self._path)
            # A command that this firmware does not know is answered by an error message and status 0.
            text = None if answer.text is None or answer.text.startswith("error") else answer.text
            self._answers[question] = text
            self._next_s[question] = now_s + (_COMMAND_RETRY_S if text is None else _COMMAND_EVERY_S)
            self._problems.pop(question, None)
            if answer.problem is not None and answer.problem != "missing":
                self._problems[question] = answer.problem
        return self._answers[question]
