"""Runs to numbers: tokens per second by group and mode, and ratios to plain decoding with their intervals.

A *pair* is a question and a round: all its modes ran back to back, so that a ratio within it is not disturbed by what
the machine did an hour later. Pairs in which either run failed, in which the machine was in another state than beside
plain's run, or in which either answer had a single token (which has no decode time), do not count for the decode ratio;
the end-to-end ratio needs no more than an answer.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edgespec.bench.compare import loops
from edgespec.bench.modes import PLAIN
from edgespec.bench.runner import Run

N_BOOTSTRAP = 2000
_LOW, _HIGH = 2.5, 97.5

Seconds = npt.NDArray[np.float64]
_T = TypeVar("_T", bool, int, float)


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
class Footprint:
    """What some runs took of the machine beside time, and in what state it was. None: no sensor says so."""

    rss_bytes: int | None
    """Highest resident memory of the process at the end of a run."""
    j_token: float | None
    """Joules per token, prompts included, over the runs that a power meter could follow."""
    power_source: str | None
    temp_c: float | None
    """Highest temperature before or after a run."""
    freq_cap: float | None
    """Lowest clock limit before or after a run, over the highest clock; 0..1."""
    throttled: bool | None
    """Whether the processor was held back at any of these moments."""
    busy_others: float | None
    """Mean cores' worth of other programs' time."""


@dataclass(frozen=True, slots=True)
class Warm:
    """The runs in which the session had answered the question before: its prompt was in the KV cache."""

    runs: int
    failed: int
    ttft_s: float | None
    tok_s: float | None
    tokens_per_round: float | None
    acceptance: float | None
    ratio: Ratio
    """Against plain's warm runs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One mode in one group, from an empty cache. Sums are over the runs that did not fail."""

    runs: int
    failed: int
    marked: int
    """Runs that give no ratio, as the machine was in another state than beside plain's."""
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
    ratio_varied: Ratio
    """`ratio` without the questions to which plain's answer was a loop."""
    footprint: Footprint
    warm: Warm | None
    """None: not measured."""


