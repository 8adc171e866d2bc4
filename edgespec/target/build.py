"""What the installed llama.cpp was built with, and which kernels that gives to each kind of weights.

`python -m edgespec.target.build` prints it as JSON: asked that way, a library that crashes takes only the child along.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from edgespec.errors import DeviceError, EdgespecError
from edgespec.target import lib

_CHILD_S = 60.0
"""Loading the library takes less than a second; on a cold SD card several."""
_TILED = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})
_COMMON = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "F16")
"""The weight types of the files that people download; Q4_K_M is Q4_K with Q6_K for some tensors."""

# Names in llama.cpp's system info against the kernel's names in /proc/cpuinfo, for what changes its kernels.
_ON_X86 = {
    "AVX": "avx", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma", "BMI2": "bmi2", "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}  # fmt: skip
_ON_ARM = {"DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "FP16_VA": "asimdhp", "SVE": "sve"}


@dataclass(frozen=True, slots=True)
class Build:
    """The installed llama.cpp. Names of features as it prints them: "AVX2", "DOTPROD", "OPENMP"."""

    package: str | None = None
    """Version of llama-cpp-python."""
    ggml: str | None = None
    commit: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    """Features compiled in, to their value (1, or a size as for SVE_CNT); what is not named is not compiled in."""
    repacked: tuple[str, ...] = ()
    """Weight types it copies into the layout of its fast kernels while loading."""
    error: str | None = None
    """Why nothing is known of it."""

    def has(self, feature: str) -> bool:
        """Whether it was compiled with a feature."""
        return bool(self.features.get(feature))

    def lacks(self, cpu: frozenset[str]) -> tuple[str, ...]:
        """Features that this processor has (by the kernel's names) and the build does not use."""
        return tuple(name for name, flag in self._known(cpu) if flag in cpu and not self.has(name))

    def exceeds(self, cpu: frozenset[str]) -> tuple[str, ...]:
        """Features that the build uses and this processor does not have: an illegal instruction sooner or later."""
        return tuple(name for name, flag in self._known(cpu) if flag not in cpu and self.has(name))

    def _known(self, cpu: frozenset[str]) -> tuple[tuple[str, str], ...]:
        return tuple((_ON_ARM if cpu & {"asimd", "neon"} else _ON_X86).items())


def read_build() -> Build:
    """Load the library and ask it.

    Raises:
        ModelError: llama-cpp-python is not installed.
        DeviceError: its library does not load.
    """
    info = _text("llama_print_system_info") or ""
    return Build(
        package=_package(),
        ggml=_text("ggml_version"),
        commit=_text("ggml_commit"),
        features={name: int(value) for name, value in re.findall(r"(\w+) = ([0-9]+)", info)},
        repacked=tuple(sorted(lib.repacked_types())),
    )


def probe_build(command: tuple[str, ...] = (sys.executable, "-P", "-m", "edgespec.target.build")) -> Build:
    """`read_build` in a child process, which `command` starts; whatever happens to it becomes `error`."""
    if not command[0]:  # an embedded interpreter has no file
        return Build(package=_package(), error="there is no Python program to ask it with")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            return Build(package=_package(), error=f"its library crashes when it is loaded ({name})")
        if done.returncode > 0:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return Build(package=_package(), error=f"it cannot be asked ({reason})")
        answer = json.loads(done.stdout)
        return Build(**{**answer, "repacked": tuple(answer["repacked"])})
    except subprocess.TimeoutExpired:
        return Build(package=_package(), error=f"its library does not answer within {_CHILD_S:.0f} s")
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Build(package=_package(), error=f"it cannot be asked ({error})")


def kernels(build: Build) -> dict[str, str]:
    """What a pass of several rows runs on, for each common weight type.

    Source: llama.cpp as vendored in llama-cpp-python 0.3.36: ggml-cpu/repack.cpp (GEMM over whole fours of rows, one
    GEMV for each row left over), ggml-cpu/tiled/tiled.cpp (x86, from 8 rows on), ggml-cpu/llamafile/sgemm.cpp (from 2
    rows on; F16 on Arm from 8), and the `nrows` of ggml-cpu/ggml-cpu.c (pairs of rows with i8mm).
    """
    return {kind: _kernel(build, kind) for kind in _COMMON}


def _kernel(build: Build, kind: str) -> str:
    x86 = build.has("AVX")
    if kind in build.repacked:
        return "repacked GEMM, rows in fours"
    if x86 and kind in _TILED:
        return "row by row to 7 rows, tiled from 8 on"
    if build.has("LLAMAFILE"):
        if x86 and kind in {"Q4_0", "Q8_0", "IQ4_NL", "F16"}:
            return "tiled from 2 rows on (llamafile)"
        if build.has("DOTPROD") and kind in {"Q4_0", "Q8_0"}:
            return "tiled from 2 rows on (llamafile)"
        if build.has("FP16_VA") and kind == "F16":
            return "row by row to 7 rows, tiled from 8 on (llamafile)"
    if build.has("MATMUL_INT8") and kind in {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"}:
        return "row by row, in pairs where the rows are even"
    return "row by row"


def _text(function: str) -> str | None:
    try:
        answer = lib.symbol(function, ctypes.c_char_p, ())()
    except DeviceError:
        lib.native()  # what does not load at all is an error, one missing name is not
        return None
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else None


def _package() -> str | None:
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def _main() -> None:
    try:
        build = read_build()
    except EdgespecError as error:
        build = Build(package=_package(), error=str(error))
    sys.stdout.write(json.dumps(asdict(build)) + "\n")


if __name__ == "__main__":
    _main()
