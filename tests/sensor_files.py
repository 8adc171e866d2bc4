"""Folders of real files that look like a machine's sensors, and commands that are real scripts."""

from __future__ import annotations

import json
import runpy
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.device.sysfs import Sysfs

ZONES = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"
CPU = "/sys/devices/system/cpu"
DEVICES = Path(__file__).parents[2] / "shared" / "devices"
"""Records of real devices, where they lie beside the project."""


class Refused:
    """A file that exists and cannot be read: a folder in its place answers every open or read with an error."""


REFUSED = Refused()


def put(root: Path, files: Mapping[str, str | int | bytes | Refused | None]) -> Sysfs:
    """Write the files below `root`; None removes one."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.unlink()
        if isinstance(content, Refused):
            path.mkdir()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            path.write_text(f"{content}\n")
    return Sysfs(root)


@contextmanager
def empty_root() -> Iterator[Path]:
    """A folder for one example of a generated test, gone right after it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def zone(number: int, kind: str, temp: str | int | Refused, *trips: tuple[str, int]) -> dict[str, str | int | Refused]:
    """One thermal zone with its trip points."""
    folder = f"{ZONES}/thermal_zone{number}"
    files: dict[str, str | int | Refused] = {f"{folder}/type": kind, f"{folder}/temp": temp}
    for place, (trip, degrees) in enumerate(trips):
        files[f"{folder}/trip_point_{place}_type"] = trip
        files[f"{folder}/trip_point_{place}_temp"] = degrees
    return files


def cooling(number: int, kind: str, step: int | str, n_steps: int) -> dict[str, str | int]:
    """One cooling device."""
    folder = f"{ZONES}/cooling_device{number}"
    return {f"{folder}/type": kind, f"{folder}/cur_state": step, f"{folder}/max_state": n_steps}


def clock(
    cpu: int, limit_khz: int | str | Refused | None, possible_khz: int | str
) -> dict[str, str | int | Refused | None]:
    """The clock limits of one core."""
    folder = f"{CPU}/cpu{cpu}/cpufreq"
    return {f"{folder}/scaling_max_freq": limit_khz, f"{folder}/cpuinfo_max_freq": possible_khz}


LAPTOP: dict[str, str | int | Refused | None] = {
    **zone(0, "x86_pkg_temp", 60000),
    f"{HWMON}/hwmon0/name": "coretemp",
    f"{HWMON}/hwmon0/temp1_input": 70000,
    f"{HWMON}/hwmon0/temp1_label": "Package id 0",
    f"{HWMON}/hwmon0/temp1_crit": 100000,
    **cooling(0, "Processor", 0, 10),
    **clock(0, 4000000, 4000000),
    "/sys/class/power_supply/BAT0/type": "Battery",
    "/sys/class/power_supply/BAT0/status": "Discharging",
    "/sys/class/power_supply/BAT0/capacity": 80,
    "/sys/class/power_supply/BAT0/power_now": 9000000,
    "/proc/pressure/cpu": "some avg10=5.00 avg60=0.00 avg300=0.00 total=1",
    "/proc/stat": "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0",
    "/proc/self/stat": "1 (x) R 1 2 3 4 5 6 7 8 9 10 0 0 0 0 20",
}
"""All files of a small laptop at rest, on battery."""


def command(folder: Path, name: str, script: str) -> str:
    """A command as a shell script in `folder`, which is returned as the PATH to find it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(folder)


def recorded_devices(folder: Path) -> Iterator[tuple[dict[str, Any], Sysfs]]:
    """Every recorded device and its files, below `folder`."""
    materialise = runpy.run_path(str(DEVICES / "materialise.py"))["materialise"]
    for path in sorted(DEVICES.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        materialise(record, folder / path.stem)
        yield record, Sysfs(folder / path.stem)
        shutil.rmtree(folder / path.stem)  # thousands of files, which pytest would keep for three runs
