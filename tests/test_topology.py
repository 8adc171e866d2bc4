"""Which cores there are, which are fast, and which may be used: one case after another that was met somewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import device_tree as tree
import pytest
from device_tree import CPU
from topology_checks import check_form, read, sets

from edgespec.device import topology as topology_module
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology


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
