"""Runs a vendor's command line tool for a reading, bounded in time and output. What goes wrong is said, not raised."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed. Exactly one of the two is set."""

    text: str | None = None
    problem: str | None = None
    """Why there is no text, in plain words; "missing" where the command is not installed."""


def run_command(name: str, *args: str, timeout_s: float, path: str | None = None) -> Answer:
    """Standard output of a command that ends well within `timeout_s`; `path` replaces the environment's PATH."""
    found = shutil.which(name, path=path)
    if found is None:
        return Answer(problem="missing")
    try:
        # Its own session: a script's children hold the pipe open, so all of them must be ended together.
        process = subprocess.Popen(
            [found, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(problem=f"{name} cannot be run: {error.strerror}")
    deadline_s = time.monotonic() + timeout_s
    try:
        data = _output(process, deadline_s)
        status = None if data is None else process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        status = None
    finally:
        _end(process)
    if data is None or status is None:
        return Answer(problem=f"{name} does not answer")
    text = data.decode("utf-8", "replace").strip()
    if status != 0:
        # "VCHI initialization failed" and the like: the first line says enough.
        return Answer(problem=f"{name} failed with {status}: {text.partition(chr(10))[0][:80]}")
    return Answer(text=text)


def _output(process: subprocess.Popen[bytes], deadline_s: float) -> bytes | None:
    """What it prints until it closes its output; None past the deadline, or where it prints without end."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = bytearray()
    while len(data) <= _MAX_BYTES:
        if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3):
            return None
        piece = os.read(fd, 4096)
        if not piece:
            return bytes(data)
        data += piece
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(OSError):  # it has ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        # One that hangs inside the kernel cannot be ended; it is left behind.
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    if process.stdout is not None:
        process.stdout.close()
