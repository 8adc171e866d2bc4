"""On what a benchmark was run: model, machine, build, load. Unknown is None."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Protocol

from edgespec import __version__
from edgespec.config import EngineConfig
from edgespec.device import host, thermal
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology
from edgespec.kernels import status
from edgespec.tuning_profile import Choice


class StampEngine(Protocol):
    """What an engine says about itself."""

    config: EngineConfig
    model_name: str
    fingerprint: str
    n_ctx: int
    tuned: Choice


def load_average() -> tuple[float, ...] | None:
    """Runnable tasks over 1, 5 and 15 minutes."""
    try:
        return tuple(round(x, 2) for x in os.getloadavg())
    except (OSError, AttributeError):  # not on every system
        return None


def temperature_c() -> float | None:
    """The processor's temperature in degrees Celsius."""
    found = thermal.temperature_c(Sysfs())
    return found[0] if found else None


def machine() -> dict[str, object]:
    """What can change while a benchmark runs, to be taken before and after it."""
    return {"load_average": load_average(), "temp_c": temperature_c()}


def make(
    engine: StampEngine, before: Mapping[str, object], after: Mapping[str, object], date: str, threads: int | None
) -> dict[str, object]:
    """Everything that would have to be equal for two benchmarks to be comparable."""
    sysfs = Sysfs()
    return {
        "date": date,
        "edgespec": __version__,
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
        "model": engine.model_name,
        "fingerprint": engine.fingerprint,
        "kv_type": engine.config.kv_type or "f16",
        "n_ctx": engine.n_ctx,
        "threads": threads,
        "tuned": str(engine.tuned) if engine.tuned.values() else None,
        "kernels": str(status()),
        "cpu": host.cpu_name(sysfs),
        "cpus": list(read_topology(sysfs).usable),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "before": dict(before),
        "after": dict(after),
    }
