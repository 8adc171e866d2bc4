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

MemoryKind = Literal["dense", "sliding", "snapshots", "replay", "recurrent"]
"""dense: any tail can go. sliding: windows forget, only a short tail can go. snapshots: recurrent, with a bounded
number of states to go back to. replay: recurrent, with one state kept aside. recurrent: all or nothing."""

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
            return Capabilities(sessions_per_batch=1, max_rollback=self.n_rs_seq, rollback="snapshots", rewind=False)
        if self.kind == "replay":
            return Capabilities(sessions_per_batch=1, rollback="replay", rewind=False)
        if self.kind == "recurrent":
            return Capabilities(
                sessions_per_batch=1, max_rollback=0, rollback=None, rewind=False, off_reason=NO_ROLLBACK
            )
        return Capabilities(sessions_per_batch=n_seq_max)


class Asides:
    """For each sequence a second one that keeps its state of before a draft, where the context was made for that.

    Nothing is copied when a state is kept: both sequences name the same cell, and the next pass reads the state there
    and writes the new one elsewhere. Attention cells are named twice as well. So keeping and going back cost a walk
    over the cells' names, and the memory one more state a sequence.
    Source: llama-memory-recurrent.cpp (`seq_cp`, `find_slot`), llama-kv-cache.cpp (`seq_cp` within a unified cache), as
    vendored in llama-cpp-python 0.3.36.
    """

    def __init__(self, ctx: int, n_seq_max: int) -> None:
        """`n_seq_max` sequences are in use; the context has twice as many, or no states are kept."""
        self._native: Any = lib.native()
        self._memory: Any = self._native.llama_get_memory(ctx)
        self._n_seq_max = n_seq_max
        self._n_kept = [0] * n_seq_max
        self.usable = int(self._native.llama_n_seq_max(ctx)) >= 2 * n_seq_max

    def keep(self, seq_id: int, n_tokens: int) -> None:
        """Keep the state of a sequence that holds `n_tokens`, in place of the one kept before."""
        aside = self._n_seq_max + seq_id
        self._native.llama_memory_seq_rm(self._memory, aside, -1, -1)
        self._native.llama_memory_seq_cp(self._memory, seq_id, aside, -1, -1)
        self._n_kept[seq_id] = n_tokens

    def fall_back(self, seq_id: int, n_keep: int) -> int:
        """Return to the state kept if that holds at most `n_keep` tokens, else empty both; give the tokens it holds."""
        self._native.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        n_kept = self._n_kept[seq_id]
        if n_kept == 0:
            return 0
        aside = self._n_seq_max + seq_id
        if n_kept > n_keep:
            self._native.llama_memory_seq_rm(self._memory, aside, -1, -1)
            self._n_kept[seq_id] = 0
            return 0
        self._native.llama_memory_seq_cp(self._memory, aside, seq_id, -1, -1)
        return n_kept

    def n_kept(self, seq_id: int) -> int:
        """Tokens of the state kept; 0: none."""
        return self._n_kept[seq_id]


def wants_asides(ctx: int, model: int) -> bool:
    """Whether a context of this model needs states kept aside: it has a recurrent part and was granted no snapshots."""
    native = lib.native()
    recurrent = native.llama_model_is_recurrent(model) or native.llama_model_is_hybrid(model)
    return bool(recurrent) and int(native.llama_n_rs_seq(ctx)) == 0


def probe(
    ctx: int,
    model: int,
    decode: Decode,
    n_vocab: int,
    *,
    swa_full: bool,
    compare: bool,
    asides: Asides,
) -> tuple[Memory, bool]:
    """Find out how a context gives tokens back, by asking for one. Leaves sequence 0 empty.

    With `compare`, logits after decode, removal, decode must equal those of a straight pass. Its yardstick is the
    difference between rows that follow different texts: rounding is a small part of it, a token that was not removed
    is not. One pass without `compare`, at most four with it, of one or two tokens.

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
    if compare and (partial or asides.usable):
        try:
            if asides.usable:
                asides.fall_back(0, 0)
                decode([a], 0)
                asides.keep(0, 1)
                decode([c, c], 1)
                asides.fall_back(0, 2)
            rolled = decode([b], 1)
        except ModelError:  # the position was still taken
            held = False
    asides.fall_back(0, 0)
    if rolled is not None:
        straight = decode([a, b], 0)
        asides.fall_back(0, 0)
        yardstick = float(np.abs(other - straight).max())
        held = float(np.abs(rolled - straight).max()) <= max(_SAME * yardstick, 1e-4)
    recurrent = native.llama_model_is_recurrent(model) or native.llama_model_is_hybrid(model)
    if partial and n_rs_seq > 0:
        return Memory("snapshots", n_rs_seq, n_swa), held
    if asides.usable:
        return Memory("replay", 0, n_swa), held
    if recurrent or not partial:
        return Memory("recurrent", 0, n_swa), True
    return Memory("sliding" if n_swa else "dense", 0, n_swa), held
