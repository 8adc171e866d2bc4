#!/usr/bin/env python3
"""Instructions that ggml's kernels and edgespec's take for 1 to 16 rows on 64-bit Arm, counted by QEMU.

    .venv/bin/python scripts/arm/count_rows.py          the tables of docs/cheap-rows-arm.md
    .venv/bin/python scripts/arm/count_rows.py --make   only what they, and tests/test_kernels_arm.py, need

Debian or a relative, after `scripts/arm/biglittle setup`, whose cross compiler, root and cache folder are used. Once:
fetches llama.cpp's sources and, where it is not installed, QEMU's user mode; compiles ggml's CPU library twice, some
minutes each. What is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import DeviceError
from edgespec.kernels import compiled

ROOT = Path(__file__).parents[2]
COMPILER = "aarch64-linux-gnu-gcc"
_CMAKE = (
    "-GNinja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=OFF", "-DGGML_OPENMP=ON",
    *(f"-DLLAMA_BUILD_{name}=OFF" for name in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")), "-DLLAMA_CURL=OFF",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor that QEMU emulates, and how ggml is compiled for it."""

    name: str
    form: compiled.InstructionSet | None
    """edgespec's kernels for it; None: there are none, and ggml is compiled for the oldest 64-bit Arm."""
    chunk: int
    """Bytes of a column, or row, that follow each other in ggml's repacked blocks; 0: it does not repack."""
    features: str
    """The line of /proc/cpuinfo."""


_I8MM, _DOTPROD = compiled.ARM_SETS
_PI_4 = "fp asimd evtstrm crc32 cpuid"
_PI_5 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
CPUS = (
    Cpu("cortex-a72", None, 0, _PI_4),
    Cpu("cortex-a76", _DOTPROD, 4, _PI_5),
    Cpu("max", _I8MM, 8, f"{_PI_5} sve i8mm bf16"),
)


@dataclass(frozen=True, slots=True)
class Count:
    """What one pass takes, and how right it is."""

    n_rows: int
    taken: bool
    """edgespec's kernels compute such passes."""
    n_stock: int
    """Instructions of ggml's functions."""
    n_ours: int | None
    """Instructions of edgespec's; None: there is no such function."""
    stock_differs: int
    """Outputs of ggml's functions that are not, bit for bit, those of its function for one row."""
    ours_differs: int


def cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of scripts/arm/biglittle."""
    return Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache") / "edgespec/arm"


def part(folder: Path, name: str) -> Path:
    """The newest part of the cache with this name.

    Raises:
        DeviceError: there is none.
    """
    found = sorted(folder.glob(f"{name}-*/.whole"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise DeviceError(f"{folder} has no {name}: run scripts/arm/biglittle setup")
    return found[-1].parent


def _own(folder: Path) -> Path:
    """Where this script keeps its things."""
    text = (ROOT / "scripts/arm/aarch64.cmake").read_text() + _requirement() + " ".join(_CMAKE)
    return folder / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _requirement() -> str:
    match = re.search(r'"(llama-cpp-python==[0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    assert match, "pyproject.toml pins llama-cpp-python"
    return match[1]


class Emulated:
    """One emulated processor, with Debian's root, and the ggml that is compiled for it.

    Raises:
        DeviceError: something that `make` makes is missing.
    """

    def __init__(self, cpu: Cpu, work: Path, folder: Path) -> None:
        self.cpu, self.work = cpu, work
        self.qemu = _qemu(_own(folder))
        self.ggml = _own(folder) / f"ggml-{cpu.form.name}" if cpu.form else part(folder, "llama")
        if not (self.ggml / "libggml-cpu.so.0").is_file():
            raise DeviceError(f"{self.ggml} is missing: run scripts/arm/count_rows.py --make")
        if shutil.which(COMPILER) is None:
            raise DeviceError(f"{COMPILER} is missing: run scripts/arm/biglittle setup")
        # Programs find the root's files, and this processor in /proc/cpuinfo, below the prefix, all else outside of it.
        self.prefix = work / "prefix"
        (self.prefix / "proc").mkdir(parents=True)
        for name in ("usr", "lib", "bin"):
            (self.prefix / name).symlink_to(part(folder, "debian") / "root" / name)
        lines = (f"processor\t: {i}\nFeatures\t: {cpu.features}\n" for i in range(2))
        (self.prefix / "proc/cpuinfo").write_text("\n".join(lines))

    def command(self, *arguments: str | Path) -> list[str]:
        """The command that runs an Arm program; the first argument may be an option of QEMU."""
        return [str(self.qemu), "-cpu", self.cpu.name, "-L", str(self.prefix), *map(str, arguments)]

    def counts(self, n: int, n_columns: int) -> list[Count]:
        """Passes of 1 to 16 rows over a matrix of `n_columns` columns of n weights.

        Raises:
            DeviceError: a compiler fails, or the program does.
        """
        here, noted = Path(__file__).parent, self.work / "marks"
        plugin, program = self.work / "plugin.so", self.work / "count_rows"
        _run("cc", "-O2", "-shared", "-fPIC", "-o", plugin, here / "count_plugin.c")
        _run(COMPILER, "-O2", "-o", program, here / "count_rows.c")
        arguments: list[str | Path] = [self.ggml / "libggml-cpu.so.0", str(self.cpu.chunk), str(n), str(n_columns)]
        if self.cpu.form:
            library = self.work / "rows.so"
            compiled.compile_library((COMPILER,), self.cpu.form, library, ("-fvisibility=default",))
            arguments.append(library)
        said = _run(*self.command("-plugin", f"{plugin},out={noted}", program, *arguments))
        marks = [int(line) for line in noted.read_text().split()]
        found = []
        for i, line in enumerate(said.splitlines()):
            n_rows, taken, stock_differs, ours_differs = map(int, line.split())
            before, between, after = marks[3 * i : 3 * i + 3]
            ours = after - between if self.cpu.form and 1 < n_rows < 16 else None
            found.append(Count(n_rows, bool(taken), between - before, ours, stock_differs, ours_differs))
        return found


def _qemu(own: Path) -> Path:
    """QEMU's user mode with plugins: installed, or fetched.

    Raises:
        DeviceError: neither.
    """
    for path in (shutil.which("qemu-aarch64"), own / "qemu/usr/bin/qemu-aarch64"):
        if path is not None and Path(path).is_file():
            return Path(path)
    raise DeviceError("qemu-aarch64 is missing: run scripts/arm/count_rows.py --make")


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program prints.

    Raises:
        DeviceError: it fails.
    """
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    except OSError as error:
        raise DeviceError(f"{command[0]} does not run ({error})") from error
    if done.returncode != 0:
        raise DeviceError(f"{command[0]} fails: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def make(folder: Path) -> None:
    """Fetch and compile what is missing.

    Raises:
        DeviceError: it cannot be had.
    """
    own = _own(folder)
    own.mkdir(parents=True, exist_ok=True)
    try:
        _qemu(own)
    except DeviceError:
        with tempfile.TemporaryDirectory(dir=own) as scratch:
            _run("apt-get", "download", "qemu-user", cwd=Path(scratch))
            _run("dpkg-deb", "-x", next(Path(scratch).glob("*.deb")), own / "qemu")
    for form in compiled.ARM_SETS:
        into = own / f"ggml-{form.name}"
        if into.is_dir():
            continue
        build = own / f"build-{form.name}"
        arch = form.flags[0].removeprefix("-march=")
        toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'scripts/arm/aarch64.cmake'}"
        print(f"compiling ggml for {arch}", file=sys.stderr, flush=True)
        _run("cmake", "-S", _sources(own), "-B", build, *_CMAKE, toolchain, f"-DGGML_CPU_ARM_ARCH={arch}")
        _run("cmake", "--build", build, "-j", str(os.cpu_count()), "--target", "ggml-cpu")
        part = Path(f"{into}.part")
        shutil.rmtree(part, ignore_errors=True)  # of an earlier run, or not there
        shutil.copytree(build / "bin", part, symlinks=True, ignore=shutil.ignore_patterns("libllama*"))
        part.rename(into)  # whole or not at all
        shutil.rmtree(build)
    for sources in own.glob("llama_cpp_python-*"):
        shutil.rmtree(sources)


def _sources(own: Path) -> Path:
    """llama.cpp's sources, fetched if need be."""
    if not any(own.glob("llama_cpp_python-*/vendor")):
        with tempfile.TemporaryDirectory(dir=own) as scratch:
            pip = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps")
            _run(*pip, "--no-binary", "llama-cpp-python", "--dest", scratch, _requirement())
            _run("tar", "-xzf", next(Path(scratch).glob("*.tar.gz")), "-C", own)
    return next(own.glob("llama_cpp_python-*")) / "vendor/llama.cpp"


def table(counts: list[Count], n_columns: int) -> str:
    """Markdown: for each number of rows, instructions for an output, and what edgespec's kernels save."""
    one = counts[0].n_stock
    lines = ["| rows | ggml | in passes of one row | edgespec | saved | taken |", "|---|---|---|---|---|---|"]
    for count in counts:
        n_outputs = count.n_rows * n_columns
        ours, saved = "–", "–"
        if count.n_ours is not None:
            ours, saved = f"{count.n_ours / n_outputs:.0f}", f"{1 - count.n_ours / count.n_stock:.0%}"
        cells = (count.n_rows, f"{count.n_stock / n_outputs:.0f}", f"{count.n_stock / one:.2f}", ours, saved)
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if count.taken else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, count, and print."""
    parser = argparse.ArgumentParser(description="Counts instructions of kernels for few rows on 64-bit Arm.")
    parser.add_argument("--make", action="store_true", help="only make what counting needs")
    parser.add_argument("--weights", type=int, default=2048, metavar="N", help="of a column (default: 2048)")
    parser.add_argument("--columns", type=int, default=256, metavar="N", help="of the matrix (default: 256)")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        make(cache())
        for cpu in () if options.make else CPUS:
            with tempfile.TemporaryDirectory() as work:
                counts = Emulated(cpu, Path(work), cache()).counts(options.weights, options.columns)
            wrong = sum(count.stock_differs + count.ours_differs for count in counts)
            print(f"\n{cpu.name}, {cpu.form.name if cpu.form else 'no dot products'}; {wrong} outputs differ\n")
            print(table(counts, options.columns), flush=True)


if __name__ == "__main__":
    try:
        main()
    except DeviceError as problem:
        sys.exit(f"count_rows: {problem}")
