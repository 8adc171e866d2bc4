"""Runs to numbers: tokens per second by group and mode, and ratios to plain decoding with their intervals.

A *pair* is a question and a round: all its modes ran back to back, so that a ratio within it is not disturbed by what
the machine did an hour later. Pairs in which either run failed, or in which either answer had a single token (which
has no decode time), do not count for the decode ratio; the end-to-end ratio needs no more than an answer.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgespec.bench.modes import PLAIN
from edgespec.bench.runner import Run

N_BOOTSTRAP = 2000
_LOW, _HIGH = 2.5, 97.5

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as plain; the interval holds 95 % of the resampled values.

    None: nothing to compare, or too few pairs for an interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    samples: Seconds | None = field(default=None, repr=False, compare=False)
    """The resampled values, for means over groups."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One mode in one group. Sums are over the runs that did not fail."""

    runs: int
    failed: int
    tokens: int
    decoded: int
    decode_s: float
    total_s: float
    tok_s: float | None
    tokens_per_round: float | None
    drafted: int
    accepted: int
    acceptance: float | None
    accepted_by_position: tuple[int, ...]
    widths: dict[int, int]
    ttft_s: float | None
    prefill_s: float
    saved_s: float | None
    ratio: Ratio
    """By the median over rounds of each question's decode seconds per token, weighted by plain's tokens."""
    ratio_sum: float | None
    """By sums of tokens and seconds over the same pairs."""
    ratio_pair: float | None
    """Median over pairs of the ratio of tokens per second."""
    e2e: Ratio
    """End to end: time to the first token and decoding."""
    pairs: int
    pairs_left_out: int
    drafters: dict[str, int]
    off_reasons: dict[str, int]


def aggregate(runs: Sequence[Run], seed: int = 0) -> dict[str, dict[str, Cell]]:
    """Cells by group and mode, both in order of first appearance; deterministic for the same runs and seed."""
    groups = list(dict.fromkeys(run.group for run in runs))
    modes = [PLAIN, *(mode for mode in dict.fromkeys(sorted(run.mode for run in runs)) if mode != PLAIN)]
    found: dict[str, dict[str, Cell]] = {}
    for group in groups:
        mine = [run for run in runs if run.group == group]
        plain = {(run.question_id, run.round): run for run in mine if run.mode == PLAIN}
        found[group] = {
            mode: _cell([run for run in mine if run.mode == mode], plain, _rng(seed, group))
            for mode in modes
            if any(run.mode == mode for run in mine)
        }
    return found


def geomean(ratios: Sequence[Ratio]) -> Ratio:
    """Geometric mean of ratios that exist, its interval from the same resamples."""
    known = [ratio for ratio in ratios if ratio.value is not None and ratio.samples is not None]
    if not known:
        return Ratio()
    value = math.exp(sum(math.log(ratio.value or 1.0) for ratio in known) / len(known))
    logs = np.mean([np.log(ratio.samples) for ratio in known if ratio.samples is not None], axis=0)
    return _with_interval(value, np.exp(logs), all(ratio.low is not None for ratio in known))


def _cell(runs: Sequence[Run], plain: dict[tuple[str, int], Run], rng: Callable[[], np.random.Generator]) -> Cell:
    good = [run for run in runs if run.error is None]
    pairs = [(run, plain[key]) for run in good if (key := (run.question_id, run.round)) in plain]
    pairs = [(run, base) for run, base in pairs if base.error is None]
    timed = [pair for pair in pairs if all(run.decoded > 0 and run.decode_s > 0 for run in pair)]
    decoded, decode_s = sum(run.decoded for run in good), math.fsum(run.decode_s for run in good)
    drafted, accepted = sum(run.drafted for run in good), sum(run.accepted for run in good)
    rounds, in_rounds = sum(run.rounds for run in good), sum(run.decoded for run in good if run.rounds)
    firsts = [run.ttft_s for run in good if run.ttft_s is not None]
    saved = [run.saved_s for run in good if run.saved_s is not None]
    return Cell(
        runs=len(runs),
        failed=len(runs) - len(good),
        tokens=sum(run.tokens for run in good),
        decoded=decoded,
        decode_s=decode_s,
        total_s=math.fsum(run.total_s for run in good),
        tok_s=decoded / decode_s if decode_s > 0 else None,
        tokens_per_round=in_rounds / rounds if rounds else None,
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else None,
        accepted_by_position=_added(run.accepted_by_position for run in good),
        widths=dict(sorted(sum((Counter(run.widths) for run in good), Counter()).items())),
        ttft_s=float(np.median(firsts)) if firsts else None,
        prefill_s=math.fsum(run.prefill_s for run in good),
        saved_s=math.fsum(saved) if saved else None,
        ratio=_ratio(timed, _per_token, rng()),
        ratio_sum=_ratio_of_sums(timed),
        ratio_pair=float(np.median([_per_token(b) / _per_token(a) for a, b in timed])) if timed else None,
        e2e=_ratio([p for p in pairs if all(run.tokens and run.total_s > 0 for run in p)], _per_answer_token, rng()),
        pairs=len(timed),
        pairs_left_out=len(runs) - len(timed),
        drafters=dict(Counter(run.drafter for run in good)),
        off_reasons=dict(Counter(run.off_reason for run in good if run.off_reason)),
    )


