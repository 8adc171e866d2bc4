"""Which cores threads may run on: set, and read back, since systems ignore, narrow and lose such wishes silently.

A thread inherits the mask of the thread that made it, so every thread of ours sets its own. The mask of the process's
first thread is never changed: it says what the system allows us now (taskset, cpusets, cores that went offline).
Source: sched_setaffinity(2), cpuset(7).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable

from edgespec.device.sysfs import Sysfs, parse_cpulist

_PR_SET_NAME = 15
_N_NAME = 15


def allowed() -> frozenset[int] | None:
    """Cores the system lets this process use now; None where it does not say (macOS, Windows)."""
    return _mask(os.getpid())


def own_mask() -> frozenset[int] | None:
    """Cores the calling thread may run on, as the system says; None where it does not."""
    return _mask(0)


def pin(cpus: Iterable[int], thread: int = 0) -> str | None:
    """Ask for a thread (0: the calling one) to run on `cpus` only; why that was refused, or None.

    Without cpus, or where none of them is allowed, the thread gets all that the process may use. What the system did
    is for `own_mask` and `masks` to say.
    """
    setter = getattr(os, "sched_setaffinity", None)
    if setter is None:
        return "this system does not pin threads"
    wanted, may = frozenset(cpus), allowed()
    reason = None
    if may is not None:
        if wanted and not wanted & may:
            reason = f"cores {_spelled(wanted)} are not ours to use, only {_spelled(may)}"
        wanted = wanted & may or may
    try:
        setter(thread, wanted)
    except ProcessLookupError:
        return None  # the thread has ended
    except (OSError, ValueError) as error:
        return f"the system refused cores {_spelled(wanted)} ({getattr(error, 'strerror', None) or error})"
    return reason


def name_thread(name: str) -> None:
    """Name the calling thread for the system; threads made by it, OpenMP's too, get the same name. Linux only."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:_N_NAME]), 0, 0, 0)
    except (OSError, AttributeError, TypeError):
        return  # a name is a convenience: without it `masks` finds no threads, and says so by an empty answer


def masks(sysfs: Sysfs, name: str) -> dict[int, frozenset[int]]:
    """Cores of each thread of this process that has this name, by thread id, as the kernel says."""
    found: dict[int, frozenset[int]] = {}
    for task in sysfs.listdir("/proc/self/task"):
        text = sysfs.read_text(f"/proc/self/task/{task}/status", limit=1 << 14) or ""
        title = re.search(r"^Name:\s*(.*)$", text, re.M)
        cpus = re.search(r"^Cpus_allowed_list:\s*(\S*)$", text, re.M)
        if task.isdecimal() and title and cpus and title[1] == name[:_N_NAME]:
            found[int(task)] = parse_cpulist(cpus[1]) or frozenset()
    return found


def _mask(tid: int) -> frozenset[int] | None:
    try:
        return frozenset(os.sched_getaffinity(tid))
    except (AttributeError, OSError):
        return None


def _spelled(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
