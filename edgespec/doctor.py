"""What `edgespec doctor` finds: the machine, the installed llama.cpp, the models, as data; `edgespec.advice` reads it.

Nothing here changes anything, and nothing that is missing stops it: what cannot be found out is None, with a note.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from edgespec import __version__, certificate, cheap_rows, paths, state
from edgespec import config as configuration
from edgespec.conditions import Conditions
from edgespec.config import EngineConfig
from edgespec.device import host
from edgespec.device.features import cpu_features
from edgespec.device.load import LoadReader
from edgespec.device.monitor import Monitor
from edgespec.device.placement import Placement, placement
from edgespec.device.sysfs import Sysfs, within
from edgespec.device.topology import Topology, read_topology
from edgespec.errors import ConfigError, EdgespecError
from edgespec.exact import Decision
from edgespec.hub import store
from edgespec.kernels import Status
from edgespec.machine import full_team
from edgespec.opening import KV_TYPE, exactness, priced, with_kv
from edgespec.target import gguf_check, sizing
from edgespec.target.build import Build, kernels, probe_build
from edgespec.target.gguf_check import GGUFInfo
from edgespec.target.options import TargetOptions

PACKAGES = ("llama-cpp-python", "numpy", "gguf", "typer", "jinja2", "requests")
OPTIONAL = {
    "prompt_toolkit": "line editing in chats",
    "onnxruntime": "drafter packages, which numpy computes more slowly",
    "psutil": "memory and load on macOS and Windows",
}
"""Packages that may be missing, and what edgespec uses them for."""


_BETWEEN_S = 0.3
_SENSORS_S = 20.0
"""Termux's battery command alone may take 15 s."""

Basis = Literal["found here", "measured here", "measured elsewhere", "documented"]


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, why, and what the reason rests on."""

    what: str
    why: str
    basis: Basis


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model that a command would use, as far as it is here."""

    name: str
    role: str
    """"configured" for the one in force, "default" for the one without any configuration."""
    path: Path | None = None
    """None: not on this machine."""
    quantisation: str | None = None
    file_bytes: int | None = None
    need_bytes: int | None = None
    """Memory with `n_ctx` tokens of context, by `edgespec.target.sizing`."""
    n_ctx: int | None = None
    """Tokens of context it would be opened with; None: it does not fit, or is not known."""
    problem: str | None = None
    pass_s: Mapping[int, float] | None = None
    """Seconds of a pass by rows, as measured on this machine with these options; None: not measured yet."""
    exact_widths: Mapping[str, tuple[int, ...]] | None = None
    """By KV type, widths over 1 whose logits are those of single rows; None: not certified."""
    exact: str | None = None
    """Whether texts are exact with these options, and why; None: not known."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was found. None means unknown, never zero."""

    root: Path | None
    """The folder that was read in place of this machine; then nothing of this machine is here: no build, no models."""
    processor: str | None
    features: frozenset[str] | None
    """What the processor can do, by the kernel's names."""
    topology: Topology
    placement: Placement
    conditions: Conditions
    free_bytes: int | None
    """Memory a process may still take, within its control groups."""
    page_bytes: int | None
    cpuset: tuple[int, ...] | None
    """The cores that control groups leave; None: they do not say."""
    affinity: tuple[int, ...] | None
    """The cores of this process's own mask."""
    build: Build | None
    rows: Status | None
    """Whether models would be opened with edgespec's kernels for passes of few rows, and why not."""
    models: tuple[ModelFacts, ...]
    packages: Mapping[str, str | None]
    """Installed versions; None: not installed."""
    python: str | None
    system: str | None
    notes: tuple[str, ...]


