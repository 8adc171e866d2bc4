"""From the name of a model to a loaded one: find, check, size, load."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec import certificate, cheap_rows
from edgespec.config import EngineConfig
from edgespec.device import host
from edgespec.device.placement import placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology
from edgespec.errors import ConfigError
from edgespec.exact import Decision, decide
from edgespec.hub import store
from edgespec.kernels import Status
from edgespec.machine import full_team
from edgespec.target import gguf_check, lib, sizing
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions, kv_types
from edgespec.target.template import ChatTemplate, template_for
from edgespec.tuning_profile import Choice, choice_for

KV_TYPE = "f16"
"""Where neither the user nor an exact recipe says otherwise."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model and what is known about it and the machine."""

    path: Path
    target: LlamaTarget
    template: ChatTemplate
    fingerprint: str
    machine: str
    build: str
    """What prices of passes belong to, see `priced`."""
    notes: tuple[str, ...]
    sysfs: Sysfs
    topology: Topology
    began_s: float
    config: EngineConfig
    """With the KV types really used, and what is tuned."""
    decision: Decision
    """Whether the text is exact, how, and why."""
    tuned: Choice
    """What stands in place of defaults, as `edgespec tune` found."""


def open_model(
    name: str,
    config: EngineConfig,
    n_sessions: int,
    progress: Callable[[int, int | None], None] | None,
    tuned: Choice | None = None,
) -> Opened:
    """Find, check, size and load a model. `tuned` is used in place of what a profile says.

    Raises:
        ModelError: it cannot be found, fetched, read, or does not fit the memory.
        DeviceError: llama.cpp does not load here.
    """
    began_s = time.perf_counter()
    path = store.resolve(name, config=config, offline=config.offline, progress=progress)
    sysfs = Sysfs()
    rows = cheap_rows.load(config, sysfs)
    info = gguf_check.check(path, repacked_types=lib.repacked_types())
    topology = read_topology(sysfs)
    placed, free_bytes, machine = placement(topology), host.free_memory(sysfs), host.cpu_name(sysfs)
    problem = None
    if tuned is None:
        tuned, problem = choice_for(config, info.fingerprint, build_name(), machine, rows.in_force)
    config = replace(config, max_draft=tuned.max_draft or config.max_draft)
    base = TargetOptions(
        n_ctx=0,
        n_seq_max=n_sessions,
        n_rows_max=n_sessions * (1 + config.max_draft),
        n_rs_seq=config.max_draft,
        use_mmap=config.mmap,
        verbose=config.verbose,
    )
    n_ctx = sizing.choose_n_ctx(info, free_bytes, config.n_ctx, with_kv(base, config.kv_type))
    decision = exactness(config, info.fingerprint, machine, build_name(), n_ctx, topology, rows)
    if tuned.kv_type is not None:
        its_kv = replace(config, kv_type=tuned.kv_type)
        its = _exact_as(decision, its_kv, info.fingerprint, machine, n_ctx, topology, rows)
        if its is None:
            problem = f"the tuned KV type {tuned.kv_type} is left out: it is not certified to be exact"
            tuned = replace(tuned, kv_type=None)
        else:
            config, decision = its_kv, its
    recipe = decision.recipe
    config = replace(config, kv_type=recipe.kv if recipe else config.kv_type or KV_TYPE)
    team = full_team(config, placed, topology, one_thread=recipe is not None and recipe.one_thread, tuned=tuned)
    options = with_kv(replace(base, n_ctx=n_ctx, n_threads=team.one, n_threads_batch=team.wide), config.kv_type)
    # Cells in a common pool are filled in an order that depends on the other sequences, and with it the logits.
    apart = recipe is not None and n_sessions > 1 and not info.recurrent_bytes
    target = load(path, replace(options, kv_unified=not apart), info)
    if recipe is not None:
        target.capabilities = recipe.limit(target.capabilities)
    template = _template(target)
    notes = [*target.notes, *(note for note in (template.note, problem) if note)]
    if info.n_ctx_train and n_ctx > info.n_ctx_train:
        notes.append(
            f"the model was trained for {info.n_ctx_train} tokens of context, {n_ctx} were asked for: beyond, its text "
            "may turn to nonsense"
        )
    return Opened(
        path,
        target,
        template,
        info.fingerprint,
        machine,
        priced(build_name(), rows),
        tuple(notes),
        sysfs,
        topology,
        began_s,
        config,
        decision,
        tuned,
    )


def _exact_as(
    usual: Decision, config: EngineConfig, fingerprint: str, machine: str, n_ctx: int, topology: Topology, rows: Status
) -> Decision | None:
    """The decision with a tuned KV type; None where exactness, which there is without it, would be lost by it."""
    try:
        found = exactness(config, fingerprint, machine, build_name(), n_ctx, topology, rows)
    except ConfigError:  # exactness was asked for, and this type is not certified
        return None
    return None if usual.recipe is not None and found.recipe is None else found


def with_kv(options: TargetOptions, kv_type: str | None) -> TargetOptions:
    """Options with these KV types; None: the default ones."""
    kv_type_k, kv_type_v = kv_types(kv_type or KV_TYPE)
    return replace(options, kv_type_k=kv_type_k, kv_type_v=kv_type_v)


def exactness(
    config: EngineConfig, fingerprint: str, machine: str, build: str, n_ctx: int, topology: Topology, rows: Status
) -> Decision:
    """Whether an engine with these options, and these kernels for few rows, is exact, and how.

    Raises:
        ConfigError: exactness was asked for, and nothing is certified.
    """
    if config.exact is False:
        return decide(False, None, n_ctx)
    found, problem = certificate.load(fingerprint, build, machine)
    if found is not None and found.kernels is not None and not rows.active:
        # With ggml's own, fewer widths may be exact. Source: docs/decisions/0012.
        problem = f"the certificate was measured with {found.kernels} kernels, off now: run `edgespec certify` again"
        found = None
    n_threads = max(largest_team(topology), config.threads or 0, config.threads_batch or 0)
    kv = None if config.kv_type is None else "/".join(kv_types(config.kv_type))
    return decide(config.exact, found, n_ctx, kv=kv, n_threads=n_threads, problem=problem)


def largest_team(topology: Topology) -> int:
    """Most threads that a pass may get where no number was asked for."""
    return max(1, len(topology.usable))


def _template(target: LlamaTarget) -> ChatTemplate:
    return template_for(
        target.metadata("tokenizer.chat_template"),
        target.architecture,
        bos=target.vocab.written(target.vocab.bos),
        eos=target.vocab.written(target.vocab.eos),
        has_token=lambda text: len(target.encode(text)) == 1,
    )


def build_name() -> str:
    """The version of the installed llama-cpp-python."""
    return importlib.metadata.version("llama-cpp-python")


def priced(build: str, rows: Status) -> str:
    """What prices of passes belong to: llama.cpp's build, and "+rows" where edgespec's kernels compute."""
    return build + ("+rows" if rows.active else "")
