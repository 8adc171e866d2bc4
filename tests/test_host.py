"""Reading the machine: fake roots are real files; a value may be missing, refused or garbage."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.device import host
from edgespec.device.sysfs import Sysfs, n_late, parse_cpulist, within


def tree(root: Path, files: dict[str, str | bytes]) -> Sysfs:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Sysfs(root)


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    sysfs = tree(
        tmp_path,
        {"/a": b"\xff\xfe", "/b": b"1\x002", "/c": "", "/d": " 7 \n", "/e": "0x7", "/f": "9" * 100, "/g": "0-3\n\0"},
    )
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert [sysfs.read_text(f"/{name}") for name in ("a", "b", "none", "fifo", "loop")] == [None, None, None, "", None]
    assert sysfs.read_text("/g") == "0-3"
    assert sysfs.read_text("/") is None
    assert sysfs.read_text("/x\0y") is None
    assert [sysfs.read_int(f"/{name}") for name in "bcdef"] == [None, None, 7, None, None]
    assert sysfs.listdir("/none") == []
    assert sysfs.listdir("/d") == []


def test_reads_are_bounded(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {"/big": "x" * 5000})
    assert sysfs.read_text("/big", limit=100) == "x" * 100


def test_names_sort_by_number(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {f"/d/{name}": "" for name in ("cpu10", "cpu9", "7", "cpu")})
    assert sysfs.listdir("/d") == ["7", "cpu", "cpu9", "cpu10"]


@pytest.mark.parametrize("error", [22, 61, 1, 13, 19, 5, 11])
def test_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    sysfs = tree(tmp_path, {"/t": "1"})

    def read(fd: int, n: int) -> bytes:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "read", read)
    assert sysfs.read_text("/t") is None


def test_cpulist() -> None:
    assert parse_cpulist("0-3,5, 7-8") == frozenset({0, 1, 2, 3, 5, 7, 8})
    assert parse_cpulist("0 1 2") == frozenset({0, 1, 2})
    assert parse_cpulist("") == frozenset()
    assert parse_cpulist("0-99999") is None
    assert parse_cpulist("7-3") is None
    assert parse_cpulist("0-x") is None
    assert parse_cpulist(None) is None


MEMINFO = "MemTotal: 8000000 kB\nMemFree: 100 kB\nMemAvailable: 600000 kB\nBuffers: 5 kB\nCached: 20 kB\n"


def test_free_memory(tmp_path: Path) -> None:
    assert host.free_memory(Sysfs(tmp_path / "empty")) is None
    sysfs = tree(tmp_path, {"/proc/meminfo": MEMINFO})
    assert host.free_memory(sysfs) == 600000 * 1024
    tree(tmp_path, {"/proc/meminfo": MEMINFO.replace("MemAvailable", "Other")})
    assert host.free_memory(sysfs) == 125 * 1024
    tree(tmp_path, {"/proc/meminfo": "rubbish"})
    assert host.free_memory(sysfs) is None


def test_cgroup_limits_of_all_parents_bound_memory(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    sysfs = tree(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/a/b\n",
            f"{group}/a/b/memory.max": "max\n",
            f"{group}/a/b/memory.current": "1000\n",
            f"{group}/a/memory.max": "300000000\n",
            f"{group}/a/memory.current": "200000000\n",
            f"{group}/a/memory.stat": "anon 5\ninactive_file 50000000\n",
        },
    )
    assert host.free_memory(sysfs) == 150000000
    tree(tmp_path, {f"{group}/a/memory.high": "100000000"})
    assert host.free_memory(sysfs) == 0


def test_version_1_groups(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    sysfs = tree(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            # The host's path, as seen in a container: the mount itself is what counts.
            "/proc/self/cgroup": "9:memory:/docker/0123\n5:cpu,cpuacct:/docker/0123\n1:name=systemd:/x\nbroken\n",
            f"{group}/memory/memory.limit_in_bytes": "50000000",
            f"{group}/memory/memory.usage_in_bytes": "10000000",
            f"{group}/cpu,cpuacct/cpu.cfs_quota_us": "250000",
            f"{group}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert host.free_memory(sysfs) == 40000000
    assert host.cpu_limit(sysfs) == 2.5
    tree(tmp_path, {f"{group}/cpu,cpuacct/cpu.cfs_quota_us": "-1"})
    assert host.cpu_limit(sysfs) is None
    tree(tmp_path, {f"{group}/memory/memory.limit_in_bytes": "9223372036854771712"})
    assert host.free_memory(sysfs) == 600000 * 1024


def test_cpu_limit(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    assert host.cpu_limit(Sysfs(tmp_path / "empty")) is None
    sysfs = tree(tmp_path, {"/proc/self/cgroup": "0::/a/b", f"{group}/a/cpu.max": "150000 100000"})
    assert host.cpu_limit(sysfs) == 1.5
    tree(tmp_path, {f"{group}/a/b/cpu.max": "50000 100000"})
    assert host.cpu_limit(sysfs) == 0.5
    tree(tmp_path, {f"{group}/a/b/cpu.max": "max 100000"})
    assert host.cpu_limit(sysfs) == 1.5
    for unlimited in ("max 100000", "", "x y", "0 0", "-1 100000"):
        tree(tmp_path, {f"{group}/a/cpu.max": unlimited})
        assert host.cpu_limit(sysfs) is None


def test_cpuset(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    assert host.cpuset(Sysfs(tmp_path / "empty")) is None
    sysfs = tree(tmp_path, {"/proc/self/cgroup": "0::/a/b", f"{group}/a/cpuset.cpus.effective": "0-3"})
    assert host.cpuset(sysfs) == frozenset({0, 1, 2, 3})
    tree(tmp_path, {f"{group}/a/b/cpuset.cpus.effective": "2-3"})
    assert host.cpuset(sysfs) == frozenset({2, 3})
    tree(tmp_path, {"/proc/self/cgroup": "4:cpuset:/background\n0::/", "/dev/cpuset/background/cpus": "0-1\n"})
    assert host.cpuset(sysfs) == frozenset({0, 1})
    tree(tmp_path, {"/dev/cpuset/background/cpus": "", "/dev/cpuset/cpus": "0-7"})
    assert host.cpuset(sysfs) == frozenset(range(8))


def test_own_affinity_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> set[int]:
        raise OSError(1, "not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refused, raising=False)
    assert host.own_affinity() is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host.own_affinity() is None


def test_a_read_that_hangs_is_given_up() -> None:
    release = threading.Event()
    before = n_late()
    assert within(0.01, release.wait, otherwise=False) is False
    assert n_late() == before + 1
    assert [within(0.01, release.wait, otherwise=False) for _ in range(20)] == [False] * 20
    assert n_late() == 16, "no more than that hang at one time"
    assert within(9, lambda: 1, otherwise=0) == 0, "and nothing new is started meanwhile"
    release.set()
    for thread in threading.enumerate():
        if thread.name == "edgespec-read":
            thread.join(9)
    assert n_late() == 0
    assert within(9, lambda: 1, otherwise=0) == 1
    with pytest.raises(ZeroDivisionError):
        within(9, lambda: 1 // 0, otherwise=0)


def test_cpu_name(tmp_path: Path) -> None:
    assert host.cpu_name(Sysfs(tmp_path / "empty"))
    sysfs = tree(tmp_path, {"/proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"})
    assert host.cpu_name(sysfs) == "Some CPU @ 2 GHz"
    tree(tmp_path, {"/proc/cpuinfo": "CPU part\t: 0xd0b\nCPU part\t: 0xd05\nCPU part\t: 0xd05\n"})
    assert host.cpu_name(sysfs).endswith(" 0xd05 0xd0b")


def test_rss() -> None:
    rss = host.rss_bytes(Sysfs())
    assert rss is None or rss > 1 << 20


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "proc/meminfo",
                "proc/self/cgroup",
                "sys/fs/cgroup/memory.max",
                "sys/fs/cgroup/memory.current",
                "sys/fs/cgroup/cpu.max",
                "sys/fs/cgroup/cpuset.cpus.effective",
                "proc/self/status",
            ]
        ),
        st.one_of(st.binary(max_size=40), st.sampled_from([b"MemAvailable: 5 kB", b"0::/x", b"max 1"])),
    )
)
def test_nothing_raises(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    sysfs = tree(tmp_path_factory.mktemp("root"), dict(files))
    free = host.free_memory(sysfs)
    assert free is None or free >= 0
    host.cpuset(sysfs)
    limit = host.cpu_limit(sysfs)
    assert limit is None or limit > 0
    host.rss_bytes(sysfs)
