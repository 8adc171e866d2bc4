"""The driver's end of the wire: one worker process, which only runs while it is asked."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import edgespec
from edgespec.bench.peers.wire import Message
from edgespec.errors import EdgespecError

_KILLED_WITHIN_S = 10.0


class PeerError(EdgespecError):
    """A peer gave no answer; the message says why."""


class Worker:
    """A peer in a process of its own, stopped by the system between requests.

    Sleeping would not do: an OpenMP team goes on spinning after a pass, for as long as its library likes.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, object], timeout_s: float = 600.0) -> None:
        """Start it and let it open its model.

        Args:
            command: the program, which speaks `wire`.
            settings: what it is to open.
            timeout_s: longest wait for a reply.

        Raises:
            PeerError: it cannot be started, or did not open.
        """
        self._timeout_s = timeout_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._left = b""
        try:
            # A process group of its own in our session: Ctrl-C does not reach it, and should we die while it is
            # stopped, the kernel ends it (POSIX: an orphaned group with stopped members gets SIGHUP and SIGCONT).
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, process_group=0,
                env={**os.environ, "PYTHONPATH": str(Path(edgespec.__file__).parents[1])},
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise PeerError(f"{command[0]} does not start: {error.strerror or error}") from error
        try:
            self.about = self.ask(settings)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, object]) -> Message:
        """Send a request and wait for its reply; the process runs only meanwhile.

        Raises:
            PeerError: the peer failed, ended, or took too long. After the last two it is `dead`.
        """
        self._signal(signal.SIGCONT)
        try:
            self._send(json.dumps(request).encode() + b"\n")
            reply = self._receive()
        finally:
            self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise PeerError(str(reply["error"]))
        return reply

    @property
    def dead(self) -> bool:
        """Whether it can be asked no more."""
        return self._process.poll() is not None

    def cpu_s(self) -> float | None:
        """Processor time of all its threads in seconds; None where the system does not tell.

        Source: clock_getcpuclockid(3); the id is made of the process id (Linux, include/linux/posix-timers.h).
        """
        if not sys.platform.startswith("linux") or self.dead:
            return None
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def close(self) -> None:
        """End it, whatever it is doing. May be called twice."""
        self._signal(signal.SIGKILL)
        self._process.wait(_KILLED_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that was never read
                    pipe.close()

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._why()) from None

    def _receive(self) -> Message:
        assert self._process.stdout is not None
        pipe, deadline_s = self._process.stdout.fileno(), time.monotonic() + self._timeout_s
        while b"\n" not in self._left:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                self._signal(signal.SIGKILL)
                self._process.wait(_KILLED_WITHIN_S)
                raise PeerError(f"no answer within {self._timeout_s:g} s")
            more = os.read(pipe, 1 << 16)
            if not more:
                raise PeerError(self._why())
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        reply: Message = json.loads(line)
        return reply

    def _why(self) -> str:
        """How the process ended, and the last it said."""
        code = self._process.wait(_KILLED_WITHIN_S)
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), None)
        return f"{ended}: {last}" if last else ended

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.killpg(self._process.pid, number)


class Revived:
    """A worker that is started when it is first needed, and again after a crash, but not for ever."""

    def __init__(self, start: Callable[[], Worker], n_lives: int = 3) -> None:
        """`n_lives`: how often it may be started."""
        self._start = start
        self._n_lives = n_lives
        self._last = ""
        self.worker: Worker | None = None

    def ask(self, request: Mapping[str, object]) -> Message:
        """As `Worker.ask`.

        Raises:
            PeerError: it failed, or did so too often before.
        """
        try:
            return self._alive().ask(request)
        except PeerError as error:
            self._last = str(error)
            raise

    def cpu_s(self) -> float | None:
        """As `Worker.cpu_s`; None also where there is none."""
        return self.worker.cpu_s() if self.worker is not None else None

    def close(self) -> None:
        """End the process, if there is one."""
        if self.worker is not None:
            self.worker.close()

    def _alive(self) -> Worker:
        if self.worker is not None and not self.worker.dead:
            return self.worker
        if self._n_lives == 0:
            raise PeerError(self._last)
        self._n_lives -= 1
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        self.worker = self._start()
        return self.worker
