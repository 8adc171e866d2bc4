"""One preallocated llama_batch, filled from plans. Checks everything that would abort the process inside llama.cpp.

Knows nothing of the cache beyond the token counts it is given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.errors import ContextFullError, EvalError
from edgespec.interfaces import Plan
from edgespec.target import lib


class Batch:
    """Arrays for `n_batch` tokens, each in exactly one sequence, and the C struct that points at them."""

    def __init__(self, n_batch: int, n_vocab: int) -> None:
        self.n_batch = n_batch
        self._n_vocab = n_vocab
        self.token = np.zeros(n_batch, np.int32)
        self.pos = np.zeros(n_batch, np.int32)
        self.wanted = np.zeros(n_batch, np.int8)
        self._n_seq_id = np.ones(n_batch, np.int32)
        self._seq_id = np.zeros(n_batch, np.int32)
        # llama_batch.seq_id is an array of pointers, one a token: each points at its entry of _seq_id.
        start = self._seq_id.ctypes.data
        self._seq_id_pointers = np.arange(start, start + 4 * n_batch, 4, dtype=np.uint64)
        self._steps = np.arange(n_batch, dtype=np.int32)
        self._chain = tuple(range(-1, n_batch - 1))
        self.struct = self._make_struct()

    def _make_struct(self) -> Any:
        struct = lib.native().llama_batch()
        fields = dict(struct._fields_)
        arrays: dict[str, np.ndarray[tuple[int, ...], Any]] = {
            "token": self.token,
            "pos": self.pos,
            "n_seq_id": self._n_seq_id,
            "seq_id": self._seq_id_pointers,
            "logits": self.wanted,
        }
        for name, array in arrays.items():
            setattr(struct, name, ctypes.cast(array.ctypes.data, fields[name]))
        return struct

    def fill(self, plans: Sequence[Plan], cached: Sequence[int], n_ctx: int, n_rows_max: int) -> list[int]:
        """Write the plans into the arrays; return the batch index of each plan's first row (0 where it has none).

        `cached` is the number of cached tokens by sequence.

        Raises:
            EvalError: a plan llama.cpp would refuse or die of.
            ContextFullError: the tokens do not fit the cache.
        """
        if len(plans) == 1 and plans[0].rows and not plans[0].draft.tokens and len(plans[0].pending) == 1:
            return self._fill_one(plans[0], cached, n_ctx)
        n_tokens = n_rows = 0
        for plan in plans:
            n_tokens += plan.n_tokens
            n_rows += plan.n_rows
        if n_tokens == 0 or n_tokens > self.n_batch:
            raise EvalError(f"a batch of {n_tokens} tokens, of 1 to {self.n_batch}: split the prompt into chunks")
        if n_rows > n_rows_max:
            raise EvalError(f"{n_rows} rows of logits asked for, {n_rows_max} reserved: draft less or raise n_rows_max")
        if len({plan.seq_id for plan in plans}) != len(plans):
            raise EvalError("a sequence appears twice in one batch: merge its plans")
        if n_tokens + sum(cached) > n_ctx:
            raise _full(n_tokens + sum(cached), n_ctx)
        return self._fill_many(plans, cached, n_tokens)

    def _fill_one(self, plan: Plan, cached: Sequence[int], n_ctx: int) -> list[int]:
        self._check(plan, cached)
        if sum(cached) >= n_ctx:
            raise _full(sum(cached) + 1, n_ctx)
        token = plan.pending[0]
        if not 0 <= token < self._n_vocab:
            raise self._bad_token(token)
        self.token[0] = token
        self.pos[0] = plan.n_past
        self._seq_id[0] = plan.seq_id
        self.wanted[0] = 1
        self.struct.n_tokens = 1
        return [0]

    def _fill_many(self, plans: Sequence[Plan], cached: Sequence[int], n_tokens: int) -> list[int]:
        first_rows = []
        begin = 0
        self.wanted[:n_tokens] = 0
        for plan in plans:
            self._check(plan, cached)
            n_pending, n_draft = len(plan.pending), len(plan.draft.tokens)
            middle = begin + n_pending
            end = middle + n_draft
            try:
                self.token[begin:middle] = plan.pending
                self.token[middle:end] = plan.draft.tokens
            except (OverflowError, TypeError, ValueError) as error:
                raise EvalError(f"a batch holds something that is not a token id ({error})") from error
            np.add(self._steps[: end - begin], plan.n_past, out=self.pos[begin:end])
            self._seq_id[begin:end] = plan.seq_id
            if plan.rows:
                self.wanted[middle - 1 : end] = 1
            first_rows.append(middle - 1)
            begin = end
        tokens = self.token[:n_tokens]
        if tokens.min() < 0 or tokens.max() >= self._n_vocab:
            raise self._bad_token(int(tokens.min() if tokens.min() < 0 else tokens.max()))
        self.struct.n_tokens = n_tokens
        return first_rows

    def _check(self, plan: Plan, cached: Sequence[int]) -> None:
        seq_id = plan.seq_id
        if not 0 <= seq_id < len(cached):
            raise EvalError(f"sequence {seq_id} of {len(cached)}: open the target with a larger n_seq_max")
        if plan.n_past != cached[seq_id]:
            raise EvalError(f"sequence {seq_id} holds {cached[seq_id]} tokens, the plan says {plan.n_past}")
        if len(plan.pending) == 0:
            raise EvalError(f"sequence {seq_id} has no pending token: keep the last token out of the cache")
        n_draft = len(plan.draft.tokens)
        if n_draft and tuple(plan.draft.parents) != self._chain[:n_draft]:
            raise EvalError("the draft branches, this target takes chains only: draft one chain")

    def _bad_token(self, token: int) -> EvalError:
        return EvalError(f"token id {token} is outside the vocabulary of {self._n_vocab}")


def _full(n_tokens: int, n_ctx: int) -> ContextFullError:
    return ContextFullError(f"{n_tokens} tokens do not fit the context of {n_ctx}: shorten the prompt or raise n_ctx")
