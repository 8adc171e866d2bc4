"""Which cores are fast: real machines, whole, unplugged and damaged. A wrong split is worse than none."""

from __future__ import annotations

import json
import os
import runpy
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import device_tree as tree
import pytest
from device_tree import CPU, GARBAGE, Damage
from hypothesis import given
from hypothesis import strategies as st

from edgespec.device import topology as topology_module
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology

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


def files(root: Path, contents: dict[str, Any]) -> Path:
    return tree.write({path: f"{text}\n" for path, text in contents.items()}, root)


def cores(max_khz: Sequence[int | None], **masks: str) -> dict[str, Any]:
    """Cores that only say their clock."""
    found: dict[str, Any] = {f"{CPU}/{name}": text for name, text in masks.items()}
    for cpu, khz in enumerate(max_khz):
        found[f"{CPU}/cpu{cpu}/uevent"] = ""
        if khz is not None:
            found[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = khz
    return found


@pytest.mark.parametrize("max_khz", [[2400000] * 4, [None, None], [None], [3_700_000, 3_700_000, 3_900_000, 3_800_000]])
def test_equal_cores(tmp_path: Path, max_khz: list[int | None]) -> None:
    found = read(files(tmp_path, cores(max_khz)))
    assert found.homogeneous
    assert found.performance == found.usable == tuple(range(len(max_khz)))
    assert found.source == ("nothing" if max_khz[0] is None else "cpuinfo_max_freq")
    assert bool(found.notes) == (max_khz[0] is None)


def test_nothing_at_all(tmp_path: Path) -> None:
    for found in (read(tmp_path), read(tmp_path / "none")):
        assert (found.usable, found.homogeneous, found.source) == ((0,), True, "nothing")
        assert "the system does not list its cores" in found.notes


def test_offline_cores_have_no_clock(tmp_path: Path) -> None:
    contents = cores([1800000] * 4 + [None] + [2400000] * 3, present="0-7", online="0-3,5-7")
    contents |= {f"{CPU}/cpu4/online": 0}
    found = read(files(tmp_path, contents))
    assert [core.id for core in found.cores if not core.online] == [4]
    assert found.usable == (0, 1, 2, 3, 5, 6, 7)
    assert found.cores[4].max_khz is None
    (tmp_path / CPU / "online").unlink()
    assert read(tmp_path).usable == (0, 1, 2, 3, 5, 6, 7), "a missing file `online` means online"


def test_ids_with_gaps(tmp_path: Path) -> None:
    contents = {f"{CPU}/cpu{cpu}/cpu_capacity": 300 if cpu < 10 else 1024 for cpu in (0, 2, 4, 11, 13)}
    found = read(files(tmp_path, {**contents, f"{CPU}/cpuidle/x": "", f"{CPU}/cpu99999/x": ""}))
    assert (found.efficiency, found.performance) == ((0, 2, 4), (11, 13))


def test_a_folder_caught_between_two_states(tmp_path: Path) -> None:
    # Helio X25: core 0 is offline and shows the clock of a cluster it does not belong to; core 8 has next to nothing.
    # Source: pytorch/cpuinfo test/mock/meizu-pro-6.h
    clock = {f"{CPU}/cpu{cpu}/cpufreq/related_cpus": "4 5 6 7" for cpu in (0, 4, 5)}
    clock |= {f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": "2002000" for cpu in (0, 4)}
    present = {f"{CPU}/cpu{cpu}/uevent": "" for cpu in range(10)}
    masks = {f"{CPU}/present": "0-9", f"{CPU}/online": "4,8", f"{CPU}/offline": "0-3,6-9"}
    found = read(files(tmp_path, {**present, **masks, **clock, f"{CPU}/cpu8/topology/core_siblings_list": "8-9"}))
    assert found.usable == (4, 8)
    assert found.cores[0].max_khz is None
    assert found.cores[4].max_khz == 2002000
    assert found.homogeneous
    assert found.notes == ("nothing is known of cores 0-3,8-9; all cores are taken as one class",)


def test_cores_caught_without_files_follow_their_cache(tmp_path: Path) -> None:
    contents = {f"{CPU}/cpu{cpu}/cache/index2/shared_cpu_list": "0-3" if cpu < 4 else "4-7" for cpu in range(8)}
    contents |= {f"{CPU}/cpu{cpu}/cpu_capacity": "400" if cpu < 4 else "1024" for cpu in (0, 1, 2, 4, 5)}
    found = read(files(tmp_path, contents))
    assert (found.efficiency, found.performance) == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize("name", ["snapdragon-888", "tensor-g3"])
def test_middle_cores_are_not_small_because_the_small_ones_are_unplugged(tmp_path: Path, name: str) -> None:
    record = tree.load(name)
    found = read(tree.write(tree.files(tree.unplugged(record, record.right["efficiency"])), tmp_path))
    assert not found.efficiency
    assert (sets(found)["middle"], sets(found)["prime"]) == (record.right["middle"], record.right["prime"])
    assert any(note.startswith("the class of cores 0-3 is not known") for note in found.notes)


def test_capacities_that_came_with_the_clocks(tmp_path: Path) -> None:
    # An arm64 kernel before and after its cpufreq driver was loaded. Measured on an emulated machine, Linux 6.1.
    for number, capacities in enumerate(((485, 905, 1024), (312, 727, 1024))):
        values = [capacities[0]] * 4 + [capacities[1]] * 3 + [capacities[2]]
        contents = {f"{CPU}/cpu{cpu}/cpu_capacity": str(value) for cpu, value in enumerate(values)}
        found = read(files(tmp_path / str(number), contents))
        assert (found.efficiency, found.source) == ((0, 1, 2, 3), "cpu_capacity")
        assert found.prime == (7,)


def test_intel_names_its_kinds(tmp_path: Path) -> None:
    record = tree.load("core-i7-1370p")
    root = tree.write(tree.files(record), tmp_path)
    for path in [*root.glob(f"{CPU}/cpu*/cpufreq/*"), *root.glob(f"{CPU}/cpu*/acpi_cppc/*")]:
        path.unlink()
    assert read(root).homogeneous
    tree.write({"sys/devices/cpu_core/cpus": "0-11\n", "sys/devices/cpu_atom/cpus": "12-17\n"}, root)
    tree.write({"sys/devices/cpu_lowpower/cpus": "18-19\n"}, root)
    found = read(root)
    assert (sets(found), found.source) == (record.right, "cpu_core and cpu_atom")
    tree.write({"sys/devices/cpu_atom/cpus": "0-17\n"}, root)
    assert read(root).homogeneous, "masks that overlap say nothing"


def test_cppc_where_there_is_no_clock(tmp_path: Path) -> None:
    record = tree.load("core-i7-1370p")
    root = tree.write(tree.files(record), tmp_path)
    with tree.damaged(root, ((f"{CPU}/cpu*/cpufreq/*", None),)):
        found = read(root)
    assert (sets(found), found.source) == (record.right, "acpi_cppc")


def test_one_core_that_differs_is_a_bad_reading(tmp_path: Path) -> None:
    for number, value in enumerate((1_000_000, 7_000_000)):
        found = read(files(tmp_path / str(number), cores([value, 2400000, 2400000, 2400000])))
        assert found.homogeneous
        assert "cpuinfo_max_freq of one core differs from all others" in found.notes


def test_witnesses_that_contradict_each_other(tmp_path: Path) -> None:
    contents = cores([1800000] * 4 + [2800000] * 4)
    contents |= {f"{CPU}/cpu{cpu}/cpu_capacity": "1024" if cpu < 4 else "400" for cpu in range(8)}
    found = read(files(tmp_path, contents))
    assert found.homogeneous
    assert found.notes == ("cpu_capacity and cpuinfo_max_freq contradict each other",)


def test_refused_files(tmp_path: Path) -> None:
    class Refusing(Sysfs):
        def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
            return None if word in path else super().read_text(path, limit)

    record = tree.load("tensor-g1")
    root = tree.write(tree.files(record), tmp_path)
    for word in ("cpu_capacity", "cpufreq", "cpuinfo", "topology", "cpu/online", "cpu/p"):
        found = read_topology(Refusing(root))
        check_form(found)
        assert sets(found) == record.right, word
    word = "/"
    assert read_topology(Refusing(root)).usable == tuple(range(8)), "folders can still be counted"


def test_a_file_that_hangs_costs_its_own_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Hanging(Sysfs):
        def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
            if path.endswith(word):
                release.wait()
            return super().read_text(path, limit)

    monkeypatch.setattr(topology_module, "_PATIENCE_S", 0.05)
    record = tree.load("tensor-g1")
    root = tree.write(tree.files(record), tmp_path)
    try:
        word = "cpu2/cpu_capacity"
        found = read_topology(Hanging(root))
        assert sets(found) == record.right
        assert found.source == "cpuinfo_max_freq"
        assert "reading the cpu_capacity files took too long" in found.notes
        word = "cpu/online"
        found = read_topology(Hanging(root))
        check_form(found)
        assert "reading the lists of cores took too long" in found.notes
    finally:
        release.set()


def test_a_pipe_in_place_of_a_file(tmp_path: Path) -> None:
    record = tree.load("tensor-g1")
    root = tree.write(tree.files(record), tmp_path)
    for name in ("online", "cpu0/cpu_capacity"):
        (root / CPU / name).unlink()
        os.mkfifo(root / CPU / name)
    assert sets(read(root)) == record.right


@pytest.mark.parametrize(
    ("cpu_max", "limit", "usable"),
    [
        ("50000 100000", 0.5, (6,)),
        ("100000 100000", 1.0, (6,)),
        ("200000 100000", 2.0, (6, 7)),
        ("350000 100000", 3.5, (4, 6, 7)),
        ("765000 100000", 7.65, (0, 1, 2, 4, 5, 6, 7)),
        ("9000000 100000", 90.0, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("max 100000", None, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("", None, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
@pytest.mark.parametrize("folder", ["", "/pod/box", "/pod"])
def test_quota(tmp_path: Path, cpu_max: str, limit: float | None, usable: tuple[int, ...], folder: str) -> None:
    root = tree.write(tree.files(tree.load("tensor-g1")), tmp_path)
    files(root, {"proc/self/cgroup": "0::/pod/box", f"sys/fs/cgroup{folder}/cpu.max": cpu_max})
    found = read(root)
    assert (found.cpu_limit, found.usable) == (limit, usable)


def test_a_quota_takes_whole_cores_before_threads(tmp_path: Path) -> None:
    root = tree.write(tree.files(tree.load("core-i7-1370p")), tmp_path)
    files(root, {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert read(root).usable == (0, 4, 8)


@pytest.mark.parametrize(
    ("cpuset", "affinity", "usable"),
    [
        ("0-3", None, (0, 1, 2, 3)),
        ("0-3", {2, 3, 4}, (2, 3)),
        (None, {2, 6}, (2, 6)),
        (None, {40}, tuple(range(8))),
        ("", None, tuple(range(8))),
        ("30", None, tuple(range(8))),
        ("30", {5}, (5,)),
        ("a-b", {5}, (5,)),
    ],
)
def test_cpuset_and_affinity(
    tmp_path: Path, cpuset: str | None, affinity: set[int] | None, usable: tuple[int, ...]
) -> None:
    record = tree.load("tensor-g1")
    root = tree.write(tree.files(record), tmp_path)
    if cpuset is not None:
        files(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpuset.cpus.effective": cpuset})
    found = read_topology(Sysfs(root), affinity)
    check_form(found)
    assert found.usable == usable
    assert sets(found) == record.right, "what may be used does not change what is there"
    followed = not any("is not followed" in note for note in found.notes)
    assert followed == (cpuset != "30" and affinity != {40})


def test_the_mask_of_this_process_counts_only_on_its_own_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1}, raising=False)
    root = tree.write(tree.files(tree.load("tensor-g1")), tmp_path)
    assert read(root).usable == tuple(range(8))
    here = read_topology(Sysfs())
    check_form(here)
    assert here.usable == (1,)
    assert here.cores[[core.id for core in here.cores].index(1)].online, "the kernel names online cores only"


def test_this_machine() -> None:
    check_form(read_topology(Sysfs()))


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
    faults = ["", "no-capacity", "no-cpufreq", "no-cpuinfo", "trailing-nul", f"cpuset={plugged}", "cpu-max=50000"]
    faults += [f"cpu-offline={cpus}" for cpus in ("0", str(last), *clusters)]
    for number, fault in enumerate(faults if last < 64 else faults[:1]):
        root = tmp_path / str(number)
        materialise(device, root, [fault] if fault else [])
        found = read(root)
        assert {core.id for core in found.cores} == present, fault
        assert not wrong(found, right), (fault, found)
        if not fault and online["distinguishable"]:
            assert sets(found) == right
        if fault.startswith("cpu"):
            assert len(found.usable) == 1 or fault.startswith("cpu-offline"), fault
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