def examine(root: Path | None = None) -> Findings:
    """Look at this machine, or at a folder laid out like another one's root.

    Raises:
        ConfigError: the folder does not exist, is a file, or has neither sys nor proc.
    """
    if root is not None:
        check_root(root)
    sysfs = Sysfs(root or Path("/"))
    topology = read_topology(sysfs)
    free_bytes = host.free_memory(sysfs)
    build: Build | None = None
    rows: Status | None = None
    models: tuple[ModelFacts, ...] = ()
    notes: tuple[str, ...] = ("read from a folder: what is installed on this machine is left out",)
    if root is None:
        build = probe_build()
        config, notes = _config()
        rows = cheap_rows.outlook(config, sysfs)
        models = _models(config, topology, build, rows, free_bytes)
    return Findings(
        root=root,
        processor=_processor(sysfs),
        features=cpu_features(sysfs),
        topology=topology,
        placement=placement(topology),
        conditions=_conditions(sysfs, topology, replayed=root is not None),
        free_bytes=free_bytes,
        page_bytes=None if root else _page_bytes(),
        cpuset=_sorted(host.cpuset(sysfs)),
        affinity=None if root else _sorted(host.own_affinity()),
        build=build,
        rows=rows,
        models=models,
        packages={} if root else {name: _version(name) for name in (*PACKAGES, *OPTIONAL)},
        python=None if root else platform.python_version(),
        system=None if root else f"{platform.system()} {platform.release()} {platform.machine()}",
        notes=notes,
    )


def check_root(root: Path) -> None:
    """Refuse a folder that cannot be a machine's root.

    Raises:
        ConfigError: it does not exist, is a file, or has neither sys nor proc.
    """
    if not root.is_dir():
        why = "is a file; unpack a capture and name its folder" if root.exists() else "no such folder"
        raise ConfigError(f"--root {root}: {why}")
    if not (root / "sys").is_dir() and not (root / "proc").is_dir():
        raise ConfigError(f"--root {root}: has neither sys nor proc in it; unpack a capture there")


def _conditions(sysfs: Sysfs, topology: Topology, *, replayed: bool) -> Conditions:
    """What the sensors say now; of a folder once and without the commands of this machine's vendor."""
    monitor = Monitor(sysfs, topology.performance, path="" if replayed else None)
    idle: list[str] = []

    def look() -> None:
        monitor.tick()
        if replayed:
            # Of a folder no time passes, and none of its processes is ours.
            idle.extend(LoadReader(sysfs).read(0.0).notes)
        else:
            time.sleep(_BETWEEN_S)  # load and energy counters are differences
            monitor.tick()

    within(_SENSORS_S, look, None)  # the notes of `latest` name what did not answer
    now = monitor.latest()
    if not replayed:
        return now
    return replace(now, busy_others=None, notes=tuple(note for note in now.notes if note not in idle))


def _processor(sysfs: Sysfs) -> str | None:
    """The processor's name, or the part numbers of its cores."""
    name = host.cpu_name(sysfs)
    # The architecture that stands before part numbers is this machine's, also where another one is read.
    parts = name.removeprefix(platform.machine()).strip()
    return f"part {', '.join(parts.split())}" if re.fullmatch("(0x[0-9a-f]+ ?)+", parts) else parts or None


def _config() -> tuple[EngineConfig, tuple[str, ...]]:
    """The options in force, and a note where they are the defaults because nothing else is valid."""
    try:
        return configuration.load().config, ()
    except ConfigError as error:
        return EngineConfig(), (f"the configuration is not valid, the defaults are shown instead: {error}",)


def _models(
    config: EngineConfig, topology: Topology, build: Build, rows: Status, free_bytes: int | None
) -> tuple[ModelFacts, ...]:
    """The configured and the default model."""
    default = EngineConfig().model
    roles = {default: "default", config.model: "configured"} if config.model != default else {default: "configured"}
    return tuple(_model(name, role, config, topology, build, rows, free_bytes) for name, role in roles.items())


