"""Records what the readers of this package see of a machine in one file, without anything about its owner.

The file is a tar.gz of plain files below sys/ and proc/: unpacked anywhere, `Sysfs` reads it as it read the machine.
What is recorded is listed here by name, and of files with free text only the fields listed here: serial numbers,
network addresses, names of hosts, users and control groups are not among them.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from edgespec.device.command import run_command
from edgespec.device.host import cpuset, free_memory, own_affinity
from edgespec.device.raspberry import is_raspberry, throttle_word, throttled_file
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology

_CPU = "/sys/devices/system/cpu"
_FREQUENCIES = "(cpuinfo|scaling)_(max|min)_freq|base_frequency|(related|affected)_cpus"
_SIBLINGS = "(thread|core)_siblings|(core|cluster|die|package)_cpus"
_FILES = (
    f"{_CPU}/(possible|present|online|offline|isolated|kernel_max)",
    f"{_CPU}/cpu[0-9]+/(online|cpu_capacity)",
    f"{_CPU}/cpu[0-9]+/topology/((physical_package|die|cluster|core)_id|({_SIBLINGS})(_list)?)",
    f"{_CPU}/cpu[0-9]+/cpufreq/({_FREQUENCIES})",
    f"{_CPU}/cpu[0-9]+/acpi_cppc/(highest|nominal|lowest|lowest_nonlinear)_perf",
    f"{_CPU}/cpu[0-9]+/regs/identification/midr_el1",
    f"{_CPU}/cpu[0-9]+/cache/index[0-9]+/(level|type|size|shared_cpu_list)",
    f"{_CPU}/cpufreq/policy[0-9]+/({_FREQUENCIES})",
    "/sys/devices/cpu_(core|atom|lowpower)/cpus",
    "/sys/class/thermal/thermal_zone[0-9]+/(type|temp|mode|trip_point_[0-9]+_(type|temp|hyst))",
    "/sys/class/thermal/cooling_device[0-9]+/(type|cur_state|max_state)",
    "/sys/class/hwmon/hwmon[0-9]+/(name|temp[0-9]+_(input|label|max|crit)|in0_lcrit_alarm)",
    "/sys/class/powercap/intel-rapl:[0-9:]+/(name|energy_uj|max_energy_range_uj)",
    "/sys/devices/platform/soc.*/.*firmware/get_throttled",
    "/sys/class/power_supply/.+/(type|scope|status|present|online|capacity"
    "|(voltage|current|power|energy|charge)_now|(energy|charge)_full)",
)
"""Paths as regular expressions, one for each part between two slashes."""
_CPUINFO = re.compile(
    r"processor|vendor_id|cpu family|model|model name|stepping|physical id|core id|cpu cores|siblings|flags|Features"
    r"|CPU (implementer|architecture|variant|part|revision)|Hardware|Model|cpu model|uarch|isa"
)
"""Fields of /proc/cpuinfo that say what the processor is. "Serial", and "Revision" of a board, do not."""
_PLAIN_SUPPLY = re.compile(
    r"(bat|ac|acad|adp|battery|usb|mains|main|dc|bms|charger|wireless|ucsi)[-_]?[a-z]?[0-9]{0,2}", re.I
)
_ADDRESS = re.compile(r"(?<![0-9a-f])[0-9a-f]{2}([:_-][0-9a-f]{2}){5}(?![0-9a-f])", re.I)
"""A network address, as drivers of Bluetooth keyboards put it into their battery's name."""
_PERIPHERAL = re.compile(r".*(hid|controller|wiimote|wacom|keyboard|mouse|headset).*", re.I | re.S)
"""Sensors named after the battery of a device that is plugged in or paired; the rest of such a name is a serial number.

Source: Linux drivers/hid/hid-input.c (`hid-<uniq>-battery`), hid-sony.c, hid-nintendo.c, hid-steam.c.
"""
_VENDOR_S = 2.0
_PI = "Raspberry Pi"