def _per_token(run: Run) -> float:
    return run.decode_s / run.decoded


def _per_answer_token(run: Run) -> float:
    return run.total_s / run.tokens


def _weight(run: Run, cost: Callable[[Run], float]) -> float:
    return float(run.decoded if cost is _per_token else run.tokens)


def _ratio(pairs: Sequence[tuple[Run, Run]], cost: Callable[[Run], float], rng: np.random.Generator) -> Ratio:
    """Plain's seconds for the group over the mode's.

    Each question counts with the median over its rounds, so that one stalled run does not decide, times plain's median
    number of tokens. Resampled in two stages, as the pairs of one question are not independent: questions with
    replacement, then for each of them its rounds, the same rounds for both arms.
    """
    rows: dict[str, list[tuple[Run, Run]]] = {}
    for pair in pairs:
        rows.setdefault(pair[0].question_id, []).append(pair)
    if not rows:
        return Ratio()
    mode = [np.array([cost(run) for run, _ in row]) for row in rows.values()]
    plain = [np.array([cost(base) for _, base in row]) for row in rows.values()]
    weights = np.array([np.median([_weight(base, cost) for _, base in row]) for row in rows.values()])

    medians = np.array([[np.median(m), np.median(p)] for m, p in zip(mode, plain, strict=True)])
    seconds = weights @ medians
    drawn = rng.integers(len(rows), size=(N_BOOTSTRAP, len(rows)))
    again = np.empty((N_BOOTSTRAP, len(rows), 2))
    for index, (m, p) in enumerate(zip(mode, plain, strict=True)):
        sample, place = np.nonzero(drawn == index)
        rounds = rng.integers(len(m), size=(len(sample), len(m)))
        again[sample, place, 0] = np.median(m[rounds], axis=1)
        again[sample, place, 1] = np.median(p[rounds], axis=1)
    sums = (weights[drawn][:, :, None] * again).sum(axis=1)
    return _with_interval(float(seconds[1] / seconds[0]), sums[:, 1] / sums[:, 0], len(pairs) > 1)


def _with_interval(value: float, samples: Seconds, enough: bool) -> Ratio:
    if not enough:
        return Ratio(value, samples=samples)
    low, high = np.percentile(samples, [_LOW, _HIGH])
    return Ratio(value, float(low), float(high), samples)


def _ratio_of_sums(pairs: Sequence[tuple[Run, Run]]) -> float | None:
    if not pairs:
        return None
    n_mode, n_plain = (sum(pair[i].decoded for pair in pairs) for i in (0, 1))
    s_mode, s_plain = (math.fsum(pair[i].decode_s for pair in pairs) for i in (0, 1))
    return (n_mode / s_mode) / (n_plain / s_plain)


def _added(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total: list[int] = []
    for row in rows:
        total.extend([0] * (len(row) - len(total)))
        for index, count in enumerate(row):
            total[index] += count
    return tuple(total)


def _rng(seed: int, group: str) -> Callable[[], np.random.Generator]:
    """The same resamples for every mode of a group, whatever groups and modes there are beside it."""
    return lambda: np.random.default_rng([seed, zlib.crc32(group.encode())])
