"""What the tests of the kernels share: which forms run here, and forms with a fault planted in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgespec.device.features import cpu_features
from edgespec.device.sysfs import Sysfs
from edgespec.errors import DeviceError
from edgespec.kernels import compiled as building

FEATURES = cpu_features(Sysfs())
_AVX512, _, _AVX2 = building.SETS
_ENCODED_OTHERWISE = building.InstructionSet(
    "avxvnni-in-avx512", _AVX2.sources, _AVX512.needs, (*_AVX2.flags, "-mavx512f", "-mavx512vl", "-mavx512vnni")
)
"""AVX-VNNI's form for processors that have its instruction in the other encoding only."""
FORMS = [form for form in (_AVX512, _ENCODED_OTHERWISE, *building.SETS[1:]) if form.needs <= (FEATURES or frozenset())]


def _why_not() -> str | None:
    try:
        building.set_for(FEATURES)
        building.library_folder()
        building._compiler()
    except DeviceError as problem:
        return str(problem)
    return None


WHY_NOT = _why_not()
needs_kernels = pytest.mark.skipif(WHY_NOT is not None, reason=f"no kernels can be built here: {WHY_NOT}")


def changed_sources(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the sources in which `old`, found once in `file`, is `new`."""
    copy = folder / "c"
    shutil.copytree(building.SOURCES, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    return copy


def compiled(folder: Path, form: building.InstructionSet, *extra: str) -> Path:
    """One form, compiled into the folder."""
    library = folder / f"{form.name}.so"
    building.compile_library(building._compiler()[0], form, library, extra)
    return library
