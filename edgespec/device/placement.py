"""Who runs where: the cores of the model's passes and those of the drafter. Pure: a topology in, a decision out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgespec.device.topology import Topology


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores by task, in ascending order and disjoint; each with its reason for a person to read."""

    target: tuple[int, ...]
    """Cores of the model's passes; as few as one, never none."""
    drafter: tuple[int, ...]
    """Cores of the drafter; none: it runs inline, on the target's thread, between two passes."""
    why_target: str
    why_drafter: str


def placement(topology: Topology) -> Placement:
    """Give the target the usable performance cores and the drafter the usable efficiency cores.

    Every node of a pass ends in a barrier, so the slowest core of the team sets the pace (llama.cpp says the same of
    its own choice of threads): cores of another class are left out even where they would stay idle. A drafter on a
    core of the team would hold all of it up; where no other core is known to be free, it runs inline.

    Source: llama.cpp common/common.cpp, above `common_cpu_get_num_math`.
    """
    usable = tuple(sorted(topology.usable))
    if topology.homogeneous:
        # A spare core for the drafter, taken from four or more, has to be shown to pay before it is taken.
        why = "all cores are of one kind" if topology.source != "nothing" else "nothing tells the cores apart"
        spare = " (no core is set aside for it yet)" if len(usable) >= 4 else ""
        return Placement(usable, (), f"every usable core: {why}", f"inline: {why}{spare}")
    fast = tuple(cpu for cpu in usable if cpu in topology.performance)
    slow = tuple(cpu for cpu in usable if cpu in topology.efficiency)
    rest = tuple(cpu for cpu in usable if cpu not in fast and cpu not in slow)
    if fast:
        left = f"; {_named(rest)} left out: of unknown kind" if rest else ""
        why_target = f"the usable performance cores{left}"
        if slow:
            return Placement(fast, slow, why_target, "the usable efficiency cores, none of them the target's")
        return Placement(fast, (), why_target, "inline: no efficiency core is usable")
    if rest:
        why_target = "every usable core: none of them is known to be a performance core"
        return Placement(usable, (), why_target, "inline: the target needs every usable core")
    why_target = "only efficiency cores are usable, as for a program in the background"
    return Placement(usable, (), why_target, "inline: the target needs every usable core")


def _named(cpus: Iterable[int]) -> str:
    """Cores for a sentence: "core 3", "cores 3 and 4"."""
    names = [str(cpu) for cpu in cpus]
    return f"core {names[0]} is" if len(names) == 1 else f"cores {', '.join(names[:-1])} and {names[-1]} are"
