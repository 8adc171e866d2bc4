"""Loading: model file to a llama.cpp model and context, with every failure turned into one line.

Knows nothing of sequences and rounds.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.errors import ModelError, ModelFormatError, ModelMemoryError
from edgespec.target import lib
from edgespec.target.memory import wants_asides
from edgespec.target.options import TargetOptions
from edgespec.target.threads import Pools

_KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
_MEMORY_WORDS = ("alloc", "memory", "mmap failed", "mlock")


class Handles:
    """Owns one model and one context; frees them once, at `free()` or when the owner is collected."""

    def __init__(self, path: Path, options: TargetOptions) -> None:
        self.pid = os.getpid()
        self.notes: list[str] = []
        lib.set_verbose(options.verbose)
        self.abort = lib.AbortFlag()
        self.model: int = _load_model(path, options, self.notes)
        try:
            _refuse_other_kinds(path, self.model)
            self.ctx: int = _make_context(path, self.model, options, self.abort, self.notes)
        except BaseException:
            lib.native().llama_model_free(self.model)
            raise
        if self.abort.callback is None:
            self.notes.append("a pass in progress cannot be cancelled here: cancelling waits for its end")
        self.pools = Pools(self.ctx)
        self._finalizer = weakref.finalize(self, _free, self.pid, self.model, self.ctx, self.pools, self.abort)
        self._finalizer.atexit = False  # a daemon thread may still be in a pass; the system reclaims everything

    @property
    def alive(self) -> bool:
        """Whether the native objects still exist."""
        return self._finalizer.alive

    def free(self) -> None:
        """Free context and model; again is harmless. In a forked child the memory is left to the parent."""
        self._finalizer()


def _free(pid: int, model: int, ctx: int, pools: Pools, _abort: lib.AbortFlag) -> None:
    if os.getpid() == pid:
        native = lib.native()
        pools.free()
        native.llama_free(ctx)
        native.llama_model_free(model)


def _load_model(path: Path, options: TargetOptions, notes: list[str]) -> int:
    native = lib.native()
    params = native.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = options.repack
    modes = [native.LLAMA_LOAD_MODE_NONE]
    if options.use_mmap and native.llama_supports_mmap():
        modes.insert(0, native.LLAMA_LOAD_MODE_MMAP)
    reason = ""
    for mode in modes:
        params.load_mode = mode
        with lib.captured_errors() as errors:
            model = native.llama_model_load_from_file(os.fsencode(path), params)
        if model:
            if reason:
                notes.append(f"the model file could not be mapped ({reason}): it was read into memory instead")
            return int(model)
        reason = _main_reason(errors)
    if any(word in reason for word in _MEMORY_WORDS):
        raise ModelMemoryError(
            f"{path.name}: not enough memory to load it ({reason}): close other programs or choose a smaller model"
        )
    raise ModelFormatError(f"{path.name}: llama.cpp cannot load it ({reason}): choose another model or update edgespec")


def _main_reason(errors: list[str]) -> str:
    for marker in (
        "error loading model: ",
        "error loading model hyperparameters: ",
        "error loading model vocabulary: ",
    ):
        for line in errors:
            if marker in line:
                return lib.without_prefix(line.partition(marker)[2])
    return errors[0] if errors else "no reason given"


def _refuse_other_kinds(path: Path, model: int) -> None:
    native = lib.native()
    kind = ""
    if native.llama_model_has_encoder(model) or not native.llama_model_has_decoder(model):
        kind = "an encoder model"
    elif native.llama_model_is_diffusion(model):
        kind = "a diffusion model"
    if kind:
        raise ModelFormatError(f"{path.name} is {kind}, which does not write text token by token: choose a chat model")


def _make_context(path: Path, model: int, options: TargetOptions, abort: lib.AbortFlag, notes: list[str]) -> int:
    native = lib.native()
    n_notes = len(notes)
    params = _context_params(options, abort)
    with lib.captured_errors() as errors:
        ctx = native.llama_init_from_model(model, params)
    if not ctx and options.kv_type_v in ("f16", "f32", "bf16"):
        first = errors[0] if errors else "no reason given"
        params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_AUTO
        with lib.captured_errors() as errors:
            ctx = native.llama_init_from_model(model, params)
        if ctx:
            notes.append(f"flash attention is not available for this model ({first})")
    if not ctx:
        reason = errors[0] if errors else "no reason given"
        if any(word in reason for word in _MEMORY_WORDS):
            raise ModelMemoryError(
                f"{path.name}: no memory for a context of {options.n_ctx} tokens ({reason}): ask for a smaller context"
            )
        raise ModelError(f"{path.name}: llama.cpp makes no context ({reason}): try kv type f16 or another model")
    if not native.llama_get_memory(ctx):
        native.llama_free(ctx)
        raise ModelFormatError(f"{path.name} makes embeddings, it does not write text: choose a chat model")
    if options.n_rs_seq and wants_asides(ctx, model):
        native.llama_free(ctx)
        del notes[n_notes:]
        # Sequence and state aside share cells.
        doubled = replace(options, n_seq_max=2 * options.n_seq_max, n_rs_seq=0, kv_unified=True)
        return _make_context(path, model, doubled, abort, notes)
    return int(ctx)


def _context_params(options: TargetOptions, abort: lib.AbortFlag) -> Any:
    native = lib.native()
    params = native.llama_context_default_params()
    params.n_ctx = options.n_ctx
    params.n_batch = params.n_ubatch = options.n_batch
    params.n_seq_max = options.n_seq_max
    params.n_rs_seq = options.n_rs_seq
    # A value under n_seq_max, or under the rows of a batch, aborts the process (llama-context.cpp, output_reserve).
    params.n_outputs_max = max(options.n_rows_max, options.n_seq_max)
    params.n_threads = options.n_threads
    params.n_threads_batch = options.n_threads_batch or options.n_threads
    params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.type_k = _KV_TYPES[options.kv_type_k]
    params.type_v = _KV_TYPES[options.kv_type_v]
    params.kv_unified = options.kv_unified
    params.swa_full = options.swa_full
    params.offload_kqv = False
    params.op_offload = False
    params.no_perf = True
    if abort.callback is not None:
        params.abort_callback = abort.callback
        params.abort_callback_data = abort.argument
    return params
