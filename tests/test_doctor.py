"""The doctor: who runs where, what the installed llama.cpp can do, and what a person is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.device.features import cpu_features
from edgespec.device.placement import placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Core, CoreClass, Topology
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
    assert cpu_features(Sysfs(tmp_path)) == {"fp", "asimd"}
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: spectre_v1\n")
    assert cpu_features(Sysfs(tmp_path)) == {"fpu", "avx2"}
    info.write_text("processor\t: 0\nFeatures\t: \n")
    assert cpu_features(Sysfs(tmp_path)) is None
