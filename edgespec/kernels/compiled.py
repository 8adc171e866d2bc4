"""Compiles the kernels for this processor and this ggml into the cache, tries them in a child, and finds them again.

Knows nothing of how they are loaded into a process that computes with them (`edgespec.kernels.load`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from edgespec import paths
from edgespec.errors import DeviceError

GGML = "0.25.3"
"""The version whose names, layouts and order of operations the sources follow."""
HOW = "run `edgespec kernels build`"
"""What mends kernels that are missing or damaged; the end of the reason then."""
SOURCES = Path(__file__).parent / "c"
_COMMON = (
    "hook.c", "attention.c", "shares.c", "unpacked.c", "k.c", "selftest.c", "selftest_k.c", "hook.h", "rows.h",
    "shares.h", "unpacked.h", "k.h", "selftest.h",
)  # fmt: skip
_ARM_COMMON = ("hook_arm.c", "attention.c", "selftest_arm.c", "hook.h", "rows_arm.h", "selftest.h")
_FLAGS = (
    "-std=c11", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete",
    "-Wl,-z,defs",
)  # fmt: skip
_LIBRARIES = ("-ldl", "-lpthread", "-lm")
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_S, _TRIAL_S = 120.0, 60.0
_MAX_BYTES = 2**20
_CPU_LIBRARY = "libggml-cpu.so.0"


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One form of the kernels. `needs`: features by the Linux kernel's names; `flags`: what the compiler is told.

    `common`: sources it shares with other forms. `remark`: what people should know of it, or empty.
    `types`: of the weights.
    """

    name: str
    sources: tuple[str, ...]
    needs: frozenset[str]
    flags: tuple[str, ...]
    common: tuple[str, ...] = _COMMON
    remark: str = ""
    types: tuple[str, ...] = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX2_SOURCES = ("q4_0_avx2.c", "unpacked_avx2.c", "k_avx2.c")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_DOTPROD = frozenset({"asimd", "asimddp", "atomics"})  # the last: what compilers make of armv8.2-a may need it
_IN_ORDER = "-fno-schedule-insns"  # else GCC loads early what then lacks registers, a sixth more instructions
_UNMEASURED, _ARM_TYPES = "fewer instructions, unmeasured on hardware", ("Q4_0",)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
SETS = (
    InstructionSet(
        "avx512vnni", ("q4_0_avx512vnni.c", "unpacked_avx512vnni.c", "k_avx512vnni.c"),
        _AVX2 | {*_AVX512, "avx512_vnni"},
        (*_AVX2_FLAGS, *(f"-m{name}" for name in _AVX512), "-mavx512vnni"),
    ),
    InstructionSet("avxvnni", _AVX2_SOURCES, _AVX2 | {"avx_vnni"}, (*_AVX2_FLAGS, "-mavxvnni")),
    InstructionSet("avx2", _AVX2_SOURCES, _AVX2, _AVX2_FLAGS),
)  # fmt: skip
"""Fastest first."""
ARM_SETS = (
    InstructionSet(
        "i8mm", ("q4_0_arm.c",), _DOTPROD | {"i8mm"}, ("-march=armv8.2-a+dotprod+i8mm", _IN_ORDER), _ARM_COMMON,
        _UNMEASURED, _ARM_TYPES,
    ),
    InstructionSet(
        "dotprod", ("q4_0_arm.c",), _DOTPROD, ("-march=armv8.2-a+dotprod", _IN_ORDER), _ARM_COMMON, _UNMEASURED,
        _ARM_TYPES,
    ),
)  # fmt: skip
"""For 64-bit Arm, fastest first; docs/cheap-rows-arm.md says why they come with a remark."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled library in the cache, and what became of it when it was tried."""

    library: Path
    instruction_set: str
    compiler: str
    sha256: str
    problem: str | None
    """Why it must not be used; None: it passed the trial."""


def set_for(features: frozenset[str] | None) -> InstructionSet:
    """The fastest form for a processor with these features.

    Raises:
        DeviceError: there is none for it, or for this operating system.
    """
    # Windows and macOS tie every symbol to the library it was found in at link time: nothing can be put in front.
    if not sys.platform.startswith(("linux", "android")):
        raise DeviceError(f"no kernels for {platform.system()}: its loader cannot put a library in front of ggml's")
    for found in (*SETS, *ARM_SETS):
        if found.needs <= (features or frozenset()):
            return found
    needs = "asimddp (dot products)" if platform.machine() in ("aarch64", "arm64") else "AVX2, FMA and F16C"
    raise DeviceError(f"no kernels for this processor ({platform.machine()}): they need at least {needs}")


def remark_on(instruction_set: str) -> str:
    """What people should know of these kernels, with a comma before it; empty where there is nothing."""
    return next((f", {form.remark}" for form in (*SETS, *ARM_SETS) if form.name == instruction_set and form.remark), "")


def types_for(features: frozenset[str] | None) -> tuple[str, ...]:
    """Types of weights that there are kernels for on a processor with these features."""
    try:
        return set_for(features).types
    except DeviceError:
        return ()


