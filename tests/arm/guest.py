"""Runs inside the emulated machine (see docs/arm.md): each check prints one line of JSON with what it saw.

Judges nothing: tests/test_biglittle.py does. Every check is a function of its own, in `CHECKS`, and may assume the
machine as it booted: cool, all cores online, in the root control group.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from edgespec.config import EngineConfig
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology
from edgespec.draft import REGISTRY
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Result
from edgespec.testing import ScriptedDrafter

MODEL = Path("/data/tiny.gguf")
CPU = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
PROMPT = list(b"abcabcabc the cat sat on the mat, the cat sat on the mat")
N_TOKENS = 60
LONG = Limits(max_tokens=N_TOKENS, fixed_draft=4, ignore_eog=True)
RECHECK_S = 1.2
"""Longer than the time after which a round looks at its pins and its sensors again."""

_SENSOR = 0x7FF00000
"""Physical address of the page with the sensor's register, at offset 0x200 (scripts/arm/biglittle.dtso)."""
_VALID = 0x10400
"""Bits without which the driver takes the register for not ready.

Source: Linux, drivers/thermal/broadcom/bcm2711_thermal.c.
"""


@cache
def engine(threads: int | None = 2) -> Engine:
    """The model, loaded once for all checks; None lets the engine choose its team, and change it.

    Two threads: at every step of a pass they wait for each other, and the host has few processors for more of them.
    """
    return Engine.open(MODEL, EngineConfig(n_ctx=512, threads=threads))


@cache
def plain() -> tuple[int, ...]:
    """What the model says undrafted."""
    stream = engine().stream(PROMPT, limits=LONG, drafter="none")
    return finish(stream).tokens


def right(context: Sequence[int], limit: int) -> Sequence[int]:
    """A script that guesses what the model says."""
    done = len(context) - len(PROMPT)
    return plain()[done : done + limit]


def finish(stream: Any) -> Result:
    for _ in stream:
        pass
    result: Result = stream.result
    return result


def play(stream: Any, n_rounds: int) -> int:
    """Go on with an answer for some rounds; the number of tokens they brought."""
    return sum(len(chunk.tokens) for chunk in islice(stream, n_rounds))


def heat(degrees_c: float) -> None:
    """Set the sensor of the emulated processor, and wait until the kernel says so."""
    code = round((410.040 - degrees_c) / 0.487)
    fd = os.open("/dev/mem", os.O_RDWR | os.O_SYNC)
    try:
        with mmap.mmap(fd, mmap.PAGESIZE, offset=_SENSOR) as page:
            # One store of 32 bits: a slice would be copied byte by byte.
            register = ctypes.c_uint32.from_buffer(page, 0x200)
            register.value = _VALID | code
            del register
    finally:
        os.close(fd)
    zone = Path("/sys/class/thermal/thermal_zone0/temp")
    wait_for(lambda: abs(int(zone.read_text()) / 1000 - degrees_c) < 1)


def wait_for(happened: Callable[[], bool], limit_s: float = 15.0) -> None:
    """Give the kernel time.

    Raises:
        TimeoutError: it did not happen.
    """
    end = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s} s")
        time.sleep(0.1)


def max_khz(cpu: int) -> int:
    """The highest clock that the kernel allows this core now."""
    return int((CPU / f"cpu{cpu}/cpufreq/scaling_max_freq").read_text())


def masks() -> dict[str, str]:
    """Cores that each thread of this process may run on, as the kernel says: "thread id name" to "0-7"."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
        status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        found[f"{task.name} {status['Name'].strip()}"] = status["Cpus_allowed_list"].strip()
    return found


def of_target(seen: dict[str, str]) -> list[str]:
    """Out of `masks`: the cores of the threads that run the model's passes."""
    return [mask for name, mask in seen.items() if name.endswith(" edgespec-decode")]


