"""Memory and load where there is no /proc: psutil's answers, on this system made to look like another one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgespec.device import host
from edgespec.device.load import LoadReader
from edgespec.device.sysfs import Sysfs

psutil = pytest.importorskip("psutil", reason="psutil is not installed")


class NoProc(Sysfs):
    """The real root of a system without files that tell."""

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        return None

    def listdir(self, path: str) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def test_memory() -> None:
    assert host.rss_bytes(NoProc()) == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert host.free_memory(NoProc()) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    own, every = type(psutil.Process().cpu_times()), type(psutil.cpu_times())
    now = {"own": 3.0, "user": 10.0, "system": 2.0, "idle": 50.0}

    def of_all() -> object:
        fields = dict.fromkeys(every._fields, 0.0)
        return every(**fields | {name: now[name] for name in ("user", "system", "idle")})

    monkeypatch.setattr(psutil.Process, "cpu_times", lambda _: own(*(now["own"], *[0.0] * (len(own._fields) - 1))))
    monkeypatch.setattr(psutil, "cpu_times", of_all)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    reader = LoadReader(NoProc(), ticks_per_s=100)
    assert reader.read(100.0).busy_others is None, "one reading says nothing"
    now.update(own=4.0, user=12.5, system=2.5, idle=51.0)
    assert reader.read(101.0).busy_others == pytest.approx(2.0), "three cores were busy, one of them with this process"


@pytest.mark.parametrize("broken", ["missing", "refuses"])
def test_without_psutil_all_is_unknown(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "psutil", None)
    else:

        def refuse(*_: object) -> None:
            raise psutil.AccessDenied

        for name in ("Process", "virtual_memory", "cpu_times"):
            monkeypatch.setattr(psutil, name, refuse)
    assert (host.rss_bytes(NoProc()), host.free_memory(NoProc())) == (None, None)
    assert LoadReader(NoProc()).read(0.0).notes == ("this process's own processor time cannot be read",)


def test_recorded_machines_are_not_mixed_with_this_one(tmp_path: Path) -> None:
    assert (host.rss_bytes(NoProc(tmp_path)), host.free_memory(NoProc(tmp_path))) == (None, None)


@pytest.mark.parametrize("system", ["linux", "android"])
def test_where_there_is_proc_it_alone_is_asked(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert (host.rss_bytes(NoProc()), host.free_memory(NoProc())) == (None, None)
