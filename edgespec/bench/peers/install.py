"""The environment that llama-server's worker runs in: thrown away and made again at will, apart from edgespec's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from edgespec import paths
from edgespec.errors import ConfigError

PACKAGE = "xllamacpp==2026.10.11549"
"""Wheels for x86-64 and aarch64. Pinned: the attributes its worker sets are those of llama.cpp at that time."""


def folder() -> Path:
    """Where it is, or would be.

    Raises:
        ConfigError: no home folder is known.
    """
    return paths.cache_dir() / "peers" / "xllamacpp"


def python(home: Path) -> Path | None:
    """Its interpreter; None where it is not there, not complete, or holds another version of the package."""
    mark = home / "installed"
    found = home / "bin" / "python"
    complete = mark.is_file() and mark.read_text(encoding="utf-8") == PACKAGE and found.is_file()
    return found if complete else None


def install(home: Path) -> Path:
    """Make it, whatever was there before.

    Raises:
        ConfigError: it cannot be made; with the last that was said about it.
    """
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)], "an environment cannot be made")
    found = home / "bin" / "python"
    _run([str(found), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", PACKAGE], f"no {PACKAGE} here")
    (home / "installed").write_text(PACKAGE, encoding="utf-8")
    return found


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ConfigError(f"{problem}: {said[-1].strip() if said else f'exit code {done.returncode}'}")
