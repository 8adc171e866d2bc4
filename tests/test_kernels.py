"""Kernels are built, found, refused and switched; whatever goes wrong leaves ggml's own and a reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf_maker
import own_process
import pytest
from kernels_tools import FEATURES, FORMS, changed_sources, needs_kernels

from edgespec import cheap_rows, kernels
from edgespec.config import EngineConfig
from edgespec.device import host
from edgespec.device.sysfs import Sysfs
from edgespec.errors import ConfigError, DeviceError
from edgespec.kernels import Status
from edgespec.kernels import compiled as building
from edgespec.opening import build_name
from edgespec.target import gguf_check
from edgespec.tuning_profile import Choice, Profile, save

_PLAIN = FORMS[-1].needs if FORMS else frozenset[str]()
"""A processor with AVX2 and no more: its form is the quickest to compile."""

# Loads llama.cpp as the engine does, for a processor with the features in argv, and computes one product.
_SCRIPT = """
    import json, sys
    from dataclasses import asdict
    from random import Random
    from edgespec import kernels
    from edgespec.kernels.operations import Ggml, differing_rows
    from edgespec.target import lib
    {before}
    with kernels.loading(frozenset(sys.argv[1].split(","))):
        lib.native()
    wrong = differing_rows(Ggml(kernels.library_folder()), Random(1), 64, 40, 5, 2)
    print(json.dumps({{**asdict(kernels.status()), "n_shares": kernels.n_shares(), "wrong": wrong}}))
"""


def outcome(before: str = "") -> tuple[bool, str]:
    """Whether the kernels compute in a new process, and the reason; its products are right in any case."""
    answer = json.loads(own_process.run(_SCRIPT.format(before=before), ",".join(_PLAIN)))
    assert answer["wrong"] == []
    assert (answer["n_shares"] > 0) == answer["active"]
    return answer["active"], answer["reason"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with kernels in it."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        found = kernels.build(_PLAIN)
        assert found.problem is None
        assert kernels.find_built(_PLAIN) == found
    return cache


@pytest.fixture
def cache(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that cache, in force; the folder of the kernels within."""
    shutil.copytree(built, tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return kernels.find_built(_PLAIN).library.parent


@needs_kernels
def test_kernels_that_are_built_compute(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome() == (True, "avx2 kernels")
    monkeypatch.setattr(cheap_rows, "cpu_features", lambda _sysfs: _PLAIN)
    assert cheap_rows.outlook(EngineConfig()) == Status(True, "avx2 kernels", "avx2")


@needs_kernels
@pytest.mark.parametrize(
    ("file", "data", "why"),
    [
        ("rows.so", b"", "is damaged"),
        ("rows.so", b"\x7fELF" + bytes(4000), "is damaged"),
        ("rows.json", b"", "cannot be read"),
        ("rows.json", b"[1]", "cannot be read"),
        ("rows.json", b"{}", "cannot be read"),
        ("rows.json", b"\xff" * 100, "cannot be read"),
        ("rows.so", None, "not built"),
        ("rows.json", None, "not built"),
    ],
)
def test_a_broken_cache_is_not_loaded(file: str, data: bytes | None, why: str, cache: Path) -> None:
    (cache / file).unlink()
    if data is not None:
        (cache / file).write_bytes(data)
    with pytest.raises(DeviceError, match=why):
        kernels.find_built(_PLAIN)


@needs_kernels
def test_a_broken_cache_leaves_the_stock_kernels_and_building_mends_it(cache: Path) -> None:
    (cache / "rows.so").write_bytes(b"nonsense")
    active, reason = outcome()
    assert not active
    assert "damaged" in reason
    assert kernels.build(_PLAIN).problem is None
    assert kernels.find_built(_PLAIN).problem is None


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("q4_0_avx2.c", "float *to = s + r * bs;", "float *to = s + r * bs; __builtin_trap();", "SIG"),
        ("hook.h", "int64_t ne[4];", "int64_t ne[5];", ""),
        ("hook.c", "OP_MUL_MAT = 29", "OP_MUL_MAT = 30", "shares"),
        ("hook.h", "size_t wsize;", "size_t wsize, other;", "shares"),
        ("hook.c", "w, rows, n_rows, nc)) {", "w, rows, nr, nc)) {", "differ"),
        ("hook.c", "compute_forwardEP19", "compute_backwardEP19", "no such functions"),
        ("selftest.c", "state = seed * 2 + 1;", "for (;;) state = draw(2);", "end as it should"),
    ],
    ids=["illegal instruction", "tensor", "operation", "parameters", "rows forgotten", "name", "endless"],
)  # fmt: skip
def test_what_does_not_fit_this_ggml_fails_its_trial(
    file: str, old: str, new: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "SOURCES", changed_sources(tmp_path, file, old, new))
    monkeypatch.setattr(building, "_TRIAL_S", 3.0 if why == "end as it should" else 60.0)
    problem = kernels.build(_PLAIN).problem
    assert problem is not None
    assert why in problem
    with pytest.raises(DeviceError) as refused:
        kernels.find_built(_PLAIN)
    assert str(refused.value) == problem