def _model(
    name: str, role: str, config: EngineConfig, topology: Topology, build: Build, rows: Status, free_bytes: int | None
) -> ModelFacts:
    try:
        known = store.identify(name)
        if not isinstance(known, Path) and not store.open_store(config).is_installed(*known):
            return ModelFacts(name, role, problem=f"not on this machine: edgespec models pull {name}")
        path = store.resolve(name, config=config, offline=True)
        info = gguf_check.check(path, repacked_types=frozenset(build.repacked))
    except EdgespecError as error:
        return ModelFacts(name, role, problem=str(error))
    options = with_kv(
        TargetOptions(n_ctx=0, n_rows_max=1 + config.max_draft, n_rs_seq=config.max_draft), config.kv_type
    )
    n_ctx, need_bytes, problem = None, None, None
    try:
        n_ctx = sizing.choose_n_ctx(info, free_bytes, config.n_ctx, options)
        need_bytes = sizing.estimate(info, replace(options, n_ctx=n_ctx)).total
    except EdgespecError as error:
        problem = str(error)
    pass_s, widths, exact = None, None, None
    if build.package:
        machine = host.cpu_name(Sysfs())
        certified = certificate.load(info.fingerprint, build.package, machine)[0]
        widths = {kv: tuple(sorted(certified.exact_widths(kv))) for kv in certified.kv_types} if certified else None
        try:
            decision = exactness(config, info.fingerprint, machine, build.package, n_ctx or 1, topology, rows)
        except ConfigError as error:
            decision = Decision(None, str(error))
        exact = decision.why
        table = state.load_state(_cost_file(config, info, topology, priced(build.package, rows), decision))[0]
        pass_s = table.base_s if table else None
    return ModelFacts(name, role, path, info.quant, info.file_bytes, need_bytes, n_ctx, problem, pass_s, widths, exact)


def _cost_file(config: EngineConfig, info: GGUFInfo, topology: Topology, build: str, decision: Decision) -> Path:
    """Where `Engine` keeps what it measured of this model with these options."""
    recipe = decision.recipe
    one_thread = recipe is not None and recipe.one_thread
    team = full_team(config, placement(topology), topology, one_thread=one_thread)
    key = (recipe.kv if recipe else config.kv_type or KV_TYPE, team.one, team.wide, build)
    machine = host.cpu_name(Sysfs())
    return state.state_file(paths.cache_dir() / "state", info.fingerprint, machine, *map(str, key))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _page_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def _sorted(cpus: frozenset[int] | None) -> tuple[int, ...] | None:
    return None if cpus is None else tuple(sorted(cpus))


def as_json(found: Findings, advice: tuple[Advice, ...]) -> dict[str, object]:
    """Findings and advice as one JSON object; null is unknown."""
    topology, conditions, build = found.topology, found.conditions, found.build
    return {
        "edgespec": __version__,
        "root": str(found.root) if found.root else None,
        "system": found.system,
        "python": found.python,
        "processor": found.processor,
        "cpus": [
            {
                "id": core.id,
                "online": core.online,
                "class": core.kind,
                "capacity": core.capacity,
                "max_khz": core.max_khz,
                "part": core.part,
                "siblings": core.siblings,
            }
            for core in topology.cores
        ],
        "performance": topology.performance,
        "middle": topology.middle,
        "prime": topology.prime,
        "efficiency": topology.efficiency,
        "homogeneous": topology.homogeneous,
        "classes_from": topology.source,
        "usable": topology.usable,
        "cpuset": found.cpuset,
        "affinity": found.affinity,
        "cpu_limit": topology.cpu_limit,
        "target_cpus": found.placement.target,
        "target_why": found.placement.why_target,
        "drafter_cpus": found.placement.drafter,
        "drafter_why": found.placement.why_drafter,
        "thermal": {
            "headroom": conditions.headroom,
            "temp_c": conditions.temp_c,
            "source": conditions.heat_source,
            "throttled": conditions.throttled,
            "freq_cap": conditions.freq_cap,
        },
        "power": {
            "battery": conditions.battery,
            "on_mains": conditions.on_mains,
            "power_w": conditions.power_w,
            "source": conditions.power_source,
        },
        "load": {"busy_others": conditions.busy_others, "pressure": conditions.pressure},
        "memory": {"free_bytes": found.free_bytes, "page_bytes": found.page_bytes},
        "features": sorted(found.features) if found.features is not None else None,
        "llama_cpp": {**asdict(build), "kernels": kernels(build) if build.error is None else None} if build else None,
        "kernels": asdict(found.rows) if found.rows else None,
        "models": [
            {**asdict(model), "path": str(model.path) if model.path else None, "pass_s": _by_rows(model.pass_s)}
            for model in found.models
        ],
        "packages": dict(found.packages),
        "notes": [*found.notes, *topology.notes, *conditions.notes],
        "advice": [asdict(item) for item in advice],
    }


def _by_rows(pass_s: Mapping[int, float] | None) -> dict[str, float] | None:
    return {str(rows): seconds for rows, seconds in sorted(pass_s.items())} if pass_s else None
