"""What holds for every topology, and what is false about one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology


def sets(found: Topology) -> dict[str, frozenset[int]]:
    return {kind: frozenset(getattr(found, kind)) for kind in ("performance", "efficiency", "middle", "prime")}


def check_form(found: Topology) -> None:
    """What holds for every machine."""
    ids = [core.id for core in found.cores]
    online = {core.id for core in found.cores if core.online}
    assert ids == sorted(set(ids))
    assert found.usable
    assert set(found.usable) <= online
    for kind, cpus in [*sets(found).items(), ("usable", found.usable)]:
        assert list(getattr(found, kind)) == sorted(cpus)
        assert set(cpus) <= set(ids)
    assert not set(found.performance) & set(found.efficiency)
    assert [core.id for core in found.cores if core.kind == "performance"] == list(found.performance)
    assert [core.id for core in found.cores if core.kind == "efficiency"] == list(found.efficiency)
    assert bool(found.middle) == bool(found.prime)
    assert not found.prime or set(found.middle) | set(found.prime) == set(found.performance)
    assert found.homogeneous == (set(found.performance) == set(ids) and not found.prime)
    assert found.cpu_limit is None or found.cpu_limit > 0


def wrong(found: Topology, right: Mapping[str, frozenset[int]]) -> list[str]:
    """Statements that are false. One class for all is a statement about nothing."""
    if found.homogeneous:
        return []
    said = sets(found)
    return [kind for kind, cpus in said.items() if not cpus <= right[kind]]


def read(root: Path) -> Topology:
    found = read_topology(Sysfs(root))
    check_form(found)
    return found
