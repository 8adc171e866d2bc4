"""Reads /sys and /proc, the only file that opens them. What is missing, refused or garbled is None, never an error.

The root is a parameter, so that tests (and bug reports) can be folders of real files. Knows no file by name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


class Sysfs:
    """A view of one machine's /sys and /proc below `root`. Paths are given as on the machine: "/proc/meminfo"."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        """The file's text without white space at its ends, at most `limit` bytes of it.

        None where it is missing, unreadable, not UTF-8, holds NUL bytes, or where the driver behind it fails.
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
    """The kernel's list of cores, as "0-3,5"; None where the text is not one."""
    if text is None:
        return None
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if found is None:
            return None
        first = int(found[1])
        last = int(found[2] or first)
        cpus.update(range(first, last + 1))
    return frozenset(cpus)
