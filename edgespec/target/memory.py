"""What a loaded context's memory allows: how tokens leave the cache, by kind of memory.

Probes instead of trusting a list of architectures. Knows nothing of files and sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgespec.errors import ModelError
from edgespec.interfaces import Capabilities, Row
from edgespec.target import lib

MemoryKind = Literal["dense", "sliding", "snapshots", "recurrent"]
"""dense: any tail can go. sliding: windows forget, only a short tail can go. snapshots: recurrent, with a bounded
number of states to go back to. recurrent: all or nothing."""

NO_ROLLBACK = "no partial rollback"
_SAME = 0.05  # share of the difference between two real rows above which rolled-back logits count as wrong

Decode = Callable[[list[int], int], Row]
"""Decodes tokens of sequence 0 from a position on; gives a copy of the last token's row."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The rules of one context."""

    kind: MemoryKind
    n_rs_seq: int
    """Snapshots llama.cpp granted, which may be fewer than were asked for."""
    n_swa: int
    """Width of the sliding window; 0 where there is none or all of it is kept."""

    def allows(self, *, n_cached: int, keep: int, last_start: int, fresh: bool, pos_min: int) -> bool:
        """Whether the tokens from `keep` on, 0 < keep < n_cached, can leave the cache without harm.

        `last_start` is where the sequence's last batch began; `fresh` says that nothing was evaluated or removed since;
        `pos_min` is the oldest position the cache still holds.
        """
        if self.kind == "dense":
            return True
        if self.kind == "sliding":
            # Cells of the last batch replaced only such tokens as no later position can see.
            return (fresh and keep >= last_start) or pos_min <= max(0, keep - self.n_swa)
        if self.kind == "snapshots":
            # A batch of n tokens writes n - 1 usable snapshots; older slots are stale but accepted without an error.
            return fresh and n_cached - keep <= min(self.n_rs_seq, n_cached - last_start - 1)
        return False

    def capabilities(self, n_seq_max: int) -> Capabilities:
        """The same rules in the round's terms."""
        if self.kind == "snapshots":
            return Capabilities(sessions_per_batch=1, max_rollback=self.n_rs_seq, rewind=False)
        if self.kind == "recurrent":
            return Capabilities(sessions_per_batch=1, max_rollback=0, rewind=False, off_reason=NO_ROLLBACK)
        return Capabilities(sessions_per_batch=n_seq_max)


def probe(ctx: int, model: int, decode: Decode, n_vocab: int, *, swa_full: bool, compare: bool) -> tuple[Memory, bool]:
    """Find out how a context gives tokens back, by asking for one. Leaves sequence 0 empty.

    With `compare`, logits after decode, removal, decode must equal those of a straight pass. Its yardstick is the
    difference between rows that follow different texts: rounding is a small part of it, a token that was not removed
    is not. One pass without `compare`, three with it, of one or two tokens.

    Returns:
        the rules, and whether the comparison (if any) held.
    """
    native = lib.native()
    memory: Any = native.llama_get_memory(ctx)
    n_rs_seq = int(native.llama_n_rs_seq(ctx))
    n_swa = 0 if swa_full else max(0, int(native.llama_model_n_swa(model)))
    a, b, c = n_vocab // 3, n_vocab // 2, n_vocab - 1 - n_vocab // 5
    other = decode([a, c], 0)
    partial = bool(native.llama_memory_seq_rm(memory, 0, 1, -1))
    rolled, held = None, True
    if partial and compare:
        try:
            rolled = decode([b], 1)
        except ModelError:  # the position was still taken
            held = False
    native.llama_memory_seq_rm(memory, 0, -1, -1)
    if rolled is not None:
        straight = decode([a, b], 0)
        native.llama_memory_seq_rm(memory, 0, -1, -1)
        yardstick = float(np.abs(other - straight).max())
        held = float(np.abs(rolled - straight).max()) <= max(_SAME * yardstick, 1e-4)
    recurrent = native.llama_model_is_recurrent(model) or native.llama_model_is_hybrid(model)
    if partial and n_rs_seq > 0:
        return Memory("snapshots", n_rs_seq, n_swa), held
    if recurrent or not partial:
        return Memory("recurrent", 0, n_swa), True
    return Memory("sliding" if n_swa else "dense", 0, n_swa), held
