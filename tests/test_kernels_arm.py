"""Arm's kernels on emulated processors: right bit for bit, in force only where they save instructions, else refused.

Needs what `scripts/arm/biglittle setup` and `scripts/arm/count_rows.py --make` leave in the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernels_tools import changed_sources

from edgespec.errors import DeviceError
from edgespec.kernels import compiled as building
from edgespec.kernels.compiled import remark_on, set_for

ROOT = Path(__file__).parents[1]
_ENVIRONMENT = dict(os.environ)
"""Read before fixtures change it: what is emulated is kept in the user's own cache folder."""


def script() -> ModuleType:
    """scripts/arm/count_rows.py."""
    spec = importlib.util.spec_from_file_location("count_rows", ROOT / "scripts/arm/count_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


COUNT = script()
A72, A76, MAX = COUNT.CPUS
WITH_KERNELS = pytest.mark.parametrize("emulated", [A76, MAX], indirect=True, ids=lambda cpu: cpu.name)


@pytest.fixture
def emulated(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An emulated processor."""
    try:
        return COUNT.Emulated(request.param, tmp_path, COUNT.cache(_ENVIRONMENT))
    except DeviceError as problem:
        pytest.skip(f"no emulated processor: {problem}")


def python(emulated: Any, code: str, *arguments: str | Path) -> str:
    """What a Python program prints there; `sys.executable` can be started from within."""
    if not (emulated.prefix / "site").exists():
        (emulated.prefix / "site").symlink_to(sysconfig.get_path("purelib"))
    starter = emulated.work / "python"
    command = emulated.command(emulated.prefix / "usr/bin/python3")
    starter.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    starter.chmod(0o755)
    done = subprocess.run(
        [starter, "-c", f"import sys; sys.executable = {str(starter)!r}\n{code}", *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LLAMA_CPP_LIB_PATH": str(emulated.ggml),
            "CC": COUNT.COMPILER,
            "OMP_WAIT_POLICY": "passive",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SELF_TEST = """
import ctypes
from pathlib import Path
from edgespec.kernels.load import declare, text_of
from edgespec.kernels.operations import Ggml
ggml = Ggml(Path(sys.argv[2]))
print(text_of(declare(ctypes.CDLL(sys.argv[1])).edgespec_self_test(1, int(sys.argv[3]))))
"""


def self_test(emulated: Any, n_cases: int, *extra: str) -> str:
    """What the library's own comparison with ggml says."""
    library = emulated.work / "rows.so"
    building.compile_library((COUNT.COMPILER,), emulated.cpu.form, library, extra)
    return python(emulated, _SELF_TEST, library, emulated.ggml, str(n_cases)).strip()


@WITH_KERNELS
def test_passes_are_taken_where_they_save_a_fifth_of_the_instructions(emulated: Any) -> None:
    counts = emulated.counts(2048, 16)
    assert [count.n_rows for count in counts] == list(range(1, 17))
    assert all(count.stock_differs == count.ours_differs == 0 for count in counts)
    worth = [count.n_rows for count in counts if count.n_ours is not None and count.n_ours <= 0.8 * count.n_stock]
    assert [count.n_rows for count in counts if count.taken] == worth
    assert {2, 3, 6, 7, 10, 11, 14, 15} <= set(worth)


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [A76], indirect=True, ids=["cortex-a76"])
def test_a_byte_beyond_exactly_sized_buffers_would_be_seen(
    emulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "vst1q_f32(s + (size_t)r * bs, acc[r])"
    changed = changed_sources(tmp_path, "q4_0_arm.c", old, old.replace("* bs,", "* bs + 1,"))
    monkeypatch.setattr(building, "SOURCES", changed)
    with pytest.raises(DeviceError, match="fails"):
        emulated.counts(64, 8)


@pytest.mark.parametrize("emulated", [A72], indirect=True, ids=["cortex-a72"])
def test_without_dot_products_every_row_costs_the_same(emulated: Any) -> None:
    counts = emulated.counts(256, 64)
    assert not any(count.taken for count in counts)
    assert all(abs(count.n_stock / (count.n_rows * counts[0].n_stock) - 1) < 0.01 for count in counts)


@pytest.mark.slow
@WITH_KERNELS
def test_random_and_extreme_cases(emulated: Any) -> None:
    assert self_test(emulated, 500) == "None"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("emulated", "old", "new"),
    [
        pytest.param(
            A76,
            "vfmaq_f32(acc[r], part[r], scale[r])",
            "vaddq_f32(acc[r], vmulq_f32(part[r], scale[r]))",
            id="rounded twice",
        ),
        pytest.param(A76, "sum[3], w, a, 3)", "sum[3], w, a, 2)", id="the third row instead of the fourth"),
        pytest.param(A76, "w, single[r], lane)", "q[4 * h], single[r], lane)", id="other weights in a single row"),
        pytest.param(A76, "i < n_w; i++", "i <= n_w; i++", id="columns beyond the last"),
        pytest.param(A76, "vshlq_n_s8(q[i + 4], 4)", "vshlq_n_s8(q[i + 4], 3)", id="low weights halved"),
        pytest.param(MAX, "vuzp2q_s64(a, b)", "vuzp1q_s64(a, b)", id="one of two rows twice"),
        pytest.param(
            MAX, "vzip2q_s64(single[0], single[1])", "vzip2q_s64(single[1], single[0])", id="two single rows exchanged"
        ),
    ],
    indirect=["emulated"],
)
def test_the_self_test_finds_what_is_wrong(
    emulated: Any, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "SOURCES", changed_sources(tmp_path, "q4_0_arm.c", old, new))
    assert self_test(emulated, 300).startswith("case ")


_BUILD = """
import json
from dataclasses import asdict
from random import Random
from edgespec import kernels
from edgespec.device.features import cpu_features
from edgespec.device.sysfs import Sysfs
from edgespec.errors import DeviceError
from edgespec.kernels.operations import Ggml, differing_rows
features = cpu_features(Sysfs())
try:
    problem = kernels.build(features).problem
except DeviceError as error:
    problem = str(error)
with kernels.loading(features):
    ggml = Ggml(kernels.library_folder())
wrong, taken = [], []
for n_rows in range(1, 18 if kernels.status().active else 1):  # ggml repacks nothing where they are not in force
    before = kernels.n_shares()
    wrong += differing_rows(ggml, Random(n_rows), 64, 24, n_rows, 2)
    if kernels.n_shares() > before:
        taken.append(n_rows)
print(json.dumps({"problem": problem, "wrong": wrong, "taken": taken, **asdict(kernels.status())}))
"""


@pytest.mark.slow
@WITH_KERNELS
def test_they_are_built_tried_in_a_child_and_compute(emulated: Any) -> None:
    seen = json.loads(python(emulated, _BUILD))
    assert seen["problem"] is None
    assert seen["active"]
    assert seen["reason"] == f"{emulated.cpu.form.name} kernels, fewer instructions, unmeasured on hardware"
    assert seen["wrong"] == []
    assert seen["taken"] == [count.n_rows for count in emulated.counts(64, 8) if count.taken]


_PLAIN = """
import json
from pathlib import Path
from random import Random
from edgespec.kernels.operations import Q4_1, Ggml, differing_rows
ggml = Ggml(Path(sys.argv[1]))
print(json.dumps({n: differing_rows(ggml, Random(n), 256, 64, n, 1, Q4_1) for n in (2, 3)}))
"""


@pytest.mark.slow
@WITH_KERNELS
def test_ggmls_own_pairs_of_rows_are_not_what_each_is_alone_with_matrix_products(emulated: Any) -> None:
    """Known of ggml's plain Q4_1, and why certificates of one Arm processor say nothing of another."""
    differing = json.loads(python(emulated, _PLAIN, emulated.ggml))
    assert bool(differing["2"]) == (emulated.cpu is MAX)
    assert differing["3"] == []


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [A72], indirect=True, ids=["cortex-a72"])
def test_a_processor_without_dot_products_keeps_ggmls(emulated: Any) -> None:
    seen = json.loads(python(emulated, _BUILD))
    assert seen["problem"] == seen["reason"]
    assert "they need at least asimddp" in seen["problem"]
    assert (seen["active"], seen["wrong"], seen["taken"]) == (False, [], [])


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [A76], indirect=True, ids=["cortex-a76"])
def test_a_ggml_that_does_not_repack_is_refused(emulated: Any) -> None:
    """As of packages that are compiled for the oldest 64-bit Arm."""
    emulated.ggml = COUNT.part(COUNT.cache(_ENVIRONMENT), "llama")
    seen = json.loads(python(emulated, _BUILD))
    assert seen["problem"] == "llama.cpp is compiled without dot products"
    assert not seen["active"]


def test_the_form_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.kernels.compiled.sys.platform", "linux")
    monkeypatch.setattr("edgespec.kernels.compiled.platform.machine", lambda: "aarch64")
    assert set_for(frozenset(A76.features.split())).name == "dotprod"
    assert set_for(frozenset(MAX.features.split())).name == "i8mm"
    with pytest.raises(DeviceError, match=r"aarch64.*at least asimddp"):
        set_for(frozenset(A72.features.split()))
    assert remark_on("dotprod") == ", fewer instructions, unmeasured on hardware"
    assert remark_on("avx2") == remark_on("none such") == ""


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"run scripts/arm/(biglittle setup|count_rows\.py --make)"):
        COUNT.Emulated(A76, tmp_path / "work", tmp_path / "cache")
