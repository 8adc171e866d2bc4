"""What this process may use of the machine: memory, cores, time. Unknown is None.

Reads through Sysfs, or by psutil where there is no /proc; never raises, and changes nothing.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

from edgespec.device import by_psutil
from edgespec.device.sysfs import Sysfs, parse_cpulist

_V2 = "/sys/fs/cgroup"
_V1_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size."""


def free_memory(sysfs: Sysfs) -> int | None:
    """Bytes this process can still take without swapping, within its control groups' limits."""
    bounds = [bound for bound in (_available(sysfs), *_cgroup_free(sysfs)) if bound is not None]
    return max(0, min(bounds)) if bounds else by_psutil.free_memory(sysfs)


def own_affinity() -> frozenset[int] | None:
    """Cores that the kernel lets the calling thread run on, all of them online; None where it does not say."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux, or refused
        return None


def cpu_limit(sysfs: Sysfs) -> float | None:
    """Cores' worth of time that the control groups grant, above 0; None: no limit.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst (`cpu.max`) and scheduler/sched-bwc.rst (version 1).
    """
    limits = []
    for folder in _folders(sysfs, "cpu"):
        quota, period = _quota(sysfs, folder)
        if quota is not None and period is not None and quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def cpuset(sysfs: Sysfs) -> frozenset[int] | None:
    """Cores that the control groups leave to this process; None where they do not say, or say none.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst (`cpuset.cpus.effective`) and cgroup-v1/cpusets.rst. Android
    mounts version 1 at /dev/cpuset, its files without the prefix (AOSP system/core, libprocessgroup).
    """
    for folder in _folders(sysfs, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "effective_cpus", "cpus"):
            cpus = parse_cpulist(sysfs.read_text(f"{folder}/{name}"))
            if cpus:  # of the nearest group that says: it lies within those of its parents
                return cpus
    return None


def rss_bytes(sysfs: Sysfs) -> int | None:
    """Resident memory of this process."""
    resident = _kib(sysfs.read_text("/proc/self/status"), "VmRSS")
    return by_psutil.rss_bytes(sysfs) if resident is None else resident


def cpu_name(sysfs: Sysfs) -> str:
    """What the processor calls itself, as a key for what was measured on it; never empty."""
    text = sysfs.read_text("/proc/cpuinfo") or ""
    for key in ("model name", "Hardware", "Model", "cpu model", "uarch"):
        found = re.search(rf"^{key}\s*: *(\S.*)$", text, re.M)
        if found:
            return found[1].strip()
    # Arm says part numbers only, one a core: 0xd05 and 0xd0b are two kinds.
    kinds = sorted(set(re.findall(r"^CPU part\s*: *(\S+)$", text, re.M)))
    return " ".join([platform.machine() or "unknown", *kinds])


def _kib(text: str | None, key: str) -> int | None:
    """Bytes of the line "key:  123 kB"."""
    found = re.search(rf"^{key}:\s*([0-9]+) kB$", text or "", re.M)
    return int(found[1]) * 1024 if found else None


def _available(sysfs: Sysfs) -> int | None:
    text = sysfs.read_text("/proc/meminfo")
    available = _kib(text, "MemAvailable")
    if available is not None:
        return available
    # Kernels before 3.14 do not say.
    parts = [_kib(text, key) for key in ("MemFree", "Buffers", "Cached")]
    return sum(part or 0 for part in parts) if parts[0] is not None else None


def _folders(sysfs: Sysfs, controller: str) -> list[str]:
    """Folders of this process's control groups, from its own up to the root, version 2 and version 1.

    Inside a container the path may be the host's and not exist here; its parents up to the mount do.
    """
    folders: list[str] = []
    for line in (sysfs.read_text("/proc/self/cgroup") or "0::/").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mounts = [_V2, f"{_V2}/unified"]
        elif controller in controllers.split(","):
            mounts = [
                f"{_V2}/{controller}",
                f"{_V2}/{controllers}",
                *(["/dev/cpuset"] if controller == "cpuset" else []),
            ]
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for mount in dict.fromkeys(mounts):
            folders += ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return folders


def _cgroup_free(sysfs: Sysfs) -> Iterator[int]:
    for folder in _folders(sysfs, "memory"):
        for limit_file, used_file, key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.high", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = sysfs.read_int(f"{folder}/{limit_file}")  # "max" is not a number: no limit
            used = sysfs.read_int(f"{folder}/{used_file}")
            if limit is None or used is None or not 0 < limit < _V1_UNLIMITED:
                continue
            # Cached files count as used until someone needs the memory.
            found = re.search(rf"^{key} ([0-9]+)$", sysfs.read_text(f"{folder}/memory.stat") or "", re.M)
            yield limit - max(0, used - (int(found[1]) if found else 0))


def _quota(sysfs: Sysfs, folder: str) -> tuple[int | None, int | None]:
    fields = (sysfs.read_text(f"{folder}/cpu.max", limit=64) or "").split()
    if len(fields) == 2 and all(re.fullmatch("[0-9]{1,18}", field) for field in fields):
        return int(fields[0]), int(fields[1])
    return sysfs.read_int(f"{folder}/cpu.cfs_quota_us"), sysfs.read_int(f"{folder}/cpu.cfs_period_us")
