"""The doctor: who runs where, what the installed llama.cpp can do, and what a person is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_tree
import gguf_maker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import doctor
from edgespec.advice import advise
from edgespec.cli import main as cli
from edgespec.conditions import Conditions
from edgespec.config import EngineConfig
from edgespec.device.features import cpu_features
from edgespec.device.placement import placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Core, CoreClass, Topology
from edgespec.doctor import Findings, ModelFacts
from edgespec.engine import Engine
from edgespec.kernels import Status
from edgespec.target import build as builds
from edgespec.target.build import Build, kernels, probe_build


def cores(kinds: str) -> tuple[Core, ...]:
    """One core a letter: p and e for the classes, ? for unknown; capitals are offline."""
    names: dict[str, CoreClass] = {"p": "performance", "e": "efficiency", "?": "unknown"}
    return tuple(
        Core(number, letter.islower() or letter == "?", names[letter.lower()]) for number, letter in enumerate(kinds)
    )


def topology(kinds: str, usable: str = "", homogeneous: bool | None = None, cpu_limit: float | None = None) -> Topology:
    """`usable` marks cores in the same columns by an x; left out: those online."""
    found = cores(kinds)
    marked = [core.id for core in found if (usable[core.id : core.id + 1] == "x" if usable else core.online)]
    return Topology(
        cores=found,
        performance=tuple(core.id for core in found if core.kind == "performance"),
        efficiency=tuple(core.id for core in found if core.kind == "efficiency"),
        homogeneous="e" not in kinds.lower() if homogeneous is None else homogeneous,
        usable=tuple(marked),
        cpu_limit=cpu_limit,
        source="cpu_capacity",
    )


@pytest.mark.parametrize(
    ("kinds", "usable", "target", "drafter", "why"),
    [
        ("eeeepppp", "", (4, 5, 6, 7), (0, 1, 2, 3), "efficiency cores"),
        ("ppppeeee", "", (0, 1, 2, 3), (4, 5, 6, 7), "efficiency cores"),  # fast cores need not come last
        ("eeeePPPP", "", (0, 1, 2, 3), (), "needs every usable core"),  # hotplugged
        ("eeeepppp", "xxx.....", (0, 1, 2), (), "needs every usable core"),  # Android's background cpuset
        ("eeeepppp", ".....xxx", (5, 6, 7), (), "no efficiency core is usable"),
        ("eeeepppp", "...xx...", (4,), (3,), "efficiency cores"),
        ("pppp", "", (0, 1, 2, 3), (), "all cores are of one kind (no core is set aside"),
        ("pp", "", (0, 1), (), "all cores are of one kind"),
        ("e???", "xxxx", (0, 1, 2, 3), (), "needs every usable core"),
        ("ep??", "xxxx", (1,), (0,), "efficiency cores"),
    ],
)
def test_who_runs_where(kinds: str, usable: str, target: tuple[int, ...], drafter: tuple[int, ...], why: str) -> None:
    found = placement(topology(kinds, usable))
    assert (found.target, found.drafter) == (target, drafter)
    assert why in found.why_drafter
    assert found.why_drafter.startswith("inline") == (drafter == ())


def test_a_reason_names_what_is_left_out_and_what_is_not_known() -> None:
    assert "cores 2 and 3 are left out: of unknown kind" in placement(topology("ep??")).why_target
    assert "core 2 is left out" in placement(topology("ep?")).why_target
    assert "in the background" in placement(topology("eepp", "xx..")).why_target
    assert "none of them is known to be a performance core" in placement(topology("e?")).why_target


@given(st.text("pe?PE", min_size=1, max_size=12), st.text("x.", max_size=12), st.booleans())
def test_placement_keeps_to_the_usable_cores(kinds: str, usable: str, homogeneous: bool) -> None:
    if not topology(kinds, usable).usable:
        usable = "x"
    machine = topology(kinds, usable, homogeneous)
    found = placement(machine)
    assert found.target
    assert not set(found.target) & set(found.drafter)
    assert {*found.target, *found.drafter} <= set(machine.usable)
    assert list(found.target) == sorted(found.target)
    assert list(found.drafter) == sorted(found.drafter)
    assert found.why_target
    assert found.why_drafter


def features(flags: str) -> frozenset[str]:
    return frozenset(flags.split())


PI_5 = features("fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp")
PI_4 = features("fp asimd evtstrm crc32 cpuid")
ZEN_4 = features("fma f16c avx avx2 bmi2 avx512f avx512vbmi avx512_vnni avx512_bf16")
PLAIN_ARM = Build("0.3.36", features={"NEON": 1, "ARM_FMA": 1, "LLAMAFILE": 1, "OPENMP": 1, "REPACK": 1})
AVX_512 = Build(
    "0.3.36",
    features=dict.fromkeys(
        ("AVX", "AVX2", "F16C", "FMA", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "LLAMAFILE"), 1
    ),
    repacked=("IQ4_NL", "MXFP4", "Q2_K", "Q4_0", "Q4_K"),
)


def test_a_build_against_its_processor() -> None:
    assert PLAIN_ARM.lacks(PI_5) == ("DOTPROD", "FP16_VA")
    assert PLAIN_ARM.lacks(PI_4) == ()
    assert PLAIN_ARM.exceeds(PI_4) == ()
    assert Build(features={"DOTPROD": 1, "NEON": 1}).exceeds(PI_4) == ("DOTPROD",)
    assert (AVX_512.lacks(ZEN_4), AVX_512.exceeds(ZEN_4)) == ((), ())
    assert AVX_512.exceeds(ZEN_4 - {"avx512_bf16"}) == ("AVX512_BF16",)


def test_kernels_by_weight_type() -> None:
    on_avx = kernels(AVX_512)
    assert on_avx["Q4_0"] == on_avx["Q4_K"] == "repacked GEMM, rows in fours"
    assert on_avx["Q6_K"] == "row by row to 7 rows, tiled from 8 on"
    assert on_avx["Q8_0"] == "tiled from 2 rows on (llamafile)"
    assert on_avx["Q4_1"] == "row by row"
    assert set(kernels(PLAIN_ARM).values()) == {"row by row"}
    i8mm = Build(features={"NEON": 1, "DOTPROD": 1, "MATMUL_INT8": 1, "FP16_VA": 1, "LLAMAFILE": 1}, repacked=("Q4_0",))
    assert kernels(i8mm)["Q4_1"] == "row by row, in pairs where the rows are even"
    assert kernels(i8mm)["F16"] == "row by row to 7 rows, tiled from 8 on (llamafile)"
    assert kernels(i8mm)["Q8_0"] == "tiled from 2 rows on (llamafile)"


def test_the_installed_build_is_what_the_child_says() -> None:
    assert probe_build() == builds.read_build()
    assert probe_build().error is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "crashes when it is loaded (SIGILL)"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('rubbish')", "cannot be asked"),
        ("print('[]')", "cannot be asked"),
    ],
)
def test_a_library_that_crashes_stops_nothing(code: str, reason: str) -> None:
    found = probe_build((sys.executable, "-c", code))
    assert reason in (found.error or "")
    assert found.package == "0.3.36"


def test_a_child_that_hangs_or_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be asked" in (probe_build(("/no/such/program",)).error or "")
    assert "no Python program" in (probe_build(("",)).error or "")
    monkeypatch.setattr(builds, "_CHILD_S", 0.05)
    found = probe_build((sys.executable, "-c", "import time; time.sleep(60)"))
    assert "does not answer" in (found.error or "")


def test_features_are_those_of_every_core(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc/cpuinfo"
    assert cpu_features(Sysfs(tmp_path)) is None
    info.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n\nprocessor\t: 1\nFeatures\t: fp asimd\n")
    assert cpu_features(Sysfs(tmp_path)) == features("fp asimd")
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: spectre_v1\n")
    assert cpu_features(Sysfs(tmp_path)) == features("fpu avx2")
    info.write_text("processor\t: 0\nFeatures\t: \n")
    assert cpu_features(Sysfs(tmp_path)) is None


def findings(**changes: Any) -> Findings:
    machine = topology("eepp")
    usual = Findings(
        root=None,
        processor="Some chip",
        features=PI_5,
        topology=machine,
        placement=placement(machine),
        conditions=Conditions(0.0),
        free_bytes=None,
        page_bytes=4096,
        cpuset=None,
        affinity=(0, 1, 2, 3),
        build=Build("0.3.36", features={"NEON": 1, "DOTPROD": 1, "FP16_VA": 1, "OPENMP": 1}, repacked=("Q4_0",)),
        rows=Status(True, "made-up kernels", "made-up"),
        models=(),
        packages={},
        python="3.11.0",
        system=None,
        notes=(),
    )
    return replace(usual, **changes)


def advice(**changes: Any) -> str:
    return "\n".join(f"{item.what} | {item.why} | {item.basis}" for item in advise(findings(**changes)))


def test_no_advice_without_a_reason() -> None:
    assert advice() == ""
    assert advice(features=None) == ""


def test_advice_on_the_build() -> None:
    assert "the processor has DOTPROD, the build lacks it" in advice(build=replace(PLAIN_ARM, repacked=()))
    assert "does not have: it will crash (illegal instruction)" in advice(features=PI_4)
    assert "without OpenMP" in advice(build=Build("0.3.36", features={"NEON": 1, "DOTPROD": 1}))
    assert "llama.cpp: it is gone | found here" in advice(build=Build(error="it is gone"))
    # Nothing is said of kernels that only make fast ones a little faster.
    assert advice(features=PI_5 | {"sve"}) == ""
    assert advice(build=None) == ""


NO_KERNELS = Status(False, "no kernels for this processor")


def test_advice_on_kernels() -> None:
    missing = Status(False, "not built for this processor and this ggml: run `edgespec kernels build`")
    told = advice(rows=missing)
    assert told.startswith("For cheaper drafts, build edgespec's kernels: edgespec kernels build | not built for this ")
    assert "ggml; on a two-core server" in told
    assert told.endswith("| measured elsewhere")
    assert advice(rows=NO_KERNELS) == ""
    assert advice(rows=Status(False, "switched off by `edgespec kernels off`")) == ""
    assert advice(rows=None) == ""
    q4_1 = ModelFacts("m", "configured", Path("/m.gguf"), "Q4_1", 10, 20, 512)
    q5_1, on_x86 = replace(q4_1, quantisation="Q5_1"), {"features": ZEN_4, "build": AVX_512}
    without_openmp = advice(**on_x86)
    assert advice(models=(q4_1,), **on_x86) == without_openmp  # they have it, too
    assert advice(models=(q4_1,), rows=missing, **on_x86).count("\n") == 1
    assert "take a Q4_0 file instead of Q5_1" in advice(models=(q5_1,), **on_x86)
    assert "take a Q4_0 file instead of Q4_1" in advice(models=(q4_1,))  # on Arm they are for Q4_0 alone


def test_advice_on_a_model() -> None:
    q4_1 = ModelFacts("m", "configured", Path("/m.gguf"), "Q4_1", 10, 20, 512)
    assert "take a Q4_0 file instead of Q4_1" in advice(models=(q4_1,), rows=NO_KERNELS)
    assert advice(models=(replace(q4_1, quantisation="Q4_0"),)) == ""
    assert advice(models=(replace(q4_1, quantisation="Q8_0"),)) == ""  # chosen for its quality
    plain = replace(PLAIN_ARM, features={"DOTPROD": 1, "OPENMP": 1})
    assert advice(models=(q4_1,), build=plain, rows=NO_KERNELS) == ""
    shared = replace(q4_1, quantisation="Q4_0", path=Path("/storage/emulated/0/m.gguf"))
    assert "0.27 tokens a second" in advice(models=(shared,))
    assert "m needs more | found here" in advice(models=(replace(q4_1, quantisation="Q4_0", problem="m needs more"),))
    assert "m: not here" in advice(models=(ModelFacts("m", "configured", problem="not here"),))
    assert advice(models=(ModelFacts("m", "default", problem="not here"),)) == ""


def test_advice_on_the_device() -> None:
    assert "Bring the program to the foreground" in advice(topology=topology("eepp", "xx.."))
    assert advice(topology=topology("eePP")) == ""  # they are offline: no cpuset took them
    assert "grants 1.5 of 4 cores" in advice(topology=topology("pppp", "x...", cpu_limit=1.5))
    assert advice(topology=topology("pppp", cpu_limit=4.0)) == ""
    assert "take 1.2 cores now" in advice(conditions=Conditions(0.0, busy_others=1.2))
    assert "cool" in advice(conditions=Conditions(0.0, throttled=True, heat_source="cpu-thermal"))
    weak = Conditions(0.0, throttled=True, notes=("undervoltage earlier since boot: use a better power supply",))
    assert advice(conditions=weak) == (
        "Use a better power supply or cable. | the firmware reports undervoltage earlier since boot | found here"
    )


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(["doctor", *args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the sensors without a pause, and take a known build for the installed one."""
    monkeypatch.setattr(doctor, "_BETWEEN_S", 0.0)
    monkeypatch.setattr(doctor, "probe_build", lambda: AVX_512)


