"""Runs a script in a process of its own, for tests of limits, peaks, and what an import loads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

_TESTS = Path(__file__).parent


def run(code: str, *arguments: object) -> str:
    """What the script prints; it sees the arguments in `sys.argv[1:]` and must end with exit code 0."""
    prelude = f"import sys; sys.path[:0] = [{str(_TESTS.parent)!r}, {str(_TESTS)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
