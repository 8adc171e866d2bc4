"""Which cores there are, which of them are fast, and which this process may use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from edgespec.device import host, parts
from edgespec.device.core_classes import Classes, Evidence, classify
from edgespec.device.sysfs import Sysfs, parse_cpulist, within

T = TypeVar("T")

_CPU = "/sys/devices/system/cpu"
_PATIENCE_S = 0.5
"""For each kind of file; a file that hangs longer costs its kind, and a note says so."""
_KHZ = range(500_000, 8_000_000)
"""Highest clocks that a core which runs a model can have; what lies outside is a broken table."""

CoreClass = Literal["performance", "efficiency", "unknown"]


@dataclass(frozen=True, slots=True)
class Core:
    """One logical CPU. None means unknown."""

    id: int
    online: bool
    kind: CoreClass
    capacity: int | None = None
    """Of 1024, as the kernel estimates it."""
    max_khz: int | None = None
    part: str | None = None
    """Implementer and part number on Arm, as "0x41:0xd05"."""
    siblings: tuple[int, ...] = ()
    """Hardware threads of the same physical core, itself included; empty: unknown."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The cores of a machine. All lists are in ascending order of id."""

    cores: tuple[Core, ...]
    """All present ones, offline ones too."""
    performance: tuple[int, ...]
    """Present cores of this class, offline ones too; on a homogeneous machine all of them."""
    efficiency: tuple[int, ...]
    homogeneous: bool
    usable: tuple[int, ...]
    """Cores that this process may run on now: online, within its affinity mask, cpuset and quota; never empty."""
    cpu_limit: float | None
    """Cores' worth of time that control groups grant; None: no limit."""
    source: str
    """What the classes rest on: "cpu_capacity", "cpuinfo_max_freq", "part numbers", ... or "nothing"."""
    middle: tuple[int, ...] = ()
    """The slower part of `performance`, where it has tiers."""
    prime: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def read_topology(sysfs: Sysfs, affinity: Iterable[int] | None = None) -> Topology:
    """Read it. Never raises; what cannot be read is unknown, and what hangs is given up after half a second.

    `affinity` replaces the mask of the calling thread. Without it that mask counts only where the root is "/": below
    another root another machine is replayed, and all its cores count.
    """
    here = sysfs.root == Path("/")
    if here and sys.platform in ("darwin", "win32"):
        from edgespec.device import other_systems  # imports this module's types

        return other_systems.read_topology(affinity)
    own = host.own_affinity() if here and affinity is None else None
    return _Reader(sysfs, own).topology(frozenset(affinity) if affinity is not None else own)


def most_capable(cores: Iterable[Core], n: int, prime: Iterable[int] = ()) -> tuple[int, ...]:
    """Ids of the `n` cores to use when there may be no more, in order: fast ones first, whole cores before threads."""
    tiers = {"performance": 1, "unknown": 2, "efficiency": 3}
    best = frozenset(prime)

    def order(core: Core) -> tuple[int, bool, int, int, int]:
        tier = 0 if core.id in best else tiers[core.kind]
        second = core.id != min(core.siblings, default=core.id)
        return tier, second, -(core.capacity or 0), -(core.max_khz or 0), core.id

    return tuple(sorted(core.id for core in sorted(cores, key=order)[:n]))


