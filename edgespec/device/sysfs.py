"""Reads /sys and /proc, the only file that opens them. What is missing, refused or garbled is None, never an error.

The root is a parameter, so that tests (and bug reports) can be folders of real files. Knows no file by name.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_N_CPUS_MAX = 8192
"""The largest machine a kernel can be built for. Source: Linux arch/x86/Kconfig, NR_CPUS_RANGE_END."""
_N_LATE_MAX = 16
"""Threads that may hang in a read at one time; beyond that, nothing more is tried."""


class Sysfs:
    """A view of one machine's /sys and /proc below `root`. Paths are given as on the machine: "/proc/meminfo"."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        """The file's text without white space at its ends, at most `limit` bytes of it.

        None where it is missing, unreadable, not UTF-8, holds NUL bytes, or where the driver behind it fails. NUL bytes
        at the very end do not count: some 5.15 kernels end the lists of siblings with one.
        """
        try:
            # Non-blocking: opening a FIFO or a device must not hang.
            fd = os.open(self._at(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except (OSError, ValueError):
            return None
        data = bytearray()
        try:
            # Files of /proc come in pieces of a page.
            while len(data) < limit and (piece := os.read(fd, limit - len(data))):
                data += piece
        except OSError:  # drivers answer EINVAL, ENODATA, EIO, EAGAIN for a sensor that is off
            return None
        finally:
            os.close(fd)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        text = text.rstrip("\0")
        return None if "\0" in text else text.strip()

    def read_int(self, path: str) -> int | None:
        """The file's content as a whole decimal number; None where it is anything else."""
        text = self.read_text(path, limit=64)
        return int(text) if text is not None and _WHOLE.fullmatch(text) else None

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, numbers within them in their natural order; empty where it cannot be listed."""
        try:
            names = os.listdir(self._at(path))  # noqa: PTH208 - names are wanted, not paths
        except (OSError, ValueError):
            return []
        return sorted(names, key=lambda name: [int(part) if part.isdecimal() else part for part in _split(name)])


def _split(name: str) -> list[str]:
    # Text and digits alternate, text first: keys of two names never compare a number with a text.
    return re.split(r"([0-9]+)", name)


def parse_cpulist(text: str | None) -> frozenset[int] | None:
    """The kernel's list of cores, as "0-3,5" or, in cpufreq, "0 1 2 3"; None where the text is not one."""
    if text is None:
        return None
    cpus: set[int] = set()
    for part in text.replace(",", " ").split():
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if found is None:
            return None
        first = int(found[1])
        last = int(found[2] or first)
        if not first <= last < _N_CPUS_MAX:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


_late: list[threading.Thread] = []


def n_late() -> int:
    """How many reads were given up by `within` and still hang."""
    _late[:] = [thread for thread in _late if thread.is_alive()]
    return len(_late)


def within(seconds: float, read: Callable[[], T], otherwise: T) -> T:
    """What `read` returns, or `otherwise` where that takes longer than `seconds`.

    A thread that is late is abandoned, and while many hang nothing new is started: a driver that never answers costs
    its own reading and no more. What `read` raises is raised.
    """
    if n_late() >= _N_LATE_MAX:
        return otherwise
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(read())
        except BaseException as error:  # raised again below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run, name="edgespec-read", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if results:
        return results[0]
    _late.append(thread)
    return otherwise
