"""Which cores there are, which of them are fast, and which this process may use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from edgespec.device.sysfs import Sysfs

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
    """Read it. Never raises; what cannot be read is unknown. `affinity` replaces the process's own mask."""
    raise NotImplementedError
