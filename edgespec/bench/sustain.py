"""A long run: the modes by turns in short answers, to see what heat and other programs do to them over minutes.

Folded into blocks of a few seconds. An answer counts in the block in which it ended, so that on a slow machine a block
may hold none of a mode: that is unknown, not zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.ratios import Cell, aggregate
from edgespec.bench.runner import BenchEngine, Plan, Run, run_one
from edgespec.conditions import Conditions

BLOCK_S = 5.0
"""Length of a block in seconds."""
ANSWER_TOKENS = 64
"""Longest answer: short, so that the modes take turns every second or so and meet the same heat."""
_MAX_FAILED = 3
"""Failures in a row after which a mode is left out: ten minutes of errors tell no more than three."""
_GROUP = "sustained"
_DASH = "–"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer and what the machine was like when it ended."""

    at_s: float
    """When it ended, in seconds since the run began."""
    run: Run
    now: Conditions


@dataclass(slots=True)
class Sustained:
    """A long run so far."""

    minutes: float
    """How long it was to be."""
    modes: tuple[str, ...]
    samples: list[Sample] = field(default_factory=list)
    partial: bool = False
    """Whether Ctrl-C ended it early."""
    gave_up: bool = False
    """Whether it ended early as every mode failed again and again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One mode within a span of time: sums over the answers that ended in it and did not fail."""

    answers: int
    decoded: int
    decode_s: float
    rounds: int
    drafted: int

    @property
    def tok_s(self) -> float | None:
        """Tokens a second of decoding."""
        return self.decoded / self.decode_s if self.decode_s > 0 else None

    @property
    def drafted_per_round(self) -> float | None:
        """Mean length of a draft, rounds without one counted as 0."""
        return self.drafted / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True)
class Block:
    """A span of the run."""

    at_s: float
    """When it begins, in seconds since the run began."""
    parts: Mapping[str, Part]
    """By mode; only the modes of which an answer ended in it."""
    now: Conditions | None
    """The last reading of the sensors in it; None where no answer ended in it."""


def modes_of(plan: Plan) -> tuple[str, ...]:
    """The modes of a plan that make sense in a long run: plain once, and none that has to know the text before."""
    return tuple(mode.name for mode in plan.modes if mode.name != PLAIN_AGAIN and not mode.knows_the_text)