def as_object(text: str) -> dict[str, Any]:
    found = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert isinstance(found, dict)
    return found


WANTED = {
    "cpus", "performance", "efficiency", "homogeneous", "usable", "cpu_limit", "target_cpus", "drafter_cpus", "thermal",
    "notes", "advice", "llama_cpp", "models", "packages", "features", "memory", "power", "load", "affinity",
}  # fmt: skip


def test_this_machine_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json")
    assert (code, err) == (0, "")
    found = as_object(out)
    assert set(found) >= WANTED
    assert found["llama_cpp"]["package"] == "0.3.36"
    assert set(found["target_cpus"]) <= set(found["usable"])
    assert all(set(core) >= {"id", "online", "class", "capacity", "max_khz"} for core in found["cpus"])
    assert found["models"][0]["problem"] == "not on this machine: edgespec models pull smollm2-135m"


def test_this_machine_in_words(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    for word in ("processor", "target", "drafter", "llama-cpp-python 0.3.36", "Q4_0", "onnxruntime", "advice"):
        assert word in out


def test_what_is_unknown_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    code, out, _ = run(capsys, "--root", str(tmp_path))
    assert code == 0
    lines = [line for line in out.splitlines() if "unknown" in line]
    assert len(lines) >= 5
    assert all(":" in line or ", " in line for line in lines)
    found = as_object(run(capsys, "--root", str(tmp_path), "--json")[1])
    assert set(found) >= WANTED
    assert found["thermal"] == dict.fromkeys(("headroom", "temp_c", "source", "throttled", "freq_cap"))


def test_a_root_shows_nothing_of_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("vcgencmd", "termux-battery-status"):
        path = tmp_path / "bin" / command
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho throttled=0x50005\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    root = tmp_path / "root"
    for name, text in {
        "sys/devices/system/cpu/present": "0-3",
        "sys/devices/system/cpu/online": "0-3",
        "proc/device-tree/model": "Raspberry Pi 4",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = as_object(run(capsys, "--root", str(root), "--json")[1])
    assert found["usable"] == [0, 1, 2, 3]
    assert found["thermal"]["throttled"] is None
    assert not (tmp_path / "asked").exists()
    own = ("affinity", "llama_cpp", "kernels", "system", "python", "features", "processor")
    assert [found[key] for key in own] == [None] * len(own)
    assert found["memory"] == {"free_bytes": None, "page_bytes": None}
    assert found["load"] == {"busy_others": None, "pressure": None}
    assert found["models"] == []
    assert found["packages"] == {}


@pytest.mark.parametrize(
    ("make", "message"), [(False, "no such folder"), (True, "has neither sys nor proc in it; unpack a capture there")]
)
def test_a_folder_that_is_no_root(capsys: pytest.CaptureFixture[str], tmp_path: Path, make: bool, message: str) -> None:
    root = tmp_path / "root"
    if make:
        root.mkdir()
    assert run(capsys, "--root", str(root)) == (2, "", f"edgespec: --root {root}: {message}\n")
    assert run(capsys, "--json", "--root", str(root), "--capture", str(tmp_path / "f"))[0] == 2
    assert not (tmp_path / "f").exists()


def test_missing_packages_stop_nothing(tmp_path: Path) -> None:
    """None of them can be imported, neither here nor in the child that asks llama.cpp."""
    for package in ("llama_cpp", "psutil", "onnxruntime"):
        (tmp_path / f"{package}.py").write_text(
            "print('a warning of its own')\nraise ImportError('not for this system')\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "edgespec", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    found = as_object(done.stdout)
    assert "not for this system" in found["llama_cpp"]["error"] or "cannot be asked" in found["llama_cpp"]["error"]
    assert found["llama_cpp"]["kernels"] is None
    assert "Install llama.cpp's binding" in found["advice"][0]["what"]
    assert found["target_cpus"]


def test_a_broken_configuration_is_a_note(
    quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_THREADS", "many")
    code, out, _ = run(capsys, "--json")
    assert code == 0
    assert any("EDGESPEC_THREADS must be" in note for note in as_object(out)["notes"])


def test_what_the_engine_measured_is_shown(
    quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_maker.make(tmp_path / "tiny.gguf")
    monkeypatch.setenv("EDGESPEC_MODEL", str(path))
    before = as_object(run(capsys, "--json")[1])["models"]
    assert [(model["name"], model["role"]) for model in before] == [
        ("smollm2-135m", "default"),
        (str(path), "configured"),
    ]
    assert before[1]["pass_s"] is None
    assert before[1]["need_bytes"] > 0
    with Engine.open(path, EngineConfig(model=str(path))):
        pass
    after = as_object(run(capsys, "--json")[1])["models"][1]
    assert after["pass_s"]["1"] > 0
    assert "measured here: 1 row" in run(capsys)[1]


def test_help_is_cheap() -> None:
    code = (
        "import sys\nfrom edgespec.cli.main import run\nrun(['doctor', '--help'])\n"
        "heavy = ['numpy', 'llama_cpp', 'rich', 'requests', 'gguf', 'edgespec.doctor', 'edgespec.device.topology']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "--capture FILE" in done.stdout
    assert "edgespec doctor --json" in done.stdout


@pytest.mark.parametrize("name", device_tree.names())
def test_recorded_devices(quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """The model gets the fast cores that are online, the drafter the slow ones; a recording says the same."""
    record = device_tree.load(name)
    root, file = device_tree.write(device_tree.files(record), tmp_path / "root"), tmp_path / "file"
    code, out, _ = run(capsys, "--root", str(root), "--capture", str(file))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    found = as_object(run(capsys, "--root", str(root), "--json")[1])
    fast, slow = (sorted(record.right[kind] & record.online) for kind in ("performance", "efficiency"))
    if found["homogeneous"] or not fast:
        assert (found["target_cpus"], found["drafter_cpus"]) == (sorted(record.online), [])
    else:
        assert (found["target_cpus"], found["drafter_cpus"]) == (fast, slow)
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path / "copy", filter="data")
    copy = as_object(run(capsys, "--root", str(tmp_path / "copy"), "--json")[1])
    assert {**found, "root": None} == {**copy, "root": None}
