"""Measures what verify passes of each width cost on this machine: the table the controller decides by."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.core.cost import CostTable
from edgespec.interfaces import NO_DRAFT, Draft, Plan, Target

_WIDTHS = (1, 4, 8, 2, 3, 16, 6, 5, 12, 7)
"""In the order in which knowing them matters when time runs out."""
_N_REPEATS = 5
_SLOPE_ONE, _SLOPE_WIDE = 0.3, 0.4
"""Plain steps that 1024 tokens of context add, per row, until it is learned: measured on a small model, whose attention
weighs more than a large one's, so that long contexts are at first thought dearer than they are, not cheaper."""


def calibrate(target: Target, clock: Callable[[], float], budget_s: float = 0.8) -> CostTable:
    """Time passes of several widths at a short context, in rounds over all widths, for about `budget_s`.

    Uses sequence 0, which must be empty or expendable, and leaves it empty. Width 1 is always measured.
    """
    limit = min(target.n_rows_max, target.n_batch, target.n_ctx)
    if target.capabilities.max_rollback is not None:
        limit = min(limit, 1 + target.capabilities.max_rollback)
    widths = [width for width in _WIDTHS if width <= max(1, limit)]
    began_s = clock()
    _time_pass(target, clock, 1)  # the first pass pages the weights in
    first_s = _time_pass(target, clock, 1)
    seconds: dict[int, list[float]] = {1: [first_s]}
    back: list[float] = []
    for _ in range(_N_REPEATS):
        for width in widths:
            known = seconds.get(width, [first_s * width])
            if clock() - began_s + min(known) <= budget_s:
                if width == 1:
                    back.append(_time_pass(target, clock, 1))  # the pass before was a wide one, but for the first
                seconds.setdefault(width, []).append(_time_pass(target, clock, width))
    # Other programs only ever slow a pass down: the lower quartile is what the machine can do, without the luck of
    # the very best. A wide pass always follows another width, as it will when it is used.
    table = {width: sorted(found)[len(found) // 4] for width, found in seconds.items()}
    switch_s = max(0.0, sorted(back[1:])[len(back[1:]) // 4] - table[1]) if len(back) > 1 else 0.0
    return CostTable(table, _SLOPE_ONE, _SLOPE_WIDE, min(switch_s, table[1]))


def _time_pass(target: Target, clock: Callable[[], float], width: int) -> float:
    ids = [(7 * i + 11) % target.n_vocab for i in range(width)]
    n = width - 1
    draft = Draft(tuple(ids[1:]), tuple(range(-1, n - 1)), (0,) * n, (1.0,) * n) if n else NO_DRAFT
    target.clear(0)
    began_s = clock()
    target.eval([Plan(0, 0, ids[:1], draft)])
    seconds = clock() - began_s
    target.clear(0)
    return seconds
