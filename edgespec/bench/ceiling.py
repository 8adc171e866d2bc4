"""How much of what a perfect drafter would gain a mode reaches, and where the rest is lost.

The oracle of the same question and round is the ceiling: same text, same controller, every guess right. A mode's decode
time above the oracle's is split without rest. Outside the passes it is Python's. In them a round loses the time of its
pass less what its tokens cost the oracle; the share of the rejected rows was paid for nothing (too long), and what is
left goes to what ended the round: nothing more was proposed, the next proposed token was wrong, or right tokens were
proposed and not verified (too short).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.bench.modes import ORACLE, PLAIN, PLAIN_AGAIN
from edgespec.bench.ratios import Ratio, decode_ratio, geomean, resampler
from edgespec.bench.runner import Record, Run
from edgespec.bench.trace import n_right
from edgespec.core.trace import RoundTrace

LOSSES = ("no_proposal", "wrong", "too_short", "too_long", "python")


class _Prices:
    """Seconds of a pass by tokens in it: medians of what was seen, never falling, straight lines between."""

    def __init__(self, rounds: Sequence[RoundTrace]) -> None:
        seen: dict[int, list[float]] = {}
        for found in rounds:
            seen.setdefault(found.n_pending + found.n_drafted, []).append(found.verify_s)
        self._widths = sorted(seen)
        self._seconds = np.maximum.accumulate([np.median(seen[width]) for width in self._widths])

    def of(self, width: int) -> float:
        """Seconds of a pass over `width` tokens."""
        return float(np.interp(width, self._widths, self._seconds))


@dataclass(frozen=True, slots=True)
class Gap:
    """One mode in one group against the oracle."""

    share: Ratio
    """The mode's speed over the oracle's."""
    pairs: int
    pairs_left_out: int
    """Pairs in which a run failed or was marked, or the two texts differ."""
    tokens: int
    """Decoded in the pairs."""
    lost_s: Mapping[str, float]
    """Seconds above the oracle's by reason, their sum the whole difference. Negative: faster than the oracle there."""
    rounds: Mapping[str, int]
    """Rounds by what ended them; those too long were ended by a wrong token, and are counted with these."""
    rejected: int
    """Drafted tokens that were wrong: the rows paid for nothing."""
    unverified: int
    """Proposed tokens that were right and not verified."""

    @property
    def lost_ms_token(self) -> dict[str, float]:
        """`lost_s` in milliseconds per decoded token; empty where there was none."""
        return {reason: 1000 * s / self.tokens for reason, s in self.lost_s.items()} if self.tokens else {}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """All modes against the oracle."""

    gaps: Mapping[str, Mapping[str, Gap]]
    """By mode and group."""
    means: Mapping[str, tuple[Ratio, int]]
    """By mode: geometric mean of the share over groups, and how many groups."""


def ceiling(record: Record, seed: int = 0) -> Ceiling | None:
    """Hold every drafting mode against the oracle; None: no oracle ran, or rounds were not kept."""
    cold = [run for run in record.runs if not run.warm]
    modes = [mode for mode in dict.fromkeys(run.mode for run in cold) if mode not in {ORACLE, PLAIN, PLAIN_AGAIN}]
    if not record.rounds or not any(run.mode == ORACLE for run in cold):
        return None
    gaps: dict[str, dict[str, Gap]] = {mode: {} for mode in modes}
    for group in dict.fromkeys(run.group for run in cold):
        mine = [run for run in cold if run.group == group]
        oracle = {(run.question_id, run.round): run for run in mine if run.mode == ORACLE and _usable(run)}
        prices = _Prices([found for run in mine for found in _rounds(record, run)])
        for mode in modes:
            runs = [run for run in mine if run.mode == mode]
            keyed = [(run, oracle.get((run.question_id, run.round))) for run in runs if _usable(run)]
            pairs = [(run, best) for run, best in keyed if best is not None and run.ids == best.ids and run.decoded]
            share = decode_ratio(pairs, resampler(seed, group)())
            gaps[mode][group] = _gap(record, pairs, len(runs), share, prices)
    means = {}
    for mode, groups in gaps.items():
        shares = [gap.share for gap in groups.values()]
        means[mode] = (geomean(shares), sum(share.value is not None for share in shares))
    return Ceiling(gaps, means)


def _usable(run: Run) -> bool:
    return run.error is None and run.mark is None


def _rounds(record: Record, run: Run) -> tuple[RoundTrace, ...]:
    return record.rounds.get((run.question_id, run.round, run.mode), ())


def _in_passes_s(rounds: Sequence[RoundTrace]) -> float:
    return math.fsum(found.verify_s for found in rounds)


def _gap(record: Record, pairs: Sequence[tuple[Run, Run]], n_runs: int, share: Ratio, prices: _Prices) -> Gap:
    lost = dict.fromkeys(LOSSES, 0.0)
    counts = dict.fromkeys(LOSSES[:3], 0)
    rejected = unverified = 0
    for run, best in pairs:
        rounds, best_passes_s = _rounds(record, run), _in_passes_s(_rounds(record, best))
        # The first token comes with the prompt's last pass, the second with the first round.
        n_prompt = rounds[0].position - 1 if rounds else 0
        for found in rounds:
            reason, n = _ended_by(found, run.ids[found.position - n_prompt :])
            width, n_rejected = found.n_pending + found.n_drafted, found.n_drafted - found.n_accepted
            wasted_s = found.verify_s * (1.0 - prices.of(width - n_rejected) / prices.of(width))
            lost["too_long"] += wasted_s
            lost[reason] += found.verify_s - wasted_s - len(found.tokens) * best_passes_s / best.decoded
            counts[reason] += 1
            rejected += n_rejected
            unverified += max(0, n - found.n_drafted)
        lost["python"] += run.decode_s - _in_passes_s(rounds) - (best.decode_s - best_passes_s)
    tokens = sum(run.decoded for run, _ in pairs)
    return Gap(share, len(pairs), n_runs - len(pairs), tokens, lost, counts, rejected, unverified)


def _ended_by(found: RoundTrace, ahead: Sequence[int]) -> tuple[str, int]:
    """Why a round made no more tokens, and how many of its proposal were right."""
    n = n_right(found.proposal, ahead)
    if found.n_drafted < n:
        return "too_short", n
    return ("wrong" if len(found.proposal.tokens) > n else "no_proposal"), n