def record(sysfs: Sysfs, topology: Topology, path: str | None = None) -> dict[str, str]:
    """The files to keep by path below the root, folders ending in a slash; `topology` is what was read of `sysfs`.

    `path` replaces the environment's PATH in the search for a Pi's `vcgencmd`, whose word on throttling is recorded as
    the file that other kernels have for it. What Termux says of a phone's battery is not recorded. Control groups, CPU
    sets and the affinity mask become the limits they add up to, in a group without a name.
    """
    files: dict[str, str] = {}
    for pattern in _FILES:
        files.update(_matching(sysfs, "", pattern.lstrip("/").split("/")))
    cpuinfo = sysfs.read_text("/proc/cpuinfo")
    if cpuinfo is not None:
        files["proc/cpuinfo"] = _processor(cpuinfo)
    if sysfs.read_text("/proc/device-tree/model", limit=len(_PI)) == _PI:
        files["proc/device-tree/model"] = f"{_PI}\n"
    if is_raspberry(sysfs) and throttled_file(sysfs) is None:
        word = throttle_word(run_command("vcgencmd", "get_throttled", timeout_s=_VENDOR_S, path=path).text)
        if word is not None:
            files["sys/devices/platform/soc/soc:firmware/get_throttled"] = f"{word:x}\n"
    files.update(_limits(sysfs, topology))
    return {_ADDRESS.sub("removed", path): _ADDRESS.sub("removed", text) for path, text in sorted(files.items())}


def write_capture(file: Path, files: dict[str, str]) -> None:
    """Write `record`'s files into a new tar.gz: the same files give the same bytes.

    Raises:
        FileExistsError: there is such a file already.
        OSError: it cannot be written.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path, text in sorted(files.items()):
            data = text.encode()
            # A new TarInfo has no owner, no time, and mode 0644.
            entry = tarfile.TarInfo(path.rstrip("/"))
            if path.endswith("/"):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    with file.open("xb") as out:
        try:
            out.write(packed.getvalue())
            out.flush()
        except OSError:
            file.unlink(missing_ok=True)  # half a capture is none
            raise


def _matching(sysfs: Sysfs, folder: str, parts: list[str], shown: str = "") -> Iterator[tuple[str, str]]:
    """Files below `folder` whose path the expressions in `parts` match, with the text they hold.

    Folders found by listing are given too: that a core or a zone is there counts even if nothing of it can be read.
    """
    pattern, rest = re.compile(parts[0]), parts[1:]
    number = 0
    for name in sysfs.listdir(folder or "/"):
        if not pattern.fullmatch(name):
            continue
        path, kept = f"{folder}/{name}", name
        if folder == "/sys/class/power_supply" and not _PLAIN_SUPPLY.fullmatch(name):
            kept, number = f"supply{number}", number + 1  # other names come from the device: models, addresses
        kept = f"{shown}{kept}"
        if rest:
            if parts[0] != name:
                yield f"{kept}/", ""
            yield from _matching(sysfs, path, rest, f"{kept}/")
        elif (text := sysfs.read_text(path)) is not None:
            text = "battery" if name in {"type", "name"} and _PERIPHERAL.fullmatch(text) else text
            yield kept, f"{text}\n" if text else ""


def _processor(cpuinfo: str) -> str:
    """The lines of /proc/cpuinfo that describe the processor; an empty line ends a core."""
    lines = cpuinfo.splitlines()
    kept = [line for line in lines if not line.strip() or _CPUINFO.fullmatch(line.partition(":")[0].strip())]
    return "\n".join(kept).strip("\n") + "\n"


def _limits(sysfs: Sysfs, topology: Topology) -> Iterator[tuple[str, str]]:
    group = "sys/fs/cgroup"
    yield "proc/self/cgroup", "0::/\n"
    here = sysfs.root == Path("/")
    bounds = [bound for bound in (cpuset(sysfs), own_affinity() if here else None) if bound]
    allowed = frozenset(core.id for core in topology.cores if core.online)
    for bound in bounds:
        allowed = allowed & bound or allowed  # as the topology takes one that leaves nothing
    if bounds:
        yield f"{group}/cpuset.cpus.effective", ",".join(map(str, sorted(allowed))) + "\n"
    if topology.cpu_limit is not None:
        yield f"{group}/cpu.max", f"{round(topology.cpu_limit * 100_000)} 100000\n"
    free = free_memory(sysfs)
    if free is not None:
        yield "proc/meminfo", f"MemAvailable: {free // 1024} kB\n"