@needs_kernels
def test_another_version_of_ggml_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libggml-cpu.so.0", "libggml-cpu.so.0.26.0"):
        (folder / name).write_bytes(b"")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
    with pytest.raises(DeviceError, match=r"written for ggml 0\.25\.3"):
        kernels.find_built(_PLAIN)
    (folder / "libggml-cpu.so.0").unlink()
    with pytest.raises(DeviceError, match="built otherwise"):
        kernels.find_built(_PLAIN)


@needs_kernels
def test_what_the_library_says_of_its_version_counts(cache: Path) -> None:
    active, reason = outcome("from edgespec.kernels import load; load.GGML = '0.26.0'")
    assert (active, reason) == (False, "the kernels are written for ggml 0.26.0, not 0.25.3")


@needs_kernels
def test_another_build_of_the_same_version_is_tried_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lib"
    shutil.copytree(kernels.library_folder(), folder)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
    with pytest.raises(DeviceError, match="not built"):
        kernels.find_built(_PLAIN)


@needs_kernels
def test_llama_cpp_that_is_loaded_already_stays_as_it_is(cache: Path) -> None:
    assert outcome("lib.native()") == (False, "llama.cpp was loaded before the kernels")


@needs_kernels
def test_a_self_test_that_fails_at_load_leaves_the_stock_kernels(cache: Path) -> None:
    active, reason = outcome("from edgespec.kernels import load; load.text_of = lambda answer: 'case 3 differs'")
    assert not active
    assert "case 3 differs" in reason


@needs_kernels
def test_kernels_are_switched_between_engines_of_one_process(cache: Path) -> None:
    code = """
        import sys
        from edgespec import kernels
        from edgespec.target import lib
        features = frozenset(sys.argv[1].split(","))
        for round in range(2):
            with kernels.loading(features):
                lib.native()
            print(kernels.status().active, kernels.status().reason)
            kernels.leave_off("not wanted")
            print(kernels.status().active, kernels.status().reason)
    """
    assert own_process.run(code, ",".join(_PLAIN)) == "True avx2 kernels\nFalse not wanted\n" * 2


@needs_kernels
def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(DeviceError, match="no C compiler works here"):
        kernels.build(_PLAIN)


