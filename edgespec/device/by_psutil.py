"""Memory and processor time where the system has no /proc (macOS, Windows), by psutil.

Unknown is None: also on Linux and Android, whose files say more, below another root, and without a psutil that works.
Run on neither system so far: tested with psutil's answers on Linux.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edgespec.device.sysfs import Sysfs

T = TypeVar("T")
_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice", "interrupt", "dpc"})
"""Idle time, and what is within user's or system's time already. Source: psutil's documentation of cpu_times()."""


def free_memory(sysfs: Sysfs) -> int | None:
    """Bytes that can be taken without swapping."""
    return _ask(sysfs, lambda psutil: int(psutil.virtual_memory().available))


def rss_bytes(sysfs: Sysfs) -> int | None:
    """Resident memory of this process."""
    return _ask(sysfs, lambda psutil: int(psutil.Process().memory_info().rss))


def processor_s(sysfs: Sysfs) -> tuple[float, float, int] | None:
    """Seconds of processor time of this process, of all processes and interrupts, and how many cores there are."""

    def read(psutil: Any) -> tuple[float, float, int]:
        own, every = psutil.Process().cpu_times(), psutil.cpu_times()
        busy = sum(seconds for name, seconds in every._asdict().items() if name not in _NOT_BUSY)
        return float(own.user + own.system), float(busy), psutil.cpu_count() or 0

    return _ask(sysfs, read)


def _ask(sysfs: Sysfs, read: Callable[[Any], T]) -> T | None:
    system: str = sys.platform
    if system in {"linux", "android"} or sysfs.root != Path("/"):
        return None
    try:
        return read(importlib.import_module("psutil"))
    except Exception:
        return None  # psutil is broken, or the system refuses
