"""The model's states after its final norm, as llama.cpp's embeddings: on for passes that are all rows, off for prompts.

With them on, every token of a batch becomes an output: a prompt would then pay for logits nobody reads. What they cost
a pass of a few rows is a copy of the states.

Source: src/llama-context.cpp in llama-cpp-python 0.3.36, `decode` (output_all) and `output_reserve`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from edgespec.core.offers import Hidden
from edgespec.errors import EvalError
from edgespec.interfaces import Plan
from edgespec.target import lib

_NO_POOLING = 0


class HiddenStates:
    """Switches the states on and off, and finds them. Belongs to one context."""

    def __init__(self, ctx: int, model: int) -> None:
        native = lib.native()
        pools = int(native.llama_pooling_type(ctx)) != _NO_POOLING
        self.n = 0 if pools else int(native.llama_model_n_embd_out(model))
        """Length of a state; 0: the model gives one for a whole text only."""
        self._ctx = ctypes.c_void_p(ctx)
        self._set = native.llama_set_embeddings
        self._at = lib.symbol("llama_get_embeddings_ith", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int32))
        self.shown = False
        """Whether they are on."""
        self._first: dict[int, int] = {}

    def prepare(self, plans: Sequence[Plan], first_rows: Sequence[int]) -> None:
        """Before a pass: have the states put out where a plan wants them and every token is a row."""
        wanted = any(plan.hidden for plan in plans) and all(plan.n_rows == plan.n_tokens for plan in plans)
        if wanted != self.shown:
            self._set(self._ctx, wanted)
            self.shown = wanted
        self._first = dict(zip((plan.seq_id for plan in plans), first_rows, strict=True)) if wanted else {}

    def of(self, seq_id: int, row: int) -> Hidden | None:
        """The state behind a row of the last pass; None where they were off.

        Raises:
            EvalError: there is no such row.
        """
        first = self._first.get(seq_id)
        if first is None:
            return None
        address = self._at(self._ctx, first + row)
        if address is None:
            raise EvalError(f"llama.cpp has no state behind row {row} of sequence {seq_id}")
        buffer = (ctypes.c_float * self.n).from_address(address)
        return np.frombuffer(memoryview(buffer), np.float32)
