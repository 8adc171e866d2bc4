"""Asks the system for a lower clock, without privileges, and takes the wish back.

Two systems listen. Where the frequency governor is schedutil (Android, many distributions on Arm), a thread may set an
upper clamp on its own utilisation, which is what the governor makes the clock from. On laptops, power-profiles-daemon
lets a program hold the profile "power-saver" while it runs: for all programs, and how far the clock falls is the
firmware's choice. Elsewhere (Raspberry Pi OS: ondemand) the clock is root's.
Source: Linux Documentation/scheduler/sched-util-clamp.rst and schedutil.rst; powerprofilesctl(1). Android's apps may
make the call: bionic libc/SECCOMP_ALLOWLIST_COMMON.TXT.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable

from edgespec.core.heat import Slowing
from edgespec.device.sysfs import Sysfs, within

_GOVERNORS = frozenset({"schedutil", "sched_pixel"})
"""The second is that of Google's phones, made from the first."""
_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose hardware takes the preference that the power profile sets."""
_FULL = 1024
"""Utilisation of a fastest core at its highest clock."""
_PATIENCE_S = 0.5
_MARGIN = 1.25
"""schedutil adds this to utilisation. Source: schedutil.rst. From kernel 6.8 on it is added below the clamp, and the
clock is lower than asked by this factor."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_ATTR = struct.Struct("<IIQiIQQQII")
_KEEP_ALL, _CLAMP_MAX = 0x18, 0x40
"""Flags of struct sched_attr: leave policy and parameters; the upper clamp is given. Source: linux/sched.h."""


class Clock:
    """The clock of our threads. Call it from one thread."""

    def __init__(
        self,
        sysfs: Sysfs,
        cpus: Iterable[int],
        *,
        path: str | None = None,
        set_clamp: Callable[[int, int], str | None] | None = None,
    ) -> None:
        """Find out how this system listens.

        Args:
            sysfs: the machine.
            cpus: cores that the threads run on.
            path: replaces the environment's PATH.
            set_clamp: replaces the system call: thread id (0: the calling one) and clamp (0..1024) to a refusal.
        """
        self._set_clamp = set_clamp or _set_clamp
        self._path = path
        self._holder: subprocess.Popen[bytes] | None = None
        self._clamped: dict[int, int] = {}
        self.slowing: Slowing | None = None
        """How it listens; None: it does not."""
        self.reason: str | None = None
        """Why it does not, in plain words."""
        self._find(sysfs, tuple(cpus))

    def ask(self, share: float | None, threads: Iterable[int] = (0,)) -> str | None:
        """Ask for at most `share` of the highest clock (0..1; None: no cap any more); why that was refused.

        `threads` are the ids of all that compute now; a power profile has no use for them. After a refusal `slowing`
        is None. A wish that stands costs nothing to repeat: do it about once a second, for threads that are new and
        to see whether the profile is still held.
        """
        if self.slowing == "clamp":
            self.reason = self._clamp(_FULL if share is None else round(_FULL * share / _MARGIN), threads)
        elif self.slowing == "saver":
            if share is None:
                self._release()
            else:
                self.reason = self._hold()
        if self.reason is not None:
            self.slowing = None
        return self.reason

    def close(self) -> None:
        """Take the wish back. May be called twice."""
        for thread, clamp in self._clamped.items():
            if clamp != _FULL:
                self._set_clamp(thread, _FULL)
        self._clamped = {}
        self._release()

    def _find(self, sysfs: Sysfs, cpus: tuple[int, ...]) -> None:
        def read(name: str) -> set[str | None]:
            return {sysfs.read_text(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}") for cpu in cpus}

        found = within(_PATIENCE_S, lambda: (read("scaling_governor"), read("scaling_driver")), None)
        if found is None:
            self.reason = "the files of the frequency governor do not answer"
            return
        governors, drivers = found
        if governors and governors <= _GOVERNORS:
            self.reason = self._set_clamp(0, _FULL)
            if self.reason is None:
                self.slowing = "clamp"
        elif drivers and drivers <= _DRIVERS:
            if shutil.which("powerprofilesctl", path=self._path):
                self.slowing = "saver"
            else:
                self.reason = "powerprofilesctl is not installed"
        else:
            named = ", ".join(sorted(name or "unknown" for name in governors)) or "unknown"
            self.reason = f"the frequency governor ({named}) takes no wishes of programs"

    def _clamp(self, clamp: int, threads: Iterable[int]) -> str | None:
        # Threads that are new may have inherited a clamp; those that are gone are forgotten: their ids are used again.
        before, self._clamped = self._clamped, {}
        for thread in threads:
            if before.get(thread) != clamp:
                refused = self._set_clamp(thread, clamp)
                if refused is not None:
                    self._clamped = before | self._clamped
                    return refused
            self._clamped[thread] = clamp
        return None

    def _hold(self) -> str | None:
        if self._holder is not None:
            status = self._holder.poll()
            if status is None:
                return None
            self._release()
            return f"powerprofilesctl ended with {status}"
        found = shutil.which("powerprofilesctl", path=self._path)
        if found is None:
            return "powerprofilesctl is not installed"
        # `cat` ends when our end of its input is closed, however that happens. Ctrl-C (for an answer) is not for it.
        command = [found, "launch", "-p", "power-saver", "-r", "saving energy", "-i", "edgespec", "cat"]
        try:
            self._holder = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"powerprofilesctl cannot be run: {error.strerror}"
        return None

    def _release(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None
        holder.stdin.close()
        try:
            holder.wait(1.0)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


def _set_clamp(thread: int, clamp: int) -> str | None:
    """Set the upper clamp of a thread; why it was refused. A thread that has ended needs none."""
    number = _SCHED_SETATTR.get(platform.machine()) if struct.calcsize("P") == 8 else None
    if number is None or not hasattr(os, "sched_setaffinity"):
        return "utilisation clamps are unknown on this system"
    attr = _ATTR.pack(_ATTR.size, 0, _KEEP_ALL | _CLAMP_MAX, 0, 0, 0, 0, 0, 0, clamp)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_int(thread), attr, ctypes.c_uint(0)) == 0:
        return None
    error = ctypes.get_errno()
    if isinstance(OSError(error, ""), ProcessLookupError):
        return None
    return f"the kernel refused a clamp ({os.strerror(error)})"
