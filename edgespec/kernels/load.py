"""Puts the compiled kernels in front of ggml while llama.cpp is loaded, tests them there, and switches them on and off.

One ggml a process, so one state a process.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgespec.errors import DeviceError
from edgespec.kernels.compiled import GGML, find_built, library_folder, remark_on

_N_CASES = 300
"""Of the test at every load; about 10 ms."""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the kernels compute, and why not."""

    active: bool
    reason: str
    """One line for people."""
    instruction_set: str | None = None
    """What they are made for; None where they are not loaded."""
    test_ms: float | None = None
    """What the self-test at load took; None: it did not run, or failed."""

    @property
    def in_force(self) -> str | None:
        """What the kernels that compute are made for; None: ggml's own compute."""
        return self.instruction_set if self.active else None

    def __str__(self) -> str:
        """One line for people."""
        return f"{'on' if self.active else 'off'}: {self.reason}"


_status = Status(False, "not asked for")
_library: Any = None
"""Set where the test passed."""
_tried = False


def status() -> Status:
    """What this process computes with."""
    return _status


def named(instruction_set: str | None) -> str:
    """The kernels made for it, for people; None: ggml's own."""
    return "ggml's own kernels" if instruction_set is None else f"{instruction_set} kernels{remark_on(instruction_set)}"


@contextmanager
def loading(features: frozenset[str] | None) -> Iterator[None]:
    """Load the kernels, let the block load llama.cpp behind them, then test and switch them on.

    Nothing here is an error: whatever is missing, differs or fails leaves ggml's own kernels, and `status` says why.
    Kernels that this process has already tested are only switched on again.
    """
    global _library, _status, _tried
    if _tried:
        yield
        if _library is not None:
            _status = _arm(_library, _status)
        return
    try:
        library, instruction_set, folder = _open(features)
    except DeviceError as problem:
        _status = Status(False, str(problem))
        yield
        return
    yield
    _tried = True
    _status = _test(library, instruction_set, folder)
    if _status.test_ms is not None:
        _library = library
        _status = _arm(library, _status)


def leave_off(reason: str) -> Status:
    """Compute with ggml's own kernels from now on; between two passes, not during one."""
    global _status
    if _library is not None:
        _library.edgespec_arm(False)
    _status = replace(_status, active=False, reason=reason)
    return _status


def n_shares() -> int:
    """Shares of a matrix product's columns that the kernels computed in this process so far."""
    return 0 if _library is None else int(_library.edgespec_n_shares())


def _open(features: frozenset[str] | None) -> tuple[Any, str, Path]:
    built, folder = find_built(features), library_folder()
    ggml = folder / "libggml-cpu.so.0"
    if _is_loaded(ggml):
        raise DeviceError("llama.cpp was loaded before the kernels")
    try:
        # Global: its names are found before those of libraries that come later, ggml's among them.
        library = ctypes.CDLL(str(built.library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DeviceError(f"the kernels do not load ({error})") from error
    return declare(library), built.instruction_set, folder


def declare(library: Any) -> Any:
    """Give the functions of a loaded kernel library their prototypes."""
    library.edgespec_arm.restype = ctypes.c_char_p
    library.edgespec_arm.argtypes = [ctypes.c_bool]
    library.edgespec_self_test.restype = ctypes.c_char_p
    library.edgespec_self_test.argtypes = [ctypes.c_uint64, ctypes.c_int]
    library.edgespec_n_shares.restype = ctypes.c_uint64
    return library


def _test(library: Any, instruction_set: str, folder: Path) -> Status:
    problem = version_problem(folder)
    if problem is not None:
        return Status(False, problem)
    began_s = time.perf_counter()
    # Other data in every process, so that in time many machines have tried much.
    problem = text_of(library.edgespec_self_test(int.from_bytes(os.urandom(7), "little"), _N_CASES))
    if problem is not None:
        return Status(False, f"the self-test failed: {problem}")
    return Status(False, "tested", instruction_set, (time.perf_counter() - began_s) * 1e3)


def _arm(library: Any, tested: Status) -> Status:
    problem = text_of(library.edgespec_arm(True))
    return replace(tested, active=problem is None, reason=problem or named(tested.instruction_set))


def version_problem(folder: Path) -> str | None:
    """Why the loaded ggml is not the one that the kernels are written for; None: it is."""
    try:
        base = ctypes.CDLL(str(folder / "libggml-base.so.0"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        base.ggml_version.restype = ctypes.c_char_p
        found = text_of(base.ggml_version())
    except (OSError, AttributeError) as error:
        return f"ggml does not say its version ({error})"
    return None if found == GGML else f"the kernels are written for ggml {GGML}, not {found}"


def text_of(answer: bytes | None) -> str | None:
    """A C string as Python has it."""
    return None if answer is None else answer.decode("utf-8", "replace")


def _is_loaded(library: Path) -> bool:
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True
