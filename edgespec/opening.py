"""From the name of a model to a loaded one: find, check, size, load."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.config import EngineConfig
from edgespec.device import host
from edgespec.device.placement import placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology
from edgespec.hub import store
from edgespec.machine import full_team
from edgespec.target import gguf_check, lib, sizing
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import KvType, TargetOptions
from edgespec.target.template import ChatTemplate, template_for


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model and what is known about it and the machine."""

    path: Path
    target: LlamaTarget
    template: ChatTemplate
    fingerprint: str
    machine: str
    build: str
    notes: tuple[str, ...]
    sysfs: Sysfs
    topology: Topology
    began_s: float


def open_model(
    name: str, config: EngineConfig, n_sessions: int, progress: Callable[[int, int | None], None] | None
) -> Opened:
    """Find, check, size and load a model.

    Raises:
        ModelError: it cannot be found, fetched, read, or does not fit the memory.
        DeviceError: llama.cpp does not load here.
    """
    began_s = time.perf_counter()
    path = store.resolve(name, config=config, offline=config.offline, progress=progress)
    sysfs = Sysfs()
    info = gguf_check.check(path, repacked_types=lib.repacked_types())
    kv_type: KvType = config.kv_type  # type: ignore[assignment]  # the configuration checked it
    topology = read_topology(sysfs)
    team = full_team(config, placement(topology), topology)
    options = TargetOptions(
        n_ctx=0,
        n_threads=team.one,
        n_threads_batch=team.wide,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        n_seq_max=n_sessions,
        n_rows_max=n_sessions * (1 + config.max_draft),
        n_rs_seq=config.max_draft,
        use_mmap=config.mmap,
        verbose=config.verbose,
    )
    n_ctx = sizing.choose_n_ctx(info, host.free_memory(sysfs), config.n_ctx, options)
    target = load(path, replace(options, n_ctx=n_ctx), info)
    template = _template(target)
    notes = (*target.notes, *([template.note] if template.note else []))
    machine = host.cpu_name(sysfs)
    return Opened(path, target, template, info.fingerprint, machine, _build_name(), notes, sysfs, topology, began_s)


def _template(target: LlamaTarget) -> ChatTemplate:
    return template_for(
        target.metadata("tokenizer.chat_template"),
        target.architecture,
        bos=target.vocab.written(target.vocab.bos),
        eos=target.vocab.written(target.vocab.eos),
        has_token=lambda text: len(target.encode(text)) == 1,
    )


def _build_name() -> str:
    return importlib.metadata.version("llama-cpp-python")
