"""Real machines, whole, unplugged and damaged: which cores are fast. A wrong split is worse than none."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import device_tree as tree
import pytest
from device_tree import CPU, GARBAGE, Damage
from hypothesis import given
from hypothesis import strategies as st
from topology_checks import read, sets, wrong

from edgespec.device import topology as topology_module

SHARED = Path(__file__).parents[2] / "shared" / "devices"
"""Records of more devices, where they lie beside the project."""

BAD: tuple[bytes | str | None, ...] = (GARBAGE, b"", None, "folder")

# What is lost with these is found elsewhere, on every machine.
HARMLESS: list[Damage] = [
    *[
        ((f"{CPU}/cpu0/{name}", bad),)
        for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq", "cpufreq/related_cpus", "topology/*")
        for bad in BAD
    ],
    *[((f"{CPU}/{name}", bad),) for name in ("online", "possible", "present", "offline") for bad in BAD],
    *[
        ((f"{CPU}/{mask}", text.encode()),)
        for mask in ("possible", "present")
        for text in ("0-99999", "7-3", "a", "0-")
    ],
    *[((f"{CPU}/cpu0/cpu_capacity", value),) for value in (b"0", b"-5", b"99999999", b"0x400", b"abc")],
    *[((f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq", value),) for value in (b"0", b"1", b"-5", b"99999999999", b"abc")],
    ((f"{CPU}/cpu*/cpufreq/scaling_max_freq", b"300000"),),
    ((f"{CPU}/cpu*/cpufreq/scaling_max_freq", GARBAGE),),
    ((f"{CPU}/cpu0/cpufreq/*", None),),
    ((f"{CPU}/cpu*/topology/*", None),),
]

# These take evidence away or tell lies: less may be known, nothing wrong may be said.
LOSSY: list[Damage] = [
    *[((f"{CPU}/cpu*/{name}", bad),) for name in ("cpu_capacity", "cpufreq/*") for bad in (GARBAGE, None)],
    *[(("proc/cpuinfo", bad),) for bad in BAD],
    ((f"{CPU}/cpu*/cpufreq/*", None), ("proc/cpuinfo", None)),
    ((f"{CPU}/cpu*/cpu_capacity", None), ("proc/cpuinfo", None)),
    ((f"{CPU}/cpu*/cpufreq/*", None), (f"{CPU}/cpu*/cpu_capacity", None)),
    ((f"{CPU}/cpu*/cpufreq/*", None), (f"{CPU}/cpu*/cpu_capacity", None), ("proc/cpuinfo", None)),
    ((f"{CPU}/cpu[0-3]/cpu_capacity", b"1024"),),
    ((f"{CPU}/cpu[0-3]/cpu_capacity", b"512"),),
    ((f"{CPU}/cpu[4-7]/cpu_capacity", b"100"),),
    ((f"{CPU}/cpu0/cpu_capacity", b"1024"), (f"{CPU}/cpu*/cpufreq/*", None)),
    ((f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq", b"700000"),),
    ((f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq", b"4000000"),),
    ((f"{CPU}/cpu[0-3]/cpufreq/cpuinfo_max_freq", None),),
    ((f"{CPU}/cpu[4-7]/cpufreq/*", None), (f"{CPU}/cpu[4-7]/cpu_capacity", None)),
    ((f"{CPU}/cpu*/*", None), (f"{CPU}/cpu*/*/*", None)),
]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in this thread, without a deadline: starting threads would take most of the time of a test."""

    def now(_seconds: float, read: Callable[[], object], _otherwise: object) -> object:
        return read()

    monkeypatch.setattr(topology_module, "within", now)


@pytest.mark.parametrize("name", tree.names())
def test_recorded_machines(tmp_path: Path, name: str) -> None:
    record = tree.load(name)
    found = read(tree.write(tree.files(record), tmp_path))
    assert sets(found) == record.right
    assert {core.id for core in found.cores} == record.present
    assert {core.id for core in found.cores if core.online} == record.online == set(found.usable)
    assert found.homogeneous == (not record.right["efficiency"] and not record.right["prime"])
    for core in found.cores:
        facts = record.cores[core.id]
        assert (core.capacity, core.max_khz) == (facts.get("capacity"), facts.get("max_khz"))
        if "shared" not in record.cpuinfo:
            assert core.part == facts.get("part")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", tree.names())
def test_damage_that_changes_nothing(tmp_path: Path, name: str) -> None:
    record = tree.load(name)
    root = tree.write(tree.files(record), tmp_path)
    for damage in HARMLESS:
        with tree.damaged(root, damage) as n_files:
            if not n_files:
                continue
            found = read(root)
        assert sets(found) == record.right, (damage, found.notes)
        assert {core.id for core in found.cores} == record.present, damage
        assert {core.id for core in found.cores if core.online} == record.online, damage


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", tree.names())
def test_damage_that_takes_evidence_away(tmp_path: Path, name: str) -> None:
    record = tree.load(name)
    root = tree.write(tree.files(record), tmp_path)
    for damage in LOSSY:
        with tree.damaged(root, damage):
            found = read(root)
        assert not wrong(found, record.right), (damage, found)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", tree.names())
