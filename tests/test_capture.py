"""A capture gives the same findings elsewhere, and nothing about the machine's owner."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import main as cli
from edgespec.device.capture import record, write_capture
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology

CPU, THERMAL, SUPPLY, GROUP = "sys/devices/system/cpu", "sys/class/thermal", "sys/class/power_supply", "sys/fs/cgroup"
ADDRESS, SERIAL, USER, HOST = "00:1a:7d:da:71:13", "S3R1ALN0", "jane", "janes-phone"


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def phone(root: Path) -> Path:
    """Two little cores, one big one, one offline; a group with a quota; personal data wherever a system puts it."""
    folder = f"{GROUP}/user.slice/user-{USER}.slice/docker-0f1e2d3c"
    files: dict[str, str | bytes] = {
        f"{CPU}/possible": "0-3\n",
        f"{CPU}/present": "0-3\n",
        f"{CPU}/online": "0-2\n",
        f"{CPU}/offline": "3\n",
        f"{CPU}/cpu3/online": "0\n",
        f"{CPU}/cpu0/uevent": f"OWNER={USER}\n",
        "proc/cpuinfo": "".join(
            f"processor\t: {cpu}\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
            for cpu, part in enumerate(("0xd03", "0xd03", "0xd09"))
        )
        + f"Hardware\t: Some chip\nRevision\t: {SERIAL}\nSerial\t\t: {SERIAL}\n",
        "proc/sys/kernel/hostname": HOST,
        "proc/version": f"Linux version 6.1 ({USER}@{HOST})",
        "proc/self/environ": f"HOME=/home/{USER}",
        "proc/self/cgroup": f"0::/user.slice/user-{USER}.slice/docker-0f1e2d3c\n",
        f"{folder}/cpu.max": "150000 100000\n",
        f"{GROUP}/user.slice/cpuset.cpus.effective": "0-2\n",
        f"{folder}/cpuset.cpus.effective": "1-2\n",
        "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 600000 kB\n",
        f"{THERMAL}/thermal_zone0/type": "cpu-thermal\n",
        f"{THERMAL}/thermal_zone0/temp": "71000\n",
        f"{THERMAL}/thermal_zone0/trip_point_0_type": "passive\n",
        f"{THERMAL}/thermal_zone0/trip_point_0_temp": "85000\n",
        f"{THERMAL}/thermal_zone1/type": f"hid-{ADDRESS}-battery\n",
        f"{THERMAL}/thermal_zone1/temp": "30000\n",
        f"{THERMAL}/thermal_zone2/type": b"cpu\xff\n",
        f"{THERMAL}/cooling_device0/type": "cpufreq-cpu2\n",
        f"{THERMAL}/cooling_device0/cur_state": "1\n",
        f"{THERMAL}/cooling_device0/max_state": "4\n",
        "sys/class/hwmon/hwmon0/name": f"hid_{ADDRESS.replace(':', '_')}_battery\n",
        "sys/class/hwmon/hwmon1/name": "nvme\n",
        "sys/class/hwmon/hwmon1/temp1_input": "35000\n",
        "sys/class/hwmon/hwmon1/serial": SERIAL,
        "sys/class/net/wlan0/address": ADDRESS,
        f"{SUPPLY}/BAT0/type": "Battery\n",
        f"{SUPPLY}/BAT0/capacity": "55\n",
        f"{SUPPLY}/BAT0/status": "Discharging\n",
        f"{SUPPLY}/BAT0/serial_number": f"{SERIAL}\n",
        f"{SUPPLY}/BAT0/model_name": f"{USER}'s battery\n",
        f"{SUPPLY}/hid-{ADDRESS}-battery/type": "Battery\n",
        f"{SUPPLY}/hid-{ADDRESS}-battery/scope": "Device\n",
        f"{SUPPLY}/hid-{SERIAL}-battery/type": "Battery\n",
        f"{SUPPLY}/hid-{SERIAL}-battery/scope": "Device\n",
    }
    for cpu, (khz, capacity) in enumerate(((1_800_000, 400), (1_800_000, 400), (2_800_000, 1024))):
        policy = 2 if cpu == 2 else 0
        files[f"{CPU}/cpu{cpu}/cpu_capacity"] = f"{capacity}\n"
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu}\n"
        files[f"{CPU}/cpufreq/policy{policy}/cpuinfo_max_freq"] = f"{khz}\n"
        files[f"{CPU}/cpufreq/policy{policy}/scaling_max_freq"] = f"{khz // 2}\n"
        files[f"{CPU}/cpufreq/policy{policy}/related_cpus"] = "2\n" if cpu == 2 else "0 1\n"
    tree(root, files)
    for cpu in range(3):
        (root / CPU / f"cpu{cpu}/cpufreq").symlink_to(f"../cpufreq/policy{2 if cpu == 2 else 0}")
    return root


def doctor(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert cli.run(["doctor", "--json", *args]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def unpacked(file: Path, folder: Path) -> Path:
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_read_elsewhere_it_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, file = phone(tmp_path / "phone"), tmp_path / "phone.tar.gz"
    before = doctor(capsys, "--root", str(root), "--capture", str(file))
    after = doctor(capsys, "--root", str(unpacked(file, tmp_path / "copy")))
    assert before.pop("root") != after.pop("root")
    assert before == after
    # ... and it was worth saying.
    assert after["usable"] == [2]
    assert after["cpuset"] == [1, 2]
    assert after["cpu_limit"] == 1.5
    assert after["thermal"]["temp_c"] == 71.0
    assert after["thermal"]["throttled"] is True
    assert after["power"]["battery"] == 0.55
    assert after["memory"]["free_bytes"] == 600000 * 1024
    assert [core["online"] for core in after["cpus"]] == [True, True, True, False]


def test_a_capture_of_a_capture_is_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    for folder, file in ((phone(tmp_path / "phone"), first), (tmp_path / "copy", second)):
        sysfs = Sysfs(folder)
        write_capture(file, record(sysfs, read_topology(sysfs), path=""))
        unpacked(file, tmp_path / "copy")
    assert first.read_bytes() == second.read_bytes()


def test_it_says_nothing_about_the_owner(tmp_path: Path) -> None:
    sysfs, file = Sysfs(phone(tmp_path / "phone")), tmp_path / "phone.tar.gz"
    write_capture(file, record(sysfs, read_topology(sysfs), path=""))
    with tarfile.open(file) as tar:
        members = tar.getmembers()
        texts = [entry.read().decode() for member in members if (entry := tar.extractfile(member))]
    text = "\n".join([*(member.name for member in members), *texts]).lower()
    for private in (ADDRESS, ADDRESS.replace(":", "_"), SERIAL, USER, HOST, "docker", "user.slice", str(tmp_path)):
        assert private.lower() not in text
    assert {member.name.split("/")[0] for member in members} == {"proc", "sys"}
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "", "", 0)
    }
    assert all(member.isfile() or member.isdir() for member in members)
    assert "sys/class/power_supply/supply0/type" in {member.name for member in members}
    # What a sensor reads stays, also of those that are not the processor's.
    assert "battery\n" in texts
    assert "nvme\n" in texts


def test_a_file_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, file = phone(tmp_path / "phone"), tmp_path / "mine"
    file.write_text("dear")
    assert cli.run(["doctor", "--root", str(root), "--capture", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"edgespec: --capture {file}: exists already; name a new file\n"
    assert file.read_text() == "dear"
    assert cli.run(["doctor", "--root", str(root), "--capture", str(tmp_path / "no/such/folder")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_half_a_capture_is_not_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    root = phone(tmp_path / "phone")
    file = tmp_path / "file"

    class Full(type(file)):  # type: ignore[misc]  # the class differs between Python's versions
        def open(self, *_: object) -> Any:
            file.touch()
            return Path("/dev/full").open("wb")

    sysfs = Sysfs(root)
    with pytest.raises(OSError, match="No space left"):
        write_capture(Full(file), record(sysfs, read_topology(sysfs), path=""))
    assert not file.exists()


def test_a_pi_whose_kernel_has_no_file_for_it(tmp_path: Path) -> None:
    root = tree(tmp_path / "pi", {f"{CPU}/present": "0-3\n", "proc/device-tree/model": b"Raspberry Pi 5 Model B\0"})
    command = tmp_path / "bin/vcgencmd"
    tree(tmp_path, {"bin/vcgencmd": "#!/bin/sh\necho throttled=0x50005\n"})
    command.chmod(0o755)
    sysfs = Sysfs(root)
    files = record(sysfs, read_topology(sysfs), path=str(command.parent))
    assert files["sys/devices/platform/soc/soc:firmware/get_throttled"] == "50005\n"
    assert files["proc/device-tree/model"] == "Raspberry Pi\n"
    assert "get_throttled" not in str(record(sysfs, read_topology(sysfs), path=""))


@pytest.mark.parametrize("damage", ["empty", "garbage", "folder", "fifo"])
def test_whatever_is_in_place_of_a_file(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = phone(tmp_path / "phone")
    for path in [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]:
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "fifo":
            os.mkfifo(path)
        else:
            path.write_bytes(b"" if damage == "empty" else b"\x01\xff~\n")
    before = doctor(capsys, "--root", str(root), "--capture", str(tmp_path / "file"))
    after = doctor(capsys, "--root", str(unpacked(tmp_path / "file", tmp_path / "copy")))
    assert before.pop("root") != after.pop("root")
    assert before == after


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Sysfs()
    topology = read_topology(here)
    write_capture(tmp_path / "here", record(here, topology))
    copy = read_topology(Sysfs(unpacked(tmp_path / "here", tmp_path / "copy")))
    assert copy.cores == topology.cores
    assert (copy.usable, copy.performance, copy.efficiency) == (
        topology.usable,
        topology.performance,
        topology.efficiency,
    )
    assert copy.cpu_limit == topology.cpu_limit
