"""One sequence: its tokens, and the invariant that the KV cache holds all of them but the pending ones.

Between rounds of an answer exactly the last token is pending, and where the memory replays, accepted tokens in front of
it. This is the only code that rewinds a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import ContextFullError
from edgespec.interfaces import NO_DRAFT, Draft, Plan, Target


class Session:
    """The text of one sequence and how much of it is cached. `n_kv` tokens are in the cache, in order."""

    def __init__(self, target: Target, seq_id: int = 0, n_ctx: int | None = None) -> None:
        """`n_ctx` is this sequence's share of the cache, by default all of it."""
        self.target = target
        self.seq_id = seq_id
        self.n_ctx = target.n_ctx if n_ctx is None else n_ctx
        self.tokens: list[int] = []
        self.n_kv = 0
        self.n_replay = 0
        """Accepted tokens that a rejection threw out of the cache again: pending in front of the last one."""

    @property
    def n_pending(self) -> int:
        """Tokens not yet in the cache."""
        return len(self.tokens) - self.n_kv

    @property
    def full(self) -> bool:
        """Whether the last token no longer fits the cache, so that nothing can follow it."""
        return len(self.tokens) > self.n_ctx

    def load(self, prompt: Sequence[int]) -> int:
        """Become `prompt`, keeping the cached tokens both texts begin with; return how many were kept.

        Raises:
            ContextFullError: the prompt is empty or does not fit the context.
        """
        if not prompt:
            raise ContextFullError("the prompt has no tokens; give some text")
        if len(prompt) > self.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.n_ctx}; "
                "shorten it or ask for a larger context with --ctx"
            )
        n_same = 0
        for old, new in zip(self.tokens[: self.n_kv], prompt[:-1], strict=False):  # the shorter one ends the match
            if old != new:
                break
            n_same += 1
        self._rewind(n_same)
        self.n_replay = 0
        self.tokens = list(prompt)
        return self.n_kv

    def plan(self, draft: Draft = NO_DRAFT, n_chunk: int | None = None, *, hidden: bool = False) -> Plan:
        """What to evaluate next: all pending tokens and a draft, or the first `n_chunk` pending ones without rows.

        `hidden`: whether states will be asked for.
        """
        if n_chunk is not None and n_chunk < self.n_pending:
            pending = self.tokens[self.n_kv : self.n_kv + n_chunk]
            return Plan(self.seq_id, self.n_kv, pending, rows=False)
        return Plan(self.seq_id, self.n_kv, self.tokens[self.n_kv :], draft, hidden=hidden)

    def commit(self, plan: Plan, tokens: Sequence[int] = (), path: Sequence[int] = ()) -> None:
        """Take in an evaluated plan: its pending tokens are cached, `tokens` follow, drafted nodes in `path` stay.

        All but the last of `tokens` must be the tokens of `path`; the last is pending afterwards.
        """
        self.n_kv += len(plan.pending)
        if not plan.rows:
            return
        n_kept = min(len(path), len(tokens) - 1)
        if len(plan.draft.tokens) > n_kept or any(node != i for i, node in enumerate(path[:n_kept])):
            if self.target.retain(self.seq_id, self.n_kv, path[:n_kept]):
                self.n_kv += n_kept
            else:
                self.n_kv = self.target.fall_back(self.seq_id, plan.n_past)
        else:
            self.n_kv += n_kept
        self.tokens.extend(tokens)
        self.n_replay = self.n_pending - 1 if self.n_kv == plan.n_past else 0

    def _rewind(self, n_keep: int) -> None:
        if n_keep == self.n_kv:
            return
        if n_keep and self.target.capabilities.rewind and self.target.retain(self.seq_id, n_keep):
            self.n_kv = n_keep
        else:
            self.n_kv = self.target.fall_back(self.seq_id, n_keep)

    def forget(self) -> None:
        """Empty the cache: everything is pending again and will be evaluated anew."""
        self.target.clear(self.seq_id)
        self.n_kv = 0
