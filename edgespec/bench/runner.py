"""Runs every question in every mode, interleaved and rotated, and records what each run took.

All modes of a question and a round run back to back, each from an empty KV cache, in an order that changes from pair to
pair. Times are taken from outside, at the iterator a user's program would read. A run that fails is recorded as failed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from edgespec.bench.modes import Mode, orders
from edgespec.bench.workloads import Question
from edgespec.interfaces import Chunk, Drafter, Limits, Message, Result, Sampling

_WARM_UP_TOKENS = 32


class AnswerStream(Protocol):
    """An answer in the making."""

    def __iter__(self) -> Iterator[Chunk]:
        """Pieces as they come."""
        ...

    @property
    def result(self) -> Result:
        """The finished answer."""
        ...


class BenchEngine(Protocol):
    """What the runner needs of an engine."""

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        """Tokens of a prompt."""
        ...

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        ...

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
    ) -> AnswerStream:
        """Begin an answer in a fresh session."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    questions: Sequence[Question]
    modes: Sequence[Mode]
    sampling: Sampling
    rounds: int = 1
    max_tokens: int = 128
    max_draft: int = 15
    system: str | None = None
    ignore_eog: bool = False
    """Whether every answer goes on to its longest length."""

    def limits(self, question: Question, mode: Mode) -> Limits:
        """Limits of one run."""
        longest = min(self.max_tokens, question.max_tokens or self.max_tokens)
        fixed = mode.fixed_draft
        return Limits(
            max_tokens=longest,
            max_draft=0 if mode.drafter == "none" else fixed or self.max_draft,
            fixed_draft=fixed,
            ignore_eog=self.ignore_eog,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One answer in one mode. Times in seconds; a failed run has `error` and no numbers."""

    question_id: str
    group: str
    round: int
    mode: str
    place: int
    """Its place among the modes of its pair, 0 first."""
    error: str | None = None
    tokens: int = 0
    decoded: int = 0
    """Tokens after the first piece: those that `decode_s` was spent on."""
    decode_s: float = 0.0
    """From the first piece to the last."""
    ttft_s: float | None = None
    """From the request to the first piece."""
    total_s: float = 0.0
    """From the request until the stream ended."""
    prefill_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    accepted_by_position: tuple[int, ...] = ()
    widths: Mapping[int, int] = field(default_factory=dict)
    saved_s: float | None = None
    drafter: str = "none"
    off_reason: str | None = None
    finish_reason: str | None = None
    ids: tuple[int, ...] = ()


@dataclass(slots=True)
class Record:
    """All runs so far, and whether the plan was left early."""

    runs: list[Run] = field(default_factory=list)
    partial: bool = False


def run_all(
    plan: Plan,
    engine: Callable[[], BenchEngine],
    record: Record,
    progress: Callable[[int, int, Run], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Record:
    """Run the whole plan into `record`; Ctrl-C leaves it early and marks it as partial.

    Args:
        plan: what to run.
        engine: gives the engine of the next run; called before each, outside the measured time.
        record: filled as the runs end.
        progress: called with (runs done, runs in all, the last run).
        clock: seconds, monotonic.
    """
    sequence = orders(len(plan.modes))
    n_all = plan.rounds * len(plan.questions) * len(plan.modes)
    try:
        _warm_up(plan, engine())
        for number in range(plan.rounds):
            for index, question in enumerate(plan.questions):
                order = sequence[(index * plan.rounds + number) % len(sequence)]
                for place, arm in enumerate(order):
                    run = run_one(plan, engine(), question, number, place, plan.modes[arm], clock)
                    record.runs.append(run)
                    if progress is not None:
                        progress(len(record.runs), n_all, run)
    except KeyboardInterrupt:
        record.partial = True
    return record


def run_one(
    plan: Plan,
    engine: BenchEngine,
    question: Question,
    number: int,
    place: int,
    mode: Mode,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Ask one question in one mode, from an empty cache."""
    try:
        prompt = prompt_of(engine, question, plan.system)
        with _no_gc():
            return _timed(plan, engine, prompt, question, number, place, mode, clock)
    except Exception as error:  # whatever it is, it belongs into the record and must not end the other runs
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Run(question.question_id, question.group, number, mode.name, place, error=text)


def prompt_of(engine: BenchEngine, question: Question, system: str | None = None) -> list[int]:
    """The question as the tokens of a conversation's first turn."""
    head = [Message("system", system)] if system else []
    return engine.prompt(engine.render([*head, Message("user", question.text)]))


def _timed(
    plan: Plan,
    engine: BenchEngine,
    prompt: Sequence[int],
    question: Question,
    number: int,
    place: int,
    mode: Mode,
    clock: Callable[[], float],
) -> Run:
    first_s = last_s = None
    n_first = n_tokens = 0
    limits, drafter = plan.limits(question, mode), mode.make() if mode.make else mode.drafter
    began_s = clock()
    stream = engine.stream(prompt, plan.sampling, limits, drafter=drafter)
    for chunk in stream:
        if not chunk.tokens:
            continue
        last_s = clock()
        n_tokens += len(chunk.tokens)
        if first_s is None:
            first_s, n_first = last_s, n_tokens
    ended_s = clock()
    result = stream.result
    if len(result.tokens) != n_tokens:
        raise RuntimeError(f"the stream gave {n_tokens} tokens, the result has {len(result.tokens)}")
    report = result.report
    return Run(
        question.question_id,
        question.group,
        number,
        mode.name,
        place,
        tokens=n_tokens,
        decoded=n_tokens - n_first,
        decode_s=last_s - first_s if first_s is not None and last_s is not None else 0.0,
        ttft_s=first_s - began_s if first_s is not None else None,
        total_s=ended_s - began_s,
        prefill_s=report.prefill_s,
        drafted=report.drafted,
        accepted=report.accepted,
        rounds=report.rounds,
        accepted_by_position=report.accepted_by_position,
        widths=dict(report.widths),
        saved_s=report.saved_s,
        drafter=report.drafter,
        off_reason=report.drafter_off_reason if mode.drafter != "none" else None,
        finish_reason=result.finish_reason,
        ids=result.tokens,
    )


def _warm_up(plan: Plan, engine: BenchEngine) -> None:
    """One short answer in every mode, so that no mode pays for pages, teams and imports. Failures show later."""
    question = plan.questions[0]
    short = Question(question.question_id, question.group, question.text, _WARM_UP_TOKENS)
    for place, mode in enumerate(plan.modes):
        run_one(plan, engine, short, 0, place, mode)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Collect before, not during: where a collection falls is nobody's speed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
