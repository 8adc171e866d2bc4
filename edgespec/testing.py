"""Stand-ins for tests, shipped so that users can test their own apps: a fake target, scripted drafters, a clock.

`FakeTarget`'s logits are a function of what its KV cache really holds, stale cells included: a missing or wrong rewind
changes the text instead of passing unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from edgespec.errors import EvalCancelled, EvalError
from edgespec.interfaces import NO_DRAFT, Capabilities, Draft, Plan, Rows

_N_ROWS = 509
"""Rows of random logits that a text's hash picks from."""


class FakeClock:
    """A clock that only moves when told to; `tick_s` seconds pass at every reading."""

    def __init__(self, tick_s: float = 0.0) -> None:
        """Start at zero."""
        self.now_s = 0.0
        self.tick_s = tick_s

    def __call__(self) -> float:
        """The time in seconds."""
        self.now_s += self.tick_s
        return self.now_s


class FakeTarget:
    """A deterministic model over a small vocabulary.

    The next token depends mostly on the last `order` cached tokens, so that n-grams can guess it, and a little on all
    of them, so that a single wrong cell shows. `cost_s(width, n_ctx)` advances `clock` as a real pass would.
    """

    def __init__(
        self,
        n_vocab: int = 40,
        n_ctx: int = 128,
        *,
        eog: Iterable[int] = (0,),
        order: int = 2,
        noise: float = 0.2,
        seed: int = 0,
        n_batch: int = 32,
        n_rows_max: int = 32,
        capabilities: Capabilities | None = None,
        clock: FakeClock | None = None,
        cost_s: Callable[[int, int], float] | None = None,
        script: Sequence[int] | None = None,
    ) -> None:
        """`script`, if given, is the text the model writes: token i of the sequence follows i cached tokens."""
        self.n_vocab, self.n_ctx = n_vocab, n_ctx
        self.n_batch, self.n_rows_max = n_batch, n_rows_max
        self.eog = frozenset(eog)
        self.capabilities = capabilities or Capabilities(sessions_per_batch=8, tree=True)
        self.cells: dict[int, list[int]] = {}
        self.n_evals = 0
        self.aborted = False
        self._kept: dict[int, list[int]] = {}
        self._branches: dict[int, tuple[int, Draft, list[list[int]]]] = {}
        self._order, self._noise, self._seed, self._script = order, noise, seed, script
        self._clock, self._cost_s = clock, cost_s
        self._table = np.random.default_rng(seed).normal(0.0, 3.0, (_N_ROWS, n_vocab)).astype(np.float32)

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """See `Target.eval`."""
        if self.aborted:
            raise EvalCancelled("cancelled")
        if len(plans) > self.capabilities.sessions_per_batch:
            raise EvalError(f"{len(plans)} sequences in a batch of {self.capabilities.sessions_per_batch}")
        if sum(p.n_tokens for p in plans) > self.n_batch or sum(p.n_rows for p in plans) > self.n_rows_max:
            raise EvalError("the batch has more tokens or rows than were reserved")
        self.n_evals += 1
        rows = [self._eval_one(plan) for plan in plans]
        if sum(map(len, self.cells.values())) > self.n_ctx * max(1, len(self.cells)):
            raise EvalError("the cache is full")
        if self._clock is not None and self._cost_s is not None:
            self._clock.now_s += self._cost_s(sum(p.n_tokens for p in plans), sum(p.n_past for p in plans))
        return rows

    def _eval_one(self, plan: Plan) -> Rows:
        cells = self.cells.setdefault(plan.seq_id, [])
        if len(cells) != plan.n_past:
            raise EvalError(f"positions are not consecutive: {len(cells)} cells, the batch starts at {plan.n_past}")
        if not plan.pending or any(not 0 <= t < self.n_vocab for t in (*plan.pending, *plan.draft.tokens)):
            raise EvalError("a token id is outside the vocabulary, or the plan is empty")
        cells.extend(plan.pending)
        if len(cells) + len(plan.draft.tokens) > self.n_ctx:
            raise EvalError("the cache is full")
        if plan.draft.tokens:
            self._kept[plan.seq_id] = cells[: plan.n_past]
        if not plan.rows:
            return np.zeros((0, self.n_vocab), np.float32)
        base = list(cells)
        texts = [base]
        for token, parent in zip(plan.draft.tokens, plan.draft.parents, strict=True):
            if parent != len(texts) - 2 and not self.capabilities.tree:
                raise EvalError("this memory takes chains only")
            texts.append([*texts[parent + 1], token])
        cells.extend(plan.draft.tokens)
        self._branches[plan.seq_id] = (len(base), plan.draft, texts)
        return np.stack([self.logits(text) for text in texts])

    def logits(self, text: Sequence[int]) -> Rows:
        """Logits after `text`: (n_vocab,) float32."""
        if self._script is not None and len(text) < len(self._script):
            scripted: Rows = np.zeros(self.n_vocab, np.float32)
            scripted[self._script[len(text)]] = 10.0
            return scripted
        local, whole = hash((self._seed, *text[-self._order :])), hash((self._seed, *text))
        row: Rows = self._table[local % len(self._table)] + self._noise * self._table[whole % len(self._table)]
        return row

    def retain(self, seq_id: int, n_keep: int, path: Sequence[int] = ()) -> bool:
        """See `Target.retain`."""
        cells = self.cells.setdefault(seq_id, [])
        n_removed = len(cells) - n_keep - len(path)
        limit = self.capabilities.max_rollback
        if limit is not None and n_removed > limit:
            return False
        if self.capabilities.rollback == "replay" and n_removed and n_keep:
            return False
        if path:
            n_base, draft, _ = self._branches[seq_id]
            if n_keep != n_base:
                raise EvalError("the path is not of the last draft")
            cells[n_keep:] = [draft.tokens[node] for node in path]
        else:
            del cells[n_keep:]
        return True

    def fall_back(self, seq_id: int, n_keep: int) -> int:
        """See `Target.fall_back`."""
        kept = self._kept.get(seq_id, [])
        if self.capabilities.rollback != "replay" or len(kept) > n_keep:
            self.clear(seq_id)
            return 0
        self.cells[seq_id] = list(kept)
        return len(kept)

    def clear(self, seq_id: int) -> None:
        """See `Target.clear`."""
        self.cells[seq_id] = []
        self._kept.pop(seq_id, None)

    def abort(self) -> None:
        """See `Target.abort`."""
        self.aborted = True

    def resume(self) -> None:
        """See `Target.resume`."""
        self.aborted = False


class ScriptedDrafter:
    """A drafter that does what the test says: `play(context, limit)` returns tokens, or raises."""

    def __init__(self, play: Callable[[Sequence[int], int], Sequence[int]], name: str = "scripted") -> None:
        """The chain gets strength 0 and `confidence` 0.9."""
        self.name = name
        self._play = play
        self.n_calls = 0
        self.closed = False

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """Whatever the script says, unchecked and uncut."""
        self.n_calls += 1
        tokens = tuple(self._play(context, limit))
        n = len(tokens)
        return Draft(tokens, tuple(range(-1, n - 1)), (0,) * n, (0.9,) * n) if n else NO_DRAFT

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
