"""macOS and Windows: answers of such systems, and answers that no system should give."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology_checks import check_form

from edgespec.device import other_systems
from edgespec.device.other_systems import from_macos, from_windows
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology

# MacBook Pro, M1 Pro. Source: the keys are those of Apple's documentation, the counts those of the chip.
M1_PRO = """hw.ncpu: 10
hw.logicalcpu: 10
hw.physicalcpu: 10
hw.nperflevels: 2
hw.perflevel0.physicalcpu: 8
hw.perflevel0.logicalcpu: 8
hw.perflevel0.logicalcpu_max: 8
hw.perflevel0.name: Performance
hw.perflevel1.physicalcpu: 2
hw.perflevel1.logicalcpu: 2
hw.perflevel1.name: Efficiency
hw.memsize: 17179869184
"""


def mac(text: str) -> Topology:
    found = from_macos(text)
    assert found is not None
    check_form(found)
    return found


def test_mac_counts_its_levels() -> None:
    found = mac(M1_PRO)
    assert (len(found.performance), len(found.efficiency), found.homogeneous) == (8, 2, False)
    assert found.usable == tuple(range(10))
    assert found.source == "hw.perflevel"
    assert found.notes == ("the system does not number its cores; the ids are made up",)


def test_mac_without_levels() -> None:
    found = mac("hw.ncpu: 8\nhw.logicalcpu: 8\nhw.physicalcpu: 4\n")
    assert (found.performance, found.homogeneous, found.source) == (tuple(range(8)), True, "hw.logicalcpu")


def test_mac_whose_second_level_is_not_for_efficiency() -> None:
    found = mac(M1_PRO.replace("Performance", "Super").replace("Efficiency", "Performance"))
    assert not found.efficiency
    assert (len(found.prime), len(found.middle)) == (8, 2)
    assert len(mac(M1_PRO.replace("hw.perflevel1.name: Efficiency\n", "")).efficiency) == 2


@pytest.mark.parametrize("text", ["", "hw.logicalcpu: many", "hw.nperflevels: 2\n", "hw.logicalcpu: 0", "sysctl: no"])
def test_mac_that_does_not_say(text: str) -> None:
    assert from_macos(text) is None


def cpu_set(number: int, core: int, efficiency_class: int, group: int = 0, flags: int = 0, kind: int = 0) -> bytes:
    """One SYSTEM_CPU_SET_INFORMATION, as 64-bit Windows lays it out."""
    return struct.pack(
        "<IIIHBBBBBBIQ", 32, kind, 256 + number, group, number, core, 0, 0, efficiency_class, flags, 0, 0
    )


def windows(data: bytes, arm: bool = False, affinity: set[int] | None = None) -> Topology:
    found = from_windows(data, arm, affinity)
    assert found is not None
    check_form(found)
    return found


def test_windows_hybrid() -> None:
    # Two performance cores with two threads each, four efficiency cores.
    data = b"".join(cpu_set(n, n - n % 2, 1) for n in range(4)) + b"".join(cpu_set(n, n, 0) for n in range(4, 8))
    found = windows(data)
    assert (found.performance, found.efficiency) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.cores[1].siblings == (0, 1)
    assert found.source == "efficiency class"
    assert windows(data, affinity={1, 6, 99}).usable == (1, 6)
    assert windows(data, affinity={99}).usable == tuple(range(8))


def test_windows_three_classes() -> None:
    data = b"".join(cpu_set(n, n, (0, 0, 1, 1, 2)[n]) for n in range(5))
    assert (windows(data).performance, windows(data).efficiency) == ((4,), (0, 1, 2, 3))
    arm = windows(data, arm=True)
    assert (arm.efficiency, arm.middle, arm.prime) == ((0, 1), (2, 3), (4,))


def test_windows_equal_cores_in_two_groups() -> None:
    found = windows(cpu_set(0, 0, 0) + cpu_set(0, 0, 0, group=1) + cpu_set(5, 5, 7, kind=9))
    assert (found.performance, found.homogeneous) == ((0, 64), True)
    assert found.cores[0].siblings == (0,)


def test_windows_cores_given_to_another_process() -> None:
    data = cpu_set(0, 0, 0) + cpu_set(1, 1, 0, flags=2) + cpu_set(2, 2, 0, flags=6)
    assert windows(data).usable == (0, 2)


@given(st.binary(max_size=100), st.booleans())
def test_windows_never_raises(data: bytes, arm: bool) -> None:
    found = from_windows(cpu_set(0, 0, 0) + data, arm)
    assert found is not None
    check_form(found)


@given(st.lists(st.sampled_from([*M1_PRO.splitlines(), "hw.nperflevels: 9999", "hw.perflevel1.logicalcpu: -1", "x"])))
def test_mac_never_raises(lines: list[str]) -> None:
    found = from_macos("\n".join(lines))
    if found is not None:
        check_form(found)


def test_the_systems_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command == ["/usr/sbin/sysctl", "hw"]
        return subprocess.CompletedProcess(command, 0, M1_PRO, "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert len(read_topology(Sysfs()).efficiency) == 2

    def hangs(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 2)

    monkeypatch.setattr(subprocess, "run", hangs)
    found = read_topology(Sysfs())
    check_form(found)
    assert found.source == "nothing"
    assert found.notes == ("the system does not describe its cores",)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(other_systems, "_cpu_sets", lambda: cpu_set(0, 0, 0) + cpu_set(1, 1, 1))
    monkeypatch.setattr(other_systems, "_own_mask", lambda: {1})
    assert read_topology(Sysfs()).usable == (1,)
    assert read_topology(Sysfs(), {0}).usable == (0,)
