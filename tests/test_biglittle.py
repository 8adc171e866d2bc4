"""edgespec on a real Linux kernel with little, middle and big cores, emulated (docs/arm.md says how).

Boots once, runs tests/arm/guest.py there, and judges what that saw. `scripts/arm/biglittle test` runs these.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf_maker
import pytest

pytestmark = pytest.mark.arm

ROOT = Path(__file__).parents[1]
# Read before fixtures clear them: the emulated machine is kept in the user's own cache folder.
_ENVIRONMENT = dict(os.environ)
_LIMIT_S = 240
"""Far above what it takes (a minute): a machine that hangs must not hold up everything else."""

Seen = dict[str, dict[str, Any]]


def boot(data: Path) -> tuple[Seen, str]:
    """One run of the guest's script: what each check saw, and the whole console."""
    done = subprocess.run(
        [ROOT / "scripts/arm/biglittle", "run", ROOT / "tests/arm/guest.py", data],
        env={**_ENVIRONMENT, "EDGESPEC_ARM_LIMIT_S": str(_LIMIT_S)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S + 60,
        check=False,
    )
    console = done.stdout.decode("utf-8", "replace")
    lines = [
        line.strip().removeprefix("@@edgespec ") for line in console.splitlines() if line.startswith("@@edgespec ")
    ]
    seen = [json.loads(line) for line in lines if line.startswith("{")]
    return ({each["check"]: each for each in seen} if "exit 0" in lines else {}), console


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What the guest saw. A machine that does not come up, or not to the end, is started once more."""
    if _ENVIRONMENT.get("EDGESPEC_ARM") != "1":
        pytest.skip("scripts/arm/biglittle test makes the emulated machine and runs these")
    data = tmp_path_factory.mktemp("guest")
    gguf_maker.make(data / "tiny.gguf")
    console = ""
    for _ in range(2):
        seen, console = boot(data)
        if seen:
            return seen
        print("the emulated machine did not finish; its last lines:", console[-3000:], sep="\n", file=sys.stderr)
    pytest.fail(f"the emulated machine did not finish, twice; its last lines:\n{console[-3000:]}")


def saw(guest: Seen, check: str) -> dict[str, Any]:
    seen = guest[check]
    assert "error" not in seen, seen["error"]
    return seen


def test_the_machine_has_three_kinds_of_cores(guest: Seen) -> None:
    seen = saw(guest, "kernel")
    assert seen["capacity"] == [312] * 4 + [727] * 3 + [1024]
    assert seen["max_khz"] == [1803000] * 4 + [2253000] * 3 + [2802000]
    assert seen["allowed"] == list(range(8))
    assert seen["temperature"] == 44790


def test_a_drafted_answer_is_the_plain_one(guest: Seen) -> None:
    seen = saw(guest, "drafted")
    assert seen["tokens"] == seen["plain"]
    assert len(seen["tokens"]) == 120
    assert seen["drafted"] > 0


def test_an_answer_survives_the_background_and_the_way_back(guest: Seen) -> None:
    """Android moves an app that leaves the screen to the little cores; the kernel then drops its pins in silence."""
    seen = saw(guest, "in_background")
    assert set(seen["inside"].values()) <= {"0", "1", "2", "3", "0-3"}, "the kernel did not move it"
    assert seen["n_tokens_meanwhile"] < 120, "the answer had ended before it came back"
    assert seen["tokens"] == seen["plain"]


def test_an_answer_survives_the_loss_of_a_core(guest: Seen) -> None:
    seen = saw(guest, "without_a_core")
    assert seen["online_meanwhile"] == "0-6"
    assert seen["online"] == "0-7"
    assert seen["n_tokens_meanwhile"] < 120, "the answer had ended before it came back"
    assert seen["tokens"] == seen["plain"]


def test_the_kernel_throttles_what_is_heated(guest: Seen) -> None:
    seen = saw(guest, "throttled")
    assert seen["cool"] == [2253000, 2802000]
    assert seen["hot"][0] < 2253000
    assert seen["hot"][1] < 2802000
