"""Several users at once: as many answers as asked for in the same passes, drafted and not.

A *wave* is a set of questions that begin together, every one in a session of its own; it ends with the last answer.
Speed is counted from the moment at which every prompt has been read: before that some answers go on while others are
still being begun, in another proportion with every set of prompts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Protocol

from edgespec.answer import Stream, play_together
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, Mode, orders
from edgespec.bench.ratios import Cell, aggregate
from edgespec.bench.runner import BenchEngine, Plan, Run, no_gc, prompt_of
from edgespec.bench.workloads import Question
from edgespec.core.session import Session
from edgespec.interfaces import Drafter, Limits, Sampling

_GROUP = "concurrent"
_WARM_UP_TOKENS = 16
_DASH = "–"


class SessionsEngine(BenchEngine, Protocol):
    """What waves need of an engine; it should keep as many sessions in its cache as a wave has answers."""

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
        session: Session | None = None,
    ) -> Stream:
        """Begin an answer in a fresh session."""
        ...


@dataclass(frozen=True, slots=True)
class Wave:
    """Answers that were written together; `run` counts all of them, its `decode_s` from when every prompt was read."""

    run: Run
    speeds: tuple[float, ...] = ()
    """Tokens a second of each answer that has more than one token, from its first to its last."""


@dataclass(slots=True)
class Concurrent:
    """Waves so far."""

    sessions: int
    """Answers at once."""
    waves: list[Wave] = field(default_factory=list)
    partial: bool = False
    """Whether Ctrl-C ended it early."""
    problem: str | None = None
    """Why no wave could be played."""


def waves_of(questions: Sequence[Question], sessions: int) -> list[tuple[Question, ...]]:
    """Every question at least once, `sessions` at a time, those of different groups together where there are any."""
    n_all = len(questions)
    n_waves = math.ceil(n_all / sessions)
    return [tuple(questions[(first + i * n_waves) % n_all] for i in range(sessions)) for first in range(n_waves)]


def measure(
    plan: Plan,
    engine: SessionsEngine,
    found: Concurrent,
    progress: Callable[[int, int, Run], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Concurrent:
    """Play all waves of `plan` in every mode, in changing order; fills `found`. Ctrl-C leaves it early.

    Args:
        plan: questions, modes, rounds and limits. Left out are the second plain arm and a mode that knows the text.
        engine: answers; opened with `found.sessions` sessions.
        found: says how many at once; filled as waves end.
        progress: called with (waves done, waves in all, the last one).
        clock: seconds, monotonic.
    """
    modes = [mode for mode in plan.modes if mode.name != PLAIN_AGAIN and not mode.knows_the_text]
    waves, sequence = waves_of(plan.questions, found.sessions), orders(len(modes))
    n_all = plan.rounds * len(waves) * len(modes)
    try:
        for mode in modes:
            _play(replace(plan, max_tokens=_WARM_UP_TOKENS), engine, waves[0], 0, 0, mode, clock)
        for number in range(plan.rounds):
            for index, questions in enumerate(waves):
                order = sequence[(index * plan.rounds + number) % len(sequence)]
                for place, arm in enumerate(order):
                    wave = _play(plan, engine, questions, number, place, modes[arm], clock)
                    found.waves.append(wave)
                    if progress is not None:
                        progress(len(found.waves), n_all, wave.run)
    except KeyboardInterrupt:
        found.partial = True
    return found


def cells(found: Concurrent) -> dict[str, Cell]:
    """By mode; a cell's pair is a wave, and its speed that of all answers of a wave together."""
    return aggregate([wave.run for wave in found.waves]).get(_GROUP, {})


def slowest_over_mean(found: Concurrent, mode: str) -> float | None:
    """The slowest answer's speed over the mean one of its wave, in the mean over waves; 1: all get the same."""
    shares = [min(w.speeds) / fmean(w.speeds) for w in found.waves if w.run.mode == mode and w.speeds]
    return fmean(shares) if shares else None


def to_json(found: Concurrent) -> dict[str, object]:
    """The waves as plain data, for the key `concurrency` of the report."""
    return {
        "sessions": found.sessions,
        "partial": found.partial,
        "problem": found.problem,
        "modes": {
            mode: {
                "waves": cell.runs - cell.failed, "failed": cell.failed, "tok_s": cell.tok_s,
                "e2e_tok_s": cell.tokens / cell.total_s if cell.total_s > 0 else None,
                "ratio": cell.ratio.value, "ratio_low": cell.ratio.low, "ratio_high": cell.ratio.high,
                "acceptance": cell.acceptance,
                "drafted_per_round": _drafted_per_round(found, mode),
                "slowest_over_mean": slowest_over_mean(found, mode),
            }
            for mode, cell in cells(found).items()
        },
        "failures": [
            {"questions": wave.run.question_id, "mode": wave.run.mode, "round": wave.run.round,
             "error": wave.run.error}
            for wave in found.waves if wave.run.error is not None
        ],
    }  # fmt: skip


