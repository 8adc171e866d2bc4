"""Cores on macOS and Windows, as the same Topology. Run on neither so far: tested with answers of such systems."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterable

from edgespec.device.topology import Core, CoreClass, Topology, most_capable

_CPU_SET = struct.Struct("<IIIHBBBBBBIQ")
"""Size, type, id, group, processor in its group, core, cache, NUMA node, efficiency class, flags, reserved, tag.

Source: winnt.h, SYSTEM_CPU_SET_INFORMATION.
"""
_ALLOCATED, _TO_THIS_PROCESS = 2, 4


def read_topology(affinity: Iterable[int] | None = None) -> Topology:
    """The cores of this Mac or PC. Never raises; what the system does not say is unknown."""
    if sys.platform == "darwin":
        found = from_macos(_sysctl())
    else:
        mask = _own_mask() if affinity is None else affinity
        found = from_windows(_cpu_sets(), platform.machine().upper().startswith("ARM"), mask)
    if found is None:
        kinds: dict[int, CoreClass] = dict.fromkeys(range(os.cpu_count() or 1), "performance")
        notes = ("the system does not describe its cores",)
        found = _topology(kinds, {}, "nothing", affinity=affinity, notes=notes)
    return found


def from_macos(text: str) -> Topology | None:
    """Cores by the output of `sysctl hw`; None where it does not count them.

    Level 0 is the fastest. A further level is an efficiency one unless its name says otherwise. The system counts the
    cores of a level without numbering them, and has no affinity masks: the ids are made up, fastest first.
    Source: Apple, "Determining system capabilities" (`hw.nperflevels`, `hw.perflevelN.logicalcpu`, `.name`).
    """
    values = dict(re.findall(r"^hw\.([\w.]+): *(.*?) *$", text, re.M))

    def count(key: str) -> int:
        value = values.get(key, "")
        return int(value) if re.fullmatch("[0-9]{1,4}", value) else 0

    kinds: dict[int, CoreClass] = {}
    tiers: dict[int, int] = {}
    for level in range(min(count("nperflevels"), 8)):
        name = values.get(f"perflevel{level}.name", "Efficiency")
        kind: CoreClass = "efficiency" if level > 0 and name.startswith("Eff") else "performance"
        for _ in range(count(f"perflevel{level}.logicalcpu")):
            tiers[len(kinds)] = -level
            kinds[len(kinds)] = kind
    n_cpus = count("logicalcpu")
    if not kinds and n_cpus:
        return _topology(dict.fromkeys(range(n_cpus), "performance"), {}, "hw.logicalcpu")
    if not kinds:
        return None
    return _topology(kinds, tiers, "hw.perflevel", notes=("the system does not number its cores; the ids are made up",))


def from_windows(data: bytes, arm: bool, affinity: Iterable[int] | None = None) -> Topology | None:
    """Cores by the answer of GetSystemCpuSetInformation; None where it holds none.

    A higher efficiency class is a faster core. Of three classes a PC has one fast kind and two slow ones; an Arm chip
    the other way round. Ids are 64 for each processor group, plus the number in it.
    """
    classes: dict[int, int] = {}
    physical: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    offset = 0
    while offset + _CPU_SET.size <= len(data):
        size, kind, _, group, number, core, _, _, efficiency_class, flags, _, _ = _CPU_SET.unpack_from(data, offset)
        if size < _CPU_SET.size:
            break
        offset += size
        if kind == 0:
            cpu = 64 * group + number
            classes[cpu], physical[cpu] = efficiency_class, (group, core)
            if flags & _ALLOCATED and not flags & _TO_THIS_PROCESS:
                taken.add(cpu)
    if not classes:
        return None
    lowest, highest = min(classes.values()), max(classes.values())

    def kind_of(level: int) -> CoreClass:
        slow = lowest < highest and (level == lowest if arm else level < highest)
        return "efficiency" if slow else "performance"

    kinds = {cpu: kind_of(level) for cpu, level in classes.items()}
    siblings = {cpu: tuple(sorted(c for c in physical if physical[c] == physical[cpu])) for cpu in physical}
    allowed = set(classes if affinity is None else affinity) - taken
    return _topology(kinds, classes, "efficiency class", siblings, allowed)


def _topology(
    kinds: dict[int, CoreClass],
    tiers: dict[int, int],
    source: str,
    siblings: dict[int, tuple[int, ...]] | None = None,
    affinity: Iterable[int] | None = None,
    notes: tuple[str, ...] = (),
) -> Topology:
    """All these systems have in common; `tiers` are higher where faster."""
    cores = tuple(
        Core(id=cpu, online=True, kind=kinds[cpu], siblings=(siblings or {}).get(cpu, ())) for cpu in sorted(kinds)
    )
    fast = tuple(core.id for core in cores if core.kind == "performance")
    slow = tuple(core.id for core in cores if core.kind == "efficiency")
    best = max((tiers.get(cpu, 0) for cpu in fast), default=0)
    prime = tuple(cpu for cpu in fast if tiers.get(cpu, 0) == best)
    if prime == fast:
        prime = ()
    allowed = set(kinds if affinity is None else affinity) & set(kinds) or set(kinds)
    return Topology(
        cores=cores,
        performance=fast,
        efficiency=slow,
        homogeneous=not slow and not prime,
        usable=most_capable([core for core in cores if core.id in allowed], len(allowed), prime),
        cpu_limit=None,
        source=source,
        middle=tuple(cpu for cpu in fast if cpu not in prime) if prime else (),
        prime=prime,
        notes=notes,
    )


def _sysctl() -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "hw"], capture_output=True, text=True, errors="replace", timeout=2, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""  # the caller then counts cores and says that nothing tells them apart
    return done.stdout


def _kernel32() -> ctypes.CDLL:
    # 64-bit Windows has one calling convention, so the portable class serves.
    return ctypes.CDLL("kernel32")


def _cpu_sets() -> bytes:
    n_bytes = ctypes.c_ulong(0)
    try:
        ask = _kernel32().GetSystemCpuSetInformation
    except (OSError, AttributeError):  # before Windows 10
        return b""
    ask.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong]
    ask(None, 0, ctypes.byref(n_bytes), None, 0)
    buffer = ctypes.create_string_buffer(max(1, n_bytes.value))
    return buffer.raw[: n_bytes.value] if ask(buffer, len(buffer), ctypes.byref(n_bytes), None, 0) else b""


def _own_mask() -> set[int] | None:
    """Cores of the process's mask; None where it spans several processor groups or is refused."""
    process, system = ctypes.c_size_t(0), ctypes.c_size_t(0)
    try:
        kernel = _kernel32()
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.GetProcessAffinityMask.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        done = kernel.GetProcessAffinityMask(kernel.GetCurrentProcess(), ctypes.byref(process), ctypes.byref(system))
    except (OSError, AttributeError):
        return None
    return {cpu for cpu in range(64) if process.value >> cpu & 1} or None if done else None