@dataclass(slots=True)
class _Reader:
    sysfs: Sysfs
    own: frozenset[int] | None
    """The mask of this thread, where this is its machine: the kernel names online cores only."""
    notes: list[str] = field(default_factory=list)

    def topology(self, affinity: frozenset[int] | None) -> Topology:
        found = self._ask("lists of cores", self._present_and_online)
        if found is None:
            found = (self.own or frozenset({0}),) * 2
        present, online = found
        cores = tuple(sorted(present))
        evidence, threads = self._evidence(cores)
        classes = classify(evidence)
        kinds = _kinds(classes)
        all_cores = tuple(
            Core(
                id=cpu,
                online=cpu in online,
                kind=kinds.get(cpu, "unknown"),
                capacity=evidence.capacity.get(cpu),
                max_khz=evidence.max_khz.get(cpu),
                part=evidence.part.get(cpu),
                siblings=tuple(sorted(threads.get(cpu, ()))),
            )
            for cpu in cores
        )
        limit = self._ask("control groups", lambda: host.cpu_limit(self.sysfs))
        allowed = self._allowed(online, affinity)
        # The floor: a team larger than its quota is stopped in the middle of a pass, all of it.
        n_usable = len(allowed) if limit is None else max(1, int(min(limit, len(allowed))))
        return Topology(
            cores=all_cores,
            performance=tuple(sorted(classes.performance)),
            efficiency=tuple(sorted(classes.efficiency)),
            homogeneous=not classes.efficiency and not classes.prime and classes.performance == present,
            usable=most_capable([core for core in all_cores if core.id in allowed], n_usable, classes.prime),
            cpu_limit=limit,
            source=classes.source,
            middle=tuple(sorted(classes.middle)),
            prime=tuple(sorted(classes.prime)),
            notes=(*self.notes, *classes.notes),
        )

    def _ask(self, what: str, read: Callable[[], T]) -> T | None:
        """What `read` returns; None and a note where that takes too long."""
        nothing: tuple[T, ...] = ()
        answer = within(_PATIENCE_S, lambda: (read(),), nothing)
        if answer:
            return answer[0]
        self.notes.append(f"reading the {what} took too long")
        return None

    def _mask(self, name: str) -> frozenset[int]:
        """Empty where it is missing or garbled: no such list is empty on a machine that runs, but `offline`."""
        return parse_cpulist(self.sysfs.read_text(f"{_CPU}/{name}")) or frozenset()

    def _present_and_online(self) -> tuple[frozenset[int], frozenset[int]]:
        """Never empty, the second within the first. A core whose own file `online` is missing is online."""
        folders = frozenset(int(name[3:]) for name in self.sysfs.listdir(_CPU) if re.fullmatch(r"cpu[0-9]{1,4}", name))
        mask = self._mask("online")
        # `possible` goes far beyond the cores there are on some servers: it is asked last.
        present = self._mask("present") or folders or self._mask("possible")
        if folders and len(present) > 4 * len(folders):
            present = folders
        present |= (mask & folders if folders else mask) | (self.own or frozenset())
        if not present:
            self.notes.append("the system does not list its cores")
            present = frozenset({0})
        off = {cpu for cpu in folders if self.sysfs.read_int(f"{_CPU}/cpu{cpu}/online") == 0}
        online = mask & present or present - self._mask("offline") - off or present
        return present, online | (self.own or frozenset())

    def _evidence(self, cores: tuple[int, ...]) -> tuple[Evidence, Mapping[int, frozenset[int]]]:
        clocks = self._ask("related_cpus files", lambda: self._groups(cores, "cpufreq/related_cpus")) or {}
        khz = self._ask("cpufreq files", lambda: self._ints(cores, "cpufreq/cpuinfo_max_freq", _KHZ)) or {}
        capacity = self._ask("cpu_capacity files", lambda: self._ints(cores, "cpu_capacity", range(1, 1025))) or {}
        cppc = self._ask("CPPC files", lambda: self._ints(cores, "acpi_cppc/highest_perf", range(1, 1024))) or {}
        threads = (
            self._ask("lists of threads", lambda: self._first(cores, "core_cpus_list", "thread_siblings_list")) or {}
        )
        caches = self._ask("cache files", lambda: self._groups(cores, "cache/index2/shared_cpu_list")) or {}
        clusters = self._ask("lists of clusters", lambda: self._groups(cores, "topology/cluster_cpus_list")) or {}
        packages = (
            self._ask("lists of packages", lambda: self._first(cores, "package_cpus_list", "core_siblings_list")) or {}
        )
        cpuinfo = self._ask("file /proc/cpuinfo", lambda: self.sysfs.read_text("/proc/cpuinfo"))
        midr = self._ask("midr_el1 files", lambda: self._midr(cores)) or {}
        hybrid = self._ask("hybrid masks", self._hybrid) or (frozenset(), frozenset())
        part = {cpu: name for cpu, name in {**parts.from_cpuinfo(cpuinfo), **midr}.items() if cpu in cores}
        same = _sets(clocks)
        if not clocks:  # next best: cores of one design
            same = tuple(frozenset(cpu for cpu in part if part[cpu] == name) for name in sorted(set(part.values())))
        pc = bool(re.search(r"^vendor_id\s*:", cpuinfo or "", re.M)) or any(hybrid)
        evidence = Evidence(
            cores=cores,
            capacity=capacity,
            # A list of others is that of a folder caught between two states.
            max_khz={cpu: value for cpu, value in khz.items() if cpu in clocks.get(cpu, {cpu})},
            part=part,
            highest_perf=cppc,
            alike=(*same, *_sets(threads)),
            akin=(*_sets(caches), *_sets(clusters), *_sets(packages)),
            pc_performance=hybrid[0],
            pc_efficiency=hybrid[1],
            pc=pc or any(len(group) > 1 for group in threads.values()),
        )
        return evidence, threads

    def _ints(self, cores: Iterable[int], name: str, valid: range) -> dict[int, int]:
        values = {cpu: self.sysfs.read_int(f"{_CPU}/cpu{cpu}/{name}") for cpu in cores}
        return {cpu: value for cpu, value in values.items() if value is not None and value in valid}

    def _groups(self, cores: Iterable[int], name: str) -> dict[int, frozenset[int]]:
        groups = {cpu: parse_cpulist(self.sysfs.read_text(f"{_CPU}/cpu{cpu}/{name}")) for cpu in cores}
        return {cpu: group for cpu, group in groups.items() if group}

    def _first(self, cores: Iterable[int], *names: str) -> dict[int, frozenset[int]]:
        """Groups by the first name under which a core has one that holds it; the later names are those before 5.3."""
        found: dict[int, frozenset[int]] = {}
        for name in names:
            groups = self._groups([cpu for cpu in cores if cpu not in found], f"topology/{name}")
            found.update({cpu: group for cpu, group in groups.items() if cpu in group})
        return found

    def _midr(self, cores: Iterable[int]) -> dict[int, str]:
        texts = {cpu: self.sysfs.read_text(f"{_CPU}/cpu{cpu}/regs/identification/midr_el1", 64) for cpu in cores}
        return {cpu: part for cpu, text in texts.items() if (part := parts.from_midr(text)) is not None}

    def _hybrid(self) -> tuple[frozenset[int], frozenset[int]]:
        """Intel's performance cores and the others.

        Source: Linux Documentation/ABI/testing/sysfs-bus-event_source-devices and arch/x86/events/intel/core.c (a PMU
        for each kind of core: `cpu_core`, `cpu_atom`, `cpu_lowpower`).
        """
        kinds = [
            parse_cpulist(self.sysfs.read_text(f"/sys/devices/{name}/cpus")) or frozenset()
            for name in ("cpu_core", "cpu_atom", "cpu_lowpower")
        ]
        return kinds[0], kinds[1] | kinds[2]

    def _allowed(self, online: frozenset[int], affinity: frozenset[int] | None) -> frozenset[int]:
        allowed = online
        for bound, what in (
            (affinity, "affinity mask"),
            (self._ask("control groups", lambda: host.cpuset(self.sysfs)), "cpuset"),
        ):
            if bound is None:
                continue
            if allowed & bound:
                allowed &= bound
            else:
                self.notes.append(f"the {what} leaves no core that is online; it is not followed")
        return allowed


def _sets(groups: Mapping[int, frozenset[int]]) -> tuple[frozenset[int], ...]:
    """The distinct groups that hold the core they were read from, larger than one."""
    return tuple(dict.fromkeys(group for cpu, group in groups.items() if cpu in group and len(group) > 1))


def _kinds(classes: Classes) -> dict[int, CoreClass]:
    fast: dict[int, CoreClass] = dict.fromkeys(classes.performance, "performance")
    slow: dict[int, CoreClass] = dict.fromkeys(classes.efficiency, "efficiency")
    return fast | slow