def test_unplugged_cores(tmp_path: Path, name: str) -> None:
    record = tree.load(name)
    clusters = record.clusters()
    cases = {frozenset({0}), frozenset({max(record.cores)}), *clusters}
    cases |= {cluster - {min(cluster)} for cluster in clusters}
    for number, off in enumerate(sorted(cases, key=sorted)):
        online = record.online - off
        if not off or not online:
            continue
        found = read(tree.write(tree.files(tree.unplugged(record, off)), tmp_path / str(number)))
        assert {core.id for core in found.cores if core.online} == online == set(found.usable)
        assert not wrong(found, record.right), (off, found)
        fast, slow = record.right["performance"] & online, record.right["efficiency"] & online
        if min(len(fast), len(slow)) > 1:  # one core alone may be a bad reading
            assert (online.intersection(found.performance), online.intersection(found.efficiency)) == (fast, slow), off


SOME_FILES = [
    f"{CPU}/present",
    f"{CPU}/online",
    f"{CPU}/offline",
    *[
        f"{CPU}/cpu{cpu}/{name}"
        for cpu in range(3)
        for name in (
            "online",
            "cpu_capacity",
            "cpufreq/cpuinfo_max_freq",
            "cpufreq/related_cpus",
            "topology/thread_siblings_list",
            "topology/core_siblings_list",
            "acpi_cppc/highest_perf",
            "regs/identification/midr_el1",
        )
    ],
    "proc/cpuinfo",
    "proc/self/cgroup",
    "sys/devices/cpu_core/cpus",
    "sys/devices/cpu_atom/cpus",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
]
CONTENTS = [
    b"0",
    b"1",
    b"0-1",
    b"0-2",
    b"2",
    b"-1",
    b"512",
    b"1024",
    b"900000",
    b"2400000",
    b"0x410fd050",
    b"max 100000",
]
CONTENTS += [
    b"150000 100000",
    b"0::/a",
    b"processor : 1\nCPU implementer : 0x41\nCPU part : 0xd03\n",
    b"vendor_id : X\n",
]


@given(st.dictionaries(st.sampled_from(SOME_FILES), st.one_of(st.sampled_from(CONTENTS), st.binary(max_size=12))))
def test_no_tree_is_too_odd(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    read(root)


WHOLE = {
    **tree.files(tree.load("snapdragon-888")),
    "sys/class/thermal/thermal_zone0/type": "cpu",
    "sys/class/thermal/thermal_zone0/temp": "40000",
    "sys/class/power_supply/battery/capacity": "80",
}


@pytest.mark.usefixtures("patient")
def test_a_file_that_goes_changes_nothing_else(tmp_path: Path) -> None:
    root = tree.write(WHOLE, tmp_path)
    whole = read(root)
    for gone in sorted(WHOLE):
        with tree.damaged(root, ((gone, None),)):
            less = read(root)
        if not gone.startswith((CPU, "proc")):
            assert less == whole, gone
        owner = gone.removeprefix(f"{CPU}/cpu").split("/")[0]
        for before, after in zip(whole.cores, less.cores, strict=True):
            if gone != "proc/cpuinfo" and str(before.id) != owner:
                assert before == after, gone
        assert less.usable == whole.usable, gone


@pytest.mark.skipif(not SHARED.is_dir(), reason="no further records beside the project")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_further_records(tmp_path: Path, path: Path) -> None:
    materialise = runpy.run_path(str(SHARED / "materialise.py"))["materialise"]
    device = json.loads(path.read_text(encoding="utf-8"))
    expected, online = device["expected"], device["expected_online"]
    kinds = ("performance", "efficiency", "middle", "prime")
    right = {kind: frozenset(expected.get(kind, ())) for kind in kinds}
    present = frozenset(expected["performance"] + expected["efficiency"])
    last, plugged, n_checked = len(device["cpus"]) - 1, max(online["performance"] + online["efficiency"]), 0
    clusters = [",".join(map(str, sorted(right[kind]))) for kind in kinds if right[kind]]
    faults = [[], [f"cpuset={plugged}", "cpu-max=50000", "trailing-nul"]]
    faults += [[f"cpu-offline={cpus}"] for cpus in dict.fromkeys(("0", str(last), *clusters))]
    for number, fault in enumerate(faults if last < 64 else faults[:1]):
        root = tmp_path / str(number)
        materialise(device, root, fault)
        found = read(root)
        assert {core.id for core in found.cores} == present, fault
        assert not wrong(found, right), (fault, found)
        if number == 0 and online["distinguishable"]:
            assert sets(found) == right
        if number == 1:
            assert (found.usable, found.cpu_limit) == ((plugged,), 0.5)
    whole = read(tmp_path / "0")
    if last > 64:
        return
    for damage, harmless in [*[(damage, True) for damage in HARMLESS], *[(damage, False) for damage in LOSSY]]:
        with tree.damaged(tmp_path / "0", damage) as n_files:
            if not n_files:
                continue
            n_checked += 1
            found = read(tmp_path / "0")
        assert {core.id for core in found.cores} == present, damage
        assert not wrong(found, right), (damage, found)
        # With a folder for each clock, core 0's files are those of its whole cluster.
        if harmless and not (device["cpufreq_layout"] == "policy" and "cpufreq" in damage[0][0]):
            assert sets(found) == sets(whole), damage
    assert n_checked > 20
