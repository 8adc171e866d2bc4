"""Measures what verify passes of each width cost on this machine: the table the controller decides by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from edgespec.core.cost import CostTable
from edgespec.interfaces import NO_DRAFT, Draft, Plan, Target

WIDTHS = (1, 4, 8, 2, 3, 16, 6, 5, 12, 7)
"""In the order in which knowing them matters when time runs out."""
_N_REPEATS = 5
_SLOPE_ONE, _SLOPE_WIDE = 0.3, 0.4
"""Plain steps that 1024 tokens of context add, per row, until it is learned: measured on a small model, whose attention
weighs more than a large one's, so that long contexts are at first thought dearer than they are, not cheaper."""
_CLEARLY = 0.9
"""A smaller team must take at most this share of the time to be preferred."""
_WIDE = 8
"""Rows of the pass by which teams for wider passes are compared."""
_LONG_S = 0.05
"""Of passes this long, two a team are timed instead of five."""


def calibrate(
    target: Target, clock: Callable[[], float], budget_s: float = 0.8, widths: Sequence[int] = WIDTHS
) -> CostTable:
    """Time passes of several widths at a short context, in rounds over all widths, for about `budget_s`.

    Uses sequence 0, which must be empty or expendable, and leaves it empty. Width 1 is always measured.
    """
    limit = min(target.n_rows_max, target.n_batch, target.n_ctx)
    if target.capabilities.max_rollback is not None:
        limit = min(limit, 1 + target.capabilities.max_rollback)
    widths = [width for width in widths if width <= max(1, limit)]
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
    return CostTable(table, _SLOPE_ONE, _SLOPE_WIDE, min(switch_s, table[1]), restore_s=_time_restore(target, clock))


def choose_threads(target: Target, clock: Callable[[], float], use: Callable[[int], object], n_threads: int) -> int:
    """How many threads make a pass of one token fastest just now: `n_threads`, or fewer where that is clearly better.

    Fewer are better where another program holds a core, or where memory is the limit and cores differ. `use` sets the
    number of threads; it is left at the answer. Uses sequence 0 as `calibrate` does.
    """
    # One less tells competition for a core, half tells a limit of the memory.
    sizes = sorted({size for size in (n_threads, n_threads - 1, n_threads // 2) if size >= 1}, reverse=True)
    use(n_threads)
    _time_pass(target, clock, 1)
    n_passes = 2 if _time_pass(target, clock, 1) > _LONG_S else 5
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for size in [size for _ in range(n_passes) for size in sizes]:
        use(size)
        times[size].append(_time_pass(target, clock, 1))
    best = min(sizes, key=lambda size: (median(times[size]), -size))
    if median(times[best]) > _CLEARLY * median(times[n_threads]):
        best = n_threads
    use(best)
    return best


def gains(target: Target, clock: Callable[[], float], usual: Callable[[], object], other: Callable[[], object]) -> bool:
    """Whether wide passes are clearly faster with the team that `other` sets than with that of `usual`, just now.

    `usual` is called last. Uses sequence 0 as `calibrate` does.
    """
    width = min(_WIDE, target.n_rows_max, target.n_batch, target.n_ctx)
    if target.capabilities.max_rollback is not None:
        width = min(width, 1 + target.capabilities.max_rollback)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        for use, found in zip((other, usual), times, strict=True):
            use()
            _time_pass(target, clock, width)  # the first pass with a team makes its threads
            found.append(_time_pass(target, clock, width))
    return median(times[0]) < _CLEARLY * median(times[1])


def _time_pass(target: Target, clock: Callable[[], float], width: int) -> float:
    ids = [(7 * i + 11) % target.n_vocab for i in range(width)]
    n = width - 1
    draft = Draft(tuple(ids[1:]), tuple(range(-1, n - 1)), (0,) * n, (1.0,) * n) if n else NO_DRAFT
    target.clear(0)
    n_past = 0
    if n and target.capabilities.rollback == "replay":  # keeping an empty state would cost nothing
        target.eval([Plan(0, 0, ids[:1])])
        n_past = 1
    began_s = clock()
    target.eval([Plan(0, n_past, ids[:1], draft)])
    seconds = clock() - began_s
    target.clear(0)
    return seconds


def _time_restore(target: Target, clock: Callable[[], float]) -> float:
    """Seconds of going back to the state of before a pass, where that is how this memory takes tokens back."""
    if target.capabilities.rollback != "replay" or target.n_rows_max < 2:
        return 0.0
    times = []
    for _ in range(_N_REPEATS):
        target.eval([Plan(0, 0, [0])])
        target.eval([Plan(0, 1, [0], Draft((0,), (-1,), (0,), (1.0,)))])
        began_s = clock()
        target.fall_back(0, 1)
        times.append(clock() - began_s)
        target.clear(0)
    return median(times)