def table(found: Concurrent) -> str:
    """For a terminal."""
    lines = [
        f"{found.sessions} answers at once",
        f"{'mode':<12}{'tok/s in all':>12} {'ratio':>6} {'95 % interval':>14} {'acc.':>5} {'slowest/mean':>13}",
    ]
    for mode, cell in cells(found).items():
        ratio = cell.ratio if mode != PLAIN else None
        value = f"{ratio.value:.3f}" if ratio and ratio.value is not None else _DASH
        interval = f"{ratio.low:.3f}..{ratio.high:.3f}" if ratio and ratio.low is not None else ""
        speed = _DASH if cell.tok_s is None else f"{cell.tok_s:.1f}"
        accepted = _DASH if cell.acceptance is None else f"{cell.acceptance:.0%}"
        share = slowest_over_mean(found, mode)
        fair = _DASH if share is None else f"{share:.2f}"
        lines.append(f"{mode[:11]:<12}{speed:>12} {value:>6} {interval:>14} {accepted:>5} {fair:>13}")
    failed = [wave.run for wave in found.waves if wave.run.error is not None]
    lines.extend(f"FAILED {run.mode} on {run.question_id}: {run.error}" for run in failed[:5])
    if found.problem is not None:
        lines.append(f"FAILED: {found.problem}")
    if found.partial:
        lines.append("PARTIAL: interrupted.")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _play(
    plan: Plan,
    engine: SessionsEngine,
    questions: Sequence[Question],
    number: int,
    place: int,
    mode: Mode,
    clock: Callable[[], float],
) -> Wave:
    """One wave in one mode; a failure of any answer is that of the wave."""
    run = Run(" ".join(question.question_id for question in questions), _GROUP, number, mode.name, place)
    streams: list[Stream] = []
    try:
        prompts = [prompt_of(engine, question, plan.system) for question in questions]
        began_s = clock()
        for question, prompt in zip(questions, prompts, strict=True):
            drafter = mode.make() if mode.make else mode.drafter
            streams.append(engine.stream(prompt, plan.sampling, plan.limits(question, mode), drafter=drafter))
        with no_gc():
            told = _follow(streams, clock)
        return _counted(run, streams, told, clock() - began_s)
    except Exception as error:  # whatever it is, it belongs into the record and must not end the other waves
        return Wave(replace(run, error=f"{type(error).__name__}: {error}".splitlines()[0]))
    finally:
        for stream in streams:
            stream.close()


def _follow(streams: Sequence[Stream], clock: Callable[[], float]) -> list[list[tuple[float, int]]]:
    """Play all to the end; by answer, when tokens came and how many."""
    told: list[list[tuple[float, int]]] = [[] for _ in streams]
    while any(chunks := play_together(streams)):
        now_s = clock()
        for mine, chunk in zip(told, chunks, strict=True):
            if chunk is not None and chunk.tokens:
                mine.append((now_s, len(chunk.tokens)))
    return told


def _counted(run: Run, streams: Sequence[Stream], told: Sequence[Sequence[tuple[float, int]]], total_s: float) -> Wave:
    said = [mine for mine in told if mine]
    all_begun_s = max((mine[0][0] for mine in said), default=0.0)
    end_s = max((mine[-1][0] for mine in said), default=0.0)
    reports = [stream.result.report for stream in streams]
    spans = [(mine[-1][0] - mine[0][0], sum(n for _, n in mine[1:])) for mine in said]
    return Wave(
        replace(
            run,
            tokens=sum(n for mine in said for _, n in mine),
            decoded=sum(n for mine in said for at_s, n in mine if at_s > all_begun_s),
            decode_s=end_s - all_begun_s,
            total_s=total_s,
            prefill_s=sum(report.prefill_s for report in reports),
            drafted=sum(report.drafted for report in reports),
            accepted=sum(report.accepted for report in reports),
            rounds=sum(report.rounds for report in reports),
        ),
        tuple(n / seconds for seconds, n in spans if seconds > 0),
    )


def _drafted_per_round(found: Concurrent, mode: str) -> float | None:
    runs = [wave.run for wave in found.waves if wave.run.mode == mode]
    rounds = sum(run.rounds for run in runs)
    return sum(run.drafted for run in runs) / rounds if rounds else None
