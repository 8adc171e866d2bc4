"""edgespec on a real Linux kernel with little, middle and big cores, emulated (docs/arm.md says how).

Boots once, runs tests/arm/guest.py there, and judges what that saw. `scripts/arm/biglittle test` runs these.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import gguf_maker
import pytest

pytestmark = pytest.mark.arm

ROOT = Path(__file__).parents[1]
# Read before fixtures clear them: the emulated machine is kept in the user's own cache folder.
_ENVIRONMENT = dict(os.environ)
_LIMIT_S = 240
"""Far above what it takes (a minute): a machine that hangs must not hold up everything else."""

Seen = dict[str, dict[str, Any]]


class State(NamedTuple):
    """What a round of the heated engine met."""

    max_draft: int
    max_team: int | None
    pace: float
    n_threads: int
    degrees_c: int
    n_readings: int
    """Of the sensors, since it was that warm: looks at them, twice a second; they are read once a second."""


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
def guest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
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
        terminal = request.config.pluginmanager.get_plugin("terminalreporter")
        assert terminal is not None
        terminal.write_line(f"\nthe emulated machine did not finish; its last lines:\n{console[-3000:]}")
    pytest.fail("the emulated machine did not finish, twice; its last lines are above")


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


def test_cores_are_classed_as_they_are(guest: Seen) -> None:
    seen = saw(guest, "topology")
    assert seen["efficiency"] == [0, 1, 2, 3]
    assert seen["performance"] == [4, 5, 6, 7]
    assert seen["middle"] == [4, 5, 6]
    assert seen["prime"] == [7]
    assert seen["usable"] == list(range(8))
    assert seen["source"] == "cpu_capacity"
    assert not seen["homogeneous"]


def test_a_drafted_answer_is_the_plain_one(guest: Seen) -> None:
    assert saw(guest, "loaded")["threads"] == 2
    seen = saw(guest, "drafted")
    assert seen["tokens"] == seen["plain"]
    assert len(seen["tokens"]) == 60
    assert seen["drafted"] > 0


def test_target_and_drafter_are_pinned_apart_and_the_program_is_not(guest: Seen) -> None:
    """The kernel's own word, thread by thread; and the report says the same."""
    seen = saw(guest, "pinned")
    assert seen["tokens"] == seen["plain"]
    assert seen["target"] == ["4-7", "4-7"]  # two threads, and no other of ours bears their name
    assert seen["drafter"] == ["0-3"]
    assert seen["main"] == "0-7"
    assert seen["cpus_target"] == [4, 5, 6, 7]
    assert seen["cpus_drafter"] == [0, 1, 2, 3]


def test_an_answer_survives_the_background_and_the_way_back(guest: Seen) -> None:
    """Android moves an app that leaves the screen to the little cores; the kernel then drops its pins in silence."""
    seen = saw(guest, "in_background")
    assert seen["tokens"] == seen["plain"]
    assert seen["n_tokens_meanwhile"] < 60, "the answer had ended before it came back"
    assert set(seen["inside"].values()) == {"0-3"}, "the kernel did not move it"
    assert set(seen["settled"].values()) == {"0-3"}
    for when in ("before", "back"):
        assert {mask for name, mask in seen[when].items() if name.endswith(" edgespec-decode")} == {"4-7"}
    assert seen["cpus_target"] == [4, 5, 6, 7]


def test_an_answer_survives_the_loss_of_a_core(guest: Seen) -> None:
    seen = saw(guest, "without_a_core")
    assert seen["tokens"] == seen["plain"]
    assert seen["n_tokens_meanwhile"] < 60, "the answer had ended before it came back"
    assert seen["online_meanwhile"] == "0-6"
    assert seen["meanwhile"] == ["4-6"] * 2
    assert seen["online"] == "0-7"
    assert seen["cpus_target"] == [4, 5, 6, 7]


def test_the_kernel_throttles_what_is_heated(guest: Seen) -> None:
    seen = saw(guest, "throttled")
    assert seen["cool"] == [2253000, 2802000]
    assert seen["hot"][0] < 2253000
    assert seen["hot"][1] < 2802000


def test_heat_shortens_drafts_then_the_team_and_passes(guest: Seen) -> None:
    seen = saw(guest, "heated")
    states = [State(*state) for state in seen["states"]]
    assert seen["full"] == 4
    warm = [state for state in states if state.degrees_c == 72]
    hot = [state for state in states if state.degrees_c == 80]
    back = states[1 + max(i for i, state in enumerate(states) if state.degrees_c == 80) :]
    # Warm: shorter drafts, the whole team.
    assert warm[-1].max_draft in {4, 5, 6}
    assert {state.max_team for state in warm} == {None}
    # Past the trip point (75): by the next reading no drafts, one thread less with each second after it.
    caps = {(state.max_draft, state.max_team): state.n_readings for state in reversed(hot)}
    assert caps[0, None] <= 3
    assert caps[0, 3] <= caps[0, None] + 3
    assert caps[0, 2] <= caps[0, 3] + 3
    assert all(state.n_threads <= (state.max_team or 4) for state in states)
    assert {state.n_threads for state in hot} == {4, 3, 2}
    # Cool again: drafts at once, the team thread by thread.
    assert next(state.max_team for state in back if state.max_draft == 15) == 2
    assert states[-1][:4] == (15, None, 0.0, 4)
    # What was really drafted: 8 are asked for where heat allows them.
    assert seen["longest"]["15"] == 8
    assert all(n <= int(cap) for cap, n in seen["longest"].items())