@contextmanager
def background() -> Iterator[None]:
    """As Android does to an app that leaves the screen: only the little cores, until the end of the block."""
    group = CGROUP / "background"
    group.mkdir(exist_ok=True)
    (group / "cpuset.cpus").write_text("0-3")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (CGROUP / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def unplugged(cpu: int) -> Iterator[None]:
    """A core that the system switches off, as phones do when they are hot or idle."""
    switch = CPU / f"cpu{cpu}/online"
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text("1")


def kernel() -> dict[str, Any]:
    """What the kernel says about its cores, to know that the machine is the one that was asked for."""
    cpus = range(8)
    return {
        "capacity": [int((CPU / f"cpu{cpu}/cpu_capacity").read_text()) for cpu in cpus],
        "max_khz": [int((CPU / f"cpu{cpu}/cpufreq/cpuinfo_max_freq").read_text()) for cpu in cpus],
        "allowed": sorted(os.sched_getaffinity(0)),
        "temperature": int(Path("/sys/class/thermal/thermal_zone0/temp").read_text()),
    }


def loaded() -> dict[str, Any]:
    """The model is loaded and its passes are measured."""
    return {"notes": engine().notes, "threads": engine().target.n_threads}


def drafted() -> dict[str, Any]:
    """A short greedy answer, with guesses and without."""
    result = finish(engine().stream(PROMPT, limits=LONG, drafter="ngram"))
    return {"plain": plain(), "tokens": result.tokens, "drafted": result.report.drafted, "rounds": result.report.rounds}


def in_background() -> dict[str, Any]:
    """The process is sent to the little cores in the middle of an answer, and comes back."""
    stream = engine().stream(PROMPT, limits=LONG, drafter="ngram")
    n_tokens = play(stream, 3)
    before = masks()
    with background():
        inside = masks()
        time.sleep(RECHECK_S)
        n_tokens += play(stream, 5)
        settled = masks()
    time.sleep(RECHECK_S)
    n_tokens += play(stream, 5)
    back = masks()
    result = finish(stream)
    return {
        "plain": plain(),
        "tokens": result.tokens,
        "n_tokens_meanwhile": n_tokens,
        "before": before,
        "inside": inside,
        "settled": settled,
        "back": back,
        "cpus_target": result.report.cpus_target,
    }


def without_a_core() -> dict[str, Any]:
    """The biggest core goes in the middle of an answer, and comes back."""
    stream = engine().stream(PROMPT, limits=LONG, drafter="ngram")
    n_tokens = play(stream, 3)
    with unplugged(7):
        online = Sysfs().read_text("/sys/devices/system/cpu/online")
        time.sleep(RECHECK_S)
        n_tokens += play(stream, 5)
        meanwhile = of_target(masks())
    time.sleep(RECHECK_S)
    n_tokens += play(stream, 5)
    result = finish(stream)
    return {
        "plain": plain(),
        "tokens": result.tokens,
        "n_tokens_meanwhile": n_tokens,
        "online_meanwhile": online,
        "meanwhile": meanwhile,
        "online": Sysfs().read_text("/sys/devices/system/cpu/online"),
        "cpus_target": result.report.cpus_target,
    }


def throttled() -> dict[str, Any]:
    """The kernel lowers the clocks of a hot processor and gives them back when it has cooled."""
    cool = [max_khz(4), max_khz(7)]
    try:
        heat(88)
        wait_for(lambda: max_khz(7) < cool[1] and max_khz(4) < cool[0])
        hot = [max_khz(4), max_khz(7)]
    finally:
        heat(45)
    wait_for(lambda: [max_khz(4), max_khz(7)] == cool)
    return {"cool": cool, "hot": hot}


def topology() -> dict[str, Any]:
    """What edgespec makes of the machine."""
    return dataclasses.asdict(read_topology(Sysfs()))


def pinned() -> dict[str, Any]:
    """A drafter on its own thread and the target, each on its cores."""
    threads: set[int] = set()

    def play_and_tell(context: Sequence[int], limit: int) -> Sequence[int]:
        threads.add(threading.get_native_id())
        return right(context, limit)

    stream = engine().stream(PROMPT, limits=LONG, drafter=ScriptedDrafter(play_and_tell, "own"))
    play(stream, 5)
    seen = masks()
    result = finish(stream)
    return {
        "plain": plain(),
        "tokens": result.tokens,
        "target": of_target(seen),
        "drafter": [mask for name, mask in seen.items() if int(name.split()[0]) in threads],
        "main": seen[f"{os.getpid()} python3"],
        "cpus_target": result.report.cpus_target,
        "cpus_drafter": result.report.cpus_drafter,
    }


def heated() -> dict[str, Any]:
    """What heat below and past the trip point does to drafts and team, and that it passes.

    `states` are the different ones that rounds met, in order: draft cap, team cap (None: no cap), idle share, threads
    of a single pass, degrees asked for, and sensor readings since these were there. `longest` is the longest draft by
    draft cap; the drafts are always right, and of up to 8 tokens.
    """
    chosen = engine(None)
    governor = chosen.machine.governor
    full = governor.full.one
    # An emulated core waits for one of the host's few: what its passes take says nothing of competition.
    governor._contention.level = 0
    governor._contention.observe = lambda wide, relative, now_s: True  # type: ignore[method-assign]
    states: list[list[Any]] = []
    longest: dict[int, int] = {}
    readings: set[float] = set()
    degrees_c = 45

    def warm(wanted_c: int) -> None:
        nonlocal degrees_c
        heat(wanted_c)
        degrees_c = wanted_c
        readings.clear()
        readings.add(chosen.machine.monitor.latest().at_s)  # begun before the sensor said so, perhaps

    def until(wanted: Callable[[list[Any]], bool], limit_s: float = 20.0) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            stream = chosen.stream(PROMPT, limits=Limits(20, fixed_draft=8, ignore_eog=True), drafter="ngram")
            for chunk in stream:
                limits = governor.heat.limits
                cap = 15 if limits.max_draft is None else limits.max_draft
                longest[cap] = max(chunk.n_from_draft, longest.get(cap, 0))
                readings.add(governor.heat.at_s)
                state = [cap, limits.max_team, limits.pace, chosen.target.n_threads, degrees_c]
                if not states or state != states[-1][:-1]:
                    states.append([*state, len(readings) - 1])
            if wanted(states[-1]):
                return
        raise TimeoutError(f"not within {limit_s} s, only {states}")

    original = REGISTRY["ngram"]
    REGISTRY["ngram"] = lambda _piece: ScriptedDrafter(right, "ngram")
    try:
        until(lambda state: state[0] == 15)
        warm(72)
        until(lambda state: state[0] < 15)
        warm(80)
        until(lambda state: state[1] == 2)
        warm(45)
        until(lambda state: state[0] == 15)
        until(lambda state: state[1:4] == [None, 0, full], 120.0)
    finally:
        REGISTRY["ngram"] = original
        heat(45)
    return {"full": full, "states": states, "longest": longest}


CHECKS: Sequence[Callable[[], dict[str, Any]]] = (
    kernel,
    topology,
    loaded,
    drafted,
    pinned,
    in_background,
    without_a_core,
    throttled,
    heated,
)


def main() -> int:
    """Run all checks."""
    for check in CHECKS:
        began = time.monotonic()
        seen: dict[str, Any]
        try:
            seen = check()
        except Exception:  # whatever it is, the host shows it, and the other checks still run
            seen = {"error": traceback.format_exc()}
        seconds = round(time.monotonic() - began, 1)
        # Ends on a line of its own whatever was printed before.
        sys.stdout.write(f"\n@@edgespec {json.dumps({'check': check.__name__, 'seconds': seconds, **seen})}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
