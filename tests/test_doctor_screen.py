"""What the doctor shows of a folder that somebody sent: nothing that steers a terminal, no more than fits a screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sensor_files import CPU, put

from edgespec.cli import main as cli


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(["doctor", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_file_is_no_root(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "phone.tar.gz"
    file.touch()
    told = f"edgespec: --root {file}: is a file; unpack a capture and name its folder\n"
    assert run(capsys, "--root", str(file)) == (2, "", told)


def test_a_folder_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "Evil \x1b]0;x\x07 \x9b31m \u202e\u200b µ chip"
    zone = "/sys/class/thermal/thermal_zone0"
    put(tmp_path, {"/proc/cpuinfo": f"model name\t: {name}\n", f"{zone}/type": "cpu\x1b[2J", f"{zone}/temp": "45000"})
    _, out, _ = run(capsys, "--root", str(tmp_path))
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "Evil \ufffd]0;x\ufffd \ufffd31m \ufffd\ufffd µ chip" in out
    assert "45.0 °C (from cpu\ufffd[2J)" in out
    assert json.loads(run(capsys, "--root", str(tmp_path), "--json")[1])["processor"] == name


@pytest.mark.parametrize(("n", "more"), [(20, []), (21, ["... and 1 more"]), (1300, ["... and 1,240 more"])])
def test_many_different_cores_fit_a_screen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, n: int, more: list[str]
) -> None:
    """500 clocks; what is left out is counted in cores."""
    khz = {cpu: 1_000_000 + 10_000 * (cpu % 500) for cpu in range(n)}
    clocks = {f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": str(highest) for cpu, highest in khz.items()}
    put(tmp_path, {f"{CPU}/{name}": f"0-{n - 1}" for name in ("present", "online")} | clocks)
    lines = run(capsys, "--root", str(tmp_path))[1].splitlines()
    assert lines[2].split()[:2] == ["cores", ",".join(map(str, range(0, n, 500)))]
    assert "to 1.19 GHz" in lines[21]
    assert [line.strip() for line in lines[22 : 22 + len(more)]] == more
    assert len(lines) < 50
