"""How many bytes a model needs, and which context fits: arithmetic over a checked file, before anything is loaded.

Knows nothing of how much memory the machine has: that is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgespec.errors import ModelError, ModelMemoryError
from edgespec.target.gguf_check import GGUFInfo
from edgespec.target.options import KV_BYTES, TargetOptions

_CTX_DEFAULT = 8192
_CTX_LEAST = 512
_CTX_STEP = 256  # llama.cpp rounds the cache up to it
_BASE_BYTES = 64 << 20  # interpreter, numpy, libraries
_BYTES_PER_WORD = 400  # llama.cpp's vocabulary tables
_SNAPSHOTS = frozenset({
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
    "qwen35moe", "qwen4exp",
})  # fmt: skip
"""Architectures that are granted snapshots of their recurrent state. Only to size them: the loaded model is asked.
Source: llama.cpp src/llama-arch.cpp, `llm_arch_supports_rs_rollback`, as vendored in llama-cpp-python 0.3.36."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes a model needs while it runs, by what they are for; an upper bound close to the peak resident size."""

    weights: int
    """The mapped (or read) file."""
    repacked: int
    """Copies of weights in the layout of ggml's fast kernels; 0 with `repack` off."""
    cache: int
    """Keys and values of the whole context, and recurrent states."""
    compute: int
    """Buffers of one pass and its logits."""
    base: int
    """Interpreter, libraries, vocabulary."""

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.weights + self.repacked + self.cache + self.compute + self.base


def estimate(info: GGUFInfo, options: TargetOptions) -> Estimate:
    """Bytes needed to run a model with these options."""
    n_rows = max(options.n_rows_max, options.n_seq_max)
    n_batch = min(options.n_batch, _round_up(options.n_ctx))
    # Activations alive at once in a pass, measured against llama.cpp's compute buffers; a float32 each.
    activations = 4 * n_batch * (6 * info.n_embd + 3 * info.n_ff)
    masks = 2 * n_batch * _round_up(options.n_ctx) * (2 if info.sliding_window else 1)
    logits = 2 * 4 * n_rows * info.n_vocab
    return Estimate(
        weights=info.file_bytes,
        repacked=info.repack_bytes if options.repack else 0,
        cache=_cache_bytes(info, options),
        compute=activations + masks + logits,
        base=_BASE_BYTES + _BYTES_PER_WORD * info.n_vocab,
    )


def _cache_bytes(info: GGUFInfo, options: TargetOptions) -> int:
    block_k, bytes_k = KV_BYTES[options.kv_type_k]
    block_v, bytes_v = KV_BYTES[options.kv_type_v]
    per_head = -(-info.head_dim_k // block_k) * bytes_k + -(-info.head_dim_v // block_v) * bytes_v
    cells = _round_up(options.n_ctx)
    window = min(cells, _round_up(info.sliding_window * options.n_seq_max + options.n_batch))
    total = 0
    for heads, windowed in zip(info.n_head_kv, info.windowed, strict=True):
        total += heads * per_head * (window if windowed and not options.swa_full else cells)
    n_more = options.n_rs_seq if info.arch in _SNAPSHOTS else min(1, options.n_rs_seq)  # snapshots, or one kept aside
    return total + info.recurrent_bytes * options.n_seq_max * (1 + n_more)


def _round_up(n_ctx: int) -> int:
    return -(-n_ctx // _CTX_STEP) * _CTX_STEP


def choose_n_ctx(
    info: GGUFInfo, free_bytes: int | None, asked: int | None = None, options: TargetOptions | None = None
) -> int:
    """Tokens of context to open a model with.

    What was asked for, if it fits; else what the model was trained for, at most 8192, halved until it fits, at least
    512. `free_bytes` is the machine's available memory; None where unknown: then nothing is refused. Everything but the
    context length is taken from `options`.

    Raises:
        ModelMemoryError: even the smallest choice does not fit.
        ModelError: a context of less than one token was asked for.
    """
    base = options or TargetOptions(n_ctx=_CTX_DEFAULT)
    if asked is not None and asked < 1:
        raise ModelError(f"a context of {asked} tokens was asked for: ask for at least 1")
    if asked is not None:
        n_ctx = asked
    else:
        n_ctx = min(info.n_ctx_train or _CTX_DEFAULT, _CTX_DEFAULT)
        while free_bytes is not None and n_ctx > _CTX_LEAST and _needs(info, base, n_ctx) > free_bytes:
            n_ctx = max(_CTX_LEAST, n_ctx // 2)
    need = _needs(info, base, n_ctx)
    if free_bytes is None or need <= free_bytes:
        return n_ctx
    smaller = (
        "or ask for a smaller context" if asked is not None and asked > _CTX_LEAST else "or choose a smaller model"
    )
    raise ModelMemoryError(
        f"{info.path.name} needs {_megabytes(need)} with a context of {n_ctx} tokens, {_megabytes(free_bytes)} "
        f"is free: close other programs {smaller}"
    )


def _needs(info: GGUFInfo, options: TargetOptions, n_ctx: int) -> int:
    return estimate(info, replace(options, n_ctx=n_ctx)).total


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"
