"""A fake model whose logits depend on how they are computed, as told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from edgespec.certificate import Certificate
from edgespec.certify import certify
from edgespec.certify_grid import Grid, Means
from edgespec.conditions import Team
from edgespec.interfaces import Capabilities, Plan, Rows
from edgespec.testing import FakeTarget

GRID = Grid((8, 32), tuple(range(2, 9)), (1, 2), 2, 24, n_piece=24, n_ctx_prompt=32, chunks=(8,))
TEXT = [(7 * i + i * i // 3) % 40 for i in range(80)]


@dataclass(frozen=True)
class Ways:
    """What changes the logits; everything else does not."""

    widths: frozenset[int] = frozenset()
    """Widths of a batch, over 1."""
    single: frozenset[int] = frozenset()
    """Threads of single rows."""
    wide: frozenset[int] = frozenset()
    """Threads of wider passes."""
    prefill: frozenset[int] = frozenset()
    """Threads of a prompt: it leaves other cells."""
    chunks: bool = False
    """Where the chunks of a prompt end."""
    company: bool = False
    """Other sequences in the batch."""
    from_ctx: int = 0
    """From so many cached tokens on."""
    size: float = 0.5


class Unsteady(FakeTarget):
    """Adds noise of its own to the rows of every way that is not steady."""

    def __init__(self, ways: Ways, n_ctx: int = 512, capabilities: Capabilities | None = None, seed: int = 0) -> None:
        super().__init__(
            n_ctx=n_ctx, n_batch=16, n_rows_max=64, noise=0.3, seed=seed, capabilities=capabilities or Capabilities(8)
        )
        self.ways, self.team = ways, Team(1, 2)
        self.widths_used: set[int] = set()
        self._odd: dict[int, tuple[object, ...]] = {}

    def use_team(self, team: Team) -> str | None:
        self.team = team
        return None

    def close(self) -> None:
        """Nothing to free."""

    def clear(self, seq_id: int) -> None:
        super().clear(seq_id)
        self._odd.pop(seq_id, None)

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        ways, width = self.ways, sum(plan.n_tokens for plan in plans)
        found = super().eval(plans)
        prompt = all(len(plan.pending) > 1 for plan in plans)
        odd: tuple[object, ...] = ()
        if prompt:
            for plan in plans:
                end = plan.n_past + len(plan.pending)
                if ways.chunks and end % self.n_batch and not plan.rows:
                    self._odd[plan.seq_id] = ("chunk", end)
                if self.team.wide in ways.prefill:
                    self._odd[plan.seq_id] = ("prefill", self.team.wide)
        elif width > 1:
            odd += (width,) * (width in ways.widths) + (("wide", self.team.wide),) * (self.team.wide in ways.wide)
            odd += ("company",) * (ways.company and len(plans) > 1)
        elif self.team.one in ways.single:
            odd += (("single", self.team.one),)
        return [self._moved(rows, (*odd, *self._odd.get(plan.seq_id, ())), plan) for rows, plan in zip(found, plans)]  # noqa: B905 - equally long

    def _moved(self, rows: Rows, odd: tuple[object, ...], plan: Plan) -> Rows:
        if not odd or plan.n_past < self.ways.from_ctx:
            return rows
        seed = crc32(repr((odd, plan.n_past)).encode())
        noise = np.random.default_rng(seed).uniform(-1.0, 1.0, rows.shape) * self.ways.size
        moved: Rows = (rows + noise).astype(np.float32)
        return moved


def certified(ways: Ways, capabilities: Capabilities | None = None, seed: int = 0) -> Certificate:
    """What `certify` says of such a model."""
    can = capabilities or Capabilities(8)

    def opener(kv: str, n_ctx: int, n_sessions: int) -> Unsteady:
        return Unsteady(ways, n_ctx * n_sessions, can, seed)

    clock = iter(range(10**6))
    cells, prices, _ = certify(("f16/f16",), Means(opener, TEXT, GRID, lambda: 0.001 * next(clock)), 1e9)
    return Certificate("f", "b", "m", 2, GRID.contexts[-1] + GRID.n_piece, True, tuple(cells), tuple(prices))
