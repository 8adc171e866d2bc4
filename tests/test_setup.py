"""Set-up ends well with kernels and without: a line says which."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_SETUP = Path(__file__).parents[1] / "scripts/setup.sh"
_NONE = "none, ggml's own are used"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo avx2 kernels are built", "built, and they give ggml's results bit for bit"),
        ("echo 'edgespec: no C compiler works here' >&2; exit 4", f"{_NONE} (no C compiler works here)"),
        ("printf 'a\\nedgespec: the trial crashes (SIGILL)\\n' >&2; exit 4", f"{_NONE} (the trial crashes (SIGILL))"),
        ("kill -KILL $$", f"{_NONE} (building them ended without a word)"),
    ],
    ids=["built", "no compiler", "a trial that fails", "killed"],
)  # fmt: skip
def test_kernels_are_built_where_that_is_possible_and_set_up_goes_on(does: str, said: str, tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    asked = tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho "$@" >{asked}\n{does}\n')
    python.chmod(0o755)
    script = f'source "{_SETUP}"; venv="{tmp_path}"; build_kernels && echo went on'
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("went on\n", f"edgespec: kernels for cheap drafts: {said}\n")
    assert asked.read_text() == "-P -m edgespec kernels build\n"