def sustain(
    plan: Plan,
    engine: Callable[[], BenchEngine],
    conditions: Callable[[], Conditions],
    found: Sustained,
    progress: Callable[[float, Run], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sustained:
    """Answer the questions over and over, each in every mode of `found`, until its minutes are over; fills `found`.

    Args:
        plan: questions, modes (see `modes_of`) and limits; answers have at most `ANSWER_TOKENS` tokens.
        engine: gives the engine of the next answer.
        conditions: the latest reading of the sensors.
        found: says for how long and in which modes; filled as answers end, and marked as partial after Ctrl-C.
        progress: called with (seconds since the beginning, the last run).
        clock: seconds, monotonic.
    """
    modes = [mode for mode in plan.modes if mode.name in found.modes]
    short = replace(plan, modes=modes, max_tokens=min(plan.max_tokens, ANSWER_TOKENS))
    failed = dict.fromkeys(found.modes, 0)
    began_s, number = clock(), 0
    try:
        while modes and clock() - began_s < 60.0 * found.minutes:
            question = plan.questions[number % len(plan.questions)]
            for place, mode in enumerate(modes if number % 2 == 0 else modes[::-1]):
                run = run_one(short, engine(), question, number, place, mode, clock)
                at_s = clock() - began_s
                # Thousands of answers: their texts are of no use here.
                found.samples.append(Sample(at_s, replace(run, ids=()), conditions()))
                failed[mode.name] = failed[mode.name] + 1 if run.error is not None else 0
                if progress is not None:
                    progress(at_s, run)
            modes = [mode for mode in modes if failed[mode.name] < _MAX_FAILED]
            number += 1
        found.gave_up = not modes
    except KeyboardInterrupt:
        found.partial = True
    return found


def blocks(samples: Sequence[Sample], block_s: float = BLOCK_S) -> list[Block]:
    """The run in spans of `block_s` seconds, from its beginning to the span in which the last answer ended."""
    by_index: dict[int, list[Sample]] = {}
    for sample in samples:
        by_index.setdefault(int(sample.at_s // block_s), []).append(sample)
    return [_block(index * block_s, by_index.get(index, [])) for index in range(max(by_index, default=-1) + 1)]


def overall(found: Sustained) -> dict[str, Cell]:
    """The whole run by mode, with ratios to plain and their intervals."""
    return aggregate([replace(sample.run, group=_GROUP) for sample in found.samples]).get(_GROUP, {})


def kept(found: Sustained) -> dict[str, float | None]:
    """By mode, tokens a second of the last minute over those of the first; None for runs of less than two minutes."""
    minutes = blocks(found.samples, 60.0)
    last_s = found.samples[-1].at_s if found.samples else 0.0
    if last_s < 120.0:
        return dict.fromkeys(found.modes)
    first = minutes[0]
    last = _block(last_s - 60.0, [sample for sample in found.samples if sample.at_s > last_s - 60.0])
    speeds = {mode: (_speed(first, mode), _speed(last, mode)) for mode in found.modes}
    return {mode: late / early if early and late else None for mode, (early, late) in speeds.items()}


def to_json(found: Sustained) -> dict[str, object]:
    """The run as plain data, for the key `sustain` of the report."""
    cells, shares = overall(found), kept(found)
    return {
        "minutes": found.minutes,
        "partial": found.partial,
        "gave_up": found.gave_up,
        "block_s": BLOCK_S,
        "answer_tokens": ANSWER_TOKENS,
        "modes": {
            mode: {
                "answers": cell.runs - cell.failed, "failed": cell.failed, "tok_s": cell.tok_s,
                "ratio": cell.ratio.value, "ratio_low": cell.ratio.low, "ratio_high": cell.ratio.high,
                "last_minute_over_first": shares.get(mode),
            }
            for mode, cell in cells.items()
        },
        "blocks": [_block_json(block) for block in blocks(found.samples)],
        "failures": [
            {"at_s": round(sample.at_s, 1), "mode": sample.run.mode, "question_id": sample.run.question_id,
             "error": sample.run.error}
            for sample in found.samples if sample.run.error is not None
        ],
    }  # fmt: skip


def table(found: Sustained) -> str:
    """One line a minute, for a terminal."""
    others = [mode for mode in found.modes if mode != PLAIN]
    head = f"{'minute':>6}" + "".join(
        f" {mode[:8]:>8}" + (f" {'ratio':>6} {'drafted':>7}" if mode in others else "") for mode in found.modes
    )
    lines = [f"{head} {'°C':>5} {'clock':>6} {'others':>6}"]
    for block in blocks(found.samples, 60.0):
        plain = _speed(block, PLAIN)
        row = f"{block.at_s / 60.0 + 1:>6.0f}"
        for mode in found.modes:
            speed, part = _speed(block, mode), block.parts.get(mode)
            row += f" {_shown(speed, 1):>8}"
            if mode in others:
                ratio = speed / plain if speed and plain else None
                row += f" {_shown(ratio, 3):>6} {_shown(part.drafted_per_round if part else None, 2):>7}"
        now = block.now or Conditions(0.0)
        cap = f"{now.freq_cap:.0%}" if now.freq_cap is not None else _DASH
        lines.append(f"{row} {_shown(now.temp_c, 0):>5} {cap:>6} {_shown(now.busy_others, 1):>6}")
    lines.extend(_notes(found))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _notes(found: Sustained) -> Iterable[str]:
    for mode, cell in overall(found).items():
        ratio = cell.ratio
        if mode != PLAIN and ratio.value is not None:
            interval = f" ({ratio.low:.3f}..{ratio.high:.3f})" if ratio.low is not None else ""
            yield f"{mode} over the whole run: {ratio.value:.3f} times plain{interval}"
    for mode, share in kept(found).items():
        if share is not None:
            yield f"{mode}: the last minute had {share:.0%} of the speed of the first"
    failed = [sample.run for sample in found.samples if sample.run.error is not None]
    if failed:
        yield f"FAILED {len(failed)} answers; the first: {failed[0].mode} on {failed[0].question_id}: {failed[0].error}"
    if found.partial or found.gave_up:
        yield f"PARTIAL: it was to take {found.minutes:g} min."


def _block(at_s: float, samples: Sequence[Sample]) -> Block:
    by_mode: dict[str, list[Run]] = {}
    for sample in samples:
        if sample.run.error is None:
            by_mode.setdefault(sample.run.mode, []).append(sample.run)
    return Block(at_s, {mode: _part(runs) for mode, runs in by_mode.items()}, samples[-1].now if samples else None)


def _part(runs: Sequence[Run]) -> Part:
    return Part(
        len(runs),
        sum(run.decoded for run in runs),
        math.fsum(run.decode_s for run in runs),
        sum(run.rounds for run in runs),
        sum(run.drafted for run in runs),
    )


def _speed(block: Block, mode: str) -> float | None:
    part = block.parts.get(mode)
    return part.tok_s if part else None


def _block_json(block: Block) -> dict[str, object]:
    now = block.now
    names = ("temp_c", "headroom", "freq_cap", "throttled", "power_w", "busy_others")
    return {
        "at_s": block.at_s,
        "modes": {
            mode: {"answers": part.answers, "tok_s": part.tok_s, "drafted_per_round": part.drafted_per_round}
            for mode, part in block.parts.items()
        },
        **{name: getattr(now, name) if now is not None else None for name in names},
    }


def _shown(value: float | None, digits: int) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"