def aggregate(runs: Sequence[Run], seed: int = 0) -> dict[str, dict[str, Cell]]:
    """Cells by group and mode, both in order of first appearance; deterministic for the same runs and seed."""
    groups = list(dict.fromkeys(run.group for run in runs))
    modes = [PLAIN, *(mode for mode in dict.fromkeys(sorted(run.mode for run in runs)) if mode != PLAIN)]
    found: dict[str, dict[str, Cell]] = {}
    for group in groups:
        mine = [run for run in runs if run.group == group]
        plain = {_key(run): run for run in mine if run.mode == PLAIN}
        found[group] = {
            mode: _cell([run for run in mine if run.mode == mode], plain, loops(mine), resampler(seed, group))
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


def decode_ratio(pairs: Sequence[tuple[Run, Run]], rng: np.random.Generator) -> Ratio:
    """How many times as fast as the second run of each pair the first one decodes; only pairs that can say so count."""
    return _ratio(_timed(pairs), _per_token, rng)


def resampler(seed: int, group: str) -> Callable[[], np.random.Generator]:
    """The same resamples for every mode of a group, whatever groups and modes there are beside it."""
    return lambda: np.random.default_rng([seed, zlib.crc32(group.encode())])


def _key(run: Run) -> tuple[str, int, bool]:
    return run.question_id, run.round, run.warm


def _cell(
    runs: Sequence[Run],
    plain: Mapping[tuple[str, int, bool], Run],
    looping: frozenset[str],
    rng: Callable[[], np.random.Generator],
) -> Cell:
    cold, warm = [run for run in runs if not run.warm], [run for run in runs if run.warm]
    good = [run for run in cold if run.error is None]
    pairs = _pairs(cold, plain)
    timed = _timed(pairs)
    decoded, decode_s = sum(run.decoded for run in good), math.fsum(run.decode_s for run in good)
    ratio, varied = _ratio(timed, _per_token, rng()), [pair for pair in timed if pair[0].question_id not in looping]
    return Cell(
        runs=len(cold),
        failed=len(cold) - len(good),
        marked=sum(run.mark is not None for run in good),
        tokens=sum(run.tokens for run in good),
        decoded=decoded,
        decode_s=decode_s,
        total_s=math.fsum(run.total_s for run in good),
        tok_s=decoded / decode_s if decode_s > 0 else None,
        tokens_per_round=_tokens_per_round(good),
        drafted=sum(run.drafted for run in good),
        accepted=sum(run.accepted for run in good),
        acceptance=_acceptance(good),
        accepted_by_position=_added(run.accepted_by_position for run in good),
        widths=dict(sorted(sum((Counter(run.widths) for run in good), Counter()).items())),
        ttft_s=_median(run.ttft_s for run in good),
        prefill_s=math.fsum(run.prefill_s for run in good),
        saved_s=_over(math.fsum, (run.saved_s for run in good)),
        ratio=ratio,
        ratio_sum=_ratio_of_sums(timed),
        ratio_pair=_median(_per_token(b) / _per_token(a) for a, b in timed),
        e2e=_ratio([p for p in pairs if all(run.tokens and run.total_s > 0 for run in p)], _per_answer_token, rng()),
        pairs=len(timed),
        pairs_left_out=len(cold) - len(timed),
        drafters=dict(Counter(run.drafter for run in good)),
        off_reasons=dict(Counter(run.off_reason for run in good if run.off_reason)),
        ratio_varied=_ratio(varied, _per_token, rng()) if len(varied) < len(timed) else ratio,
        footprint=footprint(good),
        warm=_warm(warm, plain, rng()) if warm else None,
    )


def footprint(runs: Sequence[Run]) -> Footprint:
    """Fold what was read beside runs that did not fail."""
    beside = [run.beside for run in runs]
    metered = [run for run in runs if run.energy_j is not None and run.tokens]
    joules, tokens = math.fsum(run.energy_j or 0.0 for run in metered), sum(run.tokens for run in metered)
    return Footprint(
        rss_bytes=_over(max, (run.rss_bytes for run in runs)),
        j_token=joules / tokens if tokens else None,
        power_source=metered[0].beside.power_source if metered else None,
        temp_c=_over(max, (found.temp_c for found in beside)),
        freq_cap=_over(min, (found.freq_cap for found in beside)),
        throttled=_over(any, (found.throttled for found in beside)),
        busy_others=_over(np.mean, (found.busy_others for found in beside)),
    )


def _warm(runs: Sequence[Run], plain: Mapping[tuple[str, int, bool], Run], rng: np.random.Generator) -> Warm:
    good = [run for run in runs if run.error is None]
    decode_s = math.fsum(run.decode_s for run in good)
    return Warm(
        runs=len(runs),
        failed=len(runs) - len(good),
        ttft_s=_median(run.ttft_s for run in good),
        tok_s=sum(run.decoded for run in good) / decode_s if decode_s > 0 else None,
        tokens_per_round=_tokens_per_round(good),
        acceptance=_acceptance(good),
        ratio=decode_ratio(_pairs(runs, plain), rng),
    )


def _pairs(runs: Sequence[Run], plain: Mapping[tuple[str, int, bool], Run]) -> list[tuple[Run, Run]]:
    """Runs that may be compared, and plain's beside each."""
    pairs = [(run, plain[_key(run)]) for run in runs if _key(run) in plain]
    return [pair for pair in pairs if all(run.error is None and run.mark is None for run in pair)]


def _timed(pairs: Sequence[tuple[Run, Run]]) -> list[tuple[Run, Run]]:
    return [pair for pair in pairs if all(run.decoded > 0 and run.decode_s > 0 for run in pair)]


def _tokens_per_round(runs: Sequence[Run]) -> float | None:
    rounds = sum(run.rounds for run in runs)
    return sum(run.decoded for run in runs if run.rounds) / rounds if rounds else None


def _acceptance(runs: Sequence[Run]) -> float | None:
    drafted = sum(run.drafted for run in runs)
    return sum(run.accepted for run in runs) / drafted if drafted else None


def _median(values: Iterable[float | None]) -> float | None:
    return _over(np.median, values)


def _over(fold: Callable[[list[Any]], Any], values: Iterable[_T | None]) -> _T | None:
    """Those that are known, folded; None where none is."""
    known = [value for value in values if value is not None]
    return type(known[0])(fold(known)) if known else None  # numpy's numbers are not what JSON takes


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