def library_folder() -> Path:
    """Where llama.cpp's libraries are, as the binding will look for them.

    Raises:
        DeviceError: not installed, or not the ggml that the kernels are written for.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise DeviceError("llama-cpp-python is not installed")
    given = os.environ.get("LLAMA_CPP_LIB_PATH")
    folder = Path(given) if given else Path(spec.submodule_search_locations[0]) / "lib"
    if not (folder / _CPU_LIBRARY).is_file():
        raise DeviceError(f"{folder} holds no {_CPU_LIBRARY}: llama.cpp is built otherwise than these kernels need")
    if not (folder / f"libggml-cpu.so.{GGML}").is_file():
        raise DeviceError(f"the kernels are written for ggml {GGML}, and {folder} holds another version")
    return folder


def find_built(features: frozenset[str] | None) -> Built:
    """The library for this processor and this ggml, as built earlier, whole and tried.

    Raises:
        DeviceError: there is none that may be used, and why.
    """
    form, folder = set_for(features), library_folder()
    place = _place(form, features, folder)
    try:
        manifest = place / "rows.json"
        with manifest.open("rb") as file:
            raw = json.loads(file.read(_MAX_BYTES))
        built = Built(
            place / "rows.so", str(raw["instruction_set"]), str(raw["compiler"]), str(raw["sha256"]),
            None if raw["problem"] is None else str(raw["problem"]),
        )  # fmt: skip
        sha256 = _sha256(built.library)
    except FileNotFoundError:
        raise DeviceError(f"not built for this processor and this ggml: {HOW}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DeviceError(f"what was built cannot be read ({error}): {HOW}") from error
    if sha256 != built.sha256:
        raise DeviceError(f"{built.library} is damaged: {HOW}")
    if built.problem is not None:
        raise DeviceError(built.problem)
    return built


def build(features: frozenset[str] | None) -> Built:
    """Compile and try the kernels, and keep them with the outcome, in place of what was there.

    Raises:
        DeviceError: no kernels for this machine, no compiler, or it fails; nothing is kept then.
    """
    form, folder = set_for(features), library_folder()
    place = _place(form, features, folder)
    command, compiler = _compiler()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as work:
            library = Path(work) / "rows.so"
            compile_library(command, form, library)
            problem = try_library(library, folder)
            built = Built(place / "rows.so", form.name, compiler, _sha256(library), problem)
            manifest = Path(work) / "rows.json"
            manifest.write_text(json.dumps({**asdict(built), "library": "rows.so"}) + "\n", encoding="utf-8")
            # A library without its manifest is not used, so the old one goes first and the new one comes last. The old
            # file is replaced, not written: another process may have it mapped.
            (place / "rows.json").unlink(missing_ok=True)
            library.replace(built.library)
            manifest.replace(place / "rows.json")
    except OSError as error:
        raise DeviceError(f"the kernels cannot be kept in {place} ({error.strerror or error})") from error
    return built


def compile_library(command: tuple[str, ...], form: InstructionSet, library: Path, extra: tuple[str, ...] = ()) -> None:
    """Compile one form of the kernels with `extra` flags.

    Raises:
        DeviceError: the compiler fails, or takes more than two minutes.
    """
    sources = [str(SOURCES / name) for name in (*form.common, *form.sources) if name.endswith(".c")]
    name = f'-DGGML_CPU="{_CPU_LIBRARY}"'
    try:
        done = subprocess.run(
            [*command, *_FLAGS, *form.flags, *extra, name, "-o", str(library), *sources, *_LIBRARIES],
            capture_output=True, text=True, errors="replace", timeout=_COMPILE_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"the kernels cannot be compiled ({error})") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = next((line for line in lines if "error" in line), lines[-1] if lines else f"exit {done.returncode}")
        raise DeviceError(f"the kernels cannot be compiled ({reason})")


def try_library(library: Path, folder: Path) -> str | None:
    """Run the kernels in a child process; None, or what went wrong, a crash too."""
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-m", "edgespec.kernels.trial", str(library), str(folder)),
            capture_output=True, text=True, errors="replace", timeout=_TRIAL_S, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # three threads that spin take long on a busy machine
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial does not end as it should ({error})"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        with contextlib.suppress(ValueError):  # a signal without a name
            return f"the trial crashes ({signal.Signals(-done.returncode).name})"
        return f"the trial crashes (signal {-done.returncode})"
    return (done.stderr.strip().splitlines() or [f"the trial fails (exit code {done.returncode})"])[-1]


def _compiler() -> tuple[tuple[str, ...], str]:
    """The command of the C compiler, and what it says of itself."""
    given = os.environ.get("CC", "")
    for command in ([shlex.split(given)] if given.strip() else []) + [[name] for name in _COMPILERS]:
        if shutil.which(command[0]) is None:
            continue
        try:
            done = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=_COMPILE_S,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue  # the next one may work
        if done.returncode == 0:
            return tuple(command), (done.stdout.splitlines() or ["unknown"])[0]
    raise DeviceError("no C compiler works here: install one (Debian: apt install gcc; Termux: pkg install clang)")


def _place(form: InstructionSet, features: frozenset[str] | None, folder: Path) -> Path:
    """The folder of what is built from these sources, for this processor and this ggml.

    The compiler is not part of the name: a library that passed its trial stays right when the compiler changes or goes.
    """
    library = (folder / _CPU_LIBRARY).resolve()
    stat = library.stat()
    facts = [form.name, *form.flags, *_FLAGS, *sorted(features or ()), GGML, library, stat.st_size, stat.st_mtime_ns]
    digest = hashlib.sha256("\n".join(map(str, facts)).encode())
    for name in (*form.common, *form.sources):
        digest.update(b"\0" + (SOURCES / name).read_bytes())
    return paths.cache_dir() / "kernels" / digest.hexdigest()[:24]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_MAX_BYTES)).hexdigest()
