"""Measures by how much a model's logits depend on how they are computed, and what each way costs.

The reference is one sequence, single rows, one thread, a prompt in chunks of `n_batch`. The text is fed as it is
(teacher-forced), so that every way computes the same rows. Drafts end in wrong tokens now and then, which are taken
back as in real use: cells of the cache may then be filled in another order than without drafting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt

from edgespec.certificate import DEFAULT_KV, Cell, Flip, Kind, Price
from edgespec.certify_grid import CertTarget, Grid, Means, Opener
from edgespec.conditions import Team
from edgespec.core.controller import chain_parents
from edgespec.core.round import all_up_to
from edgespec.errors import ModelError
from edgespec.interfaces import NO_DRAFT, Draft, Plan, Row

KV_TYPES = ("f16/f16", "q8_0/q8_0", "f16/bf16")
"""What is certified unless one type is asked for. bf16/bf16 behaved and cost like f16/bf16 wherever it was tried."""
_WIDE = 8
"""Rows of the passes by which the thread counts of wide passes are compared."""
_WRONG = 0.125
"""Share of drafts that end in wrong tokens."""
_N_TIMED = 9
_PRICED = {"one_thread_ms": (True, 1), "one_ms": (False, 1), "four_ms": (False, 4), "eight_ms": (False, 8)}
"""By name: whether a single row has one thread only, and rows."""
_Rows = npt.NDArray[np.float32]


def certify_kv(kv: str, means: Means, budget_s: float) -> tuple[list[Cell], list[Price]]:
    """Everything about one KV type.

    Args:
        kv: "K/V".
        means: with what.
        budget_s: after so long no further piece is begun; each cell has at least one.

    Raises:
        ModelError: the model does not take this KV type, or the text is too short.
    """
    opener, text, grid, clock, tick = means.opener, means.text, means.grid, means.clock, means.tick
    if len(text) < grid.contexts[-1] + grid.n_piece:
        raise ModelError(f"a text of {len(text)} tokens is too short for {grid.contexts[-1]} tokens of context")
    began_s = clock()
    table = _Table(kv)
    prices = []
    n_ctx_most = grid.contexts[-1] + grid.n_piece + max(grid.widths)
    target = opener(kv, n_ctx_most, 1)
    beside: CertTarget | None = None
    try:
        bench = _Bench(target, text, grid, table)
        usual: _Bench | None = bench
        if kv != DEFAULT_KV:
            beside = _beside(opener, n_ctx_most)
            usual = _Bench(beside, text, grid, table) if beside is not None else None
        contexts = grid.contexts if target.capabilities.rewind else grid.contexts[:2]
        weights = [1.0 + n_ctx / 1500 for n_ctx in contexts]
        for index, n_ctx in enumerate(contexts):
            tick(f"{kv}, {n_ctx} tokens of context")
            bench.prefill(n_ctx)
            if usual is not None and usual is not bench:
                usual.prefill(n_ctx)
            prices.append(bench.price(kv, n_ctx, usual, clock))
            ends_s = began_s + 0.95 * budget_s * sum(weights[: index + 1]) / sum(weights)
            for n_piece in range(-(-grid.n_tokens // grid.n_piece)):
                if n_piece and clock() > ends_s:
                    break
                bench.compare(n_ctx, n_piece)
            if n_ctx <= grid.n_ctx_prompt or n_ctx == contexts[0]:
                bench.compare_prompts(n_ctx)
    finally:
        target.close()
        if beside is not None:
            beside.close()
    # Batches as wide as single sequences may be: a wider one proves nothing about company.
    n_together = min(grid.n_company, table.all_exact_up_to())
    if n_together > 1:
        tick(f"{kv}, {n_together} sequences")
        lengths = [n_ctx for n_ctx in contexts if n_ctx <= grid.n_ctx_company] or [contexts[0]]
        target = opener(kv, lengths[-1] + grid.n_piece + max(grid.widths), n_together)
        try:
            if target.capabilities.sessions_per_batch >= n_together:
                for n_ctx in lengths:
                    _Bench(target, text, grid, table).compare_company(n_ctx, n_together)
        finally:
            target.close()
    return table.cells(), prices


def _beside(opener: Opener, n_ctx: int) -> CertTarget | None:
    """The default KV type, to price another one beside it; None where the memory does not hold both."""
    try:
        return opener(DEFAULT_KV, n_ctx, 1)
    except ModelError:
        return None


@dataclass(slots=True)
class _Table:
    """Comparisons by kind, n and context, as they add up."""

    kv: str
    _found: dict[tuple[Kind, int, int], list[float]] = field(default_factory=dict)
    _flips: dict[tuple[Kind, int, int], list[Flip]] = field(default_factory=dict)

    def add(self, kind: Kind, n: int, n_ctx: int, position: int, row: Row, reference: Row) -> None:
        key = (kind, n, n_ctx)
        deviation = 0.0
        if not np.array_equal(row, reference):
            # Not a number where either is: that is no deviation of 0.
            deviation = float(np.abs(row - reference).max())
            deviation = deviation if np.isfinite(deviation) else float(np.finfo(np.float32).max)
            if int(row.argmax()) != int(reference.argmax()):
                second, first = np.partition(reference, len(reference) - 2)[-2:]
                self._flips.setdefault(key, []).append(Flip(position, float(first - second)))
        self._found.setdefault(key, []).append(deviation)

    def all_exact_up_to(self) -> int:
        """The width up to which no width has shown a deviation."""
        inexact = {n for (kind, n, _), seen in self._found.items() if kind == "width" and max(seen)}
        return all_up_to(frozenset(n for kind, n, _ in self._found if kind == "width") - inexact)

    def cells(self) -> list[Cell]:
        return [
            Cell(kind, self.kv, n, n_ctx, len(seen), max(seen), tuple(self._flips.get((kind, n, n_ctx), ())))
            for (kind, n, n_ctx), seen in self._found.items()
        ]


class _Bench:
    """Feeds one target. Sequence 0 is the one that is compared."""

    def __init__(self, target: CertTarget, text: Sequence[int], grid: Grid, table: _Table) -> None:
        self._target, self._text, self._grid, self._table = target, list(text), grid, table
        self._rng = random.Random(0)
        self._full = grid.n_threads
        self._others = [threads for threads in grid.threads if threads != grid.n_threads]
        limit = target.capabilities.max_rollback
        most = target.n_rows_max if limit is None else min(target.n_rows_max, 1 + limit)
        self._most = most
        self._widths = [width for width in grid.widths if width <= most]

    def prefill(self, n_ctx: int, *, n_chunk: int | None = None, threads: int | None = None, seq: int = 0) -> None:
        """The first `n_ctx` tokens of the text in an empty sequence."""
        self._use(1, threads or self._full)
        n_chunk = n_chunk or self._target.n_batch
        self._target.clear(seq)
        for first in range(0, n_ctx, n_chunk):
            chunk = self._text[first : min(n_ctx, first + n_chunk)]
            # The last row is asked for, as it is of a prompt: llama.cpp may leave out what no row needs.
            self._target.eval([Plan(seq, first, chunk, rows=first + n_chunk >= n_ctx)])

    def compare(self, n_ctx: int, n_piece: int) -> None:
        """Widths and thread counts over one piece of text at `n_ctx` tokens of context."""
        piece = self._piece(n_ctx, n_piece)
        reference = self._reference(n_ctx, piece)
        for width in self._widths:
            self._use(1, self._full)
            self._add("width", width, n_ctx, self._drafted(n_ctx, piece, width), reference)
        for threads in self._grid.threads[1:]:
            self._use(threads, self._full)
            self._add("single", threads, n_ctx, self._drafted(n_ctx, piece, 1), reference)
        width = min(_WIDE, max(self._widths, default=1))
        self._use(1, self._full)
        wide = self._keep(self._drafted(n_ctx, piece, width, wrong=False)) if self._others else {}
        for threads in self._others:
            self._use(1, threads)
            self._add("wide", threads, n_ctx, self._drafted(n_ctx, piece, width, wrong=False), wide)

    def compare_prompts(self, n_ctx: int) -> None:
        """The prompt on other numbers of threads, and in other chunks; a short piece each."""
        piece = self._piece(n_ctx, 0)[:16]
        self.prefill(n_ctx)
        reference = self._reference(n_ctx, piece)
        for threads in self._others:
            self.prefill(n_ctx, threads=threads)
            self._use(1, self._full)
            self._add("prefill", threads, n_ctx, self._drafted(n_ctx, piece, 1), reference)
        for n_chunk in self._grid.chunks:
            if n_chunk < n_ctx:
                self.prefill(n_ctx, n_chunk=n_chunk)
                self._use(1, self._full)
                self._add("chunk", n_chunk, n_ctx, self._drafted(n_ctx, piece, 1), reference)

    def compare_company(self, n_ctx: int, n_together: int) -> None:
        """Batches with other sequences that draft as well, against the same sequence alone."""
        piece = self._piece(n_ctx, 0)
        self.prefill(n_ctx)
        reference = self._reference(n_ctx, piece)
        others = [_Feed(seq, n_ctx, self._piece(n_ctx, seq)) for seq in range(1, n_together)]
        for other in others:
            self.prefill(n_ctx, seq=other.seq)
        self._use(1, self._full)
        most = max(1, self._table.all_exact_up_to() // n_together)
        self._add("company", n_together, n_ctx, self._drafted(n_ctx, piece, most, company=others), reference)
        for seq in range(n_together):
            self._target.clear(seq)

    def price(self, kv: str, n_ctx: int, usual: _Bench | None, clock: Callable[[], float]) -> Price:
        """Milliseconds of passes of 1, 4 and 8 rows, and of `usual`, at the same context with the default KV type.

        All take turns, so that a machine that is busy for a while is busy for all of them.
        """
        benches = [self] if usual is None or usual is self else [self, usual]
        found: list[dict[str, list[float]]] = [{name: [] for name in _PRICED} for _ in benches]
        for n_round in range(1 + _N_TIMED):
            for name, (one_thread, width) in _PRICED.items():
                for bench, its in zip(benches, found, strict=True):
                    took_ms = bench.timed_ms(n_ctx, width, 1 if one_thread else self._full, clock)
                    if n_round:  # the first pages in what the others find
                        its[name].append(took_ms)
        ms = [{name: median(took_ms) for name, took_ms in its.items()} for its in found]
        base = None if usual is None else ms[-1]["one_ms"] + ms[-1]["four_ms"]
        return Price(kv, n_ctx, **ms[0], usual_ms=base)

    def timed_ms(self, n_ctx: int, width: int, threads: int, clock: Callable[[], float]) -> float:
        """One pass at `n_ctx` tokens of context, which is as before afterwards."""
        self._use(threads, self._full)
        tokens = self._text[: min(width, self._most)]
        began_s = clock()
        self._target.eval([Plan(0, n_ctx, tokens[:1], _chain(tokens[1:]))])
        took_ms = 1000 * (clock() - began_s)
        self._back(n_ctx)
        return took_ms

    def _use(self, one: int, wide: int) -> None:
        self._target.use_team(Team(one, wide))

    def _piece(self, n_ctx: int, n_piece: int) -> list[int]:
        """Tokens to decode: what follows the context in the text, and then other places of it."""
        size = self._grid.n_piece
        first = (n_ctx + 3 * n_piece * size) % (len(self._text) - size + 1)
        return self._text[first : first + size]

    def _reference(self, n_ctx: int, piece: Sequence[int]) -> dict[int, Row]:
        self._use(1, self._full)
        return self._keep(self._drafted(n_ctx, piece, 1))

    @staticmethod
    def _keep(rows: Iterator[tuple[int, Row]]) -> dict[int, Row]:
        return {index: row.copy() for index, row in rows}

    def _add(self, kind: Kind, n: int, n_ctx: int, rows: Iterator[tuple[int, Row]], reference: dict[int, Row]) -> None:
        for index, row in rows:
            self._table.add(kind, n, n_ctx, n_ctx + index, row, reference[index])

    def _drafted(
        self, n_ctx: int, piece: Sequence[int], width: int, *, wrong: bool = True, company: Sequence[_Feed] = ()
    ) -> Iterator[tuple[int, Row]]:
        """The row after each token of `piece`, `width` rows a pass; the sequence is left at `n_ctx` tokens.

        In company each sequence draws its own width, up to this one.
        """
        feed = _Feed(0, n_ctx, piece)
        while feed.n_done < len(piece):
            running = [feed, *(other for other in company if other.n_done < len(other.piece))]
            widths = [self._rng.randint(1, width) if company else width for _ in running]
            drawn = [self._plan(its, n, wrong=wrong) for its, n in zip(running, widths, strict=True)]
            rows = self._target.eval([plan for plan, _ in drawn])[0]
            for index in range(1 + drawn[0][1]):
                yield feed.n_done + index, rows[index]
            for its, (plan, n_right) in zip(running, drawn, strict=True):
                its.n_done += 1 + n_right
                its.n_kv = self._take_back(plan, n_right)
        self._back(n_ctx)

    def _plan(self, feed: _Feed, width: int, *, wrong: bool) -> tuple[Plan, int]:
        """A pass of `width` rows, and how many drafted tokens of it are right; wrong ones fill it up."""
        pending = feed.piece[feed.n_kv - feed.n_ctx : feed.n_done + 1]
        rest = feed.piece[feed.n_done + 1 :]
        n_draft = max(0, width - len(pending))
        n_right = min(n_draft, len(rest))
        if wrong and n_right and self._rng.random() < _WRONG:
            n_right = self._rng.randrange(n_right)
        others = [(token + 1) % self._target.n_vocab for token in (*rest[n_right:], *self._text)[: n_draft - n_right]]
        return Plan(feed.seq, feed.n_kv, pending, _chain([*rest[:n_right], *others])), n_right

    def _take_back(self, plan: Plan, n_right: int) -> int:
        """Drop the wrong tokens; how many tokens of the sequence are cached then."""
        n_keep = plan.n_past + len(plan.pending)
        if len(plan.draft.tokens) == n_right or self._target.retain(plan.seq_id, n_keep, tuple(range(n_right))):
            return n_keep + n_right
        if self._target.fall_back(plan.seq_id, plan.n_past) != plan.n_past:
            raise ModelError("this model's memory does not take back rejected tokens: there is nothing to certify")
        return plan.n_past

    def _back(self, n_ctx: int) -> None:
        """To the context, by dropping what followed it where the memory can, else by evaluating it anew."""
        if not (self._target.capabilities.rewind and self._target.retain(0, n_ctx)):
            self.prefill(n_ctx)


@dataclass(slots=True)
class _Feed:
    """How far a sequence has got with its piece of text."""

    seq: int
    n_ctx: int
    piece: Sequence[int]
    n_done: int = 0
    """Tokens after which the row is known."""
    n_kv: int = field(init=False)
    """Tokens in the cache; fewer than `n_ctx + n_done` where the memory evaluates accepted tokens again."""

    def __post_init__(self) -> None:
        self.n_kv = self.n_ctx


def _chain(tokens: Sequence[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), chain_parents(n), (0,) * n, (1.0,) * n) if n else NO_DRAFT


def certify(
    kv_types: Sequence[str], means: Means, budget_s: float
) -> tuple[list[Cell], list[Price], list[tuple[str, str]]]:
    """All KV types one after the other; comparisons, prices, and the types that the model does not take.

    The arguments are those of `certify_kv`, each type having its share of what is left of `budget_s`.
    """
    cells: list[Cell] = []
    prices: list[Price] = []
    refused: list[tuple[str, str]] = []
    ends_s = means.clock() + budget_s
    for index, kv in enumerate(kv_types):
        try:
            share_s = (ends_s - means.clock()) / (len(kv_types) - index)
            its_cells, its_prices = certify_kv(kv, means, share_s)
        except ModelError as error:
            refused.append((kv, str(error)))
            continue
        cells += its_cells
        prices += its_prices
    return cells, prices, refused
