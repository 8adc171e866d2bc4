"""The logits of a pass: views on llama.cpp's own buffer, valid until the next pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from edgespec.errors import EvalError
from edgespec.interfaces import Plan, Rows
from edgespec.target import lib


class Logits:
    """Finds the rows of the last pass. Belongs to one context."""

    def __init__(self, ctx: int, n_rows_max: int, n_vocab: int) -> None:
        self._ctx = ctypes.c_void_p(ctx)
        self._n_rows_max = n_rows_max
        self._n_vocab = n_vocab
        self._at = lib.symbol("llama_get_logits_ith", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int32))
        self._none: Rows = np.empty((0, n_vocab), np.float32)
        self._address = 0
        self._all: Rows = self._none

    def of(self, plans: Sequence[Plan], first_rows: Sequence[int]) -> list[Rows]:
        """Per plan its rows; `first_rows` are the places of their first ones in the batch.

        Raises:
            EvalError: llama.cpp's rows do not lie one behind the other.
        """
        if len(plans) == 1:
            plan = plans[0]
            if not plan.rows:
                return [self._none]
            n_rows = 1 + len(plan.draft.tokens)
            return [self.view(first_rows[0], first_rows[0] + n_rows - 1, n_rows)]
        wanted = [(first, plan.n_rows) for first, plan in zip(first_rows, plans, strict=True) if plan.rows]
        if not wanted:
            return [self._none] * len(plans)
        total = sum(n_rows for _, n_rows in wanted)
        view = self.view(wanted[0][0], wanted[-1][0] + wanted[-1][1] - 1, total)
        rows, begin = [], 0
        for plan in plans:
            rows.append(view[begin : begin + plan.n_rows])
            begin += plan.n_rows
        return rows

    def view(self, first: int, last: int, n_rows: int) -> Rows:
        """The `n_rows` rows from place `first` of the batch to place `last`.

        Raises:
            EvalError: they do not lie one behind the other.
        """
        address = self._at(self._ctx, first)
        stride = 4 * self._n_vocab
        if address is None or (n_rows > 1 and self._at(self._ctx, last) != address + (n_rows - 1) * stride):
            raise EvalError("llama.cpp returned no contiguous logits: please report this model")
        if address != self._address:
            buffer = (ctypes.c_float * (self._n_rows_max * self._n_vocab)).from_address(address)
            self._all = np.frombuffer(memoryview(buffer), np.float32).reshape(self._n_rows_max, self._n_vocab)
            self._address = address
        return self._all[:n_rows]

    def forget(self) -> None:
        """Let go of llama.cpp's buffer, which is about to be freed."""
        self._all, self._address = self._none, 0