@needs_kernels
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    version = 'case "$*" in *--version*) echo mine 1.0; exit 0;; esac'
    compiler.write_text(f'#!/bin/sh\n{version}\necho "rows.c:1: error: no such header" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -pipe")
    monkeypatch.setattr("edgespec.kernels.compiled.shutil.which", lambda name: name)
    with pytest.raises(DeviceError, match="no such header"):
        kernels.build(_PLAIN)
    compiler.write_text('#!/bin/sh\necho "mine 1.0"\n')  # ends well and writes nothing
    with pytest.raises(DeviceError):
        kernels.build(_PLAIN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
@needs_kernels
def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DeviceError, match="cannot be kept"):
        kernels.build(_PLAIN)


def test_a_cache_that_is_a_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not FORMS:
        pytest.skip("no form runs here")
    (tmp_path / "edgespec").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DeviceError):
        kernels.build(_PLAIN)
    with pytest.raises(DeviceError):
        kernels.find_built(_PLAIN)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_have_none(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.kernels.compiled.sys.platform", platform)
    with pytest.raises(DeviceError, match="its loader cannot put a library in front"):
        kernels.set_for(FEATURES)


@pytest.mark.parametrize("features", [None, frozenset[str](), frozenset({"asimd", "asimddp", "i8mm"})])
def test_other_processors_have_none(features: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.kernels.compiled.sys.platform", "linux")
    with pytest.raises(DeviceError, match="no kernels for this processor"):
        kernels.set_for(features)


def test_the_fastest_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.kernels.compiled.sys.platform", "linux")
    everything = frozenset[str]().union(*(form.needs for form in building.SETS))
    assert kernels.set_for(everything).name == "avx512vnni"
    assert kernels.set_for(everything - {"avx512_vnni"}).name == "avxvnni"
    assert kernels.set_for(everything - {"avx512_vnni", "avx_vnni"}).name == "avx2"


def test_they_are_wanted_until_somebody_switches_them_off() -> None:
    assert cheap_rows.why_off(EngineConfig()) is None
    off = cheap_rows.outlook(EngineConfig(kernels="off"))
    assert str(off) == "off: switched off by the option kernels = off"
    cheap_rows.remember(False)
    assert str(cheap_rows.outlook(EngineConfig())) == "off: switched off by `edgespec kernels off`"
    cheap_rows.remember(True)
    assert cheap_rows.why_off(EngineConfig()) is None


@needs_kernels
def test_where_nothing_is_built_one_line_says_how() -> None:
    found = cheap_rows.outlook(EngineConfig())
    assert not found.active
    assert found.in_force is None
    assert found.reason == "not built for this processor and this ggml: run `edgespec kernels build`"


def test_a_switch_nobody_can_read_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap_rows.switch_file().mkdir(parents=True)
    assert cheap_rows.why_off(EngineConfig()) is None
    with pytest.raises(DeviceError, match="cannot be written"):
        cheap_rows.remember(True)

    def homeless() -> Path:
        raise ConfigError("no home folder is known")

    monkeypatch.setattr(cheap_rows, "switch_file", homeless)
    assert cheap_rows.why_off(EngineConfig()) is None


@needs_kernels
def test_the_command_line_builds_switches_and_says(cache: Path) -> None:
    code = """
        import sys
        from edgespec.cli import main
        from edgespec.kernels import compiled
        compiled.SETS = compiled.SETS[-1:]
        from edgespec.device import features
        features.cpu_features = lambda _sysfs, found=frozenset(sys.argv[1].split(",")): found
        for arguments in (["status"], ["off"], ["status", "--json"], ["on"], ["status"], ["build"]):
            sys.stdout.write(f"> {main.run(['kernels', *arguments])}\\n")
    """
    lines = own_process.run(code, ",".join(_PLAIN)).splitlines()
    assert lines[0].startswith("on: avx2 kernels; self-test passed in ")
    assert lines[2] == "off, for models opened from now on"
    assert json.loads(lines[4])["reason"] == "switched off by `edgespec kernels off`"
    assert lines[6] == "on, for models opened from now on"
    assert lines[8].startswith("on: avx2 kernels")
    assert lines[10].startswith("avx2 kernels are built and give ggml's results: ")
    assert [line for line in lines if line.startswith("> ")] == ["> 0"] * 6


@needs_kernels
def test_an_answer_says_which_kernels_computed_and_what_was_measured_with_others_does_not_count(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report, prices, tuned profiles, certificates and the doctor: with the kernels, then without, in new processes."""
    code = """
        import json, sys
        from edgespec import cheap_rows, kernels
        from edgespec.cli import main
        from edgespec.device import features
        features.cpu_features = cheap_rows.cpu_features = lambda _sysfs: frozenset(sys.argv[1].split(","))
        from edgespec import doctor
        doctor._BETWEEN_S = 0.0
        sys.exit(main.run(json.loads(sys.argv[2])))
    """
    model = str(gguf_maker.make(tmp_path / "tiny.gguf"))
    monkeypatch.setenv("EDGESPEC_MODEL", model)
    monkeypatch.setenv("EDGESPEC_THREADS", "1")

    def run(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(own_process.run(code, ",".join(_PLAIN), json.dumps(arguments)))
        return found

    def answered(*arguments: str) -> dict[str, Any]:
        answer = ("run", "-p", "hello", "--raw", "--json", "--max-tokens", "3", "--ctx", "256")
        report: dict[str, Any] = run(*answer, *arguments)["report"]
        return report

    certify = ("certify", "--quick", "--ctx", "256", "--max-draft", "3", "--kv-type", "f16")
    assert run(*certify, "--json")["kernels"] == "avx2"
    here = gguf_check.check(Path(model)).fingerprint, build_name(), host.cpu_name(Sysfs())
    save(Profile(*here, "2026-01-01", 1.0, Choice(max_draft=7), (), "avx2"))
    report = answered("--kernels", "auto")
    assert (report["kernels"], report["tuned"]) == ("on: avx2 kernels", "max_draft 7")
    assert "nothing is certified" not in report["exact_why"]
    told = run("doctor", "--json")
    assert told["kernels"]["active"]
    assert told["models"][1]["pass_s"] is not None
    assert told["models"][1]["exact_widths"] is not None
    options = run("config", "show", "--json")["options"]
    assert options["max_draft"] == {"value": 7, "source": "tuned"}

    monkeypatch.setenv("EDGESPEC_KERNELS", "off")
    options = run("config", "show", "--json")["options"]
    assert options["max_draft"] == {"value": 15, "source": "default"}
    told = run("doctor", "--json")
    assert told["kernels"]["reason"] == "switched off by the option kernels = off"
    assert told["models"][1]["pass_s"] is None
    assert told["models"][1]["exact_widths"] is not None
    report = answered()
    assert (report["kernels"], report["tuned"]) == ("off: switched off by the option kernels = off", None)
    assert "nothing is certified" not in report["exact_why"]
    assert [note for note in report["notes"] if "measured with avx2 kernels, not ggml's own kernels" in note]
