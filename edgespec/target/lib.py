"""llama.cpp's C API, loaded on first use: the only file of the project that imports llama_cpp.

Knows how to import the binding on every platform, keep its log quiet, bind symbols the binding lacks, and raise an
abort flag without Python in the compute threads. Knows nothing of models, contexts, or batches.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgespec.errors import DeviceError, ModelError

_LOG_ERROR = 4  # ggml.h counts NONE, DEBUG, INFO, WARN, ERROR, CONT; the binding's comment has another order
_LOG_CONTINUE = 5
_REPACKED_X86 = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_REPACKED_ARM = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"})

# One library a process, so one state a process. Callbacks handed to C must outlive the library: keep them here.
_native: Any = None
_verbose = False
_captured: list[tuple[int, str]] | None = None
_interrupted = False
_capture_callback: Any = None
_silent_callback: Any = None


def native() -> Any:
    """The ctypes module of the binding (`llama_cpp.llama_cpp`), imported and silenced on the first call.

    Raises:
        ModelError: llama-cpp-python is not installed.
        DeviceError: its shared library does not load on this machine.
    """
    global _native
    if _native is None:
        module = _import_binding()
        _prepare_callbacks(module)
        _native = module
        _apply_log(module)
        module.llama_backend_init()
    return _native


def _import_binding() -> Any:
    platform = sys.platform
    try:
        if platform == "android":
            # The binding knows "linux" but not the name CPython 3.13 gives Android; the library files are the same.
            sys.platform = "linux"
        return importlib.import_module("llama_cpp.llama_cpp")
    except ModuleNotFoundError as error:
        name = error.name or "llama_cpp"
        if name.split(".")[0] == "llama_cpp":
            raise ModelError("llama-cpp-python is not installed: pip install llama-cpp-python==0.3.36") from error
        raise ModelError(f"llama-cpp-python needs the missing package {name}: pip install {name}") from error
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeviceError(
            f"llama.cpp's library does not load ({reason}): "
            "reinstall it with pip install --force-reinstall --no-binary :all: llama-cpp-python==0.3.36"
        ) from error
    finally:
        sys.platform = platform


def symbol(name: str, restype: Any, argtypes: Sequence[Any]) -> Any:
    """A C function by name with a prototype of its own, apart from the binding's.

    Raises:
        DeviceError: the library does not export it.
    """
    library = native()._lib
    try:
        function = library[name]
    except (AttributeError, ValueError) as error:
        raise DeviceError(f"llama.cpp's library lacks {name}: install llama-cpp-python==0.3.36") from error
    function.restype = restype
    function.argtypes = list(argtypes)
    return function


def set_verbose(verbose: bool) -> None:
    """Let llama.cpp write its log to stderr, or keep it quiet (the default)."""
    global _verbose
    _verbose = verbose
    if _native is not None:
        _apply_log(_native)


def _prepare_callbacks(module: Any) -> None:
    global _capture_callback, _silent_callback
    # A C function that takes nothing and does nothing serves as a log sink: it ignores the arguments, and threads that
    # log need not take the GIL for it.
    _silent_callback = ctypes.cast(module._lib["llama_max_devices"], module.llama_log_callback)
    _capture_callback = module.llama_log_callback(_capture)


def _apply_log(module: Any) -> None:
    module.llama_log_set(module.llama_log_callback() if _verbose else _silent_callback, None)


def _capture(level: int, text: bytes | None, _user_data: object) -> None:
    global _interrupted
    try:
        decoded = (text or b"").decode("utf-8", "replace")
        if _captured is not None:
            _captured.append((level, decoded))
        if _verbose:
            sys.stderr.write(decoded)
    except KeyboardInterrupt:
        # An exception cannot pass through llama.cpp: ctypes would print and drop it. It is raised afterwards.
        _interrupted = True


@contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Collect llama.cpp's error lines, without their function prefix, while the block runs.

    The list is filled when the block ends. Not for blocks that decode: the log callback takes the GIL.
    """
    global _captured, _interrupted
    module = native()
    records: list[tuple[int, str]] = []
    lines: list[str] = []
    _captured = records
    module.llama_log_set(_capture_callback, None)
    try:
        yield lines
    finally:
        _captured = None
        _apply_log(module)
        text, previous = "", 0
        for level, part in records:
            previous = previous if level == _LOG_CONTINUE else level
            if previous == _LOG_ERROR:
                text += part
        lines.extend(without_prefix(line) for line in text.splitlines() if line.strip())
        if _interrupted:
            _interrupted = False
            raise KeyboardInterrupt


def without_prefix(line: str) -> str:
    """A log line without the name of the C function at its head."""
    head, separator, tail = line.strip().partition(": ")
    return tail if separator and " " not in head else line.strip()


def cpu_has(feature: str) -> bool:
    """Whether the library was built with, and the CPU has, a feature ("avx2", "dotprod", "matmul_int8", ...)."""
    try:
        return bool(symbol(f"ggml_cpu_has_{feature}", ctypes.c_int, ())())
    except DeviceError:
        return False


def repacked_types() -> frozenset[str]:
    """Weight types this build copies into another layout while loading (ggml's CPU repack).

    Source: ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`, as vendored in llama-cpp-python 0.3.36.
    """
    if cpu_has("avx2"):
        return _REPACKED_X86 | (frozenset({"Q2_K"}) if cpu_has("avx512") else frozenset())
    if cpu_has("neon") and (cpu_has("matmul_int8") or cpu_has("dotprod")):
        return _REPACKED_ARM
    return frozenset()


class AbortFlag:
    """A flag that llama.cpp polls in C between two graph nodes.

    The C library's `strlen` is the abort callback and a two-byte buffer its argument: one written byte makes the
    length, and so the answer, non-zero. Compute threads then never wait for the GIL.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self._address = ctypes.addressof(self._buffer)
        self._set = False
        self.callback = _strlen()
        """The function to register, or None where the C library's symbol cannot be found."""

    @property
    def argument(self) -> ctypes.c_void_p:
        """Address of the buffer, valid as long as this object."""
        return ctypes.c_void_p(self._address)

    def __bool__(self) -> bool:
        return self._set

    def up(self) -> None:
        """Raise the flag; safe from any thread and from a signal handler."""
        self._set = True
        self._buffer[0] = b"\x01"

    def down(self) -> None:
        """Lower the flag."""
        self._buffer[0] = b"\x00"
        self._set = False


def _strlen() -> Any:
    try:
        library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        return ctypes.cast(library["strlen"], native().ggml_abort_callback)
    except (OSError, AttributeError, TypeError):
        return None
