"""How a target is opened: one frozen record, no logic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KvType = Literal["f16", "q8_0", "bf16", "f32"]
KV_BYTES: dict[KvType, tuple[int, int]] = {"f16": (1, 2), "q8_0": (32, 34), "bf16": (1, 2), "f32": (1, 4)}
"""Elements and bytes of one block of a cache type."""


def kv_types(name: str) -> tuple[KvType, KvType]:
    """Types of keys and values of "K/V", or of one name for both."""
    k, _, v = name.partition("/")
    pair: tuple[KvType, KvType] = (k, v or k)  # type: ignore[assignment]  # the configuration checked them
    return pair


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What is decided before a model is loaded."""

    n_ctx: int
    """Tokens the whole cache holds; llama.cpp rounds the allocation up to a multiple of 256."""
    n_threads: int = 1
    """Threads of a pass of one token."""
    n_threads_batch: int | None = None
    """Threads of a wider pass; None: as many as `n_threads`."""
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    n_seq_max: int = 1
    """Sequences that can be held side by side."""
    kv_unified: bool = True
    """One pool of cells for all sequences; else each has its own share, in which other sequences leave no trace."""
    n_rows_max: int = 16
    """Most rows of logits of one `eval`; raised to `n_seq_max` where it is smaller."""
    n_batch: int = 512
    """Most tokens of one `eval`."""
    n_rs_seq: int = 0
    """State snapshots asked for, on models with a recurrent part: how many tokens can be taken back. Where llama.cpp
    grants none, one state a sequence is kept aside instead. 0: no draft will be taken back."""
    use_mmap: bool = True
    """Map the file; where that fails it is read instead, with a note."""
    repack: bool = True
    """Let ggml copy weights into the layout its fastest kernels want."""
    swa_full: bool = False
    """Keep every token of sliding-window layers: rewinds further, costs memory."""
    self_check: bool = True
    """Compare logits after a rollback with a straight pass while loading."""
    verbose: bool = False
    """Let llama.cpp log to stderr."""
