"""What every download needs of the disk: progress, a lock between processes, space, a checksum, a whole final file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from edgespec.errors import DownloadError

CHUNK = 1 << 20
_MAGIC = b"GGUF"
_MARGIN = 16 << 20
"""Bytes left free on the disk: a file system filled to the last byte breaks other programs."""


class Progress(Protocol):
    """Told how a download goes; called often, so it must be cheap."""

    def note(self, text: str) -> None:
        """Something the user should know, one line."""
        ...

    def update(self, done: int, total: int | None) -> None:
        """`done` of `total` bytes are here; None: the total is not known."""
        ...


class Callbacks:
    """Progress through two functions, either of which may be missing."""

    def __init__(
        self, update: Callable[[int, int | None], None] | None = None, note: Callable[[str], None] | None = None
    ) -> None:
        self._update = update
        self._note = note

    def note(self, text: str) -> None:
        """Pass the line on."""
        if self._note is not None:
            self._note(text)

    def update(self, done: int, total: int | None) -> None:
        """Pass the numbers on."""
        if self._update is not None:
            self._update(done, total)


class DiskError(DownloadError):
    """The disk is full or cannot be written: another source of the same file would not help."""


def beside(path: Path, suffix: str) -> Path:
    """The path with more at its end: model.gguf, model.gguf.part."""
    return path.with_name(path.name + suffix)


def mb(n_bytes: int) -> str:
    """Bytes for people: 98.4 MB, 1.06 GB."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 999_500_000 else f"{n_bytes / 1e6:.1f} MB"


def unwritable(path: Path, error: OSError) -> DiskError:
    """The error for a folder or file that cannot be written."""
    return DiskError(
        f"cannot write to {path}: {error.strerror or error}; make it writable or set EDGESPEC_MODELS to another folder"
    )


def disk_full(path: Path, n_missing: int | None) -> DiskError:
    """The error for a full disk. What has been fetched stays, for the next try."""
    try:
        free = mb(shutil.disk_usage(path.parent).free)
    except OSError:
        free = "nothing"
    needed = "more than that" if n_missing is None else mb(n_missing)
    return DiskError(
        f"the disk of {path.parent} is full: {needed} needed, {free} free; free some, or set EDGESPEC_MODELS to "
        "another folder (what has been fetched is kept)"
    )


def is_full(error: OSError) -> bool:
    """Whether the disk or the user's quota is used up."""
    return error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def check_space(path: Path, n_missing: int) -> None:
    """Refuse before a download that cannot fit.

    Raises:
        DownloadError: the disk has less than `n_missing` bytes free.
    """
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # a file system that does not say; a write will
    if free < n_missing + _MARGIN:
        raise disk_full(path, n_missing)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it.

    Raises:
        DownloadError: it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def sha256_of(path: Path, progress: Progress) -> str:
    """Checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if path.stat().st_size > 1 << 30:
            progress.note(f"checking {path.name.removesuffix('.part')}")
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def finish(part: Path, target: Path, size: int | None, sha256: str | None, progress: Progress) -> None:
    """Check a complete `.part` and give it its final name. A wrong one is removed.

    Raises:
        DownloadError: length, checksum or the first bytes are not those of the model.
    """
    found = part.stat().st_size
    wrong = None
    if size is not None and found != size:
        wrong = f"is {found} bytes long instead of {size}"
    else:
        with part.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            wrong = "is not a GGUF file (a login page, perhaps)"
        elif sha256 is not None and (digest := sha256_of(part, progress)) != sha256.lower():
            wrong = f"has the checksum {digest[:16]}... instead of {sha256[:16]}..."
    if wrong is not None:
        part.unlink()
        raise DownloadError(f"what was fetched for {target.name} {wrong}; it was removed, try again")
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(target)


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock that lets one process at a time write `path`; wait for another that holds it.

    Raises:
        DownloadError: the lock file cannot be made.
    """
    lock = beside(path, ".lock")
    fd = _acquire(lock, progress)
    try:
        yield
    finally:
        # Removed while it is held: whoever waits for it sees in _acquire that it is gone and makes a new one.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(fd)


def _acquire(lock: Path, progress: Progress) -> int:
    waiting = False
    while True:
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise unwritable(lock.parent, error) from error
        if _try_lock(fd):
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == lock.stat().st_ino:
                    return fd
            os.close(fd)
            continue
        os.close(fd)
        if not waiting:
            progress.note(f"another process is fetching {lock.name.removesuffix('.lock')}; waiting for it")
            waiting = True
        time.sleep(0.2)


def _try_lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return _try_lock_windows(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks (some network and FUSE ones): better two downloads than none.
        return True
    return True


def _try_lock_windows(fd: int) -> bool:
    import importlib

    msvcrt = importlib.import_module("msvcrt")  # by name: type checkers know it on Windows only
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
