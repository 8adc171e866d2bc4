"""A lower clock on request: clamps where schedutil listens, the power profile on laptops, a reason elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sensor_files import CPU, command, put

from edgespec.device import clock as clock_module
from edgespec.device.clock import Clock
from edgespec.device.sysfs import Sysfs

NO_TOOLS = "/nonexistent"


def machine(root: Path, governor: str | None, driver: str | None = "cpufreq-dt") -> Sysfs:
    return put(
        root,
        {f"{CPU}/cpu{cpu}/cpufreq/scaling_{name}": text for cpu in (4, 5) for name, text in
         (("governor", governor), ("driver", driver)) if text is not None},
    )  # fmt: skip


class Kernel:
    """Takes clamps, or refuses them all."""

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal
        self.calls: list[tuple[int, int]] = []

    def __call__(self, thread: int, clamp: int) -> str | None:
        self.calls.append((thread, clamp))
        return self.refusal


@pytest.mark.parametrize("governor", ["schedutil", "sched_pixel"])
def test_clamps_every_thread_once_and_gives_the_clock_back(tmp_path: Path, governor: str) -> None:
    kernel = Kernel()
    clock = Clock(machine(tmp_path, governor), (4, 5), path=NO_TOOLS, set_clamp=kernel)
    assert (clock.slowing, clock.reason) == ("clamp", None)
    kernel.calls.clear()
    assert clock.ask(0.5, (11, 12)) is None
    assert clock.ask(0.5, (11, 12, 13)) is None  # a thread came
    assert kernel.calls == [(11, 410), (12, 410), (13, 410)]  # 0.5 of 1024, less the quarter that schedutil adds
    clock.close()
    clock.close()
    assert kernel.calls[3:] == [(11, 1024), (12, 1024), (13, 1024)]


def test_a_refusal_is_told_and_final(tmp_path: Path) -> None:
    sysfs = machine(tmp_path, "schedutil")
    refused = Clock(sysfs, (4, 5), path=NO_TOOLS, set_clamp=Kernel("no clamps in this kernel"))
    assert (refused.slowing, refused.reason) == (None, "no clamps in this kernel")
    kernel = Kernel()
    clock = Clock(sysfs, (4, 5), path=NO_TOOLS, set_clamp=kernel)
    clock.ask(0.5, (11,))
    kernel.refusal = "not any more"
    assert clock.ask(0.5, (11, 12)) == "not any more"
    assert clock.slowing is None
    n = len(kernel.calls)
    assert clock.ask(0.5, (11, 12)) == "not any more"
    assert len(kernel.calls) == n
    clock.close()
    assert kernel.calls[n:] == [(11, 1024)]  # what was granted is given back


def test_new_threads_that_inherit_a_clamp_are_freed_and_ids_are_used_again(tmp_path: Path) -> None:
    kernel = Kernel()
    clock = Clock(machine(tmp_path, "schedutil"), (4, 5), path=NO_TOOLS, set_clamp=kernel)
    clock.ask(0.5, (11, 12))
    kernel.calls.clear()
    clock.ask(None, (11, 13))
    assert kernel.calls == [(11, 1024), (13, 1024)]
    clock.ask(0.5, (11, 12))  # another thread 12
    assert kernel.calls[2:] == [(11, 410), (12, 410)]


@pytest.mark.parametrize(
    ("governor", "driver", "reason"),
    [
        ("ondemand", "cpufreq-dt", "the frequency governor (ondemand) takes no wishes of programs"),
        (None, None, "the frequency governor (unknown) takes no wishes of programs"),
        ("powersave", "intel_pstate", "powerprofilesctl is not installed"),
    ],
)
def test_systems_that_do_not_listen(tmp_path: Path, governor: str | None, driver: str | None, reason: str) -> None:
    kernel = Kernel()
    clock = Clock(machine(tmp_path, governor, driver), (4, 5), path=NO_TOOLS, set_clamp=kernel)
    assert (clock.slowing, clock.reason) == (None, reason)
    clock.ask(0.5)
    clock.close()
    assert kernel.calls == []


def test_one_core_that_does_not_listen_is_enough(tmp_path: Path) -> None:
    sysfs = machine(tmp_path, "schedutil")
    put(tmp_path, {f"{CPU}/cpu5/cpufreq/scaling_governor": "performance"})
    assert Clock(sysfs, (4, 5), path=NO_TOOLS, set_clamp=Kernel()).slowing is None
    assert Clock(sysfs, (), path=NO_TOOLS, set_clamp=Kernel()).slowing is None


def wait_for(path: Path) -> str:
    for _ in range(500):
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


def test_the_power_profile_is_held_while_wanted(tmp_path: Path) -> None:
    log, end = tmp_path / "log", tmp_path / "end"
    script = f'echo "$@" > {log}; while read -r line; do :; done; echo over > {end}'  # as cat: until its input ends
    tools = command(tmp_path / "bin", "powerprofilesctl", script)
    clock = Clock(machine(tmp_path, "powersave", "intel_pstate"), (4, 5), path=tools)
    assert clock.slowing == "saver"
    assert clock.ask(0.5) is None
    assert wait_for(log).split()[:3] == ["launch", "-p", "power-saver"]
    assert clock.ask(0.5) is None
    assert not end.exists()
    assert clock.ask(None) is None
    assert wait_for(end) == "over\n"
    assert clock.slowing == "saver"
    clock.close()


def test_a_power_profile_that_is_refused_is_told(tmp_path: Path) -> None:
    tools = command(tmp_path / "bin", "powerprofilesctl", "exit 3")
    clock = Clock(machine(tmp_path, "powersave", "intel_pstate"), (4, 5), path=tools)
    reasons = {clock.ask(0.5)}
    for _ in range(500):
        if clock.slowing is None:
            break
        time.sleep(0.01)
        reasons.add(clock.ask(0.5))
    assert reasons == {None, "powerprofilesctl ended with 3"}
    clock.close()


def test_the_real_kernel_answers(tmp_path: Path) -> None:
    """Whichever it is built to: the clamp is 1024, which changes nothing."""
    found = Clock(machine(tmp_path, "schedutil"), (4, 5), path=NO_TOOLS)
    assert (found.slowing == "clamp") == (found.reason is None)
    found.close()
    assert clock_module._set_clamp(2**22 + 1, 1024) is None or found.reason is not None  # no such thread
