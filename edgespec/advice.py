"""What a person could do about what `edgespec doctor` found: each piece with its reason and what that rests on.

No advice without a fact: what was found or measured on this machine, measured on another one, or documented.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgespec import kernels
from edgespec.doctor import Advice, Findings, ModelFacts
from edgespec.target.build import Build

_INSTALL = "pip install llama-cpp-python==0.3.36"
_REINSTALL = _INSTALL.replace("install", "install --force-reinstall --no-deps --no-binary llama-cpp-python")
"""Compiles it on this device, for this processor."""
_SHARED_STORAGE = ("/storage/", "/sdcard", "/mnt/media_rw")
_LIKE_Q4_0 = frozenset({"Q4_1", "Q5_0", "Q5_1"})
"""Types close to it in size and quality."""
_BUSY_CORES = 0.5
_KERNEL_FEATURES = ("AVX2", "FMA", "F16C", "DOTPROD", "MATMUL_INT8")
"""Features that decide between a fast kernel and a plain loop; the others make fast ones a little faster."""


def advise(found: Findings) -> tuple[Advice, ...]:
    """All there is to say, the most important first."""
    return (
        *_on_build(found),
        *_on_kernels(found),
        *(item for model in found.models for item in _on_model(model, found)),
        *_on_device(found),
    )


def _on_build(found: Findings) -> Iterator[Advice]:
    build = found.build
    if build is None:
        return
    if build.error is not None:
        how = _INSTALL if build.package is None else _REINSTALL
        yield Advice(f"Install llama.cpp's binding: {how}", f"llama.cpp: {build.error}", "found here")
        return
    if found.features is not None:
        yield from _on_features(build, found.features)
    if not build.has("OPENMP"):
        yield Advice(
            f"Install OpenMP (libgomp, or libomp with clang), then llama.cpp's binding: {_REINSTALL}",
            "this build of llama.cpp is without OpenMP; with it passes took 8 to 11 % less on an idle two-core server "
            "(docs/decisions/0006)",
            "measured elsewhere",
        )


def _on_features(build: Build, cpu: frozenset[str]) -> Iterator[Advice]:
    missing, foreign = build.lacks(cpu), build.exceeds(cpu)
    if foreign:
        yield Advice(
            f"Build llama.cpp for this processor: {_REINSTALL}",
            f"it uses {', '.join(foreign)}, which this processor does not have: it will crash (illegal instruction)",
            "found here",
        )
    weighty = [name for name in missing if name in _KERNEL_FEATURES]
    if weighty:
        what = "without them its fast matrix kernels are not compiled in (ggml-cpu/repack.cpp)"
        yield Advice(
            f"Build llama.cpp for all that the processor has: {_REINSTALL}",
            f"the processor has {', '.join(weighty)}, the build lacks {'them' if len(weighty) > 1 else 'it'}; {what}",
            "documented",
        )


def _on_kernels(found: Findings) -> Iterator[Advice]:
    rows = found.rows
    if rows is not None and _can_be_built(rows):
        yield Advice(
            "For cheaper drafts, build edgespec's kernels: edgespec kernels build",
            f"{rows.reason.removesuffix(': ' + kernels.HOW)}; on a two-core server 4 rows took 1.3 steps with them "
            "instead of 2.6 on a 1B-shaped model in Q4_0, and 2.1 instead of 2.8 on the default model "
            "(docs/cheap-rows.md)",
            "measured elsewhere",
        )


def _can_be_built(rows: kernels.Status) -> bool:
    return not rows.active and rows.reason.endswith(kernels.HOW)


def _on_model(model: ModelFacts, found: Findings) -> Iterator[Advice]:
    if model.path is None:
        if model.role == "configured":
            yield Advice("Fetch the model, or name another one.", f"{model.name}: {model.problem}", "found here")
        return
    if model.problem is not None:
        yield Advice("Take a smaller model, or free memory.", model.problem, "found here")
    if str(model.path.resolve()).startswith(_SHARED_STORAGE):
        yield Advice(
            f"Move {model.path.name} into the app's own folder, or set mmap = false.",
            "from Android's shared storage, mapped, a prompt was read at 0.27 tokens a second (llama.cpp pull request "
            "7016)",
            "documented",
        )
    rows = found.rows
    ours = rows is not None and (rows.active or _can_be_built(rows))
    if ours and model.quantisation in kernels.types_for(found.features):
        return
    build = found.build
    if build and model.quantisation in _LIKE_Q4_0 and {"Q4_0", model.quantisation} & {*build.repacked} == {"Q4_0"}:
        yield Advice(
            f"To gain more from drafting, take a Q4_0 file instead of {model.quantisation}.",
            f"llama.cpp has its fast kernels for several rows here for Q4_0 and not for {model.quantisation} "
            "(ggml-cpu/repack.cpp); on a two-core server drafting gained 13 % on the default model as Q4_0 and 2 % as "
            "Q4_1",
            "measured elsewhere",
        )


def _on_device(found: Findings) -> Iterator[Advice]:
    topology, conditions = found.topology, found.conditions
    online = [core.id for core in topology.cores if core.online]
    usable = set(topology.usable)
    if not topology.homogeneous and usable <= set(topology.efficiency) and set(online) & set(topology.performance):
        yield Advice(
            "Bring the program to the foreground.",
            "only efficiency cores are granted to it, as Android does in the background",
            "found here",
        )
    weak = [note for note in conditions.notes if note.startswith("undervoltage")]
    if weak:
        said = weak[0].partition(":")[0]
        yield Advice("Use a better power supply or cable.", f"the firmware reports {said}", "found here")
    elif conditions.throttled:
        yield Advice(
            "Let the device cool, or cool it better.",
            f"the system holds the processor back now ({conditions.heat_source or 'source unknown'})",
            "found here",
        )
    if topology.cpu_limit is not None and topology.cpu_limit < len(online):
        yield Advice(
            "If more speed is wanted, raise the CPU quota of the container.",
            f"a control group grants {topology.cpu_limit:g} of {len(online)} cores; a larger team would be stopped "
            "in the middle of passes",
            "found here",
        )
    if conditions.busy_others is not None and conditions.busy_others >= _BUSY_CORES:
        yield Advice(
            "Close other programs while you chat.",
            f"they take {conditions.busy_others:.1f} cores now; the slowest thread sets the pace of a pass: two "
            "threads beside one busy process took twice as long as one (docs/decisions/0006)",
            "measured here",
        )
